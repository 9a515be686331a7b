"""Figures of single rollouts, against values worked out by hand."""

import numpy as np
import pytest

from gxpo.doctor import rollout_figures as figures
from gxpo.doctor.rollout_references import Holder
from gxpo.doctor.rollout_rows import Row, assemble
from gxpo.doctor.rollout_texts import repeats

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


def test_group_table():
    texts = [{"completion": c} for c in ("x", "x", "y", "z")]
    r = sample((1, 0, 1.0, texts[0]), (1, 0, 3.0, texts[1]), (1, 0, NAN, texts[2]), (2, 1, 5.0, texts[3]))
    g = figures.group_table(r)
    assert (g.step.tolist(), g.first.tolist(), g.size.tolist(), g.scored.tolist()) == ([1, 2], [0, 3], [3, 1], [2, 1])
    assert (g.mean.tolist(), g.min.tolist(), g.max.tolist()) == ([2, 5], [1, 5], [3, 5])
    assert g.std.tolist() == [pytest.approx(2**0.5), 0.0]  # sqrt(((1-2)^2 + (3-2)^2) / 1)
    assert (g.completions.tolist(), g.prompts.tolist()) == ([2, 1], [1, 1])
    assert g.silent.tolist() == [False, False]  # one score alone is no group of equal ones


def test_signal_splits_silent_groups_by_score():
    r = scores([1, 1], [0, 0], [0, 1], [0.5, 0.5])
    s = figures.signal(r)
    assert (s.step.tolist(), s.groups.tolist()) == ([1], [4])
    assert (s.zero.tolist(), s.right.tolist(), s.wrong.tolist()) == ([0.75], [0.25], [0.25])


@pytest.mark.parametrize(("score", "right", "wrong"), [(0.0, 0.0, 1.0), (1.0, 1.0, 0.0), (-1.0, 0.0, 1.0)])
def test_signal_of_a_run_with_one_score(score, right, wrong):
    s = figures.signal(scores([score] * 2, [score] * 2))
    assert (s.right.tolist(), s.wrong.tolist()) == ([right], [wrong])


