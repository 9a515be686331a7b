"""Reader of rollouts for `gxpo explain`: a step of a gxpo run, a file of records, a TRL table, a verl dump."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gxpo.base.errors import GxpoError, RecordError
from gxpo.base.media import FIRST, FOLDER, PICTURES, label, ref_of, row_of
from gxpo.base.regular_files import check_regular
from gxpo.base.usercode import NotRun, unexecuted
from gxpo.doctor.rollout_files import rollouts
from gxpo.doctor.rollouts import Rollouts
from gxpo.forest import Forest
from gxpo.forest.record_format.schema import SCHEMA
from gxpo.methods.method import Method
from gxpo.models.picture_tokens import Codebook
from gxpo.models.tiny import BUILT_IN, CHARACTERS, IMAGE, MASK, SPECIAL, built_in
from gxpo.parts.options import Unexecuted
from gxpo.training import config
from gxpo.training.directory import METRICS
from gxpo.training.metrics import read as read_metrics

WORD = re.compile(r"\s*[^\s]{1,24}|\s+")  # 24: a text without spaces is cut, too
STEP = re.compile(r"(\d{1,18})(?!.*\d)")
MAX_ROWS = 200_000  # rows that are read of a table or dump
NEIGHBOUR_FILES = 8  # files before and after it that are read, too


@dataclass
class Words:
    """Texts of distinct tokens, and `token` [T]: which of them each stored token is, -1 for none."""

    texts: list[str]
    token: NDArray[np.int64]

    @classmethod
    def of(cls, forest: Forest, decode: Callable[[int], str]) -> Words:
        distinct, index_T = np.unique(forest.token.numpy(), return_inverse=True)
        return cls([_word(int(i), decode) for i in distinct], index_T.astype(np.int64))


@dataclass
class Source:
    """Rollouts of one step, and their origin.

    title     heading of the page
    facts     short statements for the line under the heading
    lacks     columns that the file does not have, each with the page's substitute in brackets
    words     texts of the tokens
    recorded_advantage  [R] advantage that the trainer recorded, nan: none
    method    the run's own method with its settings; None: not known
    horizon   longest trainable length of a rollout by the run's settings
    notes     remarks of the reader
    model     that sampled, as the run's settings name it
    side      patches of a picture's side, where an action is the patches of a picture row by row; 0: it is none
    """

    forest: Forest
    title: str
    facts: list[str]
    lacks: list[str]
    words: Words
    recorded_advantage: NDArray[np.float64]
    method: Method | None = None
    horizon: float | None = None
    notes: list[str] = field(default_factory=list)
    model: str | None = None
    side: int = 0


def read(path: Path, step: int | None = None, *, trust: bool = False) -> Source:
    """Read the rollouts of a run directory (of `step`, default its last) or of a file; errors are of one line.

    trust  run the files that hold parts of the run's own method
    """
    path = Path(path)
    file = files_of(path, step, is_last_alone=True)[-1]
    records = _read_records(file)
    return _source_of_records(records, file, path, trust) if records is not None else _source_of_table(file, path)


def files_of(path: Path, step: int | None = None, *, is_last_alone: bool = False) -> list[Path]:
    """List the files of a run's rollouts, in order of their steps, or that of one step; a file is its own only one.

    is_last_alone  without a step, only the last
    """
    if not path.exists():
        raise RecordError(f"{path}: no such file or directory")
    if not path.is_dir():
        if step is not None and _step_of(path) not in (None, step):
            raise RecordError(f"{path} is of step {_step_of(path)}, not {step}: leave --step out")
        return [path]
    files = _rollout_files(path)
    if not files:
        raise RecordError(
            f"{path} holds no rollouts: give a gxpo run with rollouts/, a folder of completions_*.parquet or of "
            "verl's STEP.jsonl, or one such file"
        )
    if step is not None:
        return [_file_of_step(files, step, path)]
    return files[-1:] if is_last_alone else files


def steps_of(path: Path) -> list[int | None]:
    """Steps that `read` can be given for a directory, in order; [None] for a file, or where there is none."""
    files = _rollout_files(path) if path.is_dir() else []
    return [*sorted({_step_of(p) or 0 for p in files})] or [None]


def _rollout_files(folder: Path) -> list[Path]:
    patterns = (
        "rollouts/step-*.jsonl",
        "step-*.jsonl",
        "completions/*.parquet",
        "*.parquet",
        "[0-9]*.jsonl",
        "*.jsonl",
    )
    for pattern in (*patterns, "*/[0-9]*.jsonl"):
        matches = [p for p in sorted(folder.glob(pattern)) if _step_of(p) is not None]
        if matches:
            return sorted(matches, key=lambda p: (_step_of(p) or 0, p.name))
    return []


def _step_of(path: Path) -> int | None:
    match = STEP.search(path.stem)
    return int(match[1]) if match else None


def _file_of_step(files: Sequence[Path], step: int, path: Path) -> Path:
    file_by_step = {_step_of(p): p for p in files}
    if step not in file_by_step:
        steps = [str(s) for s in file_by_step]
        steps_text = ", ".join(steps if len(steps) <= 12 else [*steps[:5], "...", *steps[-5:]])
        raise RecordError(f"{path} has no rollouts of step {step}; there are {steps_text}")
    return file_by_step[step]


# ---------------------------------------------------------------- gxpo's records
def _read_records(path: Path) -> list[dict[str, Any]] | None:
    """Read the records of a file; None where its first line is not a record of gxpo."""
    check_regular(path, RecordError)
    # The first line decides the format; after it a line that is not JSON is an error, as of a file that was cut.
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return None
        file.seek(0)
        out = []
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                if out:
                    raise RecordError(f"{path}: line {number} is not JSON (was the file cut?)") from None
                return None
            if not out and not (isinstance(record, dict) and record.get("schema") == SCHEMA):
                return None
            out.append(record)
    if not out:
        raise RecordError(f"{path} is empty")
    return out


def _source_of_records(records: list[dict[str, Any]], path: Path, given_path: Path, trust: bool) -> Source:
    run_directory = next(
        (p for p in (given_path, path.parent, path.parent.parent) if (p / "config.yaml").is_file()), None
    )
    method, settings, lacks = (
        (None, None, []) if run_directory is None else _run_method(run_directory, _step_of(path), trust)
    )
    PICTURES.look_in(path.parent / FOLDER)
    # a forest needs token ids: actions that are known only as text get a made-up id for each word
    text_actions, lexicon = _with_pseudo_ids(records)
    forest = Forest.from_records(records, folder=path.parent)
    model = None if settings is None else settings.model
    decode, token_note, side = reader_of(model, lexicon if text_actions else None)
    words = Words.of(forest, decode)
    if text_actions:
        lacks.append(f"token ids of {text_actions} actions (their words stand for tokens)")
    elif token_note:
        lacks.append(token_note)
    # the page lists what it could not know, so that a ratio of 1 is not taken for a measurement
    if bool(forest.path_behaviour_logprob.isnan().all()):
        lacks.append("log-probs (every ratio is taken as 1)")
    else:
        lacks.append("log-probs of an updated policy (every ratio is 1)")
    if not bool(forest.scored.all()):
        lacks.append(f"scores of {int((~forest.scored).sum())} rollouts (they take part in nothing)")
    recorded_advantage = np.array([_float_or_nan(i.get("advantage")) for i in forest.info], dtype=float)
    if np.isnan(recorded_advantage).all():
        lacks.append("recorded advantages")
    title = path.stem.replace("-", " ").replace("step 0", "step ") if path.stem.startswith("step-") else path.name
    title = re.sub(r"step 0*(\d)", r"step \1", title)
    facts = [path.name]
    if run_directory is not None:
        task = getattr(settings, "task", None)
        method_name = None if method is None else method.name
        title = f"{method_name or 'run'}{f' on {task}' if task else ''}, {title}"
        facts = [
            f"{run_directory.name}/{path.relative_to(run_directory).as_posix()}",
            *([f"model {model}"] if model else []),
        ]
    return Source(
        forest,
        title,
        facts,
        lacks,
        words,
        recorded_advantage,
        method,
        _horizon(method, settings, forest),
        model=model,
        side=side,
    )


def _run_method(run: Path, step: int | None, trust: bool) -> tuple[Method | None, Any, list[str]]:
    """Return (method, settings, remarks) of a run's config.yaml, of the phase that `step` was in.

    Parts that are functions in files are stand-ins that refuse to be called, unless `trust` has the files run. Rewards,
    tasks and callbacks of the run are no parts of the method.
    """
    try:
        with nullcontext() if trust else unexecuted():
            resolved = config.resolve(config.read(run / "config.yaml"))
    except (GxpoError, NotRun) as error:
        return (
            None,
            None,
            [f"a configuration that can be resolved ({error}; GRPO is shown instead of the run's method)"],
        )
    remarks = []
    if resolved.phases:
        number = _phase_of(run, step)
        if number is None or not 1 <= number <= len(resolved.phases):
            lacks = f"the phase of the step (no line of {METRICS} states it; the run has {len(resolved.phases)}: "
            return None, resolved.settings, [f"{lacks}GRPO is shown instead of the run's method)"]
        resolved = resolved.phases[number - 1]
    paths = dict.fromkeys(part.path for part in resolved.method.parts() if isinstance(part, Unexecuted))
    if paths:
        remarks.append(
            f"what the run's own {', '.join(paths)} gave (files that a run names are not run here; --trust runs them)"
        )
    return resolved.method, resolved.settings, remarks


def _phase_of(run: Path, step: int | None) -> int | None:
    """Return the number of the phase that a step was in, by the run's metrics; None where they do not state it."""
    try:
        rows = read_metrics(run / METRICS)
    except (GxpoError, OSError, ValueError):
        return None
    return next((row["phase"] for row in rows if row.get("step") == step and isinstance(row.get("phase"), int)), None)


