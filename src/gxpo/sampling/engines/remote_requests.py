"""Requests for engines in other processes: validation, and an integer seed for every stream."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Request, Sampling, SoftSampling, StreamKey

LEAST_TEMPERATURE = 0.01  # vLLM silently raises lower temperatures to this one


def seed_of(key: StreamKey) -> int:
    """Seed of a stream: 63 bits of the blake2b hash of its key.

    >>> seed_of(StreamKey(0, 3, "gsm8k/17", 1)) == seed_of(StreamKey(0, 3, "gsm8k/17", 1))
    True
    >>> seed_of(StreamKey(0, 3, "gsm8k/17", 1)) == seed_of(StreamKey(0, 3, "gsm8k/17", 2))
    False
    """
    name = json.dumps([key.seed, key.step, key.task, key.attempt, list(key.path), key.turn])
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def check(
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    policy: str,
    positions: int | None,
    limit: str,
    pictures: str | None = "which is handed to the torch and the vLLM engine alone: set sampling.engine=torch or vllm",
) -> None:
    """Raise ModelError for settings or requests that such an engine does not support.

    positions  longest context, action included (None: unknown);   limit  where that number comes from
    pictures   reason why the engine takes no pictures (None: it takes them)
    """
    if isinstance(sampling, SoftSampling):
        raise ModelError(
            "soft thinking feeds the model mixtures of embeddings, which this engine can't: set sampling.engine=torch"
        )
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0 or sampling.max_new_tokens < 1:
        raise ModelError(
            f"{sampling} is impossible: temperature and top_k must be >= 0, 0 < top_p <= 1, max_new_tokens >= 1"
        )
    # vLLM would raise the temperature without an error, and the log-probs would be of another distribution.
    if 0 < sampling.temperature < LEAST_TEMPERATURE:
        raise ModelError(
            f"sampling.temperature={sampling.temperature:g}: vLLM samples at {LEAST_TEMPERATURE:g} or more; set 0 "
            "(greedy), or sampling.engine=torch"
        )
    if "" in sampling.stop:
        raise ModelError("sampling.stop has an empty string, which would end every action: remove it")
    for request in requests:
        if not request.prompt:
            raise ModelError("a request has an empty prompt: the model needs at least one token, such as its bos")
        # Ids below 0 are latents of flows, whose values travel in the extras.
        if request.extras or min(request.prompt) < 0:
            raise ModelError("a request has steps that are no vocabulary ids, which a language model can't go on from")
        if request.options is not None:
            raise ModelError(
                f"a request has {request.options}, and this engine does not record the distribution that such options "
                "make: leave them out, or set sampling.engine=torch"
            )
        if pictures is not None and max(request.prompt) >= media.FIRST:
            raise ModelError(f"a request shows a picture, {pictures}")
        if request.policy != policy:
            raise ModelError(f"a request is for policy {request.policy!r}, and the engine knows one policy, {policy!r}")
        if positions is not None and len(request.prompt) + sampling.max_new_tokens > positions:
            raise ModelError(
                f"a prompt of {len(request.prompt)} tokens and max_new_tokens {sampling.max_new_tokens} exceed "
                f"{positions} ({limit}): shorten the prompt, or lower max_new_tokens"
            )
