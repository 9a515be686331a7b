"""Advantages by the likeness of answers: COPO's blend and DRA-GRPO's shared rewards."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import advantage
from gxpo.algorithms.credit.consistency import (
    DiversityAdjusted,
    answer_disagreement,
    between_groups,
    blended,
    consistency_blended,
    diversity_adjusted,
)
from gxpo.base.errors import ConfigError

ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.4, 1.0]), st.booleans(), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


def test_copo_gives_the_cards_numbers():
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
def test_copo_equals_a_loop(grow, rows, scale, constants, unit, failures):
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
    for g, r, own_value, _ in rows:
        peers = [q for h, q, c, _ in rows if h == g and c]
        text = [k for h, _, c, k in rows if h == g and c]
        p = [text.count(k) / len(text) for k in set(text)]
        w = 1 / (1 + math.exp(-steepness * (-sum(x * log(x) for x in p) - middle)))
        if failures == "between" and r == 0:
            w = 0.0
        between = normal(means[g], list(means.values()), True, scale) if g in means else 0.0
        expected.append(w * normal(r, peers, own_value, scale) + (1 - w) * between)
    part = advantage(
        consistency_blended, steepness=steepness, midpoint=middle, unit=unit, failures=failures, scale=scale
    )
    assert part(forest, {"answer_cluster": cluster}, 0).tolist() == pytest.approx(expected, abs=1e-9)


@given(ROWS)
def test_groups_count_once_each_and_their_credit_sums_to_nothing(rows):
    group = torch.tensor([ord(g) - ord("a") for g, *_ in rows])
    outcome = torch.tensor([r for _, r, *_ in rows], dtype=torch.float64)
    actual = between_groups(outcome, group)
    each = [float(actual[group == g][0]) for g in set(group.tolist())]
    assert sum(each) == pytest.approx(0.0, abs=1e-9)
    for g in set(group.tolist()):
        assert len(set(actual[group == g].tolist())) == 1
    bare = between_groups(outcome, group, scale="none")
    assert torch.allclose(between_groups(2 * outcome + 3, group, scale="none"), 2 * bare)


def test_agreeing_groups_are_measured_against_each_other(grow):
    """All wrong alike, all right alike: -1 / sqrt 2 and 1 / sqrt 2 (means 0 and 1, std .707107)."""
    forest = grow([("a", 0.0, [1])] * 3 + [("b", 1.0, [1])] * 2)
    actual = advantage(consistency_blended)(forest, {"answer_cluster": torch.tensor([0, 0, 0, 1, 1])}, 0)
    assert actual.tolist() == pytest.approx([-0.707106] * 3 + [0.707106] * 2, abs=1e-5)


def test_agreeing_groups_of_one_mean_have_no_advantage(grow):
    same = torch.tensor([0, 0, 1, 1])
    forest = grow([("a", 1.0, [1])] * 4)
    assert advantage(consistency_blended)(forest, {"answer_cluster": torch.zeros(4).long()}, 0).tolist() == [0.0] * 4
    equal = grow([("a", 0.1, [1])] * 2 + [("b", 0.1, [1])] * 2)
    assert advantage(consistency_blended)(equal, {"answer_cluster": same}, 0).tolist() == [0.0] * 4


def test_disagreement_by_hand():
    # 2, 1, 1 of four: 1.5 log 2 = 1.039721; who is not compared has no say
    compared = torch.tensor([True] * 4 + [False])
    actual = answer_disagreement(torch.tensor([0, 0, 1, 2, 1]), torch.zeros(5).long(), compared)
    assert actual.tolist() == pytest.approx([1.039721] * 5, abs=1e-6)
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


DIVERSE_ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([-1.0, 0.0, 1.0]),
        st.booleans(),
        st.sampled_from([(1.0, 0.0), (0.0, 2.0), (1.0, 1.0), (-1.0, 0.5), (0.0, 0.0)]),
    ),
    min_size=1,
    max_size=9,
)


def test_diversity_gives_the_cards_numbers():
    e = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    actual = diversity_adjusted(torch.ones(3), e, torch.zeros(3).long())
    assert actual.tolist() == pytest.approx([0.5, 0.5, 1], abs=2e-6)


def cosine(x, y):
    lengths = math.hypot(*x) * math.hypot(*y)
    return sum(a * b for a, b in zip(x, y, strict=True)) / lengths if lengths else 0.0


@given(DIVERSE_ROWS, st.sampled_from(["std", "none"]))
def test_diversity_equals_a_loop(grow, rows, scale):
    forest = grow([(g, r, [1], {"compared": c}) for g, r, c, _ in rows])
    shared = []
    for i, (g, r, _, x) in enumerate(rows):
        alike = 1.0 if any(x) else 0.0  # itself; a zero vector is not even like itself
        alike += sum(cosine(x, y) for j, (h, _, c, y) in enumerate(rows) if h == g and c and j != i)
        shared.append(r / (max(1.0, alike) + 1e-6))
    expected = []
    for (g, *_), r in zip(rows, shared, strict=True):
        peers = [q for (h, _, c, _), q in zip(rows, shared, strict=True) if h == g and c]
        own_row = rows[len(expected)][2]
        mean = sum(peers) / len(peers) if peers else 0.0
        equal = not peers or max(peers) - min(peers) <= 1e-12 * max(map(abs, peers))
        if scale == "none":
            expected.append(0.0 if not peers or (equal and own_row) else r - mean)
            continue
        std = math.sqrt(sum((q - mean) ** 2 for q in peers) / (len(peers) - 1)) if len(peers) > 1 else 0.0
        expected.append(0.0 if equal else (r - mean) / (std + 1e-6))
    e = torch.tensor([x for *_, x in rows], dtype=torch.float64)
    assert DiversityAdjusted(scale=scale)(forest, {"embedding": e}, 0).tolist() == pytest.approx(expected, abs=1e-9)


@given(DIVERSE_ROWS)
def test_a_share_is_between_all_of_it_and_a_gth(rows):
    group = torch.tensor([ord(g) - ord("a") for g, *_ in rows])
    outcome = torch.tensor([r for _, r, *_ in rows], dtype=torch.float64)
    e = torch.tensor([x for *_, x in rows], dtype=torch.float64)
    actual = diversity_adjusted(outcome, e, group, eps=0.0)
    sizes = torch.tensor([sum(h == g for h, *_ in rows) for g, *_ in rows])
    assert bool((actual.abs() <= outcome.abs() + 1e-12).all() and (actual.abs() >= outcome.abs() / sizes - 1e-12).all())
    assert bool((actual.sign() == outcome.sign()).all())
    longer = diversity_adjusted(outcome, e * torch.arange(1, len(rows) + 1)[:, None], group, eps=0.0)
    assert torch.allclose(longer, actual, atol=1e-12)


def test_all_right_groups_learn_from_unlike_answers(grow):
    e = torch.tensor([[1.0, 0], [1, 0], [0, 1]] * 2)
    right, wrong = [("a", 1.0, [1])] * 3, [("b", 0.0, [1])] * 3
    credit = DiversityAdjusted()(grow(right + wrong), {"embedding": e}, 0)
    assert float(credit[2]) > 0 > float(credit[0]) == float(credit[1]) and credit[3:].tolist() == [0.0] * 3
    assert float(credit.sum()) == pytest.approx(0.0, abs=1e-12)


def test_equally_alike_attempts_are_grpo(grow):
    forest = grow([("a", r, [1]) for r in (1.0, 0.0, 0.0)])
    grpo = gxpo.method("grpo", {"credit.eps": 0.0}).advantages(forest).tolist()
    for e in (torch.ones(3, 2), torch.eye(3)):
        part = gxpo.method("dra_grpo", {"credit.eps": 0.0})
        assert part.advantages(forest, {"embedding": e}).tolist() == pytest.approx(grpo, abs=1e-9)


def test_diversity_composes_with_dr_grpo():
    m = gxpo.method("dra_grpo+dr_grpo")
    assert m.credit == DiversityAdjusted(scale="none") and m.needs == ()
    for wrong in ({"center": "mode"}, {"scale": "mad"}):
        with pytest.raises(ConfigError, match=r"credit\."):
            DiversityAdjusted(**wrong)
    with pytest.raises(ConfigError, match="drops"):
        gxpo.method("dra_grpo+dapo")


def test_without_peers_the_outcome_is_kept():
    e, group = torch.ones(3, 2), torch.tensor([0, 0, -1])
    assert diversity_adjusted(torch.ones(3), e, group, eps=0.0).tolist() == pytest.approx([0.5, 0.5, 1.0])
    nobody = torch.zeros(3, dtype=torch.bool)
    assert diversity_adjusted(torch.ones(3), e, group, nobody, eps=0.0).tolist() == [1, 1, 1]
    none = torch.zeros(0)
    assert diversity_adjusted(none, torch.zeros(0, 2), none.long()).shape == (0,)
