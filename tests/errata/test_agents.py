"""docs/errata/agents.md: credit of turns, segments and trees, as published and as released.

Each test restates a released formula in its own words; where gxpo has a part of it, against that part's number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from tests.algorithms.credit.compositions import anchor_state_credit, graph_distance_credit

from gxpo.algorithms.credit import CreditPart, group_relative
from gxpo.algorithms.credit.gae import gae
from gxpo.algorithms.credit.state_keys import cluster_leaders
from gxpo.algorithms.credit.state_relative import history_groups
from gxpo.forest.forest import Forest
from gxpo.parts.registry import CREDITS

HistoryGroups = CREDITS["history_groups"]
NodeValue = CREDITS["node_value"]

ONE = torch.zeros(3, dtype=torch.int64)


def episodes(rows: Sequence[tuple[str, Sequence[str], Sequence[float]]]) -> Forest:
    """(group, states, step rewards), the outcome their sum, one token an action."""
    return Forest.from_records(
        {
            "schema": "gxpo.rollouts/1",
            "group": group,
            "id": str(i),
            "prompt": [1],
            "turns": [
                {"observation": [2], "action": [3], "state": s, "reward": r} for s, r in zip(states, paid, strict=True)
            ],
            "reward": float(sum(paid)),
            "success": sum(paid) > 0,
        }
        for i, (group, states, paid) in enumerate(rows)
    )


def credit(part: CreditPart, rows: Sequence[tuple[str, Sequence[str], Sequence[float]]]) -> list[float]:
    return part(episodes(rows), {}, 0).tolist()


CARD = [("a", ("s0", "s1"), (0.0, 10.0)), ("a", ("s0", "s0", "s2"), (0.0, 0.0, 0.0))]


# ---------------------------------------------------------------- groups of states
def test_an_episode_baseline_over_steps() -> None:
    """GiGPO's eq. 3 is over trajectories: 10 and 0, mean 5. verl-agent's is over rows: 10 10 0 0 0, mean 4."""
    assert credit(anchor_state_credit(scale="none", step_weight=0.0), CARD) == pytest.approx([5, 5, -5, -5, -5])
    assert credit(anchor_state_credit(scale="none", step_weight=0.0, unit="step"), CARD) == pytest.approx(
        [6, 6, -4, -4, -4]
    )


def test_one_method_in_three_libraries() -> None:
    """The same two trajectories at each system's defaults (ROLL's with its mean_std)."""
    verl_agent = anchor_state_credit(scale="none", unit="step", single="raw")
    assert credit(verl_agent, CARD) == pytest.approx([12.333333, 6, -7.166667, -7.166667, -4], abs=1e-6)
    trinity = anchor_state_credit(scale="none", discount=1.0, single="raw")
    assert credit(trinity, CARD) == pytest.approx([11.666667, 5, -8.333333, -8.333333, -5], abs=1e-6)
    roll = credit(anchor_state_credit(unit="step"), CARD)
    assert roll == pytest.approx([2.250145, 1.095445, -1.307647, -1.307647, -0.730297], abs=2e-6)
    paper = credit(anchor_state_credit(), CARD)
    assert paper == pytest.approx([1.861807, 0.707107, -1.284457, -1.284457, -0.707107], abs=2e-6)


def test_one_state_of_two_tasks() -> None:
    """Trinity-RFT's buckets hold the whole batch: returns 1 and 0 of two tasks are set against each other."""
    rows = [("a", ("s",), (1.0,)), ("b", ("s",), (0.0,))]
    returns = [1.0, 0.0]
    pooled = [r - sum(returns) / 2 for r in returns]
    assert pooled == [0.5, -0.5]
    assert credit(anchor_state_credit(scale="none"), rows) == [0.0, 0.0]


def test_a_state_met_once_is_paid_its_return() -> None:
    """RAGEN's port takes the mean of a lone step to be 0: s1 is given 10 more, for being alone."""
    plain = credit(anchor_state_credit(scale="none"), CARD)
    raw = credit(anchor_state_credit(scale="none", single_state="raw"), CARD)
    assert [r - p for r, p in zip(raw, plain, strict=True)] == pytest.approx([0, 10, 0, 0, 0])


