"""Foretold memory against bytes that were alive, by part: parameters and states exactly, the rest within a tolerance.

Counted on the CPU in the forward pass of transformers, which GPUs run (`tests.live_bytes`).
"""

import pytest
import torch
import transformers
from tests.live_bytes import LiveBytes
from tests.thorough import ALL

from gxpo.explain import memory
from gxpo.explain.memory import Training
from gxpo.forest.forest import Forest
from gxpo.learning.lora import LoraSettings, with_lora
from gxpo.learning.torch import TorchLearner
from gxpo.models import nf4
from gxpo.models.shape import shape_of_model
from gxpo.models.smollm2 import NAME
from gxpo.models.tiny import character_tokenizer, tiny_model
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.models import load

GROUP = 4
UPDATE, SAMPLING = 0.1, 0.1  # tolerances: of what a step needs beside the states, of what sampling needs


def qwen3(**sizes):
    """A Qwen3-0.6B with other numbers of layers and ids, random."""
    shape = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 2, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 2048, "tie_word_embeddings": True}  # fmt: skip
    torch.manual_seed(0)
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**{**shape, **sizes})).eval()


def smollm2(**sizes):
    """The shape of smollm2-135m, random."""
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True}  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**shape, **sizes})).eval()


MODELS = {"tiny": tiny_model, NAME: smollm2, "qwen3": qwen3}


def forest_of(vocabulary, prompt, new):
    """Two trees of GROUP samples."""
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, vocabulary, (2, prompt), generator=draw).tolist()
    completions = torch.randint(3, vocabulary, (2, GROUP, new), generator=draw).tolist()
    return Forest.from_completions(prompts, completions, [[0.0] * GROUP] * 2)


def measured_update(model, prompt, new, *, lora_rank=0, **how):
    """Foretold and live bytes of the second step of two micro-batches, a tree each; and the learner."""
    shape, dtype = shape_of_model(model), how.pop("dtype", "float32")
    tree = prompt + GROUP * new
    learner = TorchLearner(
        model.to(getattr(torch, dtype)), lr=1e-4, kernels="transformers", attention="dense", tokens_per_microbatch=tree,
        lora=LoraSettings(rank=lora_rank) if lora_rank else None, **how,
    )  # fmt: skip
    forest = forest_of(shape.vocabulary, prompt, new)
    weight = torch.linspace(-1, 1, forest.n_entries, dtype=torch.float64)

    def loss(x):
        return (weight * x["logprob"]).sum()

    learner.step(forest, loss)
    with LiveBytes() as live:
        info = learner.step(forest, loss)
    assert info.microbatches == 2
    t = Training(microbatch=tree, row=tree, samples=1, prompts=1, prompt=prompt, context=prompt + new, dtype=dtype,
                 lora_rank=lora_rank, **how)  # fmt: skip
    return memory.update(shape, t), live.peak, learner


SMALLER = {NAME: {"num_hidden_layers": 4, "vocab_size": 8192}}
WAYS = {
    "float32": {},
    "recompute": {"recompute": True},
    "lora": {"lora_rank": 8},
    "lora/recompute": {"lora_rank": 8, "recompute": True},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16/states": {"dtype": "bfloat16", "states": "bfloat16"},
    "bfloat16/lora": {"dtype": "bfloat16", "lora_rank": 8},
}
HELD = ("parameters", "adapters", "optimiser")


def held(learner):
    """Bytes of all parameters, and of what the optimiser keeps beside them."""
    base = sum(p.nbytes for name, p in learner.model.named_parameters() if "lora_" not in name)
    moments = [x for name, x in learner.optimiser.tensors().items() if not name.startswith("parameter/")]
    copies = [x for n, x in learner.optimiser._master.items() if x is not learner.optimiser.parameter_by_name[n]]
    adapters = sum(p.nbytes for name, p in learner.model.named_parameters() if "lora_" in name)
    return {"parameters": base, "adapters": adapters, "optimiser": sum(x.nbytes for x in (*moments, *copies))}


CASES = [(name, way) for name in MODELS for way in WAYS]
FAST = {("tiny", way) for way in ("float32", "lora/recompute", "bfloat16")}
SLOW = {(NAME, "float32"), (NAME, "lora"), ("qwen3", "recompute")}


def mark(case):
    return pytest.param(*case, marks=[] if case in FAST else [pytest.mark.slow if case in SLOW else ALL])


