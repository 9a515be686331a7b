"""Logged rollouts (offline training): groups from a data set of answers, or from records; nothing is sampled."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from gxpo.base.errors import ConfigError, ModelError, RecordError, TaskError
from gxpo.forest import records
from gxpo.forest.forest import Forest
from gxpo.models.chat.messages import THOUGHT_KEYS, normal_messages
from gxpo.parts.protocols import Message, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import RolloutPart, group_of, name_draws, record
from gxpo.sampling.rollouts.context import prompt_messages
from gxpo.sampling.rollouts.reference import in_tokens, unrestricted

# ---------------------------------------------------------------- logged rows
# Answers that a row of data brings with its prompt: preference pairs, completions with scores, labelled completions.
#
# `chosen` and `rejected`: outcomes 1 and 0, and so are the verdicts. `completions`, with `scores`: a list of each;
# `completion`, with `label` (true or false, the verdict) or `score`. An answer is a text, or the messages that follow
# the prompt's (those that repeat the prompt are passed over): each of the assistant's is a turn.
ANSWERS = ("chosen", "rejected", "completion", "completions", "label", "score", "scores")  # columns
WANTED = "'chosen' and 'rejected', 'completions' (with 'scores'), or 'completion' (with 'label' or 'score')"


@dataclass(frozen=True)
class Said:
    """One answer: `name` within its row, the texts of its turns, and the messages between them (one fewer)."""

    name: str
    texts: tuple[str, ...]
    between: tuple[tuple[Message, ...], ...] = ()
    outcome: float | None = None  # None: the run's reward scores it
    success: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


def answers_of(task: Task) -> list[Said]:
    """The answers that a task's row brings, in order. TaskError where there are none, or one can't be read."""
    row = task.info
    if "chosen" in row or "rejected" in row:
        if lacking := [name for name in ("chosen", "rejected") if row.get(name) is None]:
            raise TaskError(f"task {task.id!r}: a pair has 'chosen' and 'rejected', and {lacking[0]!r} is missing")
        return [
            _said(task, name, row[name], outcome=float(good), success=good)
            for name, good in (("chosen", True), ("rejected", False))
        ]
    if "completions" in row:
        given, scores = row["completions"], row.get("scores")
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            raise TaskError(f"task {task.id!r}: 'completions' must be a list of answers, not {given!r:.40}")
        scores = [None] * len(given) if scores is None else scores
        if not isinstance(scores, Sequence) or len(scores) != len(given):
            raise TaskError(
                f"task {task.id!r}: 'scores' must be a list of {len(given)} numbers, as there are completions"
            )
        return [
            _said(task, str(i), x, outcome=_number(task, y)) for i, (x, y) in enumerate(zip(given, scores, strict=True))
        ]
    if "completion" in row:
        label, score = row.get("label"), row.get("score")
        if label is not None and not isinstance(label, bool):
            raise TaskError(f"task {task.id!r}: 'label' must be true or false, not {label!r}")
        outcome = float(label) if isinstance(label, bool) and score is None else _number(task, score)
        return [_said(task, "0", row["completion"], outcome=outcome, success=label)]
    raise TaskError(
        f"task {task.id!r} brings no answers, and rollout logged samples none: give it {WANTED}, or set "
        "rollout.file to records of rollouts"
    )


def _number(task: Task, score: Any) -> float | None:
    if score is None:
        return None
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
        raise TaskError(f"task {task.id!r}: a score must be a number or null, not {score!r}")
    return float(score)


def _said(task: Task, name: str, answer: Any, **verdict: Any) -> Said:
    """The turns of an answer."""
    where = f"task {task.id!r}: answer {name!r}"
    if isinstance(answer, str):
        messages: list[Message] = [{"role": "assistant", "content": answer}]
    elif isinstance(answer, Sequence) and all(isinstance(m, Mapping) and "role" in m for m in answer):
        try:
            messages = _after(task.prompt, normal_messages(answer))
        except ModelError as error:
            raise TaskError(f"{where}: {error}") from None
    else:
        raise TaskError(f"{where} must be a text or messages with 'role' and 'content', not {answer!r:.40}")
    places = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not places or places[0] != 0 or places[-1] != len(messages) - 1:
        raise TaskError(f"{where} must begin and end with a message of the assistant's, after those of the prompt")
    if unwritten := [key for i in places for key in ("tool_calls", *THOUGHT_KEYS) if messages[i].get(key)]:
        raise TaskError(
            f"{where} has a message of the assistant's with {unwritten[0]!r}: write it into 'content', in the model's "
            "own form"
        )
    texts = tuple(messages[i]["content"] for i in places)
    if any(not isinstance(text, str) or not text for text in texts):
        raise TaskError(f"{where} has a message of the assistant's without a text")
    between = tuple(tuple(messages[i + 1 : j]) for i, j in itertools.pairwise(places))
    if not all(between):
        raise TaskError(f"{where} has two messages of the assistant's in a row: join them")
    own = {k: v for k, v in task.info.items() if k not in ANSWERS and isinstance(v, (str, int, float, bool))}
    return Said(name, texts, between, info=own, **verdict)


def _after(prompt: Any, answer: Sequence[Message]) -> list[Message]:
    """The messages of an answer without those of its prompt, where it repeats them."""
    opening = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    bare = [(m["role"], m["content"]) for m in answer]
    asked = [(m["role"], m["content"]) for m in opening if isinstance(m, Mapping)]
    return list(answer[len(asked) :] if asked and bare[: len(asked)] == asked else answer)


# ---------------------------------------------------------------- logged
LOGGED = "logged"  # origin of the rollouts
OF_PHASES = ("previous", "earlier")  # rollouts of the run's own earlier phases: its trainer puts their folder here
SHOWN = 20  # actions whose ids are compared with their texts


class Group(NamedTuple):
    """A group of a file of records: the forest that it is in, and its trajectories there."""

    forest: Forest
    rows: list[int]

    @property
    def name(self) -> str:
        return self.forest.group[self.rows[0]]


def files_of(path: str) -> list[Path]:
    """A .jsonl file, or all of a folder in the order of their names; RecordError where it has none."""
    found = sorted(Path(path).glob("*.jsonl")) if Path(path).is_dir() else [Path(path)]
    if not found:
        raise RecordError(f"{path}: no .jsonl file in this folder")
    return found


@dataclass(frozen=True)
class File:
    """Rollouts of `gxpo.rollouts/1`, group by group.

    groups     those with a scored rollout, in the order of the records; unscored rollouts are left out
    behaviour  whether every trained token has the log-prob that it was sampled with
    """

    path: str
    groups: list[Group]
    behaviour: bool

    @classmethod
    def read(cls, path: str) -> File:
        """A .jsonl file, or all of a folder in the order of their names. RecordError where one can't be read."""
        groups, behaviour, dropped = list[Group](), True, 0
        for one in files_of(path):
            forest = records.load(one)
            forest.need_ids(f"rollout logged ({one})")
            members: dict[str, list[int]] = {}
            for row, name in enumerate(forest.group):
                if forest.scored[row]:
                    members.setdefault(name, []).append(row)
            dropped += int((~forest.scored).sum())
            groups += [Group(forest, rows) for rows in members.values()]
            behaviour &= bool(forest.path_behaviour_logprob[forest.path_trainable].isfinite().all())
        if not groups:
            raise RecordError(f"{path}: no rollout in it is scored, so there is nothing to learn from")
        if dropped:
            warnings.warn(f"{path}: {dropped} rollouts are not scored and are left out", stacklevel=2)
        return cls(path, groups, behaviour)

    def draw(self, n: int, step: int, seed: int) -> list[Group]:
        """The groups of a step (from 1), `n` in each: in every epoch all of them once, in an order of its own."""
        orders: dict[int, list[int]] = {}
        drawn = []
        for position in range((step - 1) * n, step * n):
            epoch, place = divmod(position, len(self.groups))
            if epoch not in orders:
                orders[epoch] = list(range(len(self.groups)))
                random.Random(f"{seed}/{epoch}/logged").shuffle(orders[epoch])
            drawn.append(self.groups[orders[epoch][place]])
        return drawn

    def check_tokens(self, decode: Callable[[Sequence[int]], str]) -> None:
        """RecordError where a recorded text is not what its ids say under the run's tokenizer; the first few."""
        steps = (
            (group.forest, step)
            for group in self.groups
            for step in group.forest.step_trajectory.eq(group.rows[0]).nonzero().squeeze(1).tolist()
        )
        for forest, step in itertools.islice(steps, SHOWN):
            text, ids = forest.action_text[step], forest.action(step)
            if text is not None and _decoded(decode, ids) != text:
                raise RecordError(
                    f"{self.path}: ids {ids[:8]} of {forest.id[int(forest.step_trajectory[step])]!r} are "
                    f"{_decoded(decode, ids)!r:.40} under the run's tokenizer and {text!r:.40} in the records: they "
                    "are another tokenizer's"
                )


