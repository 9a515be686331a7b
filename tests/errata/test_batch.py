"""docs/errata/batch.md: what is normalised over the batch, and what the batch is made of.

Each test restates a system's documented formula in its own words and holds it against gxpo's number.
"""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import Tensor

import gxpo
from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.base.errors import ConfigError
from gxpo.conformance.builtin import advantages as ours
from gxpo.forest.forest import Forest

REWARDS, ONE, LENGTHS = [1.0, 0.0, 0.0, 1.0], [0] * 4, [1, 3, 2, 2]


def tokens(values: list[float], lengths: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).repeat_interleave(torch.tensor(lengths))


def first_of_each(x: Tensor, lengths: list[int]) -> list[float]:
    return x[torch.tensor([0, *lengths[:-1]]).cumsum(0)].tolist()


def test_reinforce_pp_in_four_systems() -> None:
    """verl: tokens, unbiased variance, 1e-8 in the root. OpenRLHF: tokens, biased, 1e-8 at least. TRL's recipe:
    leave-one-out, then sequences, 1e-4 on the std."""
    x = tokens(REWARDS, LENGTHS)
    verl = first_of_each((x - x.mean()) * (x.var() + 1e-8).rsqrt(), LENGTHS)
    openrlhf = first_of_each((x - x.mean()) * x.var(correction=0).clamp_min(1e-8).rsqrt(), LENGTHS)
    left = [r - (sum(REWARDS) - r) / 3 for r in REWARDS]
    trl = [(a - statistics.fmean(left)) / (statistics.stdev(left) + 1e-4) for a in left]
    assert verl == pytest.approx([1.207615, -0.724569, -0.724569, 1.207615], abs=1e-6)
    assert openrlhf == pytest.approx([1.290994, -0.774597, -0.774597, 1.290994], abs=1e-6)
    assert trl == pytest.approx([0.865913, -0.865913, -0.865913, 0.865913], abs=1e-5)
    assert ours("reinforce_pp", REWARDS, ONE, lengths=LENGTHS) == pytest.approx(verl, abs=1e-9)


def test_reinforce_pp_baseline_without_a_mean() -> None:
    """rLLM: centred rewards over the population std of all of them, once for each trajectory; nothing subtracted."""
    rewards, groups, lengths = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0], [0, 0, 0, 1, 1, 1], [9, 1, 1, 1, 1, 1]
    centred = [r - statistics.fmean(rewards[3 * g : 3 * g + 3]) for r, g in zip(rewards, groups, strict=True)]
    theirs = [a / (statistics.pstdev(centred) + 1e-6) for a in centred]
    x = tokens(centred, lengths)
    assert theirs[0] == pytest.approx(1.414211, abs=1e-5) and x.mean().item() == pytest.approx(0.380952, abs=1e-6)
    actual = ours("reinforce_pp_baseline", rewards, groups, lengths=lengths)
    assert actual == pytest.approx(first_of_each((x - x.mean()) / (x.var() + 1e-8).sqrt(), lengths), abs=1e-9)
    assert actual[0] == pytest.approx(0.609449, abs=1e-5)


def test_a_return_that_forgets_at_an_observation() -> None:
    """SkyRL: the running return is multiplied by the mask, so that it is 0 before a tool's answer."""
    mask, reward = [1, 1, 0, 0, 1, 1], [0.0, 0, 0, 0, 0, 1.0]
    forgets, keeps = [0.0] * 6, [0.0] * 6
    a = b = 0.0
    for t in reversed(range(6)):
        a, b = reward[t] + a, reward[t] + b
        forgets[t], keeps[t] = a, b
        a *= mask[t]
    own_values = [t for t in range(6) if mask[t]]
    assert [forgets[t] for t in own_values] == [0.0, 0.0, 1.0, 1.0] and [keeps[t] for t in own_values] == [1.0] * 4
    records = [
        {
            "schema": "gxpo.rollouts/1",
            "group": "g",
            "id": f"t{i}",
            "prompt": [1],
            "turns": [{"observation": [2, 2], "action": [3, 3], "logprob": [-1.0, -1.0]}] * 2,
            "reward": outcome,
        }
        for i, outcome in enumerate((1.0, 0.0))
    ]
    actual = gxpo.method("reinforce_pp").advantages(Forest.from_records(records))
    assert actual.tolist() == pytest.approx([0.935414] * 4 + [-0.935414] * 4, abs=1e-6)


def test_a_batch_of_one_token() -> None:
    """verl's and SkyRL's masked variance raises where one token counts; here there is nothing to whiten."""
    one_reward = torch.tensor([3.0])
    assert one_reward.numel() / (one_reward.numel() - 1 or math.inf) == 0.0  # Bessel's correction would divide by 0
    assert batch_whiten(one_reward, torch.ones(1, dtype=torch.bool)).tolist() == [0.0]


def decoupled(columns: list[list[float]], eps: float) -> list[float]:
    total = [0.0] * len(columns[0])
    for column in columns:
        mean, std = statistics.fmean(column), statistics.stdev(column)
        total = [s + (r - mean) / (std + eps) for s, r in zip(total, column, strict=True)]
    return total


