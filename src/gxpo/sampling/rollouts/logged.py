"""Logged rollouts (offline training): groups of answers from a data set or from records; nothing is sampled."""

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
from gxpo.models.chat.messages import THOUGHT_KEYS, normal_messages, prompt_messages
from gxpo.parts.protocols import Message, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import RolloutPart, Text, group_of, name_draws, record
from gxpo.sampling.rollouts.coded import Coded
from gxpo.sampling.rollouts.reference import in_tokens, lift_restrictions
from gxpo.sampling.rollouts.rounds import Independent
from gxpo.sampling.rollouts.wording import Wording, check_template

# ---------------------------------------------------------------- logged rows
# Answers that a row of data holds beside its prompt: preference pairs, completions with scores, labelled completions.
#
# `chosen` and `rejected`: outcomes 1 and 0, and so are the verdicts. `completions`, with `scores`: a list of each;
# `completion`, with `label` (true or false, the verdict) or `score`. An answer is a text, or the messages that follow
# the prompt's (messages that repeat the prompt are skipped): each assistant message is a turn.
ANSWERS = ("chosen", "rejected", "completion", "completions", "label", "score", "scores")  # columns
ANSWER_COLUMNS = "'chosen' and 'rejected', 'completions' (with 'scores'), or 'completion' (with 'label' or 'score')"


@dataclass(frozen=True)
class LoggedAnswer:
    """One answer of a row: its name there, the texts of its turns, and the messages between them (one fewer)."""

    name: str
    texts: tuple[str, ...]
    between: tuple[tuple[Message, ...], ...] = ()
    outcome: float | None = None  # None: the run's reward scores it
    success: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


def answers_of(task: Task) -> list[LoggedAnswer]:
    """Return the answers of a task's row, in order; TaskError if there are none, or one can't be read."""
    row = task.info
    # the columns decide the kind of row: a preference pair, a list of completions, or one labelled completion
    if "chosen" in row or "rejected" in row:
        if missing := [name for name in ("chosen", "rejected") if row.get(name) is None]:
            raise TaskError(f"task {task.id!r}: a pair needs 'chosen' and 'rejected', and {missing[0]!r} is missing")
        return [
            _parse_answer(task, name, row[name], outcome=float(good), success=good)
            for name, good in (("chosen", True), ("rejected", False))
        ]
    if "completions" in row:
        completions, scores = row["completions"], row.get("scores")
        if not isinstance(completions, Sequence) or isinstance(completions, str) or not completions:
            raise TaskError(f"task {task.id!r}: 'completions' must be a list of answers, not {completions!r:.40}")
        scores = [None] * len(completions) if scores is None else scores
        if not isinstance(scores, Sequence) or len(scores) != len(completions):
            raise TaskError(
                f"task {task.id!r}: 'scores' must be a list of {len(completions)} numbers, one for each completion"
            )
        return [
            _parse_answer(task, str(i), x, outcome=_number(task, y))
            for i, (x, y) in enumerate(zip(completions, scores, strict=True))
        ]
    if "completion" in row:
        label, score = row.get("label"), row.get("score")
        if label is not None and not isinstance(label, bool):
            raise TaskError(f"task {task.id!r}: 'label' must be true or false, not {label!r}")
        outcome = float(label) if isinstance(label, bool) and score is None else _number(task, score)
        return [_parse_answer(task, "0", row["completion"], outcome=outcome, success=label)]
    raise TaskError(
        f"task {task.id!r} has no answers, and rollout logged samples none: give it {ANSWER_COLUMNS}, or set "
        "rollout.file to records of rollouts"
    )


def _number(task: Task, score: Any) -> float | None:
    if score is None:
        return None
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
        raise TaskError(f"task {task.id!r}: a score must be a number or null, not {score!r}")
    return float(score)


