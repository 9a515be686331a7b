"""Values that `Relative` compares: GraphGPO's distances, ProRAG's and CAPO's token scores."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import (
    graph_distance_credit,
    graph_return_credit,
    penalised_steps_credit,
    token_normalised_credit,
)
from tests.algorithms.credit.walks import walks_of, wandering, z
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit import GroupRelative, Relative, StateRelative
from gxpo.algorithms.credit.state_keys import Moves
from gxpo.algorithms.credit.values import graph_distance, graph_return, penalised_outcome
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

SEEDS = st.integers(0, 10**6)
CARD = [
    ("a", 1.0, [1, 1], {"states": ["s0", "s1"], "success": True, "final_state": "s9"}),
    ("a", 0.0, [1, 1], {"states": ["s0", "s2"], "success": False, "final_state": "s2b"}),
]


def test_the_card(grow):
    """d: success 0, s1 1, s0 2, s2 and s2b 3. s0 -> s1 is worth 10 * .1, s0 -> s2 10 * .001."""
    worth, _ = graph_return_credit().values(grow(CARD), {})
    assert worth.tolist() == pytest.approx([1.0, 10.0, 0.01, 0.01])
    worth, _ = graph_return_credit(form="progress").values(grow(CARD), {})
    assert worth.tolist() == pytest.approx([10, 10, 0.1, 1.0])
    actual = graph_distance_credit(scale="none")(grow(CARD), {}, 0)
    assert actual.tolist() == pytest.approx([0.5 + 0.495, 0.5, -0.5 - 0.495, -0.5])
    unknown = [(g, r, n, f | {"final_state": None}) for g, r, n, f in CARD]  # as far as what leads nowhere
    assert torch.equal(graph_distance_credit(scale="none")(grow(unknown), {}, 0), actual)


def test_a_failed_trajectory_takes_the_others_way(grow):
    """The second fails after having been where the first succeeds from: its step there is worth as much."""
    rows = [
        ("a", 1.0, [1, 1], {"states": ["s", "t"], "success": True}),
        ("a", 0.0, [1, 1], {"states": ["s", "t"], "success": False, "final_state": "u"}),
        ("a", 0.0, [1], {"states": ["s"], "success": False, "final_state": "u"}),
    ]
    worth, _ = graph_return_credit().values(grow(rows), {})
    assert worth.tolist() == pytest.approx([1.0, 10.0, 1.0, 0.01, 0.01])


def test_where_nobody_succeeds_it_is_grpo(grow):
    rows = [(g, r, n, f | {"success": False}) for g, r, n, f in CARD]
    forest = grow(rows)
    assert graph_return_credit().values(forest, {})[0].tolist() == pytest.approx([1.0] * 4)  # d = 1 everywhere
    assert torch.equal(graph_distance_credit()(forest, {}, 0), GroupRelative()(forest, {}, 0))


def test_without_a_verdict_an_outcome_above_0_is_a_success(grow):
    rows = [(g, r, n, f | {"success": None}) for g, r, n, f in CARD]
    assert torch.equal(graph_distance_credit()(grow(rows), {}, 0), graph_distance_credit()(grow(CARD), {}, 0))


def dijkstra(edges: list[tuple[int, int]], goals: list[int], n: int) -> list[float]:
    into: dict[int, list[int]] = {}
    for u, v in edges:
        into.setdefault(v, []).append(u)
    actual = [float("inf")] * n
    heap = [(0.0, g) for g in goals]
    while heap:
        d, node = heapq.heappop(heap)
        if d < actual[node]:
            actual[node] = d
            for u in into.get(node, []):
                heapq.heappush(heap, (d + 1, u))
    return actual


@given(st.integers(1, 12), st.data())
def test_distances_agree_with_dijkstra(n, data):
    node = st.integers(0, n - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=30))
    goals = data.draw(st.lists(node, max_size=3))
    goal = torch.zeros(n, dtype=torch.bool)
    goal[goals] = True
    pairs = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)
    assert graph_distance(pairs[:, 0], pairs[:, 1], goal).tolist() == dijkstra(edges, goals, n)


def loop(forest, form: str) -> list[float]:
    """What each step in a known state is worth, over dictionaries."""
    out = [0.0] * forest.n_steps
    for group in dict.fromkeys(forest.group):
        walks = [w for w in walks_of(forest) if w.group == group]
        rows = [r for r, g in enumerate(forest.group) if g == group]
        names: dict[object, int] = {"SUCCESS": 0}
        edges, ways = [], []
        for walk, r in zip(walks, rows, strict=True):
            verdict = float(forest.success[r])
            right = verdict >= 1 if verdict == verdict else walk.outcome > 0
            for i, move in enumerate(walk.moves):
                after = "SUCCESS" if right and i == len(walk.moves) - 1 else move.after and ("state", move.after)
                start = names.setdefault(("state", move.state), len(names))
                end = None if after is None else names.setdefault(after, len(names))
                ways.append((move.row, start, end))
                if walk.compared and end is not None:
                    edges.append((start, end))
        d = dijkstra(edges, [0], len(names))
        far = max(x for x in d if x < float("inf")) + 1
        d = [min(x, far) for x in d]
        for row, start, end in ways:
            hops = far if end is None else d[end]
            out[row] = 10 * 0.1 ** (hops - d[start] + 1 if form == "progress" else hops)
    return out


@given(SEEDS, st.sampled_from(["distance", "progress"]))
def test_it_agrees_with_a_loop(seed, form):
    forest = wandering(seed)
    part = graph_distance_credit(form=form, scale="none", step_weight=2.0)
    expected = loop(forest, form)
    own_part = part.parts[1]
    (worth, _), state = own_part.values(forest, {}), own_part.states(forest)
    is_known = state >= 0
    assert worth[is_known].tolist() == pytest.approx([w for w, k in zip(expected, is_known.tolist(), strict=True) if k])
    places: dict[tuple, list[float]] = {}
    walks = walks_of(forest)
    for walk in walks:
        for move in walk.moves:
            if walk.compared:
                places.setdefault((walk.group, move.state), []).append(expected[move.row])
    base = GroupRelative(scale="none")(forest, {}, 0).tolist()
    credit = dict(zip(forest.path_step.tolist(), base, strict=True))
    for walk in walks:
        for move in walk.moves:
            members = places.get((walk.group, move.state), [])
            if move.row in credit:
                credit[move.row] += 2 * z(expected[move.row], members, walk.compared, False, 1, 1e-6)
    actual = part(forest, {}, 0)
    assert actual.tolist() == pytest.approx([credit[s] for s in forest.path_step.tolist()], abs=1e-9)


@given(SEEDS)
def test_order_does_not_matter(seed):
    forest = wandering(seed)
    credit = graph_distance_credit()(forest, {}, 0)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(
        graph_distance_credit()(forest.select(order), {}, 0), credit[forest.entries_of(order)], atol=1e-9
    )


def test_groups_have_graphs_of_their_own(grow):
    other = [("b", 0.0, [1], {"states": ["s0"], "success": False, "final_state": "s1"})]
    worth, _ = graph_return_credit().values(grow(CARD + other), {})
    assert worth.tolist() == pytest.approx([1.0, 10.0, 0.01, 0.01, 1.0])


def test_a_trajectory_that_is_not_compared_adds_no_edge(grow):
    short = [("a", 1.0, [1], {"states": ["s0"], "success": True, "compared": False})]
    worth, _ = graph_return_credit().values(grow(CARD + short), {})
    assert worth.tolist() == pytest.approx([1.0, 10.0, 0.01, 0.01, 10.0])  # s0 stays two steps away
    moves, group = Moves(*torch.tensor([[0, 0], [1, 1], [1, -1]])), torch.zeros(2, dtype=torch.int64)
    actual = graph_return(moves, group, torch.ones(2, dtype=torch.bool))
    assert actual.tolist() == pytest.approx([0.1, 10.0])  # s0 is 1 away, 1 is 1 + 1


def test_the_method_and_its_settings():
    m = gxpo.method("graph_gpo", {"credit.unit": "step", "credit.singleton": "raw"})
    assert m.credit == GroupRelative(unit="step", singleton="raw") + graph_return_credit() and m.requires == ("states",)
    assert graph_return_credit() != StateRelative() and graph_return_credit().options["worth"] == 10.0
    for wrong in ({"form": "path"}, {"discount": 1.0}, {"discount": 0.0}, {"worth": 0.0}, {"center": "middle"}):
        with pytest.raises(ConfigError, match=f"credit.{next(iter(wrong))} is"):
            graph_return_credit(**wrong)


Grow = Callable[..., Forest]
F64 = torch.float64


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


# ---------------------------------------------------------------- cards
def test_prorag_card(grow: Grow) -> None:
    """R = [1, 0], scores [.8, .8, .4] and [.2, .6], a token each."""
    forest = grow([("g", 1.0, [1, 1, 1]), ("g", 0.0, [1, 1])])
    actual = gxpo.method("prorag").advantages(forest, {"segment_score": column(0.8, 0.8, 0.4, 0.2, 0.6)})
    target = [1.221503, 1.221503, 0.364010, -1.478750, -0.621258]
    assert actual.tolist() == pytest.approx(target, abs=1e-6)


def test_capo_card(grow: Grow) -> None:
    """A right attempt of 3 steps of 2 tokens, the last wrong: R = [2, 2, 2, 2, 1, 1]; a wrong one of 2 steps, the last
    wrong: [0, 0, -1, -1]."""
    forest = grow([("g", 1.0, [2, 2, 2]), ("g", 0.0, [2, 2])])
    score = column(1, 1, 1, 1, 0, 0, 1, 1, 0, 0)
    actual = gxpo.method("capo_genprm").advantages(forest, {"segment_score": score})
    target = [1.028991] * 4 + [0.171498] * 2 + [-0.685994] * 2 + [-1.543486] * 2
    assert actual.tolist() == pytest.approx(target, abs=1e-6)


def test_votes_of_four_critiques() -> None:
    """The share that finds nothing wrong: nobody, one of four, two, three, all; and nobody could be read."""
    share = column(0, 0.25, 0.5, 0.75, 1, math.nan)
    for vote, wrong in (("intersection", 1), ("majority", 2), ("union", 4)):
        actual = penalised_outcome(torch.ones(6), share, reward=5.0, penalty=3.0, vote=vote)
        assert actual.tolist() == [2.0] * wrong + [5.0] * (6 - wrong)


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
        known_scores = [score[q] for q in peers if not math.isnan(score[q])]
        target = 0.5 * standard(score[p], known_scores, 1e-8) if t[p] and not math.isnan(score[p]) else 0.0
        assert z[p] == pytest.approx(target, abs=1e-6)
        target = standard(paid[p], [paid[q] for q in peers], 1e-6) if t[p] else 0.0
        assert penalised[p] == pytest.approx(target, abs=1e-6)


# ---------------------------------------------------------------- properties
@settings(max_examples=30, deadline=None)
@given(forest=forests(uncompared=False), seed=st.integers(0, 99))
def test_it_sums_to_zero_over_the_group(forest: Forest, seed: int) -> None:
    value = torch.randn(forest.n_entries, generator=torch.Generator().manual_seed(seed), dtype=F64)
    group = forest.ids("group", axis="P")
    actual = Relative("noise", ddof=0)(forest, {"noise": value}, 0)
    for g in set(group.tolist()):
        assert float(actual[group == g].sum()) == pytest.approx(0.0, abs=1e-9)


def test_prorag_without_its_second_part_is_grpo(grow: Grow) -> None:
    forest = grow([("g", 1.0, [2, 3]), ("g", 0.25, [1]), ("g", 0.0, [2])])
    m = gxpo.method("prorag", {"credit.add.token_normalised.weight": 0.0})
    actual = m.advantages(forest, {"segment_score": torch.rand(forest.n_entries, dtype=F64)})
    assert torch.equal(actual, GroupRelative(eps=1e-4)(forest, {}, 0))


def test_capo_without_penalty_is_grpo_weighted_by_length(grow: Grow) -> None:
    """Lengths 3 and 1, outcomes 1 and 0: mean .75, population std sqrt(.1875); C does not matter."""
    forest = grow([("g", 1.0, [3]), ("g", 0.0, [1])])
    score = {"segment_score": column(0, 0, 1, 0)}
    for reward in (1.0, 2.0):
        actual = penalised_steps_credit(reward=reward, penalty=0.0, eps=0.0)(forest, score, 0)
        assert actual.tolist() == pytest.approx([0.25 / math.sqrt(0.1875)] * 3 + [-0.75 / math.sqrt(0.1875)])


def test_equal_and_lone_attempts_learn_from_the_steps(grow: Grow) -> None:
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
