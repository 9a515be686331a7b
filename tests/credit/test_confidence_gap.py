"""ProGRPO's bonus: the card's numbers, the loop, what it is added to."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.credit import GroupRelative
from gxpo.credit.confidence_gap import ConfidenceGap, confidence_gap
from gxpo.credit.likelihood import mean_of_lowest
from gxpo.errors import ConfigError, MissingSignal
from gxpo.forest import Forest
from gxpo.signals import Signals


def forest_of(rows):
    """(group, reward, log-probs, fields of the record)"""
    records = []
    for i, (group, reward, logprobs, fields) in enumerate(rows):
        turn = {"action": [3] * len(logprobs), "logprob": list(logprobs)}
        record = {"schema": "gxpo.rollouts/1", "group": group, "id": f"t{i}", "prompt": [1, 2], "turns": [turn]}
        records.append(record | {"reward": reward} | fields)
    return Forest.from_records(records)


def signals_of(forest, prompt):
    given = {"prompt_confidence": torch.tensor(prompt, dtype=torch.float64)}
    return Signals.of(forest, given, {"prompt_confidence": "R"})


def test_the_cards_numbers():
    # A = 1.732051 -.577350 x3 (population std); .3 (.6 - [.9 .5 .4 .7]) = -.09 .03 .06 -.03
    rows = [("g", r, [math.log(c)] * 3, {}) for r, c in zip((1.0, 0, 0, 0), (0.9, 0.5, 0.4, 0.7), strict=True)]
    forest = forest_of(rows)
    both = GroupRelative(ddof=0, eps=0.0) + ConfidenceGap()
    found = both(forest, signals_of(forest, [0.6] * 4), 0)[::3]
    assert found.tolist() == pytest.approx([1.642051, -0.547350, -0.517350, -0.607350], abs=1e-6)
    assert both.on_equal == "signal" and both.needs == ("prompt_confidence",)


def test_an_answers_confidence_is_that_of_its_least_probable_fifth():
    """Ten tokens: the two lowest, -3 and -2, mean -2.5; four tokens: one, -2; a share of 1: all."""
    x = torch.tensor([-0.1] * 4 + [-3.0] + [-0.1] * 4 + [-2.0] + [-0.5, -2.0, -1.0, -0.5], dtype=torch.float64)
    owner = torch.tensor([0] * 10 + [2] * 4)
    assert mean_of_lowest(x, owner, 3, 0.2).tolist() == pytest.approx([-2.5, 0.0, -2.0])
    assert mean_of_lowest(x, owner, 3).tolist() == pytest.approx([-0.58, 0.0, -1.0])


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([None, 0.0, 1.0]),
        st.lists(st.floats(-5, 0), min_size=1, max_size=7),
        st.booleans(),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, alpha=st.floats(-1, 1), share=st.sampled_from([0.2, 0.5, 1.0]))
def test_it_equals_a_loop(rows, alpha, share):
    forest = forest_of([(g, r, lp, {"compared": c, "success": r if r is None else r > 0}) for g, r, lp, c, _ in rows])
    m = gxpo.method("progrpo", {"credit.scale": "none", "credit.add.confidence_gap.alpha": alpha,
                                "credit.add.confidence_gap.share": share})  # fmt: skip
    found = m.advantages(forest, {"prompt_confidence": torch.tensor([q for *_, q in rows], dtype=torch.float64)})
    for i, (g, r, logprobs, _, q) in enumerate(rows):
        peers = [s for h, s, _, c, _ in rows if h == g and c and s is not None]
        expected = 0.0
        if r is not None:
            k = math.ceil(share * len(logprobs) - 1e-9)
            own = math.exp(sum(sorted(logprobs)[:k]) / k)
            expected = r - sum(peers) / len(peers) if peers else 0.0
            expected += alpha * (q - own) if any(p > 0 for p in peers) else 0.0
        assert found[forest.path_of(i)].tolist() == pytest.approx([expected] * len(logprobs), abs=1e-9)


def test_all_wrong_groups_have_none_and_all_right_ones_learn():
    forest = forest_of([(g, r, [-1.0], {}) for g, r in (("a", 0.0), ("a", 0.0), ("b", 1.0), ("b", 1.0))])
    found = gxpo.method("progrpo").advantages(forest, {"prompt_confidence": torch.full((4,), 0.5)})
    assert found.tolist() == pytest.approx([0, 0] + [0.3 * (0.5 - math.exp(-1))] * 2)


def test_a_verdict_goes_before_the_outcome_and_surer_answers_get_less():
    c = torch.linspace(0.1, 0.9, 5)
    everyone, group = torch.ones(5).bool(), torch.zeros(5).long()
    found = confidence_gap(torch.full((5,), 0.5), c, group, everyone, everyone)
    assert bool((found.diff() < 0).all()) and float(found[2]) == pytest.approx(0.0)
    wrong = forest_of([("a", 1.0, [-1.0], {"success": False}), ("a", 0.5, [-2.0], {"success": False})])
    assert ConfidenceGap()(wrong, signals_of(wrong, [0.5, 0.5]), 0).tolist() == [0.0, 0.0]


def test_what_is_unknown_is_refused():
    forest = forest_of([("a", 1.0, [-1.0, None], {}), ("a", 0.0, [-1.0, -1.0], {})])
    with pytest.raises(MissingSignal, match="nan for 1 of 4"):
        ConfidenceGap()(forest, signals_of(forest, [0.5, 0.5]), 0)
    with pytest.raises(ConfigError, match="share of confidence_gap"):
        ConfidenceGap(share=0.0)
    with pytest.raises(ConfigError, match="drops"):  # groups that are all right would not reach it
        gxpo.method("progrpo+dapo")


def test_the_share_of_tokens_is_not_rounded_up_and_the_last_may_have_none():
    x = torch.tensor([-1.0] * 15 + [0.0] * 10)  # .6 * 25 = 15, in float32 a little more
    assert mean_of_lowest(x, torch.zeros(25).long(), 3, 0.6).tolist() == [-1.0, 0.0, 0.0]
