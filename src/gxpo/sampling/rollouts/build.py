"""One attempt at a task and how it is written down: names, random streams, requests, turns, records, forests.

`Attempts` says what begins, `Episode` is one attempt in the making; `gxpo.sampling.rollouts.episodes.Play` plays many.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from annotated_types import Ge, MinLen
from torch.nn.functional import pad

from gxpo.base.errors import PictureError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import (
    Completion,
    ContextUpdate,
    EnvFailure,
    Reply,
    Request,
    Sampling,
    Session,
    StreamKey,
    Task,
    TimeStep,
)
from gxpo.parts.ranges import Part
from gxpo.sampling.rollouts.context import Context, text_of

if TYPE_CHECKING:
    from gxpo.sampling.rollouts.wording import Wording

    Actor = Callable[["Sequence[Episode]", Any], "list[Completion | None]"]  # these attempts, the `Play` they are of

Count = Annotated[int, Ge(1)]
Limit = Annotated[int, Ge(0)]  # 0: none, or all
Text = Annotated[str, MinLen(1)]
AGENT = "agent"
LIMITS = ("turns", "context")  # ends of an episode that was cut


class RolloutPart(Part):
    """Base of rollouts: their options are `rollout.NAME`, checked against the annotations.

    allows  settings of the run that it can't work with any value of -> (the values that it works with, why no others)
    requires, provides  what tasks must provide, and what rollouts carry beyond text; components: rewards they bring
    single_turn      it is for tasks with one answer; drops_equal_groups: it leaves out groups of equal rewards
    samples_prompts  the task's own prompt is what it samples under; has_behaviour: the sampler's log-probs are known
    """

    slot = "rollout"
    allows: ClassVar[Mapping[str, tuple[tuple[Any, ...], str]]] = {}
    requires: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ()
    components: ClassVar[tuple[str, ...]] = ()
    single_turn: ClassVar[bool] = False
    samples_prompts: ClassVar[bool] = True
    has_behaviour: ClassVar[bool] = True
    drops_equal_groups: ClassVar[bool] = False

    def check_sampling(self, sampling: Sampling) -> None:
        """ConfigError for sampling settings of the run that it can't work with."""

    @property
    def across_groups(self) -> bool:
        """True where a task's rollouts depend on other tasks or on earlier ones: asynchronous training refuses it."""
        return hasattr(self, "state_dict") and bool(getattr(self, "remembers", True))


def name_draws(tasks: Sequence[Task], drawn: Counter[str] | None = None) -> list[str]:
    """A name for each draw of a task within a step: its id, then id#1, id#2... where it is drawn again.

    `drawn` counts the draws of the step so far, and is counted on.

    >>> a, b = Task("a", "?"), Task("b", "?")
    >>> name_draws([a, b, a])
    ['a', 'b', 'a#1']
    """
    drawn, names = Counter() if drawn is None else drawn, []
    for task in tasks:
        names.append(f"{task.id}#{drawn[task.id]}" if drawn[task.id] else task.id)
        drawn[task.id] += 1
    return names


def group_of(session: Session, draw: str) -> str:
    """Name of the group of a drawn task: "s{step}/{draw}"."""
    return f"s{session.step}/{draw}"


def stream(session: Session, draw: str, attempt: int = 0, path: tuple[int, ...] = (), turn: int = 0) -> StreamKey:
    """The random stream of one action: (seed, step, draw, attempt, path, turn)."""
    return StreamKey(session.seed, session.step, draw, attempt, path, turn)


def keyed(session: Session, *names: object) -> random.Random:
    """Random numbers for one decision of a rollout, whatever else is in the batch."""
    return random.Random("/".join(map(str, (session.seed, session.step, *names))))


def dotted(key: StreamKey) -> str:
    """Attempt and path of a stream as a name.

    >>> dotted(StreamKey(0, 1, "task", 3, (0, 1)))
    '3.0.1'
    """
    return ".".join(map(str, (key.attempt, *key.path)))