def test_padding_by_copies() -> None:
    """verl-agent fills the batch with copies of random rows, and takes means after: 9.5 0 0, or 9.5 9.5 0 0."""
    outcome, group, owner = torch.tensor([10.0, 0.0]), torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1, 1])
    returns, state = torch.tensor([9.5, 0.0, 0.0]), torch.zeros(3, dtype=torch.int64)
    over = group_relative(outcome, group, scale="none")[owner]
    turns_and_steps = over + group_relative(returns, state, scale="none")
    copied = torch.tensor([0, 1, 2, 0])
    filled = over[copied] + group_relative(returns[copied], state[copied], scale="none")
    assert turns_and_steps.tolist() == pytest.approx([5 + 6.333333, -5 - 3.166667, -5 - 3.166667], abs=1e-6)
    assert filled[:3].tolist() == pytest.approx([5 + 4.75, -5 - 4.75, -5 - 4.75])


def test_a_penalty_that_splits_a_trajectory() -> None:
    """A malformed action costs .1 in its own row's score: one trajectory then has two outcomes, and the turns before
    it, whose returns are discounted already, know nothing of it."""
    score = [1.0, 1.0 - 0.1]
    returns = [0.95 * 1.0, 1.0 - 0.1]
    assert score[0] != score[1]
    assert returns[0] == 0.95 and 0.95 * returns[1] == pytest.approx(0.855)


def test_likeness_by_the_order_of_rows() -> None:
    """Each state joins the first that it is like, in the order of the batch. Likeness .75 between neighbours."""
    assert cluster_leaders(["abcd", "abce", "abfe"], 0.75) == [0, 0, 2]
    assert cluster_leaders(["abce", "abcd", "abfe"], 0.75) == [0, 0, 0]


def test_likeness_of_long_texts() -> None:
    """difflib disregards letters that are more than a hundredth of 200 or more: two texts of 240 letters that differ by
    the first are not alike at all."""
    from difflib import SequenceMatcher

    one = "north south " * 20
    assert SequenceMatcher(None, one, "m" + one[1:]).ratio() == 0.0
    assert cluster_leaders([one, "m" + one[1:]], 0.95) == [0, 0]


HISTORY = [
    ("a", ("s0", "s1", "s2"), (0.0, 0.0, 1.0)),
    ("a", ("s0", "s1", "s2"), (0.0, 0.0, 0.0)),
    ("a", ("s0", "s3", "s2"), (0.0, 0.0, 1.0)),
]


def test_weights_from_one_or_from_two() -> None:
    """HGPO's levels weigh 1, 2, 3 in the paper and 2, 3, 4 in the recipe: (1/3 + 2/2) / 3, or (2/3 + 3/2) / 5."""
    settings = {"history": 1, "discount": 0.9, "scale": "none"}
    assert credit(HistoryGroups(**settings), HISTORY)[2] == pytest.approx(0.444444, abs=1e-6)
    assert credit(HistoryGroups(offset=2, **settings), HISTORY)[2] == pytest.approx(0.433333, abs=1e-6)


def test_a_zero_that_is_left_out() -> None:
    """HGPO's recipe ignores levels whose advantage == 0. An average step is then judged by the others alone, and
    whether it is average is decided by rounding: of 0, .5, 1 it is, of .1, .2, .3 it isn't."""
    keys = [torch.tensor([0, 0, 0, -1]), torch.tensor([-1, 0, -1, 0])]
    for returns, dropped in (([0.0, 0.5, 1.0, 0.0], 0.25), ([0.1, 0.2, 0.3, -0.3], 1 / 6)):
        x = torch.tensor(returns, dtype=torch.float64)
        recipe = float(history_groups(x, keys, ignore="zero", scale="none")[1])
        kept_value = float(history_groups(x, keys, scale="none")[1])
        assert recipe == pytest.approx(dropped) and kept_value == pytest.approx(1 / 6)


def test_two_deviations_of_one_lineage() -> None:
    """GiGPO divides by the sample's deviation, HGPO by the population's: of 1 and 0, .7071 and .5."""
    rows = [("a", ("s",), (1.0,)), ("a", ("s",), (0.0,))]
    step = anchor_state_credit()(episodes(rows), {}, 0) - anchor_state_credit(step_weight=0.0)(episodes(rows), {}, 0)
    assert step.tolist() == pytest.approx([0.707106, -0.707106], abs=1e-6)
    assert credit(HistoryGroups(history=0), rows) == pytest.approx([0.999998, -0.999998], abs=1e-6)


