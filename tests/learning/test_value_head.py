"""A value head on the policy's hidden states, hidden states themselves, and a learner beside another."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama, random_forest

from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner


def with_head(seed=0, **settings):
    """A learner whose value head is not zero."""
    learner = TorchLearner(clean_llama(), lr=1e-2, value_heads=("value",), **settings)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        learner.value_head.weight.copy_(torch.randn(1, 32, generator=generator, dtype=torch.float64))
        learner.value_head.bias.fill_(0.25)
    return learner


def by_hand(learner, tokens):
    """[n, H] last hidden states of a plain sequence, from the model itself."""
    with torch.no_grad():
        return learner.model.model(torch.tensor([tokens])).last_hidden_state[0]


def test_the_value_of_a_token_is_that_of_the_state_before_it():
    learner = with_head()
    forest = Forest.from_completions([[3, 4, 5]], [[[6, 7]]], [[1.0]])
    states = by_hand(learner, [3, 4, 5, 6, 7])
    expected = states @ learner.value_head.weight[0] + 0.25
    value = learner.outputs(forest, ("logprob", "value"))["value"]
    assert torch.allclose(value, expected[2:4].detach(), atol=1e-12)  # chosen after "5", after "6"
    assert torch.allclose(learner.hidden(forest).double(), states, atol=1e-5)  # float32, of all five tokens
    assert bool(
        (TorchLearner(clean_llama(), lr=0.0, value_heads=("value",)).outputs(forest, ("value",))["value"] == 0).all()
    )


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([8, 8192]))
def test_values_and_hidden_states_do_not_depend_on_packing(seed, limit):
    forest = random_forest(seed)
    packed, flat = with_head(tokens_per_microbatch=limit), with_head(layout="flat", tokens_per_microbatch=limit)
    names = ("logprob", "value")
    one, other = packed.outputs(forest, names), flat.outputs(forest, names)
    assert all(torch.allclose(one[n], other[n], atol=1e-10) for n in names)
    assert torch.allclose(packed.hidden(forest), flat.hidden(forest), atol=1e-5)
    loss = lambda x: (x["value"] - 1).square().mean() + x["logprob"].mean()  # noqa: E731
    a, b = packed.gradient(forest, loss, names=names), flat.gradient(forest, loss, names=names)
    assert set(a) >= {"value_head.weight", "value_head.bias"}
    assert all(float((a[n] - b[n]).norm()) <= 1e-10 * max(1.0, float(b[n].norm())) for n in a)


def test_the_head_has_its_own_rate_and_is_saved_with_the_policy():
    forest = Forest.from_completions([[3, 4]], [[[6, 7], [8]]], [[1.0, 0.0]])
    slow, fast = with_head(), with_head(value_lr=3.0)
    for learner in (slow, fast):
        before = learner.snapshot()
        info = learner.step(forest, lambda x: (x["value"] - 9).square().sum(), names=("logprob", "value"))
        moved = learner.snapshot()["value_head.bias"] - before["value_head.bias"]
        # Adam's first step is the learning rate itself, up to eps
        assert float(moved) == pytest.approx(1e-2 if learner is slow else 3e-2, rel=1e-5) and not info.empty
    again = TorchLearner(clean_llama(seed=1), lr=1e-2, value_heads=("value",))
    again.load_tensors(fast.tensors(), fast.meta())
    assert again.fingerprint() == fast.fingerprint()


def test_a_value_is_refused_without_a_head():
    forest = Forest.from_completions([[3, 4]], [[[6]]], [[1.0]])
    with pytest.raises(ModelError, match="no value head"):
        TorchLearner(clean_llama(), lr=0.0).outputs(forest, ("value",))


def test_a_learner_beside_another_moves_by_itself():
    policy = TorchLearner(clean_llama(), lr=1e-2)
    forest = Forest.from_completions([[3, 4]], [[[6, 7]]], [[1.0]])
    second = policy.second_learner(lr=1e-3)
    assert torch.equal(second.outputs(forest)["logprob"], policy.outputs(forest)["logprob"])
    crc = policy.fingerprint()
    second.step(forest, lambda x: x["logprob"].sum())
    assert policy.fingerprint() == crc != second.fingerprint()
    assert second.optimiser.steps == 1 and policy.optimiser.steps == 0


def test_heads_by_name_read_one_state_and_learn_apart():
    learner = TorchLearner(clean_llama(), lr=1e-2, value_heads=("value@high", "value@low"))
    with torch.no_grad():
        learner.value_head.weight.copy_(torch.randn(2, 32, generator=torch.Generator().manual_seed(3)).double())
        learner.value_head.bias.copy_(torch.tensor([0.5, -2.0]))
    forest = Forest.from_completions([[3, 4, 5]], [[[6, 7]]], [[1.0]])
    expected = (by_hand(learner, [3, 4, 5, 6, 7]) @ learner.value_head.weight.T + learner.value_head.bias)[2:4]
    actual = learner.outputs(forest, ("value@low", "logprob", "value@high"))
    assert torch.allclose(actual["value@high"], expected[:, 0].detach(), atol=1e-12)
    assert torch.allclose(actual["value@low"], expected[:, 1].detach(), atol=1e-12)
    slope = learner.gradient(forest, lambda x: x["value@low"].sum(), names=("logprob", "value@low"))
    assert slope["value_head.bias"].tolist() == [0.0, 2.0]
    with pytest.raises(ModelError, match="there is no value head 'value@mid', but value@high, value@low"):
        learner.outputs(forest, ("value@mid",))


def test_a_method_says_which_heads_it_reads():
    import gxpo
    from gxpo.algorithms.credit import CreditPart

    class Heads(CreditPart):
        needs = ("value@low", "value")

        def __call__(self, forest, signals, step):
            return signals["value@low"] - signals["value"]

    m = gxpo.method("grpo", {"credit": Heads()})
    assert m.value_heads == ("value", "value@low") and gxpo.method("grpo").value_heads == ()
    with pytest.raises(gxpo.errors.MissingSignal, match=r"value@low' is missing \(the value head's"):
        m.advantages(Forest.from_completions([[3]], [[[6, 7]]], [[1.0]]), {"value": torch.zeros(2)})
