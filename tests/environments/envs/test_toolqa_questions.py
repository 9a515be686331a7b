"""Questions of ToolQA: answers found by a reader of the passages and by loops over tables."""

import ast
import json
import operator
import re
from fractions import Fraction

import pytest
from hypothesis import strategies as st

from gxpo.parts.protocols import ToolCall
from gxpo_worlds.toolqa import ToolQA
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
def test_answers_and_hops_are_those_of_a_reader_of_the_passages(kind: str, hops: int, corpus: int):
    env, asked_questions = ToolQA(kinds=[kind], hops=[hops], corpus=corpus), set()
    for seed in range(120):
        question = env.reset(seed).observation.removeprefix("Question: ")
        reader = Reader(corpus)
        expected = reader.answer(question)
        assert reader.read == hops
        end = env.step(f"<answer>{expected}</answer>")
        assert (end.reward, end.success, end.done) == (1.0, True, True)
        asked_questions.add(question)
    assert len(asked_questions) > 100


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


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
