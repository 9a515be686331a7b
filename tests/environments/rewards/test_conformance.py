"""Conformance with a reference's events: what events are, and pm4py's numbers where it is installed."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from gxpo.base.errors import ConfigError, GxpoError, MissingExtra
from gxpo.environments.rewards import conformance
from gxpo.environments.rewards.conformance import Conformance, events, f1, replayed
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task

FOREST = Forest.from_completions([[1]], [[[2], [3]]], [[0.0, 0.0]])


def test_the_number_of_the_card():
    assert f1(0.8, 0.6) == pytest.approx(0.685714, abs=1e-6) and f1(0.0, 0.0) == 0.0


def test_events_are_the_first_words_of_lines():
    assert events("Step 1: Define x.\n  2. then\n\nStep 3 - solve\n") == ["define", "2", "solve"]
    assert events("a->b;c->d", r"(\w)->") == ["a", "c"]


def test_replay_on_the_graph_of_what_follows_what():
    # attempt a b c: arcs start-a, a-b, b-c, c-end. Reference a c: start-a and c-end of three moves are arcs: f 2/3;
    # start, a and c have one arc each that leaves them, two of these are taken: p 2/3
    assert replayed("abc", "ac") == pytest.approx(2 / 3)
    # a b a c: from a to b and to c; the reference a c: f 1; start, a, c: four arcs, three taken: 2 * .75 / 1.75
    assert replayed("abac", "ac") == pytest.approx(0.857143, abs=1e-6)
    assert replayed("abab", "abab") == replayed("aa", "aa") == 1.0
    assert replayed("ab", "ba") == replayed("x", "ab") == replayed("", "ab") == replayed("ab", "") == 0.0
    messages = [Task("t", "", None, {"events": ["a", "c"]})] * 2
    assert Conformance()(FOREST, ["a\nc", "b"], messages)["conformance"].tolist() == [1.0, 0.0]
    with pytest.raises(ConfigError, match="miner 'heuristic' is none of follows, inductive"):
        Conformance(miner="heuristic")


def test_the_thought_alone_is_mined(monkeypatch):
    monkeypatch.setitem(conformance.MINERS, "follows", lambda a, b: float(len(a)))
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
        Conformance(miner="inductive")
    for pattern, words in (("(", "no regular expression"), ("x", "no group for the activity")):
        with pytest.raises(ConfigError, match=words):
            Conformance(pattern=pattern)


def test_equal_pairs_are_computed_once_against_the_tasks_events(monkeypatch):
    requests = []
    monkeypatch.setitem(conformance.MINERS, "follows", lambda a, b: requests.append((a, b)) or float(len(requests)))
    part = Conformance()
    messages = [Task("t", "", None, {"events": ["add", "carry"]}), Task("u", "", None, {"solution": "add\ncarry"})]
    actual = part(FOREST, ["add\ncarry", "add\ncarry"], messages)["conformance"]
    assert actual.tolist() == [1, 1] and requests == [(("add", "carry"), ("add", "carry"))]
    assert part(FOREST, ["add\ncarry", "carry"], messages)["conformance"].tolist() == [1, 2]
    with pytest.raises(GxpoError, match="`events` or a `solution`"):
        part(FOREST, ["add", "add"], [Task("t", "", None), Task("t", "", None)])


def test_what_pm4py_cannot_compute_costs_that_attempt(monkeypatch):

    def computed(attempt, reference):
        if attempt == ("loop",):
            raise ZeroDivisionError("no final marking")
        return 0.5

    monkeypatch.setitem(conformance.MINERS, "follows", computed)
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
    assert conformance.aligned("abc", "abc") == pytest.approx(1.0)
    assert conformance.aligned("abc", "ac") == pytest.approx(2 * 0.8 * 0.5 / 1.3)
    assert conformance.aligned("ab", "ba") == 0.0 and conformance.aligned("x", "ab") == 0.0
    assert conformance.aligned("", "ab") == conformance.aligned("ab", "") == 0.0
