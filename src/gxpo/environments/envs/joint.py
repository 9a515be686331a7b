"""Worlds of several agents, simultaneous or turn-based, as environments whose action is that of all who act at once."""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gxpo.environments.envs.checked import Nonsense, check_step, check_texts
from gxpo.parts.protocols import TimeStep

EVERYBODY = "*"  # in `players`: all that have no other entry
DELEGATED = ("content", "answer", "level", "close", "provides", "blocking")
CONFLICTS = ("", "priority", "first", "random", "closest")


def is_joint(world: object) -> bool:
    """Return True for a world of several agents: one that says who acts."""
    return callable(getattr(world, "acting", None))


def losers(claims: Mapping[str, Hashable], rank: Mapping[str, float]) -> list[str]:
    """Return the agents whose action is overridden: of those that claim the same, all but the one of highest rank.

    claims  by agent, in order; None: it claims nothing. Of equal ranks the first agent keeps its action

    >>> losers({"a": 3, "b": 3, "c": 1}, {"a": 0.2, "b": 0.9, "c": 0.5})
    ['a']
    """
    keeper: dict[Hashable, str] = {}
    for agent, claim in claims.items():
        if claim is not None and (claim not in keeper or rank[agent] > rank[keeper[claim]]):
            keeper[claim] = agent
    return [agent for agent, claim in claims.items() if claim is not None and keeper[claim] != agent]