def _parse_answer(task: Task, name: str, answer: Any, **verdict: Any) -> LoggedAnswer:
    """Parse an answer, a text or messages, into its turns."""
    answer_name = f"task {task.id!r}: answer {name!r}"
    if isinstance(answer, str):
        messages: list[Message] = [{"role": "assistant", "content": answer}]
    elif isinstance(answer, Sequence) and all(isinstance(m, Mapping) and "role" in m for m in answer):
        try:
            messages = _without_prompt(task.prompt, normal_messages(answer))
        except ModelError as error:
            raise TaskError(f"{answer_name}: {error}") from None
    else:
        raise TaskError(f"{answer_name} must be a text or messages with 'role' and 'content', not {answer!r:.40}")
    assistant_places = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not assistant_places or assistant_places[0] != 0 or assistant_places[-1] != len(messages) - 1:
        raise TaskError(
            f"{answer_name} must begin and end with a message of the assistant's, after those of the prompt"
        )
    if unsupported := [key for i in assistant_places for key in ("tool_calls", *THOUGHT_KEYS) if messages[i].get(key)]:
        raise TaskError(
            f"{answer_name} has a message of the assistant's with {unsupported[0]!r}: write it into 'content', in the "
            "model's own form"
        )
    # each turn is tokenised from its text, so a call or thought outside of the text would be lost
    texts = tuple(messages[i]["content"] for i in assistant_places)
    if any(not isinstance(text, str) or not text for text in texts):
        raise TaskError(f"{answer_name} has a message of the assistant's without a text")
    between = tuple(tuple(messages[i + 1 : j]) for i, j in itertools.pairwise(assistant_places))
    if not all(between):
        raise TaskError(f"{answer_name} has two messages of the assistant's in a row: join them")
    metadata = {k: v for k, v in task.info.items() if k not in ANSWERS and isinstance(v, (str, int, float, bool))}
    return LoggedAnswer(name, texts, between, info=metadata, **verdict)


def _without_prompt(prompt: Any, answer: Sequence[Message]) -> list[Message]:
    """Return the messages of an answer without its prompt's, if it repeats them."""
    opening = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    answer_texts = [(m["role"], m["content"]) for m in answer]
    prompt_texts = [(m["role"], m["content"]) for m in opening if isinstance(m, Mapping)]
    return list(
        answer[len(prompt_texts) :] if prompt_texts and answer_texts[: len(prompt_texts)] == prompt_texts else answer
    )


# ---------------------------------------------------------------- logged
LOGGED = "logged"  # their origin in the records
OF_PHASES = ("previous", "earlier")  # rollouts of the run's own earlier phases; its trainer sets their folder
CHECKED_ACTIONS = 20  # number of actions whose ids are compared with their texts


class Group(NamedTuple):
    """A group of a file of records: its forest, and the rows of its trajectories there."""

    forest: Forest
    rows: list[int]

    @property
    def name(self) -> str:
        return self.forest.group[self.rows[0]]


def files_of(path: str) -> list[Path]:
    """Return the path of a .jsonl file, or those of a folder by name; RecordError for a folder without any."""
    paths = sorted(Path(path).glob("*.jsonl")) if Path(path).is_dir() else [Path(path)]
    if not paths:
        raise RecordError(f"{path}: no .jsonl file in this folder")
    return paths


