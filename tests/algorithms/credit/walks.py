"""What a forest's trajectories did, as plain lists, for implementations over dictionaries."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from tests import strategies

from gxpo.forest.forest import Forest


@dataclass
class Move:
    """A step in a known state: where it stands in S, its state, its action, and the state that came next."""

    row: int
    state: str
    action: tuple[int, ...]
    after: str | None = None


@dataclass
class Walk:
    group: str
    compared: bool
    outcome: float
    moves: list[Move]


def walks_of(forest: Forest) -> list[Walk]:
    out = [
        Walk(g, bool(c), float(o), [])
        for g, c, o in zip(forest.group, forest.compared.tolist(), forest.outcome.tolist(), strict=True)
    ]
    for row, (r, state) in enumerate(zip(forest.step_trajectory.tolist(), forest.step_state.tolist(), strict=True)):
        if state >= 0:
            move = Move(row, forest.state_names[state], tuple(forest.action(row)))
            if out[r].moves:
                out[r].moves[-1].after = move.state
            out[r].moves.append(move)
    for walk, final in zip(out, forest.final_state, strict=True):
        if walk.moves:
            walk.moves[-1].after = final
    return out


def wandering(seed: int, **options: bool) -> Forest:
    """A random forest with forks, repeated states and trajectories that are not compared; few different actions."""
    options = {"unscored": False, "unknown_logprob": False, "partial_trainable": False, **options}
    records = strategies.random_records(seed, groups=3, rollouts=6, max_turns=6, vocab=2, max_action=2, **options)
    rng = random.Random(seed)
    for record in records:
        record["reward"] = rng.choice((0.0, 1.0, 0.25))
        record["success"] = rng.choice((True, False, None))
        for turn in record["turns"]:
            turn["reward"] = turn.get("reward") and rng.choice((0.0, 0.5))
            if "fork" not in record:
                turn.setdefault("state", rng.choice("xyz"))
    return Forest.from_records(records)


def z(value: float, members: list[float], own: bool, scaled: bool, ddof: int, eps: float) -> float:
    """(value - mean) / (std + eps) over members, of which it is one where `own`; 0 where nothing is to compare."""
    if len(members) < (2 if own else 1) or (scaled and len(members) <= ddof):
        return 0.0
    mean = math.fsum(members) / len(members)
    if max(members) - min(members) <= 1e-12 * max(map(abs, members)):
        return 0.0 if own or scaled else value - mean
    if not scaled:
        return value - mean
    return (value - mean) / (math.sqrt(math.fsum((m - mean) ** 2 for m in members) / (len(members) - ddof)) + eps)
