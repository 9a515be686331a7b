"""Multi-agent rollouts: attempts of a team at a task, whose roles take turns under contexts of their own."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.base import media
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, ContextUpdate, EpisodeRules, Request, Sampling, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Fork
from gxpo.sampling.rollouts.build import Count, RolloutPart, action, dotted_name, random_for, record
from gxpo.sampling.rollouts.context import Context, marked
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.graph import REQUEST, TASK, Call, Graph, Role, Texts, fill_text, graph
from gxpo.sampling.rollouts.team_policies import TeamPolicies


@dataclass(frozen=True)
class Caller:
    """A role that waits for the replies to its calls; the first of `calls` is under way.

    turn  number of its action, from 0, that made them
    """

    role: Role
    turn: int
    calls: tuple[tuple[Call, str], ...]
    replies: tuple[str, ...] = ()


class Walk:
    """One walk through the team's graph, as far as it has come.

    role     the role whose turn is next; None: the team is done
    read     its prompt, and `opening` the same as token ids
    texts    the newest text of each role, and the task's
    answer   the team's answer so far
    round    from 1; `calls` counts the actions so far
    is_cut   a context or an action was too long
    callers  roles that wait for replies to their calls, each called by the one before it
    traitor  the role that works against the others in all attempts at this task; "": none
    """

    def __init__(self, cast: TeamPolicies, task: Task, session: Session) -> None:
        self.cast, self.task, self.session = cast, task, session
        prompt = task.prompt
        if not isinstance(prompt, str):
            messages = [m for m in prompt if not isinstance(m, int)]
            if len(messages) < len(prompt):
                raise ConfigError(
                    f"a team reads its tasks as texts, and task {task.id!r} is token ids: give it as text"
                )
            prompt = marked(messages)
        self.texts: dict[str, str] = {TASK: prompt, REQUEST: "", **dict.fromkeys(cast.graph.names, "")}
        self.answer, self.round, self.calls = "", 1, 0
        self.is_cut = False
        self.role: Role | None = cast.graph.roles[0]
        self.callers: tuple[Caller, ...] = ()
        self._speakers: tuple[str, ...] = ()  # the role of each action so far
        self._past_calls: tuple[tuple[str, Call], ...] = ()  # with the names of the callers
        self._running_contexts: dict[str, Context] = {}
        self._read_texts: Texts = self.texts
        self.traitor = ""
        if cast.traitor_rate > 0:
            draw = random_for(session, task.id, "traitor")
            self.traitor = draw.choice(cast.graph.names) if draw.random() < cast.traitor_rate else ""
        self.opening = self._open(self.role)

    def _open(self, role: Role, replies: Sequence[str] = ()) -> ContextUpdate:
        """Open the role's next context, new or running; it becomes the current one.

        replies  to the role's calls, if it goes on after them
        """
        if not role.at_once:
            self._read_texts = self.texts
        later_prompt = role.again if role.name in self._speakers else None
        self.read = fill_text(role.prompt if later_prompt is None else later_prompt, self._read_texts)
        if replies and role.running:
            self.read = "\n".join(replies)
        if role.name == self.traitor:
            self.read = self.cast.traitor_prompt.format(prompt=self.read)
        if not role.running:
            return ContextUpdate(self.session.encode(dataclasses.replace(self.task, prompt=self.read)), rebuilt=True)
        if role.name in self._running_contexts:
            return self._running_contexts[role.name].observe(self.read)
        context = Context(self.session.chat, EpisodeRules(), "", (), self.session.system)
        self._running_contexts[role.name] = context
        return context.open(self.read)

    @property
    def context(self) -> tuple[int, ...]:
        """Token ids that the next action is sampled under."""
        assert self.role is not None
        return self._running_contexts[self.role.name].ids if self.role.running else self.opening.ids

    def texts_after(self, completion: Completion) -> dict[str, str]:
        """Return the texts as they would be after this action."""
        assert self.role is not None
        return {**self.texts, self.role.name: self.session.decode(completion.tokens)}

    def answer_after(self, texts: Texts) -> str:
        """Return the team's answer as it would be after the next role's turn with these texts."""
        assert self.role is not None
        return self.answer if self.role.answer is None else fill_text(self.role.answer, texts)

    def turn(self, completion: Completion, *, with_context: bool = False) -> dict[str, Any]:
        """Build the action's turn of a record; `with_context`: independent of earlier turns."""
        role = self.role
        assert role is not None
        context_columns = {"context": list(self.context)} if with_context or self.opening.rebuilt else {}
        return {
            "agent": role.name,
            "policy": self.cast.of(role),
            "state": f"{role.name}:{hashlib.blake2b(repr(self.context).encode(), digest_size=8).hexdigest()}",
            **(context_columns or {"observation": list(self.opening.ids)}),
            "observation_text": media.text_of(self.read),
            "trainable": role.name not in self.cast.untrained
            and (role.name != self.traitor or self.cast.traitor == "trained"),
            "caller": self.callers[-1].turn if self._is_called else None,
            "info": {"round": self.round, "call": self._speakers.count(role.name)},
            **action(completion),
        }

    def line(
        self,
        name: str,
        group: str,
        turns: Sequence[Mapping[str, Any]],
        fork: Mapping[str, Any] | None = None,
        **info: Any,
    ) -> dict[str, Any]:
        """Build the walk's `gxpo.rollouts/1` record: all its turns, or those after a fork."""
        columns: dict[str, Any] = {"fork": fork, "prompt_text": None, "turns": turns}
        if fork is None:
            first, *rest = turns
            columns = {"prompt": first["context"], "prompt_text": first["observation_text"]}
            columns["turns"] = [{k: v for k, v in first.items() if k != "context"}, *rest]
        cases = self.cast.graph.cases
        case_info = {} if cases is None else {"cases": [fill_text(case, self.texts) for case in cases]}
        info = {"answer": self.answer, **case_info, **info}
        return record(self.task, group, name, self.session.sampling, truncated=self.is_cut, info=info, **columns)

    def take(self, completion: Completion) -> None:
        """Append the next role's action, and go on to the role after it."""
        role, texts = self.role, self.texts_after(completion)
        assert role is not None
        self.answer = self.answer_after(texts)
        self.texts, self.calls = texts, self.calls + 1
        self.is_cut |= completion.finish == "length"
        self._speakers = (*self._speakers, role.name)
        if role.running:
            self._running_contexts[role.name].act(completion.tokens)
        replies = self._take_calls(role)
        if not replies and not self.callers:
            self.role, self.round = self.cast.graph.after(role, texts, self.round)
        if self.role is not None:
            self.opening = self._open(self.role, replies)

    @property
    def _is_called(self) -> bool:
        """True if the role whose turn is next answers a call, rather than goes on after its own."""
        return bool(self.callers)

    def _take_calls(self, role: Role) -> tuple[str, ...]:
        """Go on to the next helper that is called, or back to its caller; return the replies that the caller reads.

        Nothing changes where nobody has called anybody.
        """
        # calls of this action come first, whoever acted
        past = [call for caller, call in self._past_calls if caller == role.name]
        if requests := role.requests(self.texts[role.name], past):
            self._past_calls += tuple((role.name, call) for call, _ in requests)
            self.callers += (Caller(role, self.calls - 1, tuple(requests)),)
        # without any, the action is a helper's reply to the first call of the role that waits last
        elif self.callers:
            caller = self.callers[-1]
            call, _ = caller.calls[0]
            reply = self.texts[role.name] if call.reply is None else fill_text(call.reply, self.texts)
            caller = dataclasses.replace(caller, calls=caller.calls[1:], replies=(*caller.replies, reply))
            self.callers = (*self.callers[:-1], caller)
        if not self.callers:
            return ()
        caller = self.callers[-1]
        if caller.calls:
            call, request = caller.calls[0]
            self.texts = {**self.texts, REQUEST: request}
            self.role = self.cast.graph[call.helper]
            return ()
        # all calls are answered: the caller goes on
        self.callers, self.role = self.callers[:-1], caller.role
        if self.callers:
            self.texts = {**self.texts, REQUEST: self.callers[-1].calls[0][1]}
        return caller.replies

    def stops(self) -> bool:
        """End the walk if the context leaves no room for an action; return True if the team is done."""
        room = self.session.episode.max_context - self.session.sampling.max_new_tokens
        if self.role is not None and len(self.context) > room:
            self.role, self.is_cut = None, True
        return self.role is None


