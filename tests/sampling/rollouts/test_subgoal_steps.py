"""Sub-goals of single steps, judged by one action under each."""

from __future__ import annotations

import json

import pytest
import torch
from tests.sampling.rollouts.acting_session import acting, seeded, turns_of

from gxpo.algorithms.credit import GroupRelative
from gxpo.base.errors import ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.environments.rewards.shape import Shape
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import EnvFailure, EpisodeRules, Reply, Sampling
from gxpo.sampling.rollouts.subgoal_steps import SubgoalSteps
from gxpo.training.models import tiny_model


@pytest.fixture(scope="module")
def model():
    return tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=2).to(torch.float64)


@pytest.fixture(scope="module")
def doors():
    with EnvPool(source("keydoor", {"style": "bare", "size": 4}), workers=0) as pool:
        yield pool


def knows(envs, seed):
    """Observation and expert's text of each turn."""
    (step,) = envs.reset({"by hand": seed}).values()
    out = []
    while not step.done:
        out.append((step.observation, envs.expert(["by hand"])["by hand"], step.state))
        (step,) = envs.step({"by hand": Reply(out[-1][1])}).values()
    return out


def obeys(envs, seed):
    """Sub-goal i is "yes" or "no" in turn; under "yes" the executor does as the expert, under "no" it says Z."""
    best = {observation: text for observation, text, _ in knows(envs, seed)}

    def say(context, key):
        if "Sub-goal: " not in context:
            return ("yes", "no", "no", "yes")[key.attempt]
        return best[context.split("\n\n", 1)[1]] if "Sub-goal: yes" in context else "Z"

    return say


def test_sub_goals_are_judged_by_the_action_under_them(doors):
    s = acting(doors, obeys(doors, 5))
    forest = SubgoalSteps(group_size=4, executions=2, steps=0).grow(seeded(s, 5), s)
    way = knows(doors, 5)
    assert forest.n_trajectories == 6 * len(way)
    high = [r for r, group in enumerate(forest.group) if not group.endswith("/low")]
    for place, (observation, text, state) in enumerate(way):
        rows = high[4 * place : 4 * place + 4]
        assert {forest.group[r] for r in rows} == {f"s1/steps/5/t{place}"}
        for r, goal in zip(rows, ("yes", "no", "no", "yes"), strict=True):
            plan, act = turns_of(forest, r)
            assert (plan["agent"], plan["context"], plan["said"], plan["trained"]) == (
                "planner",
                observation,
                goal,
                [True],
            )
            assert act["agent"] == "executor" and act["trained"] == [False] and act["state"] == f"{state}|{goal}"
            assert act["context"] == f"Sub-goal: {goal}\n\n{observation}"
            right = goal == "yes"
            assert act["said"] == (text if right else "Z")
            assert forest.info[r] == {"format": 1.0, "execution": float(right), "sub_goal": goal}
            paid = float(right and place == len(way) - 1)
            assert forest.outcome[r] == paid and forest.step_reward[forest.step_trajectory == r][1] == paid
        # r = .1 + [1, 0, 0, 1] (+ 1 for the goal reached): the same z for all places
        credit = GroupRelative()(forest.with_rewards(Shape("noted")(forest)), {}, 0)
        actual = [float(credit[forest.path_of(r)][0]) for r in rows]
        assert actual == pytest.approx([0.866025, -0.866025, -0.866025, 0.866025], abs=2e-6)
    assert s.budget.generated_tokens == forest.n_entries and s.budget.rollouts == 6 * len(way)
    assert len(set(s.engine.streams)) == len(s.engine.streams)


def test_the_low_level_has_groups_and_rewards_of_its_own(doors):
    s = acting(doors, lambda context, key: ("U", "Z")[key.path[-1] % 2] if len(key.path) > 1 else "yes")
    forest = SubgoalSteps(group_size=2, executions=4).grow(seeded(s, 5), s)
    low = [r for r, group in enumerate(forest.group) if group.endswith("/low")]
    assert len(low) == 4 and forest.outcome[low].tolist() == [0.0] * 4
    for j, r in enumerate(low):
        (act,) = turns_of(forest, r)
        assert act["agent"] == "executor" and act["trained"] == [True] and act["said"] == ("U", "Z")[j % 2]
        assert forest.info[r]["format"] == float(j % 2 == 0) and forest.info[r]["sub_goal"] == "yes"
    assert not bool(forest.success[low].isfinite().any())
    assert SubgoalSteps(group_size=2, executions=0).grow(seeded(s, 5), s).n_trajectories == 2


