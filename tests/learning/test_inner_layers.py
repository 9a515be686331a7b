"""Policies at inner layers, and the mean log-probability of the vocabulary."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama, random_forest, small_llama
from transformers import GPT2Config, GPT2LMHeadModel

from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.lora import LoraSettings
from gxpo.learning.torch import TorchLearner

DEEP = {"num_hidden_layers": 4}
NAMES = ("logprob", "logprob@2", "entropy@2", "mean_logprob", "mean_logprob@1", "entropy", "logprob@4")


def by_hand(model, tokens, layer, normed=True):
    """[n, V] log-probs of the head on the (normed) hidden state after a layer, from the model's own layers."""
    kept_outs = []
    hook = model.model.layers[layer - 1].register_forward_hook(
        lambda _, __, out: kept_outs.append(out if torch.is_tensor(out) else out[0])
    )
    model.model(input_ids=torch.tensor([tokens]), use_cache=False)
    hook.remove()
    return model.lm_head(model.model.norm(kept_outs[0][0]) if normed else kept_outs[0][0]).log_softmax(-1)


@pytest.mark.parametrize("kernels", ["auto", "transformers"])
@pytest.mark.parametrize("layout", ["packed", "flat"])
def test_outputs_are_of_the_head_on_the_normed_state(kernels, layout):
    model = clean_llama(**DEEP)
    learner = TorchLearner(model, lr=0.0, kernels=kernels, layout=layout)
    assert (learner._readout.decoder is None) == (kernels == "transformers")
    forest = Forest.from_completions([[3, 4, 5]], [[[6, 7], [8]]], [[1.0, 0.0]])
    actual = learner.outputs(forest, NAMES)
    for layer, ending in ((1, "@1"), (2, "@2"), (4, "")):
        long, short = by_hand(model, [3, 4, 5, 6, 7], layer), by_hand(model, [3, 4, 5, 8], layer)
        expected = {
            "logprob": torch.stack([long[2, 6], long[3, 7], short[2, 8]]),
            "entropy": torch.stack([-(x.exp() * x).sum() for x in (long[2], long[3], short[2])]),
            "mean_logprob": torch.stack([sum(x) / 23 for x in (long[2], long[3], short[2])]),
        }
        for kind, x in expected.items():
            if kind + ending in actual:
                assert torch.allclose(actual[kind + ending], x.detach(), rtol=0, atol=1e-10), kind + ending
    assert torch.equal(actual["logprob@4"], actual["logprob"])


@pytest.mark.parametrize("kernels", ["auto", "transformers"])
def test_the_head_on_the_state_as_it_is(kernels):
    """Trae1ounG/BuPO@d3a85c6 verl/models/custom_model/modeling_qwen3.py: lm_head(hidden_states[k + 1]), no norm."""
    model = clean_llama(**DEEP)
    learner = TorchLearner(model, lr=0.0, kernels=kernels)
    forest = Forest.from_completions([[3, 4, 5]], [[[6, 7]]], [[1.0]])
    names = ("logprob@2", "unnormed_logprob@2", "logprob", "unnormed_entropy@1")
    actual = learner.outputs(forest, names)
    for name, normed in (("logprob@2", True), ("unnormed_logprob@2", False)):
        x = by_hand(model, [3, 4, 5, 6, 7], 2, normed)
        assert torch.allclose(actual[name], torch.stack([x[2, 6], x[3, 7]]).detach(), rtol=0, atol=1e-10), name
    assert not torch.allclose(actual["logprob@2"], actual["unnormed_logprob@2"], atol=1e-3)
    x = by_hand(model, [3, 4, 5, 6, 7], 1, False)[2:4]
    assert torch.allclose(actual["unnormed_entropy@1"], -(x.exp() * x).sum(1).detach(), rtol=0, atol=1e-10)
    with pytest.raises(ModelError, match="the last layer's states are normed"):
        learner.outputs(forest, ("unnormed_logprob@4",))


