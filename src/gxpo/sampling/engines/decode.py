"""Prefill with kept caches, then the decode loop: keyed random numbers, temperature, top-k and top-p, stop conditions.

What is drawn depends on the key of a stream, never on what else is in the batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from gxpo.base.errors import ModelError
from gxpo.models.decoder.attention import Chain
from gxpo.models.decoder.forward import Decoder
from gxpo.models.decoder.sampling import Prompts
from gxpo.parts.protocols import Completion, Sampling, StreamKey
from gxpo.sampling.engines.cache import Layers


# ---------------------------------------------------------------- prompts, and what is kept of them
def writes(model: Any) -> int:
    """Version counter of the parameters, as torch counts in-place writes: a cache from before is stale."""
    return sum(p._version for p in model.parameters() if not p.is_inference())


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


def prefill_flat(
    decoder: Decoder, contexts: Sequence[Context], tokens: int, device: torch.device
) -> tuple[Tensor, Prompts]:
    """Logits [C, V] after each context, of which nothing is kept, and its keys and values, for samples to share.

    Without padding, at most `tokens` (or one context) at a time.
    """
    head = decoder.head
    assert head is not None
    lengths = [len(c.prompt) for c in contexts]
    columns = max(lengths)
    mask = right_aligned(lengths, columns, device)
    place = mask.bool().flatten().nonzero().squeeze(1)  # of the flat list of tokens in the padded columns
    logits: list[Tensor] = []
    buffers: list[Tensor] = []
    afters: list[Tensor] = []
    start = 0
    for a, b in _pieces(lengths, tokens):
        ends = torch.tensor(lengths[a:b]).cumsum(0)
        chains = [Chain(e - n, e, e) for e, n in zip(ends.tolist(), lengths[a:b], strict=True)]
        position, after = decoder.positions([c.prompt for c in contexts[a:b]])
        afters += [] if after is None else [after]
        states, layers = decoder.prefill(
            torch.tensor([token for c in contexts[a:b] for token in c.prompt]), position, chains
        )
        if not buffers:
            buffers = [x.new_zeros(len(contexts) * columns, *x.shape[1:]) for x in layers]
        at = place[start : start + int(ends[-1])]
        for buffer, x in zip(buffers, layers, strict=True):
            buffer[at] = x
        start += int(ends[-1])
        logits.append(head(states[ends - 1]))
    wide = [x.view(len(contexts), columns, *x.shape[1:]).transpose(1, 2).chunk(2, 1) for x in buffers]
    after = torch.cat(afters) if afters else None
    return torch.cat(logits), Prompts([(keys, values) for keys, values in wide], mask, after)


def _pieces(lengths: Sequence[int], tokens: int) -> Iterator[tuple[int, int]]:
    """Ranges of contexts of at most `tokens` together, or of one."""
    start = held = 0
    for i, length in enumerate(lengths):
        if i > start and held + length > tokens:
            yield start, i
            start, held = i, 0
        held += length
    yield start, len(lengths)


def right_aligned(lengths: Sequence[int], columns: int, device: torch.device) -> Tensor:
    """[n, columns] int64: 1 in the last `lengths` columns."""
    first = columns - torch.tensor(lengths, device=device)[:, None]
    return (torch.arange(columns, device=device)[None, :] >= first).to(torch.int64)


# ---------------------------------------------------------------- draws
def generator(key: StreamKey) -> np.random.Generator:
    """Philox generator keyed by the 128-bit blake2b hash of the stream's name."""
    name = json.dumps([key.seed, key.step, key.task, key.attempt, list(key.path), key.turn])
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype="<u8")))


def uniforms(keys: Sequence[StreamKey], length: int) -> np.ndarray:
    """Uniforms float64 [len(keys), length] in [0, 1); a longer stream of the same key begins with the shorter one.

    >>> a = uniforms([StreamKey(seed=0, step=3, task="gsm8k/17", attempt=1)], 2)
    >>> b = uniforms([StreamKey(seed=0, step=3, task="gsm8k/17", attempt=1)], 5)
    >>> bool((a == b[:, :2]).all())
    True
    """
    out = np.empty((len(keys), length), dtype=np.float64)
    for row, key in zip(out, keys, strict=True):
        generator(key).random(out=row)
    return out


BLOCK = 128  # columns of a row that are summed together before one of them is looked for


class Drawn(NamedTuple):
    """token [n] int64, logprob [n] float64, support [n, K] int64 padded with -1 (None: the whole vocabulary)."""

    token: Tensor
    logprob: Tensor
    support: Tensor | None


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Drawn:
    """Sample from softmax(logits / temperature) restricted to its support, with the log-prob under that distribution.

    logits [n, V]; uniform [n] float64 in [0, 1). The token is the first, in order of ids, at which the cumulative
    probability exceeds `uniform`; the order of ids (not of probabilities) keeps a draw from changing when two nearly
    equal logits change places by rounding. Temperature 0 takes the most likely token, whose log-probability is 0.
    """
    if uniform.shape != logits.shape[:1]:
        raise ValueError(f"uniform {tuple(uniform.shape)} must be [n] for logits {tuple(logits.shape)}")
    if sampling.temperature == 0:
        token = logits.argmax(-1)
        return Drawn(token, torch.zeros(token.shape, dtype=torch.float64, device=token.device), None)
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scaled = scaled if sampling.temperature == 1 else scaled / sampling.temperature
    if sampling.top_k == 0 and sampling.top_p == 1:
        place, logprob = _invert(scaled, uniform)
        return Drawn(place, logprob, None)
    support = support_of(scaled, sampling.top_k, sampling.top_p)
    inside = scaled.gather(1, support.clamp_min(0)).masked_fill(support < 0, -torch.inf)
    place, logprob = _invert(inside, uniform)
    return Drawn(support.gather(1, place[:, None]).squeeze(1), logprob, support)


