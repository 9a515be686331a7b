"""docs/errata/groups.md: who is compared with whom, and what one who is alone is given.

Each test restates a system's documented formula in its own words and holds it against gxpo's number.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import pytest
import torch

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.conformance.builtin import advantages as ours
from gxpo.forest.forest import Forest


def by_group(rewards: list[float], groups: list[int]) -> dict[int, list[float]]:
    actual: dict[int, list[float]] = defaultdict(list)
    for r, g in zip(rewards, groups, strict=True):
        actual[g].append(r)
    return actual


def mean_zero_if_alone(rewards: list[float], groups: list[int], eps: float | None) -> list[float]:
    """A group of one has mean 0 and std 1; eps None: no std."""
    own_by_group = by_group(rewards, groups)
    out = []
    for r, g in zip(rewards, groups, strict=True):
        is_alone = len(own_by_group[g]) == 1
        mean = 0.0 if is_alone else statistics.fmean(own_by_group[g])
        std = 1.0 if is_alone else statistics.stdev(own_by_group[g])
        out.append(r - mean if eps is None else (r - mean) / (std + eps))
    return out


REWARDS, GROUPS = [5.0, 1.0, 0.0], [0, 1, 1]


@pytest.mark.parametrize(("method", "eps"), [("grpo", 1e-6), ("dr_grpo", None)])
def test_a_group_of_one_keeps_its_reward(method: str, eps: float | None) -> None:
    theirs = mean_zero_if_alone(REWARDS, GROUPS, eps)
    assert theirs[0] == pytest.approx(5.0, abs=1e-5)
    actual = ours(method, REWARDS, GROUPS)
    assert actual[0] == 0.0 and actual[1:] == pytest.approx(theirs[1:], abs=1e-12)


def test_a_group_of_one_in_two_functions_of_one_file() -> None:
    """verl: rloo leaves the reward as it is, rloo_vectorized multiplies by (count > 1)."""
    own_by_group = by_group(REWARDS, GROUPS)
    rloo, vectorized = [], []
    for r, g in zip(REWARDS, GROUPS, strict=True):
        n, total = len(own_by_group[g]), sum(own_by_group[g])
        rloo.append(r if n == 1 else (r - total / n) * n / (n - 1))
        vectorized.append((n * r - total) / max(n - 1, 1) * (n > 1))
    assert rloo == [5.0, 1.0, -1.0] and vectorized == [0.0, 1.0, -1.0]
    assert ours("rloo", REWARDS, GROUPS) == vectorized


def test_a_group_of_one_under_a_length_weighted_baseline() -> None:
    """verl's OPO takes the baseline of a group of one for 0; by the formula it is the reward itself."""
    lengths = [4, 1, 3]
    theirs = [5.0 - 0.0, 1.0 - 1 / 4, 0.0 - 1 / 4]
    actual = ours("opo", REWARDS, GROUPS, lengths=lengths)
    assert actual == [0.0, *theirs[1:]]


def test_a_group_of_one_in_a_batch_that_is_whitened() -> None:
    """verl's REINFORCE++-baseline: the raw reward of 5 is what the batch is then whitened by."""
    centred = torch.tensor(mean_zero_if_alone(REWARDS, GROUPS, None), dtype=torch.float64)
    theirs = ((centred - centred.mean()) / (centred.var() + 1e-8).sqrt()).tolist()
    actual = ours("reinforce_pp_baseline", REWARDS, GROUPS, lengths=[1, 1, 1])
    assert theirs == pytest.approx([1.137760, -0.398216, -0.739544], abs=1e-6)
    assert actual == pytest.approx([0.0, 1.0, -1.0], abs=1e-6)


def test_a_std_of_one_value() -> None:
    """slime with one sample for each prompt divides 0 by torch's std of one value."""
    with pytest.warns(UserWarning):
        std = torch.tensor([[0.3], [0.9]]).std(dim=-1, keepdim=True)
    assert bool(std.isnan().all())
    assert math.isnan(float((torch.zeros(2, 1) / (std + 1e-6))[0]))
    assert ours("grpo", [0.3, 0.9], [0, 1]) == [0.0, 0.0]


def test_a_missing_id_makes_every_rollout_a_group() -> None:
    """Each row under an id of its own, with the rule above: no baseline at all, and nothing says so."""
    rewards = [1.0, 0.0, 0.0, 1.0]
    theirs = mean_zero_if_alone(rewards, [0, 1, 2, 3], 1e-6)
    assert theirs == pytest.approx(rewards, abs=1e-5)
    assert ours("grpo", rewards, [0, 1, 2, 3]) == [0.0] * 4
    assert ours("grpo", rewards, [0, 0, 0, 0])[0] == pytest.approx(0.866024, abs=1e-5)


