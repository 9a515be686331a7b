"""`Retry` by the names that it went by, and what it refuses; what its functions do is in the tests of each."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sampling.rollouts.growing_session import GrowingSession, tasks

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.sampling.rollouts.retry import Retry

FORMER = (
    ("LeastHint", "least_hint", {"fractions": (0.5,), "template": "{prompt}{hint}", "warmup_steps": 3}),
    ("GrowingHint", "growing_hint", {"cut": "characters"}),
    ("ReferenceOnFailure", "reference_on_failure", {}),
    ("BestDraft", "best_draft", {"n_drafts": 2, "template": "{prompt}{draft}"}),
    ("OversampleForVote", "oversample_for_vote", {"n_votes": 5}),
    ("RetryUntilSolved", "retry_until_solved", {"stage_size": 2, "choice": "recent", "coef": 1.0}),
    ("RetryUntilSolved", "staged", {}),
    ("OversampleForVote", "vote", {}),
)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"retry_with": "reference", "group_size": 1}, r"rollout\.group_size is 1; it must be 2 or more"),
        (
            {"retry_with": "more", "stage_size": 9},
            r"rollout\.stage_size is 9; it must be from 1 to rollout\.group_size=8",
        ),
        ({"retry_with": "each_hint", "template": "{prompt}"}, r"rollout\.template='{prompt}' lacks {hint}"),
        ({"retry_with": "next_hint", "fractions": []}, r"rollout\.fractions must be shares"),
        ({"retry_with": "voters", "n_votes": 3}, r"rollout\.n_votes=3 must be at least rollout\.group_size=8"),
        ({"retry_with": "best_draft", "n_drafts": -1}, r"rollout\.n_drafts is -1; it is 0 or more"),
        ({"retry_with": "hints"}, r"rollout\.retry_with: unknown function 'hints'.*next_hint"),
        ({"keep": "all"}, r"rollout\.keep: unknown function 'all'"),
        ({"retry_with": "more", "n_drafts": 3}, r"n_drafts"),
    ],
)
def test_what_does_not_fit_is_refused_at_composition(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gxpo.method("grpo", {"rollout": "retry", **{f"rollout.{k}": v for k, v in keys.items()}})


def test_only_what_reuses_has_a_memory() -> None:
    assert Retry(reuse=True).remembers and not Retry().remembers
    assert "rollout" in gxpo.method("ar3po").state_dict() and "rollout" not in gxpo.method("igrpo").state_dict()


def test_drafts_on_failure_alone() -> None:
    """Two settings that no paper has together: a group with a success is left as it was."""
    part = Retry(2, retry_with="best_draft", keep="newest", options={"n_drafts": 2, "template": "{prompt}{draft}"})
    session = GrowingSession(lambda c, s: "yes" if s.task == "a" or "no" in c else "no", lambda c, t: float("yes" in t))
    forest = part.grow(tasks("a", "b"), session)
    assert forest.id == ["s60/a/drafts/0", "s60/a/drafts/1", "s60/b/0", "s60/b/1"]
    assert forest.success.tolist() == [1.0] * 4 and session.budget.discarded == 2
