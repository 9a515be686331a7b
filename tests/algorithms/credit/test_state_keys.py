"""Which steps are in one state, came to it in the same way, and took the same action."""

from __future__ import annotations

import random
from difflib import SequenceMatcher

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import anchor_state_credit
from tests.algorithms.credit.walks import walks_of, wandering

from gxpo.algorithms.credit import GroupRelative, StateRelative
from gxpo.algorithms.credit.recursion import next_in
from gxpo.algorithms.credit.state_keys import (
    action_ids,
    cluster_leaders,
    combined,
    history_ids,
    sequence_ids,
    state_ids,
)
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest.forest import Forest

SEEDS = st.integers(0, 10**6)


def same(ids: torch.Tensor, keys: list) -> bool:
    """Equal ids where keys are equal, -1 where they are None."""
    rows = ids.tolist()
    pairs = {(i, k) for i, k in zip(rows, keys, strict=True)}
    return all((i == -1) == (k is None) for i, k in pairs) and len(pairs) == len(set(rows)) == len(set(keys))


@given(SEEDS)
def test_states_and_ends_agree_with_names(seed):
    forest = wandering(seed)
    states = [None if s < 0 else forest.state_names[s] for s in forest.step_state.tolist()]
    groups = [forest.group[r] for r in forest.step_trajectory.tolist()]
    keys = [None if s is None else (g, s) for g, s in zip(groups, states, strict=True)]
    keys += [None if s is None else (g, s) for g, s in zip(forest.group, forest.final_state, strict=True)]
    ids = state_ids(forest)
    assert same(ids, keys) and sorted({*ids.tolist()} - {-1}) == list(range(int(ids.max()) + 1))


@given(SEEDS)
def test_moves_pass_over_unknown_states(seed):
    forest = wandering(seed)
    moves = StateRelative().moves(forest)
    before, after, following = [None] * forest.n_steps, [None] * forest.n_steps, [-1] * forest.n_steps
    for walk in walks_of(forest):
        for i, move in enumerate(walk.moves):
            before[move.row] = (walk.group, move.state)
            after[move.row] = None if move.after is None else (walk.group, move.after)
            following[move.row] = walk.moves[i + 1].row if i + 1 < len(walk.moves) else -1
    assert same(torch.cat([moves.before, moves.after]), before + after)
    assert moves.following.tolist() == following


@given(SEEDS, st.integers(0, 4), st.booleans())
def test_histories_agree_with_tuples(seed, depth, whole):
    forest = wandering(seed)
    state = StateRelative().states(forest)
    actual = history_ids(state, next_in(forest.step_trajectory, state >= 0), depth, needs_full_history=whole)
    assert len(actual) == depth + 1
    for h, ids in enumerate(actual):
        keys: list = [None] * forest.n_steps
        for walk in walks_of(forest):
            names = [m.state for m in walk.moves]
            for t, move in enumerate(walk.moves):
                if t >= h or not whole:
                    begin = "begin" if t < h else ""
                    keys[move.row] = (walk.group, begin, *names[max(t - h, 0) : t + 1])
        assert same(ids, keys)


@given(st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=12))
def test_sequences_are_equal_token_by_token(rows):
    value = torch.tensor([x for row in rows for x in row], dtype=torch.int64)
    owner = torch.tensor([i for i, row in enumerate(rows) for _ in row], dtype=torch.int64)
    ids = sequence_ids(value, owner, len(rows)).tolist()
    assert [[i == j for j in ids] for i in ids] == [[a == b for b in rows] for a in rows]


def test_actions_of_text_and_of_latents(grow):
    def turns(**turn):
        return {"turns": [turn]}

    rows = [
        turns(action=[3, 4]), turns(action=[3, 4]), turns(action=[3]), turns(action_text="left"),
        turns(action_text="left"), turns(action_text="right"), turns(action=[-1, 3]), turns(action=[-1, 3]),
    ]  # fmt: skip
    base = {"schema": "gxpo.rollouts/1", "group": "g", "reward": 1.0}
    forest = Forest.from_records([{**base, "id": str(i), **row} for i, row in enumerate(rows)])
    ids = action_ids(forest).tolist()
    assert ids[0] == ids[1] and ids[3] == ids[4] and ids[6:] == [-1, -1]
    assert len(set(ids)) == 5  # [3, 4], [3], left, right, unknown


def test_combinations():
    assert combined(torch.tensor([2, 0, 2, -1]), torch.tensor([1, 1, 1, 0])).tolist() == [1, 0, 1, -1]
    nothing = torch.zeros(0, dtype=torch.int64)
    assert combined(nothing, nothing).tolist() == [] and combined(torch.tensor([-1]), torch.tensor([0])).tolist() == [
        -1
    ]


# ---------------------------------------------------------------- likeness
def test_greedy_leaders():
    """Likeness 2 M / T: "abcd" and "abce" share 3 of 8 letters twice, 0.75; "abcd" and "abfe" 2, 0.5."""
    assert cluster_leaders(["abcd", "abce", "abfe"], 0.75) == [
        0,
        0,
        2,
    ]  # the third is like the second, not like its leader
    assert cluster_leaders(["abce", "abcd", "abfe"], 0.75) == [0, 0, 0]  # the order decides
    assert cluster_leaders(["abcd", "abce", "abfe"], 0.5) == [0, 0, 0]
    assert cluster_leaders(["abcd", "abce"], 0.76) == [0, 1]
    assert cluster_leaders([], 0.9) == []


