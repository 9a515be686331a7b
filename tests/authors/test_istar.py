"""iStar (`oprl`) as in Tongyi-ConvAI/Qwen-Character@1de87a2, folder CharacterRL-iStar, restated.

istar/dp_rm.py: _forward_micro_batch with step_granularity "step" (beta times the sum of log phi - log old), istar_norm
"batch_norm" (over the largest reverse cumulative sum, which for one number a row is the largest number); istar/
rm_utils.py: compute_eto_loss_rm; istar/core_istar.py: compute_istar_rloo_advantage, compute_istar_grpo_advantage.
Settings: examples/istar_trainer/run_webshop.sh.
"""

from __future__ import annotations

import math
import random
import statistics
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gxpo
from gxpo.algorithms.signals.implicit_reward import ImplicitReward
from gxpo.forest.forest import Forest

F64 = torch.float64
# groups of (outcome, lengths of the turns): ragged, an equal group, a group of one
GROUPS = [
    [(1.0, [2, 1, 3]), (0.0, [1]), (1.0, [2, 2])],
    [(0.0, [1, 2]), (1.0, [3])],
    [(0.0, [2, 1]), (0.0, [1, 1])],
    [(1.0, [2])],
]


def forest_of() -> Forest:
    rng = random.Random(3)
    rows = []
    for g, group in enumerate(GROUPS):
        for i, (reward, lengths) in enumerate(group):
            turns = [
                {"observation": [5], "action": [rng.randrange(6, 22) for _ in range(n)], "logprob": [-1.0] * n}
                for n in lengths
            ]
            row = {"schema": "gxpo.rollouts/1", "group": f"g{g}", "id": f"{g}.{i}", "prompt": [1, 2 + g]}
            rows.append({**row, "turns": turns, "reward": reward})
    return Forest.from_records(rows)


class Phi:
    """A reward model whose log-probs are given; what it would be trained on is kept."""

    def __init__(self, logprob: torch.Tensor) -> None:
        self.logprob, self.slope, self.loss = logprob, torch.zeros_like(logprob), math.nan

    def outputs(self, forest: Forest, names: Any = ()) -> dict[str, torch.Tensor]:
        return {"logprob": self.logprob}

    def step(self, forest: Forest, loss: Any, **settings: Any) -> Any:
        x = self.logprob.clone().requires_grad_()
        value = loss({"logprob": x})
        value.backward()
        assert x.grad is not None
        self.slope, self.loss = x.grad, float(value.detach())
        return SimpleNamespace(outputs={"logprob": self.logprob}, loss=self.loss, nonfinite="")


@pytest.fixture
def found() -> SimpleNamespace:
    rng = random.Random(11)
    forest = forest_of()
    old = torch.tensor([-rng.uniform(0.5, 3.0) for _ in range(forest.n_entries)], dtype=F64)
    gap = [rng.uniform(-0.6, 0.6) for _ in range(forest.n_entries)]
    phi = Phi(old + torch.tensor(gap, dtype=F64))
    q, at = [], 0  # by trajectory, by turn: the sum over its tokens
    for group in GROUPS:
        for _, lengths in group:
            q.append([math.fsum(gap[at + sum(lengths[:k]) : at + sum(lengths[: k + 1])]) for k in range(len(lengths))])
            at += sum(lengths)
    m = gxpo.method("oprl@paper")
    part = m.signals["implicit_reward"]
    assert isinstance(part, ImplicitReward) and part.beta == 0.05
    part.memory["model"] = phi
    return SimpleNamespace(m=m, part=part, phi=phi, forest=forest, q=q, signals={"proximal_logprob": old})


def by_group(q: list[Any]) -> list[list[Any]]:
    rows = iter(q)
    return [[next(rows) for _ in group] for group in GROUPS]


def leave_one_out(x: float, members: list[float]) -> float:
    """Their r n / (n - 1) - mean n / (n - 1); gxpo's 0 for one alone."""
    n = len(members)
    return 0.0 if n < 2 else x * n / (n - 1) - statistics.fmean(members) * n / (n - 1)