class TeamAttempt(Walk):
    """A walk of the team that becomes one trajectory.

    trained_walk  the same walk under the task's own words, if a hidden wording is sampled under
    """

    failure = base = None

    def __init__(
        self, cast: TeamPolicies, spec: Attempts, key: StreamKey, label: str | None, name: str, session: Session
    ) -> None:
        worded_task = spec.task if spec.wording is None else spec.wording.of_task(spec.task)
        super().__init__(cast, worded_task, session)
        self.trained_walk = Walk(cast, spec.task, session) if spec.hides_wording else None
        self.spec, self.key, self.group = spec, key, spec.group
        self.id, self.name = label or f"{spec.group}/{dotted_name(key)}", name
        self.info: dict[str, Any] = dict(spec.info)
        self.turns: list[dict[str, Any]] = []
        self.speeches: list[tuple[Role, Texts]] = []  # the role of each turn, and all texts after it
        self.engine_names: list[str] = []  # names of the contexts that the engine keeps

    def request(self) -> Request:
        """Build the request for the next action; the engine keeps a running context for the role's next turn."""
        assert self.role is not None
        keep = (f"{self.name}/{self.role.name}",) if self.role.running else ()
        self.engine_names += keep
        key = dataclasses.replace(self.key, turn=self.calls)
        return Request(self.context, (key,), keep=keep, policy=self.cast.of(self.role))

    def act(self, completion: Completion) -> None:
        """Append the action, and its turn under the words that are trained."""
        turn = self.turn(completion)
        if self.trained_walk is not None:
            turn = self.trained_walk.turn(completion) | {"sampled_under": list(self.context)}
            self.trained_walk.take(completion)
        if self.spec.is_measurement:
            turn["trainable"] = False
        self.turns.append(turn)
        role = self.role
        assert role is not None
        self.take(completion)
        self.speeches.append((role, self.texts))

    def record(self, sampling: dict[str, Any]) -> dict[str, Any]:
        """Build the `gxpo.rollouts/1` record."""
        if not self.turns:  # not even the first context has room: an empty turn, so that the attempt is counted
            self.role = self.cast.graph.roles[0]
            self.turns.append(self.turn(Completion([], [], "none")))
        traitor = {"traitor": self.traitor} if self.cast.traitor_rate else {}
        line = self.line(self.id, self.group, self.turns, rounds=self.round, **traitor, **self.info)
        measurement_columns = {"compared": False, "weight": 0.0} if self.spec.is_measurement else {}
        return line | measurement_columns | {"origin": self.spec.origin, "sampling": sampling}


