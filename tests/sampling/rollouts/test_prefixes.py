"""Completions of prefixes: what is given is untrained and shared, what is drawn depends on keys alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.rollouts.tree_session import TreeSession, tokens_of

from gxpo.algorithms.credit.ordered import pairs_of, prefixes_of
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.forest.records import dump
from gxpo.parts.protocols import Sampling, Task
from gxpo.sampling.rollouts.prefixes import Prefix, Prefixes, beginnings
from gxpo.sampling.rollouts.search import Search

A, B = Task("a", "a?"), Task("b", (4, 5))


def test_beginnings_end_where_pieces_do():
    forest = Search(terminals=4, width=2, chunks=4).grow([A, B], TreeSession())
    actual = beginnings(forest)
    assert set(actual) == {"a", "b"} and all(p[0] == Prefix() for p in actual.values())
    for task, prefixes in actual.items():
        full_tokens = [tokens_of(forest, r) for r in range(forest.n_trajectories) if forest.task[r] == task]
        expected = {tuple(t[:n]) for t in full_tokens for n in range(0, len(t), 3)}
        assert {p.tokens for p in prefixes} == expected and len(prefixes) == len(expected)
        assert all(p.begins == tuple(range(0, len(p.tokens), 3)) for p in prefixes)


@settings(max_examples=15)
@given(st.integers(0, 60), st.integers(1, 9))
def test_prefixes_are_untrained_and_each_stored_once(step, size):
    session = TreeSession(step=step)
    part = Prefixes(group_size=size, chunks=4)
    forest = part.grow([A, B], session)
    assert forest.n_trajectories == 2 * size and bool(forest.scored.all())
    counts: dict[tuple[str, tuple[int, ...]], int] = {}
    for r in range(forest.n_trajectories):
        own_path, tokens, n = forest.path_of(r), tokens_of(forest, r), forest.info[r]["prefix"]
        assert forest.path_trainable[own_path].tolist() == [False] * n + [True] * (len(tokens) - n)
        assert forest.path_behaviour_logprob[own_path].isfinite().tolist() == forest.path_trainable[own_path].tolist()
        context = list(session.encode(A if forest.task[r] == "a" else B))
        for p, token in zip(own_path.tolist(), tokens, strict=True):
            if bool(forest.path_trainable[p]):
                assert float(forest.path_behaviour_logprob[p]) == session.table(context)[token]
            context.append(token)
        for k in range(n):  # a prefix token of a group is one stored token, whoever has it
            stored = int(forest.path_token[own_path[k]])
            assert counts.setdefault((forest.group[r], tuple(tokens[: k + 1])), stored) == stored
        assert len(tokens) <= session.sampling.max_new_tokens
    prefixes = prefixes_of(forest)
    assert prefixes.length.tolist() == [info["prefix"] for info in forest.info]
    pairs = pairs_of(forest, prefixes)
    for i, j, extends in zip(pairs.one.tolist(), pairs.other.tolist(), pairs.extends.tolist(), strict=True):
        n = forest.info[i]["prefix"]
        begins = n <= forest.info[j]["prefix"] and tokens_of(forest, j)[:n] == tokens_of(forest, i)[:n]
        assert extends == begins
    again = Forest.from_records(forest.to_records())
    assert torch.equal(again.path_token, forest.path_token)


def test_a_file_of_rollouts_gives_the_prefixes(tmp_path):
    teacher = Search(terminals=4, width=2, chunks=4).grow([A], TreeSession(step=9))
    dump(teacher, tmp_path / "teacher.jsonl")
    session = TreeSession()
    forest = Prefixes(group_size=6, tree=str(tmp_path / "teacher.jsonl")).grow([A, B], session)
    prefixes = {tuple(p.tokens) for p in beginnings(teacher)["a"]}
    used = {tuple(tokens_of(forest, r)[: forest.info[r]["prefix"]]) for r in range(6)}
    assert used <= prefixes and len(used) > 1
    assert [forest.info[r]["prefix"] for r in range(6, 12)] == [0] * 6  # the file does not have b
    generated = sum(len(tokens_of(forest, r)) - forest.info[r]["prefix"] for r in range(12))
    assert session.budget.generated_tokens == generated and session.budget.discarded == 0
    bare = tmp_path / "bare.jsonl"
    dump(teacher.replace(segment=torch.full_like(teacher.segment, -1)), bare)
    with pytest.raises(ConfigError, match="no segments"):
        Prefixes(tree=str(bare)).grow([A], TreeSession())


def test_a_group_depends_on_nothing_else_in_the_batch():
    part = Prefixes(group_size=5, chunks=4)
    together, alone = part.grow([A, B], TreeSession()), part.grow([B], TreeSession())
    rows = [r for r in range(together.n_trajectories) if together.task[r] == "b"]
    assert [tokens_of(together, r) for r in rows] == [tokens_of(alone, r) for r in range(5)]


def test_the_support_covers_prefixes_too():
    session = TreeSession(sampling=Sampling(max_new_tokens=12, top_k=2))
    forest = Prefixes(group_size=6, chunks=4).grow([A], session)
    assert torch.equal(forest.extras["support"][forest.path_token][:, 0], forest.token[forest.path_token])


def test_refusals():
    with pytest.raises(ConfigError, match="group_size"):
        Prefixes(group_size=0)
    with pytest.raises(ConfigError, match="chunks"):
        Prefixes(chunks=0)