def test_step_rewards_over_the_largest(found: SimpleNamespace) -> None:
    reward = found.part.compute(found.forest, found.signals, None)["process_reward"]
    raw = [0.05 * x for steps in found.q for x in steps]
    largest = max(map(abs, raw)) + 1e-6
    assert reward.tolist() == pytest.approx([x / largest for x in raw], abs=1e-9)


def test_the_advantage(found: SimpleNamespace) -> None:
    """istar_rloo, its comment's "compared to all other steps in the same group"; weight 1."""
    found.signals |= found.part.compute(found.forest, found.signals, None)
    credit = found.m.advantages(found.forest, found.signals)
    largest = max(abs(0.05 * x) for steps in found.q for x in steps) + 1e-6
    expected = []
    for group, q in zip(GROUPS, by_group(found.q), strict=True):
        rewards = [[0.05 * x / largest for x in steps] for steps in q]
        outcomes, pool = [r for r, _ in group], [x for steps in rewards for x in steps]
        for (outcome, lengths), steps in zip(group, rewards, strict=True):
            for n, x in zip(lengths, steps, strict=True):
                a = leave_one_out(outcome, outcomes) + leave_one_out(x, pool)
                expected += [a] * n
    assert credit.tolist() == pytest.approx(expected, abs=1e-9)


def test_their_baseline_is_of_the_rows_that_come_first(found: SimpleNamespace) -> None:
    """Of each trajectory one row enters the statistics, the first in the batch, which is in no order: another order,
    another advantage."""
    steps = [0.05 * x for x in found.q[0]], [0.05 * x for x in found.q[1]], [0.05 * x for x in found.q[2]]
    forwards = [leave_one_out(x, [s[0] for s in steps]) for x in steps[0]]
    backwards = [leave_one_out(x, [s[-1] for s in steps]) for x in steps[0]]
    assert forwards != pytest.approx(backwards, rel=0.01)


def test_the_preference_loss(found: SimpleNamespace) -> None:
    """Every success against every failure of its group, by the mean over steps; each pair counts the same."""
    found.part.learn(found.forest, found.signals, None)
    losses, slopes = [], [0.0] * len(found.q)
    first = 0
    for group, q in zip(GROUPS, by_group(found.q), strict=True):
        score = [0.05 * statistics.fmean(steps) for steps in q]
        for i, (won, _) in enumerate(group):
            for j, (lost, _) in enumerate(group):
                if won > 0 >= lost:
                    lead = score[i] - score[j]
                    losses.append(math.log1p(math.exp(-lead)))
                    slopes[first + i] -= 0.05 / (1 + math.exp(lead))
                    slopes[first + j] += 0.05 / (1 + math.exp(lead))
        first += len(group)
    assert len(losses) == 3 and found.phi.loss == pytest.approx(statistics.fmean(losses), abs=1e-9)
    for r, steps in enumerate(found.q):
        own_slope = found.phi.slope[found.forest.path_of(r)].tolist()
        assert own_slope == pytest.approx([slopes[r] / len(losses) / len(steps)] * len(own_slope), abs=1e-12)


def test_their_grpo_form(found: SimpleNamespace) -> None:
    """istar_grpo with mean_std_norm: both by mean and sample std + 1e-6."""
    m = gxpo.method("oprl", {"credit.center": "mean", "credit.scale": "std"})
    found.signals |= found.part.compute(found.forest, found.signals, None)
    credit = m.advantages(found.forest, found.signals)
    reward, expected = iter(found.signals["process_reward"].tolist()), []
    rows = [[[next(reward) for _ in lengths] for _, lengths in group] for group in GROUPS]
    for group, rewards in zip(GROUPS, rows, strict=True):
        outcomes, pool = [r for r, _ in group], [x for steps in rewards for x in steps]

        def scaled(x: float, members: list[float]) -> float:
            if len(set(members)) < 2:
                return 0.0
            return (x - statistics.fmean(members)) / (statistics.stdev(members) + 1e-6)

        for (outcome, lengths), steps in zip(group, rewards, strict=True):
            for n, x in zip(lengths, steps, strict=True):
                expected += [scaled(outcome, outcomes) + scaled(x, pool)] * n
    assert credit.tolist() == pytest.approx(expected, abs=1e-9)
