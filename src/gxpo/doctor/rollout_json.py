"""Rollouts from gxpo's records, verl's dumps and plain tables (JSON Lines, a JSON array, CSV, Parquet)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.doctor.rollout_lines import LARGE, STRETCHES, read_lines
from gxpo.doctor.rollout_rows import NAN, Row, completion_text, first_reference, number, reference, text, whole
from gxpo.doctor.rollout_sample import KEPT, Dump, share, spread
from gxpo.doctor.rollout_tables import read_table, row_count, table_names

GXPO = "gxpo.rollouts/1"
READ = 400 * 2**20  # bytes of JSON Lines that are looked at
PROMPTS = ("prompt", "input", "question", "query", "instruction", "problem")
COMPLETIONS = ("completion", "output", "response", "answer_text", "generation", "prediction")
SCORES = ("reward", "score", "rewards", "total_reward")
GROUPS = ("group", "uid", "group_id", "prompt_id", "group_index")
_SUCCESS = ("acc", "success", "correct", "is_correct", "passed")
_NUMBERS_OF_ROWS = {"index", "idx", "id", "epoch", "rank", "seed", "timestamp", "sample_index", "global_step", "step"}
_LENGTHS = ("tokens", "completion_tokens", "num_tokens", "completion_length", "response_length", "length")
_STEPS = ("step", "global_step", "training_step", "iteration")


@dataclass(frozen=True)
class Columns:
    """Fields of a table of rollouts by their meaning; None: it has none."""

    prompt: str | None
    completion: str
    score: str | None
    group: str | None
    step: str | None
    reference: str | None

    @property
    def keys(self) -> list[str]:
        """Fields that rows of one group share."""
        return [k for k in (self.step, self.group or self.prompt) if k is not None]


@dataclass
class Sample:
    """Rows of several files. `of`: rows that there are; `exact`: whether they were counted."""

    rows: list[Row]
    of: float = 0.0
    exact: bool = True
    bad: int = 0
    unread: int = 0

    def __iadd__(self, other: Sample) -> Sample:
        self.rows += other.rows
        self.of, self.bad, self.unread = self.of + other.of, self.bad + other.bad, self.unread + other.unread
        self.exact = self.exact and other.exact
        return self


def kind(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Kind of a file by its first objects: gxpo, verl, plain, or None."""
    if any(r.get("schema") == GXPO for r in rows):
        return "gxpo"
    if any({"input", "output", "score"} <= r.keys() for r in rows):
        return "verl"
    if any(columns(list(r)) for r in rows):
        return "plain"
    return "tasks" if any(_is_task(r) for r in rows) else None


def _is_task(row: Mapping[str, Any]) -> bool:
    """A question with its answer and no completion."""
    names = [n.lower() for n in row]
    asked = any(n in names for n in PROMPTS)
    return asked and first_reference(list(row)) is not None and not any(n in names for n in COMPLETIONS)


def columns(names: Sequence[str]) -> Columns | None:
    """Assign names to their meaning; None where they are not of a table of rollouts."""
    lower = {n.lower(): n for n in reversed(names)}

    def first(wanted: Sequence[str]) -> str | None:
        return next((lower[w] for w in wanted if w in lower), None)

    completion = first(COMPLETIONS)
    prompt, score, group = first(PROMPTS), first(SCORES), first(GROUPS)
    if completion is None or (prompt is None and group is None) or (score is None and "advantage" not in lower):
        return None
    return Columns(prompt, completion, score, group, first(_STEPS), first_reference(names))


def read_json(files: Sequence[Dump], what: str, budget: int = KEPT) -> Sample:
    """About `budget` rows of the files, all of one kind, in whole groups spread over the steps."""
    return shared_out(files, budget, lambda d, n: _read_file(d, what, n), row_count, READ)