def test_a_distance_that_counts_the_step_itself() -> None:
    """GraphGPO's paper has .1^(d + 1), its recipe .1^d: a tenth, which only scaling takes out."""
    rows = [("a", ("s", "t"), (0.0, 1.0)), ("a", ("s", "u"), (0.0, 0.0))]
    recipe = graph_distance_credit(scale="none")(episodes(rows), {}, 0)
    paper = graph_distance_credit(scale="none", worth=1.0)(episodes(rows), {}, 0)
    base = anchor_state_credit(scale="none", step_weight=0.0)(episodes(rows), {}, 0)
    assert (recipe - base).tolist() == pytest.approx([0.495, 0, -0.495, 0])
    assert (paper - base).tolist() == pytest.approx([0.0495, 0, -0.0495, 0])
    scaled = graph_distance_credit(worth=1.0)(episodes(rows), {}, 0)
    assert scaled.tolist() == pytest.approx(graph_distance_credit()(episodes(rows), {}, 0).tolist(), abs=2e-5)


# ---------------------------------------------------------------- turns
def test_a_hungarian_assignment_that_is_greedy() -> None:
    """MatchTIR's function takes pairs by score while both are free: .9, then 0; the best assignment has .8 and .8."""
    score = [[0.9, 0.8], [0.8, 0.0]]
    free_rows, free_columns, greedy = {0, 1}, {0, 1}, 0.0
    for value, i, j in sorted(((score[i][j], i, j) for i in range(2) for j in range(2)), reverse=True):
        if i in free_rows and j in free_columns:
            greedy += value
            free_rows.remove(i)
            free_columns.remove(j)
    best = max(sum(score[i][j] for i, j in enumerate(p)) for p in itertools.permutations(range(2)))
    assert greedy == pytest.approx(0.9) and best == pytest.approx(1.6)


def test_a_turn_that_one_alone_reached() -> None:
    """MatchTIR: the third turn of the only rollout that has one keeps its return, (.707106 + 1) / 2 in place of half of
    .707106; the longest rollout is paid for its length."""
    trajectory = float(group_relative(torch.tensor([2.5, 0.5]), torch.zeros(2, dtype=torch.int64))[0])
    turn = float(group_relative(torch.tensor([1.0]), torch.zeros(1, dtype=torch.int64), singleton="raw")[0])
    assert (trajectory + turn) / 2 == pytest.approx(0.853553, abs=1e-6)
    zero = float(group_relative(torch.tensor([1.0]), torch.zeros(1, dtype=torch.int64))[0])
    assert (trajectory + zero) / 2 == pytest.approx(0.353553, abs=1e-6)


def test_the_other_term_is_weighted() -> None:
    """MT-GRPO: A_T + w A_O in the paper, A_O + w A_T in the code; equal for w = 1, the default, alone."""
    outcome, turn = 0.865875, -0.865725
    for weight, same in ((1.0, True), (0.5, False)):
        assert (turn + weight * outcome == outcome + weight * turn) == same
    assert turn + 0.5 * outcome == pytest.approx(-0.432788, abs=1e-6)
    assert outcome + 0.5 * turn == pytest.approx(0.433013, abs=1e-6)


def test_an_entropy_of_another_prompt() -> None:
    """ARPO keeps each row's first entropy and never forgets it: from the second batch on a rollout is measured against
    what another prompt had there. P = .5 + .5 (H - H_first)."""
    first: dict[int, float] = {}

    def released(row: int, entropy: float) -> float:
        if row not in first:
            first[row] = entropy
        return 0.5 + 0.5 * (entropy - first[row])

    assert [released(0, h) for h in (0.2, 0.3)] == pytest.approx([0.5, 0.55])  # first batch
    assert [released(0, h) for h in (0.6, 0.7)] == pytest.approx(
        [0.7, 0.75]
    )  # second batch: .5, .55 if it were its own


