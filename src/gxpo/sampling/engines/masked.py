"""Masked engine: decodes answers by unmasking, block by block, and records in which step each token was unmasked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.likelihoods.base import Likelihood
from gxpo.algorithms.likelihoods.estimators import TrajectoryLikelihood
from gxpo.base.devices import drawing_device
from gxpo.base.errors import ConfigError, ModelError, did_you_mean
from gxpo.base.runtime import memory_is_short
from gxpo.models.masked import EXTRAS, MaskedPolicy, Row, estimate
from gxpo.parts.protocols import Completion, Request, Sampling, StreamKey
from gxpo.parts.ranges import Part
from gxpo.sampling.engines.draws import draw, generator

READ_AT_ONCE = 1 << 15  # tokens of views that go through the model together


@dataclass(frozen=True)
class Unmasking(Part):
    """Decoder of a masked model; its fields are options under `sampling.engine_options`.

    block      tokens of a block; blocks are decoded one after the other (semi-autoregressive); 0: one block
    per_step   tokens that a step unmasks
    schedule   "even": `per_step` in each; "doubling": 1, 2, 4... times as many (ascending step size)
    order      which of the block's candidates are unmasked, the others being masked again: those of the largest
               "confidence" (probability at temperature 1), "random" ones, or the first, "left_to_right"
    end_from   factor on the confidence of an end in the first step of a block, rising to 1 with the share of the block
               that is unmasked (end-of-text early rejection); 1: none

    Source: LLaDA's decoder (arXiv 2502.09992); EOSER and ASS, arXiv 2509.23924.
    """

    slot = "sampling.engine_options"

    block: Annotated[int, Ge(0)] = 0
    per_step: Annotated[int, Ge(1)] = 1
    schedule: Literal["even", "doubling"] = "even"
    order: Literal["confidence", "random", "left_to_right"] = "confidence"
    end_from: Annotated[float, Interval(ge=0, le=1)] = 1.0

    @classmethod
    def of(cls, options: Mapping[str, Any], room: int) -> Unmasking:
        """The decoder of these options for answers of up to `room` tokens; ConfigError for others."""
        names = asdict(cls())
        for name in options:
            if name not in names:
                raise ConfigError(
                    f"sampling.engine_options of a masked model are {', '.join(names)}, not {name}"
                    f"{did_you_mean(name, names)}"
                )
        decoder = cls(**options)
        if decoder.block and room % decoder.block:
            raise ConfigError(
                f"sampling.max_new_tokens={room} is no whole number of blocks of {decoder.block} tokens: set it to "
                f"{max(1, -(-room // decoder.block)) * decoder.block}, or change sampling.engine_options.block"
            )
        return decoder


class MaskedEngine:
    """Batched decoding by unmasking with keyed uniforms, and the estimator's log-probs of the samples.

    policy      the masked model with its special ids
    likelihood  the method's estimator: log-probs are its estimates, so that the learner's agree with them; the
                trajectory's are those of the draws themselves
    unmasking   the decoder

    A sample has as many tokens as come before its end, and the end ("stop"), or all `max_new_tokens` ("length").
    Its extras, all int64 [n], are what the estimators need: "unmasked_at", the step in which each was unmasked, from
    0; "mask_seed"; "answer_room", max_new_tokens. A sample depends on the parameters, its prompt and its stream alone.
    At temperature 0 every log-prob is 0.
    """

    def __init__(
        self,
        policy: MaskedPolicy,
        likelihood: Likelihood,
        unmasking: Unmasking | None = None,
        *,
        device: str | torch.device = "cpu",
        batch_rows: int = 256,
    ) -> None:
        self.policy, self.likelihood, self.unmasking = policy, likelihood, unmasking or Unmasking()
        self.device, self.batch_rows = torch.device(device), batch_rows
        self.policy_version = 0
        self.prefilled_tokens = self.reused_tokens = 0

    def release(self, names: Sequence[str] | None = None) -> None:
        """Do nothing: there are no caches."""

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Sample one completion for every stream of every request, in order."""
        self._check(requests, sampling)
        rows = [(request.prompt, key) for request in requests for key in request.streams]
        completions: list[Completion] = []
        with torch.no_grad(), memory_is_short("unmasking", "sampling.batch_rows"):
            for begin in range(0, len(rows), self.batch_rows):
                completions += self._unmask(rows[begin : begin + self.batch_rows], sampling)
        remaining = iter(completions)
        return [[next(remaining) for _ in request.streams] for request in requests]

    def _check(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Raise ModelError for sampling settings that a masked model can't follow."""
        if sampling.truncated_support or sampling.stop or sampling.temperature < 0 or sampling.max_new_tokens < 1:
            raise ModelError(
                "a masked model is sampled from its whole vocabulary to its end token: set top_k=0, top_p=1 and no "
                f"stop strings, not {sampling}"
            )
        Unmasking.of(asdict(self.unmasking), sampling.max_new_tokens)
        limit, longest = self.policy.positions, max((len(r.prompt) for r in requests), default=0)
        if limit and longest + sampling.max_new_tokens > limit:
            raise ModelError(
                f"a prompt of {longest} tokens and max_new_tokens {sampling.max_new_tokens} exceed the {limit} "
                "positions of the model: lower max_new_tokens or shorten the prompt"
            )
        if any(request.policy != "main" or request.extras for request in requests):
            raise ModelError("a masked model samples one policy, 'main', from token ids")
        if any(request.options is not None for request in requests):
            raise ModelError(
                "a masked model does not write from left to right: a request can have no options of tokens"
            )

    # ------------------------------------------------------------ decoding
    def _unmask(self, rows: Sequence[tuple[tuple[int, ...], StreamKey]], sampling: Sampling) -> list[Completion]:
        """Decode these rows together, a step of each in every pass."""
        policy, room, n = self.policy, sampling.max_new_tokens, len(rows)
        begins = torch.tensor([len(prompt) for prompt, _ in rows])
        tokens = torch.full((n, int(begins.max()) + room), policy.mask)
        for i, (prompt, _) in enumerate(rows):
            tokens[i, : len(prompt)] = torch.tensor(prompt)
        streams = [generator(key) for _, key in rows]
        answer = torch.full((n, room), policy.mask)
        logprob, unmasked_at = torch.zeros(n, room, dtype=torch.float64), torch.full((n, room), -1)
        block = self.unmasking.block or room
        step_in_block = torch.zeros(n, dtype=torch.int64)
        for step in range(room):
            is_hidden = answer == policy.mask
            active = is_hidden.any(1).nonzero().squeeze(1)
            if not len(active):
                break
            # the block of a row is the first with something hidden; candidates are its hidden places
            first = is_hidden[active].to(torch.int64).argmax(1) // block * block
            place = torch.arange(room)
            is_candidate = is_hidden[active] & (place >= first[:, None]) & (place < first[:, None] + block)
            row, column = is_candidate.nonzero(as_tuple=True)
            logits = policy.logits(
                tokens[active], begins[active] + room, begins[active], row, begins[active][row] + column
            )
            # as many uniforms as the answer has places, whatever is hidden: a row's numbers depend on its steps alone
            uniform = torch.from_numpy(np.stack([streams[i].random(2 * room) for i in active.tolist()]))
            where = drawing_device(logits.device)
            draws = draw(logits.to(where), uniform[row, column].to(where), sampling)
            token = draws.token.cpu()
            share = 1 - is_candidate.sum(1) / block
            score = self._scores(logits, token, row, column, share, uniform[:, room:])
            token_A = torch.full((len(active), room), policy.mask)
            token_A[row, column] = token
            # behind the first end that is drawn nothing is chosen: there an answer is read as one that goes on, and
            # what is sure of that would keep the end out
            drawn_end = torch.where(is_candidate & (token_A == policy.end), place, room).amin(1)
            is_open = is_candidate & (place <= drawn_end[:, None])
            score_A = torch.full((len(active), room), -torch.inf, dtype=torch.float64)
            score_A[row, column] = score
            score_A.masked_fill_(~is_open, -torch.inf)
            rank = score_A.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
            factor = 2 ** step_in_block[active] if self.unmasking.schedule == "doubling" else torch.tensor(1)
            chosen_A = is_open & (rank < (self.unmasking.per_step * factor).reshape(-1, 1))
            end_at = torch.where(chosen_A & (token_A == policy.end), place, room).amin(1)
            logprob_A = torch.zeros(len(active), room, dtype=torch.float64)
            logprob_A[row, column] = draws.logprob.cpu().to(torch.float64)
            before = answer[active]
            answers = torch.where(chosen_A, token_A, torch.where(place > end_at[:, None], policy.end, before))
            answer[active] = answers
            logprob[active] = torch.where(chosen_A, logprob_A, logprob[active])
            unmasked_at[active] = torch.where(chosen_A, step, unmasked_at[active])
            still_open = ((answers == policy.mask) & is_candidate).any(1)
            step_in_block[active] = torch.where(still_open, step_in_block[active] + 1, 0)
            for i in active.tolist():
                tokens[i, begins[i] : begins[i] + room] = answer[i]
        return self._completions(rows, answer, logprob, unmasked_at, sampling)

    def _scores(
        self, logits: Tensor, token: Tensor, row: Tensor, column: Tensor, share: Tensor, uniform: Tensor
    ) -> Tensor:
        """Scores [K] by which candidates are ranked; `share` [A]: unmasked part of each row's block."""
        if self.unmasking.order == "random":
            return uniform[row, column]
        if self.unmasking.order == "left_to_right":
            return -column.to(torch.float64)
        confidence = logits.softmax(1).gather(1, token.to(logits.device)[:, None]).squeeze(1).cpu().to(torch.float64)
        end_factor = self.unmasking.end_from + (1 - self.unmasking.end_from) * share[row].to(torch.float64)
        return torch.where(token == self.policy.end, confidence * end_factor, confidence)

    def _completions(
        self,
        rows: Sequence[tuple[tuple[int, ...], StreamKey]],
        answer: Tensor,
        logprob: Tensor,
        unmasked_at: Tensor,
        sampling: Sampling,
    ) -> list[Completion]:
        """Completions up to their ends, with the estimator's log-probs."""
        room, samples = sampling.max_new_tokens, []
        for i, (prompt, key) in enumerate(rows):
            ids = answer[i].tolist()
            n = ids.index(self.policy.end) + 1 if self.policy.end in ids else room
            samples.append(Row(prompt, ids[:n], room, unmasked_at[i, :n], mask_seed(key), sampling.temperature or 1.0))
        values = [logprob[i, : len(row.answer)].tolist() for i, row in enumerate(samples)]
        if sampling.temperature > 0 and not isinstance(self.likelihood, TrajectoryLikelihood):
            estimates = estimate(self.policy, samples, self.likelihood, READ_AT_ONCE)["logprob"]
            values = [x.tolist() for x in estimates.split([len(row.answer) for row in samples])]
        return [
            Completion(
                tokens=list(row.answer),
                logprobs=value,
                finish="stop" if row.answer[-1] == self.policy.end else "length",
                policy_version=self.policy_version,
                extras=dict(
                    zip(
                        EXTRAS,
                        (row.unmasked_at.numpy(), *(np.full(len(row.answer), x) for x in (row.seed, room))),
                        strict=True,
                    )
                ),
            )
            for row, value in zip(samples, values, strict=True)
        ]


def mask_seed(key: StreamKey) -> int:
    """Seed of a sample's masks, below 2^62: of its stream's key, and independent of its tokens.

    >>> mask_seed(StreamKey(0, 1, "a", 0)) == mask_seed(StreamKey(0, 1, "a", 1))
    False
    """
    name = json.dumps(["masks", key.seed, key.step, key.task, key.attempt, list(key.path), key.turn])
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 2
