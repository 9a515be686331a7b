"""Single steps behind an expert's history."""

from __future__ import annotations

import pytest
import torch
from tests.sampling.rollouts.acting_session import END, acting, read, seeded, turns_of

from gxpo.algorithms.credit import GroupRelative
from gxpo.base.errors import ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import EpisodeRules, Reply, Sampling, ToolCall
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.expert_prefix import ExpertSteps, draw_places, expert_ways, named_call
from gxpo.training.models import tiny_model

FULL, WINDOW = EpisodeRules(40), EpisodeRules(40, "window", 0)


@pytest.fixture(scope="module")
def model():
    return tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=2).to(torch.float64)


@pytest.fixture(scope="module")
def doors():
    with EnvPool(source("keydoor", {"style": "bare", "size": 4}), workers=0) as pool:
        yield pool


def walked(envs, seed):
    """Observation, state and expert's text of each turn of the expert's episode, by hand."""
    (step,) = envs.reset({"by hand": seed}).values()
    out = []
    while not step.done:
        text = envs.expert(["by hand"])["by hand"]
        out.append((step.observation, step.state, text))
        (step,) = envs.step({"by hand": Reply(text)}).values()
    assert step.success
    return out


def silent(context, key):
    return "U"


@pytest.mark.parametrize("rules", [FULL, WINDOW], ids=["full", "window"])
def test_every_step_of_an_experts_way_is_a_prompt(doors, rules):
    s = acting(doors, silent, rules=rules)
    forest = ExpertSteps(group_size=3, steps=0).grow(seeded(s, 5), s)
    way = walked(doors, 5)
    assert forest.n_trajectories == 3 * len(way) > 9
    for t, (observation, state, text) in enumerate(way):
        before = [f"{seen_value}{did}" for seen_value, _, did in way[:t]] if rules is FULL else []
        for r in range(3 * t, 3 * t + 3):
            (step,) = turns_of(forest, r)
            assert forest.group[r] == f"s1/steps/5/t{t}" and step["state"] == state
            assert step["context"] == "".join([*before, observation])
            assert forest.info[r] == {"call": ["U", ""], "expert": [text, ""], "last": t == len(way) - 1, "turn": t}
            assert forest.outcome[r] == float(text == "U")
    assert s.budget.generated_tokens == forest.n_entries and s.budget.rollouts == 3 * len(way)
    assert len(set(s.engine.streams)) == len(s.engine.streams)
    if rules is FULL:  # what the expert wrote ends as an action does
        last = s.engine.calls[0][0][-1].prompt
        assert last.count(END) == len(way) - 1


