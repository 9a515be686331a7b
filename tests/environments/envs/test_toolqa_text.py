"""Calls of ToolQA in text: plain calls, answers, and calls that can't be read."""

import pytest

from gxpo.parts.protocols import ToolCall
from gxpo_worlds.toolqa import ToolQA


def test_calls_that_can_t_be_read_are_answered_after_the_others():
    env = ToolQA(kinds=["calculator"])
    env.reset(0)
    step = env.call("", [ToolCall("", error="not JSON"), ToolCall("calculator", {"expression": "1+1"}), ToolCall("x")])
    assert [message["role"] for message in step.observation] == ["tool", "tool", "user"]
    assert [message["content"] for message in step.observation][0::2] == ["2", "Error: not JSON"]
    assert step.action_error == "malformed"


def test_a_turn_without_call_and_answer_is_malformed():
    env = ToolQA(kinds=["table"])
    env.reset(0)
    step = env.call("I think it is 7.", [])
    assert step.action_error == "malformed"
    assert step.observation == "No tool call and no answer. The tools are calculator, lookup, finish."


def test_calls_in_plain_text():
    env = ToolQA(kinds=["calculator"])
    env.reset(0)
    step = env.step(
        'Two: <tool_call>{"name": "calculator", "arguments": {"expression": "1+1"}}</tool_call>'
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2*2"}}\n</tool_call>'
    )
    assert [message["content"] for message in step.observation] == ["2", "4"]
    for text in ("{", "[1]", '{"name": 3}', '{"name": "calculator", "arguments": "1+1"}'):
        assert env.step(f"<tool_call>{text}</tool_call>").action_error == "malformed"


def test_the_answer_is_the_last_one_and_stands_without_calls():
    env = ToolQA(kinds=["calculator"])
    env.reset(0)
    right = env.expert() and env._question.answer
    half = env.call("<answer>1</answer>", [ToolCall("calculator", {"expression": "1"})])
    assert not half.done
    assert env.call(f"<answer>1</answer> or rather <answer> {right} </answer>", []).success
    env.reset(0)
    wrong = env.call(f"<answer>{right}</answer> or rather <answer>0.5</answer>", [])
    assert (wrong.done, wrong.success, wrong.reward, wrong.truncated) == (True, False, 0.0, False)
    assert wrong.info["answer"] == "0.5" and wrong.info["expected"] == right


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000])
def test_calls_that_python_can_t_read(text: str):
    env = ToolQA(kinds=["calculator"])
    env.reset(0)
    assert env.step(f"<tool_call>{text}</tool_call>").action_error == "malformed"