def support_of(scaled: Tensor, top_k: int, top_p: float) -> Tensor:
    """[n, K] ids of the top-k, then top-p support, in ascending order, padded with -1.

    scaled [n, V]: logits over temperature. top-p keeps the fewest most likely ids whose probabilities reach `top_p`
    (Holtzman et al., 2020, section 3.1), always at least one.
    """
    n, size = scaled.shape
    kept, ids = scaled.topk(min(top_k, size) if top_k > 0 else size, dim=-1)
    if top_p < 1.0:
        p = kept.softmax(-1)
        ids = ids.masked_fill(p.cumsum(-1) - p >= top_p, size)
    ids = ids.sort(-1).values
    widest = int((ids < size).sum(-1).max()) if n else 0
    ids = ids[:, :widest]
    return ids.masked_fill(ids == size, -1)


def _invert(scaled: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Columns drawn from softmax(scaled) [n, V] by cumulative probability, and their log-probabilities (float64).

    Probabilities are summed in float64, first by blocks of columns, so that one block of a row is looked through.
    """
    highest = scaled.amax(1, keepdim=True)
    raised = (scaled - highest).exp_()
    totals = _by_block(raised)
    cumulative = totals.cumsum(1)
    target = (uniform.to(cumulative) * cumulative[:, -1])[:, None]
    block = _first_above(cumulative, target)
    before = cumulative.gather(1, block) - totals.gather(1, block)
    column = block * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = raised.gather(1, column.clamp_max(raised.shape[1] - 1)).to(torch.float64)
    place = _first_above(inside.masked_fill_(column >= raised.shape[1], 0).cumsum(1), target - before)
    token = block * BLOCK + place
    logprob = (scaled.gather(1, token).to(torch.float64) - highest) - cumulative[:, -1:].log()
    return token.squeeze(1), logprob.squeeze(1)


def _by_block(raised: Tensor) -> Tensor:
    """[n, blocks] float64 sums of BLOCK columns each; the last may have fewer."""
    whole = raised.shape[1] // BLOCK
    sums = raised[:, : whole * BLOCK].unflatten(1, (whole, BLOCK)).sum(2, dtype=torch.float64) if whole else None
    rest = raised[:, whole * BLOCK :].sum(1, keepdim=True, dtype=torch.float64) if raised.shape[1] % BLOCK else None
    return torch.cat([x for x in (sums, rest) if x is not None], 1)


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """[n, 1] the first column whose cumulative sum exceeds the target; at most the last that adds anything."""
    last = (cumulative < cumulative[:, -1:]).sum(1, keepdim=True)
    return torch.minimum(torch.searchsorted(cumulative, target, right=True), last)


MARKERS = {"\u2581": " ", "\u0120": " ", "\u010a": "\n"}  # how SentencePiece and byte-level BPE write blanks
REPLACEMENT = "\ufffd"  # what a piece that is not whole UTF-8 decodes to


_TOKEN_TEXTS: WeakKeyDictionary[Any, dict[tuple[int, int], list[set[str]]]] = WeakKeyDictionary()


def token_texts(tokenizer: Any, vocabulary: int) -> list[set[str]]:
    """Text of each token by itself: as it is decoded, and as the vocabulary writes it. Found out once."""
    cache, key = _TOKEN_TEXTS.setdefault(tokenizer, {}), (vocabulary, len(tokenizer))
    if key not in cache:
        texts = []
        for token in range(vocabulary):
            vocabulary_text = tokenizer.convert_ids_to_tokens(token) or ""
            for marker, blank in MARKERS.items():
                vocabulary_text = vocabulary_text.replace(marker, blank)
            decoded = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            texts.append({decoded, vocabulary_text})
        cache[key] = texts
    return cache[key]


class Stopping:
    """Stop conditions. Only tokens that could complete a stop string are decoded."""

    def __init__(self, ids: Sequence[int], strings: Sequence[str], tokenizer: Any, vocabulary: int) -> None:
        if "" in strings:
            raise ModelError("sampling.stop has an empty string, which would end every action: remove it")
        if strings and tokenizer is None:
            raise ModelError("stop strings need a tokenizer: give the engine one, or use sampling.stop_ids")
        self.ids = torch.tensor(sorted(set(ids)), dtype=torch.int64)
        self.strings, self.tokenizer = tuple(strings), tokenizer
        self.may_complete = self._completing(vocabulary) if strings else None

    def done(self, token: Tensor, history: Tensor) -> Tensor:
        """[n] bool: finished rows. token [n]: the newest; history [n, k]: the action so far, `token` included."""
        out = torch.isin(token, self.ids)
        if self.may_complete is not None:
            for row in (self.may_complete[token] & ~out).nonzero().squeeze(1).tolist():
                text = self._text(history[row].tolist())
                out[row] = any(s in text for s in self.strings)
        return out

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _completing(self, vocabulary: int) -> Tensor:
        """[vocabulary] False only for tokens inside whose text no stop string can end."""
        ends = frozenset(s[i:] for s in self.strings for i in range(len(s)))
        begins = frozenset(end[0] for end in ends)
        shortest, longest = min(map(len, self.strings)), max(map(len, self.strings))

        def ends_in(piece: str) -> bool:
            if piece == "" or REPLACEMENT in piece:
                return True
            if len(piece) >= shortest and any(s in piece for s in self.strings):
                return True
            return piece[0] in begins and any(piece[:n] in ends for n in range(1, min(len(piece), longest) + 1))

        return torch.tensor([any(map(ends_in, texts)) for texts in token_texts(self.tokenizer, vocabulary)])


KEEP_UNTIL = 7 / 8  # rows still running, of those in the batch, below which the finished ones are taken out


class Batch(Protocol):
    """State of a batch between two tokens."""

    @property
    def logits(self) -> Tensor: ...
    def advance(self, token: Tensor) -> Batch: ...
    def select(self, rows: Tensor) -> Batch: ...
    def columns(self, row: int, prompt: int, tokens: int) -> list[tuple[Tensor, Tensor]]: ...


Leave = Callable[[int, int, Batch, "list[int]"], None]  # sample, its row of the batch, the batch, the action's tokens


@dataclass
class Actions:
    """Tokens of n samples so far: tokens, logprobs [n, longest], length, stopped [n], supports by step."""

    tokens: Tensor
    logprobs: Tensor
    length: Tensor
    stopped: Tensor
    supports: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (samples, support) of every step

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
        support, longest = self._support(), self.tokens.shape[1]
        out = []
        for i, (size, stop) in enumerate(zip(self.length.tolist(), self.stopped.tolist(), strict=True)):
            own = None
            if support is not None:
                own = support[i, :size]
                own = own[:, : int((own >= 0).sum(1).max())].copy()
            out.append(
                Completion(
                    tokens=self.tokens[i, :size].tolist(),
                    logprobs=self.logprobs[i, :size].tolist(),
                    finish="stop" if stop else "length" if size == longest else "interrupted",
                    support=own,
                    policy_version=policy_version,
                )
            )
        return out

    def _support(self) -> np.ndarray | None:
        """[n, steps, widest] int64 padded with -1; None where nothing was cut."""
        if not self.supports:
            return None
        widest = max(allowed.shape[1] for _, allowed in self.supports)
        support = np.full((self.tokens.shape[0], len(self.supports), widest), -1, dtype=np.int64)
        for step, (samples, allowed) in enumerate(self.supports):
            support[samples.numpy(), step, : allowed.shape[1]] = allowed.numpy()
        return support


def decode(
    state: Batch,
    streams: np.ndarray,
    sampling: Sampling,
    stopping: Stopping,
    leave: Leave,
    interrupted: Callable[[], bool] | None = None,
) -> Actions:
    """Sample until every row is done or out of uniforms; streams [n, longest] float64.

    `leave` is called once for every sample, when it is done and before its row is taken out of the batch. The cache
    then holds at least all but the last token of its action. `interrupted` is asked after every token; where it says
    True, rows that are not done stay so.
    """
    n, longest = streams.shape
    uniform = torch.from_numpy(streams).to(state.logits.device)
    out = Actions.empty(n, longest)
    samples = torch.arange(n)  # which sample each row of the batch is
    for step in range(longest):
        drawn = draw(state.logits, uniform[samples, step], sampling)
        token, running = drawn.token.cpu(), ~out.stopped[samples]
        out.tokens[samples, step], out.logprobs[samples, step] = token, drawn.logprob.cpu()
        out.length[samples[running]] = step + 1
        if drawn.support is not None:
            out.supports.append((samples, drawn.support.cpu()))
        out.stopped[samples] |= stopping.done(token, out.tokens[samples, : step + 1])
        running = ~out.stopped[samples]
        if step + 1 == longest or not bool(running.any()) or (interrupted is not None and interrupted()):
            break
        if int(running.sum()) <= KEEP_UNTIL * samples.numel():
            _leave(out, samples, ~running, state, leave)
            kept = running.nonzero().squeeze(1)
            samples, token, state = samples[kept], token[kept], state.select(kept.to(uniform.device))
        state = state.advance(token.to(uniform.device))
    _leave(out, samples, torch.ones_like(samples, dtype=torch.bool), state, leave)
    return out


def _leave(out: Actions, samples: Tensor, going: Tensor, state: Batch, leave: Leave) -> None:
    for row in going.nonzero().squeeze(1).tolist():
        sample = int(samples[row])
        leave(sample, row, state, out.action(sample))
