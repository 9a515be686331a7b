"""From prompts to the logits after them: what is known of a prompt is laid into the cache, the rest goes through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.decoder.attention import Chain
from gxpo.decoder.step import Prompts
from gxpo.engines.cache import Layers, Layout
from gxpo.engines.kept import Kept
from gxpo.engines.network import Network, State

ALIKE = 32  # new tokens by which contexts may always differ in one forward pass; beyond, at most by a factor of 2


@dataclass(frozen=True)
class Context:
    """A distinct prompt, and the cache of its first tokens where there is one."""

    prompt: tuple[int, ...]
    kept: Kept | None = None

    @property
    def known(self) -> int:
        """Tokens that need not go through the model; the last one must, because its logits are wanted."""
        return 0 if self.kept is None else min(len(self.kept.tokens), len(self.prompt) - 1)

    @property
    def new(self) -> tuple[int, ...]:
        return self.prompt[self.known :]


def prefill(network: Network, contexts: Sequence[Context], room: int, tokens: int) -> State:
    """The state after each context, in their order, with room for further tokens where the cache has a layout.

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
    """Logits [C, V] after each context and their keys and values, for samples that share them.

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
    """Logits [n, V] after contexts whose known tokens lie in the buffers; new ones are written there, right-aligned.

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
