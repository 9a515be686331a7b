"""GRAFT: values of the merged graph, and credit along each trajectory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.credit.walks import walks_of, wandering

import gxpo
from gxpo.algorithms.credit.gae import gae
from gxpo.algorithms.credit.graph_values import graph_advantage, graph_values
from gxpo.base.errors import ConfigError
from gxpo.parts.registry import CREDITS

GraphValues = CREDITS["graph_values"]

SEEDS = st.integers(0, 10**6)
ROWS = [
    ("a", 1.0, [1, 1], {"states": ["s", "t"]}),
    ("a", 0.0, [1, 1], {"states": ["s", "t"]}),
    ("a", 0.0, [1, 1], {"states": ["s", "u"]}),
    ("a", 1.0, [1], {"states": ["t"]}),
]


def test_a_graph_by_hand(grow):
    """V(t) = 2/3 (1, 0 and 1), V(u) = 0, V(s) = (2/3 + 2/3 + 0) / 3 = 4/9, where the mean return from s is 1/3."""
    forest = grow(ROWS)
    edges = GraphValues(lam=0.0)(forest, {}, 0)
    assert edges.tolist() == pytest.approx([2 / 9, 1 / 3, 2 / 9, -2 / 3, -4 / 9, 0, 1 / 3])
    returns = GraphValues(lam=1.0)(forest, {}, 0)
    assert returns.tolist() == pytest.approx([5 / 9, 1 / 3, -4 / 9, -2 / 3, -4 / 9, 0, 1 / 3])
    half = GraphValues(lam=0.5)(forest, {}, 0)
    assert half.tolist() == pytest.approx([2 / 9 + 1 / 6, 1 / 3, 2 / 9 - 1 / 3, -2 / 3, -4 / 9, 0, 1 / 3])
    assert torch.equal(GraphValues()(forest, {}, 0), GraphValues(discount=1.0, lam=0.95)(forest, {}, 0))


def test_a_cycle():
    """From s once on to s itself and once to the end with 1: V = (V + 1) / 2 = 1; discounted by .5, V / 4 + 1 / 2."""
    edges = torch.tensor([0, 0]), torch.tensor([0, -1]), torch.tensor([0.0, 1.0])
    assert graph_values(*edges, torch.tensor([0.3])).tolist() == pytest.approx([1.0])
    assert graph_values(*edges, torch.tensor([0.3]), 0.5).tolist() == pytest.approx([2 / 3])
    nothing = torch.zeros(0, dtype=torch.int64)
    assert graph_values(nothing, nothing, torch.zeros(0), torch.zeros(0)).tolist() == []


def solved(forest, discount: float) -> list[list[tuple[int, float, float, float]]]:
    """Each trajectory's valued steps: (row, payment, V before, V after), from the linear equations of each group."""
    pay = forest.returns(0.0).tolist()
    walks, out = walks_of(forest), []
    rows_of = [[s for s, r in enumerate(forest.step_trajectory.tolist()) if r == i] for i in range(len(walks))]
    for group in dict.fromkeys(forest.group):
        inside = [(w, rows) for w, rows in zip(walks, rows_of, strict=True) if w.group == group]
        names = list(dict.fromkeys(m.state for w, _ in inside if w.compared for m in w.moves))
        number = {name: i for i, name in enumerate(names)}
        A, b = torch.eye(len(names), dtype=torch.float64), torch.zeros(len(names), dtype=torch.float64)
        times = [sum(m.state == n for w, _ in inside if w.compared for m in w.moves) for n in names]
        chains = []
        for walk, rows in inside:
            moves = [m for m in walk.moves if m.state in number]
            begins = [m.row for m in moves]
            ends = [*begins[1:], rows[-1] + 1] if moves else []
            paid = [sum(pay[s] for s in rows if i <= s < j) for i, j in zip(begins, ends, strict=True)]
            states = [number[m.state] for m in moves]
            chains.append((moves, paid, states))
            if walk.compared:
                for i, s in enumerate(states):
                    b[s] += paid[i] / times[s]
                    if i + 1 < len(states):
                        A[s, states[i + 1]] -= discount / times[s]
        V = torch.linalg.solve(A, b).tolist() if names else []
        for moves, paid, states in chains:
            after = [V[s] for s in states[1:]] + [0.0]
            out.append([(m.row, p, V[s], v) for m, p, s, v in zip(moves, paid, states, after, strict=False)])
    return out


