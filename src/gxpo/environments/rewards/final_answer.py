r"""Place of the final answer in a completion, for `format` and `math` alike: a box or an `<answer>` element.

    completion                                        answer    well formed
    ...</think> so \boxed{7}.                         7         yes
    <answer>7</answer>, <answer>\boxed{7}</answer>    7         yes
    \boxed{3} ... \boxed{7}                           7         no: two
    \boxed{7} ... \boxed{8                            7         no: one is not closed
    \boxed{}, <answer></answer>                       none      no

A thought that is closed (`</think>` and its like) is no place for an answer. The last box or element counts; \fbox is
a box, and so is \boxed before a bare number or letter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gxpo.base.answers import TAGGED

THOUGHT_ENDS = ("</think>", "[/THINK]", "<|END_THINKING|>")
COMMANDS = ("\\boxed", "\\fbox")
OPENING, CLOSING = "<answer>", "</answer>"
ELEMENT = re.compile(TAGGED, re.DOTALL)
BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[\\{}]|[{}]")  # a box, an escaped sign, which is no brace, or a brace
BARE = re.compile(r"\\(?:boxed|fbox)(?:\s*(-?\d+(?:[.,/]\d+)*)|\s+([A-Za-z])(?![A-Za-z]))")
DEEPEST = 8  # boxes within each other


@dataclass(frozen=True)
class Place:
    """Answer candidate: its content, its span in the completion, and whether it is an `<answer>` element."""

    text: str
    start: int
    end: int
    is_element: bool = False


@dataclass(frozen=True)
class FinalAnswers:
    """Answer candidates of a completion in order: boxes and elements, without the boxes inside elements.

    rest       the completion without its thought
    is_broken  a box or an element is not closed, or was not opened
    """

    places: tuple[Place, ...]
    rest: str
    is_broken: bool

    @property
    def answer(self) -> str | None:
        """Content of the last candidate that has any; None without one."""
        return next((place.text for place in reversed(self.places) if place.text), None)

    @property
    def is_well_formed(self) -> bool:
        """True for exactly one element that comes after all boxes or, without elements, exactly one box."""
        elements = [place for place in self.places if place.is_element]
        answers = elements or self.places
        return not self.is_broken and len(answers) == 1 and self.places[-1] is answers[0] and bool(answers[0].text)


def find_answers(completion: str) -> FinalAnswers:
    r"""Find the boxes and elements of a completion, in time linear in its length.

    >>> find_answers(r"<think>\boxed{1}</think> <answer>it is \boxed{\frac{1}{2}}</answer>").answer
    '\\frac{1}{2}'
    """
    answer_text = completion[
        max((completion.rfind(tag) + len(tag) for tag in THOUGHT_ENDS if tag in completion), default=0) :
    ]
    spans = ELEMENT.finditer(answer_text) if OPENING in answer_text else ()
    elements = [Place(_inside(m[1]), m.start(), m.end(), True) for m in spans]
    boxes, is_open = _boxes(answer_text)
    places = sorted([*elements, *_outside(boxes, elements)], key=lambda place: place.start)
    tags = (answer_text.count(OPENING), answer_text.count(CLOSING))
    is_broken = is_open or any(n != len(elements) for n in tags)
    return FinalAnswers(tuple(places), answer_text, is_broken)


def _outside(places: list[Place], outer_spans: list[Place]) -> list[Place]:
    """Places that begin in none of the others; both are in order."""
    outer_places, number = [], 0
    for place in places:
        while number < len(outer_spans) and outer_spans[number].end <= place.start:
            number += 1
        if number == len(outer_spans) or place.start < outer_spans[number].start:
            outer_places.append(place)
    return outer_places


def _inside(text: str) -> str:
    """Answer in an element: its last box that has content, or all of its text."""
    boxes, _ = _boxes(text)
    return next((box.text for box in reversed(boxes) if box.text), text.strip() if not boxes else "")


def _boxes(text: str) -> tuple[list[Place], bool]:
    """Outermost closed boxes in order, and True where one is not closed."""
    # Everything before the first box is skipped: most texts have none.
    first = min((index for command in COMMANDS if (index := text.find(command)) >= 0), default=-1)
    if first < 0:
        return [], False
    closed_boxes: list[Place] = []
    open_braces: list[tuple[bool, int, int]] = []  # (a box, where it begins, where its content does)
    for token in BRACE.finditer(text, first):
        sign = token[0]
        if sign == "}":
            is_box, start, content = open_braces.pop() if open_braces else (False, 0, 0)
            if is_box:
                while closed_boxes and closed_boxes[-1].start > start:
                    closed_boxes.pop()  # it stands in this one
                closed_boxes.append(Place(_unbox(text[content : token.start()]), start, token.end()))
        elif sign[-1] == "{" and sign != "\\{":
            open_braces.append((len(sign) > 1, token.start(), token.end()))
    is_open = any(is_box for is_box, _, _ in open_braces)
    bare = [Place(m[1] or m[2], m.start(), m.end()) for m in BARE.finditer(text, first)]
    return sorted([*closed_boxes, *_outside(bare, closed_boxes)], key=lambda place: place.start), is_open


def _unbox(content: str) -> str:
    """Content of a box, also of nested boxes that are all of it."""
    content = content.strip()
    for _ in range(DEEPEST):
        inner = BRACE.match(content)
        if inner is None or len(inner[0]) < 3 or not content.endswith("}"):
            break
        content = content[inner.end() : -1].strip()
    return content
