"""Decode loop: prefix caches, flat prefill, and batches of samples until each of them has stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gxpo.base.devices import drawing_device
from gxpo.models.decoder.attention import Chain
from gxpo.models.decoder.forward import Decoder
from gxpo.models.decoder.sampling import Prompts
from gxpo.parts.protocols import LIKELIEST, Completion, Sampling
from gxpo.sampling.engines.cache import Layers
from gxpo.sampling.engines.draws import Draws, draw
from gxpo.sampling.engines.stopping import Stopping

TOKENS_AT_ONCE = 8  # tokens that another device than a CPU draws before the host reads them
KEEP_UNTIL = 7 / 8  # share of the batch's rows still running, at or below which finished rows are removed


# ---------------------------------------------------------------- prompts and prefix caches
def parameter_version(model: Any) -> int:
    """Version counter of the parameters, by torch's count of in-place writes; caches of another version are stale."""
    return sum(p._version for p in model.parameters() if not p.is_inference())


@dataclass(frozen=True)
class CachedPrefix:
    """Cached prefix of a sample: tokens, keys and values [heads, tokens, size] by layer, and the policy of both."""

    tokens: tuple[int, ...]
    layers: Layers
    policy: str = "main"

    def begins(self, prompt: Sequence[int], policy: str = "main") -> bool:
        """Return True if the prompt begins with the cached tokens and is the same policy's."""
        return policy == self.policy and tuple(prompt[: len(self.tokens)]) == self.tokens


