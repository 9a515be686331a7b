"""Attempts at tasks: requests for new ones (`Attempts`, `Fork`) and one under way (`Episode`).

`gxpo.sampling.rollouts.episodes.Play` begins and plays many of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gxpo.base.errors import PictureError
from gxpo.models.chat.messages import text_of
from gxpo.parts.protocols import (
    Completion,
    ContextUpdate,
    EnvFailure,
    Reply,
    Request,
    Sampling,
    StreamKey,
    Task,
    TimeStep,
)
from gxpo.sampling.rollouts.build import AGENT, LIMITS, action, dotted_name, record
from gxpo.sampling.rollouts.context import Context

if TYPE_CHECKING:
    from gxpo.sampling.rollouts.wording import Wording

    Actor = Callable[["Sequence[Episode]", Any], "list[Completion | None]"]  # these attempts, the `Play` they are of


@dataclass(frozen=True)
class Prompt:
    """Context of an attempt of one turn: the token ids of a prompt, to which nothing is added."""

    ids: tuple[int, ...]

    summarising: ClassVar[bool] = False

    def act(self, tokens: Sequence[int]) -> Reply:
        """Return an empty reply: nobody reads the answer while it is sampled."""
        return Reply("")

    def copy(self) -> Prompt:
        return self


@dataclass(frozen=True)
class Snapshot:
    """Position of an episode before one of its actions; `snapshot`: its environment's, if it takes snapshots."""

    context: Context
    opening: ContextUpdate
    time_step: TimeStep
    moves: int
    snapshot: str | None


@dataclass(frozen=True, eq=False)
class Attempts:
    """Request for new attempts at a draw of a task: number, random streams, and prompt of the policy.

    task, draw  the task, and the name of this draw of it (`Play.draws`)
    numbers     numbers of the attempts; number i has the stream (seed, step, draw, i, path)
    group       name of their group
    home        ids are HOME/NUMBER, or HOME/LABEL/0, 1, ... if there is a `label`
    wording     puts the prompt (of an episode, the message that begins each context) in other words
    hides_wording  sample under the wording, train under the task's own words (with `objective.context: sampled` under
    the wording all the same)
    policy      name of the policy that acts
    actor       acts in the policy's place: the next action of each of these episodes, None where it knows none
    sampling    how tokens are drawn; None: as the run says
    read        the sampling that the records state, by which the learner computes log-probs; None: `sampling`
    is_measurement attempts that are scored, but neither compared nor trained nor counted in a denominator
    origin, info  columns of the records
    """

    task: Task
    draw: str
    numbers: Sequence[int]
    group: str
    home: str
    path: tuple[int, ...] = ()
    label: str = ""
    wording: Wording | None = None
    hides_wording: bool = False
    policy: str = "main"
    actor: Actor | None = None
    sampling: Sampling | None = None
    read: Sampling | None = None
    is_measurement: bool = False
    origin: str = "policy"
    info: Mapping[str, Any] = field(default_factory=dict)

    def ids(self) -> list[str]:
        """Return the id of each attempt."""
        if self.label:
            return [f"{self.home}/{self.label}/{i}" for i in range(len(self.numbers))]
        return [f"{self.home}/{'.'.join(map(str, (n, *self.path)))}" for n in self.numbers]


@dataclass(frozen=True)
class Draw:
    """One draw of a task in a step; a task that is drawn twice makes two groups."""

    task: Task
    name: str
    group: str

    def attempts(self, n: int, *, first: int = 0, **columns: Any) -> Attempts:
        """Request `n` attempts, numbered from `first`; `columns`: other fields of `Attempts`."""
        columns = {"group": self.group, "home": self.group, **columns}
        return Attempts(self.task, self.name, range(first, first + n), **columns)


