"""Forward pass of Llama-like models: hidden states of a flat token list, and single-token steps for many samples.

While sampling, keys and values of a prompt are stored once, those of each sample separately."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu
from torch.utils.checkpoint import checkpoint

from gxpo.decoder.functions import (
    HALF,
    AddLinear,
    Chain,
    GatedMLP,
    NormLinears,
    Plan,
    TreeAttention,
    attend,
    forward,
    has_matrix_units,
    kernel_works,
)

FAMILY = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")
NORMS = ("LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "MistralRMSNorm")
Kernels = Literal["auto", "transformers"]
Products = Literal["auto", "native", "float32"]


class Decoder:
    """Hidden states of a Llama-like transformers model, computed with its own modules and parameters.

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
        """Why this model is not supported, from its class, configuration and device."""
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
        """Decoder of a supported model whose results agree with the model's on a short probe; None otherwise."""
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
        """Dtype of the parameters."""
        return self.model.embed_tokens.weight.dtype

    @property
    def product(self) -> torch.dtype:
        """Dtype of matrix products."""
        if self.products == "native" or self.dtype not in HALF:
            return self.dtype
        return torch.float32 if self.products == "float32" or not has_matrix_units() else self.dtype

    def states(self, tokens: Tensor, position: Tensor, chains: list[Chain], layer: int = -1) -> Tensor:
        """[n, H] hidden states after a layer (-1: the last, normed) of tokens [n] at positions [n], in chains."""
        return self.states_after(tokens, position, chains, (layer,))[0]

    def states_after(
        self, tokens: Tensor, position: Tensor, chains: list[Chain], layers: Sequence[int]
    ) -> list[Tensor]:
        """Hidden states after each of several layers, from one pass that ends with the last of them."""
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
        """Rotary tables cos, sin [n, D] of positions [n]."""
        cos, sin = self.model.rotary_emb(x[None], position[None])
        return cos[0], sin[0]

    @torch.no_grad()
    def prefill(self, tokens: Tensor, position: Tensor, chains: list[Chain]) -> tuple[Tensor, list[Tensor]]:
        """Prefill: [n, H] hidden states as the head reads them, and keys and values [n, 2 kv, D] of each layer."""
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
    """Whether rows [n, H] differ only by rounding: most of them by less than half of their digits."""
    error = (x.double() - y.double()).norm(dim=1) / y.double().norm(dim=1)
    return bool(error.median() <= torch.finfo(y.dtype).eps ** 0.5)


def plain(*modules: Any) -> bool:
    """Whether these are linear maps without bias or adapters."""
    return all(type(m) is nn.Linear and m.bias is None for m in modules)


def stock(norm: Any, x: Tensor) -> bool:
    """Whether a norm is the family's RMSNorm, whose float32 arithmetic is what we compute."""
    return type(norm).__name__ in NORMS and x.dtype != torch.float64


def queries_keys_values(module: Any, x: Tensor, product: torch.dtype) -> Tensor:
    """[n, (heads + 2 kv) * D] queries, keys and values of a layer's input."""
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
    """x + the gated MLP of its norm."""
    own, norm = module.mlp, module.post_attention_layernorm
    if plain(own.gate_proj, own.up_proj, own.down_proj) and stock(norm, x):
        weights = (own.gate_proj.weight, own.up_proj.weight, own.down_proj.weight)
        return GatedMLP.apply(x, norm.weight, norm.variance_epsilon, product, *weights)
    return x + own(norm(x))


SHORT = 64  # columns of prompts up to which every sample has a copy of its own: one attention is quicker than two
COPIES = 1 << 30  # bytes of weights, laid side by side or converted, that may be held while samples are drawn


@dataclass(frozen=True)
class Weights:
    """Fused weights of a layer in the dtype of products; None if its modules must be run as they are."""

    qkv: Tensor | None
    out: Tensor | None
    inner: Tensor | None
    down: Tensor | None


def copies_fit(decoder: Decoder, product: torch.dtype) -> bool:
    """Whether copies of all weights in this dtype fit in memory."""
    return sum(p.numel() for p in decoder.model.parameters()) * product.itemsize <= COPIES


