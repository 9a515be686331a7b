"""GRPO-LEAD's rewards and credit, restated from the authors' code."""

from __future__ import annotations

import math
import statistics

import pytest
from tests.environments.rewards.shapes import shape

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

LengthRelative = shape("length_relative")

RIGHT, WRONG, UNREAD, REPEATS = 1, 0, -1, -2  # what the code's scorer says

GROUPS = [
    # long: the three shortest have 4,300 on average; one of them is wrong
    [(4000, RIGHT), (9000, RIGHT), (4500, RIGHT), (4400, WRONG), (12288, UNREAD), (12288, REPEATS)],
    # short: the three shortest, of which two are wrong, have 3,666.7, the right ones alone 8,333.3
    [(5000, RIGHT), (9000, RIGHT), (11000, RIGHT), (3000, WRONG), (3000, WRONG)],
    [(4000, RIGHT), (4000, RIGHT), (4000, RIGHT), (4000, WRONG)],  # 4,000 is not above 4,000
    [(10, RIGHT), (30, WRONG)],  # fewer than three count as long; alone, the right answer keeps 1
    [(10, RIGHT), (30, RIGHT)],
    [(5000, WRONG), (6000, UNREAD), (7000, REPEATS)],  # without a success: left out of the batch
    [(5000, RIGHT), (5000, RIGHT), (5000, RIGHT)],  # all exactly 1: left out as well
]


def rewards(group: list[tuple[int, int]]) -> list[float]:
    prices = {RIGHT: 1.0, WRONG: -1.0, UNREAD: 0.0, REPEATS: -2.0}
    out = [prices[message] for _, message in group]
    shortest = sorted(n for n, _ in group)[:3]
    if len(shortest) == 3 and sum(shortest) / 3 <= 4000:
        return out
    lengths = [n for n, message in group if message == RIGHT]
    std = statistics.stdev(lengths) if len(lengths) > 1 else 1.0
    return [
        x * math.exp(-0.05 * (n - statistics.mean(lengths)) / (std + 1e-6)) if message == RIGHT else x
        for x, (n, message) in zip(out, group, strict=True)
    ]


def weight(rate: float) -> float:
    return 0.4 + (1.5 - 0.4) / (1 + math.exp(10.0 * (rate - 0.75)))


def credit(group: list[tuple[int, int]]) -> list[float]:
    scores = rewards(group)
    if all(x <= 0 for x in scores) or all(x == 1 for x in scores):
        return [0.0] * len(scores)
    rate = sum(x > 0 for x in scores) / len(scores)
    mean, std = statistics.mean(scores), statistics.stdev(scores)
    z = [(x - mean) / (std + 1e-6) for x in scores]
    return [x * (weight(rate) if x > 0 else weight(1 - rate)) for x in z]


def forest() -> Forest:
    return Forest.from_records(
        [
            {
                "schema": "gxpo.rollouts/1",
                "group": str(g),
                "id": f"{g}/{i}",
                "prompt": [1],
                "turns": [{"action": [2] * n}],
                "reward": float(message == RIGHT),
                "success": message == RIGHT,
                "rewards": {"format": float(message >= 0), "repeats": float(message == REPEATS)},
            }
            for g, group in enumerate(GROUPS)
            for i, (n, message) in enumerate(group)
        ]
    )


def test_rewards_and_credit_are_the_authors() -> None:
    """aeroplanepaper/GRPO-LEAD@9344bef: verl/verl/trainer/main_ppo.py get_reweight_rewards and __call__ (lengths' std
    with one degree of freedom; nothing where the group's three shortest answers, whoever is right, have 4,000 tokens or
    fewer on average; unreadable 0, wrong -1, repetitive -2), ppo/core_algos.py compute_grpo_outcome_advantage and
    logistic_reweight, ppo/ray_trainer.py fit (groups without a success, or of ones alone, are dropped)."""
    names = {"parsed": "format", "repetitive": "repeats", "longer_than": 4000.0}
    method = gxpo.method("grpo_lead", {f"reward.shape.concise.{k}": v for k, v in names.items()})
    grown = forest()
    shaped = method.shaped(grown)
    actual = shaped.outcome
    expected = [x for group in GROUPS for x in rewards(group)]
    at = [i for i, g in enumerate(grown.group) if g != "5"]  # who is dropped there has one score here
    assert [float(actual[i]) for i in at] == pytest.approx([expected[i] for i in at], abs=1e-9)
    ends = [int(grown.path_of(r)[0]) for r in range(grown.n_trajectories)]
    assert method.advantages(shaped)[ends].tolist() == pytest.approx(
        [x for group in GROUPS for x in credit(group)], abs=1e-9
    )


def test_grpo_lead_by_default_counts_lengths_and_equal_failures() -> None:
    """The paper's rule: exp(-.05 z) or -1. Second group: lengths 5000, 9000, 11000, mean 8333.3, std 3055.05."""
    actual = gxpo.method("grpo_lead").shaped(forest()).outcome.tolist()
    z = [(n - 25000 / 3) / (statistics.stdev([5000, 9000, 11000]) + 1e-6) for n in (5000, 9000, 11000)]
    assert actual[6:11] == pytest.approx([*(math.exp(-0.05 * x) for x in z), -1.0, -1.0], abs=1e-12)
    assert actual[3:6] == [-1.0] * 3 and actual[19:22] == [-1.0] * 3
    at_paper = gxpo.method("grpo_lead@paper")
    assert at_paper.shapes["concise"].options["longer_than"] == 4000


def test_unscored_answers_are_not_among_the_shortest() -> None:
    """5000, 5000 and 6000 are long; a cut answer of one token without a verdict would make them short."""
    rows: list[tuple[int, bool | None]] = [(5000, True), (5000, False), (6000, True), (1, None)]
    records = [
        {"schema": "gxpo.rollouts/1", "group": "g", "id": str(i), "prompt": [1], "turns": [{"action": [2] * n}],
         "reward": None if right is None else float(right), "success": right}
        for i, (n, right) in enumerate(rows)
    ]  # fmt: skip
    actual = LengthRelative(longer_than=4000.0)(Forest.from_records(records))
    assert actual[:3].tolist() == pytest.approx([math.exp(0.05 * 0.5**0.5), -1.0, math.exp(-0.05 * 0.5**0.5)], abs=1e-9)
    assert actual[3].isnan()


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="name `parsed` as well"):
        LengthRelative(repetitive="repeats")
    with pytest.raises(ConfigError, match="ddof is 2; it is from 0 to 1"):
        LengthRelative(ddof=2)
    with pytest.raises(ConfigError, match="length_relative reads component 'read'"):
        LengthRelative(parsed="read")(forest())
