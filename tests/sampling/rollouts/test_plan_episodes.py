"""Plans of sub-goals before an episode, an executor under one of them at a time."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from tests.sampling.rollouts.acting_session import STEPS, acting, seeded, turns_of

from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.objectives import PolicyGradient
from gxpo.environments.envs import EnvPool, source
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import EpisodeRules, PolicyTokens, Sampling
from gxpo.sampling.rollouts import Independent
from gxpo.sampling.rollouts.plan_episodes import fill_template
from gxpo.sampling.rollouts.plan_execute import PlanExecute, Planned
from gxpo.training.models import tiny_model

PlanExecute = partial(PlanExecute, delimiter=",")  # which ends the steps here

MACRO, MICRO = 1, 2
FULL, WINDOW = EpisodeRules(20), EpisodeRules(20, "window", 0)


@pytest.fixture(scope="module")
def model():
    return tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=2).to(torch.float64)


@pytest.fixture(scope="module")
def count():
    """Only x and z count down; 2 or 3 of them reach the end."""
    with EnvPool(source(STEPS, {"start": 2, "good": "xz", "max_turns": 5}), workers=0) as pool:
        yield pool


@pytest.fixture(scope="module")
def doors():
    with EnvPool(source("keydoor", {"style": "bare", "size": 4, "max_turns": 6}), workers=0) as pool:
        yield pool


def plans(*texts):
    """Attempt i plans texts[i]; under a sub-goal that has an x in it the executor says x, under others 1."""

    def say(context, key):
        if "Sub-goal: " not in context:
            return texts[key.attempt]
        goal = context.rsplit("Sub-goal: ", 1)[1].split("\n")[0]
        return "x" if "x" in goal else "1"

    return say


def credit_and_gradient(forest):
    credit = GroupRelative()(forest, {}, 0)
    x = forest.path_behaviour_logprob.clone().requires_grad_()
    loss, _ = PolicyGradient()(
        forest, PolicyTokens(x, forest.path_behaviour_logprob), credit, torch.ones_like(credit), {}, 0
    )
    return credit, torch.autograd.grad(loss, x)[0]


# ---------------------------------------------------------------- the card
def test_macro_trains_plans_by_what_their_greedy_executions_earn(count):
    # R = [1, 0, 0, 1]: (1 - .5) / (.57735 + 1e-6) = .866024, on plan tokens; no gradient on execution tokens
    s = acting(count, plans("ax", "b", "c", "dx"), step=MACRO)
    forest = PlanExecute(blueprints=4, plan_tokens=6).grow(seeded(s, 0), s)
    assert forest.outcome.tolist() == [1.0, 0.0, 0.0, 1.0] and set(forest.group) == {"s1/steps/0"}
    credit, gradient = credit_and_gradient(forest)
    for r, sign in enumerate((1, -1, -1, 1)):
        plan, *execution = turns_of(forest, r)
        assert plan["agent"] == "planner" and plan["context"] == "count\n\n2 left\n>" and plan["trained"] == [True]
        assert {t["agent"] for t in execution} == {"executor"} and all(t["trained"] == [False] for t in execution)
        assert credit[plan["entries"]].tolist() == pytest.approx([sign * 0.866024] * len(plan["tokens"]), abs=1e-6)
        each = -sign * 0.866024 / 4 / len(plan["tokens"])  # mean over plans of the mean over a plan's tokens
        assert gradient[plan["entries"]].tolist() == pytest.approx([each] * len(plan["tokens"]), abs=1e-6)
        assert all(bool((gradient[t["entries"]] == 0).all()) for t in execution)
    assert [len(turns_of(forest, r)) for r in range(4)] == [3, 6, 6, 3]  # a plan, then 2 good actions or 5 bad ones
    assert s.budget.discarded == 0 and s.budget.rollouts == 4
    assert s.budget.generated_tokens == forest.n_entries
    assert all(how.temperature == 0 for _, how in s.engine.calls[1:]) and s.engine.calls[0][1].temperature == 1


def test_micro_samples_executions_of_the_first_best_plan(count):
    s = acting(count, plans("b", "ax", "dx"), step=MICRO)
    forest = PlanExecute(blueprints=3, group_size=4, plan_tokens=6).grow(seeded(s, 0, 2), s)
    assert forest.group == ["s2/steps/0/z1"] * 4 + ["s2/steps/2/z1"] * 4
    assert s.budget.discarded == 6
    for first in (0, 4):
        rows = [turns_of(forest, r) for r in range(first, first + 4)]
        assert all(row[0]["tokens"] == rows[0][0]["tokens"] for row in rows)  # z* is stored once
        assert all(row[0]["said"] == "ax" and row[0]["trained"] == [False] for row in rows)
        assert len({row[1]["context"] for row in rows}) == 1 and all(t["trained"] == [True] for t in rows[0][1:])
        assert rows[0][1]["context"] == "count\n\nSub-goal: ax\n\n2 left\n>"
    streams = s.engine.streams
    assert len(set(streams)) == len(streams)
    tried = sum(len(t["tokens"]) for r in range(0, 8, 4) for t in turns_of(forest, r)[:1])  # z* itself
    others = (2 + 3 + 3) * 2  # plans "b", "ax", "dx", each with its end
    greedy = (5 * 2 + 2 * 2 + 2 * 2) * 2
    assert s.budget.generated_tokens == others + greedy + int(forest.path_trainable.sum()) and tried == 6


@pytest.mark.parametrize("trial", [0.0, 0.7])
def test_trials_have_a_temperature_of_their_own(count, trial):
    s = acting(count, plans("b", "ax"), step=MICRO, sampling=Sampling(max_new_tokens=24, top_p=0.9))
    PlanExecute(blueprints=2, group_size=2, trial_temperature=trial).grow(seeded(s, 0), s)
    used = [(how.temperature, how.top_p) for _, how in s.engine.calls]
    assert used[0] == used[-1] == (1.0, 0.9) and (trial, 0.9 if trial else 1.0) in used and len(set(used)) == 2
    assert len(set(s.engine.streams)) == len(s.engine.streams)


def test_one_blueprint_teaches_nothing_and_no_plan_is_grpo(count, model):
    s = acting(count, plans("ax"), step=MACRO)
    forest = PlanExecute(blueprints=1).grow(seeded(s, 0, 1), s)
    assert bool((GroupRelative()(forest, {}, 0) == 0).all())
    for step in (MACRO, MICRO):
        one, other = (acting(count, model=model, step=step, sampling=Sampling(max_new_tokens=3)) for _ in range(2))
        ours = PlanExecute(plan_tokens=0, group_size=3).grow(seeded(one, 0), one)
        assert ours.to_records() == Independent(3).grow(seeded(other, 0), other).to_records()


# ---------------------------------------------------------------- sub-goals
def script(*said):
    """The planner writes said[0]; the executor's turn t says said[t]."""
    return lambda context, key: said[key.turn]


