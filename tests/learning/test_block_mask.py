"""Block masks of FlexAttention from depth-first intervals: the same pairs, and the same numbers, as dense masks."""

import copy
import warnings

import pytest
import torch
from tests.learning.llamas import clean_llama, random_forest, small_llama
from tests.learning.test_architecture import FLAT, FOREST, LLAMAS, PACKED, alone, made
from tests.thorough import some
from torch.nn.functional import scaled_dot_product_attention
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from gxpo.base.errors import ConfigError, ModelError
from gxpo.learning.architecture import attention_mask, pad
from gxpo.learning.block_mask import KERNEL, attend, block_mask, mask_bytes, row_trial, switch, tree_ends
from gxpo.learning.lora import LoraSettings
from gxpo.learning.packing import Packing
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.choices import PURPOSES, Sizes
from gxpo.parts.definition import SettingValue
from gxpo.training import config
from gxpo.training.preflight import check_settings

WINDOWED = {
    "every layer": lambda: MistralForCausalLM(MistralConfig(**LLAMAS, sliding_window=4)),
    "one of two layers": lambda: Qwen2ForCausalLM(
        Qwen2Config(**LLAMAS, sliding_window=4, use_sliding_window=True, max_window_layers=1)
    ),
}


def sheets(seeds, limit=40):
    """Padded rows of random forests with forks inside actions, in several rows a sheet."""
    for seed in seeds:
        forest = random_forest(seed)
        packing = Packing(forest, limit=limit)
        yield from packing.microbatches(torch.arange(forest.n_entries))


def allowed_by_parents(sheet, window=None):
    """[B, L, L] by walking up from every token, node by node; padding sees itself."""
    forest, out, start = sheet.packing.forest, [], 0
    first, length = forest.first_token.tolist(), max(sheet.lengths)
    for n in sheet.lengths:
        place = {token: i for i, token in enumerate(sheet.index[start : start + n].tolist())}
        row = torch.eye(length, dtype=torch.bool)
        for token, i in place.items():
            node = max(m for m in range(forest.n_nodes) if first[m] <= token and first[m + 1] > first[m])
            path = list(range(first[node], token + 1))
            while (node := int(forest.parent[node])) >= 0:
                path = [*range(first[node], first[node + 1]), *path]
            for seen_path in path if window is None else path[-window:]:
                row[i, place[seen_path]] = True
        out.append(row)
        start += n
    return torch.stack(out)


def pairs(mask, rows, length):
    """[B, L, L] what the function of a block mask allows."""
    b, q, k = torch.meshgrid(torch.arange(rows), torch.arange(length), torch.arange(length), indexing="ij")
    return mask.mask_mod(b, torch.zeros_like(b), q, k)


def ends_of(sheet):
    rows = pad(sheet)
    return tree_ends(rows.enter, rows.leave, rows.is_token), rows.position


def test_a_prompt_with_two_branches():
    # nodes 0 (three tokens), 1 and 2 (two each) below it, one token of padding
    enter = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 0]])
    leave = torch.tensor([[3, 3, 3, 2, 2, 3, 3, 3]])
    held_values = torch.tensor([[True] * 7 + [False]])
    assert tree_ends(enter, leave, held_values).tolist() == [[7, 7, 7, 5, 5, 7, 7, 8]]


