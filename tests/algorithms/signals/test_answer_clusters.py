"""Clusters of answers: what counts as the same answer, inside a group and across groups."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.signals.texts import answer_clusters, clusters
from gxpo.base.answers import ANSWER, compiled, extract
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.environments.rewards.majority import vote
from gxpo.forest.forest import Forest
from gxpo.parts.definition import kind_of

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
             "turns": [{"action": list(t.encode()), **({"observation": [0]} if k else {})} for k, t in enumerate(said)]}
            for i, (g, said) in enumerate(rows)
        ]
    )  # fmt: skip


def computed(forest: Forest, **settings: Any) -> list[int]:
    tools: Any = SimpleNamespace(decode=lambda ids: bytes(ids).decode())
    return AnswerClusters(**settings).compute(forest, {}, tools)["answer_cluster"].tolist()


def test_the_last_answer_counts_and_a_text_without_one_is_its_own():
    # 85, 85, 84; then two texts without an answer, one of them twice but for the blanks around it
    said = ["7+8=15#85", r"first #84, no: \boxed{85}", "<answer>84</answer>", "no idea", " no idea\n", "none"]
    assert computed(grown([("g", [t]) for t in said])) == [0, 0, 1, 2, 2, 3]


def test_an_answer_is_not_the_text_that_looks_like_it_and_groups_share_nothing():
    assert computed(grown([("a", ["#85"]), ("a", ["85"]), ("b", ["#85"]), ("b", ["#85"])])) == [0, 1, 2, 2]


def test_turns_are_read_together_and_a_pattern_says_where_the_answer_is():
    forest = grown([("g", ["#1", "it is 7"]), ("g", ["it is 7", "#1"]), ("g", ["it is ", "8"])])
    assert computed(forest) == [0, 0, 1]
    assert computed(forest, pattern=r"it is (\d)") == [0, 0, 1]
    assert computed(forest, pattern="[0-9]") == [0, 1, 2]  # without a group the whole match: 7, 1, 8


@given(TEXTS)
def test_ids_are_equal_exactly_where_group_and_answer_are(rows):
    groups = torch.tensor([ord(g) - ord("a") for g, _ in rows])
    found = clusters([t for _, t in rows], groups).tolist()

    def answer(text: str) -> tuple[bool, str]:
        said = re.findall(r"#(\d)|boxed\{(\d)\}", text)
        return (True, "".join(said[-1])) if said else (False, text.strip())

    for i, (g, text) in enumerate(rows):
        for j, (h, other) in enumerate(rows):
            assert (found[i] == found[j]) == (g == h and answer(text) == answer(other))
    assert sorted(set(found)) == list(range(len(set(found))))


@given(TEXTS)
def test_the_largest_cluster_with_an_answer_is_the_majority_of_the_vote(rows):
    texts, names = [t for _, t in rows], [g for g, _ in rows]
    answers = [extract(t, re.compile(ANSWER)) for t in texts]
    label = vote(answers, names, [True] * len(rows))
    found = clusters(texts, torch.tensor([ord(g) for g in names])).tolist()
    for g in label:
        sizes = Counter(c for c, h, a in zip(found, names, answers, strict=True) if h == g and a is not None)
        size = next(sizes[c] for c, h, a in zip(found, names, answers, strict=True) if h == g and a == label[g])
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
