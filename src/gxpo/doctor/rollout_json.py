"""Readers of rollouts: gxpo's records, verl's dumps and plain tables (JSON Lines, a JSON array, CSV, Parquet)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.doctor.rollout_sample import KEPT, Dump, share, spread
from gxpo.doctor.rollout_tables import LARGE, STRETCHES, read_lines, read_table, row_count, table_names
from gxpo.doctor.rollouts import NAN, Row, completion_text, first_reference, integer, number, reference, text

GXPO = "gxpo.rollouts/1"
READ = 400 * 2**20  # bytes of JSON Lines that are looked at
PROMPTS = ("prompt", "input", "question", "query", "instruction", "problem")
COMPLETIONS = ("completion", "output", "response", "responses", "answer_text", "generation", "prediction")
SCORES = ("reward", "score", "rewards", "scores", "total_reward")
GROUPS = ("group", "uid", "group_id", "prompt_id", "group_index")
_SUCCESS = ("acc", "success", "correct", "is_correct", "passed")
_NUMBERS_OF_ROWS = {
    "index",
    "idx",
    "id",
    "epoch",
    "rank",
    "seed",
    "timestamp",
    "sample_index",
    "global_step",
    "step",
    "gen_step",
}
_ABOUT_SEQUENCES = {
    "entropy",
    "seqlen",
    "prompt_len",
    "sample_idx",
    "task_id",
    "head_version",
    "tail_version",
    "difficulty",
}
_LENGTHS = ("tokens", "completion_tokens", "num_tokens", "completion_length", "response_length", "length")
_STEPS = ("step", "global_step", "training_step", "iteration", "gen_step", "tail_version")  # the last: AReaL


@dataclass(frozen=True)
class Columns:
    """Column names of a table of rollouts by meaning; None: no such column."""

    prompt: str | None
    completion: str
    score: str | None
    group: str | None
    step: str | None
    reference: str | None

    @property
    def keys(self) -> list[str]:
        """Columns whose values rows of one group share."""
        return [k for k in (self.step, self.group or self.prompt) if k is not None]


@dataclass
class Sample:
    """Rows sampled from several files.

    total   number of rows in the files
    exact   `total` was counted, not estimated
    bad     rows that could not be read
    unread  files that could not be read
    """

    rows: list[Row]
    total: float = 0.0
    exact: bool = True
    bad: int = 0
    unread: int = 0

    def __iadd__(self, sample: Sample) -> Sample:
        self.rows += sample.rows
        self.total, self.bad, self.unread = (
            self.total + sample.total,
            self.bad + sample.bad,
            self.unread + sample.unread,
        )
        self.exact = self.exact and sample.exact
        return self


def kind(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Kind of a file by its first objects: gxpo, verl, plain, tasks, or None."""
    if any(r.get("schema") == GXPO for r in rows):
        return "gxpo"
    if any({"input", "output", "score"} <= r.keys() for r in rows):
        return "verl"
    if any(columns(list(r)) for r in rows):
        return "plain"
    return "tasks" if any(_is_task(r) for r in rows) else None


def _is_task(row: Mapping[str, Any]) -> bool:
    """True for a question with its answer and no completion."""
    names = [n.lower() for n in row]
    has_prompt = any(n in names for n in PROMPTS)
    return has_prompt and first_reference(list(row)) is not None and not any(n in names for n in COMPLETIONS)


def columns(names: Sequence[str]) -> Columns | None:
    """Assign column names to their meaning; None if they are not those of a table of rollouts."""
    # reversed: of names that differ in case alone the first wins
    lower = {n.lower(): n for n in reversed(names)}

    def first(candidates: Sequence[str]) -> str | None:
        return next((lower[c] for c in candidates if c in lower), None)

    completion = first(COMPLETIONS)
    prompt, score, group = first(PROMPTS), first(SCORES), first(GROUPS)
    if (
        completion is None
        or (prompt is None and group is None)
        or (score is None and not {"advantage", "advantages"} & lower.keys())
    ):
        return None
    return Columns(prompt, completion, score, group, first(_STEPS), first_reference(names))


def read_json(files: Sequence[Dump], kind: str, budget: int = KEPT) -> Sample:
    """Sample about `budget` rows of files of one kind, in whole groups spread over the steps."""
    return share_budget(files, budget, lambda d, n: _read_file(d, kind, n), row_count, READ)


