"""Episodes that the real library plays against gxpo's endpoint: prompts, rewards, tools, failures, limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.sampling.serve.agent_session import END, TOKENIZER, session

from gxpo.environments.verifiers.tasks import VerifiersTasks
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.agent import AgentEpisodes

PLAY = "gxpo.environments.verifiers.episodes:play"
CALL = '<tool_call>\n{"name": "counter_bump", "arguments": {"by": 2}}\n</tool_call>'


def tasks_of(folder: Any, module: str, **options: Any) -> list[Task]:
    source = VerifiersTasks(f"verifiers:{folder}/{module}.py", options)
    return sorted((*source.training, *source.held_out(99)), key=lambda t: t.id)


def grown(tasks: list[Task], say: Any, group_size: int = 1, **given: Any) -> tuple[Any, Any]:
    options = {k: given.pop(k) for k in list(given) if k in AgentEpisodes.__dataclass_fields__}
    rollout_session = session(say, **given)
    rollout_session.know(tasks)
    return AgentEpisodes(PLAY, group_size=group_size, **options).grow(tasks, rollout_session), rollout_session


def named(forest: Any, row: int, name: str) -> float:
    return forest.components[row, forest.component_names.index(name)].item()


def test_rewards_are_the_weighted_sum_of_the_rubric(library_envs: Any) -> None:
    tasks = tasks_of(library_envs, "vf_sums", most=3)
    said = {"What is 0+1?": "1", "What is 1+1?": "nothing", "What is 2+1?": "3"}
    forest, built = grown(tasks, lambda read, key: next(v for k, v in said.items() if k in read))
    # right and brief: 2 * 1 + 0.5 * 1; wrong and long: 0
    assert forest.outcome.tolist() == [2.5, 0.0, 2.5] and forest.success.tolist() == [1.0, 0.0, 1.0]
    assert [named(forest, r, "length") for r in range(3)] == [1.0, 7.0, 1.0]
    assert [named(forest, r, "correct") for r in range(3)] == [1.0, 0.0, 1.0]
    prompt = TOKENIZER.decode(list(built.engine.requests[0].prompt))
    assert "Answer.<|im_end|>\n<|im_start|>user\nWhat is " in prompt


def test_a_conversation_goes_on_from_the_sampled_ids(library_envs: Any) -> None:
    task = next(t for t in tasks_of(library_envs, "vf_talk") if "green" not in t.id)
    word = ("red", "blue", "green", "grey")[int(task.id.rsplit("/", 1)[-1])]
    says = {1: word, 2: "no", 3: word}
    forest, built = grown([task], lambda read, key: says[read.count("<|im_start|>assistant")])
    assert forest.outcome.item() == pytest.approx(2 / 3) and forest.n_steps == 3
    texts = [TOKENIZER.decode(list(r.prompt)) for r in built.engine.requests]
    turns = [f"<|im_start|>user\nsay {word} ({k})<|im_end|>\n<|im_start|>assistant\n" for k in range(3)]
    replies = [f"{said}<|im_end|>\n" for said in (word, "no")]
    assert texts[2] == f"<|im_start|>system\nObey.<|im_end|>\n{turns[0]}{replies[0]}{turns[1]}{replies[1]}{turns[2]}"
    ids = [*built.engine.requests[0].prompt, *TOKENIZER(word, add_special_tokens=False).input_ids, END]
    assert built.engine.requests[1].prompt[: len(ids)] == tuple(ids)
    assert forest.info[0]["agent"]["contexts"] == 1
    about = {"stop": ["user_closed"], "turns": [3], "timeout": False, "values": {"said": pytest.approx(2 / 3)}}
    assert forest.info[0]["verifiers"] == about


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        ("break", "raised", "the world broke"),
        ("unscorable", "raised", "no score"),
        ("hang", "timeout", "rollout.timeout"),
    ],
)
def test_a_failure_costs_its_rollout_alone(library_envs: Any, reply: str, kind: str, message: str) -> None:
    (task, *_) = tasks_of(library_envs, "vf_talk")
    forest, _ = grown([task], lambda read, key: reply if key.attempt == 1 else "x", 2, timeout=2.0)
    assert forest.outcome[0].item() == 0.0 and math.isnan(forest.outcome[1].item())
    assert forest.info[1]["agent"]["end"] == kind and message in forest.info[1]["failure"]


def test_a_limit_of_calls_is_a_failure_of_the_policy(library_envs: Any) -> None:
    (task, *_) = tasks_of(library_envs, "vf_talk")
    forest, _ = grown([task], lambda read, key: "x", max_calls=2)
    assert forest.outcome.item() == 0.0 and forest.info[0]["agent"]["end"] == "turns" and forest.n_steps == 2


def test_limits_and_sampling_of_a_seat_are_the_librarys(library_envs: Any) -> None:
    (task, *_) = tasks_of(library_envs, "vf_talk", env={"agent": {"max_turns": 1, "sampling": {"temperature": 0.1}}})
    forest, _ = grown([task], lambda read, key: "x")
    assert forest.n_steps == 1 and forest.info[0]["verifiers"]["stop"] == ["max_turns"]
    # the run's temperature holds, and the request is counted
    assert forest.info[0]["agent"]["overridden"] == 1


def test_seats_of_a_team_are_paid_the_mean(library_envs: Any) -> None:
    (task, *_) = tasks_of(library_envs, "vf_seats", team_reward="mean")
    replies = iter(["abc", "abcde"])
    forest, _ = grown([task], lambda read, key: next(replies))
    assert forest.outcome.item() == 4.0 and forest.n_steps == 2
    assert forest.info[0]["verifiers"]["turns"] == [1, 1]
    assert [forest.agent_names[a] for a in forest.step_agent.tolist()] == ["first", "second"]


@pytest.mark.slow
def test_calls_of_tools_reach_the_servers_of_their_rollout(library_envs: Any) -> None:
    (task, *_) = tasks_of(library_envs, "vf_tools")
    says = {1: CALL, 2: CALL.replace("2}", '"much"}'), 3: CALL.replace("bump", "sink"), 4: CALL, 5: "done"}
    one = {1: CALL, 2: "done"}

    def say(read: str, key: Any) -> str:
        return (says if key.attempt == 0 else one)[read.count("<|im_start|>assistant")]

    forest, built = grown([task], say, 2)
    assert forest.outcome.tolist() == [4.0, 2.0]
    last = max((TOKENIZER.decode(list(r.prompt)) for r in built.engine.requests), key=len)
    assert '"name": "counter_bump"' in last and "Add to the count." in last
    assert "<tool_response>\ncount is 2\n</tool_response>" in last
    assert "<tool_response>\ncount is 4\n</tool_response>" in last
    assert "there is no tool 'counter_sink'" in last


def test_check_env_plays_it_and_says_what_breaks(library_envs: Any) -> None:
    from gxpo.explain.check_env import check

    report = check(f"verifiers:{library_envs}/vf_talk.py", {"limit": 2}, episodes=1)
    assert (report.problems, report.episodes, report.turns, report.contents) == ((), 4, 12, 2)
