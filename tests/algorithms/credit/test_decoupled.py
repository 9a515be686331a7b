"""GDPO: rewards normalised by themselves, weights by name."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import advantage, group_relative
from gxpo.algorithms.credit.decoupled import decoupled, decoupled_sum
from gxpo.base.errors import ConfigError

CARD = [("g", 1.0, 1.0), ("g", 1.0, 0.0), ("g", 0.0, 0.0), ("g", 0.0, 0.0)]


def grown(grow, rows, lengths=None):
    """(group, correct, format[, compared]); None is nan."""
    out = []
    for i, (g, a, b, *rest) in enumerate(rows):
        fields = {"rewards": {"correct": a, "format": b}, "compared": rest[0] if rest else True}
        out.append((g, a, [1 if lengths is None else lengths[i]], fields))
    return grow(out)


def per_row(forest, credit):
    return [float(credit[forest.path_of(r)[0]]) for r in range(forest.n_trajectories)]


def test_the_cards_numbers(grow):
    # r1 1 1 0 0: std .577350, z = .5 / .577450 = .865875; r2 1 0 0 0: std .5, z = .75 / .5001 = 1.4997, -.4999
    # s = 2.365575 .365975 -1.365775 -1.365775, mean 0, std 1.775816
    both = decoupled_sum(torch.tensor([[1.0, 1], [1, 0], [0, 0], [0, 0]]), torch.ones(2), torch.zeros(4).long())
    assert both.tolist() == pytest.approx([2.365575, 0.365975, -1.365775, -1.365775], abs=1e-6)
    actual = advantage(decoupled)(grown(grow, CARD), {}, 0)
    assert actual.tolist() == pytest.approx([1.332031, 0.206077, -0.769054, -0.769054], abs=2e-6)
    summed = group_relative(torch.tensor([2.0, 1, 0, 0]), torch.zeros(4).long(), eps=1e-4)
    assert summed.tolist() == pytest.approx([1.305446, 0.261089, -0.783268, -0.783268], abs=2e-6)


def test_the_two_ports_differ_where_lengths_do(grow):
    # T27. Lengths 1 1 1 5: by trajectories as above. By tokens: s of 8 tokens, of which 6 are -1.365775:
    # mean (2.365575 + .365975 - 6 * 1.365775) / 8 = -.6828875; squares about it 9.293124 + 1.100113 + 6 * .466335
    # = 13.191249; variance 13.191249 / 7 = 1.884464, root 1.372758; so 3.048463, 1.048863 and -.682888 over that
    forest = grown(grow, CARD, [1, 1, 1, 5])
    trajectories, tokens = advantage(decoupled)(forest, {}, 0), advantage(decoupled, batch_unit="tokens")(forest, {}, 0)
    assert per_row(forest, trajectories) == pytest.approx([1.332031, 0.206077, -0.769054, -0.769054], abs=2e-6)
    assert tokens.tolist() == pytest.approx([2.220685, 0.764055, *[-0.497456] * 6], abs=3e-6)
    assert (
        advantage(decoupled, batch_unit="tokens").learns_from_equal_groups
        and not advantage(decoupled).learns_from_equal_groups
    )


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.3, 1.0, None]), st.booleans()
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=30, deadline=None)
@given(rows=ROWS, weight=st.sampled_from([0.5, 1.0, -2.0]))
def test_it_equals_a_loop(grow, rows, weight):
    forest = grown(grow, rows)
    usable = [b is not None for _, _, b, _ in rows]
    total = [0.0] * len(rows)
    moved = [False] * len(rows)
    for k, w in ((1, 1.0), (2, weight)):
        for i, row in enumerate(rows):
            peers = [r[k] for r, u in zip(rows, usable, strict=True) if r[0] == row[0] and r[3] and u]
            if not usable[i] or len(peers) < 2 or len(set(peers)) == 1:
                continue
            mean = sum(peers) / len(peers)
            std = math.sqrt(sum((p - mean) ** 2 for p in peers) / (len(peers) - 1))
            total[i] += w * (row[k] - mean) / (std + 1e-4)
            moved[i] = True
    batch = [t for t, row, u in zip(total, rows, usable, strict=True) if row[3] and u]
    mean = sum(batch) / len(batch) if batch else 0.0
    std = math.sqrt(sum((t - mean) ** 2 for t in batch) / (len(batch) - 1)) if len(batch) > 1 else 0.0
    expected = [(t - mean) / (std + 1e-4) if m and std > 1e-12 else 0.0 for t, m in zip(total, moved, strict=True)]
    part = advantage(decoupled, weights={"format": weight, "correct": 1.0})
    assert per_row(forest, part(forest, {}, 0)) == pytest.approx(expected, abs=1e-8)


def test_weights_go_by_name_whatever_the_order(grow):
    # T26
    forest = grown(grow, [*CARD, ("h", 1.0, 0.0), ("h", 0.0, 1.0)])
    one = advantage(decoupled, weights={"correct": 1.0, "format": 0.25})(forest, {}, 0)
    other = advantage(decoupled, weights={"format": 0.25, "correct": 1.0})(forest, {}, 0)
    assert one.tolist() == pytest.approx(other.tolist(), abs=1e-12)
    swapped = advantage(decoupled, weights={"correct": 0.25, "format": 1.0})(forest, {}, 0)
    assert one.tolist() != pytest.approx(swapped.tolist(), abs=1e-3)
    flipped = forest.replace(component_names=("format", "correct"), components=forest.components.flip(1))
    assert advantage(decoupled, weights={"correct": 1.0, "format": 0.25})(flipped, {}, 0).tolist() == pytest.approx(
        one.tolist()
    )


def test_names_that_are_not_there_are_refused_with_what_there_is(grow):
    forest = grown(grow, CARD)
    with pytest.raises(ConfigError, match=r"names 'fromat'.*did you mean 'format'.*there is correct, format"):
        advantage(decoupled, weights={"fromat": 1.0})(forest, {}, 0)
    with pytest.raises(ConfigError, match="there is none"):
        advantage(decoupled, weights={"correct": 1.0})(grow([("g", 1.0, [1])]), {}, 0)
    for wrong in ({"correct": math.inf}, {"correct": 0.0}, {}):
        with pytest.raises(ConfigError, match=r"credit\.weights"):
            advantage(decoupled, weights=wrong)
    with pytest.raises(ConfigError, match=r"credit\.batch_unit"):
        advantage(decoupled, batch_unit="rows")


def test_a_missing_reward_takes_its_row_out(grow):
    # T25
    forest = grown(grow, [*CARD, ("g", 1.0, None)])
    actual = advantage(decoupled)(forest, {}, 0)
    assert (
        actual[:4].tolist() == pytest.approx(advantage(decoupled)(grown(grow, CARD), {}, 0).tolist()) and actual[4] == 0
    )
    unnamed = advantage(decoupled, weights={"correct": 1.0})(forest, {}, 0)  # the missing one has no weight
    assert bool((unnamed != 0).all())
    tokens = advantage(decoupled, batch_unit="tokens")
    tokens_of_one = tokens(grown(grow, CARD), {}, 0).tolist()
    assert tokens(forest, {}, 0).tolist() == pytest.approx([*tokens_of_one, 0.0])


def test_one_reward_is_grpo_and_equal_groups_are_zero(grow):
    forest = grown(grow, [*CARD, ("h", 1.0, 0.3), ("h", 1.0, 0.3), ("h", 1.0, 0.3)])
    grpo = group_relative(forest.outcome, forest.ids("group", axis="R"), eps=1e-4)
    assert torch.equal(advantage(decoupled, weights={"correct": 0.5})(forest, {}, 0), 0.5 * grpo)
    both = advantage(decoupled)(forest, {}, 0)
    assert both[4:].tolist() == [0, 0, 0] and bool((both[:4] != 0).all())
    bare = grow([("g", r, [1]) for r in (1.0, 0.0, 0.0)])
    assert torch.equal(advantage(decoupled)(bare, {}, 0), group_relative(bare.outcome, torch.zeros(3).long(), eps=1e-4))


def test_an_equal_reward_adds_nothing_at_any_weight(grow):
    rows = [("g", 1.0, 0.7), ("g", 0.0, 0.7), ("g", 0.0, 0.7)]
    light, heavy = (
        advantage(decoupled, weights={"correct": 1.0, "format": w})(grown(grow, rows), {}, 0) for w in (0.1, 100.0)
    )
    assert torch.equal(light, heavy)


def test_scaling_a_reward_changes_nothing(grow):
    rows = [("g", 1.0, 0.0), ("g", 0.0, 1.0), ("g", 1.0, 1.0), ("g", 0.0, 0.0)]
    large = [(g, a, 1000 * b) for g, a, b in rows]
    one, other = (advantage(decoupled, eps=1e-9)(grown(grow, x), {}, 0) for x in (rows, large))
    assert one.tolist() == pytest.approx(other.tolist(), abs=1e-6)


def test_the_method_and_its_weights():
    m = gxpo.method("gdpo_multi", {"credit.weights": {"correct": 1.0, "format": 0.5}})
    assert m.credit == advantage(decoupled, weights={"correct": 1.0, "format": 0.5})


def batch_by_hand(total, counting, moved):
    """(s - mean) / (std + .5), of the population."""
    of = [t for t, c in zip(total, counting, strict=True) if c]
    mean, std = statistics.fmean(of), statistics.pstdev(of)
    return [(t - mean) / (std + 0.5) if m else 0.0 for t, m in zip(total, moved, strict=True)]


@pytest.mark.parametrize("single", ["zero", "raw"])
def test_a_group_of_one_equal_groups_and_who_is_not_compared(grow, single):
    # g: population std of 1 1 0 0 is .5, of 1 0 0 0 .433013: z = .5 / 1 and .75, -.25 over .933013
    # h is one compared attempt: raw (1 + .5) / 1.5 = 1; k is equal but for one that is not compared
    rows = [*CARD, ("h", 1.0, 0.5), ("h", 0.0, 0.0, False), ("k", 1.0, 0.3), ("k", 1.0, 0.3), ("k", 0.0, 0.0, False)]
    up, down = 0.75 / 0.933013, 0.25 / 0.933013
    total = [0.5 + up, 0.5 - down, -0.5 - down, -0.5 - down, 1.0 if single == "raw" else 0.0, 0.0, 0.0, 0.0, 0.0]
    counting = [len(r) == 3 for r in rows]
    moved = [True] * 4 + [single == "raw", True, False, False, True]
    forest = grown(grow, rows)
    actual = per_row(forest, advantage(decoupled, ddof=0, eps=0.5, singleton=single)(forest, {}, 0))
    assert actual == pytest.approx(batch_by_hand(total, counting, moved), abs=1e-6)
    missing = grown(grow, [*rows, ("g", 1.0, None)])
    again = advantage(decoupled, ddof=0, eps=0.5, singleton=single)(missing, {}, 0)
    assert per_row(missing, again) == pytest.approx([*actual, 0.0], abs=1e-12)


def test_over_tokens_trained_and_compared_ones_count(grow):
    # four trained tokens of s = 2.365575 .365975 -1.365775 -1.365775 have the std 1.775816; the fifth attempt's s is
    # -.5 / .57745 + .75 / .5001 = .633825
    forest = grow(
        [
            *(("g", a, [1], {"rewards": {"correct": a, "format": b}}) for _, a, b in CARD[:3]),
            ("g", 0.0, [3], {"rewards": {"correct": 0.0, "format": 0.0}, "trainable": [False, True, False]}),
            ("g", 0.0, [2], {"rewards": {"correct": 0.0, "format": 1.0}, "compared": False}),
        ]
    )
    actual = advantage(decoupled, batch_unit="tokens")(forest, {}, 0)
    expected = [2.365575, 0.365975, -1.365775, 0.0, -1.365775, 0.0, 0.633825, 0.633825]
    assert actual.tolist() == pytest.approx([s / 1.775816 for s in expected], abs=2e-6)


def test_of_one_reward_whoever_lacks_it_has_nothing(grow):
    rows = [*CARD, ("h", 1.0, 0.0), ("h", 0.0, 1.0), ("g", 1.0, None), ("h", 1.0, None)]
    actual = advantage(decoupled, weights={"format": 1.0})(grown(grow, rows), {}, 0)
    assert bool((actual[:6] != 0).all()) and actual[6:].tolist() == [0.0, 0.0]


def test_weights_are_not_rounded(grow):
    forest = grown(grow, CARD)
    tenth, one = (advantage(decoupled, weights={"correct": w}, eps=0.0)(forest, {}, 0) for w in (0.1, 1.0))
    assert torch.equal(tenth, 0.1 * one)
