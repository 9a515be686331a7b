"""DRA-GRPO: rewards divided among attempts that say the same."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit.consistency import DiversityAdjusted, diversity_adjusted
from gxpo.base.errors import ConfigError

ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([-1.0, 0.0, 1.0]),
        st.booleans(),
        st.sampled_from([(1.0, 0.0), (0.0, 2.0), (1.0, 1.0), (-1.0, 0.5), (0.0, 0.0)]),
    ),
    min_size=1,
    max_size=9,
)


def test_the_cards_numbers():
    e = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    found = diversity_adjusted(torch.ones(3), e, torch.zeros(3).long())
    assert found.tolist() == pytest.approx([0.5, 0.5, 1], abs=2e-6)


def cosine(x, y):
    lengths = math.hypot(*x) * math.hypot(*y)
    return sum(a * b for a, b in zip(x, y, strict=True)) / lengths if lengths else 0.0


@given(ROWS, st.sampled_from(["std", "none"]))
def test_it_equals_a_loop(grow, rows, scale):
    forest = grow([(g, r, [1], {"compared": c}) for g, r, c, _ in rows])
    shared = []
    for i, (g, r, _, x) in enumerate(rows):
        alike = 1.0 if any(x) else 0.0  # itself; a zero vector is not even like itself
        alike += sum(cosine(x, y) for j, (h, _, c, y) in enumerate(rows) if h == g and c and j != i)
        shared.append(r / (max(1.0, alike) + 1e-6))
    expected = []
    for (g, *_), r in zip(rows, shared, strict=True):
        peers = [q for (h, _, c, _), q in zip(rows, shared, strict=True) if h == g and c]
        own = rows[len(expected)][2]
        mean = sum(peers) / len(peers) if peers else 0.0
        equal = not peers or max(peers) - min(peers) <= 1e-12 * max(map(abs, peers))
        if scale == "none":
            expected.append(0.0 if not peers or (equal and own) else r - mean)
            continue
        std = math.sqrt(sum((q - mean) ** 2 for q in peers) / (len(peers) - 1)) if len(peers) > 1 else 0.0
        expected.append(0.0 if equal else (r - mean) / (std + 1e-6))
    e = torch.tensor([x for *_, x in rows], dtype=torch.float64)
    assert DiversityAdjusted(scale=scale)(forest, {"embedding": e}, 0).tolist() == pytest.approx(expected, abs=1e-9)


@given(ROWS)
def test_a_share_is_between_all_of_it_and_a_gth(rows):
    group = torch.tensor([ord(g) - ord("a") for g, *_ in rows])
    outcome = torch.tensor([r for _, r, *_ in rows], dtype=torch.float64)
    e = torch.tensor([x for *_, x in rows], dtype=torch.float64)
    found = diversity_adjusted(outcome, e, group, eps=0.0)
    sizes = torch.tensor([sum(h == g for h, *_ in rows) for g, *_ in rows])
    assert bool((found.abs() <= outcome.abs() + 1e-12).all() and (found.abs() >= outcome.abs() / sizes - 1e-12).all())
    assert bool((found.sign() == outcome.sign()).all())
    longer = diversity_adjusted(outcome, e * torch.arange(1, len(rows) + 1)[:, None], group, eps=0.0)
    assert torch.allclose(longer, found, atol=1e-12)


def test_all_right_groups_learn_from_who_is_unlike_the_others_and_all_zero_ones_do_not(grow):
    e = torch.tensor([[1.0, 0], [1, 0], [0, 1]] * 2)
    right, wrong = [("a", 1.0, [1])] * 3, [("b", 0.0, [1])] * 3
    credit = DiversityAdjusted()(grow(right + wrong), {"embedding": e}, 0)
    assert float(credit[2]) > 0 > float(credit[0]) == float(credit[1]) and credit[3:].tolist() == [0.0] * 3
    assert float(credit.sum()) == pytest.approx(0.0, abs=1e-12)


def test_attempts_alike_to_one_another_and_attempts_unlike_all_are_grpo(grow):
    forest = grow([("a", r, [1]) for r in (1.0, 0.0, 0.0)])
    grpo = gxpo.method("grpo", {"credit.eps": 0.0}).advantages(forest).tolist()
    for e in (torch.ones(3, 2), torch.eye(3)):
        part = gxpo.method("dra_grpo", {"credit.eps": 0.0})
        assert part.advantages(forest, {"embedding": e}).tolist() == pytest.approx(grpo, abs=1e-9)


def test_it_composes_with_dr_grpo_and_refuses_what_it_does_not_know():
    m = gxpo.method("dra_grpo+dr_grpo")
    assert m.credit == DiversityAdjusted(scale="none") and m.needs == ()
    for wrong in ({"center": "mode"}, {"scale": "mad"}):
        with pytest.raises(ConfigError, match=r"credit\."):
            DiversityAdjusted(**wrong)
    with pytest.raises(ConfigError, match="drops"):
        gxpo.method("dra_grpo+dapo")


def test_whoever_is_in_no_group_or_beside_nobody_who_counts_keeps_the_outcome():
    e, group = torch.ones(3, 2), torch.tensor([0, 0, -1])
    assert diversity_adjusted(torch.ones(3), e, group, eps=0.0).tolist() == pytest.approx([0.5, 0.5, 1.0])
    nobody = torch.zeros(3, dtype=torch.bool)
    assert diversity_adjusted(torch.ones(3), e, group, nobody, eps=0.0).tolist() == [1, 1, 1]
    none = torch.zeros(0)
    assert diversity_adjusted(none, torch.zeros(0, 2), none.long()).shape == (0,)
