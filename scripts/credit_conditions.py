"""When credit by state helps: worlds that differ in one thing at a time, with exact advantages.

    python scripts/credit_conditions.py            # a minute

In each of the first `decisive` of `turns` turns one of two actions is right; the episode succeeds if at least `needed`
were. A state is the turn, the number right so far and one of `looks` irrelevant looks, drawn anew each turn. The policy
is a table over turn and number, blind to looks, so looks change nothing but which steps are compared. Advantages and
the probability of success come from dynamic programming; credit is what gxpo's methods compute of forests of episodes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gxpo
from gxpo.bench.fidelity import on_turns, overlap, rank_correlation

CREDITS = ("grpo", "gigpo", "hgpo", "salt", "graph_gpo", "graft", "known_value", "exact")


@dataclass(frozen=True)
class World:
    turns: int = 8
    needed: int = 5
    looks: int = 1
    members: int = 8
    decisive: int | None = None  # None: all of them

    def decides(self, turn: int) -> bool:
        return self.decisive is None or turn < self.decisive

    def values(self, right: Tensor) -> tuple[Tensor, Tensor]:
        """V [.., turns + 1, counts] and A [.., turns, counts, 2] under `right` [.., turns, counts], the probability of
        the right action."""
        counts = self.turns + 2
        last = (torch.arange(counts) >= self.needed).to(right).expand(*right.shape[:-2], counts)
        values, advantages = [last], []
        for t in reversed(range(self.turns)):
            next_value = values[0]
            next_value_right = torch.cat(
                [next_value[..., 1:], next_value[..., -1:]], -1
            )  # the number right goes up by one
            value_right = next_value_right if self.decides(t) else next_value
            value = right[..., t, :] * value_right + (1 - right[..., t, :]) * next_value
            advantages.insert(0, torch.stack([next_value - value, value_right - value], -1))
            values.insert(0, value)
        return torch.stack(values, -2), torch.stack(advantages, -3)


@dataclass(frozen=True)
class Episodes:
    """action, look, count (of right ones before it) [runs, members, turns]; success [runs, members]."""

    action: Tensor
    count: Tensor
    look: Tensor
    success: Tensor

    def forest(self) -> gxpo.Forest:
        """Build a forest with one group a run."""
        records = []
        moves = torch.stack([self.action, self.count, self.look], -1).tolist()
        for b, g in torch.cartesian_prod(*map(torch.arange, self.success.shape)).tolist():
            turns = [
                {"action": [action], "state": f"{t}/{count}/{look}", "reward": 0.0}
                for t, (action, count, look) in enumerate(moves[b][g])
            ]
            is_success = bool(self.success[b, g])
            turns[-1]["reward"] = float(is_success)
            record = {"schema": "gxpo.rollouts/1", "group": str(b), "id": f"{b}/{g}", "prompt": [0], "turns": turns}
            records.append({**record, "reward": float(is_success), "success": is_success})
        return gxpo.Forest.from_records(records)


def sample_episodes(world: World, right: Tensor, generator: torch.Generator) -> Episodes:
    """Sample `members` episodes of each run; right [runs, turns, counts]."""
    runs = torch.arange(len(right)).unsqueeze(1)
    count = torch.zeros(len(right), world.members, dtype=torch.int64)
    actions, counts = [], []
    for t in range(world.turns):
        uniform = torch.rand(count.shape, generator=generator, dtype=torch.float64)
        actions.append((uniform < right[runs, t, count]).long())
        counts.append(count)
        count = count + actions[-1] * world.decides(t)
    look = torch.randint(world.looks, (*count.shape, world.turns), generator=generator)
    return Episodes(torch.stack(actions, -1), torch.stack(counts, -1), look, count >= world.needed)


@dataclass(frozen=True)
class Steps:
    """The steps of all runs: `place` indexes [runs, turns, counts], `truth` [S] is the true advantage of each step and
    `residual` the outcome less the true value of its state; `sign` is 1 where the action was right, else -1."""

    place: tuple[Tensor, Tensor, Tensor]
    episodes: Episodes
    value: Tensor
    truth: Tensor
    residual: Tensor
    sign: Tensor

    @classmethod
    def draw(cls, world: World, right: Tensor, generator: torch.Generator) -> Steps:
        value, advantage = world.values(right)
        episodes = sample_episodes(world, right, generator)
        runs = torch.arange(len(right))[:, None, None].expand_as(episodes.action)
        place = (runs, torch.arange(world.turns).expand_as(episodes.action), episodes.count)
        residuals = episodes.success.double().unsqueeze(-1) - value[place]
        sign = (2 * episodes.action - 1).double()
        return cls(place, episodes, value, advantage[(*place, episodes.action)].flatten(), residuals.flatten(), sign)

    def credit(self, method: str, forest: gxpo.Forest) -> Tensor:
        """Return the credit [S] of a method; "exact" is the truth itself, "known_value" what a perfect value of the
        state leaves of the outcome."""
        if method in ("exact", "known_value"):
            return self.truth if method == "exact" else self.residual
        return on_turns(forest, gxpo.method(method).credit(forest, {}, 0))

    def slope(self, credit: Tensor, right: Tensor) -> Tensor:
        """Return d/d logit [runs, turns, counts] of the mean over a run's steps of credit * log policy."""
        terms = credit.view_as(self.sign) * (self.sign > 0).double().sub(right[self.place])
        return torch.zeros_like(right).index_put_(self.place, terms, accumulate=True) / self.sign[0].numel()