@dataclass(eq=False)
class Episode:
    """One attempt under way, and the source of its record. `end`: how it ended, None as long as it goes on.

    "done"               it ended by itself
    "truncated"          a limit of the environment cut it
    "turns", "context"   `EpisodeRules.max_turns` or `max_context` cut it
    "raised", "nonsense", "timeout", "died"   the environment broke: the attempt stays unscored

    A sample of a prompt has one turn. A fork goes on from `base` and shares its first `n_inherited` turns; of the
    action after these it shares the tokens `prefix_tokens`, and the rest of that action is its own.
    """

    name: str
    task: Task
    group: str
    key: StreamKey
    context: Any  # a Context, or of a sample a Prompt
    opening: ContextUpdate
    time_step: TimeStep  # the newest of the environment
    turns: list[dict[str, Any]] = field(default_factory=list)  # inherited ones included
    moves: int = 0  # turns without summaries
    end: str | None = None
    failure: str | None = None
    replies: list[Reply | None] = field(default_factory=list)  # given to the environment in each turn; None: nothing
    snapshots: list[Snapshot] = field(default_factory=list)  # before each turn, if the play keeps them for forks
    instance_info: Mapping[str, Any] = field(default_factory=dict)  # the environment's facts of this instance
    base: Episode | None = None
    n_inherited: int = 0
    prefix_tokens: tuple[int, ...] = ()
    spec: Attempts | None = None  # the request that it was begun by; of a fork, its base's
    label: str | None = None  # its id, if that is not GROUP/ATTEMPT
    trained_context: Any = None  # the context to train under, if it is sampled under another one
    info: dict[str, Any] = field(default_factory=dict)  # further entries of its record's info
    newest_action: Completion | None = None  # the newest action

    @property
    def is_sample_of_prompt(self) -> bool:
        """True if it begins at its task's prompt, so that it may be one of several samples of a request."""
        return isinstance(self.context, Prompt) and self.base is None and self.spec is not None

    @property
    def action_prefix(self) -> tuple[int, ...]:
        """Tokens that the next action begins with: `prefix_tokens` in the first turn of its own, else none."""
        return self.prefix_tokens if len(self.turns) == self.n_inherited else ()

    def request(self) -> Request:
        """Build the engine's request for the next action; every turn has a stream of its own."""
        key = dataclasses.replace(self.key, turn=len(self.turns))
        keep = () if isinstance(self.context, Prompt) else (self.name,)
        policy = "main" if self.spec is None else self.spec.policy
        return Request((*self.context.ids, *self.action_prefix), (key,), keep=keep, policy=policy)

    def act(self, completion: Completion) -> Reply:
        """Append the sampled action as the newest turn; it goes on after `action_prefix`. Return the parsed reply."""
        self.newest_action = completion
        turn: dict[str, Any] = {"agent": AGENT, **action(completion), "state": self.time_step.state}
        # a fork within an action adds to a turn of its base, whose record holds what was observed before
        prefix = self.action_prefix
        opens_action = not prefix or self.base is None
        if opens_action:
            turn["context" if self.opening.rebuilt else "observation"] = list(self.opening.ids)
        if not isinstance(self.context, Prompt) and opens_action:
            turn["observation_text"] = text_of(self.context.observation)
        if self.trained_context is not None:
            turn["sampled_under"] = list(self.context.ids)
        if self.spec is not None and self.spec.policy != "main":
            turn["policy"] = self.spec.policy
        if self.spec is not None and self.spec.is_measurement:
            turn["trainable"] = False
        # a summary is an action that the environment never sees: it takes no move and acts in no state
        is_summary = self.context.summarising
        if is_summary:
            turn |= {"state": None, "info": {"summary": True}}
        else:
            self.moves += 1
        self.turns.append(turn)
        # the contexts read the action as one text, the tokens that it shares with the base included
        tokens = (*prefix, *completion.tokens)
        reply = self.context.act(tokens)
        if self.trained_context is not None:
            self.trained_context.act(tokens)
        self.replies.append(None if is_summary else reply)
        return reply

    def action_tokens(self, turn: int) -> list[int]:
        """Return all tokens of the action of a turn, including those that a fork shares with its base."""
        owner: Episode = self
        # a chain of forks: the turn is stored by the last one that did not inherit it
        while turn < owner.n_inherited and owner.base is not None:
            owner = owner.base
        prefix = owner.prefix_tokens if turn == owner.n_inherited else ()
        return [*prefix, *owner.turns[turn]["action"]]

    def begin_anew(self) -> None:
        """Turn all that came before, `prefix_tokens` included, into the prompt of a new record."""
        self.opening = ContextUpdate((*self.context.ids, *self.prefix_tokens), rebuilt=True)
        self.turns, self.replies, self.snapshots = [], [], []
        # without a spec the policy acts, and the record is compared and trained like any other
        self.base, self.spec, self.n_inherited, self.moves = None, None, 0, 0

    def step(self, answer: TimeStep | EnvFailure, max_turns: int) -> None:
        """Take the environment's answer to the newest action, and end the episode or open its next turn."""
        turn = self.turns[-1]
        if isinstance(answer, EnvFailure):
            self.end, self.failure = answer.kind, answer.message
            return
        self.time_step = answer
        turn["reward"] = answer.reward
        action_error = {"action_error": answer.action_error} if answer.action_error else {}
        if info := {**answer.info, **action_error}:
            turn["info"] = info
        if answer.done:
            self.end = "truncated" if answer.truncated else "done"
        elif self.moves >= max_turns:
            self.end = "turns"
        else:
            try:
                self._go_on(lambda context: context.observe(answer.observation))
            except PictureError as error:  # a bad picture of one environment ends that episode alone
                self.end, self.failure = "nonsense", str(error)

    def _go_on(self, update: Callable[[Context], ContextUpdate]) -> None:
        """Update both contexts for the next action; the record holds the one that is trained."""
        self.opening = update(self.context)
        if self.trained_context is not None:
            self.opening = update(self.trained_context)

    @property
    def success(self) -> bool | None:
        """The environment's verdict; an attempt that a limit cut has failed."""
        if self.failure is not None:
            return None
        if self.end in LIMITS or (self.end == "truncated" and self.time_step.success is None):
            return False
        return self.time_step.success

    @property
    def env_reward(self) -> float | None:
        """The sum of the step rewards, without any the verdict; None if the environment broke."""
        if self.failure is not None:
            return None
        rewards = [t["reward"] for t in self.turns if t.get("reward") is not None]
        if rewards:
            return float(sum(rewards))
        return None if self.success is None else float(self.success)

    @property
    def id(self) -> str:
        """The id of its record: "GROUP/ATTEMPT", of a stream with a path "GROUP/3.0.1"."""
        return self.label or f"{self.group}/{dotted_name(self.key)}"

    def record(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Build the `gxpo.rollouts/1` record; a fork's record must follow its base's."""
        first, *rest = turns = self.turns[self.n_inherited :]
        # where it begins: within an action of its base, after a turn of its base, or at a prompt of its own
        columns: dict[str, Any] = {"turns": turns}
        if self.base is not None and self.prefix_tokens:
            columns["fork"] = {"of": self.base.id, "turn": self.n_inherited, "token": len(self.prefix_tokens)}
        elif self.base is not None and self.n_inherited:
            columns["fork"] = {"of": self.base.id, "turn": self.n_inherited - 1, "token": None}
        else:
            columns = {"prompt": first["context"], "turns": [{k: v for k, v in first.items() if k != "context"}, *rest]}
        if self.spec is not None and self.spec.is_measurement:
            columns |= {"compared": False, "weight": 0.0}
        columns["origin"] = "policy" if self.spec is None else self.spec.origin
        # samples of prompts are scored later by the run's reward, and have nothing of an environment to note
        if isinstance(self.context, Prompt):
            is_cut = turns[-1]["finish"] == "length"
            if self.base is None and self.prefix_tokens:
                columns["prompt_text"] = None  # the prompt is longer than the task's
            return self._line(**columns, truncated=is_cut, info=self.info) | {"sampling": sampling}
        n_declined = self.context.declined_rewrites + getattr(self.context.conversation, "kept_against_template", 0)
        info = {
            **self.instance_info,
            "end": self.end,
            "moves": self.moves,
            "rewritten": self.context.rewritten,
            "kept": n_declined,
        }
        if self.failure is not None:
            info["failure"] = self.failure
        columns |= {"prompt_text": None, "rewards": {"env": self.env_reward}, "success": self.success}
        columns |= {"truncated": self.end in (*LIMITS, "truncated"), "final_state": self.time_step.state}
        return self._line(**columns, info={**info, **self.info}) | {"sampling": sampling}

    def _line(self, **columns: Any) -> dict[str, Any]:
        return record(self.task, self.group, self.id, Sampling(), **columns)


class Fork(NamedTuple):
    """Request for a new attempt that leaves another before one of its turns, or within that turn's action.

    base   the attempt to leave; it keeps its own turns
    turn   from 0, inherited turns counted; in an environment also the turn that the base is about to take. A sample of
           a prompt has turn 0 alone
    key    the random stream from there on: `dataclasses.replace(base.key, path=(*base.key.path, 0))`. Attempt and path
           are the last part of its id, "GROUP/3.0", which no other attempt may have
    name   a name that no other attempt of the step has
    token  0: leave before the turn; else within the turn's action, after so many of its tokens, which both share
    info   entries of its record's `info`
    anew   begin a record of its own here: all that came before, the first `token` tokens of the action included, is
           its prompt, neither trained nor read by rewards; an environment goes on from where it stood, and the policy
           acts, whoever acted in the base
    origin of its record, in the place of its base's; "": the base's. The policy then acts, whoever acted in the base
    """

    base: Episode
    turn: int
    key: StreamKey
    name: str
    token: int = 0
    info: Mapping[str, Any] = {}
    anew: bool = False
    origin: str = ""


def fork_episode(fork: Fork, place: Snapshot | Episode) -> Episode:
    """Make the attempt of a fork at `place`: its base's snapshot before the turn, or the base itself for a sample."""
    base, turn, key, name, token, info, _, origin = fork
    twin = Episode(name, base.task, base.group, key, place.context.copy(), place.opening, place.time_step)
    twin.turns, twin.replies, twin.snapshots = base.turns[:turn], base.replies[:turn], base.snapshots[:turn]
    twin.moves = 0 if isinstance(place, Episode) else place.moves
    twin.base, twin.n_inherited, twin.spec = base, turn, base.spec
    twin.instance_info, twin.info = base.instance_info, dict(info)
    twin.prefix_tokens = tuple(base.action_tokens(turn)[:token]) if token else ()
    if origin and base.spec is not None:
        twin.spec = dataclasses.replace(base.spec, actor=None, origin=origin)
    return twin
