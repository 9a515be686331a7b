"""Grid on which several agents have to reach their goals at once, with conflicts of paths and POGEMA's figures."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.environments.envs.actions import find_action
from gxpo.parts.protocols import TimeStep

Cell = tuple[int, int]
MOVES: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1), "stay": (0, 0)}


def path_figures(arrivals: Sequence[int | None], limit: int) -> dict[str, float]:
    """POGEMA's figures of an episode, from the step at which each agent arrived (None: never).

    csr  all arrived;   isr  share that arrived;   soc  sum of costs;   makespan  the largest; none costs `limit`

    >>> path_figures([3, 5, None], 10)
    {'csr': 0.0, 'isr': 0.6666666666666666, 'soc': 18.0, 'makespan': 10.0}
    """
    costs = [limit if step is None else step for step in arrivals]
    n_arrived = sum(step is not None for step in arrivals)
    return {
        "csr": float(n_arrived == len(arrivals)),
        "isr": n_arrived / len(arrivals),
        "soc": float(sum(costs)),
        "makespan": float(max(costs)),
    }


def resolve_conflicts(places: Mapping[str, Cell], targets: Mapping[str, Cell]) -> dict[str, Cell]:
    """Places after a step: of agents that want one cell the first keeps it, a swap holds both back, and whoever stands
    still, by choice or held back, holds those back that want its cell.

    >>> resolve_conflicts({"a": (0, 0), "b": (0, 1)}, {"a": (0, 1), "b": (0, 0)})
    {'a': (0, 0), 'b': (0, 1)}
    """
    cell_by_agent = dict(targets)
    while True:
        occupied: dict[Cell, str] = {
            cell_by_agent[a]: a for a in reversed(list(cell_by_agent)) if cell_by_agent[a] != places[a]
        }
        occupied |= {cell_by_agent[a]: a for a in cell_by_agent if cell_by_agent[a] == places[a]}
        by_place = {cell: agent for agent, cell in places.items()}
        blocked_agents = [
            a
            for a in cell_by_agent
            if cell_by_agent[a] != places[a]
            and (
                occupied[cell_by_agent[a]] != a
                or ((b := by_place.get(cell_by_agent[a])) is not None and b != a and cell_by_agent.get(b) == places[a])
            )
        ]
        if not blocked_agents:
            return cell_by_agent
        cell_by_agent |= {agent: places[agent] for agent in blocked_agents}


def _cell(text: str) -> Cell:
    row, column = map(int, text.split(","))
    return row, column


@dataclass(kw_only=True)
class Paths:
    """Agents on a grid, each with a goal of its own; an agent that has arrived is off the grid.

    agents     their number, or two numbers: the seed draws one from the first to the second
    size, walls  rows and columns; share of cells that are walls
    shared     True: the team is paid the share that arrived; False: each agent 1 for its own arrival
    view       agents see the whole grid (0), or so many cells around them

    A cell that two want goes to the first, unless the rollout has a rule of its own (`rollout.conflict_rule`: `claims`
    are the cells); a swap holds both back. Who is held back is told so. The last `info` has `path_figures`.
    The expert plans in the order of the agents, each around those before it in space and time.
    """

    agents: int | Sequence[int] = (2, 3)
    size: int = 4
    walls: float = 0.1
    shared: bool = False
    view: int = 0
    max_turns: int = 12
    _places: dict[str, Cell] = field(init=False, default_factory=dict)

    fallback = "stay"

    def __post_init__(self) -> None:
        low, high = (self.agents, self.agents) if isinstance(self.agents, int) else tuple(self.agents)
        if not 1 <= low <= high or 2 * high > (1 - self.walls) * self.size**2:
            raise ConfigError(f"paths: agents {self.agents!r} don't fit on a grid of {self.size} x {self.size}")
        self._range = low, high

    @property
    def instructions(self) -> str:
        return (
            "You and other agents move on a grid at the same time. # is a wall, A is you, G is your goal, o is another "
            "agent. Two can't enter one cell or swap places. Reply with up, down, left, right or stay."
        )

    def content(self, seed: int) -> str:
        """The grid, and start and goal of each agent."""
        chance = random.Random(f"paths/{seed}")
        n_agents = chance.randint(*self._range)
        # a grid on which somebody's goal can't be reached is drawn again
        while True:
            cells = [(r, c) for r in range(self.size) for c in range(self.size)]
            chance.shuffle(cells)
            n_walls = round(self.walls * len(cells))
            self._walls = set(cells[:n_walls])
            ends = cells[n_walls : n_walls + 2 * n_agents]
            pairs = list(zip(ends[::2], ends[1::2], strict=True))
            if all(self._distances(goal).get(start) is not None for start, goal in pairs):
                walls = " ".join(f"{r},{c}" for r, c in sorted(self._walls))
                return f"{walls};" + ";".join(f"{a},{b}>{c},{d}" for (a, b), (c, d) in pairs)

    def reset(self, seed: int) -> dict[str, TimeStep]:
        pairs = [part.split(">") for part in self.content(seed).split(";")[1:]]
        cells = [(_cell(start), _cell(goal)) for start, goal in pairs]
        self._places = {f"agent_{i}": start for i, (start, _) in enumerate(cells)}
        self._goals = {f"agent_{i}": goal for i, (_, goal) in enumerate(cells)}
        self._arrivals: dict[str, int | None] = dict.fromkeys(self._places)
        self._turn, self._is_over = 0, False
        self._plans = self._plan_ways()
        return {agent: TimeStep(self._observation(agent), self._state()) for agent in self._places}

    def acting(self) -> list[str]:
        return [] if self._is_over else [a for a, step in self._arrivals.items() if step is None]

    def claims(self, actions: Mapping[str, str]) -> dict[str, Cell | None]:
        """Cell that each agent wants to enter; None for one that stays."""
        targets = {agent: self._target(agent, text) for agent, text in actions.items()}
        return {agent: None if cell == self._places[agent] else cell for agent, cell in targets.items()}

    def distance(self, agent: str) -> int:
        """Steps from the agent to its goal on an empty grid."""
        return self._distances(self._goals[agent])[self._places[agent]]

    def step(self, actions: Mapping[str, str]) -> dict[str, TimeStep]:
        self._turn += 1
        targets = {agent: self._target(agent, text) for agent, text in actions.items()}
        present = {agent: self._places[agent] for agent in actions}
        self._places |= resolve_conflicts(present, targets)
        arriving = [agent for agent in actions if self._places[agent] == self._goals[agent]]
        self._arrivals |= dict.fromkeys(arriving, self._turn)
        is_complete = all(step is not None for step in self._arrivals.values())
        self._is_over = is_complete or self._turn >= self.max_turns
        # an agent is told the end when it arrives or, paid together, when all is over
        receivers = [a for a in self._places if a in actions or (self.shared and self._is_over)]
        figures = path_figures(list(self._arrivals.values()), self.max_turns)
        return {a: self._result(a, actions.get(a), targets.get(a), figures, is_complete) for a in receivers}

    def _result(
        self, agent: str, text: str | None, target: Cell | None, figures: Mapping[str, float], is_complete: bool
    ) -> TimeStep:
        has_arrived, info = self._arrivals[agent] is not None, {}
        is_done = self._is_over or (has_arrived and not self.shared)
        reward = figures["isr"] * self._is_over if self.shared else float(has_arrived)
        move = None if text is None else find_action(text, list(MOVES))
        if is_done:
            info = {"figures": dict(figures)}
        notice = "" if target in (None, self._places[agent]) else "Your way was taken: you stayed.\n"
        return TimeStep(
            notice + self._observation(agent), self._state(), reward=reward, done=is_done,
            success=(is_complete if self.shared else has_arrived) if is_done else None,
            truncated=is_done and not has_arrived, info=info,
            action_error="malformed" if text is not None and move is None else None,
        )  # fmt: skip

    def legal(self, agent: str) -> list[str]:
        return list(MOVES)

    def expert(self, agent: str) -> str:
        """Next step of the agent's plan; of one that was thrown off it, a shortest way."""
        plan = self._plans[agent]
        place = self._places[agent]
        if self._turn + 1 < len(plan) and plan[self._turn] == place:
            next_place = plan[self._turn + 1]
        else:
            distance = self._distances(self._goals[agent])
            next_place = min(
                (self._neighbour(place, step) for step in MOVES.values()), key=lambda cell: distance.get(cell, 99)
            )
        return next(name for name, step in MOVES.items() if (place[0] + step[0], place[1] + step[1]) == next_place)

    # ------------------------------------------------------------ the grid
    def _target(self, agent: str, text: str) -> Cell:
        """Cell that an action leads to; the agent's own for walls, edges and what can't be read."""
        return self._neighbour(self._places[agent], MOVES[find_action(text, list(MOVES)) or "stay"])

    def _neighbour(self, cell: Cell, step: Cell) -> Cell:
        target = (cell[0] + step[0], cell[1] + step[1])
        is_free = target not in self._walls and all(0 <= x < self.size for x in target)
        return target if is_free else cell

    def _distances(self, goal: Cell) -> dict[Cell, int]:
        """Steps to the goal from every cell from which it can be reached."""
        distance, queue = {goal: 0}, deque([goal])
        while queue:
            cell = queue.popleft()
            for step in MOVES.values():
                if (target := self._neighbour(cell, step)) not in distance:
                    distance[target] = distance[cell] + 1
                    queue.append(target)
        return distance

    def _plan_ways(self) -> dict[str, list[Cell]]:
        """Plan the agents' ways one after another, each around those planned before (cooperative A*)."""
        plans: dict[str, list[Cell]] = {}
        for agent, start in self._places.items():
            occupied = {(t, cell) for plan in plans.values() for t, cell in enumerate(plan)}
            swaps = {(t, b, a) for plan in plans.values() for t, (a, b) in enumerate(pairwise(plan))}
            # those that have not been planned yet may stand still at their starts for the first step
            queue, way = deque([(start, [start])]), [start]
            visited = {(0, start)}
            while queue:
                cell, path = queue.popleft()
                if cell == self._goals[agent]:
                    way = path
                    break
                t = len(path)
                for step in MOVES.values():
                    target = self._neighbour(cell, step)
                    is_blocked = (t, target) in occupied or (t - 1, cell, target) in swaps or (t, target) in visited
                    if t <= self.max_turns and not is_blocked:
                        visited.add((t, target))
                        queue.append((target, [*path, target]))
            plans[agent] = way
        return plans

    def _observation(self, agent: str) -> str:
        place, goal = self._places[agent], self._goals[agent]
        other_places = {cell for a, cell in self._places.items() if a != agent and self._arrivals[a] is None}
        marks: dict[Any, str] = {
            **dict.fromkeys(self._walls, "#"),
            **dict.fromkeys(other_places, "o"),
            goal: "G",
            place: "A",
        }
        reach = self.view or self.size
        rows = range(max(0, place[0] - reach), min(self.size, place[0] + reach + 1))
        columns = range(max(0, place[1] - reach), min(self.size, place[1] + reach + 1))
        grid = "\n".join("".join(marks.get((r, c), ".") for c in columns) for r in rows)
        way = f"\nYour goal is {goal[0] - place[0]} rows down, {goal[1] - place[1]} columns right." if self.view else ""
        return grid + way

    def _state(self) -> str:
        return " ".join(f"{r},{c}" for r, c in self._places.values())
