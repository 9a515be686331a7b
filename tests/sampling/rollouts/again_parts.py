"""`Again` as it is under its former names: options of fields and of functions alike."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from gxpo.sampling.rollouts.again import Again

FIELDS = {f.name for f in dataclasses.fields(Again) if f.init}


def again(settings: dict[str, Any], names: tuple[str, ...], *values: Any, **given: Any) -> Again:
    """The part under these settings; `values` are those of `group_size` and then `names`."""
    given = {**settings, **dict(zip(("group_size", *names), values, strict=False)), **given}
    options = {k: v for k, v in given.items() if k not in FIELDS}
    return Again(**{k: v for k, v in given.items() if k in FIELDS}, options=options)


LeastHint = partial(again, {"how": "each_hint", "keep": "right_for_first", "warmup_steps": 50}, ())
GrowingHint = partial(again, {"how": "next_hint", "keep": "newest"}, ())
ReferenceOnFailure = partial(again, {"how": "reference", "keep": "for_last_failure"}, ())
BestDraft = partial(again, {"when": "always", "how": "best_draft", "keep": "newest"}, ("n_drafts", "template"))
OversampleForVote = partial(again, {"when": "always", "how": "voters", "keep": "numbered"}, ("n_votes",))
RetryUntilSolved = partial(
    again, {"when": "unsolved", "how": "more", "keep": "everything", "reuse": True}, ("stage_size",)
)
