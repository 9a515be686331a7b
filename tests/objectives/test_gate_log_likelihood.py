"""The gate without a ratio: -A log pi, wherever the tokens come from."""

from __future__ import annotations

import pytest
import torch
from tests.objectives.conftest import figures_of

import gxpo
from gxpo.objectives import Entries, PolicyGradient
from gxpo.objectives.surrogate import LogLikelihood, Unclipped


def test_value_and_gradient_are_those_of_reinforce(toy):
    term = PolicyGradient(surrogate=LogLikelihood(), aggregate="token_mean")
    value, gradient = toy.loss(term)
    credit, logprob = toy.credit.tolist(), toy.logprob.tolist()
    assert value == pytest.approx(-sum(a * x for a, x in zip(credit, logprob, strict=True)) / 5)
    assert gradient == pytest.approx([-a / 5 for a in credit])


def test_who_sampled_does_not_matter(toy):
    term = PolicyGradient(surrogate=LogLikelihood())
    assert toy.loss(term) == toy.loss(term, behaviour_logprob=toy.old - 3.0)
    policy = toy.policy()
    assert figures_of(term, toy.forest, policy, toy.credit, toy.weight)["clip_fraction"] == 0.0


def test_on_policy_it_is_the_gradient_of_every_gate(toy):
    here = toy.logprob.detach()
    gradients = [
        toy.loss(PolicyGradient(surrogate=gate), behaviour_logprob=here)[1] for gate in (LogLikelihood(), Unclipped())
    ]
    assert gradients[0] == pytest.approx(gradients[1])


def test_it_has_a_name():
    m = gxpo.method("grpo", {"objective.surrogate": "log_likelihood"})
    assert isinstance(m.terms["policy"].surrogate, LogLikelihood)
    seen = Entries.of(torch.tensor([9.0]), torch.tensor([2.0]), torch.tensor([-0.5]))
    assert m.terms["policy"].surrogate.loss(seen).tolist() == [1.0]
