"""The stand-in for a policy: outputs of 64 words, the same in every process, and no memory."""

import pytest
import torch

from gxpo.adapters.standin import StandIn, scores
from gxpo.forest.forest import Forest


@pytest.fixture
def forest():
    return Forest.from_completions([[3, 4]], [[[5, 6, 7], [9]]], rewards=[1.0, 0.0])


def test_outputs_are_those_of_one_distribution(forest):
    names = ("logprob", "entropy", "mean_logprob", "likeliest@2", "likeliest_logprob@2")
    outputs = StandIn().outputs(forest, names)
    assert {name: tuple(x.shape) for name, x in outputs.items()} == {
        "logprob": (4,),
        "entropy": (4,),
        "mean_logprob": (4,),
        "likeliest@2": (4, 2),
        "likeliest_logprob@2": (4, 3),
    }
    assert all(x.dtype == torch.float64 for x in outputs.values())
    # the two likeliest words and the rest of the 64 have all the probability
    assert outputs["likeliest_logprob@2"].exp().sum(1).tolist() == pytest.approx([1.0] * 4)
    assert bool((outputs["logprob"] <= outputs["likeliest_logprob@2"][:, 0]).all())
    assert float(outputs["entropy"].min()) > 0 and float(outputs["entropy"].max()) < 4.1589  # ln 64


def test_a_token_depends_on_the_one_before_alone():
    one = Forest.from_completions([[3, 4]], [[[5, 6]]], rewards=[1.0])
    other = Forest.from_completions([[8, 4]], [[[5, 6]]], rewards=[1.0])
    assert torch.equal(StandIn().outputs(one)["logprob"], StandIn().outputs(other)["logprob"])


def test_a_step_evaluates_the_loss_and_moves_nothing(forest):
    policy = StandIn()
    before = policy.outputs(forest)["logprob"]
    info = policy.step(forest, lambda x: -x["logprob"].sum())
    assert not info.empty and info.loss == pytest.approx(-float(before.sum()))
    assert torch.equal(policy.outputs(forest)["logprob"], before) and policy.snapshot() == {}


def test_scores_are_by_length_between_0_and_1():
    assert scores("task", ["", "abcd", "abcde", "abcdefg"], []) == [0.0, 1.0, 0.0, 0.5]
