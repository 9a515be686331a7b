"""Text statistics of rollouts, by hand: unfinished and overrun texts, markup, repeated prompts, leaks."""

import pytest

from gxpo.doctor import rollout_texts
from gxpo.doctor.rollout_texts import repeats
from gxpo.doctor.rollouts import Row, assemble


def sample(*rows):
    """Rollouts of rows (step, group, score, {more fields of Row})."""
    made_rows = [
        Row(**{"step": step, "group": g, "score": score, "prompt": f"p{g}", "completion": f"c{i}"} | more)
        for i, (step, g, score, more) in enumerate(rows)
    ]
    figures = assemble(made_rows, len(made_rows), "recorded")
    assert figures is not None
    return figures


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
    figures = rollout_texts.repeated_prompts(r)
    assert (figures.groups, figures.prompts, figures.within) == (5, 3, 0.4)
    assert figures.steps_each == pytest.approx(4 / 3)  # a in two steps, b and c in one


def test_overlap():
    rows = [("Two  words", False), ("other", False), ("two words", True), ("new", True)]
    r = sample(*((1, i, 0.0, {"prompt": p, "held_out": h}) for i, (p, h) in enumerate(rows)))
    figures = rollout_texts.overlap(r)
    assert (figures.held_out, figures.n_shared, figures.rows) == (2, 1, [(2, 0)])


def test_closed_only():
    tag, flags = rollout_texts.closed_only(["so</think>4", "<think>so</think>4", "4", "<answer>4</answer>"])
    assert (tag, flags.tolist()) == ("think", [True, False, False, False])
    assert rollout_texts.closed_only(["4"])[0] == ""
