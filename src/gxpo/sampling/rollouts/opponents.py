"""Opponents of self-play: snapshots of the policy, with Elo ratings, kept in the checkpoint."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from gxpo.base.errors import CheckpointError, GxpoError

K = 16.0  # of Elo: how far one game moves a rating


def expected_score(rating: float, other: float) -> float:
    """Elo's expected score of the first of two players: 1 for a win, 0.5 for a draw.

    >>> expected_score(0.0, 0.0), round(expected_score(400.0, 0.0), 6)
    (0.5, 0.909091)
    """
    return 1 / (1 + 10 ** ((other - rating) / 400))


@dataclass
class Opponents:
    """Snapshots of one policy by the step after which they were taken: the first one, and the newest `history`."""

    history: int
    draw_by: Literal["age", "rating"] = "age"
    ratings: dict[str, float] = field(default_factory=dict)  # of each snapshot, the oldest first
    policy: float = 0.0  # the rating of the policy itself
    parameters: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict, repr=False)

    def add(self, step: int, parameters: Mapping[str, torch.Tensor]) -> None:
        """Take a snapshot, rated as the policy is; one that is not finite is left out."""
        if f"s{step}" in self.ratings or not all(bool(x.isfinite().all()) for x in parameters.values()):
            return
        self.ratings[f"s{step}"] = self.policy
        self.parameters[f"s{step}"] = {name: x.clone() for name, x in parameters.items()}
        names = list(self.ratings)
        for name in names[1 : max(1, len(names) - self.history)]:
            del self.ratings[name], self.parameters[name]

    def choose(self, chance: random.Random) -> str:
        """Draw an opponent: each alike, or by the score that it expects against the policy."""
        if not self.ratings:
            raise GxpoError("there is no opponent yet: the policy's parameters were not finite in the first step")
        weights = [1.0 if self.draw_by == "age" else expected_score(r, self.policy) for r in self.ratings.values()]
        return chance.choices(list(self.ratings), weights)[0]

    def rate(self, games: Sequence[tuple[str, float]]) -> None:
        """Move the ratings by the games of a step: (opponent, score of the policy); unknown scores move nothing."""
        moves, n_known = dict.fromkeys(self.ratings, 0.0), 0
        for name, score in games:
            if name in moves and math.isfinite(score):
                moves[name] += score - expected_score(self.policy, self.ratings[name])
                n_known += 1
        # all games of a step were played by the same policy: they count against the ratings before it
        for name, move in moves.items():
            self.ratings[name] -= K * move / max(1, n_known)
        self.policy += K * sum(moves.values()) / max(1, n_known)

    @contextmanager
    def acting(self, name: str, session: Any) -> Iterator[None]:
        """Context manager: the session samples with the parameters of an opponent."""
        if name not in self.parameters:
            raise GxpoError(f"opponent {name!r} has no parameters; there are {', '.join(self.parameters) or 'none'}")
        with session.sampling_with(self.parameters[name]):
            yield

    # ------------------------------------------------------------ memory
    def state_dict(self) -> dict[str, Any]:
        return {"ratings": dict(self.ratings), "policy": self.policy}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"ratings", "policy"}:
            raise CheckpointError(f"the checkpoint's rollout part holds {sorted(state)}, not policy and ratings")
        if dead := [name for name in state["ratings"] if name not in self.parameters]:
            raise CheckpointError(f"the checkpoint has no parameters of opponent {dead[0]!r}: it was not saved whole")
        self.ratings = {name: float(x) for name, x in state["ratings"].items()}
        self.policy = float(state["policy"])

    def tensors(self) -> dict[str, torch.Tensor]:
        return {f"{name}/{key}": x for name, values in self.parameters.items() for key, x in values.items()}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.parameters = {}
        for key, x in tensors.items():
            name, _, parameter = key.partition("/")
            self.parameters.setdefault(name, {})[parameter] = x
