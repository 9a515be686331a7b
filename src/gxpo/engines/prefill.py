"""From prompts to the logits after them: what is known of a prompt is laid into the cache, the rest goes through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
        return State(logits, cache, mask)
    buffers = layout.buffers(len(contexts), columns + room)
    for row, context in enumerate(contexts):
        _lay(context, buffers, row, columns - len(context.prompt))
    logits = [
        _through(network, layout, contexts[a:b], [(k[a:b, :, :columns], v[a:b, :, :columns]) for k, v in buffers])
        for a, b in _chunks([len(c.new) for c in contexts], tokens)
    ]
    return State(torch.cat(logits), layout.cache(buffers, columns), mask)


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
