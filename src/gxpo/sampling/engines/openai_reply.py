"""Response models of an OpenAI-compatible server, and the validated completion of a response."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from gxpo.parts.protocols import Completion, Sampling

PREFIX = "token_id:"  # precedes ids in place of texts, if the request sets return_tokens_as_token_ids
NOTHING = -9000.0  # log-probs below this mean minus infinity, which JSON does not have
SLACK = 8  # ids requested beyond top_k: equal logits at its edge are all kept
SURE = 1e-3  # nats: largest distance from 0, by rounding, of the log-prob of a certain token

Id = Annotated[int, Field(ge=0, lt=1 << 31)]
Ids = Annotated[list[Id], Field(fail_fast=True)]
LogProb = Annotated[float, Field(le=SURE, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _ResponseModel(BaseModel):
    model_config = ConfigDict(strict=True)  # further fields are ignored


class Logprobs(_ResponseModel):
    """Log-probs of a choice: texts of the tokens, their log-probs, and the most likely tokens at each position."""

    tokens: Annotated[list[str], Field(fail_fast=True)] | None = None
    token_logprobs: Annotated[list[LogProb | None], Field(fail_fast=True)] | None = None
    top_logprobs: Annotated[list[dict[str, LogProb] | None], Field(fail_fast=True)] | None = None


class Choice(_ResponseModel):
    """Sampled choice of a response."""

    token_ids: Ids | None = None
    prompt_token_ids: Ids | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class PromptTokens(_ResponseModel):
    """Number of prompt tokens from the server's cache."""

    cached_tokens: Count | None = None


class Usage(_ResponseModel):
    """Token usage of the request."""

    prompt_tokens_details: PromptTokens | None = None


class Reply(_ResponseModel):
    """Response of /completions to a request for one sample."""

    choices: Annotated[list[Choice], Field(min_length=1, max_length=1)]
    usage: Usage | None = None

    @property
    def n_cached(self) -> int:
        """Number of prompt tokens that the server had cached."""
        details = self.usage.prompt_tokens_details if self.usage is not None else None
        return (details.cached_tokens or 0) if details is not None else 0


class Model(_ResponseModel):
    """A model on the server."""

    id: str
    max_model_len: Annotated[int, Field(ge=1)] | None = None


class Models(_ResponseModel):
    """Response of /models."""

    data: Annotated[list[Model], Field(fail_fast=True)]


def max_reply_bytes(prompt: int, sampling: Sampling) -> int:
    """Byte limit on a response: several times what ids, texts and log-probs of every token need."""
    return (1 << 20) + 32 * prompt + sampling.max_new_tokens * (1024 + 64 * (sampling.top_k + SLACK))


def completion(
    reply: Reply,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    ends: Collection[int],
    vocabulary: int | None,
    version: int,
) -> Completion:
    """Convert a response; ValueError (in words that continue the server's name) if it does not match the request.

    ends        ids that end an action: `sampling.stop_ids` and the end of the sequence
    vocabulary  size of the policy's vocabulary; None: unknown
    """
    (choice,) = reply.choices
    logprobs = choice.logprobs or Logprobs()
    ids, values = _ids(choice.token_ids, logprobs), logprobs.token_logprobs
    # Tokens and log-probs enter ratios: a missing or impossible one would bias training without an error.
    if not 1 <= len(ids) <= sampling.max_new_tokens:
        raise ValueError(f"gives {len(ids)} tokens where 1 to {sampling.max_new_tokens} were asked for")
    if vocabulary is not None and max(ids) >= vocabulary:
        raise ValueError(f"gives token {max(ids)}, and the policy knows {vocabulary}: it holds another model")
    if values is None or len(values) != len(ids) or not all(x is not None and x > NOTHING for x in values):
        raise ValueError("gives no log-prob for every token that it sampled")
    if choice.finish_reason not in ("stop", "length"):
        raise ValueError(f"gave up a sample (finish_reason {str(choice.finish_reason)[:40]!r})")
    # A server that tokenises or truncates the prompt itself samples in another context than the learner scores.
    if choice.prompt_token_ids is not None and choice.prompt_token_ids != list(prompt):
        raise ValueError("read other tokens than the prompt that it was sent")
    if reply.n_cached > len(prompt):
        raise ValueError(f"says that {reply.n_cached} tokens of a prompt of {len(prompt)} were cached")
    # The stop rules must be ours: an action with tokens behind its end is one that the policy could not have taken.
    if early_ends := [t for t in ids[:-1] if t in ends]:
        raise ValueError(f"went on after token {early_ends[0]}, which ends an action")
    if choice.finish_reason == "stop" and not sampling.stop and ids[-1] not in ends:
        raise ValueError(f"stopped after token {ids[-1]}, which ends no action, or left out the one that does")
    return Completion(
        tokens=ids,
        logprobs=[0.0] * len(ids) if sampling.temperature == 0 else [float(x) for x in values if x is not None],
        finish=choice.finish_reason,
        support=_support(logprobs, ids, sampling) if sampling.truncated_support else None,
        policy_version=version,
    )


def _ids(token_ids: list[int] | None, logprobs: Logprobs) -> list[int]:
    """Sampled ids, from `token_ids` or from tokens written as ids."""
    if token_ids is not None:
        return token_ids
    ids = [_id(t) for t in logprobs.tokens or []]
    if not ids or None in ids:
        raise ValueError(
            "answers in text without token ids: tokenised again it may be other tokens than were sampled. Use a server "
            "that returns ids, such as `vllm serve`"
        )
    return [t for t in ids if t is not None]


def _id(text: str) -> int | None:
    return int(text.removeprefix(PREFIX)) if re.fullmatch(PREFIX + "[0-9]{1,9}", text) else None


def _support(logprobs: Logprobs, ids: Sequence[int], sampling: Sampling) -> np.ndarray:
    """Support of every token, [tokens, K] int64, padded with -1."""
    tops_by_position: Sequence[Mapping[str, float] | None] = logprobs.top_logprobs or []
    if len(tops_by_position) != len(ids):
        raise ValueError(f"gives the possible tokens at {len(tops_by_position)} of {len(ids)} places")
    n_requested, rows = sampling.top_k + SLACK, []
    for token, top_logprobs_by_text in zip(ids, tops_by_position, strict=True):
        row = [_id(t) for t, x in (top_logprobs_by_text or {}).items() if x > NOTHING]
        if token not in row or None in row:
            raise ValueError(f"gives possible tokens without the id of token {token}, which it sampled there")
        # As many as were requested: there may be more, and ratios under a cut-off support would be wrong.
        if len(row) >= n_requested:
            raise ValueError(
                f"left {n_requested} tokens or more possible at one position after top_k and top_p, and no more were "
                "asked for: set sampling.top_k, or sample without both"
            )
        rows.append(sorted(t for t in row if t is not None))
    out = np.full((len(rows), max(map(len, rows))), -1, dtype=np.int64)
    for out_row, row in zip(out, rows, strict=True):
        out_row[: len(row)] = row
    return out
