"""A causal language model for the engine: prefill of prompts, next-token logits, named caches."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gxpo.decoder.forward import Decoder, Kernels, Products, Prompts
from gxpo.decoder.functions import Chain
from gxpo.engines.cache import Layers, Layout, check_rows, columns_of, rows_of, spread
from gxpo.errors import ModelError

GROWING_ROPE = {"dynamic", "longrope"}  # these turn all keys anew once a context outgrows a length


@dataclass(frozen=True)
class State:
    """State of a batch between two tokens: next-token logits [n, V], cache, attention mask [n, columns so far], and the
    number of columns of the prompts.

    What counts of a row are its last columns without a gap, so positions and windows are those of the row alone.
    """

    network: Network
    logits: Tensor
    cache: Any
    mask: Tensor
    prompts: int

    def advance(self, token: Tensor) -> State:
        """State after one more token [n] of each row."""
        mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)
        logits, cache = self.network(token[:, None], mask, mask.sum(1, keepdim=True) - 1, self.cache)
        return State(self.network, logits, cache, mask, self.prompts)

    def select(self, rows: Tensor) -> State:
        return State(self.network, self.logits[rows], rows_of(self.cache, rows), self.mask[rows], self.prompts)

    def columns(self, row: int, prompt: int, tokens: int) -> Layers:
        """Copies of keys and values [heads, tokens, size] of a row, from the first of its `prompt` tokens on."""
        start = self.prompts - prompt
        return columns_of(self.cache, row, start, start + tokens)

    def spread(self, rows: Tensor, room: int) -> State:
        """Copy rows (repeats allowed), with room for further tokens."""
        return State(self.network, self.logits[rows], spread(self.cache, rows, room), self.mask[rows], self.prompts)


class Network:
    """A causal language model of transformers, optionally wrapped by peft.

    decoder  our own forward pass for the models that it knows; None: transformers' is used
    """

    def __init__(
        self, model: Any, device: torch.device, *, kernels: Kernels = "auto", products: Products = "auto"
    ) -> None:
        self.model, self.device = model.to(device), device
        self.causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.name = type(self.causal).__name__
        if getattr(self.causal, "_is_stateful", False):
            check_rows(None, self.name)
        accepted = inspect.signature(self.causal.forward).parameters
        self._accepts = {name for name in ("position_ids", "logits_to_keep") if name in accepted}
        self.decoder = Decoder.of(self.causal, products=products) if kernels == "auto" else None

    def __call__(self, tokens: Tensor, mask: Tensor, position: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits after the last of `tokens` [n, new] and the cache that includes them.

        mask [n, columns]: 1 where a column of cache and new tokens counts; position [n, new]: how many count before it
        """
        extra = {"position_ids": position, "logits_to_keep": 1}
        out = self.causal(
            input_ids=tokens,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **{name: extra[name] for name in self._accepts},
        )
        return out.logits[:, -1], getattr(out, "past_key_values", None)

    def head(self, states: Tensor) -> Tensor:
        """[n, V] logits of the last hidden states [n, H] of our decoder."""
        return self.causal.get_output_embeddings()(states)

    @cached_property
    def layout(self) -> Layout | None:
        """How to split and rebuild this model's cache, found with a forward pass of one token.

        None: it can't be (sliding windows, layers with states of their own, positions that the model counts itself).
        """
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        _, cache = self(zero, zero + 1, zero, None)
        check_rows(cache, self.name)
        if "position_ids" not in self._accepts or _rope_types(self.causal.config.get_text_config()) & GROWING_ROPE:
            return None
        return Layout.of(cache)

    def writes(self) -> int:
        """Version counter of the parameters, as torch counts in-place writes: a cache from before is stale."""
        return sum(p._version for p in self.model.parameters() if not p.is_inference())

    def check_length(self, prompt: int, new: int) -> None:
        limit = getattr(self.causal.config.get_text_config(), "max_position_embeddings", None)
        if limit and prompt + new > limit:
            raise ModelError(
                f"a prompt of {prompt} tokens and max_new_tokens {new} exceed the {limit} positions of {self.name}: "
                "lower max_new_tokens or shorten the prompt"
            )

    def end_ids(self, tokenizer: Any) -> tuple[int, ...]:
        """End-of-sequence ids of the tokenizer and of the model's generation settings."""
        sources = (tokenizer, getattr(self.causal, "generation_config", None))
        found = [getattr(source, "eos_token_id", None) for source in sources]
        return tuple(i for ids in found for i in (ids if isinstance(ids, (list, tuple)) else [ids]) if i is not None)


