import ast
import json
import operator
import random
import re
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.parts.protocols import TimeStep, ToolCall
from gxpo_worlds.toolqa import KINDS, ToolQA
from gxpo_worlds.toolqa_corpus import encyclopaedia

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def python_value(expression: str) -> Fraction:
    """What Python's own parser makes of an expression, in fractions."""

    def walk(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return OPERATIONS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.UnaryOp):
            return -walk(node.operand) if isinstance(node.op, ast.USub) else walk(node.operand)
        assert isinstance(node, ast.Constant)
        return Fraction(str(node.value))

    return walk(ast.parse(expression, mode="eval").body)


numbers = st.one_of(st.integers(0, 999).map(str), st.decimals(0, 99, places=2).map(str))


@pytest.mark.parametrize("style", ["chat", "bare"])
@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("kind", list(KINDS))
def test_the_expert_is_always_right(style: str, hops: int, kind: str):
    if style == "bare" and kind in ("retrieval", "mixed"):
        with pytest.raises(ConfigError, match="kinds must name some of calculator, table"):
            ToolQA(style=style, kinds=[kind])
        return
    env = ToolQA(style=style, kinds=[kind], hops=[hops])
    looked_up = {"calculator": 1, "table": hops + (hops > 1), "retrieval": hops, "mixed": hops + 1}[kind]
    for seed in range(40):
        step, turns, seen_text = env.reset(seed), 0, ""
        while not step.done:
            action = env.expert()
            step, turns = env.step(action), turns + 1
            assert step.action_error is None
            seen_text += step.observation if style == "bare" else step.observation[0]["content"]
        assert step.success and step.reward == 1.0 and turns == looked_up + 1
        assert step.info["expected"] in seen_text  # the answer stood in what the tools said
        assert (step.info["kind"], step.info["hops"]) == (kind, hops)
        assert env.expert() is None


def test_an_episode_worked_by_hand():
    env = ToolQA(style="bare", kinds=("table",), hops=(2,))
    step = env.reset(3)
    question, numbers = step.observation.splitlines()[0], {}
    assert re.fullmatch(r"[a-d][1-4][+-][a-d][1-4]\?", question) and step.state == ""
    first, sign, second = question[:2], question[2], question[3:5]
    for cell in (second, first):
        step = env.step(cell)
        numbers[cell] = step.state.split(f"{cell}=")[1].split(";")[0]
    shown_cells = "\n".join(sorted(f"{cell}={number}" for cell, number in numbers.items()))
    assert step.observation == f"{question}\n{shown_cells}\n>"
    assert env.step("b9").action_error == "illegal" and env.step("1/0").action_error == "illegal"
    assert env.step("?!").action_error == "malformed" and env.step("").action_error == "malformed"
    expression = f"{numbers[first]}{sign}{numbers[second]}"
    step = env.step(expression)
    result = python_value(expression)
    assert step.observation == f"{question}\n{expression}={result}\n{shown_cells}\n>"
    assert (step.reward, step.done, step.action_error) == (0.0, False, None)
    end = env.step(f"#{result}")
    assert (end.reward, end.success, end.done, end.truncated) == (1.0, True, True, False)


def calls_of(*calls: tuple[str, dict]) -> list[ToolCall]:
    return [ToolCall(name, arguments, id=f"c{i}") for i, (name, arguments) in enumerate(calls)]


def test_every_call_is_answered_by_a_message_of_its_tool():
    env = ToolQA(kinds=["mixed"])
    env.reset(0)
    step = env.call("", calls_of(("calculator", {"expression": "2*21"}), ("search", {"query": "zzz"})))
    assert step.observation == (
        {"role": "tool", "name": "calculator", "tool_call_id": "c0", "content": "42"},
        {"role": "tool", "name": "search", "tool_call_id": "c1", "content": "No passage matches."},
    )
    title = encyclopaedia(0).titles[0]
    message = env.call("", [ToolCall("search", {"query": title, "k": 2})]).observation[0]
    passages = message["content"].split("\n")
    assert "tool_call_id" not in message and len(passages) == 2
    assert passages[0] == f"[{title}] {encyclopaedia(0).texts[0]}"


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            ToolCall("search", {"query": "a"}),
            "illegal",
            "There is no tool 'search'; the tools are calculator, lookup, finish",
        ),
        (ToolCall("calculator", {}), "illegal", "calculator needs the argument 'expression'"),
        (ToolCall("calculator", {"expression": "1+"}), "illegal", "A number is missing"),
        (
            ToolCall("calculator", {"expression": ["1"]}),
            "illegal",
            "calculator: the argument 'expression' must be of type string",
        ),
        (
            ToolCall("calculator", {"expression": True}),
            "illegal",
            "calculator: the argument 'expression' must be of type string",
        ),
        (
            ToolCall("calculator", {"text": "1"}),
            "illegal",
            "calculator has no argument 'text'; its arguments are expression",
        ),
        (
            ToolCall("lookup", {"table": "none", "row": "a", "column": "b"}),
            "illegal",
            "There is no table 'none'; there are",
        ),
        (ToolCall("finish", {}), "illegal", "finish needs the argument 'answer'"),
        (ToolCall("finish", error="the call is not JSON"), "malformed", "the call is not JSON"),
    ],
)
def test_calls_that_can_t_be_carried_out(call: ToolCall, error: str, says: str):
    env = ToolQA(kinds=["table"])
    state = env.reset(0).state
    step = env.call("", [call])
    assert (step.action_error, step.done, step.reward, step.state) == (error, False, 0.0, state)
    assert step.observation[0]["role"] == ("tool" if error == "illegal" else "user")
    assert step.observation[0]["content"].startswith(f"Error: {says}")


