"""What `gxpo explain` reads: a step of a gxpo run, a file of records, a TRL table of completions, a verl dump."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gxpo.base.errors import GxpoError, RecordError
from gxpo.base.media import FOLDER, PICTURES
from gxpo.base.regular_files import check_regular
from gxpo.base.usercode import NotRun, unexecuted
from gxpo.doctor.rollout_files import rollouts
from gxpo.doctor.rollouts import Rollouts
from gxpo.explain.words import Words, pseudo_tokens, reader_of
from gxpo.forest import Forest
from gxpo.forest.record_format.schema import SCHEMA
from gxpo.methods.method import Method
from gxpo.parts.definition import show, stage_of
from gxpo.training import config

STEP = re.compile(r"(\d{1,18})(?!.*\d)")
MOST_ROWS = 200_000  # rows of a table or dump that are read
NEIGHBOURS = 8  # files before and after it that are read beside it


@dataclass
class Source:
    """Rollouts of one step, and what is known of where they come from.

    title     what they are, for the heading
    facts     short statements for the line under it
    lacks     what the file does not hold, and in brackets what is shown instead
    notes     remarks of its reader
    texts     texts of distinct tokens, and `token` [T] which of them each stored token is
    recorded  [R] advantage that the trainer wrote, nan: none
    method    the run's own method with its settings; None: not known
    horizon   longest trainable length of a rollout by the run's settings
    """

    forest: Forest
    title: str
    facts: list[str]
    lacks: list[str]
    words: Words
    recorded: NDArray[np.float64]
    method: Method | None = None
    horizon: float | None = None
    notes: list[str] = field(default_factory=list)


def read(path: Path, step: int | None = None) -> Source:
    """The rollouts of a run directory (of `step`, default its last) or of a file. Raises GxpoError in one line."""
    path = Path(path)
    if not path.exists():
        raise RecordError(f"{path}: no such file or directory")
    if path.is_dir():
        files = _files(path)
        if not files:
            raise RecordError(
                f"{path} holds no rollouts: give a gxpo run with rollouts/, a folder of completions_*.parquet or of "
                "verl's STEP.jsonl, or one such file"
            )
        chosen = _of_step(files, step, path)
    else:
        files, chosen = [path], path
        if step is not None and _step_of(path) not in (None, step):
            raise RecordError(f"{path} is of step {_step_of(path)}, not {step}: leave --step out")
    records = _records(chosen)
    return _of_records(records, chosen, path) if records is not None else _of_rows(chosen, path)


def _files(folder: Path) -> list[Path]:
    direct = ("rollouts/step-*.jsonl", "step-*.jsonl", "completions/*.parquet", "*.parquet", "[0-9]*.jsonl", "*.jsonl")
    for pattern in (*direct, "*/[0-9]*.jsonl"):
        found = [p for p in sorted(folder.glob(pattern)) if _step_of(p) is not None]
        if found:
            return sorted(found, key=lambda p: (_step_of(p) or 0, p.name))
    return []


def _step_of(path: Path) -> int | None:
    found = STEP.search(path.stem)
    return int(found[1]) if found else None


def _of_step(files: Sequence[Path], step: int | None, path: Path) -> Path:
    if step is None:
        return files[-1]
    there = {_step_of(p): p for p in files}
    if step not in there:
        known = [str(s) for s in there]
        shown = ", ".join(known if len(known) <= 12 else [*known[:5], "...", *known[-5:]])
        raise RecordError(f"{path} has no rollouts of step {step}; there are {shown}")
    return there[step]


# ---------------------------------------------------------------- gxpo's records
def _records(path: Path) -> list[dict[str, Any]] | None:
    """The records of a file, or None where its first line is not one of gxpo's."""
    check_regular(path, RecordError)
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


def _of_records(records: list[dict[str, Any]], path: Path, asked: Path) -> Source:
    run = next((p for p in (asked, path.parent, path.parent.parent) if (p / "config.yaml").is_file()), None)
    method, settings, lacks = (None, None, []) if run is None else _run_method(run)
    PICTURES.look_in(path.parent / FOLDER)
    invented, lexicon = _with_pseudo_ids(records)
    forest = Forest.from_records(records)
    model = None if settings is None else settings.model
    decode, how = reader_of(model, lexicon if invented else None)
    words = Words.of(forest, decode)
    if invented:
        lacks.append(f"token ids of {invented} actions (their words stand for tokens)")
    elif how:
        lacks.append(how)
    if bool(forest.path_behaviour_logprob.isnan().all()):
        lacks.append("log-probs (every ratio is taken as 1)")
    else:
        lacks.append("log-probs of an updated policy (every ratio is 1)")
    if not bool(forest.scored.all()):
        lacks.append(f"scores of {int((~forest.scored).sum())} rollouts (they take part in nothing)")
    recorded = np.array([_number(i.get("advantage")) for i in forest.info], dtype=float)
    if np.isnan(recorded).all():
        lacks.append("recorded advantages")
    title = path.stem.replace("-", " ").replace("step 0", "step ") if path.stem.startswith("step-") else path.name
    title = re.sub(r"step 0*(\d)", r"step \1", title)
    facts = [path.name]
    if run is not None:
        task = getattr(settings, "task", None)
        named = None if method is None else method.name
        title = f"{named or 'run'}{f' on {task}' if task else ''}, {title}"
        facts = [f"{run.name}/{path.relative_to(run).as_posix()}", *([f"model {model}"] if model else [])]
    horizon = None
    if settings is not None and settings.sampling is not None:
        turns = max(int(forest.step_turn.max()) + 1 if forest.n_steps else 1, 1)
        horizon = float(settings.sampling.max_new_tokens * (turns if turns > 1 else 1))
        if method is not None and "objective.horizon" in method.keys and method.keys["objective.horizon"].value:
            horizon = float(method.keys["objective.horizon"].value)
    return Source(forest, title, facts, lacks, words, recorded, method, horizon)


