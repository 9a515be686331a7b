"""Response models of an OpenAI-compatible server, and the validated completion of a response."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from gxpo.parts.protocols import Completion, Sampling

PREFIX = "token_id:"  # how a token is written where ids are requested
NOTHING = -9000.0  # log-probs below this mean minus infinity, which JSON does not have
SLACK = 8  # ids requested beyond top_k: equal logits at its edge are all kept
SURE = 1e-3  # nats: how far rounding may take the log-prob of a certain token from 0, to either side

Id = Annotated[int, Field(ge=0, lt=1 << 31)]
Ids = Annotated[list[Id], Field(fail_fast=True)]
LogProb = Annotated[float, Field(le=SURE, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Said(BaseModel):
    model_config = ConfigDict(strict=True)  # further fields are ignored


class Logprobs(_Said):
    """Log-probs of a choice: texts of the tokens, their own log-probs, and the most likely tokens at each position."""

    tokens: Annotated[list[str], Field(fail_fast=True)] | None = None
    token_logprobs: Annotated[list[LogProb | None], Field(fail_fast=True)] | None = None
    top_logprobs: Annotated[list[dict[str, LogProb] | None], Field(fail_fast=True)] | None = None


class Choice(_Said):
    """One sampled choice."""

    token_ids: Ids | None = None
    prompt_token_ids: Ids | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class PromptTokens(_Said):
    """Number of prompt tokens from the server's cache."""

    cached_tokens: Count | None = None


class Usage(_Said):
    """Token usage of the request."""

    prompt_tokens_details: PromptTokens | None = None


class Reply(_Said):
    """Response of /completions to a request for one sample."""

    choices: Annotated[list[Choice], Field(min_length=1, max_length=1)]
    usage: Usage | None = None

    @property
    def cached(self) -> int:
        """Number of prompt tokens that the server had cached."""
        details = self.usage.prompt_tokens_details if self.usage is not None else None
        return (details.cached_tokens or 0) if details is not None else 0


class Model(_Said):
    """A model on the server."""

    id: str
    max_model_len: Annotated[int, Field(ge=1)] | None = None


class Models(_Said):
    """Response of /models."""

    data: Annotated[list[Model], Field(fail_fast=True)]


def longest(prompt: int, s: Sampling) -> int:
    """Limit in bytes on a response: ids, texts and log-probs of every token, many times over."""
    return (1 << 20) + 32 * prompt + s.max_new_tokens * (1024 + 64 * (s.top_k + SLACK))


def completion(
    reply: Reply,
    prompt: Sequence[int],
    s: Sampling,
    *,
    ends: Collection[int],
    vocabulary: int | None,
    version: int,
) -> Completion:
    """The sampled completion; ValueError (words after the server's name) if the response does not match the request.

    ends        ids that end an action: `s.stop_ids` and the end of the sequence
    vocabulary  how many tokens the policy knows; None: unknown
    """
    (choice,) = reply.choices
    logprobs = choice.logprobs or Logprobs()
    ids, own = _ids(choice.token_ids, logprobs), logprobs.token_logprobs
    if not 1 <= len(ids) <= s.max_new_tokens:
        raise ValueError(f"gives {len(ids)} tokens where 1 to {s.max_new_tokens} were asked for")
    if vocabulary is not None and max(ids) >= vocabulary:
        raise ValueError(f"gives token {max(ids)}, and the policy knows {vocabulary}: it holds another model")
    if own is None or len(own) != len(ids) or not all(x is not None and x > NOTHING for x in own):
        raise ValueError("gives no log-prob for every token that it sampled")
    if choice.finish_reason not in ("stop", "length"):
        raise ValueError(f"gave up a sample (finish_reason {str(choice.finish_reason)[:40]!r})")
    if choice.prompt_token_ids is not None and choice.prompt_token_ids != list(prompt):
        raise ValueError("read other tokens than the prompt that it was sent")
    if reply.cached > len(prompt):
        raise ValueError(f"says that {reply.cached} tokens of a prompt of {len(prompt)} were cached")
    if found := [t for t in ids[:-1] if t in ends]:
        raise ValueError(f"went on after token {found[0]}, which ends an action")
    if choice.finish_reason == "stop" and not s.stop and ids[-1] not in ends:
        raise ValueError(f"stopped after token {ids[-1]}, which ends no action, or left out the one that does")
    return Completion(
        tokens=ids,
        logprobs=[0.0] * len(ids) if s.temperature == 0 else [float(x) for x in own if x is not None],
        finish=choice.finish_reason,
        support=_support(logprobs, ids, s) if s.truncated_support else None,
        policy_version=version,
    )


def _ids(given: list[int] | None, logprobs: Logprobs) -> list[int]:
    if given is not None:
        return given
    ids = [_id(t) for t in logprobs.tokens or []]
    if not ids or None in ids:
        raise ValueError(
            "answers in text without token ids: tokenised again it may be other tokens than were sampled. Use a server "
            "that returns ids, such as `vllm serve`"
        )
    return [t for t in ids if t is not None]


def _id(written: str) -> int | None:
    return int(written.removeprefix(PREFIX)) if re.fullmatch(PREFIX + "[0-9]{1,9}", written) else None


def _support(logprobs: Logprobs, ids: Sequence[int], s: Sampling) -> np.ndarray:
    """[tokens, widest] int64, padded with -1."""
    tops: Sequence[Mapping[str, float] | None] = logprobs.top_logprobs or []
    if len(tops) != len(ids):
        raise ValueError(f"gives the possible tokens at {len(tops)} of {len(ids)} places")
    asked, rows = s.top_k + SLACK, []
    for token, found in zip(ids, tops, strict=True):
        row = [_id(t) for t, x in (found or {}).items() if x > NOTHING]
        if token not in row or None in row:
            raise ValueError(f"gives possible tokens without the id of token {token}, which it sampled there")
        if len(row) >= asked:
            raise ValueError(
                f"left {asked} tokens or more possible at one position after top_k and top_p, and no more were asked "
                "for: set sampling.top_k, or sample without both"
            )
        rows.append(sorted(t for t in row if t is not None))
    out = np.full((len(rows), max(map(len, rows))), -1, dtype=np.int64)
    for place, row in zip(out, rows, strict=True):
        place[: len(row)] = row
    return out