COLUMNS = [[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
SUMS = [2.0, 1.0, 0.0, 0.0]


def test_gdpo_over_trajectories_and_over_tokens() -> None:
    """The two official ports: TRL's batch is made of trajectories, verl's of tokens."""
    lengths = [1, 2, 3, 10]
    s = decoupled(COLUMNS, 1e-4)
    trl = [(a - statistics.fmean(s)) / (statistics.stdev(s) + 1e-4) for a in s]
    x = tokens(decoupled(COLUMNS, 1e-6), lengths)
    verl = first_of_each((x - x.mean()) * (x.var() + 1e-8).rsqrt(), lengths)
    assert trl == pytest.approx([1.332031, 0.206077, -0.769054, -0.769054], abs=1e-6)
    assert verl == pytest.approx([3.111522, 1.215577, -0.426360, -0.426360], abs=1e-5)
    inputs = {"components": COLUMNS, "weights": [1.0, 1.0]}
    assert ours("gdpo_multi", SUMS, ONE, **inputs) == pytest.approx(trl, abs=1e-9)
    over = ours("gdpo_multi", SUMS, ONE, batch_unit="tokens", ddof=1, eps=1e-6, lengths=lengths, **inputs)
    assert over == pytest.approx(verl, abs=1e-6)


def test_gdpo_of_the_sum_is_grpo() -> None:
    """What decoupling changes: the second reward's rare success counts as much as the first's common one."""
    assert ours("grpo", SUMS, ONE, ddof=1, eps=1e-4) == pytest.approx(
        [1.305446, 0.261089, -0.783268, -0.783268], abs=1e-6
    )


def test_gdpo_with_leave_one_out_parts() -> None:
    """NeMo-RL's GDPO inherits the leave-one-out std: the lone success of the second reward is not scaled."""
    total = torch.zeros(4, dtype=torch.float64)
    for column in COLUMNS:
        r = torch.tensor(column, dtype=torch.float64)
        others = [torch.cat([r[:i], r[i + 1 :]]) for i in range(4)]
        mean, std = torch.stack([o.mean() for o in others]), torch.stack([o.std() for o in others])
        total += torch.where(std > 0, (r - mean) / (std + 1e-6), r - mean)
    theirs = ((total - total.mean()) / total.std()).tolist()
    actual = ours("gdpo_multi", SUMS, ONE, components=COLUMNS, weights=[1.0, 1.0])
    assert theirs == pytest.approx([1.229689, 0.399968, -0.814828, -0.814828], abs=2e-6)
    assert actual == pytest.approx([1.332031, 0.206077, -0.769054, -0.769054], abs=1e-6)


def test_weights_by_position_and_by_name() -> None:
    """verl's GDPO reads weights by position, and never the third of two rewards'; here a name that is not there is
    an error."""
    weights = [1.0, 0.5, 7.0]
    s = [sum(weights[k] * column[i] for k, column in enumerate(COLUMNS)) for i in range(4)]
    assert s == [1.5, 1.0, 0.0, 0.0]  # 7.0 was for nothing
    forest = Forest.from_completions([[1]], [[[2], [3], [4], [5]]], SUMS).with_rewards(
        torch.tensor(SUMS, dtype=torch.float64),
        components={"correct": torch.tensor(COLUMNS[0]), "format": torch.tensor(COLUMNS[1])},
    )
    method = gxpo.method("gdpo_multi", {"credit.weights": {"correct": 1.0, "format": 0.5, "brief": 7.0}})
    with pytest.raises(ConfigError, match="brief"):
        method.advantages(forest)


def test_weights_by_alphabet() -> None:
    """NeMo-RL orders rewards by name and weights by that order: [correct, brevity] in a file are [brevity, correct]."""
    weights = {"correct": 1.0, "brevity": 0.1}
    theirs = dict(zip(sorted(weights), weights.values(), strict=True))
    assert theirs == {"brevity": 1.0, "correct": 0.1}
    columns = {"correct": torch.tensor([1.0, 0.0]), "brevity": torch.tensor([0.0, 1.0])}
    forest = Forest.from_completions([[1]], [[[2], [3]]], [1.0, 0.1]).with_rewards(
        torch.tensor([1.0, 0.1], dtype=torch.float64), components=columns
    )
    by_name = gxpo.method("gdpo_multi", {"credit.weights": weights}).advantages(forest)
    by_alphabet = gxpo.method("gdpo_multi", {"credit.weights": theirs}).advantages(forest)
    assert by_name[0] > 0 > by_alphabet[0]


def test_bnpo_of_equal_accuracies() -> None:
    """BNPO's code divides by the variance of the prompts' accuracies: two prompts alike give nan."""
    p = torch.tensor([0.25, 0.25])
    a = (p.mean() * (1 - p.mean()) / p.var() - 1) * p.mean()
    assert a.item() == math.inf
    actual = ours("bnpo", [1.0, 0, 0, 0, 1.0, 0, 0, 0], [0] * 4 + [1] * 4)
    assert actual == pytest.approx([0.75, -0.25, -0.25, -0.25] * 2)


def test_bnpo_is_two_things() -> None:
    """TRL's loss_type "bnpo" averages over the batch's tokens; the paper's BNPO divides by a Beta density."""
    rewards = [1.0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0]
    groups = [0] * 4 + [1] * 4 + [2] * 4
    paper = ours("bnpo", rewards, groups)
    assert paper[0] == pytest.approx(0.680175, abs=1e-6)
    trl = ours("dr_grpo", rewards, groups)  # its advantage knows of no Beta: mean-centred here
    assert paper[0] / trl[0] == pytest.approx(0.906900, abs=1e-6)
    assert paper[4] / trl[4] == pytest.approx(math.pi / 4, abs=1e-9)
