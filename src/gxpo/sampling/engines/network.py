"""Prefill and decoding steps in transformers' own forward pass, for models that gxpo's decoder does not know."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import ModelError
from gxpo.models.decoder.architecture import FULL, positions, rope_settings
from gxpo.models.decoder.forward import Decoder, Kernels, Products, near
from gxpo.models.decoder.vision import triples_of, vision_of
from gxpo.sampling.engines.cache import Layers, Layout, check_rows, columns_of, rows_of, spread
from gxpo.sampling.engines.decode import Context, right_aligned

GROWING_ROPE = {"dynamic", "longrope"}  # these turn all keys anew once a context outgrows a length (see `positions`)


@dataclass(frozen=True)
class State:
    """Batch state between two tokens: next-token logits [n, V], cache, attention mask [n, columns], prompt columns.

    A row's tokens are its last columns, without a gap, so positions and windows are those of the row alone. `ahead`
    [n]: next position minus number of tokens, which differ behind pictures (None: they are equal). `is_even`: all rows
    have as many tokens, so that nothing is masked.
    """

    network: Network
    logits: Tensor
    cache: Any
    mask: Tensor
    prompts: int
    ahead: Tensor | None = None
    is_even: bool = False

    def next_positions(self) -> Tensor | None:
        """Positions [n] of the next tokens; None if they are the numbers of tokens."""
        return None if self.ahead is None else self.mask.sum(1) + self.ahead

    def advance(self, token: Tensor) -> State:
        """Run one more token [n] of each row through the model."""
        mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)
        position = mask.sum(1, keepdim=True) - 1
        position = position if self.ahead is None else position + self.ahead[:, None]
        given_mask = self.network.mask_of_one(mask, self.is_even)
        logits, cache = self.network(token[:, None], given_mask, position, self.cache)
        return State(self.network, logits, cache, mask, self.prompts, self.ahead, self.is_even)

    def select(self, rows: Tensor) -> State:
        return self._rows(rows, rows_of(self.cache, rows))

    def _rows(self, rows: Tensor, cache: Any) -> State:
        ahead = None if self.ahead is None else self.ahead[rows]
        return State(self.network, self.logits[rows], cache, self.mask[rows], self.prompts, ahead, self.is_even)

    def columns(self, row: int, prompt: int, tokens: int) -> Layers:
        """Copy keys and values [heads, tokens, size] of a row, from the first of its `prompt` tokens on."""
        start = self.prompts - prompt
        return columns_of(self.cache, row, start, start + tokens)

    def spread(self, rows: Tensor, room: int) -> State:
        """Copy rows (repeats allowed), with room for further tokens."""
        return self._rows(rows, spread(self.cache, rows, room))


class Network:
    """A causal language model of transformers, optionally wrapped by peft.

    decoder    gxpo's own forward pass for models that it knows; None: transformers' is used
    has_vision  True if the model reads pictures;   triples: its vision part, if its positions are those of m-RoPE
    positions  longest context; None or 0: no limit is known
    """

    def __init__(
        self,
        model: Any,
        device: torch.device,
        *,
        kernels: Kernels = "auto",
        products: Products = "auto",
        choices: Mapping[str, str] | None = None,
    ) -> None:
        self.model, self.device = model.to(device), device
        self.causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.name, self.triples = type(self.causal).__name__, triples_of(self.causal)
        self.has_vision = vision_of(self.causal) is not None
        parameters = inspect.signature(self.causal.forward).parameters
        # transformers 5.24 renamed the cache, as an argument and as a field of the output
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        if not any(x.name == self._cache_name or x.kind is x.VAR_KEYWORD for x in parameters.values()):
            check_rows(None, self.name)
        self._accepts = {name for name in ("position_ids", "logits_to_keep") if name in parameters}
        self.positions, self.limited_by = positions(self.causal.config.get_text_config())
        self.decoder = Decoder.of(self.causal, products=products, choices=choices) if kernels == "auto" else None
        if self.decoder is None:
            self._check_forks()

    @torch.no_grad()
    def _check_forks(self) -> None:
        """Raise ModelError unless decoding from one padded, shared prefill gives the logits of full forward passes.

        Caches differ from one architecture to the next (states, windows, positions), so this is tried, not assumed.
        """
        was_training = self.model.training
        self.model.eval()
        try:
            vocabulary = self.causal.config.get_text_config().vocab_size
            ids = [(i * 7919) % vocabulary for i in range(1, 10)]
            # Two prompts of different lengths, the first with two samples: padding and shared caches are both tried.
            prompts, owner, next_tokens = (ids[:5], ids[5:7]), (0, 0, 1), (ids[7], ids[8], ids[7])
            state = prefill(self, [Context(tuple(p)) for p in prompts], 0, 64)
            state = state.spread(torch.tensor(owner, device=self.device), 2)
            for _ in range(2):
                state = state.advance(torch.tensor(next_tokens, device=self.device))
            # The same contexts in forward passes without cache and padding.
            for row, (p, token) in enumerate(zip(owner, next_tokens, strict=True)):
                tokens = torch.tensor([[*prompts[p], token, token]], device=self.device)
                full_logits = self.causal(input_ids=tokens, use_cache=False).logits[0, -1:]
                if not near(state.logits[row : row + 1], full_logits):
                    raise ModelError(
                        f"{self.name}: samples that go on from its cache differ from its own forward pass, so their "
                        "log-probs would not be the learner's: sample from it with another engine"
                    )
        finally:
            self.model.train(was_training)

    def mask_of_one(self, mask: Tensor, is_even: bool) -> Tensor | None:
        """Mask of one new token a row, as the model takes it from [n, columns].

        transformers asks for every token whether a mask of [n, columns] hides anything, and the host waits for the
        answer of a device: there the mask is None where nothing is hidden, else that of all heads.
        """
        config = self.causal.config.get_text_config()
        kinds = {*(getattr(config, "layer_types", None) or [FULL])}
        is_plain = kinds == {FULL} and not getattr(config, "sliding_window", None)
        if self.device.type == "cpu" or not is_plain or "sdpa" not in str(config._attn_implementation):
            return mask
        return None if is_even else mask[:, None, None].bool()

    def __call__(self, tokens: Tensor, mask: Tensor | None, position: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Run `tokens` [n, new]; return the logits after the last of them and the cache that includes them.

        mask [n, columns]: 1 where a column of cache and new tokens counts; position [n, new]: how many count before it,
        or of m-RoPE, which may be [3, n, new]
        """
        extra = {"position_ids": position, "logits_to_keep": 1}
        out = self.causal(
            input_ids=tokens,
            attention_mask=mask,
            use_cache=True,
            **{self._cache_name: cache},
            **{name: extra[name] for name in self._accepts},
        )
        return out.logits[:, -1], getattr(out, self._cache_name, None)

    @cached_property
    def layout(self) -> Layout | None:
        """Layout by which this model's cache is split and rebuilt, read off a forward pass of one token.

        None if that is impossible (sliding windows, layers with states of their own, positions counted by the model).
        """
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        _, cache = self(zero, zero + 1, zero, None)
        check_rows(cache, self.name)
        if "position_ids" not in self._accepts or _rope_types(self.causal.config.get_text_config()) & GROWING_ROPE:
            return None
        return Layout.of(cache)

    def end_ids(self, tokenizer: Any) -> tuple[int, ...]:
        """End-of-sequence ids of the tokenizer and of the model's generation settings."""
        sources = (tokenizer, getattr(self.causal, "generation_config", None))
        ids_by_source = [getattr(source, "eos_token_id", None) for source in sources]
        return tuple(
            i for ids in ids_by_source for i in (ids if isinstance(ids, (list, tuple)) else [ids]) if i is not None
        )


