"""Sampling in process from any transformers causal language model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gxpo.engines.cache import check_rows, roomy, rows_of
from gxpo.engines.draw import draw
from gxpo.engines.stopping import Stopping
from gxpo.engines.streams import uniforms
from gxpo.errors import ModelError
from gxpo.protocols import Completion, Request, Sampling, StreamKey

KEEP_UNTIL = 7 / 8  # rows still running, of those in the batch, below which the finished ones are taken out


class TorchEngine:
    """Batched sampling with keyed uniforms, exact log-probabilities and stored support.

    model         a causal language model of transformers, or one wrapped by peft; set to eval mode
    tokenizer     needed for stop strings and for the end-of-sequence id; None: stop ids only
    batch_rows    samples that are decoded together
    stop_ids      end-of-sequence ids; default: those of the tokenizer and of the model's generation settings
    policy_version  stamped on every completion; the trainer counts it up

    Every distinct prompt is run through the model once per call and its cache is given to all its samples. The tokens
    of a sample depend on the parameters, its prompt and its stream key; what else is in the batch can change them only
    through rounding of the logits.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        device: str | torch.device = "cpu",
        batch_rows: int = 256,
        stop_ids: Sequence[int] | None = None,
    ) -> None:
        if batch_rows < 1:
            raise ModelError(f"batch_rows is {batch_rows}; it must be at least 1")
        self.model, self.tokenizer = model.to(device), tokenizer
        self.device, self.batch_rows = torch.device(device), batch_rows
        self.policy_version = 0
        self.prefilled_tokens = 0  # prompt tokens that went through the model so far, each distinct prompt once a call
        self._causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._name = type(self._causal).__name__
        if getattr(self._causal, "_is_stateful", False):
            check_rows(None, self._name)
        accepted = inspect.signature(self._causal.forward).parameters
        self._accepts = {name for name in ("position_ids", "logits_to_keep") if name in accepted}
        self._stop_ids = tuple(stop_ids) if stop_ids is not None else self._end_ids()
        self._stopping: dict[tuple[Any, ...], Stopping] = {}

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """One completion for every stream of every request, in their order."""
        self._check(requests, sampling)
        rows = [
            _Row(request.prompt, key, (i, j))
            for i, request in enumerate(requests)
            for j, key in enumerate(request.streams)
        ]
        done: dict[tuple[int, int], Completion] = {}
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                for block in _blocks(rows, self.batch_rows):
                    done.update(self._block(block, sampling))
        finally:
            self.model.train(was_training)
        return [[done[i, j] for j in range(len(request.streams))] for i, request in enumerate(requests)]

    def _block(self, rows: list[_Row], sampling: Sampling) -> Iterator[tuple[tuple[int, int], Completion]]:
        """Samples of a few prompts: one prefill, then decoding in batches."""
        prompts = list(dict.fromkeys(row.prompt for row in rows))
        logits, cache, mask = self._prefill(prompts)
        number = {prompt: i for i, prompt in enumerate(prompts)}
        for start in range(0, len(rows), self.batch_rows):
            batch = rows[start : start + self.batch_rows]
            index = torch.tensor([number[row.prompt] for row in batch], device=self.device)
            own = roomy(rows_of(cache, index), mask.shape[1] + sampling.max_new_tokens)
            state = _State(logits[index], own, mask[index])
            streams = uniforms([row.key for row in batch], sampling.max_new_tokens)
            yield from zip((row.place for row in batch), self._decode(state, streams, sampling), strict=True)

    def _prefill(self, prompts: list[tuple[int, ...]]) -> tuple[Tensor, Any, Tensor]:
        """Logits after each prompt [n, V], the cache, and the mask [n, longest] of the left-padded batch."""
        longest = max(len(p) for p in prompts)
        tokens = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=self.device)
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        mask = (torch.arange(longest, device=self.device)[None, :] >= longest - lengths[:, None]).to(torch.int64)
        position = (mask.cumsum(1) - 1).clamp_min(0)
        self.prefilled_tokens += sum(len(p) for p in prompts)
        logits, cache = self._forward(tokens, mask, position, None)
        check_rows(cache, self._name)
        return logits, cache, mask

    def _forward(self, tokens: Tensor, mask: Tensor, position: Tensor, cache: Any) -> tuple[Tensor, Any]:
        extra = {"position_ids": position, "logits_to_keep": 1}
        out = self._causal(
            input_ids=tokens,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **{name: extra[name] for name in self._accepts},
        )
        return out.logits[:, -1], getattr(out, "past_key_values", None)

    def _decode(self, state: _State, streams: np.ndarray, sampling: Sampling) -> list[Completion]:
        n, longest = streams.shape
        uniform = torch.from_numpy(streams).to(self.device)
        stopping = self._stopping_for(sampling, state.logits.shape[1])
        tokens = torch.zeros(n, longest, dtype=torch.int64)
        logprobs = torch.zeros(n, longest, dtype=torch.float64)
        length = torch.zeros(n, dtype=torch.int64)
        stopped = torch.zeros(n, dtype=torch.bool)
        supports: list[tuple[Tensor, Tensor]] = []  # (rows, support) of every step
        rows = torch.arange(n)  # which sample each row of the batch is
        for step in range(longest):
            drawn = draw(state.logits, uniform[rows, step], sampling)
            token, running = drawn.token.cpu(), ~stopped[rows]
            tokens[rows, step], logprobs[rows, step] = token, drawn.logprob.cpu()
            length[rows[running]] = step + 1
            if drawn.support is not None:
                supports.append((rows, drawn.support.cpu()))
            stopped[rows] |= stopping.done(token, tokens[rows, : step + 1])
            running = ~stopped[rows]
            if step + 1 == longest or not bool(running.any()):
                break
            if int(running.sum()) <= KEEP_UNTIL * rows.numel():
                kept = running.nonzero().squeeze(1)
                rows, token, state = rows[kept], token[kept], state.select(kept.to(self.device))
            state = self._advance(state, token.to(self.device))
        return self._completions(tokens, logprobs, length, stopped, supports)

    def _advance(self, state: _State, token: Tensor) -> _State:
        mask = torch.cat([state.mask, torch.ones_like(state.mask[:, :1])], 1)
        logits, cache = self._forward(token[:, None], mask, mask.sum(1, keepdim=True) - 1, state.cache)
        return _State(logits, cache, mask)

    def _completions(
        self, tokens: Tensor, logprobs: Tensor, length: Tensor, stopped: Tensor, supports: list[tuple[Tensor, Tensor]]
    ) -> list[Completion]:
        n = tokens.shape[0]
        support: np.ndarray | None = None
        if supports:
            widest = max(s.shape[1] for _, s in supports)
            support = np.full((n, len(supports), widest), -1, dtype=np.int64)
            for step, (rows, allowed) in enumerate(supports):
                support[rows.numpy(), step, : allowed.shape[1]] = allowed.numpy()
        out = []
        for i, (size, stop) in enumerate(zip(length.tolist(), stopped.tolist(), strict=True)):
            own = None
            if support is not None:
                own = support[i, :size]
                own = own[:, : int((own >= 0).sum(1).max())].copy()
            out.append(
                Completion(
                    tokens=tokens[i, :size].tolist(),
                    logprobs=logprobs[i, :size].tolist(),
                    finish="stop" if stop else "length",
                    support=own,
                    policy_version=self.policy_version,
                )
            )
        return out

    # ------------------------------------------------------------ settings
    def _end_ids(self) -> tuple[int, ...]:
        sources = (self.tokenizer, getattr(self._causal, "generation_config", None))
        found = [getattr(source, "eos_token_id", None) for source in sources]
        return tuple(i for ids in found for i in (ids if isinstance(ids, (list, tuple)) else [ids]) if i is not None)

    def _stopping_for(self, sampling: Sampling, vocabulary: int) -> Stopping:
        key = (sampling.stop, sampling.stop_ids, vocabulary)
        if key not in self._stopping:
            ids = (*self._stop_ids, *sampling.stop_ids)
            self._stopping[key] = Stopping(ids, sampling.stop, self.tokenizer, vocabulary)
        return self._stopping[key]

    def _check(self, requests: Sequence[Request], sampling: Sampling) -> None:
        if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0 or sampling.max_new_tokens < 1:
            raise ModelError(
                f"{sampling} is impossible: temperature and top_k must be >= 0, 0 < top_p <= 1, max_new_tokens >= 1"
            )
        limit = getattr(self._causal.config.get_text_config(), "max_position_embeddings", None)
        for request in requests:
            if not request.prompt:
                raise ModelError("a request has an empty prompt: the model needs at least one token, such as its bos")
            if limit and len(request.prompt) + sampling.max_new_tokens > limit:
                raise ModelError(
                    f"a prompt of {len(request.prompt)} tokens and max_new_tokens {sampling.max_new_tokens} exceed the "
                    f"{limit} positions of {self._name}: lower max_new_tokens or shorten the prompt"
                )


@dataclass(frozen=True)
class _Row:
    """One sample to draw, and its place in the answer (request, stream)."""

    prompt: tuple[int, ...]
    key: StreamKey
    place: tuple[int, int]


@dataclass(frozen=True)
class _State:
    """A batch between two tokens: next-token logits [n, V], cache, attention mask [n, columns so far]."""

    logits: Tensor
    cache: Any
    mask: Tensor

    def select(self, rows: Tensor) -> _State:
        return _State(self.logits[rows], rows_of(self.cache, rows), self.mask[rows])


def _blocks(rows: list[_Row], size: int) -> Iterator[list[_Row]]:
    """Rows in blocks of whole prompts of similar length: at most `size` rows, unless one prompt alone has more."""
    by_prompt: dict[tuple[int, ...], list[_Row]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt, []).append(row)
    block: list[_Row] = []
    for prompt in sorted(by_prompt, key=len):
        if block and len(block) + len(by_prompt[prompt]) > size:
            yield block
            block = []
        block += by_prompt[prompt]
    if block:
        yield block