@dataclass(frozen=True)
class File:
    """Recorded rollouts (`gxpo.rollouts/1`), group by group.

    groups     groups with a scored rollout, in the order of the records; unscored rollouts are left out
    behaviour  True if every trained token has the log-prob that it was sampled with
    """

    path: str
    groups: list[Group]
    behaviour: bool

    @classmethod
    def read(cls, path: str) -> File:
        """Read a .jsonl file, or all of a folder in the order of their names; RecordError if one can't be read."""
        groups, behaviour, n_unscored = list[Group](), True, 0
        # one forest for each file: groups of different files may have the same names
        for file in files_of(path):
            forest = records.load(file)
            forest.need_ids(f"rollout logged ({file})")
            members: dict[str, list[int]] = {}
            for row, name in enumerate(forest.group):
                if forest.scored[row]:
                    members.setdefault(name, []).append(row)
            n_unscored += int((~forest.scored).sum())
            groups += [Group(forest, rows) for rows in members.values()]
            behaviour &= bool(forest.path_behaviour_logprob[forest.path_trainable].isfinite().all())
        if not groups:
            raise RecordError(f"{path}: no rollout in it is scored, so there is nothing to learn from")
        if n_unscored:
            warnings.warn(f"{path}: {n_unscored} rollouts are not scored and are left out", stacklevel=2)
        return cls(path, groups, behaviour)

    def draw(self, n: int, step: int, seed: int) -> list[Group]:
        """Return the `n` groups of a step (from 1); every epoch has all of them once, in an order of its own."""
        orders: dict[int, list[int]] = {}
        step_groups = []
        for position in range((step - 1) * n, step * n):
            epoch, place = divmod(position, len(self.groups))
            if epoch not in orders:
                orders[epoch] = list(range(len(self.groups)))
                random.Random(f"{seed}/{epoch}/logged").shuffle(orders[epoch])
            step_groups.append(self.groups[orders[epoch][place]])
        return step_groups

    def check_tokens(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Raise RecordError if the ids of the first few actions decode to another text under the run's tokenizer."""
        steps = (
            (group.forest, step)
            for group in self.groups
            for step in group.forest.step_trajectory.eq(group.rows[0]).nonzero().squeeze(1).tolist()
        )
        for forest, step in itertools.islice(steps, CHECKED_ACTIONS):
            text, ids = forest.action_text[step], forest.action(step)
            if text is not None and _decode(decode, ids) != text:
                raise RecordError(
                    f"{self.path}: ids {ids[:8]} of {forest.id[int(forest.step_trajectory[step])]!r} are "
                    f"{_decode(decode, ids)!r:.40} under the run's tokenizer and {text!r:.40} in the records: they "
                    "are another tokenizer's"
                )


def _decode(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> str | None:
    """Decode ids; None if the tokenizer has no such ids."""
    try:
        return decode(ids)
    except (LookupError, OverflowError, TypeError, ValueError):
        return None


@part("logged", stage="rollout")
@dataclass(frozen=True)
class Logged(RolloutPart):
    """Groups of logged answers, from the tasks' rows or from a file, without sampling.

    file   "": a group is a drawn task's own answers, in the ids of the run's tokenizer; the tasks' source decides how
           they are drawn and held out. A .jsonl file of `gxpo.rollouts/1`, or a folder of such (RUN/rollouts): a step
           takes as many of its groups as it has tasks, all once an epoch, in an order of (seed, epoch) alone, and
           evaluations sample the run's task. In a phase of a run also "previous", the rollouts of the phase before it,
           or "earlier", those of all phases before it
    returns   words, from the worst outcome's to the best's: each answer is imitated under a prompt that says how it
              ends, and evaluations ask for the best. None: prompts as they are. Of rows with scores alone
    bounds    between the words: an answer has the word after as many bounds as its outcome reaches
    template  of the prompt then: {prompt} and {code}, the word

    Their origin is "logged". Outcomes and verdicts are those of the data; an answer without any is scored by the run's
    reward, a recorded rollout without any is left out. Behaviour log-probs are as recorded; answers of rows have none,
    so methods that read ratios are refused for them. There is no state: a step's groups depend on the step alone, so
    that a resumed run goes on exactly.
    """

    samples_prompts: ClassVar[bool] = False  # nothing is sampled

    file: str = ""
    returns: list[Text] = field(default_factory=list)
    bounds: list[float] = field(default_factory=lambda: [0.5])
    template: str = "Outcome {code}.\n{prompt}"
    read: dict[str, File] = field(init=False, repr=False, compare=False, default_factory=dict)
    past_checks: set[str] = field(init=False, repr=False, compare=False, default_factory=set)

    def __post_init__(self) -> None:
        check_template("rollout.template", self.template, ("prompt", "code"))
        if not self.returns:
            return
        if len(self.returns) != len(self.bounds) + 1 or sorted({*self.bounds}) != list(self.bounds):
            raise ConfigError(
                f"rollout.bounds={self.bounds} cut outcomes into {len(self.bounds) + 1} kinds, in rising order, and "
                f"rollout.returns has {len(self.returns)} words: give a word for each kind"
            )
        if self.file:
            raise ConfigError(
                f"rollout.returns reword prompts, and those of {self.file} are ids: write its answers as rows of "
                "'prompt', 'completions' and 'scores' (docs/offline-values.md)"
            )

    @property
    def evaluation(self) -> Callable[[int], Any]:
        """The rollout for held-out tasks: under the word of the best outcome, if prompts have one."""
        if not self.returns:
            return Independent
        return lambda samples: Coded(group_size=samples, codes=[self.returns[-1]], template=self.template)

    def _under_return(self, task: Task, answer: LoggedAnswer) -> Task:
        """Return the task with its prompt under the word of an answer's outcome."""
        if not self.returns:
            return task
        if answer.outcome is None:
            raise TaskError(
                f"task {task.id!r}: answer {answer.name!r} has no score, and rollout.returns says it: add it"
            )
        word = self.returns[sum(answer.outcome >= bound for bound in self.bounds)]
        return Wording(self.template, {"code": word}).of_task(task)

    @property
    def records(self) -> File:
        """The recorded rollouts of the file, read once."""
        if self.file in OF_PHASES:
            raise ConfigError(f"rollout.file={self.file} needs an earlier phase, and there is none: name a file")
        if self.file not in self.read:
            self.read[self.file] = File.read(self.file)
        return self.read[self.file]

    @property
    def has_behaviour(self) -> bool:
        """True if the log-probs of the policy that sampled are known."""
        return self.file in OF_PHASES or (bool(self.file) and self.records.behaviour)

    @property
    def across_groups(self) -> bool:
        """True: nothing is sampled that could run beside the updates."""
        return True

    def check_task(self, task: Task, solution: Callable[[Task], str | None]) -> None:
        """Raise TaskError for a task without answers, unless they come from a file."""
        if not self.file:
            answers_of(task)

    def check_held_out(self, tasks: Sequence[Task]) -> None:
        """Raise ConfigError if the file has rollouts of tasks that evaluations sample."""
        names = {task.id for task in tasks} if self.file not in OF_PHASES else set()
        overlapping = (
            [g for g in self.records.groups if g.forest.task[g.rows[0]] in names] if self.file and names else []
        )
        if overlapping:
            raise ConfigError(
                f"rollout.file={self.file}: {len(overlapping)} of {len(self.records.groups)} groups are of held-out "
                f"tasks (first {overlapping[0].forest.task[overlapping[0].rows[0]]!r}), which evaluations sample: "
                "leave them out"
            )

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        """Return the forest of the step's groups."""
        if self.file:
            return self._draw_from_file(len(tasks), session)
        names = name_draws(tasks)
        lines = [
            self._line(self._under_return(task, answer), name, answer, session)
            for task, name in zip(tasks, names, strict=True)
            for answer in answers_of(task)
        ]
        self._check_lengths(lines, session)
        return Forest.from_records(lines)

    def _check_lengths(self, lines: Sequence[dict[str, Any]], session: Session) -> None:
        """Warn once of turns that the policy has no room for: its own calls are cut, and nobody can read them."""
        most = max(len(turn["action"]) for line in lines for turn in line["turns"])
        limit, note = session.sampling.max_new_tokens, "lengths of turns"
        if session.envs is not None and session.envs.tools and most > limit and note not in self.past_checks:
            self.past_checks.add(note)
            warnings.warn(
                f"a logged turn has {most} tokens and sampling.max_new_tokens is {limit}: the policy's own calls are "
                f"cut: set sampling.max_new_tokens={most} or more",
                stacklevel=3,
            )

    def _draw_from_file(self, n: int, session: Session) -> Forest:
        # another tokenizer's ids would train on other texts without a word, so a few are compared once a file
        if self.file not in self.past_checks:
            self.records.check_tokens(session.decode)
            self.past_checks.add(self.file)
        pieces, groups, ids = list[Forest](), Counter[str](), Counter[str]()
        # a group that a step draws twice, in a new epoch, gets another name and other ids
        for group in self.records.draw(n, session.step, session.seed):
            home = f"s{session.step}/{group.name}{_repeat_suffix(groups, group.name)}"
            piece = group.forest.select(torch.tensor(group.rows))
            pieces.append(
                piece.replace(
                    group=[home] * len(group.rows),
                    id=[f"{name}{_repeat_suffix(ids, name)}" for name in piece.id],
                    origin=[LOGGED] * len(group.rows),
                )
            )
        return Forest.concat(pieces)

    def _line(self, task: Task, draw: str, answer: LoggedAnswer, session: Session) -> dict[str, Any]:
        """Build the record of one answer, tokenised."""
        group = group_of(session, draw)
        context_columns: dict[str, Any] = {}
        turns: list[dict[str, Any]] = []
        # only an answer of several turns needs the chat, which renders the messages between them, and one with tools,
        # which it shows in the prompt
        conversation = None
        tools = () if session.envs is None else session.envs.tools
        prompt_ids = () if tools else session.encode(task)
        if answer.between or tools:
            prompt: Any = task.prompt
            conversation = session.chat.start(prompt_messages(session.chat, session.system, prompt), tools)
            prompt_ids = conversation.context if tools else prompt_ids
        for i, text in enumerate(answer.texts):
            action = in_tokens(text, session).tokens
            turns.append({"action": action, "logprob": [None] * len(action), "finish": "stop", **context_columns})
            if conversation is not None and i < len(answer.between):
                conversation.act(action)
                update = conversation.observe(answer.between[i])
                context_columns = {"context" if update.rebuilt else "observation": list(update.ids)}
        if not prompt_ids:
            raise TaskError(f"task {task.id!r}: its prompt has no tokens")
        sampling = dataclasses.asdict(lift_restrictions(session.sampling))
        line = record(task, group, f"{draw}/{answer.name}", session.sampling, prompt=list(prompt_ids), turns=turns)
        verdicts = {"reward": answer.outcome, "success": answer.success, "origin": LOGGED, "info": dict(answer.info)}
        return {**line, **verdicts, "sampling": sampling}


def _repeat_suffix(counts: Counter[str], name: str) -> str:
    """Count a name, and return its suffix: "" the first time, then "#1", "#2"..."""
    counts[name] += 1
    return f"#{counts[name] - 1}" if counts[name] > 1 else ""