class Stepper:
    """Single-token decoding with fused copies of the weights, which must not change during its lifetime."""

    def __init__(self, decoder: Decoder, head: Any) -> None:
        self.decoder, self.head = decoder, head
        small = copies_fit(decoder, decoder.product)
        self.product = decoder.product if small else decoder.dtype
        self.layers = [self._laid(module, small) for module in decoder.layers]
        self.head_weight = head.weight.detach().to(self.product) if plain(head) else None

    def _laid(self, module: Any, small: bool) -> Weights:
        a, m = module.self_attn, module.mlp
        x = self.decoder.model.embed_tokens.weight
        kind = {"dtype": self.product}

        def side_by_side(norm: Any, *maps: Any) -> Tensor | None:
            if not (small and plain(*maps) and (norm is None or stock(norm, x))):
                return None
            return torch.cat([each.weight.detach().to(**kind) for each in maps]).t().contiguous()

        qkv = None if hasattr(a, "q_norm") else side_by_side(module.input_layernorm, a.q_proj, a.k_proj, a.v_proj)
        inner = side_by_side(module.post_attention_layernorm, m.gate_proj, m.up_proj)
        out, down = (side_by_side(None, each) for each in (a.o_proj, m.down_proj))
        return Weights(qkv, out, inner, down)

    def logits(self, states: Tensor) -> Tensor:
        """[n, V] logits of the last hidden states [n, H]."""
        if self.head_weight is None:
            return self.head(states)
        return states.to(self.product) @ self.head_weight.t()

    def qkv(self, i: int, x: Tensor) -> Tensor:
        """[n, (heads + 2 kv) * D] queries, keys and values of layer i."""
        module, weight = self.decoder.layers[i], self.layers[i].qkv
        if weight is None:
            return queries_keys_values(module, x, self.product)
        return (self._normed(module.input_layernorm, x) @ weight).to(x.dtype)

    def _normed(self, norm: Any, x: Tensor) -> Tensor:
        """[n, H] in the dtype of products."""
        full = rms_norm(x.to(torch.float32), x.shape[1:], norm.weight.to(torch.float32), norm.variance_epsilon)
        return full.to(self.product)

    def finish(self, i: int, x: Tensor, attended: Tensor) -> Tensor:
        """[n, H] output of layer i, from its input and the attention result [n, heads * D]."""
        module, w = self.decoder.layers[i], self.layers[i]
        if w.out is None:  # no copies, or adapters
            x = add_linear(module.self_attn.o_proj, x, attended, self.product)
        else:
            x = torch.addmm(x.to(self.product), attended.to(self.product), w.out).to(x.dtype)
        if w.inner is None or w.down is None:
            return mlp(module, x, self.product)
        gate, up = (self._normed(module.post_attention_layernorm, x) @ w.inner).chunk(2, 1)
        return torch.addmm(x.to(self.product), silu(gate).mul_(up), w.down).to(x.dtype)


@dataclass(frozen=True)
class Prompts:
    """C prompts, right-aligned: keys and values [C, kv, columns, D] of each layer; mask [C, columns]: valid columns."""

    layers: list[tuple[Tensor, Tensor]]
    mask: Tensor

    def select(self, rows: Tensor) -> Prompts:
        return Prompts([(k[rows], v[rows]) for k, v in self.layers], self.mask[rows])


