"""Polychromic objectives: the card's sets, all sets counted out, what it reduces to, what tells attempts apart."""

from __future__ import annotations

import itertools
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import advantage
from gxpo.algorithms.credit.sets import by_sets, same_actions, set_relative
from gxpo.base.errors import ConfigError, GxpoError


def score(members):
    """f of a set of (reward, key)."""
    return statistics.fmean(r for r, _ in members) * len({k for _, k in members}) / len(members)


def shared(members, sets):
    """Each member's mean score over the sets that hold it, less the mean over all."""
    scores = [score([members[i] for i in s]) for s in sets]
    holding = [[x for x, s in zip(scores, sets, strict=True) if i in s] for i in range(len(members))]
    return [statistics.fmean(x) - statistics.fmean(scores) for x in holding]


def test_the_cards_sets_pin_the_loop():
    members = [(1, "x"), (0, "y"), (1, "x"), (1, "x"), (0, "x"), (0, "y")]
    assert [score(members[i : i + 2]) for i in (0, 2, 4)] == [0.5, 0.5, 0.0]
    found = shared(members, [(0, 1), (2, 3), (4, 5)])
    assert found == pytest.approx([0.166667] * 2 + [0.166667] * 2 + [-0.333333] * 2, abs=1e-6)


member = st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 0.4, 1.0]), st.integers(0, 2), st.booleans())


@settings(max_examples=80, deadline=None)
@given(st.lists(member, min_size=1, max_size=9), st.integers(1, 5))
def test_it_equals_a_count_over_all_sets(rows, size):
    outcome, group = (torch.tensor([row[i] for row in rows]) for i in (1, 2))
    group = torch.tensor(["ab".index(row[0]) for row in rows])
    key, where = torch.tensor([row[2] for row in rows]), torch.tensor([row[3] for row in rows])
    found = set_relative(outcome.double(), group, key, size, where)
    for g in "ab":
        place = [i for i, row in enumerate(rows) if row[0] == g and row[3]]
        members = [(rows[i][1], rows[i][2]) for i in place]
        few = len(members) <= size
        sets = [] if few else list(itertools.combinations(range(len(members)), size))
        expected = [0.0] * len(members) if few else shared(members, sets)
        assert found[place].tolist() == pytest.approx(expected, abs=1e-7)
    assert bool((found[~where] == 0).all())


def test_a_wrong_attempt_that_differs_can_gain(grow):
    records = grow([("a", r, [2]) for r in (1.0, 1.0, 1.0, 0.0, 0.0, 0.0)]).to_records()
    for i, token in enumerate((3, 3, 3, 4, 3, 3)):
        records[i]["turns"][0]["action"] = [3, token]
    found = advantage(by_sets, size=2)(gxpo.Forest.from_records(records), {}, 0)[::2].tolist()
    assert found[3] > found[4] == found[5] and sum(found) == pytest.approx(0, abs=1e-12)
    # among sets of two: with the odd one d = 1, else .5; f = .5 for 1 and 0 with the odd one, .5 for 1, 1 ...
    assert found[3] == pytest.approx(statistics.fmean([0.5] * 3 + [0.0] * 2) - _mean_of_all())


def _mean_of_all():
    members = [(1, "x")] * 3 + [(0, "y")] + [(0, "x")] * 2
    return statistics.fmean(score(pair) for pair in itertools.combinations(members, 2))


@pytest.mark.parametrize(("size", "factor"), [(1, 1.0), (2, 3 / 8), (3, 2 / 12)])
def test_where_all_differ_it_is_dr_grpo(size, factor):
    outcome, group = torch.tensor([1.0, 0.5, 0.0, 0.0, 1.0]), torch.zeros(5, dtype=torch.int64)
    found = set_relative(outcome, group, torch.arange(5), size)
    assert found.tolist() == pytest.approx([factor * (r - 0.5) for r in outcome.tolist()])  # (n - size) / size (n - 1)


def test_equal_rewards_have_credit_only_where_some_are_the_same():
    one, group = torch.ones(5, dtype=torch.float64), torch.zeros(5, dtype=torch.int64)
    assert bool((set_relative(one / 3, group, torch.arange(5), 3) == 0).all())
    assert bool((set_relative(one / 3, group, torch.zeros(5).long(), 3) == 0).all())
    assert set_relative(one, group, torch.tensor([0, 0, 0, 0, 1]), 3)[4] > 0
    assert advantage(by_sets).learns_from_equal_groups


