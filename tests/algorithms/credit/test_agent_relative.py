"""Agent-wise credit: the card's numbers, a loop over dictionaries, and what it becomes with one agent."""

import math
import statistics
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import strategies

import gxpo
from gxpo.algorithms.credit import Relative
from gxpo.forest.forest import Forest


def attempt(name, reward, *agents, group="q"):
    turns = [{"agent": agent, "context": [1, i + 2], "action": [5, 6]} for i, agent in enumerate(agents)]
    return {"schema": "gxpo.rollouts/1", "group": group, "id": name, "turns": turns, "reward": reward}


def test_the_worked_numbers():
    # R = [1, 0]; the solver speaks once and twice: its rows are 1, 0, 0 with mean 1/3 and
    # std sqrt((4/9 + 1/9 + 1/9) / 2) = 0.577350, so (2/3) / 0.577351 = 1.154699 and (-1/3) / 0.577351 = -0.577349.
    # The verifier speaks once each: 1, 0 with mean 1/2 and std 0.707107, so +-0.5 / 0.707108 = +-0.707106.
    forest = Forest.from_records(
        [attempt("a", 1.0, "solver", "verifier"), attempt("b", 0.0, "solver", "solver", "verifier")]
    )
    found = gxpo.method("dr_mas").advantages(forest)
    expected = torch.tensor([1.154699, 0.707106, -0.577349, -0.577349, -0.707106], dtype=torch.float64)
    assert torch.allclose(found, expected.repeat_interleave(2), atol=1e-6)


def test_agents_are_not_pooled_and_groups_neither():
    # In "q" the team is right whenever the planner speaks: nothing tells its calls apart, whoever else fails.
    forest = Forest.from_records(
        [
            attempt("a", 1.0, "planner", "solver"),
            attempt("b", 1.0, "planner", "solver"),
            attempt("c", 0.0, "solver"),
            attempt("d", 0.0, "planner", "solver", group="other"),
        ]
    )
    found = gxpo.method("grpo", {"credit": "dr_mas", "credit.scale": "none"}).advantages(forest)[::2].tolist()
    third = 1 / 3
    assert found == pytest.approx([0.0, third, 0.0, third, -2 * third, 0.0, 0.0])


def test_the_only_call_of_an_agent_has_zero():
    forest = Forest.from_records([attempt("a", 1.0, "solver", "verifier"), attempt("b", 0.0, "solver")])
    assert gxpo.method("dr_mas").advantages(forest)[2:4].tolist() == [0.0, 0.0]


def by_hand(forest, center, scale):
    """Sums over dictionaries, call by call."""
    calls = defaultdict(list)
    names = [forest.agent_names[a] for a in forest.step_agent.tolist()]
    rows = forest.step_trajectory.tolist()
    for s, r in enumerate(rows):
        if bool(forest.scored[r]) and bool(forest.compared[r]):
            calls[forest.group[r], names[s]].append(s)
    reward = forest.outcome.tolist()
    out = []
    for s, r in enumerate(rows):
        members = calls[forest.group[r], names[s]]
        values = [reward[rows[m]] for m in members]
        others = [reward[rows[m]] for m in members if m != s]
        if not bool(forest.scored[r]) or not values:
            out.append(0.0)
            continue
        flat = max(values) - min(values) <= 1e-12 * max(map(abs, values))
        if center == "leave_one_out":
            middle = statistics.fmean(others) if others else None
        else:
            middle = statistics.fmean(values)
        if middle is None or (s in members and flat):
            out.append(0.0 if s in members else reward[r])
        elif scale == "none":
            out.append(reward[r] - middle)
        else:
            spread = statistics.stdev(values) if len(values) > 1 and not flat else 0.0
            out.append((reward[r] - middle) / (spread + 1e-6) if spread else 0.0)
    return torch.tensor(out, dtype=torch.float64)


@given(
    st.integers(0, 10**6),
    st.sampled_from([("mean", "std"), ("mean", "none"), ("leave_one_out", "none")]),
    st.booleans(),
)
def test_against_a_loop(seed, setting, leave_some_out):
    forest = strategies.random_forest(seed, groups=2, max_turns=3)
    generator = torch.Generator().manual_seed(seed)
    n = forest.n_trajectories
    outcome = torch.randint(0, 3, (n,), generator=generator).double() / 2
    outcome[torch.rand(n, generator=generator) < 0.15] = math.nan
    compared = torch.rand(n, generator=generator) > 0.2 if leave_some_out else torch.ones(n, dtype=torch.bool)
    forest = forest.replace(outcome=outcome, compared=compared)
    center, scale = setting
    keys = {"credit.center": center, "credit.scale": scale}
    found = gxpo.method("dr_mas", keys).advantages(forest)
    expected = forest.to_path(by_hand(forest, center, scale), "S")
    assert torch.allclose(found, expected, rtol=0, atol=1e-9)


def test_one_agent_and_one_turn_is_the_base():
    records = [attempt(f"{g}{i}", float(i % 3), "agent", group=g) for g in "xyz" for i in range(5)]
    forest = Forest.from_records(records)
    assert torch.equal(gxpo.method("dr_mas").advantages(forest), gxpo.method("grpo").advantages(forest))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.floats(-5, 5), st.floats(0.1, 10))
def test_shift_and_scale_of_the_outcome_do_not_matter(values, shift, factor):
    forest = Forest.from_records([attempt(str(i), float(v), "a", "b") for i, v in enumerate(values)])
    part, agent = Relative(among=("agent",), unit="step", eps=0.0), forest.to_path(forest.step_agent, "S")
    one = part(forest, {}, 0)
    other = part(forest.replace(outcome=factor * forest.outcome + shift), {}, 0)
    assert torch.allclose(one, other, atol=1e-6)
    assert abs(float(one[agent == 0].sum())) < 1e-9 and abs(float(one[agent == 1].sum())) < 1e-9


def test_it_is_a_flag_on_other_methods():
    forest = Forest.from_records(
        [attempt("a", 1.0, "solver", "verifier"), attempt("b", 0.0, "solver", "solver", "verifier")]
    )
    # RLOO of the solver's calls 1, 0, 0: 1 - 0, 0 - 1/2, 0 - 1/2; of the verifier's 1, 0: 1 - 0, 0 - 1
    found = gxpo.method("dr_mas+rloo").advantages(forest)[::2].tolist()
    assert found == pytest.approx([1.0, 1.0, -0.5, -0.5, -1.0])
    # Dr. GRPO: 1 - 1/3, 0 - 1/3, 0 - 1/3 and 1/2, -1/2
    found = gxpo.method("dr_mas+dr_grpo").advantages(forest)[::2].tolist()
    assert found == pytest.approx([2 / 3, 0.5, -1 / 3, -1 / 3, -0.5])
