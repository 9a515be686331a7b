"""Models and forests that the learner's tests share."""

from __future__ import annotations

from typing import Any

import torch
from tests import strategies
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from gxpo.forest.forest import Forest

VOCABULARY = 23


class CleanNorm(nn.Module):
    """RMSNorm in the dtype of its input; the one of transformers computes in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()


class CleanRotary(nn.Module):
    """Rotary tables in float64."""

    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        self.frequency = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angle = position_ids[..., None].to(torch.float64) * self.frequency
        angle = torch.cat([angle, angle], -1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def small_llama(seed: int = 0, **settings: Any) -> LlamaForCausalLM:
    """A stock float32 Llama of two layers with weights large enough for attention to matter."""
    config = LlamaConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "initializer_range": 0.2,
            "eos_token_id": 1,
            **settings,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def clean_llama(seed: int = 0, **settings: Any) -> LlamaForCausalLM:
    """The same in float64 throughout: norms, rotary tables and softmax (sdpa computes in the dtype it is given)."""
    model = small_llama(seed, **settings).to(torch.float64)
    assert model.config._attn_implementation == "sdpa"
    size, eps = model.config.hidden_size, model.config.rms_norm_eps
    generator = torch.Generator().manual_seed(seed)
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = CleanNorm(size, eps), CleanNorm(size, eps)
    model.model.norm = CleanNorm(size, eps)
    for module in model.modules():
        if isinstance(module, CleanNorm):
            module.weight.data = 1 + 0.1 * torch.randn(size, dtype=torch.float64, generator=generator)
    model.model.rotary_emb = CleanRotary(size // model.config.num_attention_heads, 10000.0)
    return model.eval()


def random_forest(seed: int) -> Forest:
    """Two groups of up to four rollouts: forks of forks, rebuilt contexts, agents; every action has a context."""
    return strategies.random_forest(seed, vocab=VOCABULARY, groups=2, max_turns=3, empty_prompts=False)