@pytest.mark.parametrize("rules", [FULL, WINDOW], ids=["full", "window"])
def test_a_sub_goal_is_ticked_off_beside_an_action(count, rules):
    s = acting(count, script("one, two", "x<sub_done>", "z"), rules=rules)
    forest = PlanExecute(blueprints=1, plan_tokens=12).grow(seeded(s, 0), s)
    _, first, second = turns_of(forest, 0)
    assert first["context"] == "count\n\nSub-goal: one\n\n2 left\n>" and first["state"] == "2|one"
    messages = "Sub-goal: two\n\n1 left\n>"
    if rules is FULL:
        assert second["context"] == f"{first['context']}x<sub_done>{messages}"
    else:
        assert second["context"] == f"count\n\n{messages}"
    assert second["state"] == "1|two" and forest.outcome.tolist() == [1.0]
    assert forest.info[0]["moves"] == 2 and forest.info[0]["sub_goals"] == ["one", "two"]


def test_a_tick_alone_takes_no_turn_of_the_environment(count):
    s = acting(count, script("one,two", "x", "<sub_done>", "z"), rules=WINDOW)
    forest = PlanExecute(blueprints=1).grow(seeded(s, 0), s)
    _, _, tick, last = turns_of(forest, 0)
    assert tick["info"] == {"aside": "sub_done"} and tick["context"] == "count\n\nSub-goal: one\n\n1 left\n>"
    assert last["context"] == "count\n\nSub-goal: two\n\n1 left\n>" and forest.outcome.tolist() == [1.0]
    assert forest.info[0]["moves"] == 2 and forest.step_reward.isfinite().tolist() == [False, True, False, True]


def test_the_last_sub_goal_stays(count):
    s = acting(count, script("one", "<sub_done>", "x<sub_done>", "x"), rules=WINDOW)
    forest = PlanExecute(blueprints=1).grow(seeded(s, 0), s)
    _, empty, second, third = turns_of(forest, 0)
    assert empty["info"] == {"action_error": "malformed"}  # the environment is told an empty action
    assert second["info"] == {} and third["context"] == "count\n\nSub-goal: one\n\n1 left\n>"
    assert forest.outcome.tolist() == [1.0] and forest.info[0]["moves"] == 3


def test_a_plan_without_words_is_one_empty_sub_goal(count):
    s = acting(count, script(" ", "x", "x"))
    forest = PlanExecute(blueprints=1).grow(seeded(s, 0), s)
    assert forest.info[0]["sub_goals"] == [""] and turns_of(forest, 0)[1]["context"].startswith(
        "count\n\nSub-goal: \n\n"
    )


