"""Which models the decoder knows, and their hidden states for a flat list of tokens."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gxpo.decoder.attention import HALF, Chain, Plan, TreeAttention, attend, has_matrix_units, kernel_works
from gxpo.decoder.functions import AddLinear, GatedMLP, NormLinears

FAMILY = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")
NORMS = ("LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "MistralRMSNorm")
Kernels = Literal["auto", "transformers"]
Products = Literal["auto", "native", "float32"]


class Decoder:
    """Hidden states of a transformers model of the Llama family, computed on its own modules and parameters.

    causal    the model; adapters, biases, norms of other kinds and norms of queries and keys are run as they are
    products  dtype in which matrices are multiplied: "native" (of the parameters), "float32", or "auto": float32 for
              parameters of 16 bits on processors without matrix units for them (`gxpo.decoder.measure` tries it out).
              It may be set anew between two passes
    recompute hold one hidden state a token and layer, and compute the rest again in the backward pass

    `Decoder.why_not(causal)` is the reason for which a model can't be run here, None if it can.
    """

    def __init__(self, causal: Any, *, products: Products = "auto", recompute: bool = False) -> None:
        self.model, config = causal.model, causal.config
        self.heads = config.num_attention_heads
        self.layers = list(self.model.layers)
        self.scale = float(self.layers[0].self_attn.scaling)
        self.recompute = recompute
        self.products: Products = products

    @staticmethod
    def why_not(causal: Any) -> str | None:
        """From the model's class, configuration and device."""
        name = type(causal).__name__
        if name not in FAMILY:
            return f"{name} is not one of {', '.join(FAMILY)}"
        config = causal.config
        if not len(causal.model.layers):
            return "it has no layers"
        if getattr(config, "hidden_act", None) != "silu":
            return f"its activation is {config.hidden_act}"
        kinds = set(getattr(config, "layer_types", None) or ())
        if kinds - {"full_attention"} or (not kinds and getattr(config, "sliding_window", None)):
            return "it has layers other than full attention"
        if next(causal.parameters()).device.type != "cpu":
            return "its attention over blocks is written for CPUs"
        if not kernel_works():
            return "this build of torch lacks the attention kernel for CPUs"
        return None

    @classmethod
    def of(cls, causal: Any, *, products: Products = "auto", recompute: bool = False) -> Decoder | None:
        """The decoder of a model that it knows and for which it gives what the model gives on a short probe."""
        if cls.why_not(causal) is not None:
            return None
        decoder = cls(causal, products=products, recompute=recompute)
        tokens = torch.arange(1, 16) * 7919 % causal.config.vocab_size
        with torch.no_grad():
            own = decoder.states(tokens, torch.arange(15), [Chain(0, 15, 15)])
            theirs = causal.model(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
        if near(own, theirs):
            return decoder
        warnings.warn(
            f"{type(causal).__name__} is run by transformers: it does not do what its configuration says", stacklevel=4
        )
        return None

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return self.model.embed_tokens.weight.dtype

    @property
    def product(self) -> torch.dtype:
        """The dtype in which matrices are multiplied."""
        if self.products == "native" or self.dtype not in HALF:
            return self.dtype
        return torch.float32 if self.products == "float32" or not has_matrix_units() else self.dtype

    def states(self, tokens: Tensor, position: Tensor, chains: list[Chain], layer: int = -1) -> Tensor:
        """[n, H] hidden states after a layer (-1: the last, normed) of tokens [n] at positions [n], in chains."""
        return self.states_after(tokens, position, chains, (layer,))[0]

    def states_after(
        self, tokens: Tensor, position: Tensor, chains: list[Chain], layers: Sequence[int]
    ) -> list[Tensor]:
        """`states` after each of several layers, from one pass that ends with the last that is asked for."""
        x = self.model.embed_tokens(tokens)
        cos, sin = self.tables(x, position)
        plan, product = Plan.of(chains), self.product
        run: Callable[..., Tensor] = self._layer
        found: dict[int, Tensor] = {}
        for i, module in enumerate(self.layers):
            if i in layers:
                found[i] = x
                if found.keys() >= set(layers):
                    return [found[layer] for layer in layers]
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(run, module, x, cos, sin, plan, product, use_reentrant=False, preserve_rng_state=False)
                assert isinstance(x, Tensor)
            else:
                x = run(module, x, cos, sin, plan, product)
        last: Tensor = self.model.norm(x)
        return [found.get(layer, last) for layer in layers]

    def tables(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [n, D] of positions [n]."""
        cos, sin = self.model.rotary_emb(x[None], position[None])
        return cos[0], sin[0]

    @torch.no_grad()
    def prefill(self, tokens: Tensor, position: Tensor, chains: list[Chain]) -> tuple[Tensor, list[Tensor]]:
        """[n, H] hidden states as the head reads them, and of each layer keys and values [n, 2 kv, D]."""
        x = self.model.embed_tokens(tokens)
        cos, sin = self.tables(x, position)
        plan, product, held = Plan.of(chains), self.product, []
        for module in self.layers:
            qkv = queries_keys_values(module, x, product)
            out, _, turn = attend(qkv, cos.to(x.dtype), sin.to(x.dtype), plan, self.heads, self.scale)
            held.append(turn[:, self.heads :])
            x = mlp(module, add_linear(module.self_attn.o_proj, x, out.flatten(1), product), product)
        return self.model.norm(x), held

    def _layer(self, module: Any, x: Tensor, cos: Tensor, sin: Tensor, plan: Plan, product: torch.dtype) -> Tensor:
        qkv = queries_keys_values(module, x, product)
        attended = TreeAttention.apply(qkv, cos, sin, plan, self.heads, self.scale)
        return mlp(module, add_linear(module.self_attn.o_proj, x, attended, product), product)


def near(x: Tensor, y: Tensor) -> bool:
    """Whether rows [n, H] differ by rounding: by less than half of their digits, most of them."""
    error = (x.double() - y.double()).norm(dim=1) / y.double().norm(dim=1)
    return bool(error.median() <= torch.finfo(y.dtype).eps ** 0.5)


def plain(*modules: Any) -> bool:
    """Whether these are linear maps without bias and nothing more (no adapters)."""
    return all(type(m) is nn.Linear and m.bias is None for m in modules)


def stock(norm: Any, x: Tensor) -> bool:
    """Whether a norm is the family's RMSNorm, whose float32 arithmetic is what we compute."""
    return type(norm).__name__ in NORMS and x.dtype != torch.float64


def queries_keys_values(module: Any, x: Tensor, product: torch.dtype) -> Tensor:
    """[n, (heads + 2 kv) * D] of a layer's input."""
    own, norm = module.self_attn, module.input_layernorm
    maps = (own.q_proj, own.k_proj, own.v_proj)
    if plain(*maps) and stock(norm, x):
        out = NormLinears.apply(x, norm.weight, norm.variance_epsilon, product, *(m.weight for m in maps))
    else:
        h = norm(x)
        out = torch.cat([m(h) for m in maps], 1)
    if not hasattr(own, "q_norm"):
        return out
    size = own.head_dim
    parts = list(out.split([m.out_features for m in maps], 1))
    for i, by_head in enumerate((own.q_norm, own.k_norm)):
        parts[i] = by_head(parts[i].reshape(x.shape[0], -1, size)).flatten(1)
    return torch.cat(parts, 1)


def add_linear(linear: Any, x: Tensor, a: Tensor, product: torch.dtype) -> Tensor:
    """x + linear(a)."""
    return AddLinear.apply(x, a, linear.weight, product) if plain(linear) else x + linear(a)


def mlp(module: Any, x: Tensor, product: torch.dtype) -> Tensor:
    """x + the gated perceptron of its norm."""
    own, norm = module.mlp, module.post_attention_layernorm
    if plain(own.gate_proj, own.up_proj, own.down_proj) and stock(norm, x):
        weights = (own.gate_proj.weight, own.up_proj.weight, own.down_proj.weight)
        return GatedMLP.apply(x, norm.weight, norm.variance_epsilon, product, *weights)
    return x + own(norm(x))