def requests(
    prompts: Sequence[tuple[int, ...]],
    draws: Sequence[str],
    group_size: int,
    session: Session,
) -> list[Request]:
    """`group_size` samples of each prompt; attempt i of a draw has the stream (seed, step, draw, i) of its own."""
    return [
        Request(
            prompt,
            tuple(StreamKey(session.seed, session.step, draw, attempt) for attempt in range(group_size)),
        )
        for prompt, draw in zip(prompts, draws, strict=True)
    ]


def sample_within(
    session: Session, requests: Sequence[Request], rooms: Sequence[int], sampling: Sampling | None = None
) -> list[list[Completion]]:
    """Completions of requests that may each have so many tokens at most, in order; those of one limit together."""
    together: dict[int, list[int]] = defaultdict(list)
    for i, room in enumerate(rooms):
        together[room].append(i)
    out: list[list[Completion]] = [[] for _ in requests]
    for room, chosen in sorted(together.items(), reverse=True):
        limited = dataclasses.replace(sampling or session.sampling, max_new_tokens=room)
        for i, found in zip(chosen, session.sample([requests[i] for i in chosen], limited), strict=True):
            out[i] = found
    return out


def first_best(reward: Sequence[float]) -> int:
    """Which to go on with: the first of the largest rewards; one without a reward (nan) only where none has one.

    >>> first_best([1.0, 2.0, 2.0]), first_best([math.nan, -1.0])
    (1, 1)
    """
    return max(range(len(reward)), key=lambda i: -math.inf if math.isnan(reward[i]) else reward[i])


def action(*pieces: Completion) -> dict[str, Any]:
    """A record's turn whose action is these pieces, one after the other; it ended as the last of them did.

    Where some were sampled under top-k or top-p, a token of the others has itself for a support.
    """
    last, extras = pieces[-1], {}
    if any(piece.support is not None for piece in pieces):
        own = [torch.tensor(p.tokens)[:, None] if p.support is None else torch.as_tensor(p.support) for p in pieces]
        widest = max(block.shape[1] for block in own)
        extras["support"] = torch.cat([pad(b.to(torch.int64), (0, widest - b.shape[1]), value=-1) for b in own])
    return {
        "action": [token for piece in pieces for token in piece.tokens],
        "logprob": [None if math.isnan(x) else x for piece in pieces for x in piece.logprobs],
        "finish": last.finish,
        "policy_version": last.policy_version,
        "extras": extras,
        **_versions(pieces),
    }


def _versions(pieces: Sequence[Completion]) -> dict[str, Any]:
    """Where the policy's version changes within pieces of an action, if it changes within one of them."""
    if not any(piece.versions for piece in pieces):
        return {}
    found, at = [], 0
    for piece in pieces:
        found += [(at, piece.policy_version), *((at + token, version) for token, version in piece.versions)]
        at += len(piece.tokens)
    changes = [[t, v] for (_, before), (t, v) in itertools.pairwise(found) if v != before and 0 < t < at]
    return {"policy_version": found[0][1], "versions": changes}


def record(task: Task, group: str, name: str, sampling: Sampling, **columns: Any) -> dict[str, Any]:
    """A line of `gxpo.rollouts/1` of an attempt that is not scored yet; `columns`: its prompt or fork, its turns..."""
    return {
        "schema": "gxpo.rollouts/1",
        "task": task.id,
        "group": group,
        "id": name,
        "prompt_text": task.prompt if isinstance(task.prompt, str) else None,
        "reward": None,
        "sampling": dataclasses.asdict(sampling),
        **columns,
    }


# ---------------------------------------------------------------- attempts
@dataclass(frozen=True)
class Prompt:
    """The context of an attempt of one turn: a prompt's token ids, which nothing follows."""

    ids: tuple[int, ...]

    summarising: ClassVar[bool] = False

    def act(self, tokens: Sequence[int]) -> Reply:
        """Nobody reads what is said."""
        return Reply("")

    def copy(self) -> Prompt:
        return self


