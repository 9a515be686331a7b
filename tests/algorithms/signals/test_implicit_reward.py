"""Implicit process rewards: worked numbers, pairs, the stated gradient, a second model that learns and is restored."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama

import gxpo
from gxpo.algorithms.signals.implicit_reward import ImplicitReward, implicit_reward, preferences, trajectory_dpo
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner

F64 = torch.float64


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


# ---------------------------------------------------------------- worked numbers
def test_card_step_rewards() -> None:
    """beta .05, log phi [-3, -2], log old [-4, -2.5]: .05 * [1, .5]. Tokens of a step add up; others' do not count."""
    owner, counted = torch.tensor([0, 1]), torch.tensor([True, True])
    actual = implicit_reward(column(-3, -2), column(-4, -2.5), counted, owner, 2, 0.05)
    assert actual.tolist() == pytest.approx([0.05, 0.025])
    counted = torch.tensor([True, False, True])
    actual = implicit_reward(column(-3, math.nan, -2), column(-4, -1, -2.5), counted, torch.zeros(3).long(), 2, 0.05)
    assert actual.tolist() == pytest.approx([0.075, 0.0])


def test_card_pair() -> None:
    """Log-ratios +1.5 and -.5, beta .05: -log sigmoid(.1) = log(1 + e^-.1) = .644397; slope -beta sigmoid(-.1)."""
    score = column(1.5, -0.5).requires_grad_()
    loss = trajectory_dpo(score, torch.tensor([0]), torch.tensor([1]), column(1.0), 0.05)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.644397, abs=1e-6)
    assert score.grad is not None
    assert score.grad.tolist() == pytest.approx([-0.05 / (1 + math.exp(0.1)), 0.05 / (1 + math.exp(0.1))])


def test_worked_preferences() -> None:
    """Group 0: outcomes [1, 0, 1] has two pairs; group 1: [.2, .7, .1] three; group 2 equal; the last in no group."""
    outcome = column(1, 0, 1, 0.2, 0.7, 0.1, 1, 1, 5)
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, -1])
    better, worse, weight = preferences(outcome, group, torch.ones(9, dtype=torch.bool))
    assert list(zip(better.tolist(), worse.tolist(), strict=True)) == [(0, 1), (2, 1), (3, 5), (4, 3), (4, 5)]
    assert weight.tolist() == pytest.approx([1 / 4, 1 / 4, 1 / 6, 1 / 6, 1 / 6])


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(-1, 2), st.sampled_from([0.0, 0.5, 1.0, math.nan]), st.booleans()), min_size=1, max_size=9
    )
)
def test_preferences_equal_a_loop(rows) -> None:
    actual = preferences(
        column(*[r[1] for r in rows]), torch.tensor([r[0] for r in rows]), torch.tensor([r[2] for r in rows])
    )
    expected: dict[int, list[tuple[int, int]]] = {}
    for i, (g, x, is_first_valid) in enumerate(rows):
        for j, (h, y, is_second_valid) in enumerate(rows):
            if g == h >= 0 and is_first_valid and is_second_valid and x > y:
                expected.setdefault(g, []).append((i, j))
    pairs = {p: 1 / len(of) / len(expected) for of in expected.values() for p in of}
    got = dict(zip(zip(actual[0].tolist(), actual[1].tolist(), strict=True), actual[2].tolist(), strict=True))
    assert got == pytest.approx(pairs)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999))
def test_step_rewards_add_up_to_the_whole_log_ratio(seed) -> None:
    rng = random.Random(seed)
    n = rng.randrange(1, 12)
    steps = sorted(rng.randrange(4) for _ in range(n))
    phi, old = [rng.uniform(-5, 0) for _ in range(n)], [rng.uniform(-5, 0) for _ in range(n)]
    counted = [rng.random() < 0.8 for _ in range(n)]
    actual = implicit_reward(column(*phi), column(*old), torch.tensor(counted), torch.tensor(steps), 4, 0.3)
    log_ratio = 0.3 * sum(a - b for a, b, c in zip(phi, old, counted, strict=True) if c)
    assert float(actual.sum()) == pytest.approx(log_ratio, abs=1e-9)


# ---------------------------------------------------------------- the part
def forest_of(rewards: list[list[float | None]], turns: int = 2) -> Forest:
    rng = random.Random(3)
    return Forest.from_records(
        [
            {
                "schema": "gxpo.rollouts/1",
                "group": f"g{g}",
                "id": f"{g}.{i}",
                "prompt": [1, 2 + g],
                "turns": [
                    {"observation": [5], "action": [rng.randrange(6, 22) for _ in range(2)], "logprob": [-1.0, -1.0]}
                    for _ in range(turns)
                ],
                "reward": reward,
            }
            for g, group in enumerate(rewards)
            for i, reward in enumerate(group)
        ]
    )


def policy() -> TorchLearner:
    return TorchLearner(clean_llama(), lr=1e-3)


def bound(learner: TorchLearner, **fields: Any) -> tuple[ImplicitReward, Any]:
    part = ImplicitReward(**{"lr": 1e-2, "beta": 0.5, **fields})
    tools = SimpleNamespace(learner=learner, decode=str, blank_id=0, step=1, seed=0)
    part.bind(tools)
    return part, tools


