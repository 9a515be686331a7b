"""DGPO: harder tasks weigh more, among those that have anything to teach."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import part_of
from tests.battery import battery

import gxpo
from gxpo.algorithms.weighting.group_curves import difficulty_softmax
from gxpo.base.errors import ConfigError


def difficulty_softmax_weight(**options):
    return part_of("dgpo_math", "difficulty_softmax", **options)


def test_the_cards_numbers():
    # e^-.125, e^-.25, e^-.375 = .882497 .778801 .687289, over their mean .782862
    rate, tokens = torch.tensor([0.25, 0.5, 0.75]), torch.tensor([3, 9, 5])  # sizes do not matter
    found = difficulty_softmax(rate, torch.ones(3, dtype=torch.bool), tokens)
    assert found.tolist() == pytest.approx([1.127270, 0.994812, 0.877918], abs=1e-6)


def forest_of(groups):
    """Groups of (reward, success or None, compared); lengths are the battery's."""
    made = battery(4, sizes=[len(g) for g in groups])
    rows = [row for g in groups for row in g]
    verdicts = [math.nan if s is None else float(s) for _, s, _ in rows]
    return made.replace(
        outcome=torch.tensor([r for r, _, _ in rows], dtype=torch.float64),
        success=torch.tensor(verdicts, dtype=torch.float64),
        compared=torch.tensor([c for _, _, c in rows]),
    )


MEMBER = st.tuples(st.sampled_from([0.0, 1.0, 0.2]), st.sampled_from([0, 1, None]), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(MEMBER, min_size=1, max_size=4), min_size=1, max_size=4), st.sampled_from([2.0, 0.5, 0.01]))
def test_it_equals_a_loop(groups, temperature):
    forest = forest_of(groups)
    differ, score = [], []
    for g in groups:
        peers = [(r, s) for r, s, c in g if c]
        differ.append(len({r for r, _ in peers}) > 1)
        right = [r > 0 if s is None else s == 1 for r, s in peers]
        rate = sum(right) / len(right) if right else 0.0
        score.append(-(rate or 1.0) / temperature)
    mixed = [s for s, d in zip(score, differ, strict=True) if d]
    soft = [len(mixed) * math.exp(s) / sum(map(math.exp, mixed)) if d else 1.0
            for s, d in zip(score, differ, strict=True)]  # fmt: skip
    owner = [q for q, g in enumerate(groups) for _ in g]
    tokens = forest.lengths().tolist()
    taught = sum(n for n, q in zip(tokens, owner, strict=True) if differ[q])
    factor = sum(tokens) / taught if taught else 1.0
    plain = difficulty_softmax_weight(temperature=temperature, over_differing=False)(forest, torch.ones(1), {}, 0)
    assert plain.tolist() == pytest.approx([soft[owner[r]] for r in forest.path_trajectory.tolist()], rel=1e-9)
    scaled = difficulty_softmax_weight(temperature=temperature)(forest, torch.ones(1), {}, 0)
    assert scaled.tolist() == pytest.approx((plain * factor).tolist())
    if mixed:
        assert sum(w for w, d in zip(soft, differ, strict=True) if d) == pytest.approx(len(mixed))


def test_a_group_that_always_fails_is_thought_too_hard():
    # failures of different format scores: accuracy 0 counts as 1, the least weight there is
    groups = [[(0.2, 0, True), (0.0, 0, True)], [(1.0, 1, True), (0.0, 0, True)]]
    weight = difficulty_softmax_weight(over_differing=False)(forest_of(groups), torch.ones(1), {}, 0)
    assert weight[0] < 1 < weight[-1]


def test_a_token_mean_is_over_the_tokens_of_groups_that_differ():
    m = gxpo.method("dgpo_math", {"weight.difficulty_softmax.temperature": 1e9})
    still, mixed = [(1.0, 1, True)] * 3, [(1.0, 1, True), (0.0, 0, True), (0.0, 0, True)]
    forest = forest_of([still, mixed])
    credit = m.advantages(forest)
    weight = m.token_weights(forest, credit)
    own = forest.path_trajectory >= 3
    value = float((weight * credit).sum()) / forest.n_entries
    assert value == pytest.approx(float(credit[own].mean()), rel=1e-8)
    assert float(credit[own].abs().max()) > 0 and not credit[~own].any()


def test_a_batch_without_differences_is_left_alone_and_errors():
    found = difficulty_softmax_weight()(forest_of([[(1.0, 1, True)] * 2, [(0.0, 0, True)] * 3]), torch.ones(1), {}, 0)
    assert bool((found == 1).all())
    with pytest.raises(ConfigError, match=r"difficulty_softmax\.temperature is 0"):
        difficulty_softmax_weight(temperature=0.0)
    m = gxpo.method("dgpo_math")
    assert (m.credit.scale, m.credit.eps, m.terms["policy"].aggregate) == ("mean_absolute", 1e-4, "token_mean")