def share_budget(
    files: Sequence[Dump],
    budget: int,
    read: Callable[[Dump, int], Sample],
    rows_in: Callable[[Any], float],
    most_bytes: int,
) -> Sample:
    """Sample rows of the files, a quarter of the budget from held-out ones, and estimate the number of rows of all."""
    sample = Sample([])
    held_out = [d for d in files if d.held_out]
    train = [d for d in files if not d.held_out]
    # training and evaluation are sampled apart: an evaluation has few files and would be missed
    for part_files, part_budget in (
        (train, budget * 3 // 4 if held_out else budget),
        (held_out, budget // 4 if train else budget),
    ):
        if not part_files:
            continue
        # the rows of the file of median size stand for those of all, as counting them would mean reading everything
        typical = sorted(part_files, key=lambda d: d.size)[len(part_files) // 2]
        part_dumps, rows_per_dump = share(part_files, rows_in(typical.path), part_budget)
        # a bound on bytes besides that on rows: rows are cheap to keep, but a file has to be read for them
        cost = sum(d.size if d.size <= LARGE else STRETCHES for d in part_dumps)
        if cost > most_bytes:
            part_dumps = [
                part_dumps[i] for i in spread(len(part_dumps), max(int(len(part_dumps) * most_bytes / cost), 3))
            ]
            rows_per_dump = max(part_budget // len(part_dumps), 1)
        part_sample = Sample([])
        for dump in part_dumps:
            try:
                part_sample += read(dump, rows_per_dump)
            # a file that a run still writes may vanish
            except OSError:
                part_sample.unread += 1
        # rows of the unread files by their bytes
        if len(part_dumps) < len(part_files):
            read_bytes = sum(d.size for d in part_dumps)
            part_sample.total *= sum(d.size for d in part_files) / max(read_bytes, 1)
            part_sample.exact = False
        sample += part_sample
    return sample


def _read_file(dump: Dump, kind: str, budget: int) -> Sample:
    """Sample rows of one file of the given kind."""
    table_columns = columns(table_names(dump.path) or ()) if kind != "gxpo" else None
    if kind == "gxpo":
        make: Callable[..., Row | None] = _GxpoRecords(dump)
        lines = read_lines(dump.path, ("group",), budget)
    elif table_columns is None:
        return Sample([], unread=int(dump.size > 0))
    else:
        make = _TableRows(dump, table_columns)
        lines = read_table(dump.path, table_columns.keys, budget)
    rows, bad = [], lines.bad
    for line, value in lines.rows:
        row = make(line, value)
        if row is None:
            bad += 1
        else:
            rows.append(row)
    return Sample(rows, lines.total, lines.exact, bad)


def location(dump: Dump, line: int) -> str:
    """Format a row's place: `file:line`, or `file@byte` (-1 - byte) if the lines before it were not counted."""
    return f"{dump.name}:{line}" if line >= 0 else f"{dump.name}@{-1 - line}"


class _TableRows:
    """Reader of one row of a verl dump or of a plain table."""

    def __init__(self, dump: Dump, names: Columns) -> None:
        self.dump, self.names = dump, names

    def __call__(self, line: int, value: Mapping[str, Any]) -> Row | None:
        n = self.names
        if n.completion not in value:
            return None
        prompt = text(value.get(n.prompt)) if n.prompt else ""
        step = integer(value.get(n.step), self.dump.step) if n.step else self.dump.step
        # "rewards" may be one number, or an object of components
        reward_object = _object(value.get("rewards"))
        components = {str(k): number(v) for k, v in reward_object.items()} if reward_object else self._components(value)
        score = number(value.get(n.score)) if n.score else NAN
        # without a total, or with an object of components in its place, it is their sum
        if (n.score == "rewards" or n.score is None) and components:
            finite = [v for v in components.values() if v == v]
            score = sum(finite) if finite else NAN
        # trackers write names in any case
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
            where=location(self.dump, line),
        )

    def _components(self, value: Mapping[str, Any]) -> dict[str, float]:
        """Reward components: the numeric columns that have no other meaning."""
        n = self.names
        assigned = {n.prompt, n.completion, n.score, n.group, n.step, n.reference, "advantage", "advantages"}
        component_values = {
            k: v
            for k, v in value.items()
            if k not in assigned and isinstance(v, (int, float)) and k.lower() not in _OTHER and not k.startswith("__")
        }
        return {k: number(v) for k, v in component_values.items()}


_OTHER = {
    *_NUMBERS_OF_ROWS,
    *_ABOUT_SEQUENCES,
    *_LENGTHS,
    *_SUCCESS,
    "temperature",
    "truncated",
    "num_turns",
    "request_id",
    "uid",
}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number_of(row: Mapping[str, Any], names: Sequence[str]) -> float:
    """Number in the first of these columns that a row has; nan without one."""
    return next((number(row[n]) for n in names if n in row), NAN)


def _cut(row: Mapping[str, Any]) -> float:
    """1 if the completion was cut at the length limit, 0 if it ended by itself, nan if unknown."""
    if "truncated" in row:
        return number(row["truncated"])
    finish = row.get("finish_reason", row.get("finish"))
    return NAN if not isinstance(finish, str) else float(finish in ("length", "max_tokens"))


class _GxpoRecords:
    """Reader of one record of `gxpo.rollouts/1`; a fork takes over the turns of its base that it does not repeat."""

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        self.turns_by_id: dict[str, tuple[str, list[dict[str, Any]]]] = {}

    def __call__(self, line: int, value: Mapping[str, Any]) -> Row | None:
        shared_tokens = 0
        turns = value.get("turns")
        if not isinstance(turns, list) or not all(isinstance(t, dict) for t in turns):
            return None
        prompt = value.get("prompt_text")
        fork = _object(value.get("fork"))
        # the record holds only what follows the fork: turns before it are the base's, which precedes it in the file
        if fork:
            base_prompt, base_turns = self.turns_by_id.get(str(fork.get("of")), ("", []))
            prompt = base_prompt if prompt is None else prompt
            # a fork inside an action repeats the turn, without its first tokens
            inherited = integer(fork.get("turn"), 0) + (fork.get("token") is None)
            turns = [*base_turns[:inherited], *turns]
            shared_tokens = max(integer(fork.get("token"), 0), 0)
        prompt = text(prompt) if prompt is not None else _ids(value.get("prompt"))
        self.turns_by_id[str(value.get("id"))] = (prompt, turns)
        info = _object(value.get("info"))
        rewards = _object(value.get("rewards"))
        sampling = _object(value.get("sampling"))
        finishes = [t.get("finish") for t in turns if t.get("finish") is not None]
        # the last turn decides: an episode goes on after an earlier action that was cut
        is_cut = finishes[-1] == "length" if finishes else (bool(value["truncated"]) if "truncated" in value else NAN)
        reference_column = first_reference(list(info))
        # what a critique is worth is told by the answers that are sampled under it: they are part of what is scored
        refined = info.get("refinements")
        sampled_texts = [text(answer) for answer in refined] if isinstance(refined, list) else []
        return Row(
            step=self.dump.step,
            prompt=prompt,
            completion="\n\n".join([*map(_turn_text, turns), *sampled_texts]),
            score=number(value.get("reward")),
            group=str(value.get("group")),
            components={str(k): number(v) for k, v in rewards.items()},
            # the mean over trained tokens: of a rollout without any (a hint's text, say) it says nothing
            advantage=number(info.get("advantage")) if any(map(_is_trained, turns)) else NAN,
            compared=value.get("compared") is not False,
            tokens=float(shared_tokens + sum(len(t["action"]) for t in turns if isinstance(t.get("action"), list)))
            or NAN,
            truncated=float(is_cut),
            success=number(value.get("success")),
            reference=reference(info[reference_column]) if reference_column else None,
            held_out=self.dump.held_out,
            temperature=number(sampling.get("temperature")),
            # "seat": another player decides the score as well
            observation=None if "seat" in info else "\n\n".join(map(_observation_text, turns)),
            where=location(self.dump, line),
        )


def _is_trained(turn: Mapping[str, Any]) -> bool:
    """True unless a turn's action is recorded as not trainable, as a whole or token by token."""
    trainable = turn.get("trainable", True)
    return any(trainable) if isinstance(trainable, list) else trainable is not False


def _observation_text(turn: Mapping[str, Any]) -> str:
    """Text that preceded an action, or its token ids if no text was recorded."""
    observation_text = turn.get("observation_text")
    return text(observation_text) if observation_text is not None else _ids(turn.get("observation"))


def _turn_text(turn: Mapping[str, Any]) -> str:
    """Text of an action, or its token ids if no text was recorded."""
    action_text = turn.get("action_text")
    return text(action_text) if action_text is not None else _ids(turn.get("action"))


def _ids(value: Any) -> str:
    """Print token ids, in place of a text that was not recorded."""
    return " ".join(map(str, value)) if isinstance(value, list) else ""