def test_rounding_is_neither_a_preference_nor_a_better_outcome() -> None:
    learner, forest = policy(), forest_of([[0.3, 0.1 + 0.2], [0.0, 1.0]])
    part, tools = bound(learner)
    proximal = learner.outputs(forest)["logprob"]
    proximal = proximal + 1e-6 * torch.sin(torch.arange(len(proximal), dtype=torch.float64))
    figures = part.learn(forest, {"proximal_logprob": proximal}, tools)
    assert figures["prm_accuracy"] == 0.5 and figures["prm_pairs"] == 1.0


def test_the_reward_model_learns_from_the_policys_start() -> None:
    learner, forest = policy(), forest_of([[1.0, 0.0, 0.5], [0.0, 1.0], [1.0, 1.0], [None, 1.0]])
    part, tools = bound(learner)
    signals = {"proximal_logprob": learner.outputs(forest)["logprob"]}
    before = {k: v.clone() for k, v in learner.snapshot().items()}
    assert part.compute(forest, signals, tools)["process_reward"].tolist() == [0.0] * forest.n_steps
    figures = [part.learn(forest, signals, tools) for _ in range(8)]
    assert figures[0] == {"prm_loss": pytest.approx(math.log(2)), "prm_accuracy": 0.5, "prm_pairs": 4.0}
    losses = [f["prm_loss"] for f in figures]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.3 and figures[-1]["prm_accuracy"] == 1.0
    assert all(torch.equal(before[k], v) for k, v in learner.snapshot().items())  # the policy is not touched
    reward = part.compute(forest, signals, tools)["process_reward"]
    logprob = part.model.outputs(forest)["logprob"]
    for s in range(forest.n_steps):
        own_squeeze = (forest.path_step == s).nonzero().squeeze(1)
        expected = 0.5 * sum(float(logprob[p] - signals["proximal_logprob"][p]) for p in own_squeeze)
        assert float(reward[s]) == pytest.approx(expected, abs=1e-9)
    total = torch.zeros(forest.n_trajectories, dtype=F64).index_add_(0, forest.step_trajectory, reward)
    assert total[0] > total[2] > total[1] and total[4] > total[3]


def test_the_gradient_is_that_of_the_loss_written_out() -> None:
    """One plain step of the reward model against autograd through a loop over pairs on whole log-probs."""
    learner, forest = policy(), forest_of([[1.0, 0.0, 0.5], [0.0, 1.0]])
    part, tools = bound(learner)
    old = learner.outputs(forest)["logprob"] - 0.1
    logprobs = {}
    real = part.model.step

    def spy(forest, loss, **settings):
        logprobs["x"] = part.model.outputs(forest)["logprob"]
        x = logprobs["x"].clone().requires_grad_()
        logprobs["slope"] = torch.autograd.grad(loss({"logprob": x}), x)[0]
        return real(forest, loss, **settings)

    part.model.step = spy  # type: ignore[method-assign]
    part.learn(forest, {"proximal_logprob": old}, tools)
    score = [sum(float(logprobs["x"][p] - old[p]) for p in forest.path_of(r)) for r in range(5)]
    slope = [0.0] * 5
    for i, j, weight in ((0, 1, 1 / 6), (0, 2, 1 / 6), (2, 1, 1 / 6), (4, 3, 1 / 2)):
        push = weight * 0.5 / (1 + math.exp(0.5 * (score[i] - score[j])))
        slope[i] -= push
        slope[j] += push
    assert logprobs["slope"].tolist() == pytest.approx([slope[r] for r in forest.path_trajectory.tolist()], abs=1e-12)


def test_a_step_without_pairs_trains_nothing() -> None:
    learner, forest = policy(), forest_of([[1.0, 1.0], [0.0, None]])
    part, tools = bound(learner)
    before = part.model.fingerprint()
    assert part.learn(forest, {"proximal_logprob": learner.outputs(forest)["logprob"]}, tools) == {"prm_pairs": 0.0}
    assert part.model.fingerprint() == before


def test_a_restored_reward_model_goes_on_alike() -> None:
    """Parameters and optimiser: two more steps of the restored one are those of the original, bit for bit."""
    learner, forest = policy(), forest_of([[1.0, 0.0], [0.0, 0.5]])
    signals = {"proximal_logprob": learner.outputs(forest)["logprob"]}
    part, tools = bound(learner, epochs=2)
    part.learn(forest, signals, tools)
    other, _ = bound(learner, epochs=2)
    other.load_tensors({k: v.clone() for k, v in part.tensors().items()})
    other.load_state_dict(part.state_dict())
    for _ in range(2):
        assert part.learn(forest, signals, tools) == other.learn(forest, signals, tools)
    assert part.model.fingerprint() == other.model.fingerprint()


def test_while_the_two_models_are_one_it_is_grpo() -> None:
    learner, forest = policy(), forest_of([[1.0, 0.0, 0.5], [0.0, 1.0]])
    part, tools = bound(learner)
    signals = {"proximal_logprob": learner.outputs(forest)["logprob"]}
    signals |= part.compute(forest, signals, tools)
    assert torch.equal(gxpo.method("oprl").advantages(forest, signals), gxpo.method("grpo").advantages(forest))
    scaled, _ = bound(learner, scale="largest")
    assert not scaled.compute(forest, signals, tools)["process_reward"].any()


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ConfigError, match="epochs"):
        ImplicitReward(epochs=0)
    for name in ("score", "loss_unit", "scale"):
        with pytest.raises(ConfigError, match=rf"signal\.implicit_reward\.{name}"):
            ImplicitReward(**{name: "other"})  # type: ignore[arg-type]
    with pytest.raises(GxpoError, match="bind"):
        _ = ImplicitReward().model