def _rope_types(config: Any) -> set[str]:
    """The kinds of rotary embedding that a configuration names, for all layers or by type of layer."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [x for x in settings.values() if isinstance(x, dict)]
    return {str(x.get("rope_type", x.get("type", "default"))) for x in (settings, *nested)}


@dataclass(frozen=True)
class Kept:
    """A cached prefix of a sample's context and action: its tokens, keys and values [heads, tokens, size] by layer, and
    the policy that computed them."""

    tokens: tuple[int, ...]
    layers: Layers
    policy: str = "main"

    def begins(self, prompt: Sequence[int], policy: str = "main") -> bool:
        """Whether this policy's prompt begins with the cached tokens."""
        return policy == self.policy and tuple(prompt[: len(self.tokens)]) == self.tokens


class KeptCaches:
    """LRU store of prefix caches by name, at most `limit` tokens in total.

    tokens      that are held now
    dropped     caches that were given up for want of room
    mismatched  caches whose name came back with a prompt that does not begin with them, or under another policy
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tokens = self.dropped = self.mismatched = 0
        self._by_name: dict[str, Kept] = {}  # least recently used first

    def use(self, names: Iterable[str]) -> None:
        """Mark these names as used now."""
        for name in names:
            if name in self._by_name:
                self._by_name[name] = self._by_name.pop(name)

    def take(self, name: str, prompt: Sequence[int], policy: str = "main") -> Kept | None:
        """Remove the cache called `name`; gives it if `prompt` begins with it and the policy is the same."""
        kept = self._pop(name)
        if kept is None or kept.begins(prompt, policy):
            return kept
        self.mismatched += 1
        return None

    def put(self, name: str, kept: Kept) -> None:
        """Store a cache under `name`; one that is longer than the limit is dropped and evicts nothing."""
        self._pop(name)
        if len(kept.tokens) > self.limit:
            self.dropped += 1
            return
        self._by_name[name] = kept
        self.tokens += len(kept.tokens)
        while self.tokens > self.limit:
            self._pop(next(iter(self._by_name)))
            self.dropped += 1

    def release(self, names: Sequence[str] | None = None) -> None:
        """Drop these names (unknown ones are ignored), or all."""
        for name in list(self._by_name) if names is None else names:
            self._pop(name)

    def _pop(self, name: str) -> Kept | None:
        kept = self._by_name.pop(name, None)
        if kept is not None:
            self.tokens -= len(kept.tokens)
        return kept


ALIKE = 32  # new tokens by which contexts may always differ in one forward pass; beyond, at most by a factor of 2


@dataclass(frozen=True)
class Context:
    """A distinct prompt, with the cache of its first tokens if there is one."""

    prompt: tuple[int, ...]
    kept: Kept | None = None

    @property
    def known(self) -> int:
        """Cached tokens that need no forward pass; the last token always needs one, for its logits."""
        return 0 if self.kept is None else min(len(self.kept.tokens), len(self.prompt) - 1)

    @property
    def new(self) -> tuple[int, ...]:
        return self.prompt[self.known :]


def prefill(network: Network, contexts: Sequence[Context], room: int, tokens: int) -> State:
    """Prefill contexts: the state after each, in order, with room for further tokens if the cache has a layout.

    Contexts should be sorted by their number of new tokens: neighbours share forward passes of at most `tokens` new
    tokens, padding included, or of one context. Without a layout all go through in one pass.
    """
    layout = network.layout
    columns = max(len(c.prompt) for c in contexts)
    mask = _right_aligned([len(c.prompt) for c in contexts], columns, network.device)
    if layout is None:
        logits, cache = network(_padded(contexts, columns, network.device), mask, _positions(mask), None)
        return State(network, logits, cache, mask, columns)
    buffers = layout.buffers(len(contexts), columns + room)
    for row, context in enumerate(contexts):
        _lay(context, buffers, row, columns - len(context.prompt))
    logits = [
        _through(network, layout, contexts[a:b], [(k[a:b, :, :columns], v[a:b, :, :columns]) for k, v in buffers])
        for a, b in _chunks([len(c.new) for c in contexts], tokens)
    ]
    return State(network, torch.cat(logits), layout.cache(buffers, columns), mask, columns)


def shared(network: Network, contexts: Sequence[Context], tokens: int) -> tuple[Tensor, Prompts]:
    """Logits [C, V] after each context and its keys and values, for samples that share them.

    Where nothing is known of any, our decoder takes them without padding, at most `tokens` (or one) at a time.
    """
    decoder = network.decoder
    if decoder is None or any(c.known for c in contexts):
        state = prefill(network, contexts, 0, tokens)
        return state.logits, Prompts([(x.keys, x.values) for x in state.cache.layers], state.mask)
    lengths = [len(c.prompt) for c in contexts]
    columns = max(lengths)
    mask = _right_aligned(lengths, columns, network.device)
    place = mask.bool().flatten().nonzero().squeeze(1)  # of the flat list of tokens in the padded columns
    logits: list[Tensor] = []
    buffers: list[Tensor] = []
    start = 0
    for a, b in _pieces(lengths, tokens):
        ends = torch.tensor(lengths[a:b]).cumsum(0)
        chains = [Chain(e - n, e, e) for e, n in zip(ends.tolist(), lengths[a:b], strict=True)]
        states, layers = decoder.prefill(
            torch.tensor([token for c in contexts[a:b] for token in c.prompt]),
            torch.cat([torch.arange(n) for n in lengths[a:b]]),
            chains,
        )
        if not buffers:
            buffers = [x.new_zeros(len(contexts) * columns, *x.shape[1:]) for x in layers]
        at = place[start : start + int(ends[-1])]
        for buffer, x in zip(buffers, layers, strict=True):
            buffer[at] = x
        start += int(ends[-1])
        logits.append(network.head(states[ends - 1]))
    wide = [x.view(len(contexts), columns, *x.shape[1:]).transpose(1, 2).chunk(2, 1) for x in buffers]
    return torch.cat(logits), Prompts([(keys, values) for keys, values in wide], mask)


def _pieces(lengths: Sequence[int], tokens: int) -> Iterator[tuple[int, int]]:
    """Ranges of contexts of at most `tokens` together, or of one."""
    start = held = 0
    for i, length in enumerate(lengths):
        if i > start and held + length > tokens:
            yield start, i
            start, held = i, 0
        held += length
    yield start, len(lengths)


def _through(network: Network, layout: Layout, contexts: Sequence[Context], buffers: Layers) -> Tensor:
    """Logits [n, V] after contexts whose known tokens are in the buffers; new ones are written there, right-aligned.

    Columns that only pad a shorter row's new tokens are those of its known tokens, so they must not be written.
    """
    columns, news = max(len(c.prompt) for c in contexts), [len(c.new) for c in contexts]
    width = max(news)
    mask = _right_aligned([len(c.prompt) for c in contexts], columns, network.device)
    written = None if min(news) == width else _right_aligned(news, width, network.device).bool()
    place = [(keys[:, :, -columns:], values[:, :, -columns:]) for keys, values in buffers]
    cache = layout.cache(place, columns - width, written)
    logits, _ = network(_padded(contexts, width, network.device), mask, _positions(mask)[:, -width:], cache)
    return logits


def _lay(context: Context, buffers: Layers, row: int, start: int) -> None:
    if context.kept is not None:
        end = start + context.known
        for to, kept in zip(buffers, context.kept.layers, strict=True):
            for buffer, x in zip(to, kept, strict=True):
                buffer[row, :, start:end] = x[:, : context.known]


def _chunks(news: Sequence[int], tokens: int) -> Iterator[tuple[int, int]]:
    """Ranges of contexts that go through together, from their numbers of new tokens, ascending."""
    start = 0
    for i, new in enumerate(news):
        if i > start and (new * (i - start + 1) > tokens or new > 2 * news[start] + ALIKE):
            yield start, i
            start = i
    yield start, len(news)


def _padded(contexts: Sequence[Context], width: int, device: torch.device) -> Tensor:
    return torch.tensor([[0] * (width - len(c.new)) + list(c.new) for c in contexts], device=device)


def _right_aligned(lengths: Sequence[int], columns: int, device: torch.device) -> Tensor:
    """[n, columns] int64: 1 in the last `lengths` columns."""
    first = columns - torch.tensor(lengths, device=device)[:, None]
    return (torch.arange(columns, device=device)[None, :] >= first).to(torch.int64)


def _positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(1) - 1).clamp_min(0)
