"""Signals from text: places of a first match, clusters of answers, valid thinking."""

from __future__ import annotations

import math
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.segments.base import SegmentTools
from gxpo.algorithms.segments.segmenters import Spans
from gxpo.algorithms.signals.texts import (
    answer_clusters,
    clusters,
    first_match,
    first_statement,
    match_place,
    share_after,
    valid_thinking,
)
from gxpo.base.answers import ANSWER, compiled, extract
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.environments.rewards.majority import vote
from gxpo.forest.forest import Forest
from gxpo.parts.definition import kind_of

FirstMatch = kind_of(first_match)

PIECES = ["", "a", "b", "ab", "<co", "de>", "x<code>y", "``", "`python"]


def letters(ids):
    return "".join(PIECES[i] for i in ids)


def test_worked() -> None:
    default = re.compile(FirstMatch().pattern)
    assert match_place([1, 2, 4, 5, 6], default, letters) == 2.0  # "<co" brings the first character
    assert match_place([6], default, letters) == 0.0 and match_place([3, 7, 8], default, letters) == 1.0
    assert math.isnan(match_place([1, 2, 3], default, letters)) and math.isnan(match_place([], default, letters))
    assert match_place([1, 2], re.compile("$"), letters) == 1.0  # after the last character: the last token


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=8), st.sampled_from(["b", "ba", "<code>", "e", "ab"]))
def test_equals_a_loop(tokens, pattern):
    text = letters(tokens)
    at = text.find(pattern)
    expected, output = math.nan, 0
    for n, token in enumerate(tokens if at >= 0 else []):
        output += len(PIECES[token])
        if output > at:
            expected = float(n)
            break
    assert match_place(tokens, re.compile(pattern), letters) == pytest.approx(expected, nan_ok=True)


def test_of_a_forest_turns_follow_each_other() -> None:
    def record(name, *actions):
        turns = [{"observation": [6], "action": list(a), "logprob": [-1.0] * len(a)} for a in actions]
        return {"schema": "gxpo.rollouts/1", "group": "g", "id": name, "prompt": [6], "reward": 1.0, "turns": turns}

    forest = Forest.from_records([record("t0", [1, 2], [3, 6]), record("t1", [1, 1]), record("t2", [6, 6])])
    part = FirstMatch()
    actual = part.compute(forest, {}, SimpleNamespace(decode=letters))["first_use"]
    assert actual.tolist() == pytest.approx([3.0, math.nan, 0.0], nan_ok=True)  # prompts and observations do not count
    assert part.axes == {"first_use": "R"}
    with pytest.raises(ConfigError, match="regular expression"):
        FirstMatch(pattern="(")


AnswerClusters = kind_of(answer_clusters)

TEXTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["#1", "so #1", "#2 #1", "#2", r"\boxed{2}", "one", " one ", ""])),
    min_size=1,
    max_size=10,
)


def grown(rows: list[tuple[str, list[str]]]) -> Forest:
    """(group, what each turn says); the tokens are the text's bytes."""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": g, "id": str(i), "prompt": [1], "reward": 0.0,
             "turns": [{"action": list(t.encode()), **({"observation": [0]} if k else {})} for k, t in enumerate(acts)]}
            for i, (g, acts) in enumerate(rows)
        ]
    )  # fmt: skip


def computed(forest: Forest, **settings: Any) -> list[int]:
    tools: Any = SimpleNamespace(decode=lambda ids: bytes(ids).decode())
    return AnswerClusters(**settings).compute(forest, {}, tools)["answer_cluster"].tolist()


def test_the_last_answer_of_a_text_counts():
    # 85, 85, 84; then two texts without an answer, one of them twice but for the blanks around it
    message = ["7+8=15#85", r"first #84, no: \boxed{85}", "<answer>84</answer>", "no idea", " no idea\n", "none"]
    assert computed(grown([("g", [t]) for t in message])) == [0, 0, 1, 2, 2, 3]


def test_answers_differ_from_equal_texts_and_across_groups():
    assert computed(grown([("a", ["#85"]), ("a", ["85"]), ("b", ["#85"]), ("b", ["#85"])])) == [0, 1, 2, 2]


def test_answers_are_matched_over_all_turns():
    forest = grown([("g", ["#1", "it is 7"]), ("g", ["it is 7", "#1"]), ("g", ["it is ", "8"])])
    assert computed(forest) == [0, 0, 1]
    assert computed(forest, pattern=r"it is (\d)") == [0, 0, 1]
    assert computed(forest, pattern="[0-9]") == [0, 1, 2]  # without a group the whole match: 7, 1, 8


