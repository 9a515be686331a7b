"""The learner's weights under the names and in the file that vLLM's process reads."""

import copy

import pytest
import torch
from tests.sampling.engines.letters import llama

from gxpo.learning.lora import LoraSettings, merge_adapters, with_lora
from gxpo.sampling.engines.weight_transfer import SharedWeights, weights_of


def test_a_tied_head_is_sent_once():
    tied, apart = llama(tie_word_embeddings=True), llama()
    assert "lm_head.weight" not in dict(weights_of(tied)) and "lm_head.weight" in dict(weights_of(apart))
    assert {n for n, _ in weights_of(tied)} == {n for n, _ in tied.named_parameters()}


@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "embed_tokens")])
def test_adapters_are_added_as_peft_merges_them(targets):
    model = with_lora(llama(), LoraSettings(rank=3, targets=targets))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_(std=0.3)
    sent = {name: x.clone() for name, x in weights_of(model)}
    plain = dict(merge_adapters(copy.deepcopy(model)).named_parameters())
    assert sent.keys() == plain.keys()
    assert all(torch.allclose(sent[name], plain[name], atol=1e-6) for name in plain)
    assert not torch.equal(sent["model.layers.0.self_attn.q_proj.weight"],
                           llama().model.layers[0].self_attn.q_proj.weight)  # fmt: skip
    with model.disable_adapter():
        assert all(torch.equal(x, dict(llama().named_parameters())[name]) for name, x in weights_of(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_shared_file_holds_every_tensor_and_is_unlinked(dtype):
    model, shared = llama().to(dtype), SharedWeights()
    header, sums = shared.write(model)
    assert shared.path is not None
    raw = shared.path.read_bytes()
    for (name, kind, shape, start, size), p in zip(header["tensors"], model.state_dict().values(), strict=True):
        own_tobytes = p.view(-1).view(torch.uint8).numpy().tobytes()
        assert raw[start : start + size] == own_tobytes and start % 64 == 0 and list(p.shape) == shape
        assert getattr(torch, kind) == dtype
        full_count = len(own_tobytes) // 8 * 8
        words = [int.from_bytes(own_tobytes[i : i + 8], "little") for i in range(0, full_count, 8)]
        assert sums[name] == (sum(words) + sum(own_tobytes[full_count:])) % 2**64
    shared.unlink()
    again, _ = shared.write(model)
    assert again["path"] is None and shared.path is None  # the memory stays; nobody has to open it again
