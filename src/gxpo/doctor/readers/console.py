"""Console texts: the lines with figures of TRL, verl, OpenRLHF, prime-rl and others, among whatever else was printed.

Where each form was read:
- transformers 5.x `trainer_callback.py`: `ProgressCallback.on_log` and `PrinterCallback.on_log` print a dict a log,
  numbers as texts of four digits; before 5, numbers. They carry no step. unsloth's trainer is this one.
- verl 0.9.1 `utils/logger/aggregate_logger.py`: "step:3 - actor/lr:1e-06 - ..."; before 0.5 with three decimals.
- OpenRLHF (2026) `trainer/ppo_trainer.py`: "Global step 3: {...}" and
  "Evaluation completed in 0:00:10, global_step 3, eval_metrics: {...}".
- prime-rl (2026) `trainer/rl/train.py`, `orchestrator/orchestrator.py`: "Step 3 |   12.1s | Loss 0.01 | ..."; with
  colons ("Loss: 0.01") until spring 2026; evaluations as "Evaluated NAME (Step 3) | ... | Reward 0.5".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gxpo.doctor.readers import keys, printed_settings
from gxpo.doctor.readers.found import Found, Row, number, step_of
from gxpo.doctor.readers.messages import Messages
from gxpo.doctor.readers.text import plain

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|NaN|inf|Infinity)"
_MESSAGE = re.compile(r"\"message\": \"(.*?[^\\])\"")
_RAY = re.compile(r"^\([\w.:<>]+ (?:pid|ip)=[^)]*\)\s?")
_DICT = re.compile(r"\{\s*(['\"])[^'\"{}]{1,200}\1\s*:")
_NESTED = re.compile(r"\{\s*(['\"])[^'\"{}]{1,200}\1\s*:\s*\{")
_PAIR = re.compile(r"""(['"])([^'"]{1,300})\1\s*:\s*(?:(['"])(.*?)\3|(?:[\w.]+\()?([^\s,{}\[\]()'"]+)\)?)""", re.S)
_VERL = re.compile(r"(?:^|[\s\])])step:(\d{1,12})(?= - |$)")
_VERL_PAIR = re.compile(rf" - (\S+?):(?:np\.\w+\()?({_NUMBER})\)?(?= - |\s*$| \[)")
_STEP = re.compile(
    r"(?<!Micro )\b(?:global[_ ]?|train(?:ing)?[_ ])?(?:step|iteration|iter)s?\b"
    r"\s{0,8}[:=#]?\s{0,8}\[?\s{0,8}(\d{1,12})\b",
    re.I,
)
_PIPE = re.compile(
    rf"\|\s{{0,40}}([A-Za-z][\w ./@()-]{{0,120}}?)[:=]?\s{{1,40}}({_NUMBER})\s{{0,8}}(%|ms|s|m)?(?=[\s|(,]|$)"
)
_SPAN = re.compile(rf"\|\s{{0,40}}({_NUMBER})(ms|s|m|h)\s{{0,8}}(?:({_NUMBER})s)?\s{{0,40}}\|")
_EQUALS = re.compile(
    r"([A-Za-z_][\w./@-]{0,120}(?: [A-Za-z][\w./@-]{0,120}){0,2}?)"
    rf"\s{{0,8}}[:=]\s{{0,8}}({_NUMBER})(%?)(?=[\s,;|)\]]|$)"
)
_STEPS = ("step", "global_step", "global_step/max_steps")
_BAR = re.compile(r"(\d{1,12})/(\d{1,12}) \[")
_EVALUATED = re.compile(r"Evaluated (?P<name>\S+) \(Step (?P<step>\d{1,12})\)")


# Lines without any of these have nothing to read: the log of an engine has millions.
_MARKS = (
    *("{'", '{"', "{ '", '{ "', "step", "Step", "teration", "%|", "nsloth"),
    *("arning", "WARN", "ERROR", "CRITICAL", "rror:", "raceback (", "returned None", "of memory", "Killed"),
    *("Config(", "Arguments(", "--learning_rate", "--num_generations", "--max_completion_length", "main_ppo"),
    *("openrlhf.", "trl grpo", "verl.trainer"),
)


def _marks(chunk: str) -> list[int]:
    """Where marks stand, in order."""
    out = []
    for mark in _MARKS:
        at = chunk.find(mark)
        while at >= 0:
            out.append(at)
            end = chunk.find("\n", at)
            at = chunk.find(mark, end)
    return sorted(out)


def _pairs(text: str) -> dict[str, Any]:
    """Keys and values of a printed dict: texts, and what JSON makes of the others."""
    if '"' not in text or "'" not in text:
        try:  # most dicts are JSON but for the quotes, and json is five times as fast as a pattern
            return {key.strip(): value for key, value in json.loads(text.replace("'", '"')).items()}
        except (ValueError, RecursionError):
            pass
    pairs = _PAIR.finditer(text)
    return {m[2].replace("\n", "").strip(): m[4] if m[4] is not None else m[5] for m in pairs}


@dataclass
class Console:
    """Reads line by line; `found` has what was understood so far."""

    found: Found = field(default_factory=lambda: Found("console", numbered=False))
    messages: Messages = field(default_factory=Messages)
    settings: printed_settings.PrintedSettings = field(default_factory=printed_settings.PrintedSettings)
    open: list[str] = field(default_factory=list)  # lines of a dict that has not ended
    before: str = ""  # what stood before it on its first line
    rows: int = 0  # dict rows of training so far: steps where none are printed
    step: float = math.nan  # the last that was printed
    broken: tuple[float, str] | None = None  # a line of verl that may go on in the next
    rounded: bool = False
    worded: list[Row] = field(default_factory=list)  # rows of words and numbers
    evaluated: int = 0

    def read(self, chunks: Iterable[str]) -> Found:
        """`chunks`: pieces of whole lines. Only lines with a mark are looked at, and what follows one that goes on."""
        for chunk in chunks:
            at, marks = 0, _marks(chunk)
            for mark in marks:
                while at <= mark:
                    start = at if self._goes_on else chunk.rfind("\n", at, mark) + 1 or at
                    end = chunk.index("\n", start)
                    self._line(plain(chunk[start:end]))
                    at = end + 1
            while self._goes_on and at < len(chunk):
                end = chunk.index("\n", at)
                self._line(plain(chunk[at:end]))
                at = end + 1
        self._end()
        return self.found

    @property
    def _goes_on(self) -> bool:
        return bool(self.open or self.broken or self.settings.open or self.messages.open)

    def _line(self, line: str) -> None:
        bare = _RAY.sub("", line) if line.startswith("(") else line
        whole, line = bare != line, bare  # Ray puts its prefix before every line, so this one begins here
        if not line.startswith(("{", "step:")):
            self.messages.add(line)
        if "nsloth" in line:
            self.found.hints.add("unsloth")
        if self.open:
            self._go_on(line)
            return
        if self.settings.take(line):
            return
        if self.broken is not None and self._verl_rest(line, whole):
            return
        start = _DICT.search(line) if "{" in line else None
        if start is not None and not line[: start.start()].rstrip().endswith(("':", '":')):
            if not _NESTED.match(line, start.start()):
                self._dict(line, start.start())
            return
        verl = _VERL.search(line) if "step:" in line else None
        if verl is not None:
            self._verl(verl, line)
        elif "|" in line or "=" in line or ":" in line:
            self._words(line)

    # dicts

    def _dict(self, line: str, start: int) -> None:
        end = line.find("}", start)
        if end < 0:
            self.open = [line[start:]]
            self.before = line[:start]
            return
        self._row(line[start : end + 1], line[:start])

    def _go_on(self, line: str) -> None:
        fresh = _DICT.search(line)
        if fresh is not None or len(self.open) > 100 or _VERL.search(line):
            self.open = []
            self.found.unreadable += 1
            self._line(line)
            return
        if _BAR.search(line) and "%|" in line:
            return  # a bar drawn between the lines
        end = line.find("}")
        self.open.append(line if end < 0 else line[: end + 1])
        if end >= 0:
            text, self.open = "\n".join(self.open), []
            self._row(text, self.before)

    def _row(self, text: str, before: str) -> None:
        texts = _pairs(text)
        figures = {key: value for key, written in texts.items() if (value := number(written)) is not None}
        if "train_runtime" in figures:
            return
        if not any(keys.known(key) for key in figures):
            logged = _MESSAGE.search(text)  # prime-rl's `json_sink`: the line is inside an object
            if logged is not None:
                self._words(logged[1])
            return
        step = next((s for k in _STEPS if (s := step_of(texts.get(k))) is not None), None)
        for key in _STEPS:
            figures.pop(key, None)
        said = _STEP.search(before)
        if step is None and said is not None:
            step = float(said[1])
        evaluation = "eval_runtime" in figures or "eval_loss" in figures or "eval_metrics" in before
        if evaluation:
            # unsloth prints its own keys without the prefix in rows of evaluations
            figures = {k if k.startswith(("eval_", "epoch")) else f"eval_{k}": v for k, v in figures.items()}
        if step is None:
            self.rows += not evaluation
            step = float(self.rows)
        else:
            self.found.numbered = True
        self.step = step
        self.found.rows.append((step, figures))

    # verl

    def _verl(self, start: re.Match[str], line: str) -> None:
        self._verl_pairs(float(start[1]), line[start.end(1) :])

    def _verl_pairs(self, step: float, text: str) -> None:
        figures = {}
        for pair in _VERL_PAIR.finditer(text):
            if pair[1] == "actor/lr" and pair[2] in ("0.000", "-0.000"):
                self.rounded = True  # 1e-6 printed with three decimals
                continue
            figures[pair[1]] = float(pair[2])
        if figures:
            self.found.numbered = True
            self.step = step
            if self.broken is not None:
                self.found.rows.pop()
            self.found.rows.append((step, figures))
            self.broken = (step, text)

    def _verl_rest(self, line: str, whole: bool) -> bool:
        """Whether the line is the rest of the one before, which a terminal or a page has broken."""
        assert self.broken is not None
        step, text = self.broken
        may = not whole and "step:" not in line and len(text) < 20_000
        if may and (line.startswith((" - ", "- ")) or len(_VERL_PAIR.findall(line)) > 1):
            self._verl_pairs(step, text + line)
            return True
        self.broken = None
        return False

    # words and numbers

    def _words(self, line: str) -> None:
        if "%|" in line:
            bar = _BAR.search(line)
            if bar is not None and self.rows and int(bar[2]) > 1:
                self.found.bars.append((self.rows, int(bar[1]), int(bar[2])))
            return
        evaluated = _EVALUATED.search(line)
        said = evaluated or _STEP.search(line)
        if said is None or "Micro Step" in line:
            return
        step = float(evaluated["step"] if evaluated else said[1])
        rest = line[said.end() :]
        figures: dict[str, float] = {}
        pattern = _PIPE if " | " in rest else _EQUALS
        for pair in pattern.finditer(rest):
            value = number(pair[2])
            if value is not None:
                figures.setdefault(pair[1].strip(), value / 100 if pair[3] == "%" else value)
        span = _SPAN.search(rest)
        if span is not None and "Time" not in figures:
            unit = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}[span[2]]
            figures["Time"] = float(span[1]) * unit + float(span[3] or 0)
        if not any(keys.known(key) for key in figures):
            return
        if evaluated:
            figures = {f"eval/{evaluated['name']}/{key}": value for key, value in figures.items()}
        self.step = step
        self.worded.append((step, figures))
        self.evaluated += evaluated is not None

    def _end(self) -> None:
        # Where dicts or verl's lines are, words with numbers are text: of completions that TRL prints, say.
        if not self.found.rows or self.evaluated:
            self.found.rows += self.worded
            self.found.numbered = self.found.numbered or bool(self.worded)
        if self.open:
            self.found.torn = True
        if self.rounded:
            self.found.notes.append("figures have three decimals: actor/lr of 0.000 is unknown, and was left out")
        self.found.messages = self.messages.texts
        self.found.settings = self.settings.settings()


def read(chunks: Iterable[str]) -> Found:
    """Figures, warnings and settings of a console text, given in pieces of whole lines."""
    return Console().read(chunks)