def _horizon(method: Method | None, settings: Any, forest: Forest) -> float | None:
    """Return the longest trainable length of a rollout by the run's settings; None where they do not state it.

    A run multiplies the tokens of an action by the environment's number of turns, which only the environment knows.
    """
    if settings is None or method is None:
        return None
    stated = method.keys["objective.horizon"].value if "objective.horizon" in method.keys else None
    if stated:
        return float(stated)
    has_one_turn = bool(forest.n_steps) and int(forest.step_turn.max()) == 0 and settings.env.max_turns in (None, 1)
    return float(settings.sampling.max_new_tokens) if has_one_turn else None


def _with_pseudo_ids(records: list[dict[str, Any]]) -> tuple[int, dict[str, int]]:
    """Give actions that are known only as text a token for each word; returns their number and the words' ids."""
    lexicon: dict[str, int] = {}
    text_actions = 0
    for record in records:
        turns = record.get("turns") if isinstance(record, dict) else None
        for turn in turns if isinstance(turns, list) else []:
            if isinstance(turn, dict) and turn.get("action") is None and isinstance(turn.get("action_text"), str):
                words = pseudo_tokens(turn["action_text"])
                turn["action"] = [lexicon.setdefault(word, len(lexicon)) for word in words]
                turn.pop("logprob", None)
                text_actions += 1
    return text_actions, lexicon


