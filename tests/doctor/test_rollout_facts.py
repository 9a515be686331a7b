"""Statistics of single rollouts, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.doctor.logs import groups, rollouts

from gxpo.doctor import rollout_facts
from gxpo.doctor.rollout_facts import Facts, _has_doubled_turn
from gxpo.doctor.rollouts import Row, assemble


def test_equal_texts_with_different_scores() -> None:
    """One group a a b b, scores 0 1 1 1: one of two equal pairs differs; mean squared difference 1/2 of equal pairs,
    3/6 of all pairs."""
    facts = Facts(rollouts(groups(1, 4, lambda g, m: {"completion": "aabb"[m], "score": float(m > 0)})))
    assert facts.same_text is not None
    pairs, differing, ratio, rows = facts.same_text
    assert (pairs, differing) == (2, 1)
    assert ratio == pytest.approx(1.0)
    assert rows.tolist() == [0, 1]


def test_equal_moves_with_other_replies_are_no_pair() -> None:
    """One group a a a a; the environment answered x x y y, and in a game against others (None) nothing is a pair."""
    row = {"completion": "a", "score": 1.0}
    facts = Facts(rollouts(groups(1, 4, lambda g, m: {**row, "score": m // 2, "observation": "xxyy"[m]})))
    assert facts.same_text is not None
    assert facts.same_text[:3] == (2, 0, 0.0)
    assert Facts(rollouts(groups(1, 4, lambda g, m: {**row, "observation": None}))).same_text is None


@pytest.mark.parametrize("observation, shared", [("", 2), (None, 0)])
def test_games_against_others_that_begin_alike_leak_nothing(observation: str | None, shared: int) -> None:
    def row(g: int, m: int) -> dict[str, object]:
        prompt, is_held_out = f"pile {g // 2}", g % 2
        return {"prompt": prompt, "completion": "1", "score": 1, "held_out": is_held_out, "observation": observation}

    sample = rollouts(groups(4, 2, row))
    overlap = Facts(sample.select(~sample.held_out), sample).overlap
    assert overlap is not None and overlap[1] == shared


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
    of_other_task = np.array([np.nan, np.nan, 1, 1, 1, 1, 1, 1])  # a reward of another task
    parts = np.array([np.nan, 1, np.nan, 1, 1, 1, 1, 1])
    assert facts.partly_missing(of_other_task) == 0.0
    assert facts.partly_missing(parts) == 0.5


def test_advantages_against_scores() -> None:
    """Scores 0 1 in each group; advantages -1 1 turned around, and a residue where scores are equal."""
    rows = groups(6, 2, lambda g, m: {"completion": "xy"[m], "score": float(m), "advantage": 1.0 - 2.0 * m})
    rows += groups(1, 2, lambda g, m: {"group": 9, "completion": "xy"[m], "score": 0.95, "advantage": 6e-4})
    result = Facts(rollouts(rows)).advantages
    assert result is not None
    assert result.groups == 6
    assert result.correlation == pytest.approx(-1.0)
    assert result.residue.tolist() == [12, 13] and result.equal == 2
    assert not result.raw


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
    assert _has_doubled_turn(prompt) is is_doubled


def sample(*rows):
    """Rollouts of rows (step, group, score, {more fields of Row})."""
    made_rows = [
        Row(**{"step": step, "group": g, "score": score, "prompt": f"p{g}", "completion": f"c{i}"} | more)
        for i, (step, g, score, more) in enumerate(rows)
    ]
    result = assemble(made_rows, len(made_rows), "recorded")
    assert result is not None
    return result


def test_within_correlation_ignores_differences_between_groups():
    # centred x: -1 0 1 -1 0 1; centred y: -1 1 0 -1 1 0: sum xy = 2, sum xx = 4, sum yy = 4: r = 1/2, d = 6 - 2 - 1 = 3
    x, y = np.array([1.0, 2, 3, 101, 102, 103]), np.array([0.0, 2, 1, 50, 52, 51])
    result = rollout_facts.within_correlation(x, y, np.array([0, 0, 0, 1, 1, 1]))
    assert (result.r, result.rows, result.groups) == (pytest.approx(0.5), 6, 2)
    assert result.p == pytest.approx(0.391, abs=5e-4)  # t = 0.5 sqrt(3 / 0.75) = 1 with 3 degrees of freedom
    assert result.low == pytest.approx(-0.6840, abs=1e-4)  # tanh(0.5493 - 1.96 / sqrt 2) = tanh(-0.8366)
    assert result.high == pytest.approx(0.9591, abs=1e-4)  # tanh(1.9352)


def test_within_correlation_needs_variation_within_groups():
    x = np.array([1.0, 1.0, 2.0, 2.0])
    result = rollout_facts.within_correlation(x, np.array([0.0, 1.0, 0.0, 1.0]), np.array([0, 0, 1, 1]))
    assert np.isnan(result.r) and result.groups == 0


def with_components(*rows):
    return sample(*((1, g, score, {"components": c}) for g, score, c in rows))


def test_variance_shares_of_a_sum():
    # f' = -1/2 1/2, g' = 1/4 -1/4, s' = -1/4 1/4: shares (1/8 + 1/8) / (1/8) = 2 and -1
    r = with_components((0, 0.5, {"f": 0.0, "g": 0.5}), (0, 1.0, {"f": 1.0, "g": 0.0}))
    assert rollout_facts.variance_shares(r) == {"f": pytest.approx(2.0), "g": pytest.approx(-1.0)}


def test_variance_shares_find_weights():
    # score = f + g / 10, two groups: f' and g' orthogonal
    rows = [(0, f + g / 10, {"f": f, "g": g}) for f in (0.0, 1.0) for g in (0.0, 1.0)]
    result = rollout_facts.variance_shares(with_components(*rows))
    assert result == {"f": pytest.approx(1 / 1.01), "g": pytest.approx(0.01 / 1.01)}


def test_variance_shares_of_equal_scores():
    assert rollout_facts.variance_shares(with_components((0, 1.0, {"f": 1.0}), (0, 1.0, {"f": 1.0}))) == {}


def test_a_constant_advantage_of_imitated_answers_is_no_raw_reward() -> None:
    """Scores and advantages of 1: raw where another group's differ as its scores do, and nothing else is known."""
    equal = groups(2, 2, lambda g, m: {"completion": "xy"[m], "score": 1.0, "advantage": 1.0})
    facts = Facts(rollouts(equal))
    assert facts.advantages is not None and not facts.advantages.raw
    other = [{"group": 2, "completion": "xy"[m], "score": float(m), "advantage": float(m)} for m in range(2)]
    raw = Facts(rollouts([*equal, *other])).advantages
    assert raw is not None and raw.raw