class PrefixCaches:
    """LRU store of prefix caches by name, at most `limit` tokens in total.

    tokens      in all caches together
    n_dropped   number of caches evicted for want of room
    n_mismatched  number of caches whose name came back with a prompt that does not begin with them, or another policy
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tokens = self.n_dropped = self.n_mismatched = 0
        self._by_name: dict[str, CachedPrefix] = {}  # least recently used first

    def use(self, names: Iterable[str]) -> None:
        """Mark these names as the most recently used."""
        for name in names:
            if name in self._by_name:
                self._by_name[name] = self._by_name.pop(name)

    def take(self, name: str, prompt: Sequence[int], policy: str = "main") -> CachedPrefix | None:
        """Remove the cache called `name` and return it if it fits `prompt` and `policy`."""
        prefix = self._pop(name)
        if prefix is None or prefix.begins(prompt, policy):
            return prefix
        self.n_mismatched += 1
        return None

    def put(self, name: str, prefix: CachedPrefix) -> None:
        """Store a cache under `name`; one longer than the limit is dropped and evicts nothing."""
        self._pop(name)
        if len(prefix.tokens) > self.limit:
            self.n_dropped += 1
            return
        self._by_name[name] = prefix
        self.tokens += len(prefix.tokens)
        while self.tokens > self.limit:
            self._pop(next(iter(self._by_name)))
            self.n_dropped += 1

    def release(self, names: Sequence[str] | None = None) -> None:
        """Drop these names (unknown ones are ignored), or all."""
        for name in list(self._by_name) if names is None else names:
            self._pop(name)

    def _pop(self, name: str) -> CachedPrefix | None:
        prefix = self._by_name.pop(name, None)
        if prefix is not None:
            self.tokens -= len(prefix.tokens)
        return prefix


@dataclass(frozen=True)
class Context:
    """Distinct prompt of a call, with the cache of its first tokens if there is one."""

    prompt: tuple[int, ...]
    prefix: CachedPrefix | None = None

    @property
    def cached_length(self) -> int:
        """Number of cached tokens that need no forward pass; the last token always needs one, for its logits."""
        return 0 if self.prefix is None else min(len(self.prefix.tokens), len(self.prompt) - 1)

    @property
    def new_tokens(self) -> tuple[int, ...]:
        return self.prompt[self.cached_length :]


def prefill_flat(
    decoder: Decoder, contexts: Sequence[Context], tokens: int, device: torch.device
) -> tuple[Tensor, Prompts]:
    """Prefill contexts without cached tokens, at most `tokens` (or one context) at a time, without padding.

    Returns logits [C, V] after each context, and keys and values that all its samples share.
    """
    head = decoder.head
    assert head is not None
    lengths = [len(c.prompt) for c in contexts]
    columns = max(lengths)
    # Samples read the caches as padded, right-aligned rows; the forward pass itself runs on the flat list of tokens.
    mask = right_aligned(lengths, columns, device)
    flat_columns = mask.bool().flatten().nonzero().squeeze(1)  # of the flat list of tokens in the padded columns
    logits: list[Tensor] = []
    buffers: list[Tensor] = []
    next_positions: list[Tensor] = []
    start = 0
    for first, last in _pieces(lengths, tokens):
        ends = torch.tensor(lengths[first:last]).cumsum(0)
        chains = [Chain(e - n, e, e) for e, n in zip(ends.tolist(), lengths[first:last], strict=True)]
        position, next_position = decoder.positions([c.prompt for c in contexts[first:last]])
        next_positions += [] if next_position is None else [next_position]
        # Each context is a chain of its own: tokens see those before them in the chain and nothing else.
        states, layers = decoder.prefill(
            torch.tensor([token for c in contexts[first:last] for token in c.prompt]), position, chains
        )
        # Scatter the flat keys and values into the padded buffers, whose shapes the first piece shows.
        if not buffers:
            buffers = [x.new_zeros(len(contexts) * columns, *x.shape[1:]) for x in layers]
        piece_columns = flat_columns[start : start + int(ends[-1])]
        for buffer, x in zip(buffers, layers, strict=True):
            buffer[piece_columns] = x
        start += int(ends[-1])
        logits.append(head(states[ends - 1]))
    padded_layers = [x.view(len(contexts), columns, *x.shape[1:]).transpose(1, 2).chunk(2, 1) for x in buffers]
    next_position = torch.cat(next_positions) if next_positions else None
    return torch.cat(logits), Prompts([(keys, values) for keys, values in padded_layers], mask, next_position)


def _pieces(lengths: Sequence[int], tokens: int) -> Iterator[tuple[int, int]]:
    """Split contexts into ranges of at most `tokens` tokens, or of one context."""
    start = piece_tokens = 0
    for i, length in enumerate(lengths):
        if i > start and piece_tokens + length > tokens:
            yield start, i
            start, piece_tokens = i, 0
        piece_tokens += length
    yield start, len(lengths)


def right_aligned(lengths: Sequence[int], columns: int, device: torch.device) -> Tensor:
    """[n, columns] int64: 1 in the last `lengths` columns."""
    first = columns - torch.tensor(lengths, device=device)[:, None]
    return (torch.arange(columns, device=device)[None, :] >= first).to(torch.int64)


# ---------------------------------------------------------------- decoding


class Batch(Protocol):
    """Protocol of a batch's state between two tokens: next-token logits, and caches whose rows can be selected."""

    @property
    def logits(self) -> Tensor: ...
    def advance(self, token: Tensor) -> Batch: ...
    def select(self, rows: Tensor) -> Batch: ...
    def columns(self, row: int, prompt: int, tokens: int) -> list[tuple[Tensor, Tensor]]: ...


class RowDraws(Protocol):
    """Protocol of draws that differ by sample: `gxpo.sampling.engines.optional_draws`."""

    def draw(self, logits: Tensor, uniform: Tensor, samples: Tensor, is_running: Tensor) -> Draws: ...
    def accept(self, tokens: Tensor, samples: Tensor, is_running: Tensor) -> Tensor: ...


OnDone = Callable[[int, int, Batch, "list[int]"], None]  # sample, its row in the batch, the batch, the action's tokens


