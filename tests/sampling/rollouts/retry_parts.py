"""`Retry` as it is under its former names: options of fields and of functions alike."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from gxpo.sampling.rollouts.retry import Retry

FIELDS = {f.name for f in dataclasses.fields(Retry) if f.init}


def again(settings: dict[str, Any], names: tuple[str, ...], *values: Any, **given: Any) -> Retry:
    """The part under these settings; `values` are those of `group_size` and then `names`."""
    given = {**settings, **dict(zip(("group_size", *names), values, strict=False)), **given}
    options = {k: v for k, v in given.items() if k not in FIELDS}
    return Retry(**{k: v for k, v in given.items() if k in FIELDS}, options=options)


LeastHint = partial(again, {"retry_with": "each_hint", "keep": "right_for_first", "warmup_steps": 50}, ())
GrowingHint = partial(again, {"retry_with": "next_hint", "keep": "newest"}, ())
ReferenceOnFailure = partial(again, {"retry_with": "reference", "keep": "for_last_failure"}, ())
BestDraft = partial(
    again, {"retry_if": "always", "retry_with": "best_draft", "keep": "newest"}, ("n_drafts", "template")
)
OversampleForVote = partial(again, {"retry_if": "always", "retry_with": "voters", "keep": "numbered"}, ("n_votes",))
RetryUntilSolved = partial(
    again, {"retry_if": "unsolved", "retry_with": "more", "keep": "everything", "reuse": True}, ("stage_size",)
)
