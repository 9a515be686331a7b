"""Advantages of pieces of a rollout: items of a list, denoising steps, steps of agents that act simultaneously."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.rollouts.flow_session import TASKS, grown

import gxpo
from gxpo.algorithms.credit import GroupRelative, group_relative
from gxpo.algorithms.credit.piece_relative import rank_relative, rank_returns, segment_relative, turn_relative
from gxpo.algorithms.objectives.surrogate import segment
from gxpo.algorithms.signals.texts import item_hits
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.registry import CREDITS
from gxpo.sampling.rollouts.denoise import Denoise, DenoiseTree

HITS = torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 0]], dtype=torch.float64)


def lists(segments, group="g"):
    """One answer for each row of `segments`, the item of each of its tokens."""
    return Forest.from_records(
        {
            "schema": "gxpo.rollouts/1", "group": group, "id": str(i), "prompt": [1], "reward": 0.0,
            "turns": [{"action": list(range(2, 2 + len(row))), "segments": [row.index(k) for k in sorted({*row})],
                       "logprob": [-1.0] * len(row)}],
        }
        for i, row in enumerate(segments)
    )  # fmt: skip


def test_returns_with_the_logarithmic_decay() -> None:
    # discounts 1, 1 / log2 3 = .63093, 1 / log2 4 = .5, .430677
    rows = rank_returns(HITS, "log").tolist()
    assert rows[0] == pytest.approx([1.5, 0.5, 0.5, 0.0])
    assert rows[1] == pytest.approx([0.63093, 0.63093, 0.0, 0.0], abs=1e-5)


def test_ranks_are_compared_with_the_same_rank() -> None:
    forest = lists([[0, 0, 1, 2, 3], [0, 1, 2, 3]])
    hit = torch.tensor([1.0, 1, 0, 1, 0, 0, 1, 0, 0])
    # ranks of two values 1 and 0: +-.5 / (.707107 + 1e-4) = +-.707007
    assert rank_relative(hit, forest, items=4).tolist() == pytest.approx(
        [0.707007, 0.707007, -0.707007, 0.707007, 0.0, -0.707007, 0.707007, -0.707007, 0.0], abs=1e-6
    )


def test_a_missing_rank_counts_as_a_miss() -> None:
    forest = lists([[0, 1], [0]])
    assert rank_relative(torch.tensor([1.0, 1.0, 1.0]), forest, items=2).tolist() == pytest.approx([0, 0.707007, 0],
                                                                                                  abs=1e-6)  # fmt: skip


def test_items_beyond_the_last_rank_have_no_advantage() -> None:
    assert rank_relative(torch.tensor([1.0, 1.0, 0.0]), lists([[0, 1], [0]]), items=1).tolist()[1] == 0.0


def test_the_ratio_of_an_item_is_its_geometric_mean() -> None:
    log_ratio = torch.tensor([0.1, -0.1, 0.3, 0.0], dtype=torch.float64, requires_grad=True)
    ratio = segment(log_ratio, torch.tensor([0, 0, 0, 1])).exp()
    assert ratio.tolist() == pytest.approx([1.105171] * 3 + [1.0], abs=1e-6)
    ratio.sum().backward()
    assert log_ratio.grad.tolist() == pytest.approx([1.105171] * 3 + [1.0], abs=1e-6)
    chunk = segment(torch.tensor([0.1, -0.2, 0.3]), torch.zeros(3).long()).exp()  # Chunk-GRPO: exp(.066667)
    assert chunk.tolist() == pytest.approx([1.068939] * 3, abs=1e-6)


def test_the_loss_reads_the_segments_of_the_rollouts() -> None:
    forest = lists([[0, 0, 1], [0, 1, 1]])
    logprob = torch.tensor([-0.9, -1.1, -1.0, -1.0, -0.8, -1.0], dtype=torch.float64)
    policy = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob)
    keys = {"objective.ratio": "segment", "objective.surrogate": "unclipped", "objective.aggregate": "token_mean"}
    loss = gxpo.method("grpo", keys).loss(forest, policy, advantages=torch.tensor([0.0, 0, 0, 0, 1, 1])).value
    # the item of the second answer: e^((.2 + 0) / 2) = 1.105171 on each of two tokens of six
    assert float(loss) == pytest.approx(-2 * 1.105171 / 6, abs=1e-6)


def test_hits_are_lines_of_the_reference_once() -> None:
    forest, texts = lists([[0, 1, 2, 3]]), {2: "Alien\n", 3: " blade  RUNNER\n", 4: "alien\n", 5: "Dune"}
    hits = item_hits(forest, lambda ids: "".join(texts[i] for i in ids), lambda forest: ["Alien\nBlade Runner\n\n"])
    assert hits.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert item_hits(forest, lambda ids: "x", lambda forest: [None]).tolist() == [0.0] * 4


TurnRelative = CREDITS["turn_relative"]


def test_a_fleet_of_three_at_two_times(grow):
    # t0: rewards 1 2 3: mean 2, population std .816497 -> -1.224745 0 1.224745; earnings' std rises by .816497
    # t1: rewards 3 2 (the third is idle): mean 2.5, std .5 -> 1 -1; earnings 1 2 -> 4 4: std falls from .5 to 0
    rows = [([1.0, 3.0], 2), ([2.0, 2.0], 2), ([3.0], 1)]
    forest = grow([("world", 0.0, [1] * n, {"step_rewards": r}) for r, n in rows])
    d = 0.816497
    expected = [-1.224745 - d, 1.0 + 0.5, 0.0 - d, -1.0 + 0.5, 1.224745 - d]
    assert TurnRelative()(forest, {}, 0).tolist() == pytest.approx(expected, abs=1e-6)
    plain = TurnRelative(fairness=0.0)(forest, {}, 0).tolist()
    assert plain == pytest.approx([-1.224745, 1.0, 0.0, -1.0, 1.224745], abs=1e-6)


agent = st.tuples(
    st.sampled_from("ab"), st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=1, max_size=3), st.booleans()
)


@settings(max_examples=60, deadline=None)
@given(st.lists(agent, min_size=1, max_size=7), st.sampled_from([0.0, 1.0, 0.3]), st.sampled_from([0.0, 0.9]))
def test_it_equals_a_loop(grow, rows, fairness, discount):
    forest = grow([(g, 0.0, [1] * len(r), {"step_rewards": r, "compared": c}) for g, r, c in rows])
    actual = TurnRelative(fairness=fairness, discount=discount)(forest, {}, 0)
    expected = []
    for g, rewards, compared in rows:
        for t in range(len(rewards)):
            local_rows = [r for h, r, c in rows if h == g and c and len(r) > t]
            ahead = lambda r, t=t: sum(x * discount**k for k, x in enumerate(r[t:]))  # noqa: E731
            values = [ahead(r) for r in local_rows]
            if not values or max(values) - min(values) <= 1e-12 * max(values) or (compared and len(values) == 1):
                expected.append(0.0)
                continue
            a = (ahead(rewards) - statistics.fmean(values)) / (statistics.pstdev(values) + 1e-8)
            before = statistics.pstdev(sum(r[:t]) for r in local_rows)
            after = statistics.pstdev(sum(r[:t]) + ahead(r) for r in local_rows)
            expected.append(a - fairness * (after - before))
    assert actual.tolist() == pytest.approx(expected, abs=1e-7)


def test_attempts_of_one_turn_are_grpo(grow):
    forest = grow([(g, r, [2]) for g, r in zip("aaabb", (1.0, 0.0, 0.5, 1.0, 1.0), strict=True)])
    actual = TurnRelative(fairness=0.0)(forest, {}, 0)
    assert torch.allclose(actual, GroupRelative(ddof=0, eps=1e-8)(forest, {}, 0), atol=1e-12)
    # earnings of nobody before: what they spread is the std of the group
    spread = statistics.pstdev([1.0, 0.0, 0.5])
    cost = [spread] * 6 + [0.0] * 4
    assert (actual - TurnRelative()(forest, {}, 0)).tolist() == pytest.approx(cost)


def test_equal_rewards_at_a_time_and_whoever_is_alone_have_none(grow):
    rewards = [[0.1, 0.7], [0.3, 0.7], [0.3, 0.7, 9.0]]
    forest = grow([("a", 0.0, [1] * len(r), {"step_rewards": r}) for r in rewards])
    actual = TurnRelative()(forest, {}, 0)
    turn = forest.step_turn[forest.path_step]
    assert bool((actual[turn > 0] == 0).all()) and bool((actual[turn == 0] != 0).all())


def test_only_the_steps_of_one_time_matter():
    reward = torch.tensor([1.0, 2.0, 5.0, 9.0], dtype=torch.float64)
    time, before = torch.tensor([0, 0, 1, 1]), torch.zeros(4, dtype=torch.float64)
    actual = turn_relative(reward, before, time)
    other = turn_relative(torch.cat([reward[:2], reward[2:] * 7]), before, time)
    assert torch.equal(actual[:2], other[:2])
    assert turn_relative(reward, before, torch.tensor([0, 0, -1, -1]))[2:].tolist() == [0.0, 0.0]


def test_time_may_be_noted_by_the_steps(grow):
    records = grow([("a", 0.0, [1, 1], {"step_rewards": r}) for r in ([1.0, 5.0], [2.0, 1.0])]).to_records()
    for record, times in zip(records, ((0, 7), (7, 8)), strict=True):
        for turn, time in zip(record["turns"], times, strict=True):
            turn["info"] = {"time": time}
    actual = TurnRelative(time="step_info.time", fairness=0.0)(gxpo.Forest.from_records(records), {}, 0)
    assert actual.tolist() == pytest.approx([0.0, 1.0, -1.0, 0.0])  # 5 and 2 at time 7


def test_the_method_and_the_options(grow):
    forest = grow([("a", r, [1]) for r in (1.0, 0.0, None)])
    assert gxpo.method("ospo").advantages(forest).tolist() == pytest.approx([1 - 0.5, -1 - 0.5, 0.0])
    for bad, key in (({"time": "agent"}, "time"), ({"discount": 1.5}, "discount")):
        with pytest.raises(ConfigError, match=rf"credit\.{key}"):
            TurnRelative(**bad)


def test_returns_are_compared_and_earnings_are_what_was_paid(grow):
    # discount .5. Turn 0: returns 1 + .5 * 2 = 2 and 1.5, sample std .353553; earnings 0 0 -> 2 1.5: std 0 -> .25
    # turn 1: returns 2 and 3, std .707107; earnings 1 0 -> 3 3: population std .5 -> 0
    forest = grow([("world", 0.0, [1, 1], {"step_rewards": r}) for r in ([1.0, 2.0], [0.0, 3.0])])
    actual = TurnRelative(discount=0.5, ddof=1, eps=0.5)(forest, {}, 0)
    first, second = 0.25 / 0.853553, 0.5 / 1.207107
    assert actual.tolist() == pytest.approx([first - 0.25, -second + 0.5, -first - 0.25, second + 0.5], abs=1e-6)
    full_value = TurnRelative(discount=1.0, ddof=1, eps=0.5)(forest, {}, 0)  # returns 3 and 3, then as above
    assert full_value.tolist() == pytest.approx([0.0, -second + 0.5, 0.0, second + 0.5], abs=1e-6)


def test_of_too_few_that_are_compared_there_is_nothing_to_say():
    reward, one = torch.tensor([1.0, 3.0, 9.0]), torch.zeros(3, dtype=torch.int64)
    actual = turn_relative(reward, torch.zeros(3), one, ddof=2, where=torch.tensor([True, True, False]))
    assert actual.tolist() == [0.0, 0.0, 0.0]


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
