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
from gxpo_worlds.toolqa_questions import ATTRIBUTES, RELATIONS
from gxpo_worlds.toolqa_tools import Refused, calculate, normalised, number_text

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
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", " + ", " - "]), inner).map("".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=7,
).filter(lambda text: len(text) <= 120)


@given(expressions)
def test_the_calculator_agrees_with_python(expression: str):
    try:
        expected = python_value(expression)
    except ZeroDivisionError:
        with pytest.raises(Refused, match="zero"):
            calculate(expression)
        return
    assert calculate(expression) == expected
    assert abs(Fraction(number_text(expected)) - expected) <= Fraction(1, 2 * 10**6)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("2+3*4", "14"),
        ("(2+3)*4", "20"),
        ("20-3-4", "13"),
        ("2/3", "0.666667"),
        ("-2*-3", "6"),
        ("1 \u00d7 6 \u00f7 4 \u2212 1", "0.5"),
        ("0.1+.2", "0.3"),
        ("-1/4", "-0.25"),
        ("0/3", "0"),
    ],
)
def test_results_worked_by_hand(expression: str, said: str):
    assert number_text(calculate(expression)) == said


@pytest.mark.parametrize(
    "expression",
    [
        *("", " ", "()", "1+", "*1", "1 2", "(1", "1)", "2(3)", "a", "1e3", "2**3", "2//1", "1/0", "1/(2-2)", "1,5"),
        *("\u0663", "1.2.3", "__import__('os')", "(" * 5000, "(" * 120, "-" * 121 + "1", "1+" * 61 + "1"),
    ],
)
def test_what_is_no_expression(expression: str):
    with pytest.raises(Refused):
        calculate(expression)


@pytest.mark.parametrize(
    ("answer", "other", "equal"),
    [
        ("1906", " 1906. ", True),
        ("1906", "1,906", True),
        ("1906", "1906.0", True),
        ("-5", "-5", True),
        ("-5", "5", False),
        ("1906", "in 1906", False),
        ("1906", "19 06", False),
        ("the Grey Sea", "Grey  sea", True),
        ("an engineer", '"Engineer"', True),
        ("Orvania", "Orvani", False),
        ("0", "", False),
        ("7" * 5000, "7" * 5000, True),
    ],
)
def test_which_answers_are_equal(answer: str, other: str, equal: bool):
    assert (normalised(answer) == normalised(other)) == equal


PASSAGES = {
    "birthplace": r"was born in (\w+) in \d+",
    "born": r"was born in \w+ in (\d+)",
    "occupation": r"became (an? \w+)\.",
    "country": r"is a city in (\w+) with",
    "population": r"population of (\d+)\.",
    "river": r"The (\w+) flows through it",
    "length": r"length of (\d+) kilometres",
    "sea": r"flows into (the [\w ]+)\.",
    "founder": r"founded in \d+ by ([\w ]+),",
    "director": r"and ([\w ]+) became its director",
    "headquarters": r"head office is in (\w+);",
    "founded": r"was founded in (\d+)",
    "employees": r"has (\d+) employees",
    "product": r"makes ([\w ]+) and has",
    "author": r"pages by ([\w ]+),",
    "setting": r"is set in (\w+)\.",
    "published": r"published in (\d+)\.",
    "pages": r"novel of (\d+) pages",
}
SUBJECTS = (  # how a question speaks of things -> the fact to follow
    (r"the author of (.+)", "author"),
    (r"the city where (.+) is set", "setting"),
    (r"the founder of (.+)", "founder"),
    (r"the director of (.+)", "director"),
    (r"the city where (.+) has its head office", "headquarters"),
    (r"the city where (.+) was born", "birthplace"),
    (r"the river that flows through (.+)", "river"),
)
ASKED = (
    (r"In which year was (.+) born\?", "born"),
    (r"What is the occupation of (.+)\?", "occupation"),
    (r"In which country is (.+)\?", "country"),
    (r"In which year was (.+) founded\?", "founded"),
    (r"What is the population of (.+)\?", "population"),
    (r"How many kilometres long is (.+)\?", "length"),
    (r"Into which sea does (.+) flow\?", "sea"),
    (r"How many employees does (.+) have\?", "employees"),
    (r"What does (.+) make\?", "product"),
    (r"In which year was (.+) published\?", "published"),
    (r"How many pages does (.+) have\?", "pages"),
)
PHRASES = (
    (r"the year of birth of (.+)", "born"),
    (r"the founding year of (.+)", "founded"),
    (r"the population of (.+)", "population"),
    (r"the length of (.+) in kilometres", "length"),
    (r"the number of employees of (.+)", "employees"),
    (r"the year of publication of (.+)", "published"),
    (r"the number of pages of (.+)", "pages"),
)


