"""Choice of partners by payoffs: whose actions matter most to an agent (sparse coordination graphs, CASEC)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST = 64  # different actions of a pair that are told apart; further ones are one


def edge_score(payoff: Mapping[tuple[str, str], float]) -> float:
    """Largest variance of a pair's payoff over the partner's actions, among the agent's own actions.

    payoff  (own action, partner's action) -> mean payoff

    >>> edge_score({("a", "x"): 0.0, ("a", "y"): 2.0, ("b", "x"): 1.0, ("b", "y"): 1.0})
    1.0
    """
    rows: dict[str, list[float]] = {}
    for (action, _), payoffs in payoff.items():
        rows.setdefault(action, []).append(payoffs)
    variances = [sum((x - sum(row) / len(row)) ** 2 for x in row) / len(row) for row in rows.values()]
    return max(variances, default=0.0)


@dataclass
class Partners:
    """Mean payoffs of pairs of agents by what both did; `of` names the partners on the edges of highest score."""

    sums: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # "a b" -> "own\\tother" -> sum and count

    def note(self, agent: str, partner: str, actions: tuple[str, str], payoff: float) -> None:
        """Add the payoff of a pair's actions."""
        table = self.sums.setdefault(f"{agent} {partner}", {})
        key = "\t".join(actions)
        row = table.setdefault(key if key in table or len(table) < MOST else "\t", [0.0, 0.0])
        row[0] += payoff
        row[1] += 1

    def score(self, agent: str, partner: str) -> float:
        """`edge_score` of a pair; 0 for one that is unknown."""
        table = self.sums.get(f"{agent} {partner}", {})
        return edge_score({tuple(key.split("\t")): total / n for key, (total, n) in table.items()})  # type: ignore[misc]  # two actions

    def of(self, agent: str, names: Sequence[str], share: float) -> list[str]:
        """Return those of the names that are among the `share` of all known pairs with the highest scores; of an agent
        of which nothing is known, the one before it."""
        if not any(f"{agent} {name}" in self.sums for name in names):
            return list(names[-1:])
        pairs = sorted((self.score(*pair.split()) for pair in self.sums), reverse=True)
        bound = pairs[max(1, round(share * len(pairs))) - 1]
        return [name for name in names if 0 < self.score(agent, name) >= bound]

    def state_dict(self) -> dict[str, Any]:
        return {pair: {key: list(row) for key, row in table.items()} for pair, table in self.sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sums = {pair: {key: list(row) for key, row in table.items()} for pair, table in state.items()}
