"""Linear layers in NF4: their numbers by the published table, what products and gradients read, what is refused."""

import copy
import json
import sys

import pytest
import torch

pytest.importorskip("bitsandbytes")
from tests.learning.llamas import VOCABULARY
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from gxpo.base.errors import CheckpointError, MissingExtra, ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.lora import LoraSettings
from gxpo.learning.sampling_copy import SamplingCopy
from gxpo.learning.torch import TorchLearner
from gxpo.models import nf4
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.models import character_tokenizer, load, tiny_model

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
# Dettmers et al. 2023, appendix E: the 16 values of NF4, to the four digits that tell them apart
TABLE = [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
         0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama whose rows are multiples of a block, in files."""
    path = tmp_path_factory.mktemp("model")
    tiny_model(3, **SIZES).save_pretrained(path)
    character_tokenizer().save_pretrained(path)
    return path


def loaded(folder, **settings):
    return load(str(folder), task="arithmetic", base="nf4", **settings).model


def learner_of(model, **settings):
    return TorchLearner(model, **{"lr": 0.01, "lora": LoraSettings(rank=4), **settings})


def forest():
    completions = [[[(5 + i * j) % VOCABULARY for j in range(1, 8)] for i in range(1, 4)]]
    return Forest.from_completions([[2, 3, 4]], completions, [[0.0, 1.0, 0.5]])


def slanted(x):
    """A loss whose slope differs from token to token."""
    return (x["logprob"] * torch.linspace(-1, 1, x["logprob"].numel(), dtype=torch.float64)).sum()


def test_weights_are_a_table_of_sixteen_values_times_the_scale_of_their_block(folder):
    dense = tiny_model(3, **SIZES)
    for name, layer in nf4.layers_of(loaded(folder)).items():
        original = dense.get_submodule(name).weight.detach()
        blocks = original.reshape(-1, 64)
        # by hand: the nearest value of the table, scaled by the block's largest magnitude
        scale = blocks.abs().amax(1, keepdim=True)
        nearest = torch.tensor(TABLE)[(blocks[..., None] / scale[..., None] - torch.tensor(TABLE)).abs().argmin(-1)]
        # scales are rounded to 8 bits: a block's may be off by a hundredth of the range of all
        values = nf4.values_of(layer.weight).reshape(-1, 64)
        excess = (values - blocks).abs() - (nearest * scale - blocks).abs()
        assert excess.max() <= 0.02 * scale.max(), name
        assert torch.isclose(values / scale, torch.tensor(TABLE)[:, None, None], atol=0.02).any(0).all(), name
        assert torch.equal(nf4.dequantise(layer.weight), nf4.values_of(layer.weight)), name


def test_a_weight_takes_half_a_byte_and_its_scale_the_128th_part_of_one(folder):
    model = loaded(folder, dtype="bfloat16")
    layers, kinds = nf4.layers_of(model), {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert {name.rpartition(".")[2] for name in layers} == kinds and len(layers) == 14
    of_query = nf4.tensors_of(model)
    sizes = [of_query[f"model.layers.0.self_attn.q_proj.{part}"].nbytes for part in ("weight", "absmax", "absmax2")]
    assert sizes == [64 * 64 // 2, 64, 4]  # 64 blocks of 64 weights; their 64 scales share one of 4 bytes
    rest = {p.dtype for p in model.parameters() if not nf4.is_nf4(p)}
    assert rest == {torch.bfloat16} and type(model.lm_head) is torch.nn.Linear


@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_products_and_gradients_read_the_same_weights_with_and_without_gradient(folder, dtype, near):
    model = loaded(folder, dtype=dtype)
    layer = model.model.layers[0].mlp.down_proj
    weight, x = nf4.values_of(layer.weight), torch.randn(5, 128, generator=torch.Generator().manual_seed(1))
    x = x.to(getattr(torch, dtype))
    before = {name: tensor.clone() for name, tensor in nf4.tensors_of(model).items()}
    with torch.no_grad():  # as a sampler does, before and between updates
        model(torch.arange(9)[None])
        sampled = layer(x)
    live = x.clone().requires_grad_()
    trained = layer(live)
    slope = torch.linspace(-1, 1, trained.numel()).view_as(trained).to(trained)
    trained.backward(slope)
    assert torch.equal(sampled, trained)
    assert torch.allclose(trained.float(), x.float() @ weight.T, atol=near * float((x.float() @ weight.T).abs().max()))
    assert torch.allclose(live.grad.float(), slope.float() @ weight, atol=near * float(live.grad.abs().max()))
    after = nf4.tensors_of(model)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_adapters_alone_are_trained_and_the_reference_is_the_quantised_base(folder):
    bare = learner_of(loaded(folder), lora=LoraSettings(rank=1)).outputs(forest())["logprob"]  # B is zero at first
    learner = learner_of(loaded(folder), reference=True)
    assert {p.dtype for p in learner.optimiser.parameter_by_name.values()} == {torch.float32}
    assert all("lora_" in name for name in learner.snapshot())
    learner.step(forest(), slanted)
    moved = learner.outputs(forest())["logprob"]
    assert torch.equal(learner.outputs(forest(), policy="reference")["logprob"], bare)
    assert (moved - bare).abs().max() > 1e-3


def test_the_gradient_of_adapters_is_that_over_a_dense_base_of_the_same_numbers(folder):
    quantised = learner_of(loaded(folder)).gradient(forest(), slanted)
    dense = learner_of(nf4.as_dense(loaded(folder), torch.float32)).gradient(forest(), slanted)
    assert quantised.keys() == dense.keys()
    for name, gradient in dense.items():
        assert torch.allclose(quantised[name], gradient, atol=1e-5 * float(gradient.abs().max()) + 1e-8), name


def test_the_sampler_draws_from_the_weights_that_are_trained(folder):
    learner = learner_of(loaded(folder))
    learner.step(forest(), slanted)
    engine = TorchEngine(learner.samples, stop_ids=())
    keys = tuple(StreamKey(seed=0, step=1, task="a", attempt=i) for i in range(4))
    answers = engine.sample([Request((2, 3, 4), keys)], Sampling(max_new_tokens=12))[0]
    drawn = Forest.from_completions([[2, 3, 4]], [[list(a.tokens) for a in answers]], [[0.0] * 4])
    read = learner.outputs(drawn)["logprob"]
    assert torch.allclose(read, torch.tensor([x for a in answers for x in a.logprobs]).double(), atol=1e-5)


def test_a_copy_for_samplers_shares_the_bytes_of_the_base(folder):
    learner = learner_of(loaded(folder))
    published = SamplingCopy(learner.model, learner.policies, share="frozen")
    learner.step(forest(), slanted)
    layers, copies = (nf4.layers_of(model) for model in (learner.model, published.model))
    assert all(copies[name].weight.data_ptr() == layer.weight.data_ptr() for name, layer in layers.items())
    published.set_weights((name, learner.snapshot()[name]) for name in published.names)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        assert torch.equal(published.model(ids).logits, learner.model(ids).logits)
        whole = copy.deepcopy(learner.model)
        assert torch.equal(whole(ids).logits, learner.model(ids).logits)


def test_a_checkpoint_knows_its_base_and_refuses_another(folder):
    learner = learner_of(loaded(folder))
    tensors, meta = learner.tensors(), learner.meta()
    assert all("lora_" in name for name in tensors) and meta.keys() == {"steps", "base_fingerprint"}
    other = learner_of(loaded(folder))
    other.load_tensors(tensors, meta)
    next(iter(nf4.layers_of(other.model).values())).weight.data[0] ^= 1  # one code of one layer
    with pytest.raises(CheckpointError, match=r"4-bit weights have fingerprint .* take the model's files"):
        other.load_tensors(tensors, meta)
    assert TorchLearner(tiny_model(3, **SIZES), lr=0.01).meta() == {"steps": 0}


# ---------------------------------------------------------------- refusals
def test_wrong_weights_of_a_kernel_are_found_before_a_run(folder, monkeypatch):
    monkeypatch.setattr(nf4, "dequantise", lambda weight: nf4.values_of(weight).roll(1, 0))
    with pytest.raises(ModelError, match=r"wrong weights for model.layers.1.self_attn.\w+ \(64 x 64\)"):
        loaded(folder)


def test_what_is_mostly_no_linear_layer_is_refused(tmp_path):
    config = Qwen3MoeConfig(
        vocab_size=50, hidden_size=64, intermediate_size=64, moe_intermediate_size=64, num_hidden_layers=1,
        num_experts=4, num_experts_per_tok=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="inner weights are not in linear layers"):
        loaded(tmp_path)


def test_files_that_are_quantised_are_refused_both_ways(folder, tmp_path):
    loaded(folder).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"]["load_in_4bit"]
    for base in ("nf4", None):
        with pytest.raises(ModelError, match=r"its files are quantised \(bitsandbytes\): take the model"):
            load(str(tmp_path), task="arithmetic", base=base)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"dtype": "float64"}, "bfloat16 or float32, not float64"), ({"name": "tiny:cold"}, "is read from no files")],
)
def test_dtypes_and_models_without_files_are_refused(folder, settings, words):
    with pytest.raises(ModelError, match=words):
        loaded(settings.pop("name", folder), **settings)


def test_a_missing_package_is_named_with_its_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtra, match=r"pip install 'gxpo\[nf4\]'"):
        loaded(folder)
