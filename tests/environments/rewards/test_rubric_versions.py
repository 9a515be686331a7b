"""A rubric that a model rewrites: when, from what, what a bad reply costs, and that the checkpoint has every
version."""

import pytest
from tests.environments.rewards.test_judged import answer_in, function, grown

from gxpo.environments.rewards.judge import judge_reward
from gxpo.environments.rewards.rubric_versions import read_rubric

NEW = "Too kind.\n[begin rubric]\nIs it right?\n[end rubric]"


def made(reply, **refresh):
    requests = []
    judge = function(lambda q: requests.append(q) or f"Score: {answer_in(q)}")
    writer = function(lambda q: requests.append(q) or reply)
    return judge_reward(
        {"teacher": judge, "rubric": "Is it long?", "refresh": {"teacher": writer, "every": 2, **refresh}}
    ), requests


def scored(reward, groups):
    forest, texts, tasks = grown(groups)
    actual = reward(forest, texts, tasks)
    return forest.with_rewards(actual["judge"], components=actual), texts, tasks


def test_every_second_step_from_what_was_scored():
    reward, requests = made(NEW, samples=2)
    forest, texts, tasks = scored(reward, {"g": ["1", "5", "9"]})
    assert forest.components[:, forest.component_names.index("rubric_version")].tolist() == [1, 1, 1]
    reward.observe(1, forest, texts, tasks)
    assert len(requests) == 3
    reward.observe(2, forest, texts, tasks)
    assert "# Rubric\nIs it long?" in requests[-1] and "score 0.10" in requests[-1] and "score 0.90" not in requests[-1]
    scored(reward, {"g": ["7"]})
    assert requests[-1].startswith("Is it right?")
    assert reward.versions == [(1, "Is it long?"), (3, "Is it right?")]


def test_a_reply_without_a_rubric_costs_the_refresh_alone():
    reward, _ = made("I would ask for more.")
    forest, texts, tasks = scored(reward, {"g": ["1"]})
    with pytest.warns(UserWarning, match="step 2: the rubric stays as it is"):
        reward.observe(2, forest, texts, tasks)
    assert reward.versions == [(1, "Is it long?")]
    with pytest.raises(ValueError, match="no rubric between"):
        read_rubric("[begin rubric]\n \n[end rubric]")


def test_a_resumed_judge_asks_by_the_newest_rubric():
    reward, _ = made(NEW)
    reward.observe(2, *scored(reward, {"g": ["1"]}))
    again, requests = made(NEW)
    again.load_state_dict(reward.state_dict())
    assert scored(again, {"g": ["1"]})[0].components[0, 1] == 2 and requests[0].startswith("Is it right?")
