"""docs/errata/elsewhere.md: rewards of single tasks, teams, and what a trainer writes down.

Each test restates a released formula in its own words; where gxpo has a part of it, against that part's number.
"""

from __future__ import annotations

import itertools
import math
from collections import deque

import numpy as np
import pytest
import torch

import gxpo
from gxpo.algorithms.signals.policy_outputs import dominance_rank
from gxpo.forest.forest import Forest


def test_evaluation_rows_in_place_of_the_steps() -> None:
    """TRL: one queue for both, of a batch's length, and a file whose name has the step alone."""
    queue: deque[str] = deque(maxlen=4)
    files: dict[str, list[str]] = {}
    for rows in (["2+2"] * 4, ["9-1"] * 4):  # a step, and the evaluation after it
        queue.extend(rows)
        files[f"completions_{1:05d}"] = list(queue)
    assert files == {"completions_00001": ["9-1"] * 4}


def test_a_length_that_is_rewarded_again() -> None:
    """Open-RS: low + (high - low) (1 + cos(pi length / max_len)) / 2; for wrong answers -.5 is low and -1 high."""

    def paid(length: int, right: bool, most: int = 1000) -> float:
        low, high = (0.5, 1.0) if right else (-0.5, -1.0)
        return low + 0.5 * (high - low) * (1.0 + math.cos(math.pi * length / most))

    assert [paid(n, True) for n in (0, 500, 1000, 1500, 2000)] == pytest.approx([1.0, 0.75, 0.5, 0.75, 1.0])
    assert [paid(n, False) for n in (0, 1000, 2000)] == pytest.approx([-1.0, -0.5, -1.0])


def test_a_right_answer_that_is_punished_for_being_short() -> None:
    """RLSP: [right] - .5 [no box] - 1000 / tokens."""

    def paid(right: bool, tokens: int, boxed: bool = True) -> float:
        return right - 0.5 * (not boxed) - 1000 / tokens

    assert [paid(True, n) for n in (100, 500, 1000, 2000)] == [-9.0, -1.0, 0.0, 0.5]
    assert paid(False, 4000) == -0.25 > paid(True, 500)


def similarity(one: np.ndarray, other: np.ndarray) -> float:
    """Table2LaTeX-RL: the mean over four sub-bands of one SSIM of the whole page each, constants of 8 bits. Sums and
    differences of bytes are bytes: 255 four times is 252."""

    def bands(page: np.ndarray) -> list[np.ndarray]:
        a, b, c, d = page[::2, ::2], page[::2, 1::2], page[1::2, ::2], page[1::2, 1::2]
        return [(a + b + c + d) * 0.25, (a - c) * 0.5, (a - b) * 0.5, (a - d) * 0.5]

    actual = []
    for x, y in zip(bands(one), bands(other), strict=True):
        c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
        cov = float(np.cov(x.ravel(), y.ravel())[0, 1])
        up = (2 * x.mean() * y.mean() + c1) * (2 * cov + c2)
        actual.append(float(np.clip(up / ((x.mean() ** 2 + y.mean() ** 2 + c1) * (x.var() + y.var() + c2)), 0, 1)))
    return sum(actual) / 4


def test_an_empty_table_is_like_any_other() -> None:
    """A frame of two rules; its words are 20 marks of 2 x 10 pixels, 1 % of the page."""
    empty = np.full((200, 200), 255, dtype=np.uint8)
    empty[[20, 180]] = 0
    full = empty.copy()
    for i, j in itertools.product(range(5), range(4)):
        full[40 + 26 * i : 42 + 26 * i, 20 + 44 * j : 30 + 44 * j] = 0
    assert (full != empty).mean() == pytest.approx(0.01)
    assert similarity(full, full) == pytest.approx(1.0, abs=1e-4)
    blank = np.full((200, 200), 255, dtype=np.uint8)
    assert similarity(blank, full) == pytest.approx(0.899490, abs=1e-6)
    white = blank[::2, ::2]
    assert float(((white + white + white + white) * 0.25).mean()) == 63.0
    assert similarity(empty, full) == pytest.approx(0.899589, abs=1e-6)


