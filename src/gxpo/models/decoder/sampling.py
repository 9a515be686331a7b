"""Single-token decoding of many samples: a prompt's keys and values are stored once, those of samples separately."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as remember
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gxpo.models.decoder.architecture import Layer, are_plain_linears
from gxpo.models.decoder.attention import HALF, Heads, forward
from gxpo.models.decoder.choices import PURPOSES, kernel
from gxpo.models.decoder.forward import Decoder
from gxpo.models.decoder.layer import (
    add_attention,
    add_linear,
    add_mlp,
    eps_of,
    is_stock_norm,
    queries_keys_values,
    weight_of,
)

COPIES = 1 << 30  # bytes of weights, laid side by side or converted, that may be held while samples are drawn
TURNS_AT_ONCE = 32  # tokens whose rotary tables are computed together
LEAST_PRODUCT = 400  # multiplications below which torch's batched product runs a slow loop


@dataclass(frozen=True)
class Map:
    """Linear map of samples' rows: weight [K, N], or in oneDNN's order, in which no call lays it out again."""

    weight: Tensor
    is_laid_out: bool

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """[n, N]: x [n, K] times the weight, and `plus` [n, N]."""
        if self.is_laid_out and plus is None:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")
        if self.is_laid_out:
            return torch.ops.mkldnn._linear_pointwise.binary(x, plus, self.weight, None, "add")
        return x @ self.weight if plus is None else torch.addmm(plus, x, self.weight)


def map_of(w: Tensor, rows: int, laid_out: bool) -> Map:
    """Map by a weight [N, K], laid out for about as many rows where that is asked for."""
    if laid_out:
        return Map(torch.ops.mkldnn._reorder_linear_weight(w.contiguous(), rows), True)
    return Map(w.t().contiguous(), False)


@remember
def packing_works(dtype: torch.dtype) -> bool:
    """Return True if this build of torch can hold weights of this dtype laid out, on this processor."""
    x, w = torch.linspace(-1, 1, 6).reshape(2, 3).to(dtype), torch.linspace(-1, 2, 12).reshape(4, 3).to(dtype)
    try:
        laid_out = map_of(w, 2, True)
        products = laid_out(x), laid_out(x, torch.ones(2, 4, dtype=dtype))
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):
        return False
    expected = x.float() @ w.float().t()
    return all(torch.allclose(y.float(), expected + k, atol=0.03) for k, y in enumerate(products))


@dataclass(frozen=True)
class Maps:
    """Fused maps of a layer in the dtype of products; None if its modules must be run as they are."""

    qkv: Map | None
    out: Map | None
    inner: Map | None
    down: Map | None


def copies_fit(decoder: Decoder, product: torch.dtype) -> bool:
    """Return True if copies of all weights in this dtype fit in memory."""
    return sum(p.numel() for p in decoder.model.parameters()) * product.itemsize <= COPIES


class Stepper:
    """Single-token decoding of about `rows` samples with fused copies of the weights, which must not change during its
    lifetime."""

    def __init__(self, decoder: Decoder, rows: int = 64) -> None:
        assert decoder.head is not None
        self.decoder, self.head, self.rows = decoder, decoder.head, rows
        self.small = copies_fit(decoder, decoder.product)
        self.product = decoder.product if self.small else decoder.dtype
        is_chosen = kernel(decoder.choices, "sampling weights") == "laid out"
        # in 16 bits the product of norm and factor is rounded before it is multiplied, as the learner does
        self.folds = self.product not in HALF
        self.lays_out = self.small and is_chosen and packing_works(self.product)

    @cached_property
    def layers(self) -> list[Maps]:
        return [self._fuse(layer) for layer in self.decoder.layers]

    @cached_property
    def norms(self) -> list[tuple[Norm | None, Norm | None]]:
        """Norms before attention and MLP of each layer, where they are stock ones."""

        def before(layer: Layer, place: int) -> Norm | None:
            return self._stock(layer, layer.norm(place), self.folds)

        return [(before(layer, 0), before(layer, 2)) for layer in self.decoder.layers]

    @cached_property
    def last_norm(self) -> Norm | None:
        """Norm before the head, where it is a stock one."""
        return self._stock(self.decoder.layers[-1], getattr(self.decoder.model, self.decoder.family.norm))

    def _stock(self, layer: Layer, norm: Any, folds: bool = False) -> Norm | None:
        if not is_stock_norm(layer, norm, self.decoder.embedding.weight):
            return None
        weight = weight_of(layer, norm).detach().to(torch.float32)
        return Norm(None if folds else weight, weight.new_tensor(eps_of(norm)))

    @cached_property
    def head_map(self) -> Map | None:
        """The head's map, laid out or in another dtype than the parameters'; None: the module is run."""
        last = self.head.module
        if not are_plain_linears(last):
            return None
        weight = last.weight.detach()
        if self.lays_out:
            return map_of(weight.to(self.product), self.rows, True)
        return Map(weight.to(self.product).t(), False)

    def _fuse(self, layer: Layer) -> Maps:
        """Copies of a layer's weights side by side, where its parts are plain and copies fit."""
        x = self.decoder.embedding.weight

        def side_by_side(norm: Any, *maps: Any) -> Map | None:
            is_plain = maps and are_plain_linears(*maps) and (norm is None or is_stock_norm(layer, norm, x))
            if not (self.small and is_plain):
                return None
            weights = torch.cat([each.weight.detach().to(self.product) for each in maps])
            if norm is not None and self.folds:
                weights = weights * weight_of(layer, norm).detach().to(self.product)
            return map_of(weights, self.rows, self.lays_out)

        # layers with parallel branches or norms after them are run by the decoder's own code
        if not layer.sequential:
            return Maps(None, None, None, None)
        simple = not (layer.norms_of_heads or layer.family.by_head)
        qkv = side_by_side(layer.norm(0), *layer.maps) if simple else None
        inner = side_by_side(layer.norm(2), *layer.inner)
        down = None if inner is None else side_by_side(None, layer.mlp.down_proj)
        return Maps(qkv, side_by_side(None, layer.out), inner, down)

    def logits(self, states: Tensor) -> Tensor:
        """[n, V] logits of the last hidden states [n, H]."""
        return self.head(states, self.head_map, self.product)

    def last_states(self, x: Tensor) -> Tensor:
        """[n, H] last hidden states of the last layer's output."""
        return self.decoder.norm(x) if self.last_norm is None else as_dtype(self.last_norm(x), x.dtype)

    def qkv(self, i: int, x: Tensor) -> Tensor:
        """[n, (heads + 2 kv) * D] queries, keys and values of layer i."""
        times_w, norm = self.layers[i].qkv, self.norms[i][0]
        if times_w is None or norm is None:
            return queries_keys_values(self.decoder.layers[i], x, self.product)
        return as_dtype(times_w(as_dtype(norm(x), self.product)), x.dtype)

    def finish(self, i: int, x: Tensor, attention: Tensor) -> Tensor:
        """[n, H] output of layer i, from its input and the attention result [n, heads * D]."""
        layer, w, norm, before = self.decoder.layers[i], self.layers[i], self.norms[i][1], x
        if not layer.sequential:
            return add_mlp(layer, add_attention(layer, x, attention, self.product), self.product, before)
        if w.out is None:  # no copies, or adapters
            x = add_linear(layer.out, x, attention, self.product)
        else:
            x = as_dtype(w.out(as_dtype(attention, self.product), as_dtype(x, self.product)), x.dtype)
        # without copies (adapters, or no memory for them) the layer's modules are used
        if w.inner is None or w.down is None or norm is None:
            return add_mlp(layer, x, self.product, before)
        assert layer.act is not None
        gate, up = w.inner(as_dtype(norm(x), self.product)).chunk(2, 1)
        return as_dtype(w.down(layer.act.value(gate).mul_(up), as_dtype(x, self.product)), x.dtype)