@pytest.mark.parametrize("kernels", ["auto", "transformers"])
def test_the_gradient_reaches_lower_layers_norm_and_head_alone(kernels):
    model = clean_llama(**DEEP)
    learner = TorchLearner(model, lr=0.0, kernels=kernels)
    forest = Forest.from_completions([[3, 4, 5]], [[[6, 7]]], [[1.0]])
    for name, pick in (("logprob@2", lambda x: x[2, 6] + x[3, 7]), ("mean_logprob@2", lambda x: x[2:4].mean(1).sum())):
        expected = pick(by_hand(model, [3, 4, 5, 6, 7], 2))
        parameters = dict(model.named_parameters())
        dense = dict(
            zip(parameters, torch.autograd.grad(expected, list(parameters.values()), allow_unused=True), strict=True)
        )
        actual = learner.gradient(forest, lambda x, name=name: x[name].sum(), names=("logprob", name))
        for n, g in dense.items():
            if g is None:
                assert ".layers.2." in n or ".layers.3." in n
                assert not bool(actual[n].any())
            else:
                assert torch.allclose(actual[n], g, rtol=0, atol=1e-9), n


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6))
def test_packed_is_flattened_and_cuts_change_nothing(seed):
    forest = random_forest(seed)
    learner = TorchLearner(clean_llama(**DEEP), lr=0.0, tokens_per_microbatch=30)
    flat = TorchLearner(clean_llama(**DEEP), lr=0.0, layout="flat", logits_at_once=60)
    one, other = learner.outputs(forest, NAMES), flat.outputs(forest, NAMES)
    assert all(torch.allclose(one[n], other[n], rtol=0, atol=1e-10) for n in NAMES)

    def loss(x):
        return (x["logprob@2"] * x["entropy"].detach()).mean() + (x["mean_logprob@1"] + x["logprob"]).square().mean()

    def gradient(learner, cuts, two_pass):
        actual = learner.gradient(forest, loss, names=NAMES, cuts=cuts, two_pass=two_pass)
        return torch.cat([g.reshape(-1) for _, g in sorted(actual.items())])

    full_gradient = gradient(learner, [torch.arange(forest.n_entries)], True)
    pieces = list(torch.arange(forest.n_entries).split(3))
    for who, cuts, two_pass in ((learner, pieces, False), (learner, pieces, True), (flat, None, None)):
        limit = 1e-12 if who is learner else 1e-10
        assert float((gradient(who, cuts, two_pass) - full_gradient).norm()) <= limit * max(
            1.0, float(full_gradient.norm())
        )


def test_shares_of_the_depth():
    learner = TorchLearner(clean_llama(**DEEP), lr=0.0)
    readout = learner._readout
    assert [readout.layer_of(x) for x in ("1", "3", "4", "0.05", "0.5", "0.75", "1.0")] == [1, 3, -1, 1, 2, 3, -1]
    forest = Forest.from_completions([[3, 4]], [[[6]]], [[1.0]])
    actual = learner.outputs(forest, ("logprob@0.5", "logprob@2"))
    assert torch.equal(actual["logprob@0.5"], actual["logprob@2"])
    for bad in ("logprob@0", "logprob@5", "logprob@-1", "logprob@1.3", "logprob@0.0", "logprob@first", "value@1"):
        with pytest.raises(ModelError, match=r"layers 1 to 4|'@LAYER'|no output|no value head"):
            learner.outputs(forest, (bad,))


def test_models_of_other_families_and_adapters():
    """The final norm is found by what it does; adapters are in every layer's policy."""
    config = GPT2Config(vocab_size=23, n_embd=32, n_layer=3, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, initializer_range=0.3)  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).eval()
    forest = Forest.from_completions([[3, 4, 5]], [[[6, 7]]], [[1.0]])
    actual = TorchLearner(model, lr=0.0, layout="flat").outputs(forest, ("logprob@1",))["logprob@1"]
    with torch.no_grad():
        inner = model.transformer(torch.tensor([[3, 4, 5, 6, 7]]), output_hidden_states=True).hidden_states[1][0]
        log_p = model.lm_head(model.transformer.ln_f(inner)).log_softmax(-1)
    assert actual.tolist() == pytest.approx([float(log_p[2, 6]), float(log_p[3, 7])], abs=1e-5)
    learner = TorchLearner(small_llama(**DEEP), lr=1e-2, lora=LoraSettings(rank=2))
    before = learner.outputs(forest, ("logprob@2",))["logprob@2"]
    learner.step(forest, lambda x: -x["logprob@2"].sum(), names=("logprob", "logprob@2"))
    learner.step(forest, lambda x: -x["logprob@2"].sum(), names=("logprob", "logprob@2"))
    assert bool((learner.outputs(forest, ("logprob@2",))["logprob@2"] > before).all())


def test_recomputed_layers_give_the_same():
    forest, gradients = random_forest(2), []
    ways: tuple[dict[str, Any], ...] = ({}, {"recompute": True}, {"recompute": True, "kernels": "transformers"})
    for settings_ in ways:
        learner = TorchLearner(clean_llama(**DEEP), lr=0.0, **settings_)
        actual = learner.gradient(forest, lambda x: x["logprob@2"].sum() + x["logprob"].sum(),
                                 names=("logprob", "logprob@2"))  # fmt: skip
        gradients.append(torch.cat([g.reshape(-1) for _, g in sorted(actual.items())]))
    assert all(torch.allclose(g, gradients[0], rtol=0, atol=1e-9) for g in gradients[1:])


def test_mean_logprob_is_over_what_is_allowed():
    support = [torch.tensor([[6, 2, 9], [7, -1, -1]]), None]
    forest = Forest.from_completions([[3, 4]], [[[6, 7], [8]]], [[1.0, 0.0]], support=support,
                                     sampling={"temperature": 0.5})  # fmt: skip
    model = clean_llama()
    actual = TorchLearner(model, lr=0.0).outputs(forest, ("mean_logprob", "logprob"))["mean_logprob"]
    with torch.no_grad():
        z = model(torch.tensor([[3, 4]])).logits[0, -1] / 0.5
    held_value = z[[6, 2, 9]]
    expected = [float(held_value.mean() - held_value.logsumexp(0)), 0.0, float(z.mean() - z.logsumexp(0))]
    assert actual.tolist() == pytest.approx(expected, abs=1e-12)