class Reader:
    """Answers questions from the texts of an encyclopaedia by patterns; counts the passages it reads."""

    def __init__(self, corpus: int) -> None:
        book = encyclopaedia(corpus)
        self.passages = dict(zip(book.titles, book.texts, strict=True))
        self.read = 0

    def fact(self, subject: str, fact: str) -> str:
        self.read += 1
        return re.search(PASSAGES[fact], self.passages[self.name(subject)])[1]

    def name(self, subject: str) -> str:
        bare = subject.strip('"').removeprefix("the ")
        if bare in self.passages:
            return bare
        for pattern, fact in SUBJECTS:
            if match := re.fullmatch(pattern, subject):
                return self.fact(match[1], fact)
        raise AssertionError(subject)

    def value(self, text: str, patterns: tuple[tuple[str, str], ...]) -> str:
        for pattern, fact in patterns:
            if match := re.fullmatch(pattern, text):
                return self.fact(match[1], fact)
        raise AssertionError(text)

    def answer(self, question: str) -> str:
        if match := re.fullmatch(r"What is (\d) times (.+)\?", question):
            return str(int(match[1]) * int(self.value(match[2], PHRASES)))
        if match := re.fullmatch(r"What is the (difference between|sum of) (.+) and (the .+)\?", question):
            first, second = int(self.value(match[2], PHRASES)), int(self.value(match[3], PHRASES))
            return str(first + second if match[1] == "sum of" else abs(first - second))
        return self.value(question, ASKED)


@pytest.mark.parametrize("kind", ["retrieval", "mixed"])
@pytest.mark.parametrize(("hops", "corpus"), [(1, 0), (2, 0), (3, 0), (3, 5)])
def test_answers_and_hops_are_those_that_a_reader_of_the_passages_finds(kind: str, hops: int, corpus: int):
    env, asked = ToolQA(kinds=[kind], hops=[hops], corpus=corpus), set()
    for seed in range(120):
        question = env.reset(seed).observation.removeprefix("Question: ")
        reader = Reader(corpus)
        expected = reader.answer(question)
        assert reader.read == hops
        end = env.step(f"<answer>{expected}</answer>")
        assert (end.reward, end.success, end.done) == (1.0, True, True)
        asked.add(question)
    assert len(asked) > 100


def test_what_is_compared_is_not_the_same_thing_twice():
    env = ToolQA(kinds=["mixed"], hops=[2])
    questions = [json.loads(env.content(seed))[0] for seed in range(1500)]
    pairs = [re.fullmatch(r".* (?:between|sum of) (.+) and (the .+)\?", question).groups() for question in questions]
    assert all(first != second for first, second in pairs)


def test_answers_of_tables_are_those_of_a_loop_over_their_cells():
    env = ToolQA(kinds=("table",))
    for seed in range(100):
        question = env.reset(seed).observation
        table = re.search(r'In the table "(\w+)"', question)[1]
        cells = re.findall(r"(\w+) in (\d{4})", question.splitlines()[0])
        values = []
        for row, column in cells:
            call = ToolCall("lookup", {"table": table, "row": row, "column": int(column)})
            values.append(int(env.call("", [call]).observation[0]["content"]))
        expected = values[0] - values[1] if "how much more" in question else sum(values)
        assert expected >= 0
        assert env.call(f"<answer>{expected}</answer>", []).success


