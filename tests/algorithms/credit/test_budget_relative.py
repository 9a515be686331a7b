"""Credit of thinking cut at budgets: the card's numbers, a loop over dictionaries, what it is with one budget."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import GroupRelative, advantage
from gxpo.algorithms.credit.budget_relative import budget_prior, budget_relative, by_budgets
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

NAN = math.nan
UNIFORM = torch.full((4,), 0.25, dtype=torch.float64)


def table(*rows):
    return torch.tensor(rows, dtype=torch.float64)


# ---------------------------------------------------------------- the card
def test_the_card():
    # scores [0, 1, 1, 1], P = 1/4; R = [.75, .75, .5, .25]; V1 = [0, 0, .333333, .214286]; the other member's R is .25
    # at every budget (its scores 0, 0, 0, 1), so V2 = [.5, .5, .375, .25]
    actual = budget_relative(table([0, 1, 1, 1], [0, 0, 0, 1]), torch.tensor([0, 0]), UNIFORM)
    assert actual[0].tolist() == pytest.approx([0.25, 0.375, 0.145833, 0.026786], abs=1e-6)


def test_alone():
    scores, group = table([0, 1, 1, 1]), torch.tensor([0])
    assert not bool(budget_relative(scores, group, UNIFORM).any())
    # V2 = 0: R - s V1 / 4 = [.75, .75, .5 - 2 * .333333 / 4, .25 - 3 * .214286 / 4]
    raw = budget_relative(scores, group, UNIFORM, singleton="raw")
    assert raw[0].tolist() == pytest.approx([0.75, 0.75, 0.333333, 0.089286], abs=1e-6)


# ---------------------------------------------------------------- loops
def by_loop(scores, groups, prior, growth, where, single):
    """Lists of floats; None is a score that is not known."""
    n, budgets = len(scores), len(prior)
    full = [None not in row for row in scores]
    out = [[0.0] * budgets for _ in range(n)]
    for i in range(n):
        if not full[i] or groups[i] < 0:
            continue
        others = [j for j in range(n) if j != i and full[j] and where[j] and groups[j] == groups[i]]
        members = others + ([i] if where[i] else [])
        if not others and not (single == "raw" and where[i]):
            continue
        values = {x for j in members for x in scores[j]}
        if others and where[i] and len(values) == 1:
            continue
        for s in range(budgets):
            rest = math.fsum(prior[s:])
            own_value = 0.0
            if s:
                top = math.fsum(growth**j * scores[i][j] for j in range(s))
                own_value = top / math.fsum(growth**j for j in range(s)) * rest

            def reward(j, s=s):
                return math.fsum(prior[k] * scores[j][k] for k in range(s, budgets))

            mean = math.fsum(reward(j) for j in members) / len(members) if others else 0.0
            out[i][s] = reward(i) - (s * own_value + (budgets - s) * mean) / budgets
    return out


@given(st.integers(0, 100_000))
def test_retryst_a_loop(seed):
    rng = random.Random(seed)
    n, budgets = rng.randrange(1, 8), rng.randrange(1, 5)
    scores = [[rng.choice((0.0, 0.5, 1.0, 1.0)) for _ in range(budgets)] for _ in range(n)]
    for row in scores:
        if rng.random() < 0.15:
            row[rng.randrange(budgets)] = None
    groups = [rng.choice((0, 0, 1, 2, -1)) for _ in range(n)]
    where = [rng.random() < 0.8 for _ in range(n)]
    raw = [rng.random() + 0.1 for _ in range(budgets)]
    prior = [x / sum(raw) for x in raw]
    growth, single = rng.choice((1.0, 2.0)), rng.choice(("zero", "raw"))
    actual = budget_relative(
        torch.tensor([[NAN if x is None else x for x in row] for row in scores], dtype=torch.float64),
        torch.tensor(groups),
        torch.tensor(prior, dtype=torch.float64),
        growth,
        torch.tensor(where),
        single,
    )
    expected = by_loop(scores, groups, prior, growth, where, single)
    assert torch.allclose(actual, torch.tensor(expected, dtype=torch.float64), atol=1e-12)


@given(st.floats(-5, 5), st.integers(1, 5), st.integers(2, 4))
def test_equal_scores_are_exactly_nothing(score, budgets, n):
    prior = torch.arange(1, budgets + 1, dtype=torch.float64)
    actual = budget_relative(torch.full((n, budgets), score), torch.zeros(n, dtype=torch.int64), prior / prior.sum())
    assert not bool(actual.any())


# ---------------------------------------------------------------- on a forest
def grown(cells, group="g", first=0):
    """{thinking: {budget: [scores]}}, two tokens a budget, one an answer; None is an answer without a score."""
    records = []
    for number, cuts in cells.items():
        last, base = max(cuts), f"{group}/{number}"
        for s in sorted(cuts, reverse=True):
            for a, score in enumerate(cuts[s]):
                answer = {"observation": [9], "action": [20 + a], "logprob": [-1.0]}
                row = {"schema": "gxpo.rollouts/1", "group": group, "id": f"{base}.{s}.{a}", "reward": score,
                       "info": {"thinking": number, "budget": s, "covers": 3 - s if s == last else 1}}  # fmt: skip
                if s == last and a == 0:
                    size = 2 * (last + 1)
                    thought = {"action": list(range(30, 30 + size)), "logprob": [-1.0] * size,
                               "segments": list(range(0, size, 2))}  # fmt: skip
                    row |= {"prompt": [1, first], "turns": [thought, answer]}
                elif s == last:
                    row |= {"fork": {"of": f"{base}.{last}.0", "turn": 0, "token": None}, "turns": [answer]}
                else:
                    fork = {"of": f"{base}.{last}.0", "turn": 0, "token": 2 * (s + 1)}
                    row |= {"fork": fork, "turns": [{"action": []}, answer]}
                records.append(row)
    return records


def test_credit_of_thinking_and_of_answers():
    # thinking 0 goes through all three budgets; thinking 1 ends in the second, whose answers stand for the third too
    forest = Forest.from_records(grown({0: {0: [0, 1], 1: [1, 1], 2: [1, 0]}, 1: {0: [0, 0], 1: [1, 0]}}))
    actual = advantage(by_budgets)(forest, {}, 1)
    scores = [[0.5, 1.0, 0.5], [0.0, 0.5, 0.5]]
    own_by_loop = by_loop(scores, [0, 0], [1 / 3] * 3, 2.0, [True, True], "zero")
    answers = {"g/0.0.0": -0.5, "g/0.0.1": 0.5, "g/0.1.0": 0.0, "g/0.1.1": 0.0, "g/0.2.0": 0.5, "g/0.2.1": -0.5,
               "g/1.0.0": 0.0, "g/1.0.1": 0.0, "g/1.1.0": 0.5, "g/1.1.1": -0.5}  # fmt: skip
    for r, name in enumerate(forest.id):
        number, budget = (int(x) for x in name.split("/")[1].split(".")[:2])
        expected = [own_by_loop[number][s] for s in range(budget + 1) for _ in range(2)] + [answers[name]]
        assert actual[forest.path_of(r)].tolist() == pytest.approx(expected, abs=1e-12)


def test_a_lone_answer_is_compared_at_its_budget():
    cells = {0: {0: [1.0], 1: [0.0], 2: [1.0]}, 1: {0: [0.0], 1: [0.0], 2: [0.0]}}
    forest = Forest.from_records(grown(cells) + grown({0: {2: [1.0]}}, "h", 1))
    actual = advantage(by_budgets)(forest, {}, 1)
    last = {name: float(actual[forest.path_of(r)[-1]]) for r, name in enumerate(forest.id)}
    assert [last[f"g/{i}.{s}.0"] for i in (0, 1) for s in (0, 1, 2)] == [0.5, 0.0, 0.5, -0.5, 0.0, -0.5]
    assert last["h/0.2.0"] == 0.0


def test_unscored_answers_and_cuts_are_left_out():
    cells = {0: {0: [0, None], 1: [1, 0], 2: [1, 0]}, 1: {0: [0, 1], 1: [None, None], 2: [1, 0]},
             2: {0: [1, 1], 1: [1, 1], 2: [1, 1]}}  # fmt: skip
    forest = Forest.from_records(grown(cells))
    actual = gxpo.method("anytime_brpo").advantages(forest)
    own_by_loop = by_loop(
        [[0.0, 0.5, 0.5], [0.5, None, 0.5], [1.0, 1.0, 1.0]], [0] * 3, [1 / 3] * 3, 2.0, [True] * 3, "zero"
    )
    for r, name in enumerate(forest.id):
        number, budget, _ = (int(x) for x in name.split("/")[1].split("."))
        entries = forest.path_of(r)
        thought = actual[entries[: 2 * (budget + 1)]].tolist()
        if bool(forest.scored[r]):
            assert thought == pytest.approx(
                [own_by_loop[number][s] for s in range(budget + 1) for _ in range(2)], abs=1e-12
            )
        else:
            assert not any(thought) and float(actual[entries[-1]]) == 0.0
    assert own_by_loop[1] == [0.0, 0.0, 0.0]


def test_an_uncompared_thinking_is_measured_by_others():
    forest = Forest.from_records(grown({0: {0: [1, 0]}, 1: {0: [1, 1]}, 2: {0: [0, 0]}}))
    compared = torch.tensor([name.split("/")[1][0] != "1" for name in forest.id])
    actual = advantage(by_budgets)(forest.replace(compared=compared), {}, 1)
    own_by_loop = by_loop([[0.5] * 3, [1.0] * 3, [0.0] * 3], [0] * 3, [1 / 3] * 3, 2.0, [True, False, True], "zero")
    for r, name in enumerate(forest.id):
        number = int(name.split("/")[1][0])
        assert actual[forest.path_of(r)[:2]].tolist() == pytest.approx([own_by_loop[number][0]] * 2, abs=1e-12)


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=6))
def test_uncut_trajectories_have_the_centred_outcome(rewards):
    forest = Forest.from_completions([[1]], [[[2 + i, 3] for i in range(len(rewards))]], rewards)
    assert torch.allclose(advantage(by_budgets)(forest, {}, 1), GroupRelative(scale="none")(forest, {}, 1), atol=1e-12)


def test_order_of_trajectories_does_not_matter():
    forest = Forest.from_records(grown({0: {0: [0, 1], 1: [1, 1], 2: [1, 0]}, 1: {0: [0, 0], 1: [1, 0]}}))
    rows = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(3))
    credit = advantage(by_budgets)(forest, {}, 1)
    assert torch.allclose(
        advantage(by_budgets)(forest.select(rows), {}, 1), credit[forest.entries_of(rows)], atol=1e-12
    )


def test_priors():
    assert budget_prior(4, "uniform").tolist() == [0.25] * 4
    assert budget_prior(4, "linear").tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert budget_prior(3, "last").tolist() == [0, 0, 1]


def test_refusals():
    for fields, match in (({"prior": "first"}, r"credit\.prior"), ({"singleton": "one"}, r"credit\.singleton"),
                          ({"growth": 0.0}, r"credit\.growth")):  # fmt: skip
        with pytest.raises(ConfigError, match=match):
            advantage(by_budgets, **fields)
