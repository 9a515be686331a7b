"""ROVER: the card's numbers, a loop, REINFORCE on policy, what is next."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives import labelled_groups as groups
from torch import Tensor

from gxpo.algorithms.objectives import evaluate
from gxpo.algorithms.objectives.value import UniformValue, next_value, uniform_value
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import PolicyTokens


def column(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def test_card() -> None:
    # targets .5 + [-.3, .1, 0] = [.2, .6, .5]; squares (.1 - .2)^2, (-.05 - .6)^2, (.2 - .5)^2, mean .174167
    following = next_value(column(9.0, -0.3, 0.1), torch.zeros(3, dtype=torch.int64))
    assert following.tolist() == [-0.3, 0.1, 0.0]
    log_ratio = column(0.1, -0.05, 0.2).requires_grad_()
    loss = uniform_value(log_ratio, column(0.5, 0.5, 0.5), following).mean()
    assert float(loss.detach()) == pytest.approx(0.174167, abs=6e-7)
    loss.backward()
    assert log_ratio.grad is not None  # 2 (Q - y) / 3
    assert log_ratio.grad.tolist() == pytest.approx([-0.2 / 3, -1.3 / 3, -0.2])


@dataclasses.dataclass(frozen=True)
class Given:
    """The term, with reference log-probs for the policy's means over the vocabulary and the sampler's for the old."""

    term: UniformValue

    @property
    def couples(self) -> str:
        return self.term.couples

    def active(self, *args: Any) -> Tensor:
        return self.term.active(*args)

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Any, step: int
    ) -> Tensor:
        assert policy.reference_logprob is not None
        with_outputs = dataclasses.replace(policy, outputs={"mean_logprob": policy.reference_logprob})
        return self.term(forest, with_outputs, credit, weight, {"start_mean_logprob": policy.behaviour_logprob}, step)


TERMS = [
    UniformValue(),
    UniformValue(scale=2.0, next_scale=0.3, aggregate="sequence_mean"),
    UniformValue(next_scale=0.0, aggregate="sequence_sum", horizon=7.0, ratio_over="behaviour"),
]


def by_hand(term, forest, x):
    gap = (x["logprob"] - x[f"{term.ratio_over}_logprob"]).tolist()
    u = (x["reference_logprob"] - x["behaviour_logprob"]).tolist()
    members_by_group = groups.members(forest)
    everybody = [row for rows in members_by_group.values() for row in rows]
    n, tokens = len(everybody), sum(len(row["entries"]) for row in everybody)
    value, gradient = 0.0, torch.zeros(forest.n_entries, dtype=torch.float64)
    for rows in members_by_group.values():
        compared = [row["reward"] for row in rows if row["compared"]]
        if len(compared) < 2:
            continue
        for row in rows:
            if not any(row["weight"]):
                continue
            size = len(row["entries"])
            share = {"token_mean": 1 / tokens, "sequence_mean": 1 / n / size, "sequence_sum": 1 / n / 7.0}
            c = share[term.aggregate]
            for t, (p, w) in enumerate(zip(row["entries"], row["weight"], strict=True)):
                later = u[row["entries"][t + 1]] if t + 1 < size else 0.0
                target = row["reward"] - sum(compared) / len(compared) + term.next_scale * later
                value += c * (term.scale * gap[p] - target) ** 2
                gradient[p] += w * c * 2 * term.scale * (term.scale * gap[p] - target)
    return value, gradient


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.sampled_from(TERMS))
def test_agrees_with_a_loop(seed, term):
    forest = groups.random_labelled(seed)
    x = groups.policies(forest, seed)
    value, gradient = groups.graded(Given(term), forest, x)
    expected, slope = by_hand(term, forest, x)
    assert value == pytest.approx(expected, rel=1e-10, abs=1e-13)
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-13)


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from(TERMS))
def test_rules(seed, term):
    groups.keeps_the_rules(Given(term), seed)
    groups.weights_scale_derivatives(Given(term), seed)


@pytest.mark.slow
def test_the_gradient_is_the_same_however_the_step_is_cut():
    assert UniformValue().couples == "trajectory"
    groups.same_however_cut(Given(UniformValue()))


def test_on_policy_it_is_twice_reinforce_with_the_group_mean():
    forest = groups.forest_of([("a", 2, 1), ("a", 3, 0), ("a", 1, 0)])
    x = groups.policies(forest, 0)
    x |= {"proximal_logprob": x["logprob"], "reference_logprob": x["behaviour_logprob"]}
    _, gradient = groups.graded(Given(UniformValue()), forest, x)
    assert gradient.tolist() == pytest.approx([-2 * (2 / 3) / 6] * 2 + [2 * (1 / 3) / 6] * 4)


@pytest.mark.parametrize("ratio", [1e-6, 1e6])
def test_far_off_policy(ratio):
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0)])
    old, d = column(-20, -20), math.log(ratio)
    x = {"logprob": old + column(d, 0), "behaviour_logprob": old, "reference_logprob": old}
    _, gradient = groups.graded(Given(UniformValue()), forest, x)
    assert gradient.tolist() == pytest.approx([d - 0.5, 0.5])


def test_the_target_carries_no_gradient():
    forest = groups.forest_of([("a", 2, 1), ("a", 2, 0)])
    x = groups.policies(forest, 1)
    mean = x["reference_logprob"].clone().requires_grad_()
    logprob = x["logprob"].clone().requires_grad_()
    policy = PolicyTokens(logprob, x["behaviour_logprob"], outputs={"mean_logprob": mean})
    ones = torch.ones(4, dtype=torch.float64)
    UniformValue()(forest, policy, ones, ones, {"start_mean_logprob": x["proximal_logprob"]}, 0)[0].backward()
    assert mean.grad is None and logprob.grad is not None and bool((logprob.grad != 0).all())


def test_groups_of_one_and_of_equal_rewards():
    forest = groups.forest_of([("a", 2, 1), ("b", 2, 1), ("b", 2, 1)])
    x = groups.policies(forest, 2)
    _, gradient = groups.graded(Given(UniformValue()), forest, x)
    assert not gradient[:2].any() and bool((gradient[2:] != 0).all())
    still = {**x, "proximal_logprob": x["logprob"], "reference_logprob": x["behaviour_logprob"]}
    assert not groups.graded(Given(UniformValue()), forest, still)[1].any()
    assert UniformValue().learns_from_equal_groups


def test_what_is_missing_and_settings():
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0)])
    old, ones = column(-1.0, -1.0), column(1.0, 1.0)
    start = {"start_mean_logprob": old}
    with pytest.raises(MissingSignal, match="mean_logprob"):
        UniformValue()(forest, PolicyTokens(old, old), ones, ones, start, 0)[0]
    broken = PolicyTokens(old, old, outputs={"mean_logprob": column(-1.0, math.nan)})
    with pytest.raises(MissingSignal, match="nan for 1 of 2 tokens"):
        UniformValue()(forest, broken, ones, ones, start, 0)[0]
    assert UniformValue.outputs == ("logprob", "mean_logprob") and UniformValue().needs == ("start_mean_logprob",)
    assert set(UniformValue(ratio_over="reference").needs) == {"start_mean_logprob", "reference_logprob"}
    for wrong in ({"scale": 0.0}, {"next_scale": -1.0}, {"aggregate": "sum"}, {"ratio_over": "nobody"}):
        with pytest.raises(ConfigError, match="objective"):
            UniformValue(**wrong)  # type: ignore[arg-type]  # on purpose
    loss = evaluate(
        UniformValue(),
        forest,
        PolicyTokens(old + column(0.5, -0.5), old, outputs={"mean_logprob": old}),
        ones,
        ones,
        start,
        0,
    )[1]
    assert loss == pytest.approx({"implicit_reward_gap": 0.0, "approx_kl": math.cosh(0.5) - 1}, abs=1e-12)