@dataclass(frozen=True)
class Snapshot:
    """Where an episode stood before one of its actions; `snapshot` of its environment, where one was taken."""

    context: Context
    opening: ContextUpdate
    said: TimeStep
    moves: int
    snapshot: str | None


@dataclass(frozen=True, eq=False)
class Attempts:
    """Attempts that begin at a draw of a task: how many, under which streams, and what the policy is shown.

    task, draw  what is attempted, and the name of this draw of it (`Play.draws`)
    numbers     of the attempts; number i has the stream (seed, step, draw, i, path)
    group       the name of their group
    home        ids are HOME/NUMBER, or HOME/LABEL/0, 1, ... where there is a `label`
    wording     puts the prompt (of an episode, the message that begins each context) in other words
    hidden      the wording is for sampling alone: what is trained is the attempt under the task's own words
                (`objective.context`: sampled trains it under the wording all the same)
    policy      who acts
    actor       who acts in the policy's place: the next action of each of these episodes, None where it knows none
    sampling    how its tokens are drawn, and `read` how the records say they were; None: as the run's are
    measured    attempts that are scored, and neither compared nor trained nor counted in a denominator
    origin, info  as the records say
    """

    task: Task
    draw: str
    numbers: Sequence[int]
    group: str
    home: str
    path: tuple[int, ...] = ()
    label: str = ""
    wording: Wording | None = None
    hidden: bool = False
    policy: str = "main"
    actor: Actor | None = None
    sampling: Sampling | None = None
    read: Sampling | None = None
    measured: bool = False
    origin: str = "policy"
    info: Mapping[str, Any] = field(default_factory=dict)

    def ids(self) -> list[str]:
        """A name for each attempt."""
        if self.label:
            return [f"{self.home}/{self.label}/{i}" for i in range(len(self.numbers))]
        return [f"{self.home}/{'.'.join(map(str, (n, *self.path)))}" for n in self.numbers]


@dataclass(frozen=True)
class Draw:
    """A task as it was drawn in a step: drawn twice, it makes two groups."""

    task: Task
    name: str
    group: str

    def attempts(self, n: int, *, first: int = 0, **columns: Any) -> Attempts:
        """`n` attempts, numbered from `first`; `columns`: other fields of `Attempts`."""
        columns = {"group": self.group, "home": self.group, **columns}
        return Attempts(self.task, self.name, range(first, first + n), **columns)


