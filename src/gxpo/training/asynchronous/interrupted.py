"""Samples that are interrupted where new weights arrive, and go on under them from the same token (`async.partial`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gxpo.parts.protocols import Completion, Request, Sampling


@dataclass(frozen=True)
class Remaining:
    """Requests for the rest of interrupted samples: one for each, with `places` (request, stream) in the first call."""

    version: int
    places: list[tuple[int, int]]
    requests: list[Request]
    sampling: Sampling


def remaining(
    requests: Sequence[Request], found: Sequence[Sequence[Completion]], sampling: Sampling, version: int
) -> Remaining | None:
    """What is left of the interrupted samples, to be sampled under `version`; None where there are none.

    The rest of a sample has a stream of its own: that of the sample with -version added to its path.
    """
    places = [(i, j) for i, group in enumerate(found) for j, c in enumerate(group) if c.finish == "interrupted"]
    if not places:
        return None
    rest = []
    for i, j in places:
        request, begun = requests[i], found[i][j].tokens
        key = request.streams[j]
        key = replace(key, path=(*key.path, -version))
        keep = (request.keep[j],) if request.keep else ()
        rest.append(replace(request, prompt=(*request.prompt, *begun), streams=(key,), keep=keep))
    room = sampling.max_new_tokens - min(len(found[i][j].tokens) for i, j in places)
    return Remaining(version, places, rest, replace(sampling, max_new_tokens=room))


def joined(
    found: Sequence[Sequence[Completion]],
    rest: Remaining,
    more: Sequence[Sequence[Completion]],
    sampling: Sampling,
) -> list[list[Completion]]:
    """The samples with what came of their rests."""
    out = [list(group) for group in found]
    for (i, j), (piece,) in zip(rest.places, more, strict=True):
        begun = out[i][j]
        out[i][j] = _one(begun, piece.within(sampling.max_new_tokens - len(begun.tokens)))
    return out


def _one(first: Completion, then: Completion) -> Completion:
    size = len(first.tokens)
    newest = first.versions[-1][1] if first.versions else first.policy_version
    changes = () if then.policy_version == newest else ((size, then.policy_version),)
    return replace(
        first,
        tokens=[*first.tokens, *then.tokens],
        logprobs=[*first.logprobs, *then.logprobs],
        finish=then.finish,
        support=_stacked(first.support, then.support),
        versions=(*first.versions, *changes),
    )


def _stacked(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Supports one below the other, padded with -1 to the wider."""
    if a is None or b is None:
        return a if b is None else b
    widest = max(a.shape[1], b.shape[1])
    return np.concatenate([np.pad(x, ((0, 0), (0, widest - x.shape[1])), constant_values=-1) for x in (a, b)])