def test_order_does_not_matter():
    g = torch.Generator().manual_seed(1)
    outcome = torch.rand(30, generator=g, dtype=torch.float64)
    group, key = (torch.randint(0, 3, (30,), generator=g) for _ in range(2))
    order = torch.randperm(30, generator=g)
    found = set_relative(outcome, group, key, 3)
    assert torch.allclose(set_relative(outcome[order], group[order], key[order], 3), found[order], atol=1e-14)


def test_what_makes_attempts_the_same(grow):
    rows = [("a", r, [2], {"info": {"answer": x}}) for r, x in ((1.0, "4"), (0.0, "5"), (1.0, "4"))]
    records = grow(rows).to_records()
    records[2]["turns"][0]["action"] = [9, 9]
    forest = gxpo.Forest.from_records(records)
    assert same_actions(forest).tolist() == [0, 0, 1]
    by_actions = set_relative(forest.outcome, torch.zeros(3).long(), torch.tensor([0, 0, 1]), 2)
    by_answers = set_relative(forest.outcome, torch.zeros(3).long(), torch.tensor([0, 1, 0]), 2)
    assert torch.equal(advantage(by_sets, size=2)(forest, {}, 0)[::2], by_actions)
    assert torch.equal(advantage(by_sets, size=2, same="info.answer")(forest, {}, 0)[::2], by_answers)
    unknown = advantage(by_sets, size=2, same="info.nothing")(forest, {}, 0)[::2]  # nobody is like another
    assert torch.equal(unknown, set_relative(forest.outcome, torch.zeros(3).long(), torch.arange(3), 2))


def test_actions_are_told_apart_by_every_token_and_its_place(grow):
    wrote = [[*s] for n in range(1, 5) for s in itertools.product((0, 1, 2), repeat=n)]
    records = grow([("a", 0.0, [len(tokens)]) for tokens in wrote + wrote]).to_records()
    for record, tokens in zip(records, wrote + wrote, strict=True):
        record["turns"][0]["action"] = tokens
    found = same_actions(gxpo.Forest.from_records(records)).tolist()
    assert len(set(found)) == len(wrote) and found[: len(wrote)] == found[len(wrote) :]


def test_options_and_texts(grow):
    with pytest.raises(ConfigError, match=r"credit\.size is 0"):
        advantage(by_sets, size=0)
    text = {"schema": "gxpo.rollouts/1", "group": "a", "reward": 1.0, "turns": [{"action_text": "yes"}]}
    forest = gxpo.Forest.from_records([text | {"id": name} for name in "xy"])
    with pytest.raises(GxpoError, match="set_relative needs token ids"):
        advantage(by_sets)(forest, {}, 0)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_rewards_and_keys_that_cross(size):
    rewards, keys = [1.0, 0.4, 0.0, 1.0, 0.4, 0.0, 0.4], [0, 0, 1, 1, 2, 2, 2]
    expected = shared(list(zip(rewards, keys, strict=True)), list(itertools.combinations(range(7), size)))
    found = set_relative(torch.tensor(rewards).double(), torch.zeros(7).long(), torch.tensor(keys), size)
    assert found.tolist() == pytest.approx(expected, abs=1e-7)


def test_what_is_unknown_in_one_group_is_not_what_is_known_in_another(grow):
    # b: three that differ, so Dr. GRPO times 1 / (2 * 2): (1 - 1/3) / 4 and -(1/3) / 4
    rows = [("a", r, [1], {"info": {"answer": x}}) for r, x in ((1.0, "4"), (0.0, "5"), (1.0, "4"))]
    both = grow([*rows, *(("b", r, [1]) for r in (1.0, 0.0, 0.0))])
    part = advantage(by_sets, size=2, same="info.answer")
    expected = [*part(grow(rows), {}, 0).tolist(), 1 / 6, -1 / 12, -1 / 12]
    assert part(both, {}, 0).tolist() == pytest.approx(expected, abs=1e-12)


def test_of_nobody_there_is_nothing():
    nothing = torch.zeros(0, dtype=torch.int64)
    assert set_relative(nothing.double(), nothing, nothing, 2).shape == (0,)
