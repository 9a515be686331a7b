"""Steps judged by an expert's; notes added to an outcome; what a plan is worth."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.environments.rewards.shapes import shape

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.agreement import Agreement, cosine, recall
from gxpo.environments.rewards.outcomes import noted, plan_success

Noted = shape("noted")
PlanSuccess = shape("plan_success")

nan = float("nan")
TEXTS = st.lists(st.sampled_from(["red", "Red", "shoes", "blue", "4", "!"]), max_size=5).map(" ".join)


def forest_of(infos, outcome=None, success=None, groups=None):
    n = len(infos)
    records = [
        {"schema": "gxpo.rollouts/1", "group": "g" if groups is None else groups[r], "id": f"{r}", "prompt": [1],
         "turns": [{"action": [2]}], "info": infos[r]}
        for r in range(n)
    ]  # fmt: skip
    score = torch.tensor(outcome or [0.0] * n, dtype=torch.float64)
    return gxpo.Forest.from_records(records).with_rewards(
        score, success=score if success is None else torch.tensor(success, dtype=torch.float64)
    )


def step(call, expert, last=False):
    return {"call": call, "expert": expert, "last": last}


# ---------------------------------------------------------------- agreement
def test_step_earns_half_for_the_source_and_half_for_the_query():
    # cos("red shoes", "blue shoes") = 1 / (sqrt 2 sqrt 2) = .5
    rows = [
        step(["search", "red shoes"], ["search", "red shoes"]),  # .5 + .5
        step(["search", "red shoes"], ["search", "blue shoes"]),  # .5 + .5 * .5
        step(["lookup", "red shoes"], ["search", "blue shoes"]),  # .5 * .5
        step(["lookup", ""], ["search", "blue shoes"]),  # 0
        step(["up", ""], ["up", ""]),  # an expert's call without argument: the name alone
        step(["up", "there"], ["up", ""]),  # .5
        step(["down", ""], ["up", ""]),  # 0
        {},  # no step of an expert's
    ]
    actual = Agreement()(forest_of(rows, outcome=[0.0] * 7 + [0.3]))
    assert actual.tolist() == pytest.approx([1.0, 0.75, 0.25, 0.0, 1.0, 0.5, 0.0, 0.3])


def test_the_last_step_is_worth_what_it_recalls_of_the_answer():
    rows = [
        step(["finish", "New York"], ["finish", "new york city"], True),  # 2 of 3
        step(["It", "is New York City"], ["finish", "new york city"], True),  # 3 of 3, whatever it is called
        step(["finish", "york"], ["finish", "york 4"], True),  # 1 of 2
        step(["finish", "5"], ["finish", "4"], True),  # one word: all or nothing
        step(["", "#4"], ["", "#4"], True),
    ]
    assert Agreement()(forest_of(rows)).tolist() == pytest.approx([2 / 3, 1.0, 0.5, 0.0, 1.0])
    assert Agreement(max_exact_words=2)(forest_of(rows)).tolist() == pytest.approx([2 / 3, 1.0, 0.0, 0.0, 1.0])


@given(TEXTS, TEXTS)
def test_cosine_and_recall_by_loops(a, b):
    x, y = [[w.lower() for w in text.replace("!", " ").split()] for text in (a, b)]
    dot = sum(x.count(w) * y.count(w) for w in set(x))
    size = math.sqrt(sum(x.count(w) ** 2 for w in set(x))) * math.sqrt(sum(y.count(w) ** 2 for w in set(y)))
    assert cosine(a, b) == pytest.approx(dot / size if x and y else float(x == y)) and cosine(a, b) == cosine(b, a)
    assert 0 <= cosine(a, b) <= 1 + 1e-12 and cosine(a, a) == 1
    rest, hit = list(x), 0
    for w in y:
        if w in rest:
            rest.remove(w)
            hit += 1
    share = hit / len(y) if y else float(not x)
    assert recall(a, b, 0) == pytest.approx(share)
    assert recall(a, b, 2) == pytest.approx(share if len(y) > 2 or not y else float(hit == len(y)))


def test_shares_are_shares():
    for fields in ({"similarity": 1.5}, {"max_exact_words": -1}):
        with pytest.raises(ConfigError, match="similarity is a share"):
            Agreement(**fields)


# ---------------------------------------------------------------- notes
@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0, 1), st.booleans()), min_size=1, max_size=6))
def test_notes_are_added_by_weight(rows):
    infos = [{"format": f, **({"execution": 1.0} if done else {})} for _, f, done in rows]
    actual = noted(
        torch.tensor([o for o, _, _ in rows]), infos, weights={"format": 0.1, "execution": 2.0}, outcome_weight=0.5
    )
    expected = [0.5 * o + 0.1 * f + 2.0 * done for o, f, done in rows]
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)


def test_an_unscored_outcome_stays_unscored():
    actual = Noted()(forest_of([{"format": 1.0}, {"execution": 1.0}], outcome=[nan, 1.0]))
    assert actual[0].isnan() and actual[1] == 2.0
    with pytest.raises(ConfigError, match="finite"):
        gxpo.method("hi_agent", {"reward.shape.noted.weights": {"format": math.inf}})


# ---------------------------------------------------------------- plans
def test_plan_is_worth_the_success_rate_of_its_executions():
    infos = [{"plan": 0}, {"plan": 0}, {"plan": 1}, {"plan": 1}, {}]
    forest = forest_of(infos, outcome=[1.0, 0.0, 1.0, 1.0, 1.0])
    assert PlanSuccess(weight=0.5)(forest).tolist() == [0.25, 0.25, 0.5, 0.5, 0.0]
    assert PlanSuccess(weight=0.0)(forest).tolist() == [0.0] * 5


def test_plans_of_two_groups_with_one_number_are_two():
    infos, groups = [{"plan": 0}] * 4, ["g", "g", "h", "h"]
    forest = forest_of(infos, outcome=[1.0, 0.0, 0.0, 0.0], groups=groups)
    assert PlanSuccess(weight=1.0)(forest).tolist() == [0.5, 0.5, 0.0, 0.0]


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, nan]), st.integers(-1, 3)), min_size=1, max_size=12))
def test_a_loop_gives_the_same(rows):
    actual = plan_success(torch.tensor([s for s, _ in rows]), torch.tensor([p for _, p in rows]), weight=1.0)
    for (_, plan), value in zip(rows, actual.tolist(), strict=True):
        known_rows = [s for s, p in rows if p == plan and not math.isnan(s)]
        if plan < 0 or not known_rows:
            assert value == 0
        else:
            assert value == pytest.approx(sum(known_rows) / len(known_rows))


def test_an_infinite_weight_is_refused():
    with pytest.raises(ConfigError, match="finite"):
        gxpo.method("pta_grpo", {"reward.add.plan_success.weight": nan})
