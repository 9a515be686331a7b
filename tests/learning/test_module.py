"""Learners over a plain module: what flows and masked language models share."""

import pytest
import torch
from tests.models.masked_toys import END, MASK, PAD, bert
from tests.sampling.rollouts.flow_session import small_flow

from gxpo.algorithms.likelihoods.estimators import OneStep
from gxpo.base.errors import ConfigError, ModelError
from gxpo.learning.flow import FlowLearner
from gxpo.learning.masked import MaskedLearner
from gxpo.models.masked import MaskedPolicy


def of_flow(**settings):
    return FlowLearner(small_flow(), **{"lr": 1e-2, **settings})


def of_masked(**settings):
    return MaskedLearner(MaskedPolicy(bert(), MASK, END, PAD), OneStep(), **{"lr": 1e-2, **settings})


EACH = pytest.mark.parametrize("make", [of_flow, of_masked])


def moved(one, by):
    """A learner after all its parameters went up by a constant."""
    one.restore({name: x + by for name, x in one.snapshot().items()})
    return one


@EACH
def test_a_second_learner_has_the_settings_and_no_schedule(make):
    one = make(
        optimiser="sgd", weight_decay=0.3, tokens_per_microbatch=5, schedule="linear", total_steps=4, reference=True
    )
    two = one.second_learner(lr=0.25)
    assert type(two) is type(one) and two.tokens_per_microbatch == 5 and two.optimiser.lr == 0.25
    assert two.fingerprint() == one.fingerprint() != moved(two, 0.5).fingerprint()
    assert [two.optimiser.schedule(step) for step in (0, 3)] == [1.0, 1.0] and one.optimiser.schedule(3) == 0.25
    assert two.second_learner(lr=1.0).fingerprint() == two.fingerprint()
    with pytest.raises(ModelError, match="reference=True"):
        two.module_of("reference")


@EACH
def test_following_moves_a_share_of_the_way(make):
    one, two = make(), moved(make(), 1.0)
    start = one.snapshot()
    one.follow(two, 0.25)
    assert all(torch.allclose(x, start[name] + 0.25, atol=1e-6) for name, x in one.snapshot().items())


@EACH
def test_the_reference_takes_the_parameters_it_is_told(make):
    one = make(reference=True)
    name, start = next(iter(one.snapshot().items()))
    moved(one, 1.0)
    assert torch.equal(dict(one.module_of("reference").named_parameters())[name], start)
    one.refer(one.snapshot())
    assert torch.allclose(dict(one.module_of("reference").named_parameters())[name], start + 1, atol=1e-6)
    with pytest.raises(ModelError, match="'current' or 'reference', not 'old'"):
        one.module_of("old")


@EACH
def test_bad_settings_say_what_to_change(make):
    with pytest.raises(ModelError, match="tokens_per_microbatch is 0; it must be at least 1"):
        make(tokens_per_microbatch=0)
    with pytest.raises(ConfigError, match="muon is for causal language models: use another one for a "):
        make(optimiser="muon")
