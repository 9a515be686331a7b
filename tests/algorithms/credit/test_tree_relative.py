"""Credit within the tree and over the prompt's trees."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import strategies
from tests.algorithms.credit.compositions import tree_relative_credit

from gxpo.algorithms.credit import GroupRelative, Relative
from gxpo.algorithms.objectives import PolicyGradient
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import PolicyTokens


def planted(seed: int, trees: int = 3) -> Forest:
    """A random forest with forks whose trajectories are given trees, some of them none."""
    forest = strategies.random_forest(seed, groups=3, rollouts=6, unscored=False)
    rng = random.Random(seed)
    labels = [rng.choice([*range(trees), None]) for _ in forest.group]
    labels[0] = 0
    return forest.replace(info=[{} if label is None else {"tree": label} for label in labels])


def loop(forest: Forest, compare: str) -> list[float]:
    """The credit of each trajectory, over dictionaries."""
    R = forest.outcome.tolist()

    def z(values: list[float], keys: list) -> list[float]:
        members = defaultdict(list)
        for r, key in enumerate(keys):
            if forest.compared[r] and key is not None:
                members[key].append(values[r])
        out = []
        for r, key in enumerate(keys):
            among = members.get(key, [])
            if len(among) < 2 or max(among) - min(among) <= 1e-12 * max(map(abs, among)):
                out.append(0.0)
                continue
            mean = math.fsum(among) / len(among)
            std = math.sqrt(math.fsum((x - mean) ** 2 for x in among) / (len(among) - 1))
            out.append((values[r] - mean) / (std + 1e-6))
        return out

    trees = [(g, i["tree"]) if "tree" in i else None for g, i in zip(forest.group, forest.info, strict=True)]
    over = z(R, forest.group)
    within = z(R, trees)
    return [a + b for a, b in zip(over, within, strict=True)] if compare == "both" else within


def test_the_card(grow):
    # z over the prompt of [1, 0, 1, 1]: mean 3/4, std 1/2: 0.25 / 0.500001 = 0.499999, -0.75 / 0.500001 = -1.499997
    # z within the first tree [1, 0]: mean 1/2, std 0.7071068: 0.5 / 0.7071078 = 0.7071058; the second is equal: 0
    forest = grow([("g", r, [1], {"info": {"tree": t}}) for r, t in ((1.0, 0), (0.0, 0), (1.0, 1), (1.0, 1))])
    both = tree_relative_credit()(forest, {}, 0)
    assert both.tolist() == pytest.approx([1.2071048, -2.2071028, 0.499999, 0.499999], abs=1e-6)
    within = Relative(group_by=("info.tree",))(forest, {}, 0)
    assert within.tolist() == pytest.approx([0.7071058, -0.7071058, 0, 0], abs=1e-6) and within[2] == 0


@given(st.integers(0, 10**6), st.sampled_from(["both", "tree"]))
def test_it_agrees_with_a_loop(seed, compare):
    forest = planted(seed)
    credit = tree_relative_credit(compare=compare)(forest, {}, 0)
    expected = loop(forest, compare)
    assert credit.tolist() == pytest.approx([expected[r] for r in forest.path_trajectory.tolist()], abs=1e-9)


@given(st.integers(0, 10**6))
def test_trees_of_one_give_grpo_and_one_tree_gives_twice_grpo(seed):
    forest = strategies.random_forest(seed, groups=2, rollouts=5, unscored=False)
    grpo = GroupRelative()(forest, {}, 0)
    forest_of_trees = forest.replace(info=[{"tree": r} for r in range(forest.n_trajectories)])
    assert torch.equal(tree_relative_credit()(forest_of_trees, {}, 0), grpo)
    together = forest.replace(info=[{"tree": "t"}] * forest.n_trajectories)
    assert torch.allclose(tree_relative_credit()(together, {}, 0), 2 * grpo, rtol=0, atol=1e-12)
    assert torch.equal(tree_relative_credit(compare="tree")(together, {}, 0), grpo)


@given(st.integers(0, 10**6), st.floats(-5, 5))
def test_order_and_a_shift_of_the_outcome_do_not_matter(seed, shift):
    forest = planted(seed)
    credit = tree_relative_credit()(forest, {}, 0)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(
        tree_relative_credit()(forest.select(order), {}, 0), credit[forest.entries_of(order)], atol=1e-12
    )
    moved = tree_relative_credit()(forest.replace(outcome=forest.outcome + shift), {}, 0)
    assert torch.allclose(moved, credit, atol=1e-4)


def test_a_shared_token_has_the_advantage_of_each_leaf():
    fork = {"of": "a", "turn": 0, "token": 2}
    root = {"prompt": [1]}
    rows = [("a", 1.0, [2, 3, 4], root, 0), ("b", 0.0, [5], {"fork": fork}, 0), ("c", 0.0, [6], root, 1)]
    forest = Forest.from_records(
        {
            "schema": "gxpo.rollouts/1",
            "group": "g",
            "id": name,
            "reward": reward,
            "turns": [{"action": action, "logprob": [-1.0] * len(action)}],
            "info": {"tree": number},
            **where,
        }
        for name, reward, action, where, number in rows
    )
    credit = tree_relative_credit()(forest, {}, 0)
    stored = torch.full((forest.n_tokens,), -1.0, dtype=torch.float64, requires_grad=True)
    x = stored[forest.path_token]
    weight = torch.ones(forest.n_entries, dtype=torch.float64)
    policy = PolicyTokens(x, forest.path_behaviour_logprob)
    (gradient,) = torch.autograd.grad(PolicyGradient()(forest, policy, credit, weight, {}, 0)[0], stored)
    # three trajectories; a and b have three tokens, c one: d loss / d logprob = -sum over its leaves of A / (3 length)
    # z over the prompt: (2/3) / .57735 = 1.154699, -.577349; within a's and b's tree +-.707106
    a, b, c = 1.1546985 + 0.7071058, -0.5773493 - 0.7071058, -0.5773493
    by_token = {2: (a + b) / 9, 3: (a + b) / 9, 4: a / 9, 5: b / 9, 6: c / 3}
    for token, g in zip(forest.token.tolist(), gradient.tolist(), strict=True):
        assert g == pytest.approx(-by_token.get(token, 0.0), abs=1e-6)


def test_refusals():
    forest = Forest.from_completions([[1]], [[[2], [3]]], [0.0, 1.0])
    with pytest.raises(GxpoError, match=r"info\.tree, which no trajectory has.*rollout=tree"):
        tree_relative_credit()(forest, {}, 0)
    with pytest.raises(ConfigError, match=r"^credit\.weight=nested"):  # z within the tree of z over the prompt
        tree_relative_credit(compare="nested")
    assert tree_relative_credit().requires == ("forks",)


def test_a_step_may_have_one_tree():
    """Outcomes 1 and 0: population std .5, so .5 / (.5 + .5), in the group and in the tree."""
    info = {"info": {"tree": 0}}
    record = {"schema": "gxpo.rollouts/1", "group": "g", "turns": [{"action": [3]}], **info}
    forest = Forest.from_records([{**record, "id": str(r), "reward": r} for r in (1.0, 0.0)])
    assert tree_relative_credit(ddof=0, eps=0.5)(forest, {}, 0).tolist() == [1.0, -1.0]
    text = r"^credit\.group_by is info\.tree, which no trajectory has: use rollout=tree$"
    with pytest.raises(GxpoError, match=text):
        tree_relative_credit()(Forest.from_records([{**record, "id": "x", "reward": 1.0, "info": {}}]), {}, 0)
