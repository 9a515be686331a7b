"""One more token for many samples: each prompt's keys and values are held once, each sample's own beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from gxpo.decoder.attention import forward, join, turned
from gxpo.decoder.forward import Decoder, add_linear, mlp, plain, queries_keys_values, stock
from gxpo.decoder.functions import inverse_rms, normed

COPIES = 1 << 30  # bytes of weights, laid side by side or converted, that may be held while samples are drawn


@dataclass(frozen=True)
class Weights:
    """A layer's weights laid side by side in the dtype of products; None where its modules must be run as they are."""

    qkv: Tensor | None
    out: Tensor | None
    inner: Tensor | None
    down: Tensor | None


class Stepper:
    """The decoder for single tokens, its weights laid out for as long as this lives: they must not change meanwhile."""

    def __init__(self, decoder: Decoder, head: Any) -> None:
        self.decoder, self.head = decoder, head
        self.dtype = decoder.model.embed_tokens.weight.dtype
        size = sum(p.numel() for p in decoder.model.parameters()) * decoder.product.itemsize
        small = size <= COPIES
        self.product = decoder.product if small else self.dtype
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
        """[n, V] of the last hidden states [n, H]."""
        if self.head_weight is None:
            return self.head(states)
        return states.to(self.product) @ self.head_weight.t()

    def qkv(self, i: int, x: Tensor) -> Tensor:
        """[n, (heads + 2 kv) * D] of layer i."""
        module, weight = self.decoder.layers[i], self.layers[i].qkv
        if weight is None:
            return queries_keys_values(module, x, self.product)
        norm = module.input_layernorm
        return (normed(x, inverse_rms(x, norm.variance_epsilon), norm.weight, self.product) @ weight).to(x.dtype)

    def finish(self, i: int, x: Tensor, attended: Tensor) -> Tensor:
        """[n, H] after layer i, from its input and what it attended to [n, heads * D]."""
        module, w = self.decoder.layers[i], self.layers[i]
        if w.out is None:  # no copies, or adapters
            x = add_linear(module.self_attn.o_proj, x, attended, self.product)
        else:
            x = torch.addmm(x.to(self.product), attended.to(self.product), w.out).to(x.dtype)
        if w.inner is None or w.down is None:
            return mlp(module, x, self.product)
        norm = module.post_attention_layernorm
        gate, up = (normed(x, inverse_rms(x, norm.variance_epsilon), norm.weight, self.product) @ w.inner).chunk(2, 1)
        return torch.addmm(x.to(self.product), silu(gate).mul_(up), w.down).to(x.dtype)


@dataclass(frozen=True)
class Prompts:
    """C prompts, right-aligned: of each layer keys and values [C, kv, columns, D]; mask [C, columns]: which count."""

    layers: list[tuple[Tensor, Tensor]]
    mask: Tensor

    def select(self, rows: Tensor) -> Prompts:
        return Prompts([(k[rows], v[rows]) for k, v in self.layers], self.mask[rows])


@dataclass(frozen=True)
class Branches:
    """Samples between two tokens: next-token logits [n, V], whose prompt each goes on from, and its own tokens.

    owner  [n] ascending: the prompt of each sample
    own    per layer [n, room, 2 kv, D] keys and values of the `filled` tokens drawn so far
    """

    stepper: Stepper
    prompts: Prompts
    owner: Tensor
    logits: Tensor
    own: list[Tensor]
    filled: int

    @staticmethod
    def of(stepper: Stepper, prompts: Prompts, owner: Tensor, logits: Tensor, room: int) -> Branches:
        """Samples that have drawn nothing yet; logits [C, V] after the prompts."""
        own = [keys.new_empty(owner.numel(), room, 2 * keys.shape[1], keys.shape[3]) for keys, _ in prompts.layers]
        return Branches(stepper, prompts, owner, logits[owner], own, 0)

    def select(self, rows: Tensor) -> Branches:
        """These samples alone; prompts of which none is left are dropped."""
        owner, prompts = self.owner[rows], self.prompts
        left, renamed = torch.unique(owner, return_inverse=True)
        if left.numel() < prompts.mask.shape[0]:
            prompts, owner = prompts.select(left), renamed
        return replace(self, prompts=prompts, owner=owner, logits=self.logits[rows], own=[x[rows] for x in self.own])

    def columns(self, row: int, prompt: int, tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Copies of keys and values [kv, tokens, D] of a sample, from the first of its `prompt` tokens on."""
        whose, drawn, out = int(self.owner[row]), tokens - prompt, []
        for (keys, values), own in zip(self.prompts.layers, self.own, strict=True):
            both = own[row, :drawn].transpose(0, 1).chunk(2, 0)
            parts = [x[whose, :, x.shape[2] - prompt :] for x in (keys, values)]
            out.append(tuple(torch.cat(pair, 1) for pair in zip(parts, both, strict=True)))
        return out

    def advance(self, token: Tensor) -> Branches:
        """The samples after one more token [n] of each."""
        stepper, decoder, n = self.stepper, self.stepper.decoder, token.numel()
        x = decoder.model.embed_tokens(token)
        position = self.prompts.mask.sum(1)[self.owner] + self.filled
        cos, sin = (t[:, None].to(x.dtype) for t in decoder.tables(x, position))
        place = Placement.of(self.owner, self.prompts.mask, x.dtype)
        for i, ((keys, values), own) in enumerate(zip(self.prompts.layers, self.own, strict=True)):
            kv, size = keys.shape[1], keys.shape[3]
            qkv = stepper.qkv(i, x).view(n, -1, size)
            turn = torch.empty_like(qkv[:, : decoder.heads + kv])
            turned(qkv[:, : decoder.heads + kv], cos, sin, turn)
            q = turn[:, : decoder.heads]
            own[:, self.filled, :kv] = turn[:, decoder.heads :]
            own[:, self.filled, kv:] = qkv[:, decoder.heads + kv :]
            seen = own[:, : self.filled + 1].transpose(1, 2)
            found, total = forward(q[:, :, None], seen[:, :kv], seen[:, kv:], decoder.scale)
            out, total = found[:, :, 0], total[:, :, 0]
            more, sums = forward(place.spread(q), keys, values, decoder.scale, mask=place.mask)
            join(out, total, place.back(more), place.back(sums))
            x = stepper.finish(i, x, out.flatten(1))
        return replace(self, logits=stepper.logits(decoder.model.norm(x)), filled=self.filled + 1)


@dataclass(frozen=True)
class Placement:
    """Samples beside the others of their prompt: slot [n] of [C, m], m the most samples of a prompt."""

    prompts: int
    most: int
    slot: Tensor | None  # None: every prompt has m samples, in order
    mask: Tensor | None

    @staticmethod
    def of(owner: Tensor, counts: Tensor, dtype: torch.dtype) -> Placement:
        """owner [n] ascending; counts [C, columns]: which columns of each prompt count."""
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
        """[C, heads, m, D] of q [n, heads, D]."""
        if self.slot is not None:
            wide = q.new_zeros(self.prompts * self.most, *q.shape[1:])
            wide[self.slot] = q
            q = wide
        return q.view(self.prompts, self.most, *q.shape[1:]).transpose(1, 2)

    def back(self, x: Tensor) -> Tensor:
        """[n, heads, ...] of x [C, heads, m, ...]."""
        flat = x.transpose(1, 2).flatten(0, 1)
        return flat if self.slot is None else flat[self.slot]