def test_perfect_executor_leaves_only_differences_of_form(doors):
    """All differences are then the planner's form."""
    right = obeys(doors, 5)

    def say(context, key):
        return right(context.replace("Sub-goal: no", "Sub-goal: yes"), key)

    s = acting(doors, say)
    forest = SubgoalSteps(group_size=4, executions=3).grow(seeded(s, 5), s)
    assert {info["execution"] for info in forest.info} == {1.0}
    assert bool((GroupRelative()(forest.with_rewards(Shape("noted")(forest)), {}, 0) == 0).all())


@pytest.mark.parametrize("rules", [EpisodeRules(40), EpisodeRules(40, "window", 2)], ids=["full", "window"])
def test_the_learner_reads_what_was_sampled(model, doors, rules):
    s = acting(doors, model=model, rules=rules, sampling=Sampling(max_new_tokens=3))
    forest = SubgoalSteps(group_size=3, executions=3, steps=2).grow(seeded(s, 5, 6), s)
    learner = TorchLearner(model, lr=1e-3)
    actual = learner.outputs(forest)["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)
    assert torch.allclose(learner.outputs(forest.flatten())["logprob"], actual, rtol=0, atol=1e-9)
    plain = [json.dumps(list(f.to_records()), default=str) for f in (forest, Forest.from_records(forest.to_records()))]
    assert plain[0] == plain[1]


def test_held_out_tasks_are_played_in_turns(doors):
    s = acting(doors, obeys(doors, 5), step=-1)
    forest = SubgoalSteps().evaluation(1).grow(seeded(s, 5), s)
    way = knows(doors, 5)
    message = [(t["agent"], t["said"]) for t in turns_of(forest, 0)]
    assert message == [x for _, text, _ in way for x in (("planner", "yes"), ("executor", text))]
    assert forest.success.tolist() == [1.0] and forest.outcome.tolist() == [1.0] and forest.info[0]["moves"] == len(way)
    assert s.budget.generated_tokens == forest.n_entries and len(set(s.engine.streams)) == 2 * len(way)


def test_roles_may_have_adapters_of_their_own(doors):
    s = acting(doors, obeys(doors, 5))
    part = SubgoalSteps(group_size=2, executions=1, policy="per_role")
    forest = part.grow(seeded(s, 5), s)
    assert part.policies == {"planner": "trained", "executor": "trained"}
    assert SubgoalSteps().policies == {"main": "trained"}
    listed_policy_names = [
        forest.policy_names[int(forest.policy[forest.step_action[i]])] for i in range(forest.n_steps)
    ]
    assert listed_policy_names == [forest.agent_names[i] for i in forest.step_agent.tolist()]
    assert {r.policy for requests, _ in s.engine.calls for r in requests} == {"planner", "executor"}


def test_what_breaks_is_unscored(doors):
    class Broken:
        def __getattr__(self, name):
            return getattr(doors, name)

        def restore(self, snapshots):
            return dict.fromkeys(snapshots, EnvFailure("raised", "no way back"))

    s = acting(doors, obeys(doors, 5))
    s.envs = Broken()
    forest = SubgoalSteps(group_size=2, executions=2).grow(seeded(s, 5), s)
    assert forest.n_trajectories == 4 and not bool(forest.scored.any())
    assert {info["failure"] for info in forest.info} == {"no way back"}


@pytest.mark.parametrize(
    "fields",
    [{"group_size": 0}, {"executions": -1}, {"steps": -1}, {"plan_tokens": 0}, {"plan_prompt": "?"},
     {"execute_prompt": "{plan}"}, {"policy": "two"}],
)  # fmt: skip
def test_impossible_settings_are_refused(fields):
    with pytest.raises(ConfigError, match=f"rollout.{next(iter(fields))}"):
        SubgoalSteps(**fields)