@dataclass
class Actions:
    """Actions of n samples so far: tokens, logprobs [n, longest], length, stopped [n], supports by step."""

    tokens: Tensor
    logprobs: Tensor
    length: Tensor
    is_stopped: Tensor
    supports: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (samples, support) of every step
    likeliest: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (samples, `likeliest_of`) of every step

    @staticmethod
    def empty(n: int, longest: int) -> Actions:
        return Actions(
            torch.zeros(n, longest, dtype=torch.int64),
            torch.zeros(n, longest, dtype=torch.float64),
            torch.zeros(n, dtype=torch.int64),
            torch.zeros(n, dtype=torch.bool),
        )

    def action(self, sample: int) -> list[int]:
        return self.tokens[sample, : int(self.length[sample])].tolist()

    def completions(self, policy_version: int) -> list[Completion]:
        support, longest, likeliest = self._support(), self.tokens.shape[1], self._likeliest()
        samples = []
        for i, (size, stop) in enumerate(zip(self.length.tolist(), self.is_stopped.tolist(), strict=True)):
            row_support = None
            if support is not None:
                row_support = support[i, :size]
                row_support = row_support[:, : int((row_support >= 0).sum(1).max())].copy()
                row_support = row_support if row_support.shape[1] else None  # its request cut nothing
            samples.append(
                Completion(
                    tokens=self.tokens[i, :size].tolist(),
                    logprobs=self.logprobs[i, :size].tolist(),
                    finish="stop" if stop else "length" if size == longest else "interrupted",
                    support=row_support,
                    policy_version=policy_version,
                    extras={name: x[i, :size].numpy() for name, x in likeliest.items()},
                )
            )
        return samples

    def _likeliest(self) -> dict[str, Tensor]:
        """The extras `LIKELIEST` of all samples, [n, steps, K] and [n, steps, K + 1]; none if nobody asked for them."""
        if not self.likeliest:
            return {}
        columns = self.likeliest[0][1].shape[1]
        by_step = torch.full((self.tokens.shape[0], len(self.likeliest), columns), torch.nan, dtype=torch.float64)
        for step, (samples, top) in enumerate(self.likeliest):
            by_step[samples, step] = top
        ids, logprob = by_step[..., : columns // 2], by_step[..., columns // 2 :]
        return dict(zip(LIKELIEST, (ids.nan_to_num(nan=-1.0).to(torch.int64), logprob), strict=True))

    def _support(self) -> np.ndarray | None:
        """Support of all steps [n, steps, widest] int64, padded with -1; None if sampling was not truncated."""
        if not self.supports:
            return None
        width = max(ids.shape[1] for _, ids in self.supports)
        support = np.full((self.tokens.shape[0], len(self.supports), width), -1, dtype=np.int64)
        for step, (samples, ids) in enumerate(self.supports):
            support[samples.numpy(), step, : ids.shape[1]] = ids.numpy()
        return support


def decode(
    state: Batch,
    streams: np.ndarray,
    sampling: Sampling,
    stopping: Stopping,
    on_done: OnDone,
    should_interrupt: Callable[[], bool] | None = None,
    likeliest: int = 0,
    row_draws: RowDraws | None = None,
) -> Actions:
    """Sample until every row is done or out of uniforms; streams [n, longest] float64.

    `on_done` is called once for every sample, when it is done and before its row leaves the batch. The cache then holds
    at least all but the last token of its action. `should_interrupt` is called whenever tokens have been read; if it
    returns True, decoding ends and the rows still running count as interrupted. Tokens are read one by one on a CPU and
    `TOKENS_AT_ONCE` together on another device, which the host waits for each time. Devices without float64 send their
    logits to the host, which draws. `likeliest`: as of `draw`. `row_draws` draws instead of `draw`, one token at a
    time, since it needs each token for the next.
    """
    (n, longest), device = streams.shape, state.logits.device
    place = drawing_device(device)
    uniform = torch.from_numpy(streams.T.copy()).to(place).unbind()
    actions = Actions.empty(n, longest)
    # which sample each row of the batch is, where tokens are drawn: None, all of them, until some have been removed
    rows: Tensor | None = None
    samples, is_running, step = torch.arange(n), torch.ones(n, dtype=torch.bool), 0
    at_once = 1 if place.type == "cpu" or row_draws is not None else TOKENS_AT_ONCE
    unread_draws: list[Draws] = []
    for draw_step in range(longest):
        # Finished rows are sampled along until they are removed; `length` keeps what they draw out of their actions.
        row_uniform = uniform[draw_step] if rows is None else uniform[draw_step][rows]
        logits = state.logits.to(place)
        if row_draws is None:
            draws = draw(logits, row_uniform, sampling, likeliest)
        else:
            draws = row_draws.draw(logits, row_uniform, samples, is_running)
        token = draws.token.to(device)
        unread_draws.append(draws)
        if len(unread_draws) < at_once and draw_step + 1 < longest:
            state = state.advance(token)
            continue
        at, has_ended, is_over = slice(None) if rows is None else samples, False, draw_step + 1 == longest
        for step, (host_token, logprob, support, top) in enumerate(
            _on_host(unread_draws), draw_step + 1 - len(unread_draws)
        ):
            actions.tokens[at, step], actions.logprobs[at, step] = host_token, logprob
            if support is not None:
                actions.supports.append((samples, support))
            if top is not None:
                actions.likeliest.append((samples, top))
            is_done = None if stopping.is_never else stopping.is_done(host_token, actions.tokens[at, : step + 1])
            if row_draws is not None:
                is_broken = row_draws.accept(host_token, samples, is_running)
                is_done = is_broken if is_done is None else is_done | is_broken
            if is_done is not None and bool(is_done.logical_and_(is_running).any()):
                has_ended = True
                actions.length[samples[is_done]], actions.is_stopped[samples[is_done]] = step + 1, True
                is_running = is_running & ~is_done
                if not bool(is_running.any()):
                    is_over = True
                    break
        unread_draws = []
        if is_over or (should_interrupt is not None and should_interrupt()):
            break
        # Remove finished rows in bulk: selecting rows copies the caches.
        if has_ended and int(is_running.sum()) <= KEEP_UNTIL * samples.numel():
            _report_done(actions, samples, ~is_running, state, on_done)
            running_rows = is_running.nonzero().squeeze(1)
            samples, device_rows = samples[running_rows], running_rows.to(device)
            rows, token, state = samples.to(place), token[device_rows], state.select(device_rows)
            is_running = torch.ones_like(samples, dtype=torch.bool)
        state = state.advance(token)
    actions.length[samples[is_running]] = step + 1
    _report_done(actions, samples, torch.ones_like(samples, dtype=torch.bool), state, on_done)
    return actions


def _on_host(unread_draws: Sequence[Draws]) -> Iterator[Draws]:
    """Several draws of the same rows, brought to the host: tokens and log-probs by one copy, supports of equal width by
    another."""
    if len(unread_draws) == 1:
        yield Draws(*(None if x is None else x.cpu() for x in unread_draws[0]))  # type: ignore[arg-type]
        return
    # log-probs travel as the bits of integers
    bits = torch.stack([x for draws in unread_draws for x in (draws.token, draws.logprob.view(torch.int64))]).cpu()
    supports = [draws.support for draws in unread_draws if draws.support is not None]
    if len({x.shape for x in supports}) == 1:
        supports = list(torch.stack(supports).cpu())
    for i, draws in enumerate(unread_draws):
        top = None if draws.likeliest is None else draws.likeliest.cpu()
        support = supports[i].cpu() if supports else None
        yield Draws(bits[2 * i], bits[2 * i + 1].view(torch.float64), support, top)


def _report_done(actions: Actions, samples: Tensor, done_rows: Tensor, state: Batch, on_done: OnDone) -> None:
    """Call `on_done` for these rows of the batch."""
    for row in done_rows.nonzero().squeeze(1).tolist():
        sample = int(samples[row])
        on_done(sample, row, state, actions.action(sample))