@dataclass(frozen=True)
class Branches:
    """Samples between two tokens: next-token logits [n, V], their prompts, and their own tokens.

    owner   [n] ascending: the prompt of each sample; length [n]: tokens of its prompt
    own     per layer [n, room, 2 kv, D] keys and values of the `filled` tokens of its own: those drawn so far, and
            behind `begun` of them those of the prompt where prompts are short
    mask    [n, room] of what of them counts; None: everything
    """

    stepper: Stepper
    prompts: Prompts | None
    owner: Tensor
    length: Tensor
    logits: Tensor
    own: list[Tensor]
    filled: int
    begun: int
    mask: Tensor | None

    @staticmethod
    def of(
        stepper: Stepper, prompts: Prompts, owner: Tensor, logits: Tensor, room: int, short: int = SHORT
    ) -> Branches:
        """Samples without tokens of their own yet; logits [C, V] after the prompts."""
        n, columns = owner.numel(), prompts.mask.shape[1]
        copied = columns if columns <= short else 0
        own = []
        for keys, values in prompts.layers:
            both = keys.new_empty(n, copied + room, 2 * keys.shape[1], keys.shape[3])
            if copied:
                both[:, :columns] = torch.cat([keys, values], 1).transpose(1, 2)[owner]
            own.append(both)
        mask = None
        if copied and not bool(prompts.mask.all()):
            low = torch.finfo(own[0].dtype).min
            mask = own[0].new_zeros(n, 1, 1, copied + room)
            mask[:, 0, 0, :columns].masked_fill_(~prompts.mask.bool()[owner], low)
        length = prompts.mask.sum(1)[owner]
        return Branches(stepper, None if copied else prompts, owner, length, logits[owner], own, copied, copied, mask)

    def select(self, rows: Tensor) -> Branches:
        """Subset of samples; prompts without samples are dropped."""
        owner, prompts = self.owner[rows], self.prompts
        if prompts is not None:
            left, renamed = torch.unique(owner, return_inverse=True)
            if left.numel() < prompts.mask.shape[0]:
                prompts, owner = prompts.select(left), renamed
        return replace(
            self,
            prompts=prompts,
            owner=owner,
            length=self.length[rows],
            logits=self.logits[rows],
            own=[x[rows] for x in self.own],
            mask=None if self.mask is None else self.mask[rows],
        )

    def columns(self, row: int, prompt: int, tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Copies of keys and values [kv, tokens, D] of a sample, from the first of its `prompt` tokens on."""
        out = []
        for i, own in enumerate(self.own):
            if self.prompts is None:
                both = own[row, self.begun - prompt : self.begun - prompt + tokens].transpose(0, 1)
            else:
                shared = torch.cat([x[self.owner[row], :, x.shape[2] - prompt :] for x in self.prompts.layers[i]])
                both = torch.cat([shared, own[row, : tokens - prompt].transpose(0, 1)], 1)
            keys, values = both.chunk(2, 0)
            out.append((keys.clone(), values.clone()))
        return out

    def advance(self, token: Tensor) -> Branches:
        """Samples after one more token [n] of each."""
        stepper, decoder, n = self.stepper, self.stepper.decoder, token.numel()
        x = decoder.model.embed_tokens(token)
        cos, sin = decoder.tables(x, self.length + self.filled - self.begun)
        turn = Turn.of(cos.to(x.dtype), sin.to(x.dtype))
        place = None if self.prompts is None else Placement.of(self.owner, self.prompts.mask, x.dtype)
        kv, size, mask = self.own[0].shape[2] // 2, self.own[0].shape[3], None
        if self.mask is not None:
            mask = self.mask[..., : self.filled + 1].expand(-1, -1, decoder.heads // kv, -1)
        for i, own in enumerate(self.own):
            qkv = stepper.qkv(i, x).view(n, -1, size)
            turned, values = turn(qkv[:, :-kv]), qkv[:, -kv:]
            q, keys = turned.split([decoder.heads, kv], 1)
            own[:, self.filled, :kv] = keys
            own[:, self.filled, kv:] = values
            seen = own[:, : self.filled + 1].transpose(1, 2)
            # the heads that share keys are queries of one block
            out, total = forward(q.reshape(n, kv, -1, size), seen[:, :kv], seen[:, kv:], decoder.scale, mask=mask)
            out, total = out.reshape(n, -1, size), total.reshape(n, -1)
            if place is not None and self.prompts is not None:
                keys, values = self.prompts.layers[i]
                more, sums = forward(place.spread(q), keys, values, decoder.scale, mask=place.mask)
                # the softmax over both, whose parts weigh as their sums: sigmoid of the difference of logarithms
                weight = (total - place.back(sums)).sigmoid_()[..., None].to(out.dtype)
                out = torch.lerp(place.back(more), out, weight)
            x = stepper.finish(i, x, out.flatten(1))
        return replace(self, logits=stepper.logits(decoder.model.norm(x)), filled=self.filled + 1)


@dataclass(frozen=True)
class Turn:
    """Rotary embeddings of single tokens: cos, and sin with the sign of its half, [n, 1, D]."""

    cos: Tensor
    sin: Tensor

    @staticmethod
    def of(cos: Tensor, sin: Tensor) -> Turn:
        """Rotary embeddings from tables [n, D]."""
        sin = sin.clone()
        sin[:, : sin.shape[1] // 2].neg_()
        return Turn(cos[:, None], sin[:, None])

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, heads, D] with positions."""
        return torch.addcmul(x * self.cos, x.roll(x.shape[2] // 2, 2), self.sin)


@dataclass(frozen=True)
class Placement:
    """Samples grouped by prompt: slot [n] of [C, m], m the most samples of a prompt."""

    prompts: int
    most: int
    slot: Tensor | None  # None: every prompt has m samples, in order
    mask: Tensor | None

    @staticmethod
    def of(owner: Tensor, counts: Tensor, dtype: torch.dtype) -> Placement:
        """owner [n] ascending; counts [C, columns]: valid columns of each prompt."""
        sizes = torch.bincount(owner, minlength=counts.shape[0])
        most, slot = int(sizes.max()), None
        if bool((sizes != most).any()):
            rank = torch.arange(owner.numel()) - (sizes.cumsum(0) - sizes)[owner]
            slot = owner * most + rank
        held, mask = counts.bool(), None
        if not bool(held.all()):
            low = torch.zeros(held.shape, dtype=dtype).masked_fill_(~held, torch.finfo(dtype).min)
            mask = low[:, None, None].expand(-1, 1, most, -1)
        return Placement(counts.shape[0], most, slot, mask)

    def spread(self, q: Tensor) -> Tensor:
        """Scatter q [n, heads, D] to [C, heads, m, D]."""
        if self.slot is not None:
            wide = q.new_zeros(self.prompts * self.most, *q.shape[1:])
            wide[self.slot] = q
            q = wide
        return q.view(self.prompts, self.most, *q.shape[1:]).transpose(1, 2)

    def back(self, x: Tensor) -> Tensor:
        """Gather x [C, heads, m, ...] to [n, heads, ...]."""
        flat = x.transpose(1, 2).flatten(0, 1)
        return flat if self.slot is None else flat[self.slot]