def measure_credits(world: World, groups: int = 400) -> dict[str, Any]:
    """Measure each credit under the policy that throws a coin: `rank`, its rank correlation with the true advantage of
    the steps; `worth`, how many groups of GRPO's one group is worth: with g a group's gradient and u the direction of
    the exact one, (u E g)^2 / tr cov g over that of grpo."""
    right = torch.full((groups, world.turns, world.turns + 2), 0.5, dtype=torch.float64)
    steps = Steps.draw(world, right, torch.Generator().manual_seed(0))
    forest = steps.episodes.forest()
    wins = steps.episodes.success.double()
    exact = _exact_slope(world, right[:1])
    rank, signal = {}, {}
    for method in CREDITS:
        credit = steps.credit(method, forest)
        rank[method] = round(rank_correlation(credit, steps.truth), 3)
        slopes = steps.slope(credit, right).flatten(1)
        along = float((slopes.mean(0) * exact).sum())
        signal[method] = along**2 / float(slopes.var(0).sum())
    return {
        "success": round(float(steps.value[0, 0, 0]), 3),
        "silent": round(float((wins.mean(1) % 1 == 0).double().mean()), 3),
        "overlap": round(overlap(forest), 3),
        "rank": rank,
        "worth": {m: round(s / signal["grpo"], 2) for m, s in signal.items()},
    }


def _exact_slope(world: World, right: Tensor) -> Tensor:
    """Return the unit vector along the derivative of the probability of success by the logits."""
    logit = right.logit().requires_grad_()
    (slope,) = torch.autograd.grad(world.values(logit.sigmoid())[0][0, 0, 0], logit)
    return (slope / slope.norm()).flatten()


CONDITIONS = {
    "horizon": [World(2, 2), World(4, 3), World(8, 5), World(16, 9), World(32, 17)],
    "overlap of states": [World(looks=n) for n in (1, 2, 4, 16, 256)],
    "sparsity of reward": [World(needed=n) for n in (4, 5, 6, 7, 8)],
    "group size": [World(members=g) for g in (2, 4, 8, 16, 32)],
    "where it is decided": [World(needed=(d + 2) // 2, decisive=d) for d in (8, 4, 2)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.parse_args()
    torch.set_num_threads(1)
    columns = ("turns", "decisive", "needed", "looks", "members", "success", "silent", "overlap", *CREDITS)
    for name, worlds in CONDITIONS.items():
        print(
            f"\n{name}; of each credit: rank, worth\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True
        )
        for world in worlds:
            row = {**vars(world), **measure_credits(world)}
            row |= {m: f"{row['rank'][m]:.2f}, {row['worth'][m]:.2f}" for m in CREDITS}
            print("| " + " | ".join(str(row[c]) for c in columns) + " |", flush=True)


if __name__ == "__main__":
    main()