def test_unequal_groups_by_reshaping() -> None:
    """slime: where the batch is not prompts x samples it becomes one row, so one group."""
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    row = rewards.view(-1, rewards.shape[-1])
    theirs = (row - row.mean(-1, keepdim=True)).flatten().tolist()
    assert theirs == pytest.approx([0.6, -0.4, 0.6, -0.4, -0.4])
    actual = ours("dr_grpo", rewards.tolist(), [0, 0, 1, 1, 1])
    assert actual == pytest.approx([0.5, -0.5, 2 / 3, -1 / 3, -1 / 3])


def test_a_remainder_is_divided_by_eps() -> None:
    """AReaL without group sizes: slices of two out of five rows; the fifth has mean 0 and std 0."""
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0]
    mean, std = [0.0] * 5, [0.0] * 5
    for i in range(5 // 2):
        rows = slice(2 * i, 2 * i + 2)
        mean[rows], std[rows] = [statistics.fmean(rewards[rows])] * 2, [statistics.stdev(rewards[rows])] * 2
    theirs = [(r - m) / (s + 1e-5) for r, m, s in zip(rewards, mean, std, strict=True)]
    assert theirs[-1] == pytest.approx(1e5)
    assert ours("grpo", rewards, [0, 0, 1, 1, 2])[-1] == 0.0


def test_equal_prompts_of_two_tasks_are_one_group() -> None:
    """NeMo-RL finds groups by comparing prompts; two rows of a data set may ask the same with other answers."""
    rewards, tasks = [1.0, 0.0, 1.0, 1.0], ["row 3", "row 3", "row 9", "row 9"]
    prompts = torch.tensor([[7, 8], [7, 8], [7, 8], [7, 8]])
    merged = [int((prompts[i] == prompts).all(1).nonzero()[0]) for i in range(4)]
    assert merged == [0, 0, 0, 0]
    theirs = ours("rloo", rewards, merged)
    assert theirs == pytest.approx([1 / 3, -1.0, 1 / 3, 1 / 3])
    forest = Forest.from_completions([[7, 8]] * 4, [[[1]], [[2]], [[3]], [[4]]], rewards, groups=tasks)
    assert gxpo.method("rloo").advantages(forest).tolist() == [1.0, -1.0, 0.0, 0.0]


def test_turns_as_rows_count_a_trajectory_as_often_as_it_has_turns() -> None:
    """verl-agent's default: a winner of 2 steps among seven losers of 10; every step is a row of the statistics."""
    rows = [1.0] * 2 + [0.0] * 70
    mean, std = statistics.fmean(rows), statistics.stdev(rows)
    assert ((1 - mean) / (std + 1e-6), -mean / (std + 1e-6)) == pytest.approx((5.874817, -0.167852), abs=1e-6)
    records = [
        {
            "schema": "gxpo.rollouts/1",
            "group": "g",
            "id": f"t{i}",
            "prompt": [1],
            "turns": [{"observation": [2], "action": [3], "logprob": [-1.0]}] * (10 if i else 2),
            "reward": 0.0 if i else 1.0,
        }
        for i in range(8)
    ]
    actual = gxpo.method("grpo").advantages(Forest.from_records(records))
    assert actual[0].item() == pytest.approx(2.474867, abs=1e-6)
    assert actual[-1].item() == pytest.approx(-0.353552, abs=1e-6)


def test_a_name_that_nobody_knows() -> None:
    """rLLM's enumeration of estimators turns every unknown name into OTHER; here it is an error with the nearest."""
    name_by_method = {"grpo": "GRPO", "rloo": "RLOO"}
    assert name_by_method.get("grop", "OTHER") == "OTHER"
    with pytest.raises(ConfigError, match="unknown method 'grop'; did you mean"):
        gxpo.method("grop")


def test_truncated_answers_stay_in_the_baseline() -> None:
    """TRL masks a truncated completion in the loss; its reward still moves the others' mean and std."""
    rewards = [1.0, 0.0, 0.0, 0.0]
    theirs = ours("grpo", rewards, [0] * 4, ddof=1, eps=1e-4)  # the last is truncated: masked later
    assert theirs[:3] == pytest.approx([1.4997, -0.4999, -0.4999], abs=1e-6)
    without = ours("grpo", [1.0, 0.0, 0.0, None], [0] * 4, ddof=1, eps=1e-4)
    assert without == pytest.approx([1.154501, -0.577250, -0.577250, 0.0], abs=1e-5)