def _float_or_nan(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else float("nan")


# ---------------------------------------------------------------- tables and dumps of other trainers
def _source_of_table(path: Path, given_path: Path) -> Source:
    """Read a table or dump of another trainer.

    Neighbouring files are read, too: only beside them can training be told from evaluations.
    """
    files = _rollout_files(path.parent) if given_path.is_dir() or _step_of(path) is not None else [path]
    position = files.index(path) if path in files else 0
    neighbours = files[max(0, position - NEIGHBOUR_FILES) : position + NEIGHBOUR_FILES + 1] if path in files else [path]
    neighbours = [p for p in neighbours if p.suffix == path.suffix]
    sample, _, notes = rollouts(neighbours, path.parent, keep=MAX_ROWS)
    if sample is not None:
        sample = sample.select(np.array([place.rpartition(":")[0] == path.name for place in sample.where], dtype=bool))
        if len(sample) and not sample.held_out.all():
            sample = sample.select(~sample.held_out)
    if sample is None or not len(sample):
        reasons = f" ({'; '.join(notes)})" if notes else ""
        raise RecordError(f"{path} holds no rollouts that can be read{reasons}")
    notes = [n for n in notes if "sample of" not in n]
    if bool(sample.held_out.all()):
        notes.append("these are rollouts of an evaluation")
    kind = "TRL" if path.suffix == ".parquet" else "Dump of verl or plain JSON lines"
    step = _step_of(path)
    return from_rows(
        sample, kind if step is None else f"{kind}, step {step}", [f"{path.parent.name}/{path.name}"], notes
    )


def from_rows(rows: Rollouts, title: str, facts: list[str], notes: Sequence[str] = ()) -> Source:
    """Build the source of a trainer that records texts only: a word stands for a token."""
    lexicon: dict[str, int] = {}
    names = [str(g) if g >= 0 else f"alone {i}" for i, g in enumerate(rows.group.tolist())]
    # members of a group lie anywhere in the file: `row_order` brings them together, in order of their first member
    rows_by_name: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        rows_by_name.setdefault(name, []).append(i)
    row_order = [i for members in rows_by_name.values() for i in members]
    ids = [
        [[lexicon.setdefault(p, len(lexicon)) for p in pseudo_tokens(rows.completion[i])] for i in members]
        for members in rows_by_name.values()
    ]
    prompts = [rows.prompt[members[0]] for members in rows_by_name.values()]
    forest = Forest.from_completions(
        [[] for _ in prompts],
        ids,
        torch.tensor(rows.score[row_order]),
        groups=[str(i) for i in range(len(rows_by_name))],
        tasks=[
            " ".join(prompt.split())[:80] or f"group {name}" for prompt, name in zip(prompts, rows_by_name, strict=True)
        ],
        success=torch.tensor(rows.success[row_order]),
        truncated=torch.tensor(np.nan_to_num(rows.truncated[row_order]) > 0.5),
    )
    components = {k: v[row_order] for k, v in rows.components.items()}
    forest = forest.with_rewards(forest.outcome, components={k: torch.tensor(v) for k, v in components.items()})
    forest = forest.replace(
        prompt_text=[rows.prompt[i] for i in row_order],
        id=[f"{rows.where[i]}" or f"row {i}" for i in row_order] if len(set(rows.where)) == len(rows) else forest.id,
    )
    lacks = ["token ids (words stand for tokens)", "log-probs (every ratio is taken as 1)"]
    recorded_advantage = rows.advantage[row_order]
    if np.isnan(recorded_advantage).all():
        lacks.append("recorded advantages")
    if rows.grouped_by == "prompt":
        lacks.append("group ids (rows with equal prompts are one group)")
    elif rows.grouped_by == "blocks":
        lacks.append("group ids (consecutive rows are a group)")
    steps = sorted(set(rows.step.tolist()))
    facts = [*facts, *([] if len(steps) == 1 else [f"steps {steps[0]} to {steps[-1]}"])]
    decode: Callable[[int], str] = list(lexicon).__getitem__
    return Source(forest, title, facts, lacks, Words.of(forest, decode), recorded_advantage, notes=list(notes))


# ---------------------------------------------------------------- texts of tokens
def pseudo_tokens(text: str) -> list[str]:
    """Cut a text before each word; the pieces joined are the text.

    >>> pseudo_tokens("The answer  is 7.")
    ['The', ' answer', '  is', ' 7.']
    """
    return WORD.findall(text) or [""]


def _word(token: int, decode: Callable[[int], str]) -> str:
    """Return the text of a token; of a picture's rows the first has its label, the others are empty."""
    if token < 0:
        return ""
    return decode(token) if token < FIRST else "" if row_of(token) else label(ref_of(token))


class TokenReader(NamedTuple):
    """A function from token ids to texts; what is shown in the place of texts; `Source.side`."""

    decode: Callable[[int], str]
    remark: str = ""
    side: int = 0


def reader_of(model: str | None, lexicon: Mapping[str, int] | None) -> TokenReader:
    """Make the reader of a model's tokens.

    lexicon  ids of made-up tokens by their words; None: real token ids
    """
    if lexicon is not None:
        words = list(lexicon)
        return TokenReader(lambda i: words[i] if i < len(words) else f"<{i}>")
    if model is not None and built_in(model):
        characters = [*SPECIAL, *CHARACTERS, MASK if model.startswith(BUILT_IN[2]) else IMAGE]
        return TokenReader(lambda i: characters[i] if i < len(characters) else f"<{i}>")
    tokenizer = _local_tokenizer(model) if model else None
    if tokenizer is not None:
        codebook = Codebook.of(tokenizer)
        return TokenReader(lambda i: tokenizer.decode([i]), side=0 if codebook is None else codebook.side)
    missing = f"the tokenizer of {model}, not on this machine" if model else "a tokenizer"
    return TokenReader(lambda i: f"<{i}>", f"{missing} (tokens are shown as their ids)")


def _local_tokenizer(model: str):  # type: ignore[no-untyped-def]  # transformers is optional
    from gxpo.base.errors import need
    from gxpo.training.models import picture_tokens

    try:
        if picture_tokens.is_own(model):
            return picture_tokens.words()
        transformers = need("transformers", "train")
        path = str(Path(model).expanduser())
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (GxpoError, OSError, ValueError, KeyError):
        return None