@pytest.mark.parametrize("window", [None, 3])
def test_the_pairs_are_those_of_ancestors(window):
    padding = forked = 0
    for sheet in sheets(range(12)):
        end, position = ends_of(sheet)
        expected = allowed_by_parents(sheet, window)
        actual = pairs(block_mask(end, position, window), *end.shape)
        assert torch.equal(actual, expected)
        if window is None:
            assert torch.equal(expected, attention_mask(pad(sheet)))
        padding += len(set(sheet.lengths)) > 1
        forked += bool((end < torch.tensor(sheet.lengths)[:, None])[:, 1:].any())
    assert min(padding, forked) > 3


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("block", [1, 2, 4])
def test_blocks_left_out_hold_no_pair_and_full_ones_every_pair(window, block):
    left_out = full = 0
    for sheet in sheets(range(8)):
        end, position = ends_of(sheet)
        mask, target = block_mask(end, position, window, block=block), allowed_by_parents(sheet, window)
        rows, length = end.shape
        for b in range(rows):
            for i in range(-(-length // block)):
                part = mask.kv_indices[b, 0, i, : mask.kv_num_blocks[b, 0, i]].tolist()
                full_kv_index = mask.full_kv_indices[b, 0, i, : mask.full_kv_num_blocks[b, 0, i]].tolist()
                assert not {*part} & {*full_kv_index}
                for j in range(-(-length // block)):
                    inside = target[b, i * block : (i + 1) * block, j * block : (j + 1) * block]
                    if j in full_kv_index:
                        assert inside.shape == (block, block) and bool(inside.all())
                    elif j not in part:
                        assert not bool(inside.any())
                        left_out += j < i
                full += len(full_kv_index)
    assert min(left_out, full) > 10


@pytest.mark.slow
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("window", [None, 3])
def test_attention_is_that_of_a_dense_mask(dtype, tolerance, window):
    for sheet in sheets(range(2)):
        end, position = ends_of(sheet)
        draw = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(len(end), heads, end.shape[1], 8, generator=draw, dtype=dtype) for heads in (4, 2, 2))
        out, _ = attend(None, q, k, v, block_mask(end, position, window, block=16), scaling=0.3)
        wide = (x.repeat_interleave(2, 1) for x in (k, v))
        dense = scaled_dot_product_attention(q, *wide, allowed_by_parents(sheet, window)[:, None], scale=0.3)
        assert float((out.transpose(1, 2) - dense).abs().max()) <= tolerance


def test_soft_capped_scores():
    sheet = next(sheets([3]))
    end, position = ends_of(sheet)
    draw = torch.Generator().manual_seed(0)
    q, k, v = (3 * torch.randn(len(end), 2, end.shape[1], 8, generator=draw, dtype=torch.float64) for _ in range(3))
    out, _ = attend(None, q, k, v, block_mask(end, position), scaling=0.5, softcap=2.0, dropout=0.0)
    scores = 2.0 * (q @ k.transpose(2, 3) * 0.5 / 2.0).tanh()
    p = scores.masked_fill(~allowed_by_parents(sheet)[:, None], -torch.inf).softmax(-1)
    assert float((out.transpose(1, 2) - p @ v).abs().max()) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
@pytest.mark.parametrize("model, tolerance", some([(clean_llama, 1e-12), (small_llama, 1e-5)], [(clean_llama, 1e-12)]))
def test_log_probs_of_a_model(model, tolerance, lora):
    for seed in range(2):
        forest = random_forest(seed)
        same = {"lr": 0.0, "kernels": "transformers", "tokens_per_microbatch": 48, "lora": lora, "reference": True}
        flex, dense = (TorchLearner(model(), attention=attention, **same) for attention in ("flex", "dense"))
        assert flex.model.config._attn_implementation == KERNEL
        for policy in ("current", "reference"):
            x, y = (learner.outputs(forest, ("logprob", "entropy"), policy=policy) for learner in (flex, dense))
            assert max(float((x[name] - y[name]).abs().max()) for name in x) <= tolerance
        assert float((flex.hidden(forest, 1) - dense.hidden(forest, 1)).abs().max()) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWED)
def test_sliding_windows_are_packed(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = TorchLearner(made(WINDOWED[name]), lr=0.0, kernels="transformers", attention="flex")
    assert learner.layout == "packed"
    assert torch.allclose(learner.outputs(FOREST)["logprob"], alone(made(WINDOWED[name])), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("model, tolerance", some([(clean_llama, 1e-12), (small_llama, 1e-5)], [(clean_llama, 1e-12)]))
def test_gradient_by_the_fallback_of_torch(monkeypatch, model, tolerance, recompute):
    """torch's unfused backward pass of FlexAttention is right on CPUs, too, once its check of the device is off: it
    shows what masks and learner do, not the kernel that GPUs run (tests/learning/test_device.py does)."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *given: None)
    monkeypatch.setattr("gxpo.learning.architecture.NO_FLEX_BACKWARD", ())
    for seed in (3, 5):
        forest = random_forest(seed)
        weight = torch.linspace(-1, 1, forest.n_entries, dtype=torch.float64)

        def loss(x, weight=weight):
            return (weight * x["logprob"]).sum().tanh() + 0.05 * x["entropy"].mean()

        same = {"lr": 0.0, "kernels": "transformers", "tokens_per_microbatch": 48, "recompute": recompute}
        flex, dense = (
            TorchLearner(model(), attention=attention, **same).gradient(
                forest, loss, names=("logprob", "entropy"), couples="step"
            )
            for attention in ("flex", "dense")
        )
        assert flex.keys() == dense.keys()
        for name in dense:
            assert float((flex[name] - dense[name]).norm()) <= tolerance * float(dense[name].norm().clamp_min(1e-6))


def test_other_masks_have_the_bits_of_sdpa():
    plain, tokens = small_llama(), torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
    switched = copy.deepcopy(plain)
    assert switch(switched) is None
    for mask in (None, torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]), torch.zeros(2, 1, 4, 4)):
        one, other = (m(input_ids=tokens, attention_mask=mask).logits for m in (plain, switched))
        assert torch.equal(one, other)
    cached = [m.generate(tokens[:1], max_new_tokens=4, do_sample=False) for m in (plain, switched)]
    assert torch.equal(*cached)


def test_the_kernel_is_not_saved_with_the_model(tmp_path):
    model = small_llama()
    assert switch(model) is None
    model.save_pretrained(tmp_path)
    assert KERNEL not in (tmp_path / "config.json").read_text()


def test_no_gradient_on_the_cpu():
    learner = TorchLearner(small_llama(), lr=0.0, kernels="transformers", attention="flex")
    with pytest.raises(ModelError, match=r"no backward pass on cpu: set learner\.attention=dense"):
        learner.step(FOREST, lambda x: x["logprob"].sum())
    asked_config = config.resolve(
        {"learner.attention": SettingValue("flex", "test"), "learner.device": SettingValue("cpu", "test")}
    )
    with pytest.raises(ConfigError, match=r"learner\.attention=flex: FlexAttention has no backward pass on cpu"):
        check_settings(asked_config.settings, asked_config.method)


@pytest.mark.parametrize(
    "make, settings, reason",
    [
        (FLAT["recurrent"], {}, "has recurrent layers"),
        (FLAT["do not follow a mask|kernel"], {}, "no FlexAttention for BloomForCausalLM"),
        (PACKED["gpt2"], {}, "no FlexAttention for GPT2LMHeadModel"),
        (lambda: small_llama(attn_implementation="eager"), {}, "attn_implementation='eager', not 'sdpa'"),
        (small_llama, {"layout": "flat"}, "rows of learner.layout=flat have no forks"),
        (small_llama, {"kernels": "auto"}, "gxpo's own forward pass needs no mask"),
    ],
)
def test_refused_with_the_reason(make, settings, reason):
    with pytest.raises(ModelError, match=reason):
        TorchLearner(made(make), lr=0.0, **{"kernels": "transformers", "attention": "flex", **settings})


def test_auto_is_dense_on_the_cpu():
    learner = TorchLearner(small_llama(), lr=0.0, kernels="transformers")
    learner.step(FOREST, lambda x: x["logprob"].sum())
    assert learner.model.config._attn_implementation == "sdpa"


def test_bytes_of_a_row_of_32k():
    # a prompt of 4,096 and 14 samples of 2,048: 32,768 tokens, 256 blocks of 128
    nodes = torch.cat([torch.zeros(4096, dtype=torch.int64), torch.arange(1, 15).repeat_interleave(2048)])[None]
    leave = torch.where(nodes == 0, 15, nodes + 1)
    end = tree_ends(nodes, leave, torch.ones_like(nodes, dtype=torch.bool))
    mask = block_mask(end, torch.zeros_like(end))
    # ids of blocks by query and by key, partial and full: 4 x 256 x 256 x 4 bytes; their numbers 4 x 256 x 4;
    # an int64 a token: 32,768 x 8. A dense mask in bfloat16 has 32,768 x 32,768 x 2 = 2,147,483,648.
    assert mask_bytes(mask) == 1_048_576 + 4_096 + 262_144
    # the prompt: 32 x 33 / 2 blocks; each sample: 16 x 32 of the prompt and 16 x 17 / 2 of its own
    assert int(mask.kv_num_blocks.sum() + mask.full_kv_num_blocks.sum()) == 528 + 14 * (512 + 136)


def test_rows_have_the_masks_that_were_chosen(monkeypatch):
    learner = TorchLearner(small_llama(), lr=0.0, kernels="transformers")
    dense = learner.outputs(FOREST, ("logprob",))["logprob"]
    learner.use({"row attention": "flex"})
    flex = learner.outputs(FOREST, ("logprob",))["logprob"]
    assert learner.model.config._attn_implementation == KERNEL and torch.allclose(flex, dense, atol=1e-5)
    learner.use({})
    monkeypatch.setattr(learner, "_dense_mask_reason", lambda: "it was tried")
    with pytest.warns(UserWarning, match="dense masks: it was tried"):
        learner.outputs(FOREST, ("logprob",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.outputs(FOREST, ("logprob",))


def test_masks_are_timed_on_a_row_of_a_group(monkeypatch):
    monkeypatch.setattr("gxpo.models.decoder.choices.SECONDS", 0.0)
    lengths = []

    def attend_by(module, q, k, v, mask):
        lengths.append(mask.seq_lengths)
        return q, None

    monkeypatch.setattr("gxpo.learning.block_mask.attend", attend_by)
    config, cpu = small_llama().config, torch.device("cpu")
    # a prompt of 8 and four actions of 4; of at most 17 tokens: two actions
    for limit in (100, 17):
        trial = row_trial(config, torch.float32, cpu, Sizes(prompt=8, action=4, group=4, samples=8), limit)
        assert tuple(trial.seconds) == PURPOSES["row attention"].kernels
    assert lengths == [(24, 24)] * 2 + [(16, 16)] * 2