def shared_out(
    files: Sequence[Dump],
    budget: int,
    read: Callable[[Dump, int], Sample],
    rows_in: Callable[[Any], float],
    most_bytes: int,
) -> Sample:
    """Reads a part of the files, a quarter of the budget for those held out, and estimates how many rows all have."""
    found = Sample([])
    held = [d for d in files if d.held_out]
    train = [d for d in files if not d.held_out]
    for some, part in ((train, budget * 3 // 4 if held else budget), (held, budget // 4 if train else budget)):
        if not some:
            continue
        typical = sorted(some, key=lambda d: d.size)[len(some) // 2]
        chosen, each = share(some, rows_in(typical.path), part)
        cost = sum(d.size if d.size <= LARGE else STRETCHES for d in chosen)
        if cost > most_bytes:
            chosen = [chosen[i] for i in spread(len(chosen), max(int(len(chosen) * most_bytes / cost), 3))]
            each = max(part // len(chosen), 1)
        seen = Sample([])
        for dump in chosen:
            try:
                seen += read(dump, each)
            except OSError:
                seen.unread += 1
        if len(chosen) < len(some):
            read_bytes = sum(d.size for d in chosen)
            seen.of *= sum(d.size for d in some) / max(read_bytes, 1)
            seen.exact = False
        found += seen
    return found


def _read_file(dump: Dump, what: str, budget: int) -> Sample:
    found = columns(table_names(dump.path) or ()) if what != "gxpo" else None
    if what == "gxpo":
        make: Callable[..., Row | None] = _GxpoRecords(dump)
        lines = read_lines(dump.path, ("group",), budget)
    elif found is None:
        return Sample([], unread=int(dump.size > 0))
    else:
        make = _TableRows(dump, found)
        lines = read_table(dump.path, found.keys, budget)
    rows, bad = [], lines.bad
    for at, value in lines.rows:
        row = make(at, value)
        if row is None:
            bad += 1
        else:
            rows.append(row)
    return Sample(rows, lines.total, lines.exact, bad)


def place(dump: Dump, at: int) -> str:
    """`file:line`, or `file@byte` in a file that is too large for its lines to be counted."""
    return f"{dump.name}:{at}" if at >= 0 else f"{dump.name}@{-1 - at}"


class _TableRows:
    """Rows of a verl dump or of a plain table."""

    def __init__(self, dump: Dump, names: Columns) -> None:
        self.dump, self.names = dump, names

    def __call__(self, at: int, value: Mapping[str, Any]) -> Row | None:
        n = self.names
        if n.completion not in value:
            return None
        prompt = text(value.get(n.prompt)) if n.prompt else ""
        step = whole(value.get(n.step), self.dump.step) if n.step else self.dump.step
        named = _object(value.get("rewards"))
        components = {str(k): number(v) for k, v in named.items()} if named else self._components(value)
        score = number(value.get(n.score)) if n.score else NAN
        if n.score == "rewards" and components:
            known = [v for v in components.values() if v == v]
            score = sum(known) if known else NAN
        low = {k.lower(): v for k, v in value.items()}
        return Row(
            step=step,
            prompt=prompt,
            completion=completion_text(value[n.completion]),
            score=score,
            group=text(value.get(n.group)) if n.group else prompt,
            components=components,
            advantage=_number_of(low, ("advantage", "advantages")),
            tokens=_number_of(low, _LENGTHS),
            truncated=_cut(low),
            success=_number_of(low, _SUCCESS),
            reference=reference(value.get(n.reference)) if n.reference else None,
            held_out=self.dump.held_out,
            temperature=_number_of(low, ("temperature",)),
            where=place(self.dump, at),
        )

    def _components(self, value: Mapping[str, Any]) -> dict[str, float]:
        n = self.names
        known = {n.prompt, n.completion, n.score, n.group, n.step, n.reference, "advantage", "advantages"}
        other = {
            k: v
            for k, v in value.items()
            if k not in known and isinstance(v, (int, float)) and k.lower() not in _OTHER and not k.startswith("__")
        }
        return {k: number(v) for k, v in other.items()}


_OTHER = {*_NUMBERS_OF_ROWS, *_LENGTHS, *_SUCCESS, "temperature", "truncated", "num_turns", "request_id", "uid"}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number_of(row: Mapping[str, Any], names: Sequence[str]) -> float:
    return next((number(row[n]) for n in names if n in row), NAN)


def _cut(row: Mapping[str, Any]) -> float:
    if "truncated" in row:
        return number(row["truncated"])
    finish = row.get("finish_reason", row.get("finish"))
    return NAN if not isinstance(finish, str) else float(finish in ("length", "max_tokens"))


class _GxpoRecords:
    """Records of `gxpo.rollouts/1`; a fork takes over the turns of its base that it does not repeat."""

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        self.seen: dict[str, tuple[str, list[dict[str, Any]]]] = {}

    def __call__(self, at: int, value: Mapping[str, Any]) -> Row | None:
        shared = 0
        turns = value.get("turns")
        if not isinstance(turns, list) or not all(isinstance(t, dict) for t in turns):
            return None
        prompt = value.get("prompt_text")
        fork = _object(value.get("fork"))
        if fork:
            base_prompt, before = self.seen.get(str(fork.get("of")), ("", []))
            prompt = base_prompt if prompt is None else prompt
            inherited = whole(fork.get("turn"), 0) + (fork.get("token") is None)
            turns = [*before[:inherited], *turns]
            shared = max(whole(fork.get("token"), 0), 0)
        prompt = text(prompt) if prompt is not None else _ids(value.get("prompt"))
        self.seen[str(value.get("id"))] = (prompt, turns)
        info = _object(value.get("info"))
        rewards = _object(value.get("rewards"))
        sampling = _object(value.get("sampling"))
        finish = [t.get("finish") for t in turns if t.get("finish") is not None]
        cut = finish[-1] == "length" if finish else (bool(value["truncated"]) if "truncated" in value else NAN)
        answer = first_reference(list(info))
        return Row(
            step=self.dump.step,
            prompt=prompt,
            completion="\n\n".join(_said(t) for t in turns),
            score=number(value.get("reward")),
            group=str(value.get("group")),
            components={str(k): number(v) for k, v in rewards.items()},
            advantage=number(info.get("advantage")),
            tokens=float(shared + sum(len(t["action"]) for t in turns if isinstance(t.get("action"), list))) or NAN,
            truncated=float(cut),
            success=number(value.get("success")),
            reference=reference(info[answer]) if answer else None,
            held_out=self.dump.held_out,
            temperature=number(sampling.get("temperature")),
            where=place(self.dump, at),
        )


def _said(turn: Mapping[str, Any]) -> str:
    said = turn.get("action_text")
    return text(said) if said is not None else _ids(turn.get("action"))


def _ids(value: Any) -> str:
    """Token ids in place of a text that was not recorded."""
    return " ".join(map(str, value)) if isinstance(value, list) else ""
