"""Completions against reference answers: hits, last answers, shifted and contradicting references."""

from __future__ import annotations

import pytest
from tests.doctor.logs import groups, rollouts

from gxpo.doctor.rollout_answers import Holder
from gxpo.doctor.rollout_facts import Facts


@pytest.mark.parametrize(
    ("text", "reference", "is_held"),
    [
        ("= 12.", "12", True),
        ("so 312", "12", False),
        ("12.5", "12", False),
        ("it is 12.0", "12", True),
        ("1,234 in all", "1234", True),
        ("$12 each", "$12", True),
        ("8-3=5", "-3", False),
        ("x = -3", "-3", True),
        ("x = -3", "3", False),
        ("a12", "12", False),
        ("#132", "132", True),
        ("12/5", "12", True),
        ("answer: Paris!", "paris", True),
        ("Parisian", "Paris", False),
        ("a cat", "A", False),
        ("(A)", "A", True),
        (r"\boxed{x^2}", r"$x^2$", True),
        ("7", "3 + 4 = 7 #### 7", True),
        ("", "7", False),
        ("anything", " ", False),
    ],
)
def test_a_reference_stands_by_itself(text, reference, is_held):
    assert Holder(text).holds(reference) is is_held


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("1+2=3, so 12.0", "12"),
        (r"\boxed{7} or 8", "7"),
        ("<answer> Yes </answer> 4", "yes"),
        ("Red.", "red"),
        ("word " * 20, None),
        ("", None),
    ],
)
def test_the_last_answer_of_a_text(text, last):
    assert Holder(text).last == last


def _answered(answer_shift: int, number: int = 12, size: int = 2) -> Facts:
    """Groups that answer the reference of the group `answer_shift` places on, all scored 0."""
    return Facts(
        rollouts(
            groups(
                number,
                size,
                lambda g, m: {
                    "completion": f"it is {100 + g + answer_shift}.",
                    "score": 0.0,
                    "reference": str(100 + g),
                    "step": 1,
                },
            )
        )
    )


def test_references_that_are_hit_and_rejected() -> None:
    match = _answered(0).references
    assert match is not None
    assert (match.n, match.hits, match.chance, match.accepted_share) == (24, 24, 0.0, 0.0)
    assert len(match.rejected_rows) == 24 and match.shift is None and match.consensus is None


def test_references_of_the_next_prompt() -> None:
    match = _answered(1).references
    assert match is not None and match.hits == 0
    assert match.shift == (1, 1.0, 0.0)


def test_one_prompt_with_two_references() -> None:
    def row(g: int, m: int) -> dict[str, object]:
        return {"completion": "?", "score": 0.0, "prompt": f"p{g % 6}", "reference": str(g)}

    match = Facts(rollouts(groups(12, 2, row))).references
    assert match is not None
    assert (match.n_repeated, match.contradictions) == (6, 6)


def test_few_prompts_prove_no_shift() -> None:
    match = _answered(1, 8, 3).references  # seven have a next one
    assert match is not None and match.shift is None


def test_an_answer_that_most_prompts_share_is_no_shift() -> None:
    """All say 7, the reference of every other prompt: it fits the neighbours as often as any others."""

    def row(g: int, m: int) -> dict[str, object]:
        return {"completion": "it is 7", "score": 0.0, "reference": "7" if g % 2 else str(100 + g), "step": 1}

    match = Facts(rollouts(groups(24, 2, row))).references
    assert match is not None and match.shift is None
