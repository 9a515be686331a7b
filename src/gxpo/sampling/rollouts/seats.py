"""Episodes of worlds of several agents: a trajectory for each seat that is trained, opponents from earlier steps."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, EnvFailure, Reply, Request, Session, StreamKey, Task, TimeStep
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Draw, Episode
from gxpo.sampling.rollouts.build import AGENT, Count, Limit, RolloutPart, name_draws, random_for
from gxpo.sampling.rollouts.context import Context
from gxpo.sampling.rollouts.opponents import Opponents
from gxpo.sampling.rollouts.partners import Partners

POLICY, PAST = "policy", "past"
Against = Literal["self", "start", "random", "expert"]


def role_of(agent: str) -> str:
    """Return an agent's role: its name without a number at the end.

    >>> role_of("walker_12"), role_of("X")
    ('walker', 'X')
    """
    stem = agent.rstrip("0123456789")
    return (agent if stem == agent else stem.removesuffix("_")) or agent


@dataclass(eq=False)
class Seat:
    """One agent of an episode: its player, its attempt, and the messages since its last action."""

    agent: str
    player: str
    attempt: Episode
    messages: list[Mapping[str, Any]] = field(default_factory=list)
    has_acted: bool = False

    @property
    def role(self) -> str:
        return role_of(self.agent)

    def news(self) -> TimeStep:
        """Join its messages: the rewards are summed, the end is that of the newest."""
        rewards = [news["reward"] for news in self.messages if news["reward"] is not None]
        info = {key: x for news in self.messages for key, x in news["info"].items()}
        newest = (
            self.messages[-1] if self.messages else {"state": None, "done": False, "success": None, "truncated": False}
        )
        return TimeStep(
            "\n".join(news["observation"] for news in self.messages if news["observation"]),
            newest["state"], sum(rewards) if rewards else None, newest["done"], newest["success"],
            next((news["action_error"] for news in self.messages if news["action_error"]), None),
            newest["truncated"], info,
        )  # fmt: skip

    def turn(self, note: str = "") -> None:
        """Begin its next turn with all its messages, and a note of what others have just done."""
        news, self.messages = self.news(), []
        news = dataclasses.replace(news, observation="\n".join(x for x in (str(news.observation), note) if x))
        if self.has_acted:
            self.attempt.step(dataclasses.replace(news, done=False), 1 << 30)
            return
        self.attempt.time_step = news
        self.attempt.opening = self.attempt.context.open(news.observation)

    def act(self, completion: Completion, agent: str, *, is_trained: bool) -> str:
        """Append its action to its attempt; return the text for the world."""
        self.has_acted, reply = True, self.attempt.act(completion)
        self.attempt.turns[-1] |= {"agent": agent} if is_trained else {"agent": agent, "trainable": False}
        return reply.content

    def end(self, reason: str = "", failure: EnvFailure | None = None) -> None:
        """End its attempt; how: "" as the world says, or the limit that cut it."""
        if not self.attempt.turns:  # a record needs a turn, so that the attempt is counted
            self.attempt.opening = self.attempt.context.open("")
            self.attempt.act(Completion([], [], "none"))
        news = self.news()
        self.attempt.step(failure or dataclasses.replace(news, done=True), 1 << 30)
        if reason:
            self.attempt.end = reason

    @property
    def total(self) -> float:
        """The sum of its rewards; nan where its world broke."""
        total = self.attempt.env_reward
        return math.nan if total is None else total


@dataclass(eq=False)
class Table:
    """One episode under way: its seats, who acts, whose parameters the opponents have, and what they are called."""

    name: str
    draw: Draw
    number: int
    opponent: str = ""
    opponent_label: str = ""
    seats: dict[str, Seat] = field(default_factory=dict)
    acting: list[str] = field(default_factory=list)
    turns: int = 0


@part("seats", stage="rollout")
@dataclass(frozen=True)
class Seats(RolloutPart):
    """`group_size` episodes of each task in a world of several agents; a trajectory for each seat that is trained.

    opponents  who plays the other seats: "self", the policy plays all of them; "past", the policy of an earlier step;
               "random" or "expert", players of the world
    seat       role that the policy has with opponents ("": drawn for each group)
    every, history, opponent_draw  a snapshot of the policy every `every` steps; the newest `history` and the very first
               are the opponents, drawn for each group: "age", each alike; "rating", in proportion to the score that
               their Elo rating expects against the policy
    eval_opponent  the opponent in evaluations; "start" is the first snapshot. Of several the k-th attempt at a task
               meets the k-th, and evaluations have the wins against each (eval_win_NAME)
    policy     "shared": one policy in all seats; "per_role": each of `roles` trains an adapter of its own
    frozen_roles  roles that the policy plays without being trained
    models     role -> a checkpoint that plays it, untrained (see `Team`)
    compare    the group: a task's trajectories of one "role" ("walker" of walker_0 and walker_1), of one "agent", or
               all of one "episode"
    reward_scope  "own": each seat its own rewards; "team": the mean of all seats' sums, with the last action
    conflict_rule  where several claim the same, as one cell: "" the world's own rule; "priority" the most probable
               action keeps it, "first" the first agent, "random", "closest". An overridden action is not trained
    observed_roles  role or agent -> those whose actions it reads before its own, within one step of the world;
               "earlier": each agent those before it; "partner": the one of these whose actions have mattered most to
               what it was paid (`Partners`, of `share` of all pairs)
    last_observed_step  last step of the run in which they are read (0: always)

    A trajectory's `info` has its "seat", "episode", "opponent" and the "result" that the world states (win, draw,
    invalid...), which metrics count apart (result_NAME). Held-out tasks give the trajectory of one seat each.
    Source: self-play with snapshots as in AlphaStar and OpenAI Five; conflicts as in PARCO, arXiv 2409.03811.
    """

    group_size: Count = 8
    opponents: Literal["self", "past", "random", "expert"] = "self"
    seat: str = ""
    every: Count = 10
    history: Count = 4
    opponent_draw: Literal["age", "rating"] = "age"
    eval_opponent: Against | list[Against] = "random"
    policy: Literal["shared", "per_role"] = "shared"
    roles: list[str] = field(default_factory=list)
    frozen_roles: list[str] = field(default_factory=list)
    models: dict[str, str] = field(default_factory=dict, hash=False)  # type: ignore[misc]  # of the base an attribute
    compare: Literal["role", "agent", "episode"] = "role"
    reward_scope: Literal["own", "team"] = "own"
    conflict_rule: Literal["", "priority", "first", "random", "closest"] = ""
    observed_roles: dict[str, list[str]] | Literal["earlier", "partner"] = field(default_factory=dict, hash=False)
    last_observed_step: Limit = 0
    share: Annotated[float, Interval(gt=0, le=1)] = 0.5
    pool: Opponents = field(init=False, repr=False, compare=False)
    partners: Partners = field(init=False, repr=False, compare=False, default_factory=Partners)

    provides = ("states",)
    requires = ("agents",)
    is_held_out = False

    def __post_init__(self) -> None:
        if not self.eval_opponent:
            raise ConfigError("rollout.eval_opponent names nobody: name one of self, start, random, expert, or several")
        if both := {*self.frozen_roles} & {*self.models}:
            raise ConfigError(f"rollout.models: {min(both)!r} is in rollout.frozen_roles, too: name it in one")
        if self.policy == "per_role" and not self.roles:
            raise ConfigError("rollout.policy=per_role has an adapter for each role: name them in rollout.roles")
        if self.policy == "per_role" and self.opponents == PAST:
            raise ConfigError("rollout.opponents=past plays one policy's snapshots: set rollout.policy=shared")
        if isinstance(self.observed_roles, dict):
            names = [*self.observed_roles, *(x for names_seen in self.observed_roles.values() for x in names_seen)]
            for name in names:
                self._levels(names, name)
        object.__setattr__(self, "pool", Opponents(self.history, self.opponent_draw))

    @property
    def policies(self) -> dict[str, str]:
        """Policy name -> "trained"."""
        roles = [role for role in self.roles if role not in self.models]
        return dict.fromkeys(roles if self.policy == "per_role" else ("main",), "trained")

    @property
    def across_groups(self) -> bool:
        """True if opponents are earlier policies, which asynchronous training refuses."""
        return (
            self.opponents == PAST
            or "start" in self.eval_opponent
            or self.observed_roles == "partner"
            or bool(self.models)
        )

    def evaluation(self, samples: int) -> Seats:
        """Return the rollout for held-out tasks: one seat of each episode, with the opponents `eval_opponent`."""
        options: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        twin = _HeldOut(**{**options, "group_size": samples})
        object.__setattr__(twin, "pool", self.pool)
        object.__setattr__(twin, "partners", self.partners)
        return twin

    # ------------------------------------------------------------ playing
    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        takes_snapshots = self.opponents == PAST or "start" in self.eval_opponent
        if not self.is_held_out and takes_snapshots and (session.step - 1) % self.every == 0:
            self.pool.add(session.step - 1, session.learner.snapshot())  # type: ignore[attr-defined]  # the run's session
        draws = [Draw(t, n, f"s{session.step}/{n}") for t, n in zip(tasks, name_draws(tasks), strict=True)]
        tables = [
            Table(f"{draw.name}/{i}", draw, i, *self._opponent(draw, session, i))
            for draw in draws
            for i in range(self.group_size)
        ]
        envs: Any = session.envs
        answers = envs.reset({table.name: table.draw.task.info["seed"] for table in tables})
        for table in tables:
            self._take(table, answers[table.name], session)
        self._check_seat(tables)
        try:
            while open_tables := [table for table in tables if table.acting]:
                orders = self._act(open_tables, session)
                answers = envs.step({name: Reply(json.dumps(order)) for name, order in orders.items()})
                for table in open_tables:
                    if table.name in answers:
                        self._take(table, answers[table.name], session)
        finally:
            # the engine keeps contexts between turns, and a world that was cut waits for actions that don't come
            session.release([seat.attempt.name for table in tables for seat in table.seats.values()])
            envs.finish([table.name for table in tables])
        if self.opponents == PAST and not self.is_held_out:
            self.pool.rate([(t.opponent, self._score(t)) for t in tables])
        if self.observed_roles == "partner" and not self.is_held_out:
            for table in tables:
                self._note_payoffs(table, session)
        return Forest.from_records([record for table in tables for record in self._records(table, session)])

    def _note_payoffs(self, table: Table, session: Session) -> None:
        """Note what each pair of agents did at each step of the world, and what both were paid in the end."""
        texts = {
            agent: [session.decode(turn["action"]) for turn in seat.attempt.turns]
            for agent, seat in table.seats.items()
            if seat.has_acted and math.isfinite(seat.total)
        }
        for a, b in itertools.permutations(texts, 2):
            payoff = (table.seats[a].total + table.seats[b].total) / 2
            for pair in zip(texts[a], texts[b], strict=False):
                self.partners.note(a, b, pair, payoff)

    def _check_seat(self, tables: Sequence[Table]) -> None:
        """Raise ConfigError for a role that the world does not have."""
        roles = sorted({seat.role for table in tables for seat in table.seats.values()} - {AGENT})
        if self.seat and roles and self.seat not in roles:
            raise ConfigError(f"rollout.seat={self.seat}: the world has no such role; it has {', '.join(roles)}")

    def _opponent(self, draw: Draw, session: Session, number: int) -> tuple[str, str]:
        """Name the opponent of an episode: a snapshot, or a player of the world; "" of the policy itself; and again as
        records call it."""
        if self.opponents == "self":
            return "", ""
        if self.opponents != PAST:
            return self.opponents, self.opponents
        name = self.pool.choose(random_for(session, draw.name, "opponent"))
        return name, name

    def _player(self, table: Table, agent: str, agents: Sequence[str], session: Session) -> str:
        """Return who plays an agent of this table."""
        if role_of(agent) in self.models:
            return role_of(agent)
        roles = sorted({role_of(a) for a in agents} - {*self.frozen_roles, *self.models})
        seat_role = roles[int(random_for(session, table.draw.name, "seat").random() * len(roles))] if roles else ""
        is_own = not table.opponent or role_of(agent) == (self.seat or seat_role)
        return POLICY if is_own else table.opponent

    def _take(self, table: Table, answer: TimeStep | EnvFailure, session: Session) -> None:
        """Pass an answer of the world on to the seats, and end those that are over or were cut."""
        if isinstance(answer, EnvFailure):
            if not table.seats:  # it broke before anybody sat down: one empty attempt stands for the episode
                table.seats[AGENT] = self._seat(table, AGENT, POLICY, 0, session)
            for seat in self._unfinished(table):
                seat.end(failure=answer)
            table.acting = []
            return
        for agent, news in answer.info["agents"].items():
            if agent not in table.seats:
                player = self._player(table, agent, [*table.seats, *answer.info["agents"]], session)
                table.seats[agent] = self._seat(table, agent, player, len(table.seats), session)
            table.seats[agent].messages.append(news)
        for agent in answer.info["overridden"]:
            if table.seats[agent].attempt.turns:
                table.seats[agent].attempt.turns[-1]["trainable"] = False
                table.seats[agent].messages[-1]["info"]["overridden"] = True
        table.acting = list(answer.info["acting"])
        # seats whose episode is over end now, all others where the episode is cut
        is_cut = table.turns >= session.episode.max_turns and bool(table.acting)
        for seat in self._unfinished(table):
            if seat.messages and seat.messages[-1]["done"]:
                seat.end("truncated" if seat.messages[-1]["truncated"] else "")
            elif is_cut:
                seat.end("turns")
        table.acting = [] if is_cut else table.acting

    @staticmethod
    def _unfinished(table: Table) -> list[Seat]:
        return [seat for seat in table.seats.values() if seat.attempt.end is None]

    def _seat(self, table: Table, agent: str, player: str, index: int, session: Session) -> Seat:
        """Make the seat of an agent; its group is that of what it is compared with."""
        draw, role = table.draw, role_of(agent)
        names = {"role": role, "agent": agent, "episode": f"{table.number}"}
        group = f"{draw.group}/{names[self.compare]}"
        key = StreamKey(session.seed, session.step, draw.name, table.number, (index,))
        policy = role if self.policy == "per_role" or role in self.models else "main"
        spec = draw.attempts(1, first=table.number, group=group, home=group, path=(index,), policy=policy)
        envs: Any = session.envs
        context = Context(session.chat, session.episode, envs.instructions, (), session.system)
        attempt: Any = Episode(f"{table.name}/{agent}", draw.task, group, key, context, None, TimeStep(""), spec=spec)  # type: ignore[arg-type]  # it opens at its first turn
        attempt.info = {"seat": agent, "episode": f"{draw.group}/{table.number}"}
        if table.opponent_label:
            attempt.info["opponent"] = table.opponent_label
        return Seat(agent, player, attempt)

    def _act(self, tables: Sequence[Table], session: Session) -> dict[str, dict[str, Any]]:
        """Choose an action for everybody who acts, those that see others' after them; return the worlds' orders."""
        levels_by_table = [self._rows(table.acting, session) for table in tables]
        orders: dict[str, dict[str, Any]] = {t.name: {"actions": {}, "players": {}, "confidence": {}} for t in tables}
        for level in range(max(map(len, levels_by_table))):
            speakers: list[tuple[Table, Seat]] = []
            for table, levels in zip(tables, levels_by_table, strict=True):
                for agent in levels[level] if level < len(levels) else ():
                    seat, order = table.seats[agent], orders[table.name]
                    if seat.player in ("random", "expert"):
                        order["players"][agent] = seat.player
                        continue
                    # what the others do is read before the action
                    before = list(order["actions"])
                    visible = self._visible(agent, before) if level else []
                    seat.turn("\n".join(f"{a}: {order['actions'][a]}" for a in visible))
                    speakers.append((table, seat))
            for (table, seat), completion in zip(speakers, self._sample(speakers, session), strict=True):
                if completion is None:
                    continue
                order, is_trained = orders[table.name], seat.player == POLICY and seat.role not in self.frozen_roles
                order["actions"][seat.agent] = seat.act(completion, seat.role, is_trained=is_trained)
                order["confidence"][seat.agent] = math.exp(sum(x for x in completion.logprobs if x == x))
        for table in tables:
            table.turns += 1
            orders[table.name] |= {"conflict": self.conflict_rule, "draw": table.number}
        # an agent whose context is full ends the episode for all
        cut_tables = [t for t in tables if any(t.seats[a].attempt.end == "context" for a in t.acting)]
        for table in cut_tables:
            table.acting = []
            for seat in self._unfinished(table):
                seat.end("context")
            del orders[table.name]
        return orders

    def _sample(self, speakers: Sequence[tuple[Table, Seat]], session: Session) -> list[Completion | None]:
        """Sample the actions of these seats, each with its player's parameters; None without room for one."""
        room = session.episode.max_context - session.sampling.max_new_tokens
        completions: dict[Seat, Completion] = {}
        by_player: dict[str, list[Seat]] = {}
        for _, seat in speakers:
            if len(seat.attempt.context.ids) > room:
                if not seat.attempt.turns:
                    seat.attempt.act(Completion([], [], "none"))
                seat.attempt.end = "context"
            else:
                by_player.setdefault(seat.player, []).append(seat)
        keeps = not self.across_groups  # what the engine keeps is of one policy's parameters
        for player, seats in by_player.items():
            requests = [seat.attempt.request() for seat in seats]
            requests = requests if keeps else [dataclasses.replace(request, keep=()) for request in requests]
            for seat, (completion,) in zip(seats, self._sample_as(player, requests, session), strict=True):
                completions[seat] = completion
        return [completions.get(seat) for _, seat in speakers]

    def _sample_as(self, player: str, requests: list[Request], session: Session) -> list[list[Completion]]:
        if player == POLICY or player in self.models:
            return session.sample(requests)
        with self.pool.acting(player, session):
            return session.sample(requests)

    # ------------------------------------------------------------ who sees whom
    def _visible(self, agent: str, names: Sequence[str]) -> list[str]:
        """Return those of the names whose actions the agent reads."""
        if self.observed_roles == "earlier":
            return list(names)
        if self.observed_roles == "partner":
            return self.partners.of(agent, names, self.share)
        assert isinstance(self.observed_roles, dict)
        visible_names = {*self.observed_roles.get(agent, ()), *self.observed_roles.get(role_of(agent), ())}
        return [name for name in names if {name, role_of(name)} & visible_names and name != agent]

    def _levels(self, names: Sequence[str], name: str, above: tuple[str, ...] = ()) -> int:
        """Depth of a name in the graph of who sees whom; ConfigError for a circle."""
        if name in above:
            raise ConfigError(
                f"rollout.observed_roles goes in a circle: {' sees '.join((*above, name))}; leave one out"
            )
        parents = self._visible(name, names)
        return max((1 + self._levels(names, p, (*above, name)) for p in parents), default=0)

    def _rows(self, acting: Sequence[str], session: Session) -> list[list[str]]:
        """Group the agents that act by when they do: those that see nobody first."""
        if not self.observed_roles or 0 < self.last_observed_step < session.step:
            return [list(acting)]
        if not isinstance(self.observed_roles, dict):  # in order, one after another
            return [[agent] for agent in acting]
        levels = {agent: self._levels(acting, agent) for agent in acting}
        return [[a for a in acting if levels[a] == k] for k in range(max(levels.values()) + 1)]

    # ------------------------------------------------------------ writing
    def _score(self, table: Table) -> float:
        """1, 0.5 or 0: whether the policy's seats got more than the others; nan where the world broke."""
        totals: dict[bool, list[float]] = {True: [], False: []}
        for seat in table.seats.values():
            totals[seat.player == POLICY].append(seat.total)
        if not totals[True] or not totals[False]:
            return math.nan
        gap = math.fsum(totals[True]) / len(totals[True]) - math.fsum(totals[False]) / len(totals[False])
        return math.nan if math.isnan(gap) else 0.5 * (1 + (gap > 0) - (gap < 0))

    def _records(self, table: Table, session: Session) -> list[dict[str, Any]]:
        """Build the records of a table: of the seats that are trained; of a held-out one the policy's first."""
        seats = [s for s in table.seats.values() if s.player == POLICY and s.role not in self.frozen_roles]
        seats = seats[:1] if self.is_held_out else [s for s in seats if s.has_acted or s.agent == AGENT]
        totals = [seat.total for seat in table.seats.values() if seat.attempt.turns or seat.messages]
        team = math.fsum(totals) / len(totals) if self.reward_scope == "team" and totals else None
        records = []
        for seat in seats:
            results = {turn["info"]["result"] for turn in seat.attempt.turns if "result" in turn.get("info", {})}
            if team is not None and seat.attempt.failure is None:
                for turn in seat.attempt.turns:
                    turn["reward"] = 0.0
                seat.attempt.turns[-1]["reward"] = team
            record = seat.attempt.record(dataclasses.asdict(session.sampling))
            records.append(record | {"info": {**record["info"], **({"result": min(results)} if results else {})}})
        return records

    # ------------------------------------------------------------ memory
    def state_dict(self) -> dict[str, Any]:
        return {**self.pool.state_dict(), "payoffs": self.partners.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.pool.load_state_dict({key: x for key, x in state.items() if key != "payoffs"})
        self.partners.load_state_dict(state["payoffs"])

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.pool.tensors()

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.pool.load_tensors(tensors)


class _HeldOut(Seats):
    """Episodes of held-out tasks, from which no snapshot is taken and nobody is rated."""

    is_held_out = True

    def _opponent(self, draw: Draw, session: Session, number: int) -> tuple[str, str]:
        names = [self.eval_opponent] if isinstance(self.eval_opponent, str) else self.eval_opponent
        name = names[number % len(names)]
        if name == "start":  # before the first step the policy is its own opponent
            return next(iter(self.pool.ratings), ""), name
        return ("", "") if name == "self" else (name, name)
