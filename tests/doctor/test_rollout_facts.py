"""Statistics of single rollouts, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.doctor.logs import groups, rollouts

from gxpo.doctor.rollout_facts import Facts, _doubled
from gxpo.doctor.series import stationary, trend


def test_equal_texts_with_different_scores() -> None:
    """One group a a b b, scores 0 1 1 1: one of two equal pairs differs; mean squared difference 1/2 of equal pairs,
    3/6 of all pairs."""
    facts = Facts(rollouts(groups(1, 4, lambda g, m: {"completion": "aabb"[m], "score": float(m > 0)})))
    assert facts.same_text is not None
    pairs, differing, ratio, rows = facts.same_text
    assert (pairs, differing) == (2, 1)
    assert ratio == pytest.approx(1.0)
    assert rows.tolist() == [0, 1]


def test_spread_within_and_between_groups() -> None:
    """Scores 0 0, 1 1, 0 1: squares within 2 x 0.25 over 6 rows; means 0, 1, 0.5."""
    scores = [[0, 0], [1, 1], [0, 1]]
    facts = Facts(rollouts(groups(3, 2, lambda g, m: {"completion": "xy"[m], "score": scores[g][m]})))
    assert facts.spread is not None
    inside, between, different, number = facts.spread
    assert inside == pytest.approx((0.5 / 6) ** 0.5)
    assert between == pytest.approx((1 / 6) ** 0.5)
    assert (different, number) == (1.0, 3)


def test_a_negative_weight_is_flipped_and_a_trade_off_is_not() -> None:
    def row(g: int, m: int) -> dict[str, object]:
        return {"completion": str(m), "right": m % 2, "price": -float(m)}

    rows = groups(6, 4, row)
    for r in rows:
        r["score"] = r["right"] + r["price"]
    summed = Facts(rollouts(rows, lambda r: {"right": r["right"], "price": r["price"]}))
    assert summed.flipped is None  # right and total correlate below 0 here, and right has the weight 1
    for r in rows:
        r["score"] = -float(r["right"])
    turned = Facts(rollouts(rows, lambda r: {"right": r["right"]}))
    assert turned.flipped == ("right", pytest.approx(-1.0))


def test_answers_that_become_alike_from_a_step_on() -> None:
    rows = groups(24, 4, lambda g, m: {"completion": f"{m if g < 12 else 0}", "score": m % 2})
    facts = Facts(rollouts(rows))  # four groups a step: steps 1 to 6
    assert facts.alike_from is not None
    step, before, _ = facts.alike_from
    assert (step, before) == (4, 1.0)


def test_scores_missing_in_parts_of_groups() -> None:
    facts = Facts(rollouts(groups(4, 2, lambda g, m: {"completion": "x", "score": 1.0})))
    whole = np.array([np.nan, np.nan, 1, 1, 1, 1, 1, 1])  # a reward of another task
    parts = np.array([np.nan, 1, np.nan, 1, 1, 1, 1, 1])
    assert facts.partly_missing(whole) == 0.0
    assert facts.partly_missing(parts) == 0.5


def test_advantages_against_scores() -> None:
    """Scores 0 1 in each group; advantages -1 1 turned around, and a residue where scores are equal."""
    rows = groups(6, 2, lambda g, m: {"completion": "xy"[m], "score": float(m), "advantage": 1.0 - 2.0 * m})
    rows += groups(1, 2, lambda g, m: {"group": 9, "completion": "xy"[m], "score": 0.95, "advantage": 6e-4})
    found = Facts(rollouts(rows)).advantages
    assert found is not None
    assert found.groups == 6
    assert found.correlation == pytest.approx(-1.0)
    assert found.residue.tolist() == [12, 13] and found.equal == 2
    assert not found.raw


def _answered(said: int, number: int = 12) -> Facts:
    """Groups of two that answer the reference of the group `said` places on, all scored 0."""
    return Facts(
        rollouts(
            groups(
                number,
                2,
                lambda g, m: {
                    "completion": f"it is {100 + g + said}.",
                    "score": 0.0,
                    "reference": str(100 + g),
                    "step": 1,
                },
            )
        )
    )


def test_references_that_are_hit_and_rejected() -> None:
    found = _answered(0).references
    assert found is not None
    assert (found.n, found.hits, found.chance, found.accepted) == (24, 24, 0.0, 0.0)
    assert len(found.rejected) == 24 and found.shift is None and found.consensus is None


def test_references_of_the_next_prompt() -> None:
    found = _answered(1).references
    assert found is not None and found.hits == 0
    assert found.shift == (1, 1.0, 0.0)


def test_one_prompt_with_two_references() -> None:
    def row(g: int, m: int) -> dict[str, object]:
        return {"completion": "?", "score": 0.0, "prompt": f"p{g % 6}", "reference": str(g)}

    found = Facts(rollouts(groups(12, 2, row))).references
    assert found is not None
    assert (found.repeated, found.contradictions) == (6, 6)


def test_trend_of_a_straight_line_and_of_a_level() -> None:
    line = trend(np.arange(20.0))
    assert line is not None
    assert line.change == pytest.approx(19.0)
    assert line.noise == pytest.approx(0.5**0.5)  # neighbours differ by 1
    assert line.rises and not line.falls
    level = np.array([0.0, 1.0] * 15)
    assert stationary(level)
    assert not stationary(np.linspace(0.0, 1.0, 30))


@pytest.mark.parametrize(
    ("prompt", "is_doubled"),
    [
        ("<|im_start|>user\n<|im_start|>user\nhi<|im_end|>\n", True),
        ("user\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n\nassistant\n", True),  # outer ones left out
        ("system\nBe short.\nuser\n<|im_start|>system\nhi", True),
        ("user\n\n<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi", True),
        ("<start_of_turn>user\n<start_of_turn>user\nhi<end_of_turn>", True),
        ("<|user|>\n<|user|>\nhi", True),
        ("<|system|>\n<|user|>\nhi", False),  # an empty system message
        ("<|im_start|>system\nhi<|im_end|>\n<|im_start|>user\nhi", False),
        ("user\nwhat does <|im_start|>user mean?\nassistant\n", False),
    ],
)
def test_prompts_that_were_templated_twice(prompt, is_doubled):
    assert _doubled(prompt) is is_doubled