@given(SEEDS, st.sampled_from([1.0, 0.9, 0.0]), st.sampled_from([0.0, 0.95, 1.0]))
def test_it_agrees_with_the_solution_of_the_equations(seed, discount, lam):
    forest = wandering(seed)
    expected = [0.0] * forest.n_steps
    for chain in solved(forest, discount):
        onward = 0.0
        for row, paid, before, after in reversed(chain):
            onward = paid + discount * after - before + discount * lam * onward
            expected[row] = onward
    actual = GraphValues(discount=discount, lam=lam)(forest, {}, 0)
    assert actual.tolist() == pytest.approx([expected[s] for s in forest.path_step.tolist()], abs=1e-7)


@given(SEEDS)
def test_edges_of_a_state_sum_to_0_and_paths_telescope(seed):
    forest = wandering(seed, uncompared=False)
    part = GraphValues()
    state, own_step_trajectory, pay = part.states(forest), forest.step_trajectory, forest.returns(0.0)
    edge = graph_advantage(pay, state, own_step_trajectory, lam=0.0)
    for s in range(int(state.max()) + 1):
        assert float(edge[state == s].sum()) == pytest.approx(0, abs=1e-7)
    full = graph_advantage(pay, state, own_step_trajectory, lam=1.0)
    for r in range(forest.n_trajectories):
        rows = ((own_step_trajectory == r) & (state >= 0)).nonzero().squeeze(1).tolist()
        if rows:  # the first step's return - V(s_0), both ways
            assert float(edge[rows].sum()) == pytest.approx(float(full[rows[0]]), abs=1e-7)


def test_it_is_gae_on_the_graphs_values(grow):
    forest = grow(ROWS)
    value = torch.tensor([4 / 9, 2 / 3, 4 / 9, 2 / 3, 4 / 9, 0, 2 / 3], dtype=torch.float64)
    own_step_trajectory = forest.step_trajectory
    expected = gae(forest.returns(0.0), value, own_step_trajectory, torch.ones(7, dtype=torch.bool), 1.0, 0.7)
    assert GraphValues(lam=0.7)(forest, {}, 0).tolist() == pytest.approx(expected.tolist(), abs=1e-9)


@given(SEEDS)
def test_equal_outcomes_give_exactly_nothing(seed):
    forest = wandering(seed)
    for value in (0.1, 1 / 3, 0.7):
        equal = forest.replace(
            outcome=torch.full_like(forest.outcome, value), step_reward=torch.full_like(forest.step_reward, torch.nan)
        )
        assert not GraphValues()(equal, {}, 0).any()


@given(SEEDS)
def test_order_does_not_matter(seed):
    forest = wandering(seed)
    credit = GraphValues()(forest, {}, 0)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(GraphValues()(forest.select(order), {}, 0), credit[forest.entries_of(order)], atol=1e-7)


def test_what_is_passed_over(grow):
    """A step of unknown state has no credit; what it was paid goes to the one before, of a first one to nobody."""
    rows = [
        ("a", 1.0, [1, 1, 1], {"states": ["s", None, "t"], "step_rewards": [0.0, 0.25, 1.0]}),
        ("a", 0.0, [1, 1], {"states": [None, "s"], "step_rewards": [5.0, 0.0]}),
    ]
    # V(t) = 1, V(s) = (.25 + 1 + 0) / 2 = .625
    actual = GraphValues(lam=0.0)(grow(rows), {}, 0)
    assert actual.tolist() == pytest.approx([0.625, 0, 0, 0, -0.625])


def test_the_method_and_its_settings():
    m = gxpo.method("graft", {"credit.lam": 0.5})
    assert m.credit == GraphValues(discount=0.99, lam=0.5, scale="std") and m.requires == ("states",)
    for wrong in ({"lam": 1.1}, {"discount": -0.1}, {"state": "text"}, {"scale": "batch_std"}):
        with pytest.raises(ConfigError, match=f"credit.{next(iter(wrong))} is"):
            GraphValues(**wrong)