class TeamPlay(Play):
    """Play of a team's attempts, many at once."""

    def __init__(self, session: Session, cast: TeamPolicies, *, pays_roles: bool = False) -> None:
        super().__init__(session)
        self.cast, self.pays_roles = cast, pays_roles

    def __exit__(self, *_: object) -> None:
        attempts: list[Any] = list(self.episodes)
        self.session.release([name for attempt in attempts for name in attempt.engine_names])

    def begin(self, requests: Iterable[Attempts | Fork]) -> list[Any]:
        requests = list(requests)
        specs = [request for request in requests if isinstance(request, Attempts)]
        if len(specs) < len(requests):
            raise GxpoError("a team's attempts can't be forked: request new ones, draw.attempts(n, first=...)")
        attempts: list[Any] = [TeamAttempt(self.cast, *each, self.session) for each in self._expand(specs)]
        self.episodes += attempts
        return attempts

    def active(self, episodes: Sequence[Any]) -> list[Any]:
        return [attempt for attempt in episodes if not attempt.stops()]

    def turn(self, active: Sequence[Any], sampling: Sampling | None = None) -> None:
        by_sampling: dict[Sampling | None, list[Any]] = {}
        for attempt in active:
            role_sampling = sampling or attempt.spec.sampling
            if attempt.role.stop:
                role_sampling = role_sampling or self.session.sampling
                role_sampling = dataclasses.replace(role_sampling, stop=(*role_sampling.stop, *attempt.role.stop))
            by_sampling.setdefault(role_sampling, []).append(attempt)
        for batch_sampling, batch in by_sampling.items():
            requests = [attempt.request() for attempt in batch]
            samples = (
                self.session.sample(requests)
                if batch_sampling is None
                else self.session.sample(requests, batch_sampling)
            )
            for attempt, (completion,) in zip(batch, samples, strict=True):
                attempt.act(completion)

    def transcript(self, episode: Any) -> str:
        """Return the team's answer."""
        return episode.answer

    def forest(self, episodes: Sequence[Any] | None = None) -> Forest:
        """Build the forest of these attempts, scored by the team's answers."""
        attempts: list[Any] = list(self.episodes if episodes is None else episodes)
        forest = Forest.from_records([e.record(dataclasses.asdict(self._recorded_sampling(e))) for e in attempts])
        scored_forest = self.session.score(forest, [e.answer for e in attempts])
        if self.cast.traitor_rate:
            scored_forest = with_traitors(
                scored_forest, torch.tensor([bool(e.traitor) for e in attempts], dtype=torch.bool)
            )
        if not self.pays_roles and self.cast.traitor != "trained":
            return scored_forest
        rewards = [reward for r, e in enumerate(attempts) for reward in self._role_rewards(scored_forest, r, e)]
        return scored_forest.replace(step_reward=torch.tensor(rewards, dtype=torch.float64))

    def _role_rewards(self, forest: Forest, r: int, episode: Any) -> list[float]:
        """Reward of each turn of an attempt: as its role is paid, a trained traitor the negative outcome."""
        turns = len(episode.turns)
        outcome = float(forest.outcome[r])
        rewards = role_rewards(forest, r, episode.speeches, turns) if self.pays_roles else [outcome] * turns
        if self.cast.traitor != "trained":
            return rewards
        is_traitors = [role.name == episode.traitor for role, _ in episode.speeches]
        return [-outcome if x else y for x, y in zip([*is_traitors, *[False] * turns], rewards, strict=False)]