@pytest.mark.parametrize("k", [0, 6, "3", 2.0, True])
def test_how_many_passages_can_be_asked_for(k: object):
    env = ToolQA(kinds=["retrieval"])
    env.reset(0)
    assert env.call("", [ToolCall("search", {"query": "river", "k": k})]).action_error == "illegal"


def test_nothing_is_carried_out_after_the_answer():
    env = ToolQA(kinds=["calculator"])
    env.reset(0)
    calls = [("nothing", {}), ("finish", {"answer": 3}), ("calculator", {"expression": "1"})]
    end = env.call("", calls_of(*calls))
    assert end.done and end.success is False and end.action_error == "illegal" and len(end.observation) == 2
    assert end.info["answer"] == "3" and "1=1" not in end.state
    with pytest.raises(GxpoError, match="is over"):
        env.call("", [])


def test_a_state_is_the_set_of_results():
    env = ToolQA(kinds=["mixed"])
    name = encyclopaedia(0).titles[0]
    calls = [
        ToolCall("calculator", {"expression": "1+1"}),
        ToolCall("calculator", {"expression": "2 * 2"}),
        ToolCall("search", {"query": name}),
    ]
    ends = set()
    for order in permutations(calls):
        env.reset(1)
        for call in (*order, order[0]):  # once more changes nothing
            step = env.call("", [call])
        ends.add(step.state)
    env.reset(1)
    step = env.call("", [*calls[:2], ToolCall("search", {"query": name.upper(), "k": 3}), ToolCall("none")])
    assert {step.state} == ends and step.action_error == "illegal"


def wander(env: ToolQA, chance: random.Random) -> str:
    """The expert's call, a useless one, a wrong one or nothing."""
    call_text = json.dumps({"name": "calculator", "arguments": {"expression": f"{chance.randint(0, 3)}+1"}})
    useless = f"<tool_call>{call_text}</tool_call>"
    expert = env.expert()
    assert expert is not None
    return chance.choice([expert, expert, useless, "<tool_call>{}</tool_call>", "I wonder."])


def test_going_on_from_a_snapshot_is_going_on():
    env, copy, chance = ToolQA(), ToolQA(), random.Random(0)
    for seed in range(40):
        step = env.reset(seed)
        while not step.done:
            saved = env.snapshot()
            copy.restore(saved)
            assert copy.snapshot() == saved and copy.expert() == env.expert()
            action = wander(env, chance)
            step = env.step(action)
            assert copy.step(action) == step
        copy.restore(env.snapshot())
        with pytest.raises(GxpoError, match="is over"):
            copy.step("x")


def episode(env: ToolQA, seed: int) -> list[TimeStep]:
    steps, chance = [env.reset(seed)], random.Random(seed)
    while not steps[-1].done:
        steps.append(env.step(wander(env, chance)))
    return steps


def test_equal_seeds_and_actions_give_equal_episodes():
    one, other = ToolQA(), ToolQA()
    for seed in (0, 5, 2**40):
        assert episode(one, seed) == episode(other, seed)
        assert one.content(seed) == other.content(seed)
    assert len({one.content(seed) for seed in range(300)}) > 280
    assert {json.loads(one.content(seed))[0][:7] for seed in range(100)} >= {"What is", "In the "}


def test_the_last_turn_ends_the_episode():
    env = ToolQA(kinds=["calculator"], max_turns=2)
    env.reset(0)
    first, last = env.call("hm", []), env.call("", [ToolCall("calculator", {"expression": "1"})])
    assert (first.done, first.truncated, first.success) == (False, False, None)
    assert (last.done, last.truncated, last.success, last.reward) == (True, True, False, 0.0)


def test_the_tools_are_those_that_the_questions_need():
    def names(**options):
        return [schema["function"]["name"] for schema in ToolQA(**options).tools]

    assert names(kinds=("calculator",)) == ["calculator", "finish"]
    assert names(kinds=("retrieval",)) == ["search", "finish"]
    assert names() == ["calculator", "lookup", "search", "finish"]
    assert names(style="bare") == []
    for schema in ToolQA().tools:
        assert schema["type"] == "function"
        parameters = schema["function"]["parameters"]
        assert parameters["type"] == "object" and set(parameters["required"]) <= set(parameters["properties"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "html"}, "style must be"),
        ({"kinds": ["riddle"]}, "kinds must name some of calculator, table, retrieval, mixed"),
        ({"kinds": "calculator"}, "kinds must name"),
        ({"kinds": ["table", "table"]}, "kinds must name"),
        ({"hops": [4]}, "hops must name some of 1, 2, 3"),
        ({"hops": []}, "at least one"),
        ({"max_turns": 0}, "max_turns"),
        ({"corpus": -1}, "corpus"),
    ],
)
def test_bad_options(options: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        ToolQA(**options)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"seed": 0, "turn": 0, "finished": false, "made": [["calculator", {"expression": "1+"}]]}'],
)
def test_what_is_no_snapshot(text: str):
    env = ToolQA(kinds=["calculator"])
    with pytest.raises(GxpoError, match="no snapshot"):
        env.restore(text)
    with pytest.raises(GxpoError, match="has not begun"):
        env.step("x")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


named = st.sampled_from(["calculator", "lookup", "search", "finish", "x"])


arguments = st.sampled_from(["expression", "table", "row", "column", "query", "k", "answer"])


calls = st.builds(ToolCall, named, st.dictionaries(arguments, values, max_size=3))


@given(st.text(), st.lists(calls, max_size=3))
def test_whatever_is_said_is_answered(content: str, made: list[ToolCall]):
    env = ToolQA()
    env.reset(0)
    step = env.call(content, made)
    assert step.done or step.observation
    bare = ToolQA(style="bare")
    bare.reset(0)
    assert bare.step(content).state is not None
