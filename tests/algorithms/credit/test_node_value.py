"""Advantages of the nodes of a tree: TreeRL, SPO-tree and TreePO."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies

from gxpo.algorithms.credit import advantage
from gxpo.algorithms.credit.node_value import ancestor_groups, by_ancestors, node_value, visits_of
from gxpo.algorithms.credit.relative import group_relative
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import ACTION, Forest
from gxpo.parts.registry import CREDITS

NodeValue = CREDITS["node_value"]


def tree(*rows) -> Forest:
    """(id, outcome, own tokens, (base, kept) or None, group) each."""
    return Forest.from_records(
        {
            "schema": "gxpo.rollouts/1",
            "group": group[0] if group else "g",
            "id": name,
            "reward": reward,
            "turns": [{"action": action}],
            **({"prompt": [1]} if base is None else {"fork": {"of": base[0], "turn": 0, "token": base[1]}}),
        }
        for name, reward, action, base, *group in rows
    )


def loop(forest: Forest, form: str) -> list[float]:
    """Over dictionaries: leaves of every node, its parent the nearest node above with more leaves."""
    paths = {}  # trajectory -> for each of its entries, the nodes from the root to it
    for p in range(forest.n_entries):
        node = int(forest.token_node[forest.path_token[p]])
        way = [node]
        while int(forest.parent[way[0]]) >= 0:
            way.insert(0, int(forest.parent[way[0]]))
        paths[p] = way
    through = defaultdict(set)
    for p, way in paths.items():
        r = int(forest.path_trajectory[p])
        for node in way:
            through[forest.group[r], node].add(r)
    for s in range(forest.n_steps):  # actions without tokens
        r = int(forest.step_trajectory[s])
        for node in forest.path(int(forest.step_action[s])).tolist():
            through[forest.group[r], node].add(r)

    def counted(rows):
        return sorted(r for r in rows if forest.compared[r])

    def mean(rows):
        return math.fsum(float(forest.outcome[r]) for r in rows) / len(rows)

    def difference(a, b):
        return 0.0 if abs(a - b) <= 1e-12 * max(abs(a), abs(b)) else a - b

    members = {g: counted(r for r in range(forest.n_trajectories) if forest.group[r] == g) for g in forest.group}

    def local(g, way):
        """LA of the last node of the way, and the part of the way that ends above it; None at the top."""
        leaves = counted(through[g, way[-1]])
        above = [n for n in way if len(counted(through[g, n])) > len(leaves)]
        value = mean(counted(through[g, above[-1]])) if above else mean(members[g])
        return difference(mean(leaves), value), way[: way.index(above[-1]) + 1] if above else None

    def weighted(g, way):
        """n / (n - 1) GA / sqrt(leaves) of the last node of the way, and the part of the way that ends above it."""
        leaves, n = counted(through[g, way[-1]]), len(members[g])
        overall = difference(mean(leaves), mean(members[g]))
        return n / max(n - 1, 1) * overall / math.sqrt(len(leaves)), local(g, way)[1]

    out = []
    for p, way in paths.items():
        g = forest.group[int(forest.path_trajectory[p])]
        leaves = counted(through[g, way[-1]])
        if not leaves:
            out.append(0.0)
            continue
        overall = difference(mean(leaves), mean(members[g]))
        la, above = local(g, way)
        if form == "paper":
            out.append((overall + la) / math.sqrt(len(leaves)))
            continue
        local_value, above = weighted(g, way)
        before = weighted(g, above)[0] if above else 0.0
        change = local_value - before
        while abs(change) < 1e-8 and above is not None:
            above_value, further = weighted(g, above)
            change = above_value - (weighted(g, further)[0] if further else 0.0)
            above = further
        out.append(local_value + (change if abs(change) >= 1e-8 else 0.0))
    return out


CARD = [("a", 1.0, [2, 3, 4], None), ("b", 1.0, [5], ("a", 2)), ("c", 0.0, [6, 7], None)]


def test_the_card():
    # V(root) = 2/3. n1 (leaves a, b): GA = LA = 1/3, (2/3) / sqrt(2) = .471405; each leaf in it: GA = 1/3, LA = 0;
    # c: GA = LA = -2/3
    forest = tree(*CARD)
    expected = [0.471405, 0.471405, 0.333333] * 2 + [-1.333333] * 2
    assert NodeValue()(forest, {}, 0).tolist() == pytest.approx(expected, abs=1e-6)


def test_the_card_as_released():
    # leave-one-out leaves 1 - .5, 1 - .5, 0 - 1; W: n1 .5 / sqrt(2) = .353553, a and b .5, c -1, root 0
    # W + (W - W above): .707107, .5 + .146447, -2
    credit = NodeValue(form="released")(tree(*CARD), {}, 0)
    assert credit.tolist() == pytest.approx(([0.707107] * 2 + [0.646447]) * 2 + [-2.0] * 2, abs=1e-6)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(["paper", "released"]))
def test_it_agrees_with_a_loop(seed, form):
    forest = strategies.random_forest(seed, groups=3, rollouts=6, unscored=False)
    assert NodeValue(form=form)(forest, {}, 0).tolist() == pytest.approx(loop(forest, form), abs=1e-9)


@given(st.integers(0, 10**6))
def test_without_forks_it_is_twice_the_distance_from_the_mean(seed):
    forest = strategies.random_forest(seed, groups=2, rollouts=5, unscored=False, uncompared=False, forks=False)
    forest = forest.flatten()
    credit = NodeValue()(forest, {}, 0)
    for p, r in enumerate(forest.path_trajectory.tolist()):
        members = [float(x) for x, g in zip(forest.outcome, forest.group, strict=True) if g == forest.group[r]]
        assert float(credit[p]) == pytest.approx(2 * (float(forest.outcome[r]) - sum(members) / len(members)), abs=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4))
def test_local_changes_add_up_to_the_leaf_against_the_root(outcomes):
    # a, and b, c, d that leave it after 1, 2 and 3 tokens. Leaves below its nodes: 4, 3, 2, 1
    rows = [("a", outcomes[0], [2, 3, 4, 5], None)]
    rows += [(name, outcomes[k], [6], ("a", k)) for k, name in enumerate("bcd", 1)]
    credit = NodeValue()(tree(*rows), {}, 0)[:4].tolist()
    mean = lambda x: sum(x) / len(x)  # noqa: E731
    below = [outcomes, [outcomes[i] for i in (0, 2, 3)], [outcomes[i] for i in (0, 3)], outcomes[:1]]
    locals_ = [c * math.sqrt(len(b)) - (mean(b) - mean(outcomes)) for c, b in zip(credit, below, strict=True)]
    assert sum(locals_) == pytest.approx(outcomes[0] - mean(outcomes), abs=1e-9)


@given(st.integers(0, 10**6), st.sampled_from(["paper", "released"]))
def test_order_and_a_shift_of_the_outcome_do_not_matter(seed, form):
    forest = strategies.random_forest(seed, groups=2, rollouts=6, unscored=False)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    credit = NodeValue(form=form)(forest, {}, 0)
    assert torch.allclose(
        NodeValue(form=form)(forest.select(order), {}, 0), credit[forest.entries_of(order)], atol=1e-9
    )
    moved = NodeValue(form=form)(forest.replace(outcome=forest.outcome + 3.0), {}, 0)
    assert torch.allclose(moved, credit, atol=1e-9)


@pytest.mark.parametrize("form", ["paper", "released"])
def test_a_cut_that_no_branch_is_left_of_changes_nothing(form):
    full_tree = tree(("a", 1.0, [2, 3, 4], None), ("c", 0.0, [6, 7], None))
    cut = tree(("a", 1.0, [2, 3, 4], None), ("b", 0.3, [5], ("a", 1)), ("c", 0.0, [6, 7], None)).select([0, 2])
    assert cut.n_nodes > full_tree.n_nodes
    assert torch.equal(NodeValue(form=form)(cut, {}, 0), NodeValue(form=form)(full_tree, {}, 0))


@pytest.mark.parametrize("form", ["paper", "released"])
def test_nothing_to_compare_is_exactly_zero(form):
    equal = tree(("a", 0.1, [2, 3, 4], None), ("b", 0.1, [5], ("a", 2)), ("c", 0.1, [6, 7], None))
    tree_of_one = tree(("a", 1.0, [2, 3], None))
    for forest in (equal, tree_of_one):
        assert NodeValue(form=form)(forest, {}, 0).tolist() == [0.0] * forest.n_entries


def test_an_uncompared_leaf_is_measured_and_moves_nothing():
    rows = [*CARD, ("d", 0.0, [8], ("a", 1))]
    forest = tree(*rows)
    forest = forest.replace(compared=torch.tensor([True, True, True, False]))
    credit = NodeValue()(forest, {}, 0)
    assert credit[:8].tolist() == pytest.approx(NodeValue()(tree(*CARD), {}, 0).tolist(), abs=1e-12)
    assert credit[8:].tolist() == pytest.approx([0.471405, 0.0], abs=1e-6)


def test_equal_prompts_of_two_groups_are_two_trees():
    one = [("a", 1.0, [2, 3], None, "g"), ("b", 0.0, [4], ("a", 1), "g")]
    other = [("c", 5.0, [2, 3], None, "h"), ("d", 1.0, [4], ("c", 1), "h")]
    together = NodeValue()(tree(*one, *other), {}, 0)
    assert torch.equal(together, torch.cat([NodeValue()(tree(*rows), {}, 0) for rows in (one, other)]))


def test_refusals():
    with pytest.raises(ConfigError, match=r"set credit\.form=edge"):
        NodeValue(form="paper", scale="sibling_std")
    with pytest.raises(ConfigError, match=r"set credit\.value=leaf_mean"):
        NodeValue(form="released", value="child_mean")
    with pytest.raises(ConfigError, match=r"credit\.value is 'max'"):
        NodeValue(form="edge", value="max")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is 'code'"):
        NodeValue(form="code")  # type: ignore[arg-type]
    assert NodeValue.requires == ("forks",)


# ---------------------------------------------------------------- edges, and values of children
SPO_TREE = [
    ("a", 1.0, [2, 3], None), ("b", 0.0, [4], ("a", 1)), ("c", 1.0, [5, 6], None), ("d", 1.0, [7], ("c", 1)),
]  # fmt: skip


def test_spo_tree() -> None:
    # V(root) = .75; n1 (leaves 1, 0): .5, n2 (1, 1): 1; leaves .5, -.5, 0, 0
    # by the siblings' std: n1, n2 over .25: -1, 1; a, b over .5: 1, -1; c and d do not differ
    forest = tree(*SPO_TREE)
    credit = NodeValue(form="edge", value="child_mean")(forest, {}, 0)
    assert credit.tolist() == pytest.approx([-0.25, 0.5, -0.25, -0.5, 0.25, 0.0, 0.25, 0.0], abs=1e-12)
    scaled = NodeValue(form="edge", value="child_mean", scale="sibling_std")(forest, {}, 0)
    assert scaled.tolist() == pytest.approx([-1.0, 1.0, -1.0, -1.0, 1.0, 0.0, 1.0, 0.0], abs=1e-6)


def test_a_node_counts_once_however_many_leaves_it_has() -> None:
    # leaves 1, 0, 0 below n1 (b and c leave a after its first token), 1 beside it: V(root) is (1/3 + 1) / 2, or 2/4
    rows = [("a", 1.0, [2, 3], None), ("b", 0.0, [4], ("a", 1)), ("c", 0.0, [5], ("a", 1)), ("d", 1.0, [6], None)]
    forest = tree(*rows)
    by_child, by_leaf = (
        NodeValue(form="edge", value=value)(forest, {}, 0).tolist() for value in ("child_mean", "leaf_mean")
    )
    assert by_child == pytest.approx([-1 / 3, 2 / 3, -1 / 3, -1 / 3, -1 / 3, -1 / 3, 1 / 3], abs=1e-12)
    assert by_leaf == pytest.approx([-1 / 6, 2 / 3, -1 / 6, -1 / 3, -1 / 6, -1 / 3, 1 / 2], abs=1e-12)


def edge_loop(forest: Forest, value: str, scaled: bool) -> list[float]:
    """From the leaves up, over dictionaries of sets of leaves: a node is the set that goes through it."""
    out = [0.0] * forest.n_entries
    for name in set(forest.group):
        rows = [r for r in range(forest.n_trajectories) if forest.group[r] == name]
        counted = [r for r in rows if forest.compared[r]]
        ways = {r: forest.path(int(forest.last_action[r])).tolist() for r in rows}
        through = defaultdict(set)
        for r in counted:
            for node in ways[r]:
                through[node].add(r)
        children, ending = defaultdict(set), defaultdict(set)  # of each node, and of None, the root
        for r in counted:
            for above, node in zip([None, *ways[r]], ways[r], strict=False):
                children[above].add(node)
            ending[ways[r][-1]].add(r)

        def worth(node, through=through, children=children, ending=ending, counted=counted):
            leaves = counted if node is None else through[node]
            if value == "leaf_mean":
                return math.fsum(float(forest.outcome[r]) for r in sorted(leaves)) / len(leaves)
            return math.fsum(below(node)) / len(below(node))

        def below(node, children=children, ending=ending):
            ends = [float(forest.outcome[r]) for r in sorted(ending[node])] if node is not None else []
            return ends + [worth(child) for child in sorted(children[node])]

        for p in range(forest.n_entries):
            r = int(forest.path_trajectory[p])
            if r not in rows:
                continue
            node = int(forest.token_node[forest.path_token[p]])
            if not through[node]:
                continue
            way = [None, *ways[r][: ways[r].index(node) + 1]]
            above = [n for n in way[:-1] if len(counted if n is None else through[n]) > len(through[node])]
            if not above:
                continue
            change = worth(node) - worth(above[-1])
            siblings = below(above[-1])
            mean = math.fsum(siblings) / len(siblings)
            spread = math.sqrt(math.fsum((x - mean) ** 2 for x in siblings) / len(siblings))
            if abs(change) > 1e-12:
                out[p] = change / (spread + 1e-8) if scaled else change
    return out


PLAIN = {"contexts": False, "after": False, "sampled_under": False, "agents": ("agent",)}  # one way from the root


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["leaf_mean", "child_mean"]), st.booleans())
def test_edges_agree_with_a_recursion(seed, value, scaled):
    forest = strategies.random_forest(seed, groups=2, rollouts=8, unscored=False, **PLAIN)
    actual = NodeValue(form="edge", value=value, scale="sibling_std" if scaled else "none")(forest, {}, 0)
    assert actual.tolist() == pytest.approx(edge_loop(forest, value, scaled), rel=1e-6, abs=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4), st.sampled_from(["leaf_mean", "child_mean"]))
def test_edges_of_a_path_add_up_to_the_leaf_against_the_root(outcomes, value):
    # b, c, d leave a after 1, 2 and 3 of its tokens
    rows = [("a", outcomes[0], [2, 3, 4, 5], None)]
    rows += [(name, outcomes[k], [6], ("a", k)) for k, name in enumerate("bcd", 1)]
    forest = tree(*rows)
    a, b, c, d = outcomes
    root = sum(outcomes) / 4 if value == "leaf_mean" else (((a + d) / 2 + c) / 2 + b) / 2
    credit, nodes = NodeValue(form="edge", value=value)(forest, {}, 0), forest.token_node[forest.path_token]
    for r, outcome in enumerate(outcomes):
        of_node = {int(nodes[p]): float(credit[p]) for p in forest.path_of(r)}
        assert sum(of_node.values()) == pytest.approx(outcome - root, abs=1e-9)


def test_the_plain_function_counts_all_as_in_the_paper():
    # root .5; (1 - .5) twice, over the root of one leaf
    forest = tree(("a", 1.0, [2], None), ("b", 0.0, [3], None))
    actual = node_value(forest.outcome, torch.tensor([0, 0]), visits_of(forest))
    assert actual.tolist() == [1.0, -1.0]
    small = node_value(1e-9 * forest.outcome, torch.tensor([0, 0]), visits_of(forest))
    assert small.tolist() == pytest.approx([1e-9, -1e-9], rel=1e-9)  # what is rounding goes by the size of the values


# leaves 1, 0 below one step of the prompt, 1, 1 below another
ANCESTOR_CARD = [
    ("a", 1.0, [2, 3], None),
    ("b", 0.0, [4], ("a", 1)),
    ("c", 1.0, [5, 6], None),
    ("d", 1.0, [7], ("c", 1)),
]


def by_leaf(forest: Forest, **options) -> list[float]:
    visits, _ = visits_of(forest)
    group, action = forest.ids("group", axis="R"), forest.kind[forest.visits[1]] == ACTION
    return ancestor_groups(forest.outcome, group, visits, action, where=forest.compared, **options).tolist()


def test_ancestor_groups_give_the_card() -> None:
    # all: mean .75, four leaves; below the steps: means .5 and 1, two leaves each
    # a: (4 * .25 + 2 * .5) / 6; c: (4 * .25 + 0) / 6; plain: (.25 + .5) / 2, .125; c's step dropped: 4 * .25 / 4
    forest = tree(*ANCESTOR_CARD)
    assert by_leaf(forest) == pytest.approx([1 / 3, -2 / 3, 1 / 6, 1 / 6], abs=1e-12)
    assert by_leaf(forest, weight="equal") == pytest.approx([0.375, -0.625, 0.125, 0.125], abs=1e-12)
    assert by_leaf(forest, drop_equal=True) == pytest.approx([1 / 3, -2 / 3, 0.25, 0.25], abs=1e-12)


def ancestor_loop(forest: Forest, weight: str, drop_equal: bool) -> list[float]:
    """Over sets of leaves: those below each action on the way, each set once, and all of the prompt."""
    below = defaultdict(set)
    for s in range(forest.n_steps):
        r = int(forest.step_trajectory[s])
        for node in forest.path(int(forest.step_action[s])).tolist():
            if forest.kind[node] == ACTION:
                below[forest.group[r], node].add(r)
    out = []
    for r in range(forest.n_trajectories):
        g = forest.group[r]
        everybody = frozenset(q for q in range(forest.n_trajectories) if forest.group[q] == g)
        sets = {
            frozenset(q for q in own_value if forest.compared[q])
            for (h, _), own_value in below.items()
            if h == g and r in own_value
        }
        sets.add(frozenset(q for q in everybody if forest.compared[q]))
        top = bottom = 0.0
        for leaves in sets:
            outcomes = [float(forest.outcome[q]) for q in sorted(leaves)]
            others = leaves - {r}
            equal = not outcomes or max(outcomes) == min(outcomes)
            if not others or (drop_equal and equal):
                continue
            w = len(leaves) if weight == "size" else 1
            top += w * (float(forest.outcome[r]) - statistics.fmean(outcomes))
            bottom += w
        out.append(top / bottom if bottom else 0.0)
    return out


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["size", "equal"]), st.booleans())
def test_ancestor_groups_agree_with_a_loop(seed: int, weight: str, drop_equal: bool) -> None:
    forest = strategies.random_forest(seed, groups=2, rollouts=7, unscored=False, **PLAIN)
    forest = forest.replace(outcome=forest.outcome.round())
    expected = ancestor_loop(forest, weight, drop_equal)
    assert by_leaf(forest, weight=weight, drop_equal=drop_equal) == pytest.approx(expected, abs=1e-12)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    moved = by_leaf(forest.select(order), weight=weight, drop_equal=drop_equal)
    assert moved == pytest.approx([expected[i] for i in order.tolist()], abs=1e-12)
    shifted = by_leaf(forest.replace(outcome=forest.outcome + 2.0), weight=weight, drop_equal=drop_equal)
    assert shifted == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 10**6))
def test_without_forks_it_is_the_outcome_less_the_groups_mean(seed: int) -> None:
    forest = strategies.random_forest(seed, groups=2, rollouts=5, unscored=False, forks=False, **PLAIN)
    group = forest.ids("group", axis="R")
    expected = group_relative(forest.outcome, group, scale="none", where=forest.compared)
    assert by_leaf(forest) == pytest.approx(expected.tolist(), abs=1e-12)


def test_a_step_on_the_way_that_nobody_leaves_counts_once() -> None:
    """TreePO's code counts a depth for every segment: with a second segment before the fork, a's step of two leaves
    would count twice, (4 * .25 + 2 * .5 + 2 * .5) / 8 = .375."""
    longer = [("a", 1.0, [2, 9, 3], None), ("b", 0.0, [4], ("a", 2)), *ANCESTOR_CARD[2:]]
    cut = tree(*longer, ("e", 0.5, [8], ("a", 1))).select([0, 1, 2, 3])  # the node is cut, and no branch left
    assert by_leaf(cut) == pytest.approx([1 / 3, -2 / 3, 1 / 6, 1 / 6], abs=1e-12)


def test_a_leaf_without_peers_is_exactly_zero() -> None:
    tree_of_one = tree(("a", 1.0, [2, 3], None))
    equal = tree(*[(name, 0.1, own_value, base) for name, _, own_value, base in ANCESTOR_CARD])
    for forest in (tree_of_one, equal):
        assert by_leaf(forest) == [0.0] * forest.n_trajectories
        assert advantage(by_ancestors)(forest, {}, 0).tolist() == [0.0] * forest.n_entries


def test_the_credit_is_whitened_over_tokens_of_whole_paths() -> None:
    forest = tree(*ANCESTOR_CARD)
    own_counts = [1 / 3, -2 / 3, 1 / 6, 1 / 6]  # two tokens on each path
    over = [x for x in own_counts for _ in range(2)]
    mean, spread = statistics.fmean(over), math.sqrt(statistics.variance(over) + 1e-8)
    assert advantage(by_ancestors, whiten="none")(forest, {}, 0).tolist() == pytest.approx(over, abs=1e-12)
    assert advantage(by_ancestors)(forest, {}, 0).tolist() == pytest.approx(
        [(x - mean) / spread for x in over], abs=1e-9
    )


def test_refusals_of_ancestor_groups() -> None:
    for field in ("weight", "whiten"):
        with pytest.raises(ConfigError, match=rf"credit\.{field} is 'x'"):
            advantage(by_ancestors, **{field: "x"})
    assert advantage(by_ancestors).requires == ("forks",)