@given(st.lists(st.text("ab ", max_size=8), max_size=8, unique=True), st.sampled_from([0.3, 0.6, 0.8, 0.95]))
def test_leaders_agree_with_a_loop(texts, threshold):
    expected: list[int] = []
    for i, text in enumerate(texts):
        likeness = {j: SequenceMatcher(None, text, texts[j], False).ratio() for j in dict.fromkeys(expected)}
        expected.append(next((j for j, x in likeness.items() if x >= threshold), i))
    assert cluster_leaders(texts, threshold) == expected


def test_long_texts_are_compared_whole():
    """Each letter is more than a hundredth of 240, so that difflib's default begins no match: likeness 0 for two texts
    that differ by their first letter."""
    one = "north south " * 20
    other = "m" + one[1:]
    assert SequenceMatcher(None, one, other).ratio() == 0.0
    assert SequenceMatcher(None, one, other, autojunk=False).ratio() == pytest.approx(1 - 1 / 240)
    assert cluster_leaders([one, other], 0.95) == [0, 0]


def seen(rows: list[tuple[str, float, list[str], bool]]) -> Forest:
    """Trajectories by what they read: (group, reward, observations, compared)."""
    records = []
    for i, (group, reward, texts, compared) in enumerate(rows):
        turns = [{"observation": [2], "observation_text": t, "action": [3], "state": t} for t in texts]
        records.append({"schema": "gxpo.rollouts/1", "group": group, "id": str(i), "prompt": [1], "turns": turns,
                        "reward": reward, "compared": compared})  # fmt: skip
    return Forest.from_records(records)


ROOMS = [
    ("a", 1.0, ["you see a red door", "you see a cellar"], True),
    ("a", 0.0, ["you see a red floor", "a wide field"], True),
    ("b", 0.5, ["you see a red door"], True),
]


@pytest.mark.parametrize("told_by", ["id", "observation"])
def test_like_states_are_one_within_a_group(told_by):
    """17 equal letters of 18 and 19: 34 / 37 = .919. The first steps of group a meet, that of b does not."""
    forest = seen(ROOMS)
    ids = state_ids(forest, told_by, 0.91).tolist()[:5]
    assert ids[0] == ids[2] and len(set(ids)) == 4
    assert len(set(state_ids(forest, told_by, 0.92).tolist()[:5])) == 5
    part = anchor_state_credit(scale="none", state=told_by, min_similarity=0.85)
    apart = anchor_state_credit(scale="none", state=told_by)
    # returns .95 and 0 in what is now one state: +-.475 beside the episode's +-.5
    assert part(forest, {}, 0).tolist() == pytest.approx([0.975, 0.5, -0.975, -0.5, 0.0])
    assert apart(forest, {}, 0).tolist() == pytest.approx([0.5, 0.5, -0.5, -0.5, 0.0])
    assert part.requires == (("states",) if told_by == "id" else ())


def test_leaders_depend_on_no_order_and_no_uncompared_text():
    """abfe would lead alone, be like abce, and take it from abcd; it leads last, since nobody compared met it."""
    rows = [("a", 1.0, ["abce"], True), ("a", 0.0, ["abcd"], True), ("a", 0.0, ["abfe"], False)]
    part = anchor_state_credit(scale="none", step_weight=1.0, min_similarity=0.75)
    credit_of_two = part(seen(rows[:2]), {}, 0)
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        actual = part(seen([rows[i] for i in order]), {}, 0)
        assert [float(actual[order.index(i)]) for i in (0, 1)] == credit_of_two.tolist() == [1.0, -1.0]


@given(SEEDS)
def test_the_order_of_trajectories_does_not_matter(seed):
    rng = random.Random(seed)
    words = ["go north", "go south", "go norths", "a lamp", "a lamb", "the lamp"]
    rows = [
        (rng.choice("ab"), rng.choice((0.0, 1.0)), [rng.choice(words) for _ in range(3)], rng.random() < 0.8)
        for _ in range(6)
    ]
    forest = seen(rows)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    for part in (
        anchor_state_credit(min_similarity=0.8),
        anchor_state_credit(state="observation", min_similarity=0.7, history=1),
    ):
        credit = part(forest, {}, 0)
        assert torch.allclose(part(forest.select(order), {}, 0), credit[forest.entries_of(order)], atol=1e-12)


def test_equal_texts_are_states_where_there_are_no_ids(grow):
    forest = seen([(g, r, ["same"], c) for g, r, _, c in ROOMS]).replace(step_state=torch.full((3,), -1))
    assert torch.equal(anchor_state_credit()(forest, {}, 0), GroupRelative()(forest, {}, 0))
    assert anchor_state_credit(state="observation", scale="none")(forest, {}, 0).tolist() == [1.0, -1.0, 0.0]


def test_refusals(grow):
    with pytest.raises(GxpoError, match="needs the observations' texts, and there is none: use state=id"):
        anchor_state_credit(state="observation")(grow([("a", 1.0, [1])]), {}, 0)
    message = r"^credit\.add\.state\.state is 'text' \(test\); it is one of id, observation$"
    with pytest.raises(ConfigError, match=message):
        anchor_state_credit(state="text")  # type: ignore[arg-type]
    for wrong in (0.0, 1.01):
        with pytest.raises(ConfigError, match=f"credit.add.state.min_similarity is {wrong}"):
            anchor_state_credit(min_similarity=wrong)
