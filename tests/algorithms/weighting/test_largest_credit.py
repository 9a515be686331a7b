"""CPPO: the card's numbers, a loop, who competes, what it reduces to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import forest_of, group_of, part_of, weighted

import gxpo
from gxpo.algorithms.weighting.token_curves import largest, largest_size
from gxpo.base.errors import ConfigError


def largest_credit_weight(**options):
    return part_of("cppo", "largest_credit", **options)


A = torch.tensor([1, -1, 0.2, -0.2, 0.577, 0.577, 0.577, -1.732], dtype=torch.float64)
G = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


@pytest.mark.parametrize(("scope", "kept"), [("batch", [0, 1, 4, 7]), ("group", [0, 1, 4, 7])])
def test_card(scope: str, kept: list[int]) -> None:
    found = largest_size(A, G if scope == "group" else 0 * G, G >= 0)
    assert found.tolist() == [2.0 if i in kept else 0.0 for i in range(8)]


def test_scopes_differ_where_a_group_has_little() -> None:
    a = torch.tensor([0.0, 0.0, 0.1, 0.1, 1.0, -1.0, 2.0, -2.0])
    assert largest_size(a, 0 * G, G >= 0).tolist() == [0, 0, 0, 0, 2, 2, 2, 2]
    assert largest_size(a, G, G >= 0).tolist() == [0, 0, 2, 2, 0, 0, 2, 2]


ROWS = st.lists(
    st.tuples(st.integers(-1, 2), st.sampled_from([-1.5, -0.5, 0.0, 0.5, 1.0]), st.booleans()), min_size=1, max_size=12
)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.sampled_from([0.0, 0.3, 0.5, 0.875]), st.sampled_from(["group", "batch"]))
def test_equals_a_loop(rows, prune, scope):
    unit = [g if scope == "group" else 0 for g, _, _ in rows]
    wanted = []
    for i, (_, a, counts) in enumerate(rows):
        peers = [j for j, (_, _, c) in enumerate(rows) if c and unit[j] == unit[i] and unit[i] >= 0]
        if not peers:
            wanted.append(1.0)
            continue
        k = max(1, int(len(peers) * (1 - prune) + 1e-9))
        best = sorted(peers, key=lambda j: (-abs(rows[j][1]), j))[:k]
        stays = i in best if counts else abs(a) >= min(abs(rows[j][1]) for j in best)
        wanted.append(len(peers) / k if stays else 0.0)
    group, credit = torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows], dtype=torch.float64)
    unit = group if scope == "group" else 0 * group
    found = largest_size(credit, unit, torch.tensor([r[2] for r in rows]), prune=prune)
    assert found.tolist() == pytest.approx(wanted)


def test_of_equals_the_earlier_and_order_otherwise_does_not_matter() -> None:
    one = torch.zeros(3, dtype=torch.int64)
    assert largest(torch.ones(3), one, one + 2, one == 0).tolist() == [True, True, False]
    order = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    distinct = torch.linspace(0.1, 1, 8)
    assert torch.equal(largest_size(distinct, G, G >= 0)[order], largest_size(distinct[order], G[order], G >= 0))


def test_of_scores_that_differ_by_rounding_the_earlier_is_kept() -> None:
    score, one = torch.tensor([0.3, 0.1 + 0.2, 0.1], dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    assert largest(score, one, one + 1, one == 0).tolist() == [True, False, False]
    assert largest(score, one, one + 1, torch.tensor([False, True, True])).tolist() == [True, True, False]


def test_the_loss_is_that_of_the_kept_ones_alone() -> None:
    """Rewards .9 .6 .5 0 about their mean .5: the second and third have the least."""
    forest = forest_of(group_of(0.9, 0.6, 0.5, 0.0))
    m = gxpo.method("cppo", {"credit.scale": "none"})
    logprob = torch.tensor([-1.1, -1.0, -0.8, -0.9], dtype=torch.float64, requires_grad=True)
    loss = m.loss(forest, gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob)).value
    (slope,) = torch.autograd.grad(loss, logprob)
    rho = [2.718281828459045**x for x in (-0.1, 0.1)]
    assert float(loss.detach()) == pytest.approx((-0.4 * rho[0] + 0.5 * rho[1]) / 2)
    assert slope.tolist() == pytest.approx([-0.4 * rho[0] / 2, 0, 0, 0.5 * rho[1] / 2])
    credit = m.advantages(forest)
    assert m.active(forest, credit, m.token_weights(forest, credit)).tolist() == [True, False, False, True]


def test_nothing_pruned_is_the_base_and_a_group_of_one_stays() -> None:
    rows = group_of(1, 0, 0) + group_of(1, name="b")
    assert weighted("cppo", forest_of(rows), {"weight.largest_credit.prune": 0.0}) == weighted("grpo", forest_of(rows))
    assert largest_size(torch.tensor([0.3]), torch.tensor([0]), torch.tensor([True]), prune=0.9).tolist() == [1.0]


def test_bad_options() -> None:
    for bad in ({"prune": 1.0}, {"prune": -0.1}, {"scope": "step"}):
        with pytest.raises(ConfigError, match="largest_credit"):
            largest_credit_weight(**bad)