@dataclass(eq=False)
class Episode:
    """One attempt, as a record in the making. `end`: how it ended, None as long as it goes on.

    "done"               by itself
    "truncated"          by a limit of the environment
    "turns", "context"   by `EpisodeRules.max_turns` or `max_context`
    "raised", "nonsense", "timeout", "died"   the environment broke: the attempt stays unscored

    A sample of a prompt has one turn. A fork goes on from `base`, whose first `inherited` turns it has as its own first
    ones; of the turn after them it has the tokens `begun`, and the rest of that action is its own.
    """

    name: str
    task: Task
    group: str
    key: StreamKey
    context: Any  # a Context, or of a sample a Prompt
    opening: ContextUpdate
    said: TimeStep  # the newest of the environment
    turns: list[dict[str, Any]] = field(default_factory=list)  # inherited ones included
    moves: int = 0  # turns without summaries
    end: str | None = None
    failure: str | None = None
    replies: list[Reply | None] = field(default_factory=list)  # what the environment was given in each; None: nothing
    stood: list[Snapshot] = field(default_factory=list)  # before each turn, where forks are wanted
    about: Mapping[str, Any] = field(default_factory=dict)  # what the environment says of the instance
    base: Episode | None = None
    inherited: int = 0
    begun: tuple[int, ...] = ()
    asked: Attempts | None = None  # what it was begun by; of a fork, what its base was
    label: str | None = None  # its id, where that is not GROUP/ATTEMPT
    plain: Any = None  # what is trained, where another context is sampled under
    info: dict[str, Any] = field(default_factory=dict)  # what its record says beside what is known of every episode
    sampled: Completion | None = None  # the newest action

    @property
    def kept(self) -> tuple[int, ...]:
        """What the next action begins with: the tokens `begun`, in the first turn of its own."""
        return self.begun if len(self.turns) == self.inherited else ()

    def request(self) -> Request:
        """The next action: a stream of its own for every turn."""
        key = dataclasses.replace(self.key, turn=len(self.turns))
        keep = () if isinstance(self.context, Prompt) else (self.name,)
        policy = "main" if self.asked is None else self.asked.policy
        return Request((*self.context.ids, *self.kept), (key,), keep=keep, policy=policy)

    def act(self, completion: Completion) -> Reply:
        """Take the action in, as the newest turn: what was sampled is what comes after the tokens `kept`."""
        self.sampled = completion
        turn: dict[str, Any] = {"agent": AGENT, **action(completion), "state": self.said.state}
        kept = self.kept
        begins = not kept or self.base is None
        if begins:
            turn["context" if self.opening.rebuilt else "observation"] = list(self.opening.ids)
        if not isinstance(self.context, Prompt) and begins:
            turn["observation_text"] = text_of(self.context.observation)
        if self.plain is not None:
            turn["sampled_under"] = list(self.context.ids)
        if self.asked is not None and self.asked.policy != "main":
            turn["policy"] = self.asked.policy
        if self.asked is not None and self.asked.measured:
            turn["trainable"] = False
        summary = self.context.summarising
        if summary:
            turn |= {"state": None, "info": {"summary": True}}
        else:
            self.moves += 1
        self.turns.append(turn)
        tokens = (*kept, *completion.tokens)
        reply = self.context.act(tokens)
        if self.plain is not None:
            self.plain.act(tokens)
        self.replies.append(None if summary else reply)
        return reply

    def whole(self, turn: int) -> list[int]:
        """All tokens of the action of a turn, those included that a fork has from its base."""
        owner: Episode = self
        while turn < owner.inherited and owner.base is not None:
            owner = owner.base
        begun = owner.begun if turn == owner.inherited else ()
        return [*begun, *owner.turns[turn]["action"]]

    def begin_anew(self) -> None:
        """All that was said so far, tokens of the next action included, is the prompt of what comes."""
        self.opening = ContextUpdate((*self.context.ids, *self.begun), rebuilt=True)
        self.turns, self.replies, self.stood = [], [], []
        self.base, self.asked, self.inherited, self.moves = None, None, 0, 0

    def step(self, answer: TimeStep | EnvFailure, max_turns: int) -> None:
        """What the environment made of the newest action."""
        turn = self.turns[-1]
        if isinstance(answer, EnvFailure):
            self.end, self.failure = answer.kind, answer.message
            return
        self.said = answer
        turn["reward"] = answer.reward
        if known := {**answer.info, **({"action_error": answer.action_error} if answer.action_error else {})}:
            turn["info"] = known
        if answer.done:
            self.end = "truncated" if answer.truncated else "done"
        elif self.moves >= max_turns:
            self.end = "turns"
        else:
            try:
                self._go_on(lambda context: context.observe(answer.observation))
            except PictureError as error:  # what an environment shows costs its own episode alone
                self.end, self.failure = "nonsense", str(error)

    def _go_on(self, say: Callable[[Context], ContextUpdate]) -> None:
        """Both contexts stand before the next action; the record has the plain one's."""
        self.opening = say(self.context)
        if self.plain is not None:
            self.opening = say(self.plain)

    @property
    def success(self) -> bool | None:
        """The verdict of the environment; an attempt that a limit cut has failed."""
        if self.failure is not None:
            return None
        if self.end in LIMITS or (self.end == "truncated" and self.said.success is None):
            return False
        return self.said.success

    @property
    def paid(self) -> float | None:
        """The sum of the step rewards; where there are none, the verdict; None where the environment broke."""
        if self.failure is not None:
            return None
        rewards = [t["reward"] for t in self.turns if t.get("reward") is not None]
        if rewards:
            return float(sum(rewards))
        return None if self.success is None else float(self.success)

    @property
    def id(self) -> str:
        """ "GROUP/ATTEMPT", with the path of its stream behind: "GROUP/3.0.1"."""
        return self.label or f"{self.group}/{dotted(self.key)}"

    def record(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """The line of `gxpo.rollouts/1`; a fork's comes after its base's."""
        first, *rest = turns = self.turns[self.inherited :]
        begin: dict[str, Any] = {"turns": turns}
        if self.base is not None and self.begun:
            begin["fork"] = {"of": self.base.id, "turn": self.inherited, "token": len(self.begun)}
        elif self.base is not None and self.inherited:
            begin["fork"] = {"of": self.base.id, "turn": self.inherited - 1, "token": None}
        else:
            begin = {"prompt": first["context"], "turns": [{k: v for k, v in first.items() if k != "context"}, *rest]}
        if self.asked is not None and self.asked.measured:
            begin |= {"compared": False, "weight": 0.0}
        begin["origin"] = "policy" if self.asked is None else self.asked.origin
        if isinstance(self.context, Prompt):
            cut = turns[-1]["finish"] == "length"
            if self.base is None and self.begun:
                begin["prompt_text"] = None  # the prompt is longer than the task's
            return self._line(**begin, truncated=cut, info=self.info) | {"sampling": sampling}
        kept = self.context.kept + getattr(self.context.conversation, "kept_against_template", 0)
        info = {**self.about, "end": self.end, "moves": self.moves, "rewritten": self.context.rewritten, "kept": kept}
        if self.failure is not None:
            info["failure"] = self.failure
        begin |= {"prompt_text": None, "rewards": {"env": self.paid}, "success": self.success}
        begin |= {"truncated": self.end in (*LIMITS, "truncated"), "final_state": self.said.state}
        return self._line(**begin, info={**info, **self.info}) | {"sampling": sampling}

    def _line(self, **columns: Any) -> dict[str, Any]:
        return record(self.task, self.group, self.id, Sampling(), **columns)


# ---------------------------------------------------------------- samples of prompts, all at once
def forest_of(
    tasks: Sequence[Task],
    groups: Sequence[str],
    prompts: Sequence[tuple[int, ...]],
    completions: Sequence[Sequence[Completion]],
    sampling: Sampling,
    ids: Sequence[str] | None = None,
) -> Forest:
    """Single-turn groups as sampled, not scored: a task, group name, prompt and list of completions each.

    ids  of all attempts in order; default: GROUP/0, GROUP/1, ...
    """
    flat = [c for group in completions for c in group]
    forest = Forest.from_completions(
        prompts,
        [[c.tokens for c in group] for group in completions],
        groups=groups,
        tasks=[task.id for task in tasks],
        logprobs=[[c.logprobs for c in group] for group in completions],
        truncated=[c.finish == "length" for c in flat],
        finish=[c.finish for c in flat],
        support=[None if c.support is None else torch.as_tensor(c.support) for c in flat],
        sampling=dataclasses.asdict(sampling),
        ids=ids or [f"{name}/{i}" for name, group in zip(groups, completions, strict=True) for i in range(len(group))],
    )
    names = list(dict.fromkeys(forest.task))
    place = {name: i for i, name in enumerate(names)}
    state = torch.tensor([place[task] for task in forest.task], dtype=torch.int64)
    node_state = forest.state.clone()
    node_state[forest.last_action] = state
    version = forest.policy_version.clone()
    version[forest.last_action] = torch.tensor([c.policy_version for c in flat], dtype=version.dtype)
    return forest.replace(
        policy_version=version,
        state=node_state,
        step_state=state,
        state_names=tuple(names),
        prompt_text=[
            t.prompt if isinstance(t.prompt, str) else None for t, g in zip(tasks, completions, strict=True) for _ in g
        ],
    )
