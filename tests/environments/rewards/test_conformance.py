"""Conformance with a reference's events: what events are, and pm4py's numbers where it is installed."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from gxpo.base.errors import ConfigError, GxpoError, MissingExtra
from gxpo.environments.rewards import conformance
from gxpo.environments.rewards.conformance import Conformance, events, f1
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task

FOREST = Forest.from_completions([[1]], [[[2], [3]]], [[0.0, 0.0]])


def test_the_number_of_the_card():
    assert f1(0.8, 0.6) == pytest.approx(0.685714, abs=1e-6) and f1(0.0, 0.0) == 0.0


def test_events_are_the_first_words_of_lines():
    assert events("Step 1: Define x.\n  2. then\n\nStep 3 - solve\n") == ["define", "2", "solve"]
    assert events("a->b;c->d", r"(\w)->") == ["a", "c"]


def test_the_thought_alone_is_mined(monkeypatch):
    monkeypatch.setattr(conformance, "_pm4py", lambda: (None, None))
    monkeypatch.setattr(conformance, "conformance", lambda a, b: float(len(a)))
    messages = [Task("t", "", None, {"events": ["add"]})] * 2
    both = ["<think>add\ncarry</think>\n<answer>4</answer>", "so\nadd\ncarry"]
    assert Conformance()(FOREST, both, messages)["conformance"].tolist() == [2, 3]
    assert Conformance(thought="")(FOREST, both, messages)["conformance"].tolist() == [3, 3]
    assert Conformance()(FOREST, ["no\n<think>a</think>b</think>", "a\nb</think>c"], messages)[
        "conformance"
    ].tolist() == [
        1,
        2,
    ]
    with pytest.raises(ConfigError, match="thought 'x' has no group for the part"):
        Conformance(thought="x")


def test_it_says_how_to_install_pm4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "pm4py", None)
    with pytest.raises(MissingExtra, match=r"pip install 'gxpo\[process\]'"):
        Conformance()
    for pattern, said_text in (("(", "no regular expression"), ("x", "no group for the activity")):
        with pytest.raises(ConfigError, match=said_text):
            Conformance(pattern=pattern)


def test_equal_pairs_are_computed_once_against_the_tasks_events(monkeypatch):
    monkeypatch.setattr(conformance, "_pm4py", lambda: (None, None))
    requests = []
    monkeypatch.setattr(conformance, "conformance", lambda a, b: requests.append((a, b)) or float(len(requests)))
    part = Conformance()
    messages = [Task("t", "", None, {"events": ["add", "carry"]}), Task("u", "", None, {"solution": "add\ncarry"})]
    actual = part(FOREST, ["add\ncarry", "add\ncarry"], messages)["conformance"]
    assert actual.tolist() == [1, 1] and requests == [(("add", "carry"), ("add", "carry"))]
    assert part(FOREST, ["add\ncarry", "carry"], messages)["conformance"].tolist() == [1, 2]
    with pytest.raises(GxpoError, match="`events` or a `solution`"):
        part(FOREST, ["add", "add"], [Task("t", "", None), Task("t", "", None)])


def test_what_pm4py_cannot_compute_costs_that_attempt(monkeypatch):
    monkeypatch.setattr(conformance, "_pm4py", lambda: (None, None))

    def computed(attempt, reference):
        if attempt == ("loop",):
            raise ZeroDivisionError("no final marking")
        return 0.5

    monkeypatch.setattr(conformance, "conformance", computed)
    part = Conformance()
    messages = [Task("t", "", None, {"events": ["add"]})] * 2
    actual = part(FOREST, ["loop", "add"], messages)["conformance"].tolist()
    assert actual[0] != actual[0] and actual[1] == 0.5
    (kind, message), *others = part.failures()
    assert kind == "raised" and message.startswith("pm4py: ZeroDivisionError: no final marking") and not others
    assert part.failures() == []


@pytest.mark.skipif(importlib.util.find_spec("pm4py") is None, reason="pm4py is an extra of its own: gxpo[process]")
def test_the_numbers_of_pm4py():
    # the same events: 1; the attempt has one more in between: fitness .8, precision .5; another order: precision 0
    assert conformance.conformance("abc", "abc") == pytest.approx(1.0)
    assert conformance.conformance("abc", "ac") == pytest.approx(2 * 0.8 * 0.5 / 1.3)
    assert conformance.conformance("ab", "ba") == 0.0 and conformance.conformance("x", "ab") == 0.0
    assert conformance.conformance("", "ab") == conformance.conformance("ab", "") == 0.0