class Norm(NamedTuple):
    """RMSNorm with a factor [H] in float32 (None: that of the map behind it): [n, H] float32 of x [n, H]."""

    weight: Tensor | None
    eps: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        x = as_dtype(x, torch.float32)
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        out = x * torch.addcmul(self.eps, length, length, value=1 / x.shape[1]).rsqrt_()
        return out if self.weight is None else out.mul_(self.weight)


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in a dtype; quicker than `Tensor.to` where it is of it already."""
    return x if x.dtype == dtype else x.to(dtype)


# ---------------------------------------------------------------- keys and values
class KeyCache:
    """Keys and values [n, room, 2 kv, D] of a layer, for the fused attention kernel."""

    def __init__(self, keys: Tensor, room: int) -> None:
        self.kv = keys.shape[1]
        self.x = keys.new_empty(keys.shape[0], room, 2 * self.kv, keys.shape[3])

    def fill(self, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [n, kv, columns, D] into the first columns."""
        self.x[:, : keys.shape[2]] = torch.cat([keys, values], 1).transpose(1, 2)

    def write(self, column: int, keys_and_values: Tensor) -> None:
        """Write those of one token, [n, 2 kv, D]."""
        self.x[:, column] = keys_and_values

    def attend(
        self, q: Tensor, first: int, end: int, heads: Heads, mask: Tensor | None, needs_sum: bool
    ) -> tuple[Tensor, Tensor | None]:
        """[n, heads, D] attention of queries to the columns from `first` to `end`, and log-sum-exp [n, heads]."""
        n, _, size = q.shape
        visible = self.x[:, first:end].transpose(1, 2)
        # the heads that share keys are queries of one block
        mask = None if mask is None else mask[:, None, None, first:end].expand(-1, 1, heads.queries // self.kv, -1)
        out, log_sum = forward(
            q.reshape(n, self.kv, -1, size), visible[:, : self.kv], visible[:, self.kv :], heads.scale,
            mask=mask, cap=heads.cap,
        )  # fmt: skip
        return out.reshape(n, -1, size), log_sum.reshape(n, -1)

    def select(self, rows: Tensor) -> None:
        self.x = self.x[rows]

    def columns(self, row: int, first: int, end: int) -> Tensor:
        """[2 kv, tokens, D] keys and values of a row."""
        return self.x[row, first:end].transpose(0, 1)


class ProductCache(KeyCache):
    """Keys and values [2, n, kv, room, D] of a layer, for attention by batched matrix products."""

    def __init__(self, keys: Tensor, room: int) -> None:
        n, self.kv, _, size = keys.shape
        # products of fewer columns than `least` are slow: there are always as many, and those without tokens are hidden
        self.least = -(-LEAST_PRODUCT // size)
        self.x = keys.new_empty(2, n, self.kv, max(room, self.least), size)
        self.x[:, :, :, : self.least] = 0.0

    def fill(self, keys: Tensor, values: Tensor) -> None:
        self.x[0, :, :, : keys.shape[2]], self.x[1, :, :, : keys.shape[2]] = keys, values

    def write(self, column: int, keys_and_values: Tensor) -> None:
        self.x[:, :, :, column] = keys_and_values.unflatten(1, (2, self.kv)).transpose(0, 1)

    def attend(
        self, q: Tensor, first: int, end: int, heads: Heads, mask: Tensor | None, needs_sum: bool
    ) -> tuple[Tensor, Tensor | None]:
        n = q.shape[0]
        start = min(first, max(0, end - self.least))
        last = max(end, start + self.least)
        keys, values = self.x.flatten(1, 2)[:, :, start:last]
        # the heads that share keys are rows of one product
        scores = torch.bmm(q.mul(heads.scale).view(n * self.kv, -1, q.shape[2]), keys.transpose(1, 2))
        if last - start > end - first:
            scores[..., : first - start] = scores[..., end - start :] = -torch.inf
        if mask is not None:
            scores = (scores.view(n, -1, last - start) + mask[:, None, start:last]).view(scores.shape)
        out = torch.bmm(scores.softmax(-1), values).view(n, -1, q.shape[2])
        return out, scores.logsumexp(-1).view(n, -1) if needs_sum else None

    def select(self, rows: Tensor) -> None:
        self.x = self.x[:, rows]

    def columns(self, row: int, first: int, end: int) -> Tensor:
        return self.x[:, row, :, first:end].flatten(0, 1)


@dataclass(frozen=True)
class Prompts:
    """C prompts, right-aligned: keys and values [C, kv, columns, D] of each layer; mask [C, columns]: valid columns;
    after [C]: the position of the token after each (None: its number of tokens)."""

    layers: list[tuple[Tensor, Tensor]]
    mask: Tensor
    after: Tensor | None = None

    def select(self, rows: Tensor) -> Prompts:
        after = None if self.after is None else self.after[rows]
        return Prompts([(k[rows], v[rows]) for k, v in self.layers], self.mask[rows], after)


def prompt_kernels(dtype: torch.dtype, heads: Heads) -> tuple[str, ...]:
    """Kernels of "sampling prompts" that can run: plain products would round scores of 16 bits, and cap none."""
    kernels = PURPOSES["sampling prompts"].kernels
    return tuple(k for k in kernels if "matmul" not in k or (dtype not in HALF and heads.cap is None))


@dataclass
class Branches:
    """Samples between two tokens: next-token logits [n, V], their prompts, and their own tokens.

    owner   [n] ascending: the prompt of each sample; start [n]: the position of the token after it
    caches  per layer: keys and values of the `length` tokens of its own: those drawn so far, and behind `begin` of them
            those of the prompt where prompts are copied; at most `room`
    mask    [n, room] to be added to scores; None: everything counts
    """

    stepper: Stepper
    prompts: Prompts | None
    owner: Tensor
    start: Tensor
    logits: Tensor
    caches: list[KeyCache]
    length: int
    begin: int
    room: int
    mask: Tensor | None
    place: Placement | None
    turns: list[dict[str, Turn]]  # of the next tokens, the last one first

    @staticmethod
    def of(
        stepper: Stepper, prompts: Prompts, owner: Tensor, logits: Tensor, room: int, kernel_name: str | None = None
    ) -> Branches:
        """Samples without tokens of their own yet; logits [C, V] after the prompts.

        kernel_name  "shared": attention to a prompt and to a sample's own tokens is joined; "copied": every sample has
                     a copy of its prompt; each may be followed by "matmul", else the fused kernel attends (None: as
                     was measured)
        """
        n, columns = owner.numel(), prompts.mask.shape[1]
        decoder, dtype = stepper.decoder, prompts.layers[0][0].dtype
        if kernel_name is None:
            kernel_name = kernel(decoder.choices, "sampling prompts", columns)
        copies_prompts = kernel_name.startswith("copied")
        begin = columns if copies_prompts else 0
        caches = []
        # one cache of keys and values for each layer: a step appends one column at the same place for all samples
        for layer, (keys, values) in zip(decoder.layers, prompts.layers, strict=True):
            by_products = "matmul" in kernel_name and kernel_name in prompt_kernels(dtype, layer.heads)
            cache = (ProductCache if by_products else KeyCache)(keys[:1].expand(n, -1, -1, -1), begin + room)
            if copies_prompts:
                cache.fill(keys[owner], values[owner])
            caches.append(cache)
        mask = place = None
        # right-aligned prompts have padding at the left, which must not be attended to
        if copies_prompts and not bool(prompts.mask.all()):
            # as wide as the widest cache
            mask = prompts.layers[0][0].new_zeros(n, begin + room + LEAST_PRODUCT)
            mask[:, :columns].masked_fill_(~prompts.mask.bool()[owner], torch.finfo(dtype).min)
        elif not copies_prompts:
            place = Placement.of(owner, prompts.mask, dtype)
        start = (prompts.mask.sum(1) if prompts.after is None else prompts.after)[owner]
        kept_prompts = None if copies_prompts else prompts
        return Branches(stepper, kept_prompts, owner, start, logits[owner], caches, begin, begin, room, mask, place, [])

    def select(self, rows: Tensor) -> Branches:
        """Keep these samples alone; prompts without samples are dropped."""
        owner, prompts = self.owner[rows], self.prompts
        if prompts is not None:
            # prompts of which all samples have ended need not be attended to any more
            prompt_rows, new_owner = torch.unique(owner, return_inverse=True)
            if prompt_rows.numel() < prompts.mask.shape[0]:
                prompts, owner = prompts.select(prompt_rows), new_owner
            self.place = Placement.of(owner, prompts.mask, prompts.layers[0][0].dtype)
        for cache in self.caches:
            cache.select(rows)
        self.prompts, self.owner, self.start, self.logits = prompts, owner, self.start[rows], self.logits[rows]
        self.mask = None if self.mask is None else self.mask[rows]
        self.turns = []
        return self

    def columns(self, row: int, prompt: int, tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Copies of keys and values [kv, tokens, D] of a sample, from the first of its `prompt` tokens on."""
        out = []
        for i, cache in enumerate(self.caches):
            # copied prompts are right-aligned in the cache, just before the samples' own tokens
            if self.prompts is None:
                keys_and_values = cache.columns(row, self.begin - prompt, self.begin - prompt + tokens)
            else:
                own_prompt = [x[self.owner[row], :, x.shape[2] - prompt :] for x in self.prompts.layers[i]]
                keys_and_values = torch.cat([torch.cat(own_prompt), cache.columns(row, 0, tokens - prompt)], 1)
            keys, values = keys_and_values.chunk(2, 0)
            # clones, since the cache is written on, and a view would keep all of it in memory
            out.append((keys.clone(), values.clone()))
        return out

    def advance(self, token: Tensor) -> Branches:
        """Append one more token [n] to each sample."""
        stepper, decoder = self.stepper, self.stepper.decoder
        x = decoder.embed(token)
        turns = self._next_turns(x)
        for i, (layer, cache) in enumerate(zip(decoder.layers, self.caches, strict=True)):
            queries, kv = layer.heads.queries, cache.kv
            qkv = stepper.qkv(i, x).view(token.numel(), queries + 2 * kv, -1)
            turns[layer.rope](qkv[:, : queries + kv])
            # written before attending: a token sees itself
            cache.write(self.length, qkv[:, queries:])
            x = stepper.finish(i, x, self.attend(i, layer, qkv[:, :queries]).flatten(1))
        self.logits, self.length = stepper.logits(stepper.last_states(x)), self.length + 1
        return self

    def _next_turns(self, x: Tensor) -> dict[str, Turn]:
        """Rotary embeddings of the next token by key of `Decoder.tables`, computed for several tokens at once."""
        if not self.turns:
            n, room_left = x.shape[0], self.begin + self.room - self.length
            # positions go on from the prompt's end, whatever its padding
            offset = torch.arange(max(1, min(TURNS_AT_ONCE, room_left)), device=x.device) + (self.length - self.begin)
            position = (self.start + offset[:, None]).flatten()
            tables = self.stepper.decoder.tables(x.new_empty(position.numel(), 0), position)
            turn_by_key = {key: Turn.of(cos.to(x.dtype), sin.to(x.dtype)) for key, (cos, sin) in tables.items()}
            for start in range(position.numel() - n, -1, -n):
                self.turns.append({key: turn.of_rows(slice(start, start + n)) for key, turn in turn_by_key.items()})
        return self.turns.pop()

    def attend(self, i: int, layer: Layer, q: Tensor) -> Tensor:
        """[n, heads, D] attention of queries [n, heads, D] to their samples' tokens within the layer's window."""
        heads, end, place = layer.heads, self.length + 1, self.place
        first = 0 if layer.window is None else max(0, end - layer.window)
        out, log_sum = self.caches[i].attend(q, first, end, heads, self.mask, place is not None)
        # the prompt is in the cache already, as a copy
        if place is None or self.prompts is None or log_sum is None:
            return out
        keys, values = self.prompts.layers[i]
        # prompts are right-aligned: the same columns are beyond the window of every sample
        beyond = 0 if layer.window is None else max(0, keys.shape[2] + end - layer.window)
        if beyond >= keys.shape[2]:
            return out
        mask = None if place.mask is None else place.mask[..., beyond:]
        prompt_out, prompt_log_sum = forward(
            place.spread(q), keys[:, :, beyond:], values[:, :, beyond:], heads.scale, mask=mask, cap=heads.cap
        )
        # the softmax over both, whose parts weigh as their sums: sigmoid of the difference of logarithms
        weight = (log_sum - place.back(prompt_log_sum)).sigmoid_()[..., None].to(out.dtype)
        return torch.lerp(place.back(prompt_out), out, weight)


class Turn(NamedTuple):
    """Rotary embeddings of single tokens: cos, and sin with the sign of its half, [n, 1, R]."""

    cos: Tensor
    sin: Tensor

    @staticmethod
    def of(cos: Tensor, sin: Tensor) -> Turn:
        """Rotary embeddings from tables [n, R]."""
        sin = sin.clone()
        sin[:, : sin.shape[1] // 2].neg_()
        return Turn(cos[:, None], sin[:, None])

    def of_rows(self, rows: slice) -> Turn:
        return Turn(self.cos[rows], self.sin[rows])

    def __call__(self, x: Tensor) -> None:
        """Turn x [n, heads, D], with positions in its first R numbers, in place."""
        size = self.cos.shape[2]
        if size:
            x = x if size == x.shape[2] else x[..., :size]
            torch.addcmul(x * self.cos, x.roll(size // 2, 2), self.sin, out=x)


@dataclass(frozen=True)
class Placement:
    """Samples grouped by prompt: slot [n] of [C, m], m the most samples of a prompt."""

    prompts: int
    largest: int
    slot: Tensor | None  # None: every prompt has m samples, in order
    mask: Tensor | None

    @staticmethod
    def of(owner: Tensor, counts: Tensor, dtype: torch.dtype) -> Placement:
        """owner [n] ascending; counts [C, columns]: valid columns of each prompt."""
        sizes = torch.bincount(owner, minlength=counts.shape[0])
        largest, slot = int(sizes.max()), None
        # samples of a prompt are queries of one block, so that they are padded to the largest group
        if bool((sizes != largest).any()):
            rank = torch.arange(owner.numel()) - (sizes.cumsum(0) - sizes)[owner]
            slot = owner * largest + rank
        is_token, mask = counts.bool(), None
        if not bool(is_token.all()):
            low = torch.zeros(is_token.shape, dtype=dtype).masked_fill_(~is_token, torch.finfo(dtype).min)
            mask = low[:, None, None].expand(-1, 1, largest, -1)
        return Placement(counts.shape[0], largest, slot, mask)

    def spread(self, q: Tensor) -> Tensor:
        """Scatter q [n, heads, D] to [C, heads, m, D]."""
        if self.slot is not None:
            padded_q = q.new_zeros(self.prompts * self.largest, *q.shape[1:])
            padded_q[self.slot] = q
            q = padded_q
        return q.view(self.prompts, self.largest, *q.shape[1:]).transpose(1, 2)

    def back(self, x: Tensor) -> Tensor:
        """Gather x [C, heads, m, ...] to [n, heads, ...]."""
        flat = x.transpose(1, 2).flatten(0, 1)
        return flat if self.slot is None else flat[self.slot]