def with_traitors(forest: Forest, is_attacked_R: Tensor) -> Forest:
    """Name the outcomes of attempts without and with a traitor as components "clean" and "attacked", nan elsewhere."""
    columns = {name: forest.components[:, i] for i, name in enumerate(forest.component_names)}
    columns["clean"] = torch.where(is_attacked_R, torch.nan, forest.outcome)
    columns["attacked"] = torch.where(is_attacked_R, forest.outcome, torch.nan)
    return forest.with_rewards(forest.outcome, components=columns)


def role_rewards(forest: Forest, r: int, speeches: Sequence[tuple[Role, Texts]], turns: int) -> list[float]:
    """Reward of each turn of trajectory r: its role's `local`, or the outcome for a role without one; nan unscored.

    speeches  role and texts of each turn; `turns` counts an empty one, too, of an attempt without room for any
    """
    outcome = float(forest.outcome[r])
    columns = dict(zip(forest.component_names, forest.components[r].tolist(), strict=True))
    scores = {**columns, "outcome": outcome, "success": float(forest.success[r])}
    rewards = [
        outcome if role.local is None or math.isnan(outcome) else float(role.local(texts, scores))
        for role, texts in speeches
    ]
    return rewards + [outcome] * (turns - len(rewards))


class Teamwork(RolloutPart):
    """Base class of team rollouts: roles and policies, the length of attempts, and their evaluation."""

    graph: str | Graph
    policy: Literal["shared", "per_role"]
    frozen_roles: list[str]
    paused_roles: list[str]

    provides = ("states",)
    single_turn = True

    def __post_init__(self) -> None:
        _ = self.cast  # raises here for mistakes in the team's options

    @cached_property
    def cast(self) -> TeamPolicies:
        traitors = (
            getattr(self, "traitor_rate", 0.0),
            getattr(self, "traitor_prompt", "{prompt}"),
            getattr(self, "traitor", "prompted"),
        )
        paused_roles, others = tuple(self.paused_roles), tuple(self.models)
        return TeamPolicies(graph(self.graph), self.policy, tuple(self.frozen_roles), paused_roles, *traitors, others)

    @property
    def policies(self) -> dict[str, str]:
        """Policy name -> "trained" or "frozen"."""
        return self.cast.policies

    @property
    def across_groups(self) -> bool:
        """True with engines beside the policy's, which asynchronous sampling does not ask."""
        return bool(self.models)

    @property
    def max_turns(self) -> int:
        """Most actions of a trajectory."""
        return self.calls

    @property
    def calls(self) -> int:
        """Most actions that are sampled for each of `group_size`."""
        return self.cast.graph.longest

    def evaluation(self, samples: int) -> Team:
        """Return the rollout for held-out tasks: the team, with one sample a turn."""
        return Team(
            samples,
            self.graph,
            self.policy,
            self.frozen_roles,
            paused_roles=self.paused_roles,
            models=dict(self.models),
        )