def _run_method(run: Path) -> tuple[Method | None, Any, list[str]]:
    """The method and settings of a run's config.yaml. No file that it names is run."""
    try:
        with unexecuted():
            keys = config.read(run / "config.yaml")
            own = {stage_of(k) for k, s in keys.items() if ".py:" in show(s.value)} - {None}
            left = {k: s for k, s in keys.items() if stage_of(k) not in own}  # options of theirs are not known unrun
            found = config.resolve(left)
    except (GxpoError, NotRun) as error:
        return (
            None,
            None,
            [f"a configuration that can be resolved ({error}; GRPO is shown instead of the run's method)"],
        )
    if own or any(type(part).__name__ == "Unexecuted" for part in found.method.parts()):
        return (
            None,
            found.settings,
            ["the run's method, parts of which are a file of its own that is not run here (GRPO is shown)"],
        )
    return found.method, found.settings, []


def _with_pseudo_ids(records: list[dict[str, Any]]) -> tuple[int, dict[str, int]]:
    """Give actions that are known only as text a token for each word; how many there were, and the words' ids."""
    lexicon: dict[str, int] = {}
    found = 0
    for record in records:
        turns = record.get("turns") if isinstance(record, dict) else None
        for turn in turns if isinstance(turns, list) else []:
            if isinstance(turn, dict) and turn.get("action") is None and isinstance(turn.get("action_text"), str):
                pieces = pseudo_tokens(turn["action_text"])
                turn["action"] = [lexicon.setdefault(piece, len(lexicon)) for piece in pieces]
                turn.pop("logprob", None)
                found += 1
    return found, lexicon


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else float("nan")


# ---------------------------------------------------------------- tables and dumps of other trainers
def _of_rows(path: Path, asked: Path) -> Source:
    """A table or dump of another trainer. Its neighbours are read, too: they tell training from evaluations."""
    files = _files(path.parent) if asked.is_dir() or _step_of(path) is not None else [path]
    at = files.index(path) if path in files else 0
    near = files[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1] if path in files else [path]
    near = [p for p in near if p.suffix == path.suffix]
    sample, _, notes = rollouts(near, path.parent, keep=MOST_ROWS)
    if sample is not None:
        sample = sample.select(np.array([where.rpartition(":")[0] == path.name for where in sample.where], dtype=bool))
        if len(sample) and not sample.held_out.all():
            sample = sample.select(~sample.held_out)
    if sample is None or not len(sample):
        said = f" ({'; '.join(notes)})" if notes else ""
        raise RecordError(f"{path} holds no rollouts that can be read{said}")
    notes = [n for n in notes if "sample of" not in n]
    if bool(sample.held_out.all()):
        notes.append("these are rollouts of an evaluation")
    kind = "TRL" if path.suffix == ".parquet" else "Dump of verl or plain JSON lines"
    step = _step_of(path)
    return from_rows(
        sample, kind if step is None else f"{kind}, step {step}", [f"{path.parent.name}/{path.name}"], notes
    )


def from_rows(rows: Rollouts, title: str, facts: list[str], notes: Sequence[str] = ()) -> Source:
    """Rows of a trainer that records texts only: a word stands for a token."""
    lexicon: dict[str, int] = {}
    names = [str(g) if g >= 0 else f"alone {i}" for i, g in enumerate(rows.group.tolist())]
    order: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        order.setdefault(name, []).append(i)
    index = [i for members in order.values() for i in members]
    ids = [
        [[lexicon.setdefault(p, len(lexicon)) for p in pseudo_tokens(rows.completion[i])] for i in members]
        for members in order.values()
    ]
    prompts = [rows.prompt[members[0]] for members in order.values()]
    forest = Forest.from_completions(
        [[] for _ in prompts],
        ids,
        torch.tensor(rows.score[index]),
        groups=[str(i) for i in range(len(order))],
        tasks=[" ".join(prompt.split())[:80] or f"group {name}" for prompt, name in zip(prompts, order, strict=True)],
        success=torch.tensor(rows.success[index]),
        truncated=torch.tensor(np.nan_to_num(rows.truncated[index]) > 0.5),
    )
    components = {k: v[index] for k, v in rows.components.items()}
    forest = forest.with_rewards(forest.outcome, components={k: torch.tensor(v) for k, v in components.items()})
    forest = forest.replace(
        prompt_text=[rows.prompt[i] for i in index],
        id=[f"{rows.where[i]}" or f"row {i}" for i in index] if len(set(rows.where)) == len(rows) else forest.id,
    )
    lacks = ["token ids (words stand for tokens)", "log-probs (every ratio is taken as 1)"]
    recorded = rows.advantage[index]
    if np.isnan(recorded).all():
        lacks.append("recorded advantages")
    if rows.grouped_by == "prompt":
        lacks.append("group ids (rows with equal prompts are one group)")
    elif rows.grouped_by == "blocks":
        lacks.append("group ids (consecutive rows are a group)")
    steps = sorted(set(rows.step.tolist()))
    facts = [*facts, *([] if len(steps) == 1 else [f"steps {steps[0]} to {steps[-1]}"])]
    decode: Callable[[int], str] = list(lexicon).__getitem__
    return Source(forest, title, facts, lacks, Words.of(forest, decode), recorded, notes=list(notes))
