"""Draws of samples whose requests have options of their own: biases, penalties, `min_p`, grammars, `top_logprobs`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from gxpo.forest.token_bias import TokenBias, penalised
from gxpo.parts.protocols import BROKEN, Completion, Sampling, TokenOptions
from gxpo.sampling.engines.draws import Draws, draw_within, inverse_cdf, likeliest_of, scores_in_support, support_of
from gxpo.sampling.engines.grammar import Grammars, Matcher

DENSE = 32  # biases that are held as a row of the vocabulary


class OptionalDraws:
    """Draws of the samples of one batch under their requests' options, and the record of it for their completions.

    options   of each sample;   prompts  their ids, for the repetition penalty
    stop_ids  ids that end a sample
    grammars  None where no request has a grammar

    The order is vLLM's: bias (grammar, forbidden end ids, `logit_bias`), penalties, temperature, `min_p`, top-k, top-p.
    """

    def __init__(
        self,
        options: Sequence[TokenOptions],
        prompts: Sequence[tuple[int, ...]],
        sampling: Sampling,
        stop_ids: Sequence[int],
        logits: Tensor,
        grammars: Grammars | None,
    ) -> None:
        self.options, self.sampling, self.vocabulary, self.device = options, sampling, logits.shape[1], logits.device
        self._stop_ids = frozenset(i for i in stop_ids if 0 <= i < self.vocabulary)
        n = len(options)
        self._matchers: list[Matcher | None] = [
            None if o.grammar is None or grammars is None else grammars.matcher(o.grammar) for o in options
        ]
        self._length = [0] * n
        self._keys: list[list[int]] = [[] for _ in range(n)]
        self._top: list[list[tuple[list[int], list[float]]]] = [[] for _ in range(n)]
        self.biases: dict[int, TokenBias] = {}
        self.broken_rows: set[int] = set()
        self._dense = lru_cache(DENSE)(lambda key: self.biases[key].dense(self.vocabulary).to(self.device))
        self._static = lru_cache(None)(self._static_bias)
        self._min_p = torch.tensor([o.min_p for o in options], dtype=torch.float64)
        self._is_truncated = torch.full((n,), sampling.truncated_support) | (self._min_p > 0)
        self._is_truncated &= torch.tensor(sampling.temperature > 0)
        # Counts of ids take a row of the vocabulary for each sample: only where a penalty reads them.
        self._penalty = torch.tensor(
            [(o.presence_penalty, o.frequency_penalty, o.repetition_penalty) for o in options], dtype=torch.float64
        )
        self._count = self._in_prompt = None
        if any(o.penalises for o in options):
            self._count = torch.zeros(n, self.vocabulary, device=self.device)
            self._in_prompt = torch.zeros(n, self.vocabulary, dtype=torch.bool, device=self.device)
            for row, prompt in zip(self._in_prompt, prompts, strict=True):
                # rows of pictures have ids outside the vocabulary, which no logit belongs to
                row[torch.tensor([i for i in prompt if 0 <= i < self.vocabulary], device=self.device)] = True

    # ------------------------------------------------------------ one token
    def draw(self, logits: Tensor, uniform: Tensor, samples: Tensor, is_running: Tensor) -> Draws:
        """Draw a token for each row of the batch; rows that are over are drawn without options, and not recorded.

        logits [n, V]; uniform [n]; samples, running [n] on the host: whose row it is, and whether it goes on
        """
        z = logits.to(torch.promote_types(logits.dtype, torch.float32)).clone()
        rows = is_running.nonzero().squeeze(1).tolist()
        names = samples.tolist()
        for row in rows:
            if (key := self._bias_key(names[row])) >= 0:
                z[row] += self._dense(key)
        if self._count is not None and self._in_prompt is not None:
            at = samples.to(self.device)
            count = self._count[at]
            z = penalised(z, count, self._in_prompt[at] | (count > 0), self._penalty[samples].to(self.device))
        if self.sampling.temperature == 0:
            token = z.argmax(-1)
            draws = Draws(token, torch.zeros(token.shape, dtype=torch.float64, device=self.device), None)
        else:
            z = z if self.sampling.temperature == 1 else z / self.sampling.temperature
            draws = self._draw_rows(z, uniform, samples)
        for row in rows:
            if self.options[names[row]].top_logprobs:
                self._top[names[row]].append(self._likeliest(z, draws, row, self.options[names[row]].top_logprobs))
        return draws

    def _bias_key(self, sample: int) -> int:
        """Hash of the sample's bias for its next token, which is recorded; -1 none."""
        options, matcher = self.options[sample], self._matchers[sample]
        forbids_end = options.ignore_eos or self._length[sample] < options.min_tokens
        bias = self._static(options.logit_bias, forbids_end)
        if matcher is not None and sample not in self.broken_rows:
            mask = matcher.mask()
            if mask is None:
                self.broken_rows.add(sample)
            else:
                values = {} if bias is None else dict(zip(bias.ids.tolist(), bias.values.tolist(), strict=True))
                bias = TokenBias.of(values, mask[: -(-self.vocabulary // 8)])
        key = -1 if bias is None else bias.key
        if bias is not None:
            self.biases.setdefault(key, bias)
        self._keys[sample].append(key)
        return key

    def _static_bias(self, logit_bias: tuple[tuple[int, float], ...], forbids_end: bool) -> TokenBias | None:
        values = {**dict(logit_bias), **(dict.fromkeys(self._stop_ids, -math.inf) if forbids_end else {})}
        return TokenBias.of(values) if values else None

    def _draw_rows(self, scores: Tensor, uniform: Tensor, samples: Tensor) -> Draws:
        """Draw from softmax(scaled [n, V]), of truncated rows within their support."""
        is_truncated = self._is_truncated[samples]
        if not bool(self._is_truncated.any()):
            token, logprob = inverse_cdf(scores, uniform)
            return Draws(token, logprob, None)
        token = torch.zeros(len(samples), dtype=torch.int64, device=self.device)
        logprob = torch.zeros(len(samples), dtype=torch.float64, device=self.device)
        support = torch.full((len(samples), 1), -1, device=self.device)
        full_rows = (~is_truncated).nonzero().squeeze(1).to(self.device)
        if len(full_rows):
            token[full_rows], logprob[full_rows] = inverse_cdf(scores[full_rows], uniform[full_rows])
        truncated_rows = is_truncated.nonzero().squeeze(1).to(self.device)
        if len(truncated_rows):
            cut_support = self._support(scores[truncated_rows], self._min_p[samples[is_truncated]].to(self.device))
            token[truncated_rows], logprob[truncated_rows] = draw_within(
                scores[truncated_rows], cut_support, uniform[truncated_rows]
            )
            support = support.new_full((len(samples), cut_support.shape[1]), -1)
            support[truncated_rows] = cut_support
        return Draws(token, logprob, support)

    def _support(self, scores: Tensor, min_p: Tensor) -> Tensor:
        """Ids [n, K] that `min_p` [n], top-k and top-p leave, ascending, padded with -1; forbidden ones are none."""
        size, likeliest = scores.shape[1], scores.amax(1, keepdim=True)
        # p < min_p * p_max, in logits; log 0 is -inf, below which nothing is
        scores = scores.masked_fill(scores < likeliest + min_p.log().to(scores)[:, None], -torch.inf)
        ids = support_of(scores, self.sampling.top_k, self.sampling.top_p)
        is_none = (ids < 0) | (scores.gather(1, ids.clamp_min(0)) == -torch.inf)
        ids = ids.masked_fill(is_none, size).sort(1).values
        ids = ids[:, : int((ids < size).sum(1).max())]
        return ids.masked_fill(ids == size, -1)

    def _likeliest(self, scores: Tensor, draws: Draws, row: int, k: int) -> tuple[list[int], list[float]]:
        """The `k` likeliest ids of a row's distribution and their log-probs; fewer where fewer have a probability."""
        if self.sampling.temperature == 0:
            return [int(draws.token[row])], [0.0]
        z, support = scores[row : row + 1], None if draws.support is None else draws.support[row : row + 1]
        if support is not None and bool((support >= 0).any()):
            top = likeliest_of(scores_in_support(z, support), k, support)[0]
        else:
            top = likeliest_of(z, k)[0]
        n = len(top) // 2
        pairs = [(int(i), x) for i, x in zip(top[:n].tolist(), top[n:-1].tolist(), strict=True) if x > -math.inf]
        return [i for i, _ in pairs], [x for _, x in pairs]

    def accept(self, tokens: Tensor, samples: Tensor, is_running: Tensor) -> Tensor:
        """Go on by the tokens [n] that were drawn; return [n] bool: samples whose grammar can't be followed further."""
        for row in is_running.nonzero().squeeze(1).tolist():
            sample, token = int(samples[row]), int(tokens[row])
            self._length[sample] += 1
            if self._count is not None:
                self._count[sample, token] += 1
            matcher = self._matchers[sample]
            is_open = matcher is not None and sample not in self.broken_rows and token not in self._stop_ids
            if is_open and not matcher.accept(token):  # type: ignore[union-attr]
                self.broken_rows.add(sample)
        return torch.tensor([int(sample) in self.broken_rows for sample in samples], dtype=torch.bool)

    # ------------------------------------------------------------ afterwards
    def with_changes(self, sample: int, completion: Completion) -> Completion:
        """Return a sample's completion with the biases, penalties and likeliest ids of its tokens."""
        size, options = len(completion.tokens), self.options[sample]
        changes: dict[str, object] = {}
        keys = np.asarray(self._keys[sample][:size], dtype=np.int64)
        if bool((keys >= 0).any()):
            changes |= {"bias": keys, "biases": {k: self.biases[k] for k in dict.fromkeys(keys.tolist()) if k >= 0}}
        if options.penalises:
            penalty = np.empty((size, 4))
            penalty[:, :3], penalty[:, 3] = self._penalty[sample].numpy(), np.arange(size)
            changes["penalty"] = penalty
        if options.top_logprobs:
            top = self._top[sample][:size]
            width = max((len(ids) for ids, _ in top), default=0)
            changes["top_ids"] = np.full((size, width), -1, dtype=np.int64)
            changes["top_logprobs"] = np.full((size, width), -np.inf)
            for i, (ids, logprobs) in enumerate(top):
                changes["top_ids"][i, : len(ids)], changes["top_logprobs"][i, : len(ids)] = ids, logprobs  # type: ignore[index]
        if sample in self.broken_rows:
            changes["finish"] = BROKEN
        return replace(completion, **changes)  # type: ignore[arg-type]
