"""Advantages of denoising models against the published numbers."""

import pytest
import torch
from tests.sampling.rollouts.flow_session import TASKS, grown

import gxpo
from gxpo.algorithms.credit.denoisers import anchored_value, standardised
from gxpo.algorithms.signals import Signals
from gxpo.algorithms.signals.denoisers import RewardBuffer
from gxpo.sampling.rollouts.denoise import Denoise


def column(*x):
    return torch.tensor(x, dtype=torch.float64)


def scored(outcomes, rollout=None, tasks=TASKS[:1]):
    forest = grown(rollout or Denoise(len(outcomes)), tasks)
    return forest.with_rewards(column(*outcomes))


def test_values_of_vgpo_are_the_published_ones():
    # R (.2, .6, 1), gamma .9: Q (1.55, 1.5, 1), omega Q / 1.35; equal groups: A = omega kappa Q
    group, sample, step = torch.arange(3), torch.zeros(3, dtype=torch.int64), torch.arange(3)
    a = anchored_value(column(0.2, 0.6, 1.0), group, sample, step, gamma=0.9, kappa=1.0)
    omega = [1.148148, 1.111111, 0.740741]
    assert a.tolist() == pytest.approx([w * q for w, q in zip(omega, (1.55, 1.5, 1.0), strict=True)], abs=1e-5)
    late = anchored_value(column(0.2, 0.6, 1.0), group, sample, step, gamma=0.9, kappa=1.0, first=1)
    assert late.tolist() == pytest.approx([omega[0] * 1.55, 0.0, 0.0], abs=1e-5)


def test_without_its_terms_vgpo_is_a_group_relative_advantage():
    # two samples of two steps; R of the last step alone, gamma 1: Q of both steps is the sample's reward
    outcome, sample, step = column(0, 1, 0, 0), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    a = anchored_value(outcome, step, sample, step, gamma=1.0, kappa=0.0, weighted=False, eps=0.0)
    assert a.tolist() == pytest.approx([1, 1, -1, -1])


def test_loop_takes_the_mean_of_the_others():
    m = gxpo.method("loop_diffusion")
    a = m.advantages(scored([1, 0, 0.5, 0.5]))
    assert a[::5].tolist() == pytest.approx([0.666667, -0.666667, 0.0, 0.0], abs=1e-6)


def test_dance_grpo_divides_by_the_sample_std():
    a = gxpo.method("dance_grpo").advantages(scored([1, 0, 1]))
    assert sorted({round(x, 6) for x in a.tolist() if x}) == [-1.154701, 0.57735]


def test_ddpo_standardises_by_the_newest_rewards_of_a_prompt():
    # 4 stored and 2 new of a window of 4: the newest (1, 0, 1, 0): mean .5, std .5
    buffer = RewardBuffer(window=4, min_rollouts=4)
    first, second = scored([1, 1, 1, 0]), scored([1, 0])
    few = buffer.compute(second, Signals({}), None)  # type: ignore[arg-type]  # reads no tools
    assert few["baseline"].tolist() == [0.5, 0.5] and few["spread"].tolist() == [0.5, 0.5]  # the step's, too few
    buffer.learn(first, Signals({}), None)  # type: ignore[arg-type]
    out = buffer.compute(second, Signals({}), None)  # type: ignore[arg-type]
    assert out["baseline"].tolist() == [0.5, 0.5] and out["spread"].tolist() == pytest.approx([0.5, 0.5])
    a = standardised(second.outcome, out["baseline"], out["spread"])
    assert a.tolist() == pytest.approx([1.0, -1.0], abs=1e-5)
    assert standardised(column(9.0), column(0.0), column(0.0)).tolist() == [0.0]
    assert standardised(column(9.0), column(0.0), column(0.1)).tolist() == [10.0]
    again = RewardBuffer(window=4, min_rollouts=4)
    again.load_state_dict(buffer.state_dict())
    assert again.memory.rows == buffer.memory.rows
