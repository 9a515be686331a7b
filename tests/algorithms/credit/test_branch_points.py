"""Changes of value between the branch points of a tree."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies

from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.credit.branch_points import stretches_of
from gxpo.algorithms.credit.value_delta import ValueDelta
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

BRANCH = partial(ValueDelta, "branch_points")


def tree(*rows, group: str = "g") -> list[dict]:
    """(id, outcome, how many tokens of its own, (base, kept) or None) each, as records."""
    return [
        {
            "schema": "gxpo.rollouts/1",
            "group": group,
            "id": name,
            "reward": reward,
            "turns": [{"action": [2 + (i + n) % 7 for i in range(n)]}],
            **({"prompt": [1]} if fork is None else {"fork": {"of": fork[0], "turn": 0, "token": fork[1]}}),
        }
        for name, reward, n, fork in rows
    ]


def own(forest: Forest, credit: torch.Tensor) -> list[list[float]]:
    return [credit[forest.path_of(r)].tolist() for r in range(forest.n_trajectories)]


def loop(forest: Forest, part: ValueDelta) -> list[float]:
    """Points of each trajectory as keys in a list, over dictionaries."""
    R = range(forest.n_trajectories)
    way = {r: [int(forest.path_token[p]) for p in forest.path_of(r).tolist()] for r in R}
    nodes = {r: [int(forest.token_node[t]) for t in way[r]] for r in R}
    through = defaultdict(set)
    for r in R:
        for node in nodes[r]:
            through[forest.group[r], node] |= {r} if forest.compared[r] else set()
    points: dict[int, list[tuple[int, object]]] = {}  # (tokens before it, its key)
    for r in R:
        g = forest.group[r]
        points[r] = [(0, (g, None if part.branch_key == "node" else 0))] if way[r] else []
        for i in range(1, len(way[r])):
            a, b = nodes[r][i - 1], nodes[r][i]
            if a != b and len(through[g, a]) != len(through[g, b]):
                points[r].append((i, (g, a if part.branch_key == "node" else i)))
    members = defaultdict(list)
    passed = {}
    for r in R:
        g = forest.group[r]
        passed[r] = {key for _, key in points[r]}
        if part.branch_key == "node":
            passed[r] |= {(g, None)} | {(g, node) for node in nodes[r]}
        for key in passed[r] if forest.compared[r] else ():
            members[key].append(float(forest.outcome[r]))
    value = {key: math.fsum(actual) / len(actual) for key, actual in members.items()}
    credit = {}
    for r in R:
        line: list[float] = []
        for i, (begin, key) in enumerate(points[r]):
            last = i + 1 == len(points[r])
            end = len(way[r]) if last else points[r][i + 1][0]
            then = float(forest.outcome[r]) if last else value.get(points[r][i + 1][1])
            gain = then - value[key] if key in value and then is not None else 0.0
            same = abs(gain) <= 1e-12 * max(abs(then or 0.0), abs(value.get(key, 0.0)))
            line += [0.0 if same else gain] * (end - begin)
        credit[r] = line
    if part.length_power:
        for g in set(forest.group):
            right = [r for r in R if forest.group[r] == g and forest.outcome[r] > 0 and way[r]]
            measure = [r for r in right if forest.compared[r]]
            if not measure:
                continue
            best = min(measure, key=lambda r: (len(way[r]), r))
            for b in set(right) - {best}:
                c = max(begin for begin, key in points[b] if key in passed[best])
                if len(way[b]) <= c:
                    continue
                factor = 1 - (max(len(way[best]) - c, 0) / (len(way[b]) - c)) ** part.length_power
                credit[b][c:] = [a - max(factor, 0) * abs(a) for a in credit[b][c:]]
    return [x for r in R for x in credit[r]]


# rollouts 1 and 2 leave rollout 0 after 4 and 7 tokens; lengths 10, 12, 9
CARD = [("0", 1.0, 10, None), ("1", 0.0, 8, ("0", 4)), ("2", 1.0, 2, ("0", 7))]


def test_the_card():
    # V(0) = V(4) = 2/3, V(7) = 1
    forest = Forest.from_records(tree(*CARD))
    actual = own(forest, BRANCH()(forest, {}, 0))
    third = pytest.approx(1 / 3)
    assert actual[0] == [0.0] * 4 + [third] * 3 + [0.0] * 3
    assert actual[1] == [0.0] * 4 + [pytest.approx(-2 / 3)] * 8
    assert actual[2] == [0.0] * 4 + [third] * 3 + [0.0] * 2
    assert BRANCH(branch_key="position")(forest, {}, 0).tolist() == BRANCH()(forest, {}, 0).tolist()


def test_the_card_with_the_length_penalty():
    # the shortest right one is 2, of 9 tokens; 0 shares 7 with it: 1 - (9 - 7) / (10 - 7) = 1/3 of nothing is lost
    forest = Forest.from_records(tree(*CARD))
    assert BRANCH(length_power=1.0)(forest, {}, 0).tolist() == BRANCH()(forest, {}, 0).tolist()
    # where what follows is worth something: 0 has outcome 2, V(0) = V(4) = 1, V(7) = 1.5, and its rest .5
    forest = Forest.from_records(tree(("0", 2.0, 10, None), *CARD[1:]))
    plain, less = (own(forest, BRANCH(length_power=p)(forest, {}, 0)) for p in (0.0, 1.0))
    assert plain[0] == pytest.approx([0.0] * 4 + [0.5] * 3 + [0.5] * 3)
    assert less[0] == pytest.approx([0.0] * 4 + [0.5] * 3 + [1 / 3] * 3) and less[1:] == plain[1:]
    # a negative credit is pushed further down: 0 has outcome .5, V(7) = .75, and its rest -.25
    forest = Forest.from_records(tree(("0", 0.5, 10, None), *CARD[1:]))
    assert own(forest, BRANCH(length_power=1.0)(forest, {}, 0))[0][7:] == pytest.approx([-1 / 3] * 3)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from(["node", "position"]), st.sampled_from([0.0, 1.0, 0.4]))
def test_it_agrees_with_a_loop(seed, keyed_by, power):
    forest = strategies.random_forest(seed, groups=3, rollouts=6, unscored=False)
    part = BRANCH(branch_key=keyed_by, length_power=power)
    assert part(forest, {}, 0).tolist() == pytest.approx(loop(forest, part), abs=1e-9)


@given(st.integers(0, 10**6), st.sampled_from(["node", "position"]))
def test_advantages_of_an_answer_telescope_to_its_outcome(seed, keyed_by):
    options = {"empty_actions": False, "uncompared": keyed_by == "node"}
    forest = strategies.random_forest(seed, groups=2, rollouts=6, unscored=False, **options)
    credit = BRANCH(branch_key=keyed_by)(forest, {}, 0)
    _, row = stretches_of(forest, keyed_by)
    for r in range(forest.n_trajectories):
        total = sum(float(credit[(row == i).nonzero()[0, 0]]) for i in set(row[forest.path_of(r)].tolist()))
        members = [
            float(x)
            for x, g, c in zip(forest.outcome, forest.group, forest.compared, strict=True)
            if g == forest.group[r] and c
        ]
        if members:
            assert total == pytest.approx(float(forest.outcome[r]) - sum(members) / len(members), abs=1e-9)


@given(st.integers(0, 10**6))
def test_without_forks_it_is_the_distance_from_the_mean(seed):
    forest = strategies.random_forest(seed, forks=False, unscored=False, empty_actions=False).flatten()
    plain = GroupRelative(scale="none")(forest, {}, 0)
    actual = BRANCH()(forest, {}, 0)
    assert torch.allclose(actual, plain, rtol=0, atol=1e-9)


@given(st.integers(0, 10**6), st.sampled_from([0.0, 1.0]))
def test_order_does_not_matter(seed, power):
    forest = strategies.random_forest(seed, groups=2, rollouts=6, unscored=False)
    # no two of a length: of equally short ones the first is the measure
    lengths = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories).tolist()
    part = BRANCH(length_power=power if len(set(lengths)) == len(lengths) else 0.0)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    credit = part(forest, {}, 0)
    assert torch.allclose(part(forest.select(order), {}, 0), credit[forest.entries_of(order)], atol=1e-9)


def test_equal_outcomes_and_answers_alone_have_nothing():
    for rows in ([(n, 0.1, k, f) for n, _, k, f in CARD], CARD[:1]):
        forest = Forest.from_records(tree(*rows))
        assert BRANCH(length_power=1.0)(forest, {}, 0).tolist() == [0.0] * forest.n_entries


def test_a_cut_that_no_branch_is_left_of_is_no_point():
    forest = Forest.from_records(tree(CARD[0], ("c", 0.0, 5, None)))
    cut = Forest.from_records(tree(CARD[0], CARD[1], ("c", 0.0, 5, None))).select([0, 2])
    assert cut.n_nodes > forest.n_nodes
    assert torch.equal(BRANCH()(cut, {}, 0), BRANCH()(forest, {}, 0))


# ---------------------------------------------------------------- errata
def test_points_at_equal_positions_are_not_pooled():
    """ROSE's code keys values by position. Two answers, each left after 2 tokens: values 1 and 0 there, not 1/2."""
    rows = [("a", 1.0, 4, None), ("b", 1.0, 2, ("a", 2)), ("c", 0.0, 5, None), ("d", 0.0, 3, ("c", 2))]
    forest = Forest.from_records(tree(*rows))
    by_node, by_position = (own(forest, BRANCH(branch_key=k)(forest, {}, 0)) for k in ("node", "position"))
    assert by_node == [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [-0.5, -0.5, 0, 0, 0], [-0.5, -0.5, 0, 0, 0]]
    assert by_position == [[0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5], [0, 0, -0.5, -0.5, -0.5], [0, 0, -0.5, -0.5, -0.5]]


def test_a_negative_outcome_is_not_right():
    """ROSE's code takes every outcome but 0 for right: a short wrong answer of -1 would be the measure of length."""
    rows = [("a", 1.0, 4, None), ("b", 1.0, 8, None), ("c", -1.0, 1, None)]
    forest = Forest.from_records(tree(*rows))
    # mean 1/3; a is the shortest right one; b loses 1 - 4/8 of 2/3
    actual = own(forest, BRANCH(length_power=1.0)(forest, {}, 0))
    assert actual == [pytest.approx([2 / 3] * 4), pytest.approx([1 / 3] * 8), pytest.approx([-4 / 3])]


def test_refusals():
    with pytest.raises(ConfigError, match=r"credit.length_power is -1"):
        BRANCH(length_power=-1)