def test_turns_that_end_where_a_reward_is_not_zero() -> None:
    """RAGEN's port of bi-level GAE finds ends of turns by reward != 0: a turn that earned 0 is part of the next."""
    values, reward = [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 1.0]

    def bi_level(ends: Sequence[int], high: float = 0.9, low: float = 1.0, lam: float = 0.95) -> list[float]:
        paid, out, after, beyond = list(reward), [0.0] * 4, 0.0, 0.0
        for e in reversed(ends):
            after = reward[e] + high * beyond - values[e] + high * lam * after
            beyond, paid[e] = values[e], after + values[e]
        running = 0.0
        for t in reversed(range(4)):
            nothing = t in ends
            then = 0.0 if nothing else values[t + 1]
            running = paid[t] + low * then - values[t] + low * lam * (0.0 if nothing else running)
            out[t] = running
        return out

    assert bi_level([1, 3]) == pytest.approx([0.73935, 0.673, 0.67, 0.6])  # .9 * .4 - .2 + .9 * .95 * .6 = .673
    found_by_reward = [t for t, r in enumerate(reward) if r != 0]
    assert bi_level(found_by_reward) == pytest.approx([0.799675, 0.7365, 0.67, 0.6])


def test_two_levels_that_are_one() -> None:
    """Bi-level GAE with gamma_high = gamma and lambda = 1 is GAE over tokens: such a run is the baseline."""
    counted = torch.tensor([1, 1, 1, 0, 1, 1, 0, 1], dtype=torch.bool)
    reward = torch.tensor([0, 0, 0.3, 0, 0, -0.2, 0, 1])
    value = torch.tensor([0.10, 0.25, 0.40, 9.9, 0.55, 0.70, 9.9, 0.15 + 0.70])
    token = gae(reward, value, torch.zeros(8, dtype=torch.int64), counted)
    # over turns r + V(next end) - V(end): .3 + .7 - .4 = .6, -.2 + .85 - .7 = -.05, .15; lambda 1 sums from behind
    turns, inside = [0.7, 0.1, 0.15], [[0, 1, 2], [4, 5], [7]]
    expected = {t: turns[k] + float(value[rows[-1]] - value[t]) for k, rows in enumerate(inside) for t in rows}
    assert [float(token[t]) for t in expected] == pytest.approx(list(expected.values()), abs=1e-6)
    assert list(expected.values()) == pytest.approx([1.0, 0.85, 0.70, 0.25, 0.10, 0.15], abs=1e-6)


def test_returns_that_end_at_masked_tokens() -> None:
    """IGPO's return at a token is multiplied by its mask before it goes on: tool tokens have mask 0, so the first turn,
    paid .2, never hears of the 1 that the second earned."""
    reward, mask = [0.0, 0.2, 0.0, 0.0, 1.0], [1, 1, 0, 1, 1]

    def returns(reset: bool) -> list[float]:
        out, onward = [0.0] * 5, 0.0
        for t in reversed(range(5)):
            out[t] = reward[t] + onward
            onward = out[t] * (mask[t] if reset else 1)
        return out

    assert [returns(True)[t] for t in (0, 1, 3, 4)] == pytest.approx([0.2, 0.2, 1.0, 1.0])
    assert [returns(False)[t] for t in (0, 1, 3, 4)] == pytest.approx([1.2, 1.2, 1.0, 1.0])


def test_progress_that_is_the_outcome() -> None:
    """SPA-RL's data script overwrites each turn's progress with R - mean of the others: three turns of a success among
    three attempts are paid 3, not 1."""
    progress, others = [0.2, 0.3, 0.5], [0.0, 0.0]
    released = [1.0 - sum(others) / 2] * 3
    assert sum(progress) == pytest.approx(1.0) and sum(released) == pytest.approx(3.0)


# ---------------------------------------------------------------- probes and planning tokens
def test_three_probabilities_of_an_answer() -> None:
    """SPAE's acc of gold tokens .9 .8 .95: their mean, exp of the mean log, and the released exp(sum log) / L, which
    can't exceed 1 / L and so never reaches the threshold of .9."""
    p = [0.9, 0.8, 0.95]
    log = [math.log(x) for x in p]
    assert sum(p) / 3 == pytest.approx(0.883333, abs=1e-6)
    assert math.exp(sum(log) / 3) == pytest.approx(0.881087, abs=1e-6)
    assert math.exp(sum(log)) / 3 == pytest.approx(0.228, abs=1e-6)
    assert max(math.exp(0.0) / n for n in (2, 3, 4)) == 0.5


def test_a_bonus_on_the_last_token() -> None:
    """VERL's bonus stands at the final token, where the reward is: of a response of four tokens one is shaped."""
    advantage, bonus, kappa = 1.0, 0.3, 2.0
    placed = torch.tensor([0.0, 0.0, 0.0, bonus]).clamp(0, abs(advantage) / kappa)
    assert (advantage + placed).tolist() == pytest.approx([1.0, 1.0, 1.0, 1.3])
    full_advantage = advantage + min(max(bonus, 0.0), abs(advantage) / kappa)
    assert full_advantage == pytest.approx(1.3)