def _decoded(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> str | None:
    """The text of ids; None where the tokenizer has no such ids."""
    try:
        return decode(ids)
    except (LookupError, OverflowError, TypeError, ValueError):
        return None


@part("logged", stage="rollout")
@dataclass(frozen=True)
class Logged(RolloutPart):
    """Groups that are there already, no sampling: the answers that the tasks' rows bring (see `logged_rows`), or those
    of a file.

    file   "": a group is a drawn task's own answers, in the ids of the run's tokenizer; the tasks' source says how they
           are drawn and held out. A .jsonl file of `gxpo.rollouts/1`, or a folder of such (RUN/rollouts): a step
           takes as many of its groups as it has tasks, all once an epoch, in an order of (seed, epoch) alone, and the
           run's task is what evaluations sample. In a phase of a run also "previous", the rollouts of the phase before
           it, or "earlier", those that all phases before it have sampled

    Origin "logged". Outcomes and verdicts are those of the data; an answer without is scored by the run's reward, a
    recorded rollout without is left out. Log-probs of who sampled are as recorded, and answers of rows have none: what
    reads ratios is then refused. There is no state: a step's groups depend on the step, so that a resumed run goes on
    exactly.
    """

    samples_prompts: ClassVar[bool] = False  # the answers are there

    file: str = ""
    read: dict[str, File] = field(init=False, repr=False, compare=False, default_factory=dict)
    checked: set[str] = field(init=False, repr=False, compare=False, default_factory=set)

    @property
    def records(self) -> File:
        """The file, read once."""
        if self.file in OF_PHASES:
            raise ConfigError(f"rollout.file={self.file} is of a phase, and there is none before: name a file")
        if self.file not in self.read:
            self.read[self.file] = File.read(self.file)
        return self.read[self.file]

    @property
    def has_behaviour(self) -> bool:
        """Whether the log-probs of who sampled are known."""
        return self.file in OF_PHASES or (bool(self.file) and self.records.behaviour)

    @property
    def across_groups(self) -> bool:
        """Nothing is sampled that could run beside the updates."""
        return True

    def check_task(self, task: Task, solution: Callable[[Task], str | None]) -> None:
        """TaskError for a task without answers, where there is no file."""
        if not self.file:
            answers_of(task)

    def check_held_out(self, tasks: Sequence[Task]) -> None:
        """ConfigError where the file has rollouts of tasks that evaluations sample."""
        names = {task.id for task in tasks} if self.file not in OF_PHASES else set()
        seen = [g for g in self.records.groups if g.forest.task[g.rows[0]] in names] if self.file and names else []
        if seen:
            raise ConfigError(
                f"rollout.file={self.file}: {len(seen)} of {len(self.records.groups)} groups are of held-out tasks "
                f"(first {seen[0].forest.task[seen[0].rows[0]]!r}), which evaluations sample: leave them out"
            )

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        """The groups of a step."""
        if self.file:
            return self._recorded(len(tasks), session)
        names = name_draws(tasks)
        return Forest.from_records(
            [
                self._line(task, name, said, session)
                for task, name in zip(tasks, names, strict=True)
                for said in answers_of(task)
            ]
        )

    def _recorded(self, n: int, session: Session) -> Forest:
        if self.file not in self.checked:
            self.records.check_tokens(session.decode)
            self.checked.add(self.file)
        drawn, groups, ids = list[Forest](), Counter[str](), Counter[str]()
        for group in self.records.draw(n, session.step, session.seed):
            home = f"s{session.step}/{group.name}{_again(groups, group.name)}"
            piece = group.forest.select(torch.tensor(group.rows))
            drawn.append(
                piece.replace(
                    group=[home] * len(group.rows),
                    id=[f"{name}{_again(ids, name)}" for name in piece.id],
                    origin=[LOGGED] * len(group.rows),
                )
            )
        return Forest.concat(drawn)

    def _line(self, task: Task, draw: str, said: Said, session: Session) -> dict[str, Any]:
        """The record of one answer, in tokens."""
        group = group_of(session, draw)
        shown: dict[str, Any] = {}
        turns: list[dict[str, Any]] = []
        conversation = None
        if said.between:
            prompt: Any = task.prompt
            conversation = session.chat.start(prompt_messages(session.chat, session.system, prompt))
        for i, text in enumerate(said.texts):
            action = in_tokens(text, session).tokens
            turns.append({"action": action, "logprob": [None] * len(action), "finish": "stop", **shown})
            if conversation is not None and i < len(said.between):
                conversation.act(action)
                update = conversation.observe(said.between[i])
                shown = {"context" if update.rebuilt else "observation": list(update.ids)}
        prompt_ids = session.encode(task)
        if not prompt_ids:
            raise TaskError(f"task {task.id!r}: its prompt has no tokens")
        sampling = dataclasses.asdict(unrestricted(session.sampling))
        line = record(task, group, f"{draw}/{said.name}", session.sampling, prompt=list(prompt_ids), turns=turns)
        verdict = {"reward": said.outcome, "success": said.success, "origin": LOGGED, "info": dict(said.info)}
        return {**line, **verdict, "sampling": sampling}


def _again(counts: Counter[str], name: str) -> str:
    """ "" for the first of this name, then "#1", "#2"..."""
    counts[name] += 1
    return f"#{counts[name] - 1}" if counts[name] > 1 else ""
