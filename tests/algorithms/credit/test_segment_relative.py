"""Credit by segment: the published numbers, a loop, and what it is with one segment."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.rollouts.flow_session import TASKS, grown

from gxpo.algorithms.credit import GroupRelative, group_relative
from gxpo.algorithms.credit.piece_relative import segment_relative
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.registry import CREDITS
from gxpo.sampling.rollouts.denoise import Denoise, DenoiseTree

SegmentRelative = CREDITS["segment_relative"]


def column(*x):
    return torch.tensor(x, dtype=torch.float64)


def relative(outcome, group, **settings):
    """One entry a trajectory, all of one segment."""
    n = len(outcome)
    ids = torch.tensor(group)
    return segment_relative(column(*outcome), torch.arange(n), ids, torch.zeros_like(ids), **settings)


# ---------------------------------------------------------------- worked numbers
OUTCOME, GROUP = [1.0, 0.0, 1.0, 0.5, 0.5, 0.5], [0, 0, 0, 1, 1, 1]


def test_std_of_the_batch():
    # mean of group 0 is 2/3; numpy std of all six rewards sqrt(7/72 + ...) = .343592: (1/3) / (.343592 + 1e-4) = .96986
    actual = relative(OUTCOME, GROUP, scale="batch_std")
    mean = sum(OUTCOME) / 6
    std = math.sqrt(sum((x - mean) ** 2 for x in OUTCOME) / 6)
    assert actual.tolist() == pytest.approx([0.96986, -1.93972, 0.96986, 0, 0, 0], abs=2e-5)
    assert actual[0].item() == pytest.approx((1 / 3) / (std + 1e-4), abs=1e-12)


def test_std_of_the_group():
    # std of [1, 0, 1], ddof 0: .471405; (1/3) / .471505 = .706957
    actual = relative(OUTCOME, GROUP)
    assert actual.tolist() == pytest.approx([0.706957, -1.413914, 0.706957, 0, 0, 0], abs=1e-6)


def test_the_bound():
    # 30 equal outcomes and one other: (30/31) / (sqrt(30)/31 + 1e-4) = 5.474, held at 5
    actual = relative([1.0] + [0.0] * 30, [0] * 31)
    assert actual[0] == 5.0 and relative([1.0] + [0.0] * 30, [0] * 31, bound=9.0)[0].item() == pytest.approx(
        5.474, abs=1e-3
    )


# ---------------------------------------------------------------- a loop
def by_loop(forest, scale, ddof, eps, bound):
    """Dictionaries of (group, segment) -> outcomes, a trajectory once."""
    members, everywhere, rows = {}, {}, {}
    for r in range(forest.n_trajectories):
        for p in forest.path_of(r).tolist():
            t = int(forest.path_token[p])
            if bool(forest.trainable[t]) and int(forest.segment[t]) >= 0:
                rows.setdefault((r, int(forest.segment[t])), []).append(p)
    for r, k in rows:
        if bool(forest.compared[r]):
            members.setdefault((forest.group[r], k), []).append(float(forest.outcome[r]))
            everywhere.setdefault(k, []).append(float(forest.outcome[r]))
    out = [0.0] * forest.n_entries

    def std(x):
        mean = sum(x) / len(x)
        return math.sqrt(sum((y - mean) ** 2 for y in x) / (len(x) - ddof)) if len(x) > ddof else 0.0

    for (r, k), entries in rows.items():
        own_members = members.get((forest.group[r], k), [])
        spread = everywhere.get(k, []) if scale == "batch_std" else own_members
        is_alone = len(own_members) < (ddof + 1 if scale == "std" else 1)
        equal = bool(own_members) and max(own_members) - min(own_members) <= 1e-12
        if is_alone or (equal and (scale == "std" or bool(forest.compared[r]))):
            continue
        value = float(forest.outcome[r]) - sum(own_members) / len(own_members)
        if scale != "none":
            if std(spread) == 0:
                continue
            value /= std(spread) + eps
        for p in entries:
            out[p] = max(-bound, min(bound, value))
    return torch.tensor(out, dtype=torch.float64)


FORESTS = {"independent": grown(Denoise(3)), "tree": grown(DenoiseTree(2, 3)), "seeds": grown(DenoiseTree(2, 3, True))}


@given(
    st.sampled_from(sorted(FORESTS)),
    st.sampled_from(["std", "batch_std", "none"]),
    st.integers(0, 1),
    st.floats(0.5, 6),
    st.integers(0, 999),
)
def test_agrees_with_a_loop(kind, scale, ddof, bound, seed):
    forest = FORESTS[kind]
    random = torch.Generator().manual_seed(seed)
    n = forest.n_trajectories
    outcome = torch.randint(0, 3, (n,), generator=random).double()
    forest = forest.replace(outcome=outcome, compared=torch.rand(n, generator=random) < 0.8)
    actual = SegmentRelative(scale=scale, ddof=ddof, eps=1e-4, bound=bound)(forest, {}, 1)
    assert torch.allclose(actual, by_loop(forest, scale, ddof, 1e-4, bound), atol=1e-9)


# ---------------------------------------------------------------- properties
def test_independent_samples_have_one_advantage_a_step():
    forest = FORESTS["independent"]
    actual = SegmentRelative(bound=100.0, eps=1e-6, ddof=1)(forest, {}, 1)
    expected = GroupRelative()(forest, {}, 1) * forest.path_trainable
    assert torch.allclose(actual, expected, atol=1e-12) and bool(actual.any())


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8), st.floats(0.1, 5), st.floats(-2, 2))
def test_one_segment_is_group_relative_and_shifts_change_nothing(outcome, factor, shift):
    group = [0] * len(outcome)
    actual = relative(outcome, group, eps=0.0, bound=1e9)
    assert torch.allclose(actual, group_relative(column(*outcome), torch.tensor(group), ddof=0, eps=0.0))
    moved = relative([factor * x + shift for x in outcome], group, eps=0.0, bound=1e9)
    if float(actual.abs().max()) > 1e-3 and max(outcome) - min(outcome) > 1e-3:
        assert torch.allclose(moved, actual, atol=1e-6)


def test_a_unit_counts_once_whatever_its_length():
    # outcomes 1, 0; the first has three tokens in the segment: still the mean 1/2 and the std 1/2
    one = torch.zeros(4, dtype=torch.int64)
    actual = segment_relative(column(1, 1, 1, 0), torch.tensor([0, 0, 0, 1]), one, one, eps=0.0)
    assert actual.tolist() == [1, 1, 1, -1]


def test_steps_of_a_tree_are_compared_apart():
    forest = FORESTS["tree"]
    branched = torch.tensor([float(info["branched_at"]) for info in forest.info], dtype=torch.float64)
    equal_within_steps = forest.replace(outcome=branched)
    assert not bool(SegmentRelative()(equal_within_steps, {}, 1).any())
    assert bool(GroupRelative()(equal_within_steps, {}, 1).any())


def test_tokens_outside_segments_have_nothing():
    text = Forest.from_completions([[1]], [[[2], [3]]], [0.0, 1.0])
    assert not bool(SegmentRelative()(text, {}, 1).any())


def test_unscored_samples_are_in_no_comparison():
    import gxpo

    forest = grown(Denoise(3), TASKS[:1])
    outcome = column(1.0, 0.0, math.nan)
    actual = gxpo.method("flow_grpo").advantages(forest.replace(outcome=outcome))
    pair = gxpo.method("flow_grpo").advantages(forest.replace(outcome=outcome).select([0, 1]))
    assert torch.equal(actual[: len(pair)], pair) and not bool(actual[len(pair) :].any())


def test_settings_that_cannot_be():
    with pytest.raises(ConfigError, match=r"credit\.scale is 'global'"):
        SegmentRelative(scale="global")
    with pytest.raises(ConfigError, match=r"credit\.bound"):
        SegmentRelative(bound=0.0)


def test_a_trajectory_is_compared_in_each_of_its_segments_apart():
    # trained: the first in both segments, the second in segment 0, the third in segment 1
    # segment 0 has outcomes 1 0: +-.5; segment 1 has 1 .5: +-.25
    trained = [[True, True, True], [True, True, False], [False, False, True]]
    records = [
        {
            "schema": "gxpo.rollouts/1",
            "group": "g",
            "id": f"t{i}",
            "prompt": [1],
            "reward": r,
            "turns": [{"action": [3, 3, 3], "logprob": [-1.0] * 3, "segments": [0, 2], "trainable": t}],
        }
        for i, (r, t) in enumerate(zip((1.0, 0.0, 0.5), trained, strict=True))
    ]
    actual = SegmentRelative(scale="none")(Forest.from_records(records), {}, 1)
    assert actual.tolist() == pytest.approx([0.5, 0.5, 0.25, -0.5, -0.5, 0, 0, 0, -0.25])


def test_whoever_is_measured_against_equal_outcomes_has_nothing():
    rows, one = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    for scale in ("std", "batch_std"):
        actual = segment_relative(column(1, 1, 3), rows, one, one, scale=scale, where=rows < 2)
        assert actual.tolist() == [0, 0, 0]