@pytest.mark.parametrize(("name", "way"), [mark(case) for case in CASES])
def test_an_update_takes_what_was_foretold(name, way):
    model = MODELS[name](**SMALLER.get(name, {}))
    parts, peak, learner = measured_update(model, 32, 96, **WAYS[way])
    actual = {k: n for k, n in held(learner).items() if n}
    assert {k: parts[k] for k in HELD if k in parts} == actual
    rest = sum(n for k, n in parts.items() if k not in HELD)
    assert rest == pytest.approx(peak, rel=UPDATE), f"{rest / peak:.3f}: {parts}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampling_takes_what_was_foretold(dtype):
    model, prompt, new, samples = tiny_model(), 40, 60, 24
    model = model.to(getattr(torch, dtype))
    engine = TorchEngine(model, stop_ids=(), kernels="transformers")
    keys = tuple(StreamKey(seed=0, step=1, task="a", attempt=j) for j in range(samples // 2))
    requests = [Request(tuple(range(3 + i, 3 + i + prompt)), keys) for i in range(2)]
    with LiveBytes() as live:
        engine.sample(requests, Sampling(max_new_tokens=new))
    t = Training(microbatch=1, row=1, samples=samples, prompts=2, prompt=prompt, context=prompt + new, dtype=dtype)
    parts = memory.sampling(shape_of_model(model), t)
    # 3 layers of 4 heads of 40, keys and values of every column; nobody ends early, so that no copy is made
    assert parts["caches"] == 2 * 3 * 160 * (4 if dtype == "float32" else 2) * samples * (prompt + new)
    actual = parts["caches"] + parts["caches of prompts"] + parts["drawing"]
    assert actual == pytest.approx(live.peak, rel=SAMPLING), f"{actual / live.peak:.3f}: {parts}"


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_base_in_nf4_takes_what_was_foretold(dtype, tmp_path):
    pytest.importorskip("bitsandbytes")
    smollm2(**SMALLER[NAME]).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    model = load(str(tmp_path), task="arithmetic", dtype=dtype, base="nf4").model
    codes = nf4.tensors_of(model)
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 4, "vocab_size": 8192}
    shape = shape_of_model(smollm2(**sizes))
    learner = TorchLearner(model, lr=1e-4, kernels="transformers", attention="dense", tokens_per_microbatch=416,
                           lora=LoraSettings(rank=8))  # fmt: skip
    forest = forest_of(shape.vocabulary, 32, 96)
    weight = torch.linspace(-1, 1, forest.n_entries, dtype=torch.float64)
    learner.step(forest, lambda x: (weight * x["logprob"]).sum())
    with LiveBytes() as live:
        learner.step(forest, lambda x: (weight * x["logprob"]).sum())
    t = Training(microbatch=416, row=416, samples=1, prompts=1, prompt=32, context=128, dtype=dtype, lora_rank=8,
                 base="nf4")  # fmt: skip
    parts = memory.update(shape, t)
    others = sum(p.nbytes for n, p in learner.model.named_parameters() if "lora_" not in n and not nf4.is_nf4(p))
    assert parts["parameters"] == pytest.approx(others + sum(x.nbytes for x in codes.values()), rel=1e-4)
    rest = sum(n for k, n in parts.items() if k not in HELD)
    assert rest == pytest.approx(live.peak, rel=UPDATE), f"{rest / live.peak:.3f}: {parts}"


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.mark.parametrize("name", ["tiny", "qwen3", "mixture"])
def test_adapters_are_counted_as_peft_makes_them(name):
    model = {"tiny": tiny_model, "qwen3": lambda: qwen3(num_hidden_layers=1), "mixture": mixture}[name]()
    shape = shape_of_model(model)
    # of a mixture on attention alone: peft would adapt the experts too, as parameters of three axes
    wrapped = with_lora(model, LoraSettings(rank=4, targets=ATTENTION if name == "mixture" else "all-linear"))
    assert memory.adapter_parameters(shape, 4) == sum(p.numel() for p in wrapped.parameters() if p.requires_grad)


def mixture():
    """A Qwen3-MoE of two layers, four experts of which a token goes through two."""
    config = transformers.Qwen3MoeConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, moe_intermediate_size=8, num_hidden_layers=2,
        num_experts=4, num_experts_per_tok=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    return transformers.Qwen3MoeForCausalLM(config).eval()