@given(TEXTS)
def test_ids_are_equal_exactly_where_group_and_answer_are(rows):
    groups = torch.tensor([ord(g) - ord("a") for g, _ in rows])
    actual = clusters([t for _, t in rows], groups).tolist()

    def answer(text: str) -> tuple[bool, str]:
        message = re.findall(r"#(\d)|boxed\{(\d)\}", text)
        return (True, "".join(message[-1])) if message else (False, text.strip())

    for i, (g, text) in enumerate(rows):
        for j, (h, other) in enumerate(rows):
            assert (actual[i] == actual[j]) == (g == h and answer(text) == answer(other))
    assert sorted(set(actual)) == list(range(len(set(actual))))


@given(TEXTS)
def test_the_largest_answer_cluster_is_the_majority(rows):
    texts, names = [t for _, t in rows], [g for g, _ in rows]
    answers = [extract(t, re.compile(ANSWER)) for t in texts]
    label = vote(answers, names, [True] * len(rows))
    actual = clusters(texts, torch.tensor([ord(g) for g in names])).tolist()
    for g in label:
        sizes = Counter(c for c, h, a in zip(actual, names, answers, strict=True) if h == g and a is not None)
        size = next(sizes[c] for c, h, a in zip(actual, names, answers, strict=True) if h == g and a == label[g])
        assert size == max(sizes.values())


def test_what_is_in_no_group_has_no_cluster():
    assert clusters(["#1", "#1"], torch.tensor([-1, 0])).tolist() == [-1, 0]


def test_refusals():
    with pytest.raises(ConfigError, match=r"signal.answer_clusters.pattern='\(' is no regular expression"):
        AnswerClusters(pattern="(")
    with pytest.raises(ConfigError, match="is no regular expression"):
        gxpo.method("seed_grpo", {"signal.answer_clusters.pattern": "["})
    with pytest.raises(ConfigError, match=r"^mine='\['"):
        compiled("[", "mine")
    text_only = Forest.from_completions([[1]], [[[-1]]], [1.0]).replace(action_text=["#1"])
    with pytest.raises(GxpoError, match="a cluster of answers needs token ids"):
        computed(text_only)


TAG = 999  # one token that is "</think>"


def decode(ids):
    return "".join("</think>" if i == TAG else chr(i) for i in ids)


def tokens(text):
    head, tag, tail = text.partition("</think>")
    return [ord(c) for c in head] + ([TAG] if tag else []) + [ord(c) for c in tail]


def attempts(*rows):
    """Rows (text, right)."""
    texts, right = zip(*rows, strict=True)
    forest = Forest.from_completions([[1]], [[tokens(t) for t in texts]], [[float(r) for r in right]])
    return forest.replace(success=forest.outcome)


def test_the_number_of_lc_r1():
    assert share_after(60, 150) == pytest.approx(0.6)
    thought = "so 42" + "." * 5  # 5 of 10 tokens
    forest = attempts(
        (f"{thought}</think>42", True), ("4242</think>42", True), (f"{thought}</think>42", False), ("42", True)
    )
    actual = valid_thinking(forest, decode, lambda f: ["42"] * 4)
    # half; the thought does not state it as a word; wrong; no end of a thought
    assert actual.tolist() == [0.5, -1, 0, 0]
    with pytest.raises(GxpoError, match="no reference answer"):
        valid_thinking(forest, decode, lambda f: [None] * 4)


def test_an_answer_is_found_as_a_word():
    assert first_statement("4.5 or 4", "4") == 8 and first_statement("x=4", "4") == 3
    assert first_statement("40, 0.4, 4.0", "4") == 0


def own(thought, answer):
    return len(thought) if answer in thought else 0


def test_an_extractor_of_your_own():
    forest = attempts(("ab4242</think>", True))
    actual = valid_thinking(forest, decode, lambda f: ["42"], extract=f"{__file__}:own")
    assert actual.tolist() == [0.0]


def test_the_bonus_stands_at_the_end_of_the_thought():
    # lengths 5, 9: R - |o| / 9: .444444 0; their mean .222222; at the tag + (1 - 2/3), and -1
    forest = attempts(("42.</think>4", True), ("4242424</think>4", True))
    forest = Spans(patterns=("</think>",))(forest, SegmentTools(decode))
    m = gxpo.method("lc_r1")
    forest = m.shaped(forest)
    signal = valid_thinking(forest, decode, lambda f: ["42"] * 2)
    credit = m.advantages(forest, {"valid_thinking": signal})
    tags = forest.token[forest.path_token] == TAG
    assert credit[tags].tolist() == pytest.approx([2 / 9 + 1 / 3, -2 / 9 - 1])
    assert credit[~tags].tolist() == pytest.approx([2 / 9] * 4 + [-2 / 9] * 8)
    bare = Spans(patterns=("x",))(m.shaped(attempts(("42", True))), SegmentTools(decode))
    assert m.advantages(bare, {"valid_thinking": torch.ones(1)}).tolist() == [0.0, 0.0]
