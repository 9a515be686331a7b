"""PIPO as in JacckMa/pipo_verl, restated: the number that says whether an update helped, and the replayed credit.

@8e8e63f: verl/trainer/ppo/layback_utils.py (compute_group_scaled_advantages, compute_layback_coefficients,
LaybackHistoryManager), verl/trainer/ppo/core_algos.py (grpo_layback), verl/trainer/ppo/ray_trainer.py (the mean is
stored when it is known, then the old batch is trained on, then the new). @7f48e23: the version for GRPO, GSPO and DAPO.
"""

from __future__ import annotations

import math
import statistics

import pytest
import torch

import gxpo
from gxpo.algorithms.signals.improvement import improvement
from gxpo.forest.forest import Forest
from gxpo.parts.definition import kind_of

F64 = torch.float64
MEANS = [0.30, 0.42, 0.35, 0.35, 0.55, 0.41, 0.60, 0.38, 0.52, 0.33, 0.47]
REWARDS = [[1.0, 0.0, 0.0, 0.5], [0.2, 0.2], [0.0, 1.0, 1.0]]


def theirs(window: int = 8, least: int = 8, falling: float = 0.1) -> list[float]:
    """The coefficient of every step; 0 where the old batch is not trained on."""
    history: list[float] = []
    out = []
    for step, now in enumerate(MEANS):
        history = [*history, now][-window:]
        before = history[:-1]
        if step == 0 or len(history) < least:
            out.append(0.0)
            continue
        sigma = math.sqrt(sum((x - statistics.fmean(before)) ** 2 for x in before) / len(before))
        xi = (now - statistics.fmean(before)) / (sigma if sigma >= 1e-8 else 1.0)
        out.append(xi if xi >= 0 else falling * xi)
    return out


def ours(**fields: float) -> list[float]:
    m = gxpo.method("pipo", {f"signal.improvement.{k}": v for k, v in fields.items()})
    part = m.signals["improvement"]
    assert isinstance(part, kind_of(improvement))
    out = []
    for now in MEANS:
        forest = Forest.from_completions([[1]], [[[2], [3]]], [now - 0.01, now + 0.01])
        out.append(float(part.compute(forest, {}, None)["improvement"][0]))
        part.learn(forest, {}, None)
    return out


def test_the_coefficient_of_the_code() -> None:
    """A window of 8 with the current step in it: 7 before it, and the population's std."""
    expected = theirs()
    assert sum(x > 0 for x in expected) and sum(x < 0 for x in expected) and expected[:7] == [0.0] * 7
    assert ours(window=7, ddof=0, eps=0.0) == pytest.approx(expected, abs=1e-9)


def test_the_coefficient_of_the_paper() -> None:
    """arXiv 2604.00860, eqs. 7 to 10: the mean and the sample std of the K = 8 steps before."""
    expected = [0.0] * 8
    for t in range(8, len(MEANS)):
        xi = (MEANS[t] - statistics.fmean(MEANS[t - 8 : t])) / statistics.stdev(MEANS[t - 8 : t])
        expected.append(xi if xi >= 0 else 0.1 * xi)
    assert ours(eps=0.0) == pytest.approx(expected, abs=1e-9)
    assert ours(eps=0.0)[8:] != pytest.approx(theirs()[8:], rel=0.05)


def test_the_older_version_compares_a_step_with_itself() -> None:
    """@7f48e23 stores each mean twice, once before it is compared: of 8 values the current step is one, and 4 earlier
    steps are the others. Neither form of gxpo's signal gives this."""
    history: list[float] = []
    for now in MEANS:
        history = [*history, now][-8:]
        at_work = list(history)
        history = [*history, now][-8:]
    assert at_work == [0.60, 0.38, 0.38, 0.52, 0.52, 0.33, 0.33, 0.47]
    xi = (at_work[-1] - statistics.fmean(at_work)) / statistics.pstdev(at_work)
    assert xi == pytest.approx(0.305852, abs=1e-6)
    assert [ours(eps=0.0)[-1], theirs()[-1]] == pytest.approx([0.322239, 0.216959], abs=1e-6)


@pytest.mark.parametrize("coefficient", [1.7, -0.06])
def test_the_replayed_credit(coefficient: float) -> None:
    """G A / sum |A| times the coefficient, A as GRPO's (sample std + 1e-6); an equal group has none."""
    rows = [[[10 + g, 20 + i] * (1 + i) for i in range(len(group))] for g, group in enumerate(REWARDS)]
    forest = Forest.from_completions([[1]] * 3, rows, [r for group in REWARDS for r in group])
    forest = forest.replace(origin=["replay"] * forest.n_trajectories)
    m = gxpo.method("pipo", {"credit.share_eps": 0.0})
    credit = m.advantages(forest, {"improvement": torch.full((9,), coefficient, dtype=F64)})
    actual = [float(credit[forest.path_of(r)[0]]) for r in range(9)]
    expected = []
    for group in REWARDS:
        middle, spread = statistics.fmean(group), statistics.stdev(group)
        a = [(r - middle) / (spread + 1e-6) for r in group]
        total = max(sum(map(abs, a)), 1e-6)
        expected += [coefficient * len(group) * x / total for x in a]
    assert actual == pytest.approx(expected, abs=1e-9) and actual[4:6] == [0.0, 0.0]


def test_the_clip_of_the_replay_for_grpo() -> None:
    """Theirs is -min(rho, clip rho) r, gxpo's PPO's minimum: the same for r > 0; for r < 0 theirs stops what rises past
    1.2, where it is needed, and never what falls below 0.8."""
    logs = [math.log(x) for x in (0.5, 1.0, 1.5)]
    for sign, moves in ((1.0, [1, 1, 0]), (-1.0, [1, 1, 0])):
        at = torch.tensor(logs, dtype=F64, requires_grad=True)
        ratio = at.exp()
        (-torch.minimum(ratio, ratio.clamp(0.8, 1.2)) * sign).sum().backward()
        assert at.grad is not None and [int(x != 0) for x in at.grad] == moves
    forest = Forest.from_completions([[1]], [[[2], [3], [4]]], [1.0, 0.0, 0.0])
    forest = forest.replace(origin=["replay"] * 3)
    sampler = torch.full((3,), -2.0, dtype=F64)
    for sign, moves in ((1.0, [1, 1, 0]), (-1.0, [0, 1, 1])):
        at = (sampler + torch.tensor(logs, dtype=F64)).requires_grad_()
        policy = gxpo.PolicyTokens(at, sampler, proximal_logprob=at.detach())
        gxpo.method("pipo").loss(forest, policy, advantages=torch.full((3,), sign, dtype=F64)).value.backward()
        assert at.grad is not None and [int(x != 0) for x in at.grad] == moves