def _rope_types(config: Any) -> set[str]:
    """Kinds of rotary embedding that a configuration names, for all layers or by type of layer."""
    return {str(x.get("rope_type", x.get("type", "default"))) for x in rope_settings(config)}


ALIKE = 32  # new tokens by which contexts may always differ in one forward pass; above that, at most by a factor of 2


def prefill(network: Network, contexts: Sequence[Context], room: int, tokens: int) -> State:
    """Prefill contexts into one batch, in order, with room for further tokens if the cache has a layout.

    Contexts should be sorted by their number of new tokens: neighbours share forward passes of at most `tokens` new
    tokens, padding included, or of one context. Without a layout all contexts go through in one pass.
    """
    layout = network.layout
    columns = max(len(c.prompt) for c in contexts)
    mask = right_aligned([len(c.prompt) for c in contexts], columns, network.device)
    position, ahead = _positions(network, contexts, mask)
    is_even = all(len(c.prompt) == columns for c in contexts)
    if layout is None:
        logits, cache = network(_pad(contexts, columns, network.device), mask, position, None)
        return State(network, logits, cache, mask, columns, ahead, is_even)
    # Cached prefixes are copied to their columns first; the forward passes then write the new tokens behind them.
    buffers = layout.buffers(len(contexts), columns + room)
    for row, context in enumerate(contexts):
        _copy_prefix(context, buffers, row, columns - len(context.prompt))
    logits = [
        _prefill_chunk(network, layout, contexts[a:b], [(k[a:b, :, :columns], v[a:b, :, :columns]) for k, v in buffers])
        for a, b in _chunks([len(c.new_tokens) for c in contexts], tokens)
    ]
    return State(network, torch.cat(logits), layout.cache(buffers, columns), mask, columns, ahead, is_even)