def test_templates_say_what_is_asked(count):
    s = acting(count, script("{prompt}", "x", "x"))
    part = PlanExecute(blueprints=1, plan_prompt="Plan: {prompt}", execute_prompt="{prompt} ({plan})")
    forest = part.grow(seeded(s, 0), s)
    plan, first, _ = turns_of(forest, 0)
    assert plan["context"] == "count\n\nPlan: 2 left\n>"
    assert first["context"] == "count\n\n2 left\n> ({prompt})"  # what a plan says is never a hole
    calls = [{"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}]
    assert [m["content"] for m in fill_template("{plan}:{prompt}", calls, "go")] == ["a", "go:b"]


# ---------------------------------------------------------------- together
def test_plans_and_executions_in_one_group(count):
    s = acting(count, plans("ax", "b"))
    forest = Planned(plans=2, executions=3, plan_tokens=6).grow(seeded(s, 0), s)
    assert forest.outcome.tolist() == [1.0] * 3 + [0.0] * 3 and set(forest.group) == {"s1/steps/0"}
    assert [info["plan"] for info in forest.info] == [0, 0, 0, 1, 1, 1] and s.budget.discarded == 0
    rows = [turns_of(forest, r) for r in range(6)]
    assert all(t["trained"] == [True] for row in rows for t in row)
    assert rows[0][0]["tokens"] == rows[2][0]["tokens"] != rows[3][0]["tokens"] == rows[5][0]["tokens"]
    shared = 2 * (len(rows[0][0]["tokens"]) + len(rows[3][0]["tokens"]))
    assert s.budget.generated_tokens == forest.n_entries - shared


# ---------------------------------------------------------------- with a model
@pytest.mark.parametrize("rules", [EpisodeRules(6), EpisodeRules(6, "window", 1)], ids=["full", "window"])
@pytest.mark.parametrize("step", [MACRO, MICRO])
def test_the_learner_reads_what_was_sampled(model, doors, rules, step):
    s = acting(doors, model=model, step=step, rules=rules, sampling=Sampling(max_new_tokens=3))
    forest = PlanExecute(blueprints=3, group_size=3).grow(seeded(s, 1, 2), s)
    trained = forest.path_trainable
    learner = TorchLearner(model, lr=1e-3)
    actual = learner.outputs(forest)["logprob"]
    assert torch.allclose(actual[trained], forest.path_behaviour_logprob[trained], rtol=0, atol=1e-9)
    assert torch.allclose(learner.outputs(forest.flatten())["logprob"], actual, rtol=0, atol=1e-9)
    assert plain(Forest.from_records(forest.to_records())) == plain(forest)


def plain(forest):
    return json.dumps(list(forest.to_records()), default=str)


def test_nothing_depends_on_what_else_is_in_the_batch(model, doors):
    def grown(*seeds):
        s = acting(doors, model=model, step=MICRO, sampling=Sampling(max_new_tokens=3))
        return PlanExecute(blueprints=2, group_size=3).grow(seeded(s, *seeds), s)

    together, single_value = grown(1, 2).select(range(3, 6)), grown(2)
    assert plain(grown(2)) == plain(single_value)
    for column in ("token", "parent", "first_token", "trainable", "path_token"):
        assert torch.equal(getattr(together, column), getattr(single_value, column)), column
    assert together.id == single_value.id and torch.equal(together.outcome, single_value.outcome)


def test_held_out_tasks_are_attempted_by_plan_and_execution(model, doors):
    s = acting(doors, model=model, step=-1, sampling=Sampling(0.0, max_new_tokens=3))
    forest, same = (part.evaluation(2).grow(seeded(s, 1, 2), s) for part in (PlanExecute(), Planned()))
    assert forest.task == ["steps/1"] * 2 + ["steps/2"] * 2
    assert all([t["agent"] for t in turns_of(forest, r)][:2] == ["planner", "executor"] for r in range(4))
    assert same.id == forest.id and torch.equal(same.token, forest.token)


def test_an_environment_that_breaks_costs_its_attempts_alone():
    with EnvPool(source(STEPS, {"crash": 1, "good": "x", "start": 2}), workers=0) as pool:  # seed 0 breaks
        s = acting(pool, plans("x", "x"), step=MICRO)
        forest = PlanExecute(blueprints=2, group_size=2).grow(seeded(s, 0, 2), s)
    assert forest.scored.tolist() == [False, False, True, True] and forest.info[0]["end"] == "raised"


def test_a_context_without_room_for_a_plan_or_an_action(count):
    s = acting(count, plans("x", "x"), rules=EpisodeRules(20, max_context=20))
    forest = PlanExecute(blueprints=2).grow(seeded(s, 0), s)
    assert forest.n_entries == 0 and {info["end"] for info in forest.info} == {"context"}
    assert forest.success.tolist() == [0.0, 0.0]
