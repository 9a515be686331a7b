"""Verdicts in sentences, of one setting and of several."""

from __future__ import annotations

import dataclasses

from tests.compare.made import make_comparison, undecided

from gxpo.compare.sentences import differences_of_arms, over_settings, verdict


def test_several_undecided_arms_are_one_sentence() -> None:
    text = "no arm can be told from grpo: n too small to say"
    assert (
        verdict(undecided({"rloo": 140, "dr_grpo": 40}))[0] == f"{text}; about 40 seeds would for dr_grpo, 140 for rloo"
    )
    assert verdict(undecided({"rloo": None, "dr_grpo": None}))[0] == text
    assert verdict(undecided({"rloo": 141, "dr_grpo": 141}))[0] == f"{text}; about 150 seeds would"
    known_text = "about 40 seeds would for dr_grpo; no number of seeds is known for rloo"
    assert verdict(undecided({"rloo": None, "dr_grpo": 40}))[0] == f"{text}; {known_text}"
    assert verdict(undecided({"rloo": 140}))[0] == "rloo: not told from grpo"
    assert verdict(undecided({}))[0] == "nothing is compared: there is no arm beside the base"


def test_controls_get_no_verdict() -> None:
    assert [d.arm for d in differences_of_arms(make_comparison())] == ["rloo", "dr_grpo"]


def test_settings_without_a_common_measure_are_counted_alone() -> None:
    less = dataclasses.replace(make_comparison(), measure="eval_length", better="less")
    by_arm = {a.arm: a for a in over_settings([make_comparison(), less])}
    assert by_arm["dr_grpo"].difference is None and by_arm["dr_grpo"].verdict == "undecided"
    assert by_arm["dr_grpo"].sentences == ["dr_grpo is better than grpo in 2 of 2 settings"]
