"""Figures of single rollouts, against values worked out by hand."""

import numpy as np
import pytest

from gxpo.doctor import rollout_facts, rollout_texts
from gxpo.doctor.rollout_answers import Holder
from gxpo.doctor.rollout_texts import repeats
from gxpo.doctor.rollouts import Row, assemble

NAN = float("nan")


def sample(*rows):
    """Rollouts of rows (step, group, score, {more fields of Row})."""
    made = [
        Row(**{"step": step, "group": g, "score": score, "prompt": f"p{g}", "completion": f"c{i}"} | more)
        for i, (step, g, score, more) in enumerate(rows)
    ]
    found = assemble(made, len(made), "recorded")
    assert found is not None
    return found


def scores(*groups, step=1):
    return sample(*((step, g, s, {}) for g, some in enumerate(groups) for s in some))


def test_within_correlation_ignores_differences_between_groups():
    # centred x: -1 0 1 -1 0 1; centred y: -1 1 0 -1 1 0: sum xy = 2, sum xx = 4, sum yy = 4: r = 1/2, d = 6 - 2 - 1 = 3
    x, y = np.array([1.0, 2, 3, 101, 102, 103]), np.array([0.0, 2, 1, 50, 52, 51])
    found = rollout_facts.within_correlation(x, y, np.array([0, 0, 0, 1, 1, 1]))
    assert (found.r, found.rows, found.groups) == (pytest.approx(0.5), 6, 2)
    assert found.p == pytest.approx(0.391, abs=5e-4)  # t = 0.5 sqrt(3 / 0.75) = 1 with 3 degrees of freedom
    assert found.low == pytest.approx(-0.6840, abs=1e-4)  # tanh(0.5493 - 1.96 / sqrt 2) = tanh(-0.8366)
    assert found.high == pytest.approx(0.9591, abs=1e-4)  # tanh(1.9352)


def test_within_correlation_needs_variation_within_groups():
    x = np.array([1.0, 1.0, 2.0, 2.0])
    found = rollout_facts.within_correlation(x, np.array([0.0, 1.0, 0.0, 1.0]), np.array([0, 0, 1, 1]))
    assert np.isnan(found.r) and found.groups == 0


def with_components(*rows):
    return sample(*((1, g, score, {"components": c}) for g, score, c in rows))


def test_variance_shares_of_a_sum():
    # f' = -1/2 1/2, g' = 1/4 -1/4, s' = -1/4 1/4: shares (1/8 + 1/8) / (1/8) = 2 and -1
    r = with_components((0, 0.5, {"f": 0.0, "g": 0.5}), (0, 1.0, {"f": 1.0, "g": 0.0}))
    assert rollout_facts.variance_shares(r) == {"f": pytest.approx(2.0), "g": pytest.approx(-1.0)}


def test_variance_shares_find_weights():
    # score = f + g / 10, two groups: f' and g' orthogonal
    rows = [(0, f + g / 10, {"f": f, "g": g}) for f in (0.0, 1.0) for g in (0.0, 1.0)]
    found = rollout_facts.variance_shares(with_components(*rows))
    assert found == {"f": pytest.approx(1 / 1.01), "g": pytest.approx(0.01 / 1.01)}


def test_variance_shares_of_equal_scores():
    assert rollout_facts.variance_shares(with_components((0, 1.0, {"f": 1.0}), (0, 1.0, {"f": 1.0}))) == {}


def advantages(*rows):
    return sample(*((1, g, score, {"advantage": a}) for g, score, a in rows))


# ---------------------------------------------------------------- references
@pytest.mark.parametrize(
    ("text", "reference", "held"),
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
def test_a_reference_stands_by_itself(text, reference, held):
    assert Holder(text).holds(reference) is held


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


def answered(*rows):
    """Rows (group, score, completion, reference)."""
    return sample(*((1, g, s, {"completion": c, "reference": ref}) for g, s, c, ref in rows))


# ---------------------------------------------------------------- texts
@pytest.mark.parametrize(
    ("text", "flag"),
    [("so 4 +", True), ("and the", True), ("it is 4", False), ("(as we", True), ("<think> hm", True), ("", False),
     ("<think> hm </think> 4", False), (r"\boxed{4", True), ("a, b,", True), ("done.", False), ("```py\nx", True)],
)  # fmt: skip
def test_unfinished(text, flag):
    assert rollout_texts.unfinished([text]).tolist() == [flag]


@pytest.mark.parametrize(
    ("text", "flag"),
    [("4\nuser\nWhat", True), ("4\nHuman: more", True), ("Question: 3\nQuestion: 4", True), ("4", False),
     (r"\boxed{4} \boxed{5}", True), ("blah blah blah blah", True), ("12=12, 12+3", False),
     ("How many apples are left? 4", True), ("the user\nasked", False)],
)  # fmt: skip
def test_goes_on(text, flag):
    r = sample((1, 0, 0.0, {"prompt": "How many apples are left?", "completion": text}))
    assert rollout_texts.goes_on(r).tolist() == [flag]


@pytest.mark.parametrize(
    ("text", "flag"), [("abcabcabcabc", True), ("abcabc", False), ("1111", False), ("1" * 12, True)]
)
def test_repeats(text, flag):
    assert repeats(text) is flag


@pytest.mark.parametrize(
    ("text", "flag"),
    [("<|im_start|>user", True), ("[INST] x", True), ("### Instruction:\nx", True), ("<start_of_turn>", True),
     ("a < b | c > d", False), ("# Instruction", False)],
)  # fmt: skip
def test_markup(text, flag):
    assert rollout_texts.markup([text]).tolist() == [flag]


def test_repeated_prompts():
    rows = [(1, 0, "a"), (1, 0, "a"), (1, 1, "A "), (1, 2, "b"), (2, 3, "a"), (2, 4, "c")]
    r = sample(*((step, g, 0.0, {"prompt": p}) for step, g, p in rows))
    found = rollout_texts.repeated_prompts(r)
    assert (found.groups, found.prompts, found.within) == (5, 3, 0.4)
    assert found.steps_each == pytest.approx(4 / 3)  # a in two steps, b and c in one


def test_overlap():
    rows = [("Two  words", False), ("other", False), ("two words", True), ("new", True)]
    r = sample(*((1, i, 0.0, {"prompt": p, "held_out": h}) for i, (p, h) in enumerate(rows)))
    found = rollout_texts.overlap(r)
    assert (found.held_out, found.shared, found.rows) == (2, 1, [(2, 0)])
