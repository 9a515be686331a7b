"""Scores against all tokens of the group: ProRAG's and CAPO's worked numbers, loops, reductions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import penalised_steps_credit, token_normalised_credit
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit import GroupRelative, Relative
from gxpo.algorithms.credit.values import penalised_outcome
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

Grow = Callable[..., Forest]
F64 = torch.float64


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


# ---------------------------------------------------------------- cards
def test_prorag_card(grow: Grow) -> None:
    """R = [1, 0], scores [.8, .8, .4] and [.2, .6], a token each."""
    forest = grow([("g", 1.0, [1, 1, 1]), ("g", 0.0, [1, 1])])
    found = gxpo.method("prorag").advantages(forest, {"segment_score": column(0.8, 0.8, 0.4, 0.2, 0.6)})
    wanted = [1.221503, 1.221503, 0.364010, -1.478750, -0.621258]
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)


def test_capo_card(grow: Grow) -> None:
    """A right attempt of 3 steps of 2 tokens, the last wrong: R = [2, 2, 2, 2, 1, 1]; a wrong one of 2 steps, the last
    wrong: [0, 0, -1, -1]."""
    forest = grow([("g", 1.0, [2, 2, 2]), ("g", 0.0, [2, 2])])
    score = column(1, 1, 1, 1, 0, 0, 1, 1, 0, 0)
    found = gxpo.method("capo_genprm").advantages(forest, {"segment_score": score})
    wanted = [1.028991] * 4 + [0.171498] * 2 + [-0.685994] * 2 + [-1.543486] * 2
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)


def test_votes_of_four_critiques() -> None:
    """The share that finds nothing wrong: nobody, one of four, two, three, all; and nobody could be read."""
    share = column(0, 0.25, 0.5, 0.75, 1, math.nan)
    for vote, wrong in (("intersection", 1), ("majority", 2), ("union", 4)):
        found = penalised_outcome(torch.ones(6), share, reward=5.0, penalty=3.0, vote=vote)
        assert found.tolist() == [2.0] * wrong + [5.0] * (6 - wrong)


# ---------------------------------------------------------------- loops
def standard(x: float, members: list[float], eps: float) -> float:
    """(x - mean) / (population std + eps); 0 where there is nothing to compare."""
    if not members or max(members) - min(members) <= 1e-12 * max(map(abs, members)):
        return 0.0
    return (x - statistics.fmean(members)) / (statistics.pstdev(members) + eps)


SCORES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, math.nan]), min_size=1, max_size=9)


@settings(max_examples=50, deadline=None)
@given(forest=forests(), scores=SCORES)
def test_both_equal_loops(forest: Forest, scores: list[float]) -> None:
    """On random forests with forks, unscored and uncompared members, tokens of other authors, unknown scores."""
    forest = forest.select(forest.scored)
    r, t = forest.path_trajectory.tolist(), forest.path_trainable.tolist()
    score = [scores[(3 * s + 1) % len(scores)] for s in forest.path_step.tolist()]
    z = token_normalised_credit(weight=0.5)(forest, {"segment_score": column(*score)}, 0).tolist()
    penalised = penalised_steps_credit(vote="majority")(forest, {"segment_score": column(*score)}, 0).tolist()
    outcome, compared = forest.outcome.tolist(), forest.compared.tolist()
    paid = [2 * outcome[r[p]] - (score[p] < 0.5) for p in range(len(r))]
    for p in range(len(r)):
        peers = [q for q in range(len(r)) if forest.group[r[q]] == forest.group[r[p]] and t[q] and compared[r[q]]]
        known = [score[q] for q in peers if not math.isnan(score[q])]
        wanted = 0.5 * standard(score[p], known, 1e-8) if t[p] and not math.isnan(score[p]) else 0.0
        assert z[p] == pytest.approx(wanted, abs=1e-6)
        wanted = standard(paid[p], [paid[q] for q in peers], 1e-6) if t[p] else 0.0
        assert penalised[p] == pytest.approx(wanted, abs=1e-6)


# ---------------------------------------------------------------- properties
@settings(max_examples=30, deadline=None)
@given(forest=forests(uncompared=False), seed=st.integers(0, 99))
def test_it_sums_to_zero_over_the_group(forest: Forest, seed: int) -> None:
    value = torch.randn(forest.n_entries, generator=torch.Generator().manual_seed(seed), dtype=F64)
    group = forest.ids("group", axis="P")
    found = Relative("noise", ddof=0)(forest, {"noise": value}, 0)
    for g in set(group.tolist()):
        assert float(found[group == g].sum()) == pytest.approx(0.0, abs=1e-9)


def test_prorag_without_its_second_part_is_grpo(grow: Grow) -> None:
    forest = grow([("g", 1.0, [2, 3]), ("g", 0.25, [1]), ("g", 0.0, [2])])
    m = gxpo.method("prorag", {"credit.add.token_normalised.weight": 0.0})
    found = m.advantages(forest, {"segment_score": torch.rand(forest.n_entries, dtype=F64)})
    assert torch.equal(found, GroupRelative(eps=1e-4)(forest, {}, 0))


def test_capo_without_penalty_is_grpo_weighted_by_length(grow: Grow) -> None:
    """Lengths 3 and 1, outcomes 1 and 0: mean .75, population std sqrt(.1875); C does not matter."""
    forest = grow([("g", 1.0, [3]), ("g", 0.0, [1])])
    score = {"segment_score": column(0, 0, 1, 0)}
    for reward in (1.0, 2.0):
        found = penalised_steps_credit(reward=reward, penalty=0.0, eps=0.0)(forest, score, 0)
        assert found.tolist() == pytest.approx([0.25 / math.sqrt(0.1875)] * 3 + [-0.75 / math.sqrt(0.1875)])


def test_equal_outcomes_and_lone_attempts_learn_from_the_steps_alone(grow: Grow) -> None:
    forest = grow([("g", 1.0, [1, 1])])
    assert penalised_steps_credit(eps=0.0)(forest, {"segment_score": column(1, 0)}, 0).tolist() == pytest.approx(
        [1.0, -1.0]
    )
    assert penalised_steps_credit()(forest, {"segment_score": column(1, 1)}, 0).tolist() == [0.0, 0.0]
    assert token_normalised_credit()(forest, {"segment_score": column(0.5, 0.5)}, 0).tolist() == [0.0, 0.0]
    assert penalised_steps_credit().learns_from_equal_groups and token_normalised_credit().learns_from_equal_groups


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="falls below a wrong one"):
        penalised_steps_credit(reward=1.0, penalty=2.0)
    with pytest.raises(ConfigError, match=r"credit\.vote"):
        penalised_steps_credit(vote="most")  # type: ignore[arg-type]