def test_a_gate_that_is_closed() -> None:
    """FaVChat: utility = geometric mean of |differences| + 1e-6 of rewards, times that of mean log-probs; smoothed by
    .8 from 0; below .2 nothing is learned."""

    def gap(values: list[float]) -> float:
        pairs = [abs(a - b) for a, b in itertools.combinations(values, 2)]
        return math.exp(sum(math.log(p + 1e-6) for p in pairs) / len(pairs))

    binary = gap([1.0] * 4 + [0.0] * 4)
    assert binary == pytest.approx(1e-6 ** (12 / 28), rel=1e-4) == pytest.approx(0.002683, abs=1e-6)
    spread = gap([0.05 + 0.85 * k / 7 for k in range(8)])  # as far apart as rewards of a group can be, and distinct
    assert 0.2 * spread * spread < 0.2  # with log-probs as far apart, the first smoothed utility
    opened = math.tanh(1.0 * (0.5 - 0.7))  # a margin of .5 under a baseline of .7
    assert opened == pytest.approx(-0.197375, abs=1e-6)
    # gxpo: of the same group every advantage counts
    forest = Forest.from_completions([[1]], [[[2]] * 8], [1.0] * 4 + [0.0] * 4)
    assert gxpo.method("grpo").advantages(forest).abs().min() > 0.9


def test_a_replay_that_is_always_on() -> None:
    """ARPO for GUI agents: a group that all failed has its first attempt replaced, whatever `enable_replay` says; the
    old log-probs are taken of the policy that is trained."""

    def batch(rewards: list[float], stored: list[float], enable_replay: bool) -> list[float]:
        failed = np.std(rewards) < 0.05 and np.mean(rewards) < 0.2
        return stored[:1] + rewards[len(stored[:1]) :] if failed else rewards

    assert batch([0.0] * 4, [1.0], enable_replay=False) == [1.0, 0.0, 0.0, 0.0]
    sampled, now = -2.0, -0.5
    assert math.exp(now - now) == 1.0 and math.exp(now - sampled) == pytest.approx(4.481689, abs=1e-6)


def test_hot_answers_read_cold() -> None:
    """EFRame: sampled at temperature 1.2, its log-probs taken at 1, by the policy that sampled it."""
    at = {heat: 1 / (1 + math.exp(-2.0 / heat)) for heat in (1.0, 1.2)}  # a token two nats ahead of the only other
    assert at[1.0] == pytest.approx(0.880797, abs=1e-6) and at[1.2] == pytest.approx(0.841131, abs=1e-6)
    assert at[1.0] / at[1.2] == pytest.approx(1.047158, abs=1e-6)


def test_a_list_filled_up_and_a_bound_that_stays() -> None:
    """EFRame: the first 32 - n % 32 hard prompts once more, with the same group; log(1 + 0.2) as the upper bound."""
    hard = list(range(33))
    hard += hard[: 32 - len(hard) % 32]
    assert len(hard) == 64 and sum(hard.count(prompt) == 2 for prompt in range(33)) == 31

    def upper(ratio: float, clip_ratio_high: float) -> float:
        return math.exp(min(math.log(ratio), math.log(1.0 + 0.2)))

    assert upper(2.0, 0.3) == pytest.approx(1.2)


def test_three_that_dominate_nobody() -> None:
    """R^3: rewards by place, the most dominating first."""
    dominated = [1, 0, 0, 0]
    order = sorted(range(4), key=lambda i: -dominated[i])
    rewards = [1 - order.index(i) / 3 for i in range(4)]
    assert rewards == pytest.approx([1.0, 0.666667, 0.333333, 0.0], abs=1e-6)
    mean = torch.tensor([0.5, 0.6, 0.7, 0.4])
    shared = dominance_rank(torch.tensor([2.0, 1.5, 2.2, 1.0]), mean, torch.zeros(4).long(), mean > 0)
    assert shared.tolist() == pytest.approx([1.0] + [1 / 3] * 3)


def test_a_rank_that_is_left_out() -> None:
    """Rank-GRPO: a token's item is the number of newlines before it."""

    def ranks(pieces: list[str]) -> list[int]:
        return [sum(p.count("\n") for p in pieces[:i]) for i in range(len(pieces))]

    assert ranks(["Alien", "\n", "Brazil", "\n", "Cube"]) == [0, 0, 1, 1, 2]
    assert ranks(["Alien", "\n\n", "Brazil", "\n", "Cube"]) == [0, 0, 2, 2, 3]


def test_a_penalty_that_the_paper_does_not_have() -> None:
    """MADDPG: -mean Q + 1e-3 mean(parameters^2): with a flat Q the logits shrink."""
    logits = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64, requires_grad=True)
    (-torch.zeros(()) + 1e-3 * logits.square().mean()).backward()
    assert logits.grad is not None and logits.grad.tolist() == pytest.approx([4e-3 / 3, -2e-3 / 3, 0.0])


def test_a_utility_that_cannot_be_logarithmic() -> None:
    """AI Economist: np.max(1, coin) reads coin as the axis."""
    for coin in (2.0, np.array([2.0, 3.0])):
        with pytest.raises(TypeError):
            np.max(1, coin)  # type: ignore[call-overload]
    assert np.log(np.maximum(1, 2.0)) == pytest.approx(0.693147, abs=1e-6)


