"""Reader of console texts: metrics of TRL, verl, OpenRLHF, prime-rl and others, among whatever else was printed.

Where each form was read:
- transformers 5.x `trainer_callback.py`: `ProgressCallback.on_log` and `PrinterCallback.on_log` print a dict a log,
  numbers as texts of four digits; before 5, numbers. They carry no step. unsloth's trainer is this one.
- verl 0.9.1 `utils/logger/aggregate_logger.py`: "step:3 - actor/lr:1e-06 - ..."; before 0.5 with three decimals.
- OpenRLHF (2026) `trainer/ppo_trainer.py`: "Global step 3: {...}" and
  "Evaluation completed in 0:00:10, global_step 3, eval_metrics: {...}".
- Trinity-RFT prints "Step 3: {...}", slime "rollout 3: {...}" and "step 3: {...}", SkyRL "Step 3:" and a dict below
  it, ROLL a line of JSON, NeMo-RL bullets under "Training Results", AReaL a grid: see `doctor/trainers`.
- prime-rl (2026) `trainer/rl/train.py`, `orchestrator/orchestrator.py`: "Step 3 |   12.1s | Loss 0.01 | ..."; with
  colons ("Loss: 0.01") until spring 2026; evaluations as "Evaluated NAME (Step 3) | ... | Reward 0.5".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gxpo.doctor.readers import keys
from gxpo.doctor.readers.configs import PrintedSettings
from gxpo.doctor.readers.messages import Messages
from gxpo.doctor.readers.table import NUMBER, STEP_KEYS, Row, Table, figures_of, number, split_rows, step_of

_MESSAGE = re.compile(r"\"message\": \"(.*?[^\\])\"")
_RAY = re.compile(r"^\([\w.:<>]+ (?:pid|ip)=[^)]*\)\s?")
_DICT = re.compile(r"\{\s*(['\"])[^'\"{}]{1,200}\1\s*:")
_NESTED = re.compile(r"\{\s*(['\"])[^'\"{}]{1,200}\1\s*:\s*\{")
_BARE = re.compile(r"\s*(['\"])[\w/ ]{1,100}\1:\s*[-\w.]+,")  # a row whose opening brace was not copied
_PAIR = re.compile(r"""(['"])([^'"]{1,300})\1\s*:\s*(?:(['"])(.*?)\3|(?:[\w.]+\()?([^\s,{}\[\]()'"]+)\)?)""", re.S)
_VERL = re.compile(r"(?:^|[\s\])])step:(\d{1,12})(?= - |$)")
_VERL_PAIR = re.compile(rf" - (\S+?):(?:np\.\w+\()?({NUMBER})\)?(?= - |\s*$| \[)")
_STEP = re.compile(
    r"(?<!Micro )\b(?:global[_ ]?|train(?:ing)?[_ ])?(?:step|iteration|iter)s?\b"
    r"\s{0,8}[:=#]?\s{0,8}\[?\s{0,8}(\d{1,12})\b",
    re.I,
)
_SPAN = re.compile(rf"\|\s{{0,40}}({NUMBER})(ms|s|m|h)\s{{0,8}}(?:({NUMBER})s)?\s{{0,40}}\|")
_COUNT = re.compile(r"[\[(]\s?(\d{1,12})\s?/\s?\d{1,12}\s?[\])]")  # "(120/9997)"
_HEADING = re.compile(r"[^\w\n]*(?:global[_ ])?(?:step|iteration|iter)\s?[:#=]?\s?\d+(?:\s?/\s?\d+)?[^\w\n]*", re.I)
_PAIR_ALONE = re.compile(
    rf"\s{{0,80}}[-*\u2022|]?\s{{0,80}}([A-Za-z][\w ./@()-]{{0,60}}?)\s*[:=]\s*({NUMBER})\s?(%?)\W{{0,3}}"
)
NARROWEST = 60  # characters of a terminal's line
LONGEST_BLOCK = 25  # lines below such a heading
MOST_CONTINUED = 3  # lines that go on with a row
_EPOCH = re.compile(r"\bepoch\b", re.I)  # of a line that names no step
_LABEL = re.compile(r"\b(?:rollout|perf|eval|passrate|multi_turn) (\d{1,12}): $")  # slime's, before a dict
_STEP_ALONE = re.compile(r"\bStep (\d{1,12}):\s*$")  # SkyRL's, above a dict
_SECTION = re.compile(r"\b(Training Results|Validation Results):")  # NeMo-RL's
_BULLET = re.compile(rf"^\s*\u2022 ([A-Z][\w ]{{1,60}}): ({NUMBER})")
_GRID = "\u2502"  # AReaL's cells are between such bars
_ROUNDED = re.compile(r"-?0\.0{3,}")  # a learning rate in so few decimals is unknown
_RATE = re.compile(r"(?:^|[/_.])(?:lr|learning_rate)(?:-pg_\d+)?$")
_BAR = re.compile(r"(\d{1,12})/(\d{1,12}) \[")
_TRAIN_STEP = re.compile(r"\bTrain step (\d{1,12})/")  # AReaL's heading, which has the step of the epoch before it
_CURVE = re.compile(
    rf"([A-Za-z_][\w./@-]{{0,120}})\W{{1,8}}\[((?:\(\s?\d{{1,12}}\s?,\s?{NUMBER}\s?\)\s?,?\s?){{2,9999}})\]"
)
_POINT = re.compile(rf"(\d{{1,12}})\s?,\s?({NUMBER})")
_ARRAY = re.compile(
    rf"\W*([A-Za-z_][\w ./@-]{{0,60}}?)['\"]?\s{{0,8}}[:=]\s{{0,8}}"
    rf"\[?((?:{NUMBER}%?\s?(?:,|->|\u2192|=>)\s?){{9,9999}}{NUMBER}%?)"
)
_VALUE = re.compile(rf"({NUMBER})(%?)")
_SUMMARY = re.compile(rf"wandb:\s{{1,60}}(\S{{1,200}})\s({NUMBER})\s*")  # W&B's summary: the last value of each key
_EVALUATED = re.compile(r"Evaluated (?P<name>\S+) \(Step (?P<step>\d{1,12})\)")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b\n]*\x07")

# Lines without any of these have nothing to read: the log of an engine has millions.
_MARKS = (
    *("{'", '{"', "{ '", '{ "', "step", "Step", "STEP", "teration", "iter ", "iter=", "Iter ", "poch", "%|", "nsloth"),
    *("arning", "WARN", "ERROR", "CRITICAL", "rror:", "raceback (", "returned None", "of memory", "Killed"),
    *("Config(", "Arguments(", "--learning_rate", "--num_generations", "--max_completion_length", "main_ppo"),
    *("openrlhf.", "trl grpo", "verl.trainer", "skyrl", "--rollout-", " ....", "Results:", "\u2022 ", _GRID),
    *("[(", "wandb: ", "= [", ": [", '": [', "->", "\u2192"),
)


def _marks(chunk: str) -> list[int]:
    """Positions of the marks in a chunk, in order; at most one of each kind per line."""
    positions = []
    for mark in _MARKS:
        place = chunk.find(mark)
        while place >= 0:
            positions.append(place)
            end = chunk.find("\n", place)
            place = chunk.find(mark, end)
    return sorted(positions)


def _pairs(text: str) -> dict[str, Any]:
    """Parse a printed dict; values are texts, or what JSON makes of them."""
    if '"' not in text or "'" not in text:
        try:  # most dicts are JSON but for the quotes, and json is five times as fast as a pattern
            return {key.strip(): value for key, value in json.loads(text.replace("'", '"')).items()}
        except (ValueError, RecursionError):
            pass
    pairs = _PAIR.finditer(text)
    return {m[2].replace("\n", "").strip(): m[4] if m[4] is not None else m[5] for m in pairs}


@dataclass
class Console:
    """Reader of a console text line by line; `table` holds the figures so far."""

    table: Table = field(default_factory=lambda: Table("console", is_numbered=False))
    messages: Messages = field(default_factory=Messages)
    settings: PrintedSettings = field(default_factory=PrintedSettings)
    open: list[str] = field(default_factory=list)  # lines of a dict that has not ended
    prefix: str = ""  # what stood before it on its first line
    dicts: list[tuple[dict[str, Any], str, str]] = field(default_factory=list)  # not yet rows: values, text, `prefix`
    bars: list[tuple[int, int, int]] = field(default_factory=list)  # among them: place, step, length
    rows: int = 0  # dict rows of training so far: steps where none are printed
    broken_line: tuple[float, str] | None = None  # a line of verl that may go on in the next
    is_rounded: bool = False
    word_rows: list[Row] = field(default_factory=list)  # rows of words and numbers
    unnumbered_rows: list[Row] = field(default_factory=list)  # rows of words and numbers without a step
    unknown_rows: list[Row] = field(default_factory=list)  # rows of figures that no trainer is known to write
    last_step: float | None = None  # the number of a heading
    step_alone: float | None = None  # of a line above a dict
    section: str = ""  # of bullets
    block: int = 0  # lines left of those below a heading that names a step alone
    lines_to_continue: int = 0  # lines left of those that may go on with a row of words and numbers
    n_evaluations: int = 0
    earlier_rows: list[Row] = field(default_factory=list)  # of a training without a reward that has ended
    curves: dict[float, dict[str, float]] = field(default_factory=dict)  # of lists of points, a line for each key
    arrays: dict[str, list[float]] = field(default_factory=dict)  # of lists of values, a line for each key
    summary: dict[str, float] = field(default_factory=dict)  # last values of a run

    def read(self, chunks: Iterable[str]) -> Table:
        """Read pieces of whole lines. Only lines with a mark are parsed, and those that continue one."""
        for chunk in chunks:
            place, marks = 0, _marks(chunk)
            for mark in marks:
                while place <= mark:
                    start = place if self._goes_on else chunk.rfind("\n", place, mark) + 1 or place
                    end = chunk.index("\n", start)
                    self._line(chunk[start:end])
                    place = end + 1
            while self._goes_on and place < len(chunk):
                end = chunk.index("\n", place)
                self._line(chunk[place:end])
                place = end + 1
            self._add_dicts()
        self._end()
        return self.table

    @property
    def _goes_on(self) -> bool:
        return bool(
            self.open
            or self.broken_line
            or self.settings.open
            or self.messages.open
            or self.block
            or self.lines_to_continue
        )

    def _line(self, line: str) -> None:
        if "\x1b" in line:
            line = _COLOUR.sub("", line)
        # Ray puts its prefix before every line: a line that has it continues none
        unprefixed = _RAY.sub("", line) if line.startswith("(") else line
        has_ray_prefix, line = unprefixed != line, unprefixed
        if line.startswith(_GRID) and not self.open:
            self._grid(line)
            return
        # rows of figures may quote a completion that reads like an error
        if not line.startswith(("{", "step:")):
            self.messages.add(line)
        if "nsloth" in line:
            self.table.hints.add("unsloth")
        if self.block:
            self._block(line)
        if self.lines_to_continue:
            self.lines_to_continue -= 1
            if line[:1] in (" ", "\t") and line.count("=") > 1 and self.word_rows and not _STEP.search(line):
                row = self.word_rows[-1][1]
                row.update({key: value for key, value in figures_of(line).items() if key not in row})
                return
        if self.open:
            self._go_on(line)
            return
        if (self.settings.open or not (line.startswith("{") and line.endswith("}"))) and self.settings.take(line):
            return
        if self.broken_line is not None and self._verl_rest(line, has_ray_prefix):
            return
        if line.startswith("wandb:"):
            if (last := _SUMMARY.fullmatch(line)) is not None:
                self.summary[last[1]] = float(last[2])
            return
        if "[(" in line and (curve := _CURVE.search(line)) is not None:
            for step, value in _POINT.findall(curve[2]):
                self.curves.setdefault(float(step), {})[curve[1]] = float(value)
            return
        if (array := _ARRAY.match(line)) is not None and keys.is_training(["step", array[1]]):
            # what is printed twice is of a group or a batch
            values = [float(v) / (100 if unit else 1) for v, unit in _VALUE.findall(array[2])]
            self.arrays[array[1]] = [] if array[1] in self.arrays else values
        # a dict that is a value of another, or holds one, is no row of figures
        if line.rstrip().endswith(":") and (heading := _STEP_ALONE.search(line)) is not None:
            self._add_dicts()
            self.step_alone = float(heading[1])
        start = _DICT.search(line) if "{" in line else None
        if start is not None and not line[: start.start()].rstrip().endswith(("':", '":')):
            if not _NESTED.match(line, start.start()):
                self._dict(line, start.start())
            return
        verl = _VERL.search(line) if "step:" in line else None
        bare = _pairs(line) if _BARE.match(line) else {}
        if sum(map(keys.is_metric, bare)) > 2:
            self.dicts.append((bare, line, ""))
        elif verl is not None:
            self._verl(verl, line)
        elif "\u2022 " in line or "Results:" in line:
            self._bullets(line)
        else:
            self._words(line)

    # dicts

    def _dict(self, line: str, start: int) -> None:
        """Read a printed dict; one that does not end in its line is kept open."""
        end = line.find("}", start)
        if end < 0:
            self.open = [line[start:]]
            self.prefix = line[:start]
            return
        text = line[start : end + 1]
        self.dicts.append((_pairs(text), text, line[:start]))

    def _go_on(self, line: str) -> None:
        """Read a line of an open dict; another row or a hundred lines mean that it was cut."""
        fresh = _DICT.search(line) or _VERL.search(line)
        # a printed answer may begin with a brace, too
        if fresh or len(self.open) > 100 or (_COUNT.search(line) and sum(map(keys.is_metric, figures_of(line))) > 2):
            self.open = []
            self.table.n_unreadable += 1
            self._line(line)
            return
        if _BAR.search(line) and "%|" in line:
            return  # a bar drawn between the lines
        end = line.find("}")
        self.open.append(line if end < 0 else line[: end + 1])
        if end >= 0:
            # a terminal breaks at its width, within numbers, too
            widths = {len(part) for part in (self.prefix + self.open[0], *self.open[1:-1])}
            is_wrapped = max(widths) - min(widths) <= 2 and min(widths) >= NARROWEST
            text, self.open = ("" if is_wrapped else "\n").join(self.open), []
            self.dicts.append((_pairs(text), text, self.prefix))

    def _add_dicts(self) -> None:
        """Add the dicts since the last line of another form as rows, and the progress bars among them."""
        rows_at = [self.rows]  # rows of training before each dict
        split = split_rows([texts for texts, _, _ in self.dicts])
        begin = 0  # of the training that goes on, among these
        for place, ((texts, text, prefix), (step, _, values)) in enumerate(zip(self.dicts, split, strict=True)):
            self._row(step, self._without_lost_rates(values, texts), text, prefix)
            begin = place + 1 if rows_at[-1] > self.rows else begin
            rows_at.append(self.rows)
        bars = [bar for bar in self.bars if bar[0] >= begin]
        self.table.bars += [(rows_at[place], step, length) for place, step, length in bars if rows_at[place]]
        self.dicts, self.bars = [], []

    def _row(self, step: float | None, values: dict[str, float], text: str, prefix: str) -> None:
        """Add a dict's figures as a row, if it is of training; `before`: what stands before it in its line."""
        if "train_runtime" in values:
            self._end_training()
            return
        if any(sum(key in values for key in trainer.own_settings) > 1 for trainer in keys.trainers().values()):
            self.settings.add(_pairs(text))
            return
        for key in STEP_KEYS:
            values.pop(key, None)
        if not any(map(keys.is_metric, values)):
            figures = {**figures_of(prefix), **values} if ":" in prefix.rstrip()[:-1] else {}
            if {"reward", "entropy"} <= {keys.by_words(key) for key in figures}:
                self.unnumbered_rows.append((float(len(self.unnumbered_rows) + 1), figures))
            message = _MESSAGE.search(text)  # prime-rl's `json_sink`: the line is inside an object
            if message is not None:
                self._words(message[1])
            elif step is not None and len(values) > 1:
                self.unknown_rows.append((step, values))
            return
        # the first reward, in an epoch before the last row's: another training has begun
        if "reward" in values and self.table.rows and values.get("epoch", 1e9) < self.table.rows[-1][1].get("epoch", 0):
            self._end_training()
        # OpenRLHF and others print the step before the dict, SkyRL above it
        step_before = _LABEL.search(prefix) or _STEP.search(prefix)
        if step is None and step_before is not None:
            step = float(step_before[1])
        if step is None and not prefix.strip():
            step = self.step_alone
        self.step_alone = None
        is_evaluation = "eval_runtime" in values or "eval_loss" in values or "eval_metrics" in prefix
        if is_evaluation:
            # unsloth prints its own keys without the prefix in rows of evaluations
            values = {k if k.startswith(("eval_", "epoch")) else f"eval_{k}": v for k, v in values.items()}
        if step is None:
            self.rows += not is_evaluation
            step = float(self.rows)
        else:
            self.table.is_numbered = True
        self.table.rows.append((step, values))

    def _end_training(self) -> None:
        """Set rows without a reward aside at the end of their training: fine-tuning before the run, with its own steps
        and rates."""
        if self.table.rows and not any("reward" in row for _, row in self.table.rows):
            self.earlier_rows, self.table.rows, self.table.bars, self.rows = self.table.rows, [], [], 0

    def _without_lost_rates(self, values: dict[str, float], texts: dict[str, Any]) -> dict[str, float]:
        """Leave out learning rates of which the decimals that were printed show nothing (SkyRL's "0.0000")."""
        lost_rates = {
            k for k, text in texts.items() if isinstance(text, str) and _ROUNDED.fullmatch(text) and _RATE.search(k)
        }
        self.is_rounded = self.is_rounded or bool(lost_rates)
        return {k: v for k, v in values.items() if k not in lost_rates} if lost_rates else values

    # grids and bullets

    def _add_to_last_step(self, values: dict[str, float]) -> None:
        """Add figures to the row of the step that a heading named last."""
        if not any(map(keys.is_metric, values)):
            return
        self._add_dicts()
        step = float(self.rows) if self.last_step is None else self.last_step
        if self.table.rows and self.table.rows[-1][0] == step:
            self.table.rows[-1][1].update(values)
        else:
            self.table.rows.append((step, values))
        self.table.is_numbered = self.table.is_numbered or self.last_step is not None

    def _grid(self, line: str) -> None:
        """Read a line of a grid: cells of keys and figures in turn."""
        cells = [cell.strip() for cell in line.split(_GRID)[1:-1]]
        pairs = zip(cells[::2], cells[1::2], strict=False)
        self._add_to_last_step({key: v for key, text in pairs if key and (v := number(text)) is not None})

    def _bullets(self, line: str) -> None:
        """Read a line of a section's heading or of its bullets; a key has the section before it."""
        if (section := _SECTION.search(line)) is not None:
            self.section = section[1]
        elif self.section and (bullet := _BULLET.match(line)) is not None:
            self._add_to_last_step({f"{self.section}/{bullet[1]}": float(bullet[2])})

    # verl

    def _verl(self, start: re.Match[str], line: str) -> None:
        self._verl_pairs(float(start[1]), line[start.end(1) :])

    def _verl_pairs(self, step: float, text: str) -> None:
        """Add the figures of a line of verl; with its rest, in place of the broken line's."""
        values = {}
        for pair in _VERL_PAIR.finditer(text):
            if pair[1] == "actor/lr" and pair[2] in ("0.000", "-0.000"):
                self.is_rounded = True  # 1e-6 printed with three decimals
                continue
            values[pair[1]] = float(pair[2])
        if values:
            self._add_dicts()
            self.table.is_numbered = True
            self.table.hints.add("verl")
            if self.broken_line is not None:
                self.table.rows.pop()
            self.table.rows.append((step, values))
            self.broken_line = (step, text)

    def _verl_rest(self, line: str, begins_line: bool) -> bool:
        """Read a line as the rest of the one before, which a terminal or a page has broken; False if it is not."""
        assert self.broken_line is not None
        step, text = self.broken_line
        may = not begins_line and "step:" not in line and len(text) < 20_000
        if may and (line.startswith((" - ", "- ")) or len(_VERL_PAIR.findall(line)) > 1):
            self._verl_pairs(step, text + line)
            return True
        self.broken_line = None
        return False

    # words and numbers

    def _words(self, line: str) -> None:
        """Read a line of words and numbers: "Step 3 | Loss 0.01 | ...", or a progress bar."""
        if "%|" in line:
            bar = _BAR.search(line)
            if bar is not None and int(bar[2]) > 1:
                self.bars.append((len(self.dicts), int(bar[1]), int(bar[2])))
            # a bar may carry figures: "[00:10<01:00, 1.2s/it, reward=0.3]"
            postfix = "" if bar is None or self.rows or self.dicts else line[bar.end() : line.find("]", bar.end())]
            values = figures_of(postfix) if "=" in postfix else {}
            if bar is not None and any(map(keys.is_metric, values)):
                self.word_rows.append((float(bar[1]), values))
            return
        line = line.replace("**", "")
        # prime-rl's line of an evaluation names its data set before the step
        evaluated = _EVALUATED.search(line)
        match = evaluated or _TRAIN_STEP.search(line) or _STEP.search(line) or ([*_COUNT.finditer(line)] or [None])[-1]
        if "Micro Step" in line:
            return
        if match is None:
            self._read_unnumbered(line)
            return
        step = float(evaluated["step"] if evaluated else match[1])
        self.last_step = step
        tail = line[match.end() :]
        values = figures_of(tail)
        # a time has a unit and stands without a name
        span = _SPAN.search(tail)
        if span is not None and "Time" not in values:
            unit = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}[span[2]]
            values["Time"] = float(span[1]) * unit + float(span[3] or 0)
        if not values and _HEADING.fullmatch(line.strip()):
            self.block = LONGEST_BLOCK
        if not any(map(keys.is_metric, values)) and sum(keys.by_words(key) is not None for key in values) < 2:
            return
        if evaluated:
            values = {f"eval/{evaluated['name']}/{key}": value for key, value in values.items()}
        self.word_rows.append((step, values))
        self.n_evaluations += evaluated is not None
        self.lines_to_continue = MOST_CONTINUED

    def _block(self, line: str) -> None:
        """Read a line below a heading that names a step alone: "Mean reward: 0.31"."""
        self.block -= 1
        pair = _PAIR_ALONE.fullmatch(line.replace("**", ""))
        value = number(pair[2]) if pair is not None else None
        if pair is None or value is None or self.last_step is None:
            return
        if not self.word_rows or self.word_rows[-1][0] != self.last_step:
            self.word_rows.append((self.last_step, {}))
        self.word_rows[-1][1].setdefault(pair[1], value / 100 if pair[3] == "%" else value)

    def _read_unnumbered(self, line: str) -> None:
        """Read a line of an epoch and three metrics or more, and no step: such lines are numbered in their order."""
        if _EPOCH.search(line) is None:
            return
        values = figures_of(line)
        if sum(map(keys.is_metric, values)) >= 3:
            self.unnumbered_rows.append((float(len(self.unnumbered_rows) + 1), values))

    def _end(self) -> None:
        if self.earlier_rows and not any("reward" in row for _, row in self.table.rows):
            self.table.rows = [*self.earlier_rows, *self.table.rows]
        elif self.earlier_rows:
            self.table.notes.append(f"{len(self.earlier_rows)} rows of a training without a reward were left out")
        if not self.table.is_numbered and len(self.unnumbered_rows) > 2 * len(self.table.rows) > 0:
            self.table.rows = self.unnumbered_rows  # the others are of single answers
        self.word_rows = [(s, row) for s, row in self.word_rows if any(map(keys.is_metric, row)) or len(row) > 1]
        # Where dicts or verl's lines are, words with numbers are text: of completions that TRL prints, say.
        is_of_words = not self.table.rows
        if is_of_words or self.n_evaluations:
            self.table.rows += self.word_rows
            self.table.is_numbered = self.table.is_numbered or bool(self.word_rows)
        # lines without a number that have the reward, beside numbered ones that have evaluations alone
        has_reward = any("reward" in map(keys.by_words, row) for _, row in self.table.rows)
        if not self.table.rows or (is_of_words and self.unnumbered_rows and not has_reward):
            self.table.rows = self.unnumbered_rows
        last_row = [(step_of(self.summary)[0] or 1.0, self.summary)] if self.summary else []
        longest = max(map(len, self.arrays.values()), default=0)
        complete_arrays = {key: array for key, array in self.arrays.items() if len(array) == longest}
        of_arrays = [(float(i + 1), {key: array[i] for key, array in complete_arrays.items()}) for i in range(longest)]
        for rows in (sorted(self.curves.items(), key=lambda row: row[0]), of_arrays, last_row):
            names = {key for _, row in rows for key in row}
            if not self.table.rows and names and keys.is_training(["step", *names]):
                self.table.rows, self.table.is_numbered = rows, rows is not of_arrays
        if not self.table.rows and self.unknown_rows:
            self.table.rows, self.table.is_known, self.table.is_numbered = self.unknown_rows, False, True
        if self.open:
            self.table.is_torn = True
        if self.is_rounded:
            self.table.notes.append("learning rates that were printed as 0.000 are unknown and were left out")
        self.table.messages = self.messages.texts
        self.table.settings = dict(self.settings.settings)


def read(chunks: Iterable[str]) -> Table:
    """Read figures, warnings and settings of a console text, given in pieces of whole lines."""
    return Console().read(chunks)
