"""Masked (diffusion) language models as policies: what a partly hidden answer is, and how its tokens are read.

An answer has room for L tokens behind its prompt, all of them masks at first. It ends with its first end token: the
room that is left is filled with end tokens in the step that unmasks it, and is hidden as long as it is. An end token
may therefore only be drawn while everything behind it is hidden, and a mask never; both rules renormalise the
distribution that is sampled and read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.likelihoods.base import Answer, Likelihood
from gxpo.base.devices import to_host_float64
from gxpo.base.errors import ModelError

SUFFIX = "ForMaskedLM"  # of transformers' classes
UNMASKED_AT, MASK_SEED, ROOM = EXTRAS = ("unmasked_at", "mask_seed", "answer_room")  # of every token of an answer


@dataclass(frozen=True, eq=False)
class MaskedPolicy:
    """A masked language model of transformers, with the ids of its mask and of the end of an answer.

    guidance  s of classifier-free guidance: logits are l_u + s (l_c - l_u), l_u those without the prompt, whose tokens
              are masked; 1: l_c alone. What is sampled is what is read, and gradients go through both passes
    """

    model: Any
    mask: int
    end: int
    pad: int
    guidance: float = 1.0

    @classmethod
    def of(cls, model: Any, tokenizer: Any, guidance: float = 1.0) -> MaskedPolicy:
        """The policy of a model and its tokenizer; ModelError where they are no masked language model's."""
        if not type(model).__name__.endswith(SUFFIX):
            raise ModelError(f"{type(model).__name__} is no masked language model ({SUFFIX}): leave likelihood out")
        ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
        if lacking := [name for name, token in ids.items() if token is None]:
            raise ModelError(f"the tokenizer has no {lacking[0]} token: set one in tokenizer_config.json")
        return cls(model, ids["mask"], ids["eos"], ids["pad"], guidance)

    @property
    def positions(self) -> int:
        """Tokens of a prompt and its answer; 0: no limit."""
        return int(getattr(self.model.config, "max_position_embeddings", 0) or 0)

    def logits(self, tokens: Tensor, lengths: Tensor, begins: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """Logits [K, V] at K hidden places, in float32 at least, -inf for the ids that can't be there.

        tokens   [B, W] ids, masks among them; `lengths` [B] of each row with its answer; `begins` [B] of the answer
        row, column  [K] of the places
        """
        device = next(self.model.parameters()).device
        place = torch.arange(tokens.shape[1])
        is_real = place < lengths[:, None]
        inputs = torch.where(is_real, tokens, self.pad)

        def read(ids: Tensor) -> Tensor:
            output = self.model(input_ids=ids.to(device), attention_mask=is_real.to(device, torch.int64)).logits
            read_logits = output[row.to(device), column.to(device)]
            return read_logits.to(torch.promote_types(read_logits.dtype, torch.float32))

        logits = read(inputs)
        if self.guidance != 1:
            unconditional = read(torch.where(place < begins[:, None], self.mask, inputs))
            logits = unconditional + self.guidance * (logits - unconditional)
        # an end can't be drawn where something behind it is visible
        is_visible = is_real & (place >= begins[:, None]) & (tokens != self.mask)
        last_visible = torch.where(is_visible, place, -1).amax(1)
        can_end = (last_visible[row] < column).to(device)
        ids = torch.arange(logits.shape[1], device=device)
        is_banned = (ids == self.mask) | ((ids == self.end) & ~can_end[:, None])
        return logits.masked_fill(is_banned, -torch.inf)


@dataclass(frozen=True, eq=False)
class Row:
    """An answer that is read: ids of prompt and answer, the room that it had, its temperature."""

    prompt: Sequence[int]
    answer: Sequence[int]
    room: int
    unmasked_at: Tensor
    seed: int
    temperature: float = 1.0

    def with_views(self, policy: MaskedPolicy, likelihood: Likelihood) -> tuple[Tensor, Tensor]:
        """Inputs [V, prompt + room] of the estimator's views, and the weights [V, n] of their readings."""
        is_hidden, weight = likelihood.views(Answer(len(self.prompt), self.unmasked_at, self.seed))
        tokens = torch.tensor([*self.prompt, *self.answer]).expand(len(is_hidden), -1)
        visible = torch.where(is_hidden, policy.mask, tokens)
        # what is behind the end is hidden exactly as long as the end is
        tail = torch.where(is_hidden[:, -1:], policy.mask, policy.end).expand(-1, self.room - len(self.answer))
        return torch.cat([visible, tail], 1), weight


def estimate(policy: MaskedPolicy, rows: Sequence[Row], likelihood: Likelihood, limit: int = 0) -> dict[str, Tensor]:
    """Estimates of every token of these answers, one after the other: "logprob" and "entropy" [sum n] float64, live.

    The entropies are those of the distributions that are read, with the same weights as their log-probabilities.
    limit  most tokens that go through the model at once, where no gradient is needed; 0: all
    """
    views = [row.with_views(policy, likelihood) for row in rows]
    offsets = torch.tensor([0, *(len(row.answer) for row in rows)]).cumsum(0).tolist()
    out = {name: torch.zeros(offsets[-1], dtype=torch.float64) for name in ("logprob", "entropy")}
    pairs = [(i, v) for i, (inputs, _) in enumerate(views) for v in range(len(inputs))]
    for chunk in _chunks(pairs, [views[i][0].shape[1] for i, _ in pairs], limit):
        width = max(views[i][0].shape[1] for i, _ in chunk)
        tokens = torch.full((len(chunk), width), policy.pad)
        reads: list[tuple[Tensor, ...]] = []
        for r, (i, v) in enumerate(chunk):
            inputs, weight = views[i][0][v], views[i][1][v]
            tokens[r, : len(inputs)] = inputs
            read = weight.nonzero().squeeze(1)
            target, begin = torch.tensor(list(rows[i].answer))[read], len(rows[i].prompt)
            of_row = (torch.full_like(read, r), torch.full_like(weight[read], rows[i].temperature))
            reads.append((of_row[0], begin + read, target, offsets[i] + read, weight[read], of_row[1]))
        row, column, target, at, weight, temperature = (torch.cat(x) for x in zip(*reads, strict=True))
        lengths = torch.tensor([views[i][0].shape[1] for i, _ in chunk])
        begins = torch.tensor([len(rows[i].prompt) for i, _ in chunk])
        logits = policy.logits(tokens, lengths, begins, row, column)
        logprobs = (logits / temperature.to(logits)[:, None]).log_softmax(1)
        logprob = logprobs.gather(1, target.to(logprobs.device)[:, None]).squeeze(1)
        entropy = torch.special.entr(logprobs.exp()).sum(1)
        for name, x in (("logprob", logprob), ("entropy", entropy)):
            out[name] = out[name].index_add(0, at, to_host_float64(x) * weight)
    return out


def _chunks(pairs: Sequence[tuple[int, int]], lengths: Sequence[int], limit: int) -> Iterator[list[tuple[int, int]]]:
    """Split views into batches of at most `limit` padded tokens, or of one view."""
    chunk: list[tuple[int, int]] = []
    width = 0
    for pair, length in zip(pairs, lengths, strict=True):
        width = max(width, length)
        if chunk and limit and (len(chunk) + 1) * width > limit:
            yield chunk
            chunk, width = [], length
        chunk.append(pair)
    if chunk:
        yield chunk