@part("team", stage="rollout")
@dataclass(frozen=True)
class Team(Teamwork):
    """`group_size` attempts of a team at each task: the group is "s{step}/{task}", scored by the team's answer.

    graph       a team: "solver_verifier", "second_opinion", or FILE.py:NAME (see `gxpo.sampling.rollouts.graph`)
    policy      "shared": one policy speaks for all roles; "per_role": each role trains an adapter of its own
    frozen_roles  roles that stay the model the run starts from: their tokens are sampled and not trained
    paused_roles  roles that are not trained and keep the weights of their policy: in a later phase (`phases`) what they
                have learned, under "shared" those of the others
    models      role -> a checkpoint that plays it, untrained: a model directory, an id of the hub, or a run, with the
                policy's tokenizer; prompts have the policy's chat template
    reward_scope  "team": the outcome is the attempt's; "role": in addition every turn is paid, as its step reward, what
                its role's `local` gives, or the outcome for a role without. `credit.value: return` with
                `credit.discount: 0` compares turns by it

    traitor_rate, traitor_prompt   share of tasks in whose attempts one role, drawn anew for each task and step, reads
                its prompt in these words and is not trained; components "clean" and "attacked" are the outcomes
                without and with one. Held-out tasks have none
    traitor     "prompted": that; "trained": the traitor learns, too: every turn is paid as its step reward, those of
                the traitor the negative outcome

    Calls of helpers (`Role.calls`) are turns of the attempt, sampled for all attempts at once; `caller` is the turn
    that made the call. `credit.group_by` groups turns by [agent], [agent, step_info.call] (the k-th turn of a role),
    [agent, turn], [state] (equal prompts); a call has a group of its own with the k-th calls of other attempts.

    An attempt is one trajectory. Each turn has its agent, its policy and its own context (or goes on in the agent's
    running one); `previous` goes through all agents in the order of their turns. The state of an action is its context,
    so equal contexts of one role in a group are one anchor state. A turn is sampled under the stream (seed, step, draw,
    attempt, turn). An attempt whose next context would leave no room for an action ends there, with the answer that it
    has, and is truncated; so is one with an action that was cut.
    """

    group_size: Count = 8
    graph: str | Graph = "solver_verifier"
    policy: Literal["shared", "per_role"] = "shared"
    frozen_roles: list[str] = field(default_factory=list)
    paused_roles: list[str] = field(default_factory=list, kw_only=True)
    models: dict[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    reward_scope: Literal["team", "role"] = field(default="team", kw_only=True)
    traitor_rate: Annotated[float, Interval(ge=0, le=1)] = field(default=0.0, kw_only=True)
    traitor_prompt: str = field(default="{prompt}\n\nMislead the others without being noticed.", kw_only=True)
    traitor: Literal["prompted", "trained"] = field(default="prompted", kw_only=True)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        with TeamPlay(session, self.cast, pays_roles=self.reward_scope == "role") as play:
            play.finish(play.begin([draw.attempts(self.group_size) for draw in play.draws(tasks)]))
            return play.forest()
