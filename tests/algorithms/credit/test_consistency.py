"""COPO: credit between groups where attempts agree, inside them where they do not."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import advantage
from gxpo.algorithms.credit.consistency import answer_disagreement, between_groups, blended, consistency_blended
from gxpo.base.errors import ConfigError

ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.4, 1.0]), st.booleans(), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


def test_the_cards_numbers():
    h = torch.tensor([0.0, math.log(4), math.log(8)], dtype=torch.float64)
    w = blended(torch.ones(3), torch.zeros(3), h).tolist()
    assert w[0] == pytest.approx(9.4e-14, rel=0.01) and w[1:] == pytest.approx([0.093290, 0.999991], abs=1e-6)


def normal(x, peers, own, scale):
    """As GRPO: 0 where there is nothing to compare."""
    mean = sum(peers) / len(peers) if peers else 0.0
    equal = not peers or max(peers) - min(peers) <= 1e-12 * max(map(abs, peers))
    if scale == "none":
        return 0.0 if not peers or (equal and own) else x - mean
    std = math.sqrt(sum((q - mean) ** 2 for q in peers) / (len(peers) - 1)) if len(peers) > 1 else 0.0
    return 0.0 if equal else (x - mean) / (std + 1e-6)


@given(
    ROWS,
    st.sampled_from(["std", "none"]),
    st.sampled_from([(20.0, 1.5), (3.0, 0.6)]),
    st.sampled_from(["bits", "nats"]),
    st.sampled_from(["blend", "between"]),
)
def test_it_equals_a_loop(grow, rows, scale, constants, unit, failures):
    steepness, middle = constants
    log = math.log2 if unit == "bits" else math.log
    forest = grow([(g, r, [1], {"compared": c}) for g, r, c, _ in rows])
    group = forest.ids("group", axis="R")
    cluster = 4 * group + torch.tensor([k for *_, k in rows])
    means = {}
    for g in dict.fromkeys(g for g, *_ in rows):
        peers = [r for h, r, c, _ in rows if h == g and c]
        if peers:
            means[g] = sum(peers) / len(peers)
    expected = []
    for g, r, own, _ in rows:
        peers = [q for h, q, c, _ in rows if h == g and c]
        said = [k for h, _, c, k in rows if h == g and c]
        p = [said.count(k) / len(said) for k in set(said)]
        w = 1 / (1 + math.exp(-steepness * (-sum(x * log(x) for x in p) - middle)))
        if failures == "between" and r == 0:
            w = 0.0
        between = normal(means[g], list(means.values()), True, scale) if g in means else 0.0
        expected.append(w * normal(r, peers, own, scale) + (1 - w) * between)
    part = advantage(consistency_blended, steepness=steepness, middle=middle, unit=unit, failures=failures, scale=scale)
    assert part(forest, {"answer_cluster": cluster}, 0).tolist() == pytest.approx(expected, abs=1e-9)


@given(ROWS)
def test_groups_count_once_each_and_their_credit_sums_to_nothing(rows):
    group = torch.tensor([ord(g) - ord("a") for g, *_ in rows])
    outcome = torch.tensor([r for _, r, *_ in rows], dtype=torch.float64)
    found = between_groups(outcome, group)
    each = [float(found[group == g][0]) for g in set(group.tolist())]
    assert sum(each) == pytest.approx(0.0, abs=1e-9)
    for g in set(group.tolist()):
        assert len(set(found[group == g].tolist())) == 1
    bare = between_groups(outcome, group, scale="none")
    assert torch.allclose(between_groups(2 * outcome + 3, group, scale="none"), 2 * bare)


def test_agreeing_groups_are_measured_against_each_other(grow):
    """All wrong alike, all right alike: -1 / sqrt 2 and 1 / sqrt 2 (means 0 and 1, std .707107)."""
    forest = grow([("a", 0.0, [1])] * 3 + [("b", 1.0, [1])] * 2)
    found = advantage(consistency_blended)(forest, {"answer_cluster": torch.tensor([0, 0, 0, 1, 1])}, 0)
    assert found.tolist() == pytest.approx([-0.707106] * 3 + [0.707106] * 2, abs=1e-5)


def test_one_group_that_agrees_and_groups_of_one_mean_have_no_credit(grow):
    same = torch.tensor([0, 0, 1, 1])
    alone = grow([("a", 1.0, [1])] * 4)
    assert advantage(consistency_blended)(alone, {"answer_cluster": torch.zeros(4).long()}, 0).tolist() == [0.0] * 4
    equal = grow([("a", 0.1, [1])] * 2 + [("b", 0.1, [1])] * 2)
    assert advantage(consistency_blended)(equal, {"answer_cluster": same}, 0).tolist() == [0.0] * 4


def test_disagreement_by_hand():
    # 2, 1, 1 of four: 1.5 log 2 = 1.039721; who is not compared has no say
    compared = torch.tensor([True] * 4 + [False])
    found = answer_disagreement(torch.tensor([0, 0, 1, 2, 1]), torch.zeros(5).long(), compared)
    assert found.tolist() == pytest.approx([1.039721] * 5, abs=1e-6)
    assert answer_disagreement(torch.tensor([-1, -1]), torch.zeros(2).long()).tolist() == [0.0, 0.0]


def test_the_method():
    m = gxpo.method("copo+dr_grpo")
    assert m.credit == advantage(consistency_blended, scale="none") and m.needs == () and "answer_clusters" in m.signals
    with pytest.raises(ConfigError, match="drops"):
        gxpo.method("copo+dapo")
    with pytest.raises(ConfigError, match=r"credit\.scale"):
        advantage(consistency_blended, scale="mad")  # type: ignore[arg-type]  # that is what is tested
    for wrong in ({"unit": "dits"}, {"failures": "drop"}):
        with pytest.raises(ConfigError, match=r"credit\."):
            advantage(consistency_blended, **wrong)