@pytest.mark.parametrize("style", ["chat", "bare"])
def test_answers_of_calculations_are_python_s(style: str):
    env = ToolQA(kinds=("calculator",), style=style)
    for seed in range(100):
        question = env.reset(seed).observation.splitlines()[0]
        expression = question.removeprefix("Question: What is ").rstrip("?")
        assert sum(expression.count(sign) for sign in "+-*") in (1, 2, 3)
        answer = python_value(expression)
        assert env.step(f"#{answer}" if style == "bare" else f"<answer>{answer}</answer>").success


@pytest.mark.parametrize("corpus", [0, 1])
def test_every_fact_is_found_by_searching_for_it(corpus: int):
    book, found = encyclopaedia(corpus), 0
    for number, thing in enumerate(book.things.values()):
        for fact, value in thing.facts.items():
            assert number in book.search(f"{thing.name} {fact}", 3)
            assert re.search(PASSAGES[fact], book.texts[number])[1] == str(value)
            found += 1
    assert len(book.texts) >= 300 and found > 1000
    assert {a.fact for a in ATTRIBUTES} | RELATIONS.keys() == PASSAGES.keys()


@pytest.mark.parametrize("corpus", [0, 6, 25])  # the latter two have people who are young when a book appears
def test_what_people_do_they_do_between_18_and_90(corpus: int):
    book = encyclopaedia(corpus)
    born = {name: thing.facts["born"] for name, thing in book.things.items() if thing.kind == "person"}
    patterns = (
        r"founded in (?P<year>\d+) by (?P<name>[\w ]+),",
        r"and (?P<name>[\w ]+) became its director in (?P<year>\d+)",
        r"by (?P<name>[\w ]+), published in (?P<year>\d+)",
        r"translation by (?P<name>[\w ]+) came out in (?P<year>\d+)",
    )
    ages = [int(m["year"]) - born[m["name"]] for text in book.texts for p in patterns for m in re.finditer(p, text)]
    assert len(ages) == 4 * 70 and min(ages) >= 18 and max(ages) <= 90


def test_a_corpus_is_made_from_its_seed():
    first = encyclopaedia(3)
    encyclopaedia.cache_clear()
    again = encyclopaedia(3)
    assert again is not first and again.texts == first.texts and again.titles == first.titles
    assert again is encyclopaedia(3) and again.texts != encyclopaedia(4).texts


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
        step, turns, seen = env.reset(seed), 0, ""
        while not step.done:
            action = env.expert()
            step, turns = env.step(action), turns + 1
            assert step.action_error is None
            seen += step.observation if style == "bare" else step.observation[0]["content"]
        assert step.success and step.reward == 1.0 and turns == looked_up + 1
        assert step.info["expected"] in seen  # the answer stood in what the tools said
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


def test_calls_that_can_t_be_read_are_answered_after_the_others():
    env = ToolQA(kinds=["calculator"])
    env.reset(0)
    step = env.call("", [ToolCall("", error="not JSON"), ToolCall("calculator", {"expression": "1+1"}), ToolCall("x")])
    assert [message["role"] for message in step.observation] == ["tool", "tool", "user"]
    assert [message["content"] for message in step.observation][0::2] == ["2", "Error: not JSON"]
    assert step.action_error == "malformed"


@pytest.mark.parametrize("k", [0, 6, "3", 2.0, True])
def test_how_many_passages_can_be_asked_for(k: object):
    env = ToolQA(kinds=["retrieval"])
    env.reset(0)
    assert env.call("", [ToolCall("search", {"query": "river", "k": k})]).action_error == "illegal"


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
    made = json.dumps({"name": "calculator", "arguments": {"expression": f"{chance.randint(0, 3)}+1"}})
    useless = f"<tool_call>{made}</tool_call>"
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


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000])
def test_calls_that_python_can_t_read(text: str):
    env = ToolQA(kinds=["calculator"])
    env.reset(0)
    assert env.step(f"<tool_call>{text}</tool_call>").action_error == "malformed"
