"""Questions of ToolQA: generated, with one exact answer and the calls that lead to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gxpo_worlds.toolqa_corpus import Encyclopaedia, Thing
from gxpo_worlds.toolqa_tools import calculate, number_text

# relation -> (kind it leads from, kind it leads to, its phrase)
RELATIONS = {
    "author": ("book", "person", "the author of {}"),
    "setting": ("book", "city", "the city where {} is set"),
    "founder": ("company", "person", "the founder of {}"),
    "director": ("company", "person", "the director of {}"),
    "headquarters": ("company", "city", "the city where {} has its head office"),
    "birthplace": ("person", "city", "the city where {} was born"),
    "river": ("city", "river", "the river that flows through {}"),
}


@dataclass(frozen=True)
class Attribute:
    """Fact that questions can be about. Numbers of one `unit` can be compared; "" is no number."""

    kind: str
    fact: str
    question: str
    phrase: str = ""
    unit: str = ""


ATTRIBUTES = (
    Attribute("person", "born", "In which year was {} born?", "the year of birth of {}", "year"),
    Attribute("person", "occupation", "What is the occupation of {}?"),
    Attribute("city", "country", "In which country is {}?"),
    Attribute("city", "founded", "In which year was {} founded?", "the founding year of {}", "year"),
    Attribute("city", "population", "What is the population of {}?", "the population of {}", "people"),
    Attribute("river", "length", "How many kilometres long is {}?", "the length of {} in kilometres", "kilometres"),
    Attribute("river", "sea", "Into which sea does {} flow?"),
    Attribute("company", "founded", "In which year was {} founded?", "the founding year of {}", "year"),
    Attribute("company", "employees", "How many employees does {} have?", "the number of employees of {}", "people"),
    Attribute("company", "product", "What does {} make?"),
    Attribute("book", "published", "In which year was {} published?", "the year of publication of {}", "year"),
    Attribute("book", "pages", "How many pages does {} have?", "the number of pages of {}", "pages"),
)

TABLE_NAMES = ("exports", "harvest", "imports", "orders", "sales", "stock")
GOODS = ("barley", "copper", "glass", "linen", "oats", "salt", "timber", "wool")

Call = tuple[str, Mapping[str, Any]]
Tables = dict[str, dict[str, dict[str, int]]]  # table -> row -> column -> number


@dataclass(frozen=True)
class Question:
    """Question: `calls` lead to the `answer`, in order; `hops` counts look-ups, of a calculation operations."""

    kind: str
    hops: int
    text: str
    answer: str
    calls: tuple[Call, ...]
    tables: Tables = field(default_factory=dict)


def calculation(random: np.random.Generator, hops: int, highest: int) -> tuple[str, str]:
    """Random expression of `hops` operations on numbers from 2 to `highest`, and its value.

    One operation is a product, the others are sums and differences; of those with two operations or more, one in three
    has parentheses around the first.
    """
    times = int(random.integers(hops))
    operations = ["*" if i == times else "+-"[int(random.integers(2))] for i in range(hops)]
    terms = [str(int(n)) for n in random.integers(2, highest + 1, size=hops + 1)]
    grouped = hops > 1 and int(random.integers(3)) == 0
    text = terms[0]
    for i, (operation, term) in enumerate(zip(operations, terms[1:], strict=True)):
        text = f"({text}{operation}{term})" if grouped and i == 0 else f"{text}{operation}{term}"
    return text, number_text(calculate(text))


def calculator_question(random: np.random.Generator, hops: int, bare: bool) -> Question:
    """Question about the value of an expression."""
    expression, value = calculation(random, hops, highest=99)
    text = f"{expression}?" if bare else f"What is {expression}?"
    return Question("calculator", hops, text, value, (("calculator", {"expression": expression}),))


def table_question(random: np.random.Generator, hops: int, bare: bool) -> Question:
    """Question about one number of a table, the sum or the (positive) difference of two, or the sum of three."""
    names, rows, columns = _table_labels(random, bare)
    numbers = iter(random.integers(1, 100, size=len(names) * len(rows) * len(columns)))
    tables = {name: {row: {column: int(next(numbers)) for column in columns} for row in rows} for name in names}
    table = names[int(random.integers(len(names)))]
    positions = [
        divmod(int(i), len(columns)) for i in random.choice(len(rows) * len(columns), size=hops, replace=False)
    ]
    subtract = hops == 2 and bool(random.integers(2))
    cells = [(rows[i], columns[j]) for i, j in positions]
    # the larger number first: differences are positive
    if subtract:
        cells.sort(key=lambda cell: -tables[table][cell[0]][cell[1]])
    values = [tables[table][row][column] for row, column in cells]
    calls: list[Call] = [("lookup", {"table": table, "row": row, "column": column}) for row, column in cells]
    if hops == 1:
        answer = str(values[0])
    else:
        expression = ("-" if subtract else "+").join(map(str, values))
        calls.append(("calculator", {"expression": expression}))
        answer = number_text(calculate(expression))
    text = _bare_cells(cells, subtract) if bare else _cells_in_words(table, cells, subtract)
    return Question("table", hops, text, answer, tuple(calls), tables)


def _table_labels(random: np.random.Generator, bare: bool) -> tuple[list[str], list[str], list[str]]:
    if bare:
        return [""], list("abcd"), list("1234")
    names = sorted(TABLE_NAMES[int(i)] for i in random.choice(len(TABLE_NAMES), size=2, replace=False))
    rows = sorted(GOODS[int(i)] for i in random.choice(len(GOODS), size=4, replace=False))
    first = int(random.integers(1880, 1960))
    return names, rows, [str(first + i) for i in range(4)]


def _bare_cells(cells: Sequence[tuple[str, str]], subtract: bool) -> str:
    return ("-" if subtract else "+").join(row + column for row, column in cells) + "?"


def _cells_in_words(table: str, cells: Sequence[tuple[str, str]], subtract: bool) -> str:
    phrases = [f"{row} in {column}" for row, column in cells]
    if len(phrases) == 1:
        return f'In the table "{table}", what is the number for {phrases[0]}?'
    if subtract:
        return f'In the table "{table}", how much more is {phrases[0]} than {phrases[1]}?'
    return f'In the table "{table}", what is the sum of {", ".join(phrases[:-1])} and {phrases[-1]}?'


@dataclass(frozen=True)
class Chain:
    """Multi-hop relation: an attribute of the entry at the end of relations from `start`, one look-up each."""

    start: Thing
    relations: tuple[str, ...]
    attribute: Attribute
    value: str
    subject: str  # what has the attribute, in words
    calls: tuple[Call, ...]

    @property
    def phrase(self) -> str:
        return self.attribute.phrase.format(self.subject)


def _patterns(length: int) -> list[tuple[str, tuple[str, ...], Attribute]]:
    """List every (kind, relations, attribute) with `length` look-ups."""
    # from the end: each round puts one relation before the patterns that begin at its target
    patterns: list[tuple[str, tuple[str, ...], Attribute]] = [(a.kind, (), a) for a in ATTRIBUTES]
    for _ in range(length - 1):
        patterns = [
            (kind, (relation, *relations), attribute)
            for start, relations, attribute in patterns
            for relation, (kind, to, _) in RELATIONS.items()
            if to == start
        ]
    return patterns


PATTERNS = {length: _patterns(length) for length in (1, 2, 3)}


def mention(thing: Thing) -> str:
    """Phrase for an entry in a question."""
    return {"book": '"{}"', "river": "the {}"}.get(thing.kind, "{}").format(thing.name)


def chain(random: np.random.Generator, book: Encyclopaedia, length: int, accepts: Callable[[Attribute], bool]) -> Chain:
    """Draw a chain of `length` look-ups to an attribute that `accepts`: first a pattern, then the entry to start at."""
    patterns = [pattern for pattern in PATTERNS[length] if accepts(pattern[2])]
    kind, relations, attribute = patterns[int(random.integers(len(patterns)))]
    starts = book.of_kind(kind)
    start = thing = starts[int(random.integers(len(starts)))]
    subject, calls = mention(start), []
    # the phrase grows from the inside: "the river that flows through the city where ..."
    for relation in relations:
        calls.append(("search", {"query": f"{thing.name} {relation}"}))
        thing = book.things[str(thing.facts[relation])]
        subject = RELATIONS[relation][2].format(subject)
    calls.append(("search", {"query": f"{thing.name} {attribute.fact}"}))
    return Chain(start, relations, attribute, str(thing.facts[attribute.fact]), subject, tuple(calls))


def retrieval_question(random: np.random.Generator, hops: int, book: Encyclopaedia) -> Question:
    """Question about the end of a chain."""
    relation_chain = chain(random, book, hops, lambda a: True)
    return Question(
        "retrieval",
        hops,
        relation_chain.attribute.question.format(relation_chain.subject),
        relation_chain.value,
        relation_chain.calls,
    )


def mixed_question(random: np.random.Generator, hops: int, book: Encyclopaedia) -> Question:
    """Question about a multiple of a number in a passage, or the sum or difference of two such numbers of one unit."""
    unwanted = ("", "year") if hops == 1 else ("",)  # three times a year means nothing
    first = chain(random, book, max(1, hops - 1), lambda a: a.unit not in unwanted)
    if hops == 1:
        factor = int(random.integers(2, 10))
        text, expression, calls = f"What is {factor} times {first.phrase}?", f"{factor}*{first.value}", first.calls
    else:
        second = _another(random, book, first)
        calls = (*first.calls, *second.calls)
        if first.attribute.unit == "year" or random.integers(2):
            high, low = sorted((first.value, second.value), key=int, reverse=True)
            text, expression = f"What is the difference between {first.phrase} and {second.phrase}?", f"{high}-{low}"
        else:
            text = f"What is the sum of {first.phrase} and {second.phrase}?"
            expression = f"{first.value}+{second.value}"
    calls = (*calls, ("calculator", {"expression": expression}))
    return Question("mixed", hops, text, number_text(calculate(expression)), calls)


def _another(random: np.random.Generator, book: Encyclopaedia, first: Chain) -> Chain:
    """Draw a second chain of one look-up, in the same unit, of another fact."""
    while True:
        second = chain(random, book, 1, lambda a: a.unit == first.attribute.unit)
        if second.calls[-1] != first.calls[-1]:
            return second