def test_the_expert_is_not_sampled_and_its_texts_are_not_trained(doors, model):
    s = acting(doors, model=model, rules=FULL, sampling=Sampling(max_new_tokens=2))
    forest = ExpertSteps(group_size=2, steps=2).grow(seeded(s, 5, 6), s)
    assert s.budget.generated_tokens == forest.n_entries == int(forest.path_trainable.sum())
    actual = TorchLearner(model, lr=1e-3).outputs(forest)["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)


def test_steps_are_drawn_for_each_task_and_step_of_the_run(doors):
    def drawn(step, *seeds):
        s = acting(doors, silent, step=step)
        forest = ExpertSteps(group_size=1, steps=2).grow(seeded(s, *seeds), s)
        return [group.split("/", 1)[1] for group in forest.group]

    assert drawn(1, 5, 6) == drawn(1, 5) + drawn(1, 6) and len(set(drawn(1, 5))) == 2
    assert len({tuple(drawn(step, 5)) for step in range(1, 9)}) > 1


def test_groups_of_steps_never_mix(doors):
    """The same rewards in groups of their own: GRPO on independent prompts."""
    s = acting(doors, silent)
    forest = ExpertSteps(group_size=2, steps=0).grow(seeded(s, 5), s)
    n = forest.n_trajectories
    forest = forest.with_rewards(torch.arange(n, dtype=torch.float64).square())
    credit = GroupRelative()(forest, {}, 0)
    rows = [float(credit[forest.path_of(r)][0]) for r in range(n)]
    assert rows == pytest.approx([-(0.5**0.5), 0.5**0.5] * (n // 2), abs=1e-5)


def test_places_know_what_the_expert_did_and_where_it_led(doors):
    s = acting(doors, silent)
    way = walked(doors, 5)
    with Play(s, restorable=True) as play:
        (places,) = expert_ways(play, seeded(s, 5), ["steps/5"])
        assert [(p.time_step.observation, p.time_step.state, p.expert_reply.content) for p in places] == way
        assert [p.expert_next_state for p in places[:-1]] == [state for _, state, _ in way[1:]] and "*" in places[
            -1
        ].expert_next_state
        assert [p.last for p in places] == [False] * (len(way) - 1) + [True]
        assert draw_places([places], 99, s) == places and len(draw_places([places], 2, s)) == 2
    assert read(places[1].episode.snapshots[1].context.ids).startswith(way[0][0] + way[0][2])


def test_what_a_reply_does():
    assert named_call(Reply("", None, (ToolCall("lookup", {"row": "b", "column": 3}),))) == ("lookup", "b 3")
    assert named_call(Reply("", None, (ToolCall("a"), ToolCall("b"))))[0] == ""
    assert named_call(Reply("", None, (ToolCall("a", {}, None, "no such tool"),)))[0] == ""
    assert named_call(Reply("left then <action>click[4]</action>")) == ("click", "[4]")
    assert named_call(Reply("#888")) == ("", "#888") and named_call(Reply("")) == ("", "")
    assert named_call(Reply('{"name": 3}')) == ("", '{"name": 3}')


class Lost:
    """An expert that does not know."""

    def __init__(self, pool, says):
        self.pool, self.says = pool, says

    def __getattr__(self, name):
        return getattr(self.pool, name)

    def expert(self, names):
        return dict.fromkeys(names, self.says)


def test_what_an_expert_cannot_do_is_said(doors):
    with pytest.raises(Exception, match="no task of the step has an expert's way"):
        s = acting(Lost(doors, None), silent)
        ExpertSteps().grow(seeded(s, 5), s)
    with pytest.raises(Exception, match="calls what its expert does malformed"):
        s = acting(Lost(doors, "?"), silent)
        ExpertSteps().grow(seeded(s, 5), s)
    with pytest.raises(ConfigError, match=r"rollout.group_size"):
        ExpertSteps(group_size=0)


def test_tools_of_a_world_are_named():
    with EnvPool(source("toolqa", {"kinds": ["calculator"], "hops": [2]}), workers=0) as pool:
        s = acting(pool, lambda context, key: "<tool>calculator({\"expression\": \"1+1\"})</tool>",
                   sampling=Sampling(max_new_tokens=60))  # fmt: skip
        forest = ExpertSteps(group_size=1, steps=0).grow(seeded(s, 3), s)
    names = [(info["expert"][0], info["last"]) for info in forest.info]
    assert names[0] == ("calculator", False) and names[-1] == ("finish", True)
    assert all(info["call"] == ["calculator", "1+1"] for info in forest.info)


def test_an_action_may_be_compared_by_the_state_that_it_leads_to(doors):
    s = acting(doors, lambda context, key: ["U", "D", "?"][key.attempt], rules=WINDOW)
    forest = ExpertSteps(group_size=3, steps=0, match_on="state").grow(seeded(s, 5), s)
    way = walked(doors, 5)
    for t in range(len(way)):
        for j, message in enumerate(("U", "D", "?")):
            (step,) = doors.reset({"there": 5}).values()
            for _, _, text in way[: t + 1]:
                (after,) = doors.step({"there": Reply(text)}).values()
            doors.reset({"tried": 5})
            for _, _, text in way[:t]:
                doors.step({"tried": Reply(text)})
            (step,) = doors.step({"tried": Reply(message)}).values()
            r = 3 * t + j
            assert forest.outcome[r] == float(step.state == after.state) and forest.n_steps == forest.n_trajectories
            assert forest.info[r]["format"] == float(message != "?")
            assert forest.step_info[r].get("action_error") == step.action_error
    assert 0 < forest.outcome.sum() < len(way) and s.budget.rollouts == forest.n_trajectories
    assert s.budget.generated_tokens == forest.n_entries