class Joint:
    """One environment of a world of several agents.

    world  has `reset(seed)` and `step(actions)`, which give a `TimeStep` for each agent that has news, by its name, and
           `acting()`, the agents whose actions the next step takes: one in a game of turns, all in a simultaneous
           world, none once it is over. Agents may come and go. Optional are `legal(agent)` and `expert(agent)`, and for
           conflicts `claims(actions)` (what each agent wants for itself, None: nothing), `fallback` (the action of
           those that don't get it) and `distance(agent)`

    An action is JSON: "actions" by agent; "players", of agents that are played here, "random" or "expert" by agent or
    "*"; "confidence" by agent and "conflict", which decide who keeps a claim: "priority" (the highest confidence),
    "first" (the order of `acting`), "random", "closest" (the least distance). Where one agent acts, a bare text is its
    action. The answer's `info` has "agents", the fields of each agent's `TimeStep`, "acting", "actions" as they were
    carried out, and "overridden", whose were not.
    """

    def __init__(self, world: Any) -> None:
        self.world = world
        self.instructions = getattr(world, "instructions", "")
        self.max_turns = getattr(world, "max_turns", 50)
        self._over: dict[str, bool] = {}
        self._states: dict[str, str | None] = {}
        self._acting: list[str] = []
        self._seed = self._turn = 0
        # without these of the world there are no such players: an attribute that is no method says so
        for name in ("legal", "expert"):
            if not callable(getattr(world, name, None)):
                setattr(self, name, None)

    def __getattr__(self, name: str) -> Any:
        if name in DELEGATED:
            return getattr(self.world, name)
        raise AttributeError(name)

    def reset(self, seed: int) -> TimeStep:
        self._seed, self._turn, self._over, self._states = seed, 0, {}, {}
        return self._answer(self.world.reset(seed), first=True)

    def step(self, action: str) -> TimeStep:
        self._turn += 1
        order = self._order(action)
        actions, conflict = self._actions(order), order.get("conflict", "")
        overridden = self._overridden(actions, order) if conflict else []
        actions |= dict.fromkeys(overridden, getattr(self.world, "fallback", ""))
        answer = self._answer(self.world.step(actions), overridden)
        return replace(answer, info={**answer.info, "actions": actions})

    def legal(self) -> list[str]:
        """Some joint actions at random."""
        return [json.dumps({"players": {EVERYBODY: "random"}, "draw": k}) for k in range(8)]

    def expert(self) -> str | None:
        """The joint action of experts."""
        return json.dumps({"players": {EVERYBODY: "expert"}})

    # ------------------------------------------------------------ actions
    def _order(self, action: str) -> dict[str, Any]:
        """Read a joint action; a bare text is that of the one agent that acts."""
        try:
            order = json.loads(action)
        except ValueError:
            order = None
        if isinstance(order, dict) and {"actions", "players"} & set(order):
            return order
        if len(self._acting) != 1:
            raise Nonsense(f"{', '.join(self._acting) or 'nobody'} act at once, and {action[:40]!r} is no joint action")
        return {"actions": {self._acting[0]: action}}

    def _actions(self, order: Mapping[str, Any]) -> dict[str, str]:
        """Return the action of each agent that acts: its own, or that of the player that stands for it."""
        texts, players = order.get("actions", {}), order.get("players", {})
        if strangers := [name for name in texts if name not in self._acting]:
            raise Nonsense(f"{strangers[0]!r} acts, and it is the turn of {', '.join(self._acting)}")
        return {
            agent: texts[agent]
            if agent in texts
            else self._play(agent, players.get(agent, players.get(EVERYBODY)), order.get("draw", 0))
            for agent in self._acting
        }

    def _play(self, agent: str, player: str | None, draw: int) -> str:
        """Return an agent's action by a random or an expert player; an expert without advice plays at random."""
        if player not in ("random", "expert"):
            raise Nonsense(f"no action of {agent!r}, whose turn it is")
        action = self.world.expert(agent) if player == "expert" else None
        if action is None:
            legal = check_texts("what is legal", self.world.legal(agent))
            action = self._chance(agent, draw).choice(legal) if legal else ""
        return action

    def _chance(self, *names: object) -> random.Random:
        return random.Random("/".join(map(str, (self._seed, self._turn, *names))))

    def _overridden(self, actions: Mapping[str, str], order: Mapping[str, Any]) -> list[str]:
        """Return the agents whose claims are rejected."""
        claims, rule = self.world.claims(actions), order["conflict"]
        places = {agent: -i for i, agent in enumerate(actions)}
        ranks: dict[str, Any] = {
            "priority": lambda agent: order.get("confidence", {}).get(agent, 0.0),
            "first": places.__getitem__,
            "random": lambda agent: self._chance(agent, "conflict").random(),
            "closest": lambda agent: -self.world.distance(agent),
        }
        return losers(claims, {agent: ranks[rule](agent) for agent in claims})

    # ------------------------------------------------------------ answers
    def _answer(self, news: object, overridden: Sequence[str] = (), *, first: bool = False) -> TimeStep:
        """Join the world's observations by agent; raise `Nonsense` if they contradict one another."""
        if not isinstance(news, Mapping) or not all(isinstance(agent, str) for agent in news):
            raise Nonsense("a world of several agents gives a TimeStep for each agent, by its name")
        fields_by_agent = {}
        for agent, step in news.items():
            if self._over.get(agent):
                raise Nonsense(f"news of {agent!r}, whose episode is over")
            fields_by_agent[agent] = fields = check_step(step, first=first)
            if not isinstance(fields["observation"], str):
                raise Nonsense(f"{agent!r} observes what is no text: agents of a world of several read texts")
            self._over[agent], self._states[agent] = fields["done"], fields["state"]
        self._acting = self._who_acts()
        rewards = [f["reward"] for f in fields_by_agent.values() if f["reward"] is not None]
        verdicts = [f["success"] for f in fields_by_agent.values() if f["success"] is not None]
        is_over = not self._acting
        states = list(self._states.values())
        return TimeStep(
            "\n".join(f"{agent}: {f['observation']}" for agent, f in fields_by_agent.items()),
            None if None in states else "|".join(map(str, states)),
            sum(rewards) if rewards and not first else None,
            done=is_over,
            success=any(verdicts) if is_over and verdicts else None,
            truncated=is_over and any(f["truncated"] for f in fields_by_agent.values()),
            action_error=next((f["action_error"] for f in fields_by_agent.values() if f["action_error"]), None),
            info={"agents": fields_by_agent, "acting": self._acting, "overridden": list(overridden)},
        )

    def _who_acts(self) -> list[str]:
        """Return the agents whose turn it is; raise `Nonsense` where agents and turn disagree."""
        acting = check_texts("who acts", self.world.acting())
        for i, agent in enumerate(acting):
            if agent not in self._over or agent in acting[:i]:
                raise Nonsense(f"acting() names {agent!r}, which is no agent of the world, or names it twice")
            if self._over[agent]:
                raise Nonsense(f"acting() names {agent!r}, whose episode is over")
        open_agents = [agent for agent, over in self._over.items() if not over]
        if not acting and open_agents:
            raise Nonsense(f"acting() names nobody, and the episode of {open_agents[0]!r} is not over")
        return acting


def seat_scores(world: Any, seeds: Sequence[int], players: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Reference scores of players of a world of several agents: agent -> (mean sum of rewards, share of successes).

    players  "random" or "expert" by agent, or "*"

    >>> from gxpo_worlds.tictactoe import TicTacToe
    >>> seat_scores(TicTacToe(), range(20), {"*": "expert"})["X"][0] >= 0
    True
    """
    joint, totals, wins = Joint(world), dict[str, list[float]](), dict[str, list[bool]]()
    for seed in seeds:
        step, rewards = joint.reset(seed), dict[str, float]()
        while not step.done:
            step = joint.step(json.dumps({"players": dict(players)}))
            for agent, news in step.info["agents"].items():
                rewards[agent] = rewards.get(agent, 0.0) + (news["reward"] or 0.0)
                if news["done"]:
                    wins.setdefault(agent, []).append(bool(news["success"]))
        for agent, total in rewards.items():
            totals.setdefault(agent, []).append(total)
    return {agent: (sum(x) / len(x), sum(wins[agent]) / len(wins[agent])) for agent, x in totals.items()}