def test_the_probability_of_what_was_not_done() -> None:
    """PARCO: both agents choose place 1; the second stays at 0 and is trained by its probability of going to 1."""
    chance = np.array([[0.1, 0.9], [0.3, 0.7]])
    chosen, done = [1, 1], [1, 0]
    trained = [float(chance[i, a]) for i, a in enumerate(chosen)]
    assert trained == [0.9, 0.7] and [float(chance[i, a]) for i, a in enumerate(done)] == [0.9, 0.3]


def test_a_softmax_over_the_batch() -> None:
    """TSCAC: constraint probability times softmax(kappa adv) over the rows, and the mean over them."""

    def weights(constraint: list[float], advantage: list[float]) -> np.ndarray:
        raised = np.exp(np.array(advantage))
        return np.array(constraint) * raised / raised.sum()

    actual = weights([0.5, 0.2, 0.3], [1.0, 0.0, -1.0])
    assert actual.tolist() == pytest.approx([0.33262, 0.048946, 0.027009], abs=1e-6)
    twice = weights([0.5, 0.2, 0.3] * 2, [1.0, 0.0, -1.0] * 2)
    assert (twice / 6)[0] / (actual / 3)[0] == pytest.approx(0.25)
    w, q, v = 1.0, 0.75, 0.5
    assert (w * q, w * (q - v)) == (0.75, 0.25)  # what the first stage has, and what is commented out


def test_a_gradient_that_moves_an_action_by_a_thousandth() -> None:
    """PA-RL: Q = -(a - 1)^2, two of four kept, ten steps of 3e-4."""
    moved = np.array([0.4, 1.3])  # of 0, .4, 2 and 1.3
    for _ in range(10):
        moved += 3e-4 * -2 * (moved - 1)
    assert moved.tolist() == pytest.approx([0.40359, 1.298205], abs=1e-6)


def test_the_best_of_several_is_reported() -> None:
    """EPH: of the settings that arrive, the one with the fewest steps."""
    steps = np.array([[90, 40], [50, 80]])  # instance by setting
    arrived = np.array([[True, True], [True, False]])
    messages = np.where(arrived, steps, 10**6).argmin(1)
    assert [int(steps[i, k]) for i, k in enumerate(messages)] == [40, 50]
    assert [float(x) for x in steps.mean(0)] == [70.0, 60.0]  # what either of them takes


def test_a_state_that_is_not_put_back() -> None:
    """CASEC's Hallway: two groups of one agent at 1 step to 0 together; the fine, the state, and who may still win."""
    state, group, paid = np.array([1, 1]), np.array([0, 1]), 0.0
    last, open_ = state, [True, True]
    state[:] = np.maximum(0, state - 1)
    winners = [g for g in (0, 1) if (state[group == g] == 0).all()]
    for g in winners:
        paid, open_[g] = paid + 10, False
    paid -= 1.5 * 10 * len(winners)
    state[:] = last
    assert paid == -10.0
    assert state.tolist() == [0, 0]  # where they were was 1
    assert open_ == [False, False]


def test_reasoning_and_answers_of_different_rounds() -> None:
    """MAgICoRe: what is put together after round n of a question that is refined."""
    reasoning = {n: [f"reasoning {n}"] for n in range(4)}
    answers = {n: [f"answer {n}"] for n in range(4)}

    def joined(n: int) -> list[tuple[str, str]]:
        return list(zip(reasoning[0] + reasoning[1], answers[n] + answers[n + 1], strict=True))

    assert joined(0) == [("reasoning 0", "answer 0"), ("reasoning 1", "answer 1")]
    assert joined(2) == [("reasoning 0", "answer 2"), ("reasoning 1", "answer 3")]


def test_what_six_outputs_can_do() -> None:
    """MAC-SPGG: 896 -> 256 -> 128 -> 6: parameters of what is trained."""
    sizes = [896, 256, 128, 6]
    assert sum(a * b + b for a, b in itertools.pairwise(sizes)) == 263302


def test_a_ratio_of_two_different_policies() -> None:
    """VAR-GRPO: top-k 2 of [.5, .3, .2] samples the first with .625; without it the learner has .5 before any step."""
    full = np.array([0.5, 0.3, 0.2])
    cut = np.where(full >= 0.3, full, 0.0)
    cut /= cut.sum()
    assert cut.tolist() == pytest.approx([0.625, 0.375, 0.0])
    assert full[0] / cut[0] == pytest.approx(0.8)