def test_signal_asks_the_verifier_first():
    right, wrong = {"success": 1.0}, {"success": 0.0}
    r = sample(
        (1, 0, 0.5, right), (1, 0, 0.5, right), (1, 1, 0.5, wrong), (1, 1, 0.5, wrong), (1, 2, 0, {}), (1, 2, 1, {})
    )
    s = figures.signal(r)
    assert (s.right[0], s.wrong[0]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_held_out_groups_give_no_signal():
    r = sample((1, 0, 0.0, {"held_out": True}), (1, 0, 0.0, {"held_out": True}))
    assert len(figures.signal(r).step) == 0


def test_within_correlation_ignores_differences_between_groups():
    # centred x: -1 0 1 -1 0 1; centred y: -1 1 0 -1 1 0: sum xy = 2, sum xx = 4, sum yy = 4: r = 1/2, d = 6 - 2 - 1 = 3
    x, y = np.array([1.0, 2, 3, 101, 102, 103]), np.array([0.0, 2, 1, 50, 52, 51])
    found = figures.within_correlation(x, y, np.array([0, 0, 0, 1, 1, 1]))
    assert (found.r, found.rows, found.groups) == (pytest.approx(0.5), 6, 2)
    assert found.p == pytest.approx(0.391, abs=5e-4)  # t = 0.5 sqrt(3 / 0.75) = 1 with 3 degrees of freedom
    assert found.low == pytest.approx(-0.6840, abs=1e-4)  # tanh(0.5493 - 1.96 / sqrt 2) = tanh(-0.8366)
    assert found.high == pytest.approx(0.9591, abs=1e-4)  # tanh(1.9352)


def test_within_correlation_needs_variation_within_groups():
    x = np.array([1.0, 1.0, 2.0, 2.0])
    found = figures.within_correlation(x, np.array([0.0, 1.0, 0.0, 1.0]), np.array([0, 0, 1, 1]))
    assert np.isnan(found.r) and found.groups == 0


def test_permutation_p_of_two_groups_of_two():
    # each group's y is swapped or not: of the four equally likely results two have |sum| as large: p = 1/2
    x = y = np.array([0.0, 1.0, 0.0, 1.0])
    p = figures.permutation_p(x, y, np.array([0, 0, 1, 1]), draws=999)
    assert p == pytest.approx(0.5, abs=0.06)


def with_components(*rows):
    return sample(*((1, g, score, {"components": c}) for g, score, c in rows))


def test_variance_shares_of_a_sum():
    # f' = -1/2 1/2, g' = 1/4 -1/4, s' = -1/4 1/4: shares (1/8 + 1/8) / (1/8) = 2 and -1
    r = with_components((0, 0.5, {"f": 0.0, "g": 0.5}), (0, 1.0, {"f": 1.0, "g": 0.0}))
    assert figures.variance_shares(r) == {"f": pytest.approx(2.0), "g": pytest.approx(-1.0)}


def test_variance_shares_find_weights():
    # score = f + g / 10, two groups: f' and g' orthogonal
    rows = [(0, f + g / 10, {"f": f, "g": g}) for f in (0.0, 1.0) for g in (0.0, 1.0)]
    found = figures.variance_shares(with_components(*rows))
    assert found == {"f": pytest.approx(1 / 1.01), "g": pytest.approx(0.01 / 1.01)}


def test_variance_shares_of_equal_scores():
    assert figures.variance_shares(with_components((0, 1.0, {"f": 1.0}), (0, 1.0, {"f": 1.0}))) == {}


def test_icc():
    group = np.array([0, 0, 1, 1])
    assert figures.icc(np.array([0.0, 0.0, 1.0, 1.0]), group) == 1.0
    assert figures.icc(np.array([0.0, 1.0, 0.0, 1.0]), group) == -1.0  # B = 0, W = 1/2, k = 2: (0 - 1/2) / (0 + 1/2)
    # means 1/2 and 5/2, B = 4, W = (1/2 + 1/2) / 2 = 1/2: (4 - 1/2) / (4 + 1/2)
    assert figures.icc(np.array([0.0, 1.0, 2.0, 3.0]), group) == pytest.approx(3.5 / 4.5)
    assert np.isnan(figures.icc(np.array([1.0, 1.0, 1.0, 1.0]), group))


def test_contradictions():
    same, other = {"completion": "x"}, {"completion": "y"}
    r = sample((1, 0, 1.0, same), (1, 0, 0.0, same), (1, 0, 0.5, same), (1, 0, 1.0, other), (1, 1, 0.0, same))
    found = figures.contradictions(r)
    assert (found.pairs, found.repeated) == ([(1, 0)], 1)


def advantages(*rows):
    return sample(*((1, g, score, {"advantage": a}) for g, score, a in rows))


def test_credit_of_a_baseline():
    found = figures.credit(advantages((0, 1, 1.0), (0, 0, -1.0), (1, 1, 1.0), (1, 0, -1.0), (2, 1, 0.0), (2, 1, 0.0)))
    assert (found.groups, found.off_centre, found.positive) == (3, 0.0, 0.0)
    assert (found.residues, found.largest) == ([], 0.0)


def test_credit_without_a_baseline():
    found = figures.credit(advantages((0, 1, 1.0), (0, 0, 0.0), (1, 1, 1.0), (1, 0, 0.0)))
    assert (found.off_centre, found.positive) == (1.0, 1.0)


def test_residues_of_equal_scores():
    found = figures.credit(advantages((0, 1, 0.0006), (0, 1, -0.0006), (1, 1, 0.7), (1, 0, -0.7)))
    assert (found.residues, found.largest) == ([0], 0.0006)


def test_the_sign_of_credit():
    rows = [(g, s, -a) for g in range(3) for s, a in ((0, -1.0), (1, 1.0), (0.5, 0.0))]
    assert figures.credit(advantages(*rows)).correlation.r == pytest.approx(-1.0)


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


def test_references_by_score():
    rows = [(0, 0, "is 5", "5"), (0, 0, "is 6", "5"), (1, 1, "is 7", "7"), (1, 1, "is 7 or 5", "7")]
    found = figures.references_by_score(answered(*rows))
    assert (found.score.tolist(), found.rows.tolist(), found.share.tolist()) == ([0, 1], [2, 2], [0.5, 1.0])
    assert found.chance.tolist() == [0.0, 0.5]  # the only other reference is 7 for the first two, 5 for the last two
    assert found.low[1] == pytest.approx(2 / (2 + 3.8415), abs=1e-4)  # Wilson at 2 of 2: n / (n + z^2)


def test_references_without_any():
    assert len(figures.references_by_score(scores([0, 1]))) == 0


def test_matches_of_rows():
    r = answered((0, 0, "5 then 6", "5"), (0, 0, "", "5"), (0, 0, "5", None))
    assert np.array_equal(figures.reference_match(r), [1, 0, NAN], equal_nan=True)
    assert np.array_equal(figures.final_match(r), [0, NAN, NAN], equal_nan=True)


def test_rewards_joined_to_the_next_row_show_at_shift_one():
    rng = np.random.default_rng(0)
    answers = rng.integers(100, size=60)
    said = np.where(rng.random(60) < 0.5, np.roll(answers, -1), 1000 + answers)  # half answer the next row's question
    rows = [(i, float(said[i] == np.roll(answers, -1)[i]), f"= {said[i]}", str(answers[i])) for i in range(60)]
    found = figures.neighbours(answered(*rows), "group")
    assert found[1].r > 0.9
    assert all(not abs(found[s].r) > 0.5 for s in (-3, -2, -1, 0, 2, 3))


def test_majority_against_references():
    rows = (
        [(0, 0, "5", "6")] * 3 + [(0, 0, "6", "6")] + [(1, 1, "8", "8")] * 4 + [(2, 0, str(i), "9") for i in range(4)]
    )
    found = figures.majority(answered(*rows))
    assert (found.prompts, found.agreed, found.against, found.rows) == (3, 2, 1, [0])


# ---------------------------------------------------------------- texts
@pytest.mark.parametrize(
    ("text", "flag"),
    [("so 4 +", True), ("and the", True), ("it is 4", False), ("(as we", True), ("<think> hm", True), ("", False),
     ("<think> hm </think> 4", False), (r"\boxed{4", True), ("a, b,", True), ("done.", False), ("```py\nx", True)],
)  # fmt: skip
def test_unfinished(text, flag):
    assert figures.unfinished([text]).tolist() == [flag]


@pytest.mark.parametrize(
    ("text", "flag"),
    [("4\nuser\nWhat", True), ("4\nHuman: more", True), ("Question: 3\nQuestion: 4", True), ("4", False),
     (r"\boxed{4} \boxed{5}", True), ("blah blah blah blah", True), ("12=12, 12+3", False),
     ("How many apples are left? 4", True), ("the user\nasked", False)],
)  # fmt: skip
def test_goes_on(text, flag):
    r = sample((1, 0, 0.0, {"prompt": "How many apples are left?", "completion": text}))
    assert figures.goes_on(r).tolist() == [flag]


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
    assert figures.markup([text]).tolist() == [flag]


def test_shape():
    rows = [("4 +", 1.0), ("4", 0.0), ("  ", NAN), ("4\nuser\n5", 1.0)]
    r = sample(*((1, 0, 0.0, {"completion": c, "truncated": t}) for c, t in rows))
    s = figures.shape(r)
    assert (s.rows, s.empty, s.unfinished, s.goes_on, s.markup) == (4, 0.25, 0.25, 0.25, 0.0)
    assert (s.unfinished_cut, s.unfinished_whole) == (0.5, 0.0)


def test_repeated_prompts():
    rows = [(1, 0, "a"), (1, 0, "a"), (1, 1, "A "), (1, 2, "b"), (2, 3, "a"), (2, 4, "c")]
    r = sample(*((step, g, 0.0, {"prompt": p}) for step, g, p in rows))
    found = figures.repeated_prompts(r)
    assert (found.groups, found.prompts, found.within) == (5, 3, 0.4)
    assert found.steps_each == pytest.approx(4 / 3)  # a in two steps, b and c in one


def test_overlap():
    rows = [("Two  words", False), ("other", False), ("two words", True), ("new", True)]
    r = sample(*((1, i, 0.0, {"prompt": p, "held_out": h}) for i, (p, h) in enumerate(rows)))
    found = figures.overlap(r)
    assert (found.held_out, found.shared, found.rows) == (2, 1, [(2, 0)])


def test_distinct_share():
    texts = ["x", "x", "x", "y", "z", "z"]
    r = sample(*((1 + i // 4, i // 2, 0.0, {"completion": c}) for i, c in enumerate(texts)))
    found = figures.distinct_share(r)
    assert {step: shares.tolist() for step, shares in found.items()} == {1: [0.5, 1.0], 2: [0.5]}