def _prefill_chunk(network: Network, layout: Layout, contexts: Sequence[Context], buffers: Layers) -> Tensor:
    """Run the new tokens of contexts whose cached ones are in the buffers; return the logits [n, V] after them.

    New tokens are right-aligned. Columns that pad a shorter row's new tokens hold its cached tokens, so they must not
    be written.
    """
    columns, new_lengths = max(len(c.prompt) for c in contexts), [len(c.new_tokens) for c in contexts]
    width = max(new_lengths)
    mask = right_aligned([len(c.prompt) for c in contexts], columns, network.device)
    write_mask = None if min(new_lengths) == width else right_aligned(new_lengths, width, network.device).bool()
    views = [(keys[:, :, -columns:], values[:, :, -columns:]) for keys, values in buffers]
    cache = layout.cache(views, columns - width, write_mask)
    position, _ = _positions(network, contexts, mask)
    logits, _ = network(_pad(contexts, width, network.device), mask, position[..., -width:], cache)
    return logits


def _copy_prefix(context: Context, buffers: Layers, row: int, start: int) -> None:
    """Copy a context's cached tokens to its row of the buffers, from column `start` on."""
    if context.prefix is not None:
        end = start + context.cached_length
        for layer, prefix_layer in zip(buffers, context.prefix.layers, strict=True):
            for buffer, x in zip(layer, prefix_layer, strict=True):
                buffer[row, :, start:end] = x[:, : context.cached_length]


def _chunks(new_lengths: Sequence[int], tokens: int) -> Iterator[tuple[int, int]]:
    """Split contexts, by ascending numbers of new tokens, into ranges that share a forward pass."""
    start = 0
    for i, new in enumerate(new_lengths):
        if i > start and (new * (i - start + 1) > tokens or new > 2 * new_lengths[start] + ALIKE):
            yield start, i
            start = i
    yield start, len(new_lengths)


def _pad(contexts: Sequence[Context], width: int, device: torch.device) -> Tensor:
    """New tokens [n, width], right-aligned."""
    return torch.tensor([[0] * (width - len(c.new_tokens)) + list(c.new_tokens) for c in contexts], device=device)


def _positions(network: Network, contexts: Sequence[Context], mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Positions [n, columns] of right-aligned contexts; for m-RoPE [3, n, columns] and `State.ahead` [n]."""
    position = (mask.cumsum(1) - 1).clamp_min(0)
    if network.triples is None:
        return position, None
    position, ahead = position.expand(3, -1, -1).clone(), []
    for row, context in enumerate(contexts):
        n = len(context.prompt)
        token_positions, next_position = network.triples.positions(context.prompt)
        position[:, row, -n:] = token_positions.to(position.device)
        ahead.append(next_position - n)
    return position, torch.tensor(ahead, device=position.device)