def test_an_index_of_an_index() -> None:
    """HICRA's branch without planning tokens multiplies a copy: nothing changes."""
    advantage, row, high = torch.ones(2, 3), torch.tensor([True, False]), torch.tensor([[True, False, True]])
    advantage[row][high] *= 1.2
    assert torch.equal(advantage, torch.ones(2, 3))
    advantage[row.nonzero()[:, :1], high.nonzero()[:, 1]] *= 1.2
    assert advantage[0].tolist() == pytest.approx([1.2, 1.0, 1.2])


# ---------------------------------------------------------------- trees
def test_a_tree_of_one_leaf() -> None:
    """Tree-GRPO's code keeps the raw outcome of a tree of one: outcomes 1 0 1 as three trees, and only the rewarded are
    moved, all upwards. gxpo adds 0."""
    outcome = torch.tensor([1.0, 0.0, 1.0])
    over = group_relative(outcome, ONE)
    assert group_relative(outcome, torch.arange(3)).tolist() == [0.0, 0.0, 0.0]
    released = over + outcome
    assert released.tolist() == pytest.approx([1.577349, -1.154699, 1.577349], abs=1e-6)


def test_leave_one_out_with_oneself() -> None:
    """SPO's "rloo" is a child's value less its parent's, the mean of all children: half of leave-one-out for two."""
    value = [1.0, 0.0]
    released = [v - sum(value) / 2 for v in value]
    true = group_relative(torch.tensor(value), torch.zeros(2, dtype=torch.int64), "leave_one_out", "none").tolist()
    assert released == [0.5, -0.5] and true == [1.0, -1.0]


def planted() -> Forest:
    """Two leaves of 1 below token 2, one of 0 beside it: 2 3 | 2 4 | 5."""
    base = {"schema": "gxpo.rollouts/1", "group": "g"}
    return Forest.from_records(
        [
            {**base, "id": "a", "prompt": [1], "reward": 1.0, "turns": [{"action": [2, 3]}]},
            {**base, "id": "b", "fork": {"of": "a", "turn": 0, "token": 1}, "reward": 1.0, "turns": [{"action": [4]}]},
            {**base, "id": "c", "prompt": [1], "reward": 0.0, "turns": [{"action": [5]}]},
        ]
    )


def test_a_root_before_the_difference() -> None:
    """TreeRL: (GA + LA) / sqrt(leaves) in the paper; the script divides values. Leaves 1 1 0 are scored leave-one-out,
    .5 .5 -1: W of the node is .5 / sqrt 2, of a leaf in it .5."""
    paper, released = (NodeValue(form=form)(planted(), {}, 0) for form in ("paper", "released"))
    assert [float(paper[p]) for p in (0, 1)] == pytest.approx([0.471405, 0.333333], abs=1e-6)
    node, leaf = 0.5 / math.sqrt(2), 0.5
    assert [float(released[p]) for p in (0, 1)] == pytest.approx([2 * node, leaf + leaf - node], abs=1e-9)
    assert 1.5 * float(paper[1]) == pytest.approx(0.5)  # leave-one-out values are 3 / 2 of plain ones


def test_a_flat_node_that_inherits() -> None:
    """TreeRL's code gives a node whose weighted value did not change the change of the node before it, once more."""
    change, released = [0.25, 0.0, 0.25], []
    for c in change:
        released.append(released[-1] if abs(c) < 1e-8 and released else c)
    assert released == [0.25, 0.25, 0.25] and sum(released) == 0.75 != sum(change)


def test_positions_that_are_pooled() -> None:
    """ROSE keys values by the index at which a rollout branched: two branch points of different chains, both at token
    4, are one. Chain of 1 branched to 0, chain of 1 branched to 1."""
    rollouts = [("first", 1.0), ("first", 0.0), ("second", 1.0), ("second", 1.0)]
    by_node = {c: sum(r for d, r in rollouts if d == c) / 2 for c in ("first", "second")}
    pooled = sum(r for _, r in rollouts) / 4
    assert by_node == {"first": 0.5, "second": 1.0} and pooled == 0.75
    # and "right" is a reward other than 0: one of -1 counts
    assert [abs(r) > 1e-6 for r in (1.0, 0.0, -1.0)] == [True, False, True]
