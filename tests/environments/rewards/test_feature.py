"""Bonus for a feature: fixed or by contrast, for right answers alone, until a share is right."""

from __future__ import annotations

import math

import pytest
import torch

import gxpo
from gxpo.algorithms.credit import group_relative
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.environments.rewards.feature import Feature, _gap_sign
from gxpo.forest.forest import Forest


def said(*rows: tuple[str, str, bool], tokens: int = 1) -> Forest:
    """Rows (group, text, right)."""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": group, "id": str(i), "prompt": [1],
             "turns": [{"action": [2] * tokens, "action_text": text}], "reward": float(right), "success": right}
            for i, (group, text, right) in enumerate(rows)
        ]
    )  # fmt: skip


def group_of(pairs):
    return said(*(("a", "so <aux>AB</aux>" if has else "so", right) for has, right in pairs))


# ---------------------------------------------------------------- contrast
def test_the_numbers_of_gcpo():
    # with a construction 1 of 2 right, without 2 of 2: -.5 for those that construct
    forest = group_of([(True, True), (False, True), (False, True), (True, False)])
    assert gxpo.method("gcpo_geometry").shaped(forest).outcome.tolist() == [0.5, 1, 1, -0.5]


def test_the_sign_of_the_gap():
    pairs = [(True, 1), (True, 1), (True, 0), (False, 0), (False, 0), (False, 1)]  # 2/3 against 1/3
    having, right = (torch.tensor(x, dtype=torch.bool) for x in zip(*pairs, strict=True))
    group, every = torch.zeros(6).long(), torch.ones(6, dtype=torch.bool)
    assert _gap_sign(having, right, group, every).tolist() == [1.0] * 6
    assert _gap_sign(~having, right, group, every).tolist() == [-1.0] * 6
    for eps, sign in ((0.3, 1.0), (1 / 3, 0.0), (0.5, 0.0)):
        assert _gap_sign(having, right, group, every, eps).tolist() == [sign] * 6
    assert _gap_sign(every, right, group, every).tolist() == [0.0] * 6  # none without it


# ---------------------------------------------------------------- FAPO
def with_flaw(right, flaw):
    forest = said(*(("a", "x", bool(r)) for r in right))
    flaws = torch.tensor(flaw, dtype=torch.float64)
    return forest.with_rewards(forest.outcome, components={"flaw": flaws}, success=forest.success)


def test_the_numbers_of_fapo():
    # two sound, two flawed, four wrong: rewards 1 1 0 0 -1 -1 -1 -1, mean -.25, std .886405
    forest = gxpo.method("fapo").shaped(with_flaw([1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0]))
    assert forest.outcome.tolist() == [1, 1, 0, 0, -1, -1, -1, -1]
    credit = group_relative(forest.outcome, torch.zeros(8).long())
    assert credit[[0, 2, 4]].tolist() == pytest.approx([1.410189, 0.282038, -0.846113], abs=1e-5)
    # five sound, two flawed, one wrong: the flawed are below the mean
    later = gxpo.method("fapo").shaped(with_flaw([1, 1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 1, 1, 0, 0, 0])).outcome
    credit = group_relative(later, torch.zeros(8).long())
    assert credit[[0, 3, 7]].tolist() == pytest.approx([0.661437, -0.661437, -1.984311], abs=1e-5)


def test_a_flaw_that_is_not_known_counts_where_it_would_be_paid():
    outcome = gxpo.method("fapo").shaped(with_flaw([1, 1, 0], [math.nan, 0, math.nan])).outcome
    assert outcome[0].isnan() and outcome[1:].tolist() == [1, -1]


def test_until_a_share_is_right():
    forest = with_flaw([1, 1, 0, 0], [1, 0, 0, 0])
    for until, paid in ((0.5, -1.0), (0.49, 0.0)):
        part = Feature("component", coef=-1.0, answers="correct", max_success=until)
        assert part(forest).tolist() == [paid, 0, 0, 0]


# ---------------------------------------------------------------- texts
def test_ton_accepts_an_empty_thought():
    texts = [
        "<think>\n\n</think><answer>2</answer>",
        "<think>1+1\n=2</think>\n<answer>2</answer>",
        "<answer>2</answer>",
        "so <think></think><answer>2</answer>",
    ]
    outcome = gxpo.method("ton").shaped(said(*(("a", text, False) for text in texts))).outcome
    assert outcome.tolist() == [1, 1, 0, 0]


def test_the_numbers_of_rlsp():
    # 1[right] - 1000 / tokens, all with a box; without one .5 less
    m = gxpo.method("rlsp")
    for tokens, right, reward in (
        (100, True, -9),
        (500, True, -1),
        (1000, True, 0),
        (2000, True, 0.5),
        (4000, False, -0.25),
    ):
        assert m.shaped(said(("a", r"so \boxed{4}", right), tokens=tokens)).outcome.tolist() == [reward]
    assert m.shaped(said(("a", "so 4", True), tokens=1000)).outcome.tolist() == [-0.5]


def test_what_reads_texts_says_so_and_needs_them():
    assert Feature("matches").reads_texts and not Feature("component").reads_texts
    bare = Forest.from_completions([[1]], [[[2], [3]]], [[1.0, 0.0]])
    with pytest.raises(GxpoError, match="matches reads the text of actions"):
        Feature("matches")(bare)
    with pytest.raises(ConfigError, match="pattern '\\('"):
        Feature("matches", options={"pattern": "("})
    with pytest.raises(ConfigError, match="unknown function 'match'; did you mean 'matches'"):
        Feature("match")


@pytest.mark.filterwarnings("ignore:reward")
def test_feature_reward_reads_the_texts_of_a_run(tmp_path):
    keys = {"tasks.per_step": 2, "sampling.max_new_tokens": 4, "eval.tasks": 2, "reward.add.digit": "feature",
            "reward.add.digit.pattern": "[0-9]"}  # fmt: skip
    run = gxpo.train("tiny:cold", "arithmetic", "grpo", 1, out=tmp_path / "run", set=keys)
    assert 0 < run.metrics[0]["reward_digit"] < 1  # some of four random characters are digits
