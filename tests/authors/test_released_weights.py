"""Rewards, weights and losses that know more of an answer than its verdict, as the authors' repositories compute them.

Loops over groups, answers and tokens, written from the files that each method's `code` names: likelihood, likeness to
the others, calls, lengths, what a frozen policy earned, what a masked picture changed. Groups of four, one all right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.algorithms.signals.test_texts import TAG, decode
from torch import Tensor

import gxpo
from gxpo.algorithms.segments.base import SegmentTools
from gxpo.algorithms.segments.segmenters import Spans
from gxpo.algorithms.signals.texts import valid_thinking
from gxpo.forest.forest import Forest

F64 = torch.float64
GROUPS = {  # (reward, tokens) of each answer
    "mixed": [(1.0, 3), (0.0, 2), (0.0, 1), (1.0, 5)],
    "right": [(1.0, 2), (1.0, 1), (1.0, 2), (1.0, 3)],
    "rare": [(0.0, 1), (1.0, 2), (0.0, 3), (0.0, 1)],
}
ROWS = [(g, *row) for g, rows in GROUPS.items() for row in rows]
N = [n for *_, n in ROWS]
OLD = [-0.3 - ((7 * t) % 11) * 0.15 for t in range(sum(N))]
GAP = [((5 * t) % 9 - 4) * 0.13 for t in range(sum(N))]  # policy less the one at the start of the step
STALE = [((4 * t + 2) % 13 - 3) * 0.25 for t in range(sum(N))]  # that one less the sampler


def forest() -> Forest:
    records, at = [], 0
    for i, (g, r, n) in enumerate(ROWS):
        record = {"schema": "gxpo.rollouts/1", "group": g, "id": f"a{i}", "prompt": [1], "reward": r, "success": r > 0}
        records.append(record | {"turns": [{"action": [7] * n, "logprob": OLD[at : at + n]}]})
        at += n
    return Forest.from_records(records)


def rows_of(x: list[float]) -> list[list[float]]:
    ends = [sum(N[: i + 1]) for i in range(len(N))]
    return [x[end - n : end] for end, n in zip(ends, N, strict=True)]


def firsts(found: Tensor) -> list[float]:
    """What each answer's first token has."""
    return [row[0] for row in rows_of(found.tolist())]


def of_groups(values: list[float], eps: float, std: bool = True) -> list[float]:
    """Values less their group's mean, over its std + eps: four of a group, in order."""
    out = []
    for k in range(0, len(values), 4):
        four = values[k : k + 4]
        mean = math.fsum(four) / 4
        spread = math.sqrt(math.fsum((x - mean) ** 2 for x in four) / 3)
        out += [(x - mean) / (spread + eps) if std else x - mean for x in four]
    return out


def agree(m: Any, wanted: Callable[[list[list[Tensor]]], Tensor], signals: dict[str, Tensor], **more: Tensor) -> None:
    """gxpo's loss and gradient of a policy that has moved from OLD, against `wanted` of its log-probs by answer."""
    lp = (torch.tensor(OLD, dtype=F64) + torch.tensor(GAP, dtype=F64)).requires_grad_()
    tokens = gxpo.PolicyTokens(lp, more.pop("behaviour", torch.tensor(OLD, dtype=F64)), **more)
    actual = m.loss(m.shaped(forest()), tokens, signals=signals).value
    theirs = lp.detach().clone().requires_grad_()
    value = wanted([list(row) for row in theirs.split(N)])
    assert actual.item() == pytest.approx(value.item(), abs=1e-12)
    ours, slope = torch.autograd.grad(actual, lp)[0], torch.autograd.grad(value, theirs)[0]
    assert ours.tolist() == pytest.approx(slope.tolist(), abs=1e-12) and slope.abs().max() > 1e-3


def test_gpg() -> None:
    """AMAP-ML/GPG@e096da8 R1-V/src/r1-v/src/open_r1/trainer/grpo_trainer.py, `adjust_gd` on as in its scripts: the loss
    is divided by the share of groups whose rewards differ. Its 1e-5 beside the share is left out."""
    A = of_groups([r for _, r, _ in ROWS], 0.0, std=False)
    differ = sum(len({r for r, _ in rows}) > 1 for rows in GROUPS.values()) / len(GROUPS)

    def wanted(lp):
        each = [-a * sum(row) / len(row) for a, row in zip(A, lp, strict=True)]
        return sum(each) / len(each) / differ

    assert differ == 2 / 3
    agree(gxpo.method("gpg"), wanted, {})


def test_decoupled_ppo() -> None:
    """inclusionAI/AReaL@4aef98d areal/utils/functional/functional.py, `ppo_actor_loss_fn` under a mask of token ratios
    above 5: a masked token stays in the count of the mean, which is over all tokens."""
    A = of_groups([r for _, r, _ in ROWS], 1e-6)
    weights = [math.exp(x) for x in STALE]

    def wanted(lp):
        total, used = lp[0][0] * 0, 0
        for a, now, old, w in zip(A, lp, rows_of(OLD), rows_of(weights), strict=True):
            for x, y, weight in zip(now, old, w, strict=True):
                rho = torch.exp(x - y)
                worst = torch.maximum(-a * rho, -a * rho.clamp(0.8, 1.2))
                total, used = total + (worst * weight if weight <= 5 else 0.0), used + 1
        return total / used

    assert 3 < sum(w > 5 for w in weights) < 12
    m = gxpo.method("decoupled_ppo", {"objective.aggregate": "token_mean"})
    old = torch.tensor(OLD, dtype=F64)
    sampler = old - torch.tensor(STALE, dtype=F64)
    signals = {"proximal_logprob": old, "behaviour_logprob": sampler}
    agree(m, wanted, signals, proximal_logprob=old, behaviour=sampler)


def test_dra_grpo() -> None:
    """xiwenc1/DRA-GRPO@0882661 src/open_r1/trl/trainer/grpo_trainer.py, 679-706, where a process holds one prompt."""
    e = [[1.0, 0.2, 0.1 * (i % 5)] if i % 3 else [0.3, 1.0, 0.5 + 0.1 * i] for i in range(len(ROWS))]
    unit = [[x / math.hypot(*row) for x in row] for row in e]
    shared = []
    for i, (g, r, _) in enumerate(ROWS):
        alike = sum(
            sum(a * b for a, b in zip(unit[i], unit[j], strict=True)) for j, row in enumerate(ROWS) if row[0] == g
        )
        shared.append(r / (alike + 1e-6))
    actual = gxpo.method("dra_grpo@paper").advantages(forest(), {"embedding": torch.tensor(e, dtype=F64)})
    expected = of_groups(shared, 1e-4)
    assert firsts(actual) == pytest.approx(expected, abs=1e-12) and min(map(abs, expected[4:8])) > 1e-3


def test_unlikeliness() -> None:
    """AndreHe02/rewarding-unlikely-release@ca1cff0 verl/trainer/ppo/ray_lean_trainer.py, `_compute_advantages` with its
    script's penalty of 0.25: it ranks groups that are all right, too."""
    likely = [math.fsum(row) / len(row) for row in rows_of(OLD)]
    paid = []
    for i, (g, r, _) in enumerate(ROWS):
        below = sum(likely[j] < likely[i] for j, row in enumerate(ROWS) if row[0] == g)
        paid.append(r * (1 - 0.25 * below / 4))
    m = gxpo.method("unlikeliness", {"reward.shape.likelihood_discount.all_correct": True})
    assert firsts(m.advantages(m.shaped(forest()))) == pytest.approx(of_groups(paid, 1e-6), abs=1e-12)
    as_they_are = gxpo.method("unlikeliness")
    assert firsts(as_they_are.advantages(as_they_are.shaped(forest())))[4:8] == [0.0] * 4


def test_aapo() -> None:
    """JianxXiong/AAPO@b8aac37 open-rs/trainer/AAPOTrainer.py, 363-373 and 453-455: the i-th answer's reward less that
    of the i-th of the reference, held, beside GRPO's advantage; a mean of -A log pi over all tokens."""
    theirs = [0.0, 1.0, 0.0, 0.9, 1.0, 0.0, 1.0, 0.8, 0.1, 0.0, 0.0, 1.0]
    rewards = [r for _, r, _ in ROWS]
    gaps = [min(max(r - s, -0.2), 0.28) for r, s in zip(rewards, theirs, strict=True)]
    A = [a + gap for a, gap in zip(of_groups(rewards, 1e-4), gaps, strict=True)]
    m, signals = gxpo.method("aapo@paper"), {"baseline": torch.tensor(theirs, dtype=F64)}
    assert firsts(m.advantages(forest(), signals)) == pytest.approx(A, abs=1e-12)

    lp = torch.tensor(OLD, dtype=F64).requires_grad_()  # one update a step: rho is 1, and the slopes are of -A log pi
    loss = m.loss(forest(), gxpo.PolicyTokens(lp, lp.detach()), signals=signals).value
    slope = torch.autograd.grad(loss, lp)[0].tolist()
    assert slope == pytest.approx([-a / len(OLD) for a, n in zip(A, N, strict=True) for _ in range(n)], abs=1e-12)


def test_hdpo() -> None:
    """Accio-Lab/Metis@84fd45e verl_tool/trainer/ppo/hdpo_algos.py and its reward manager: 1 / (calls + 1) among right
    answers, where two or more are right."""
    groups = {  # (right, calls)
        "a": [(1, 0), (1, 2), (1, 1), (0, 0)],
        "b": [(1, 3), (0, 1), (0, 0), (0, 2)],
        "c": [(1, 1), (1, 1), (1, 0), (1, 4)],
        "d": [(0, 1), (0, 0), (0, 3), (0, 0)],
    }
    records, outcome, economy = [], [], []
    for g, rows in groups.items():
        for i, (right, calls) in enumerate(rows):
            turns = [
                {"observation": [2], "action": [3], "info": {"calls": [{"name": "s", "arguments": {}}] * (k < calls)}}
                for k in range(calls + 1)
            ]
            record = {"schema": "gxpo.rollouts/1", "group": g, "id": f"{g}{i}", "prompt": [1], "success": bool(right)}
            records.append(record | {"turns": turns, "reward": float(right), "rewards": {"correct": float(right)}})
        outcome += [float(right) for right, _ in rows]
        paid = [1 / (calls + 1) for right, calls in rows if right]
        mean = sum(paid) / max(len(paid), 1)
        spread = math.sqrt(sum((x - mean) ** 2 for x in paid) / (len(paid) - 1)) if len(paid) > 1 else 1.0
        economy += [(1 / (calls + 1) - mean) / (spread + 1e-6) if right else 0.0 for right, calls in rows]
    m = gxpo.method("hdpo")
    f = m.shaped(Forest.from_records(records))
    credit = m.advantages(f)
    actual = [float(credit[f.path_of(r)][-1]) for r in range(f.n_trajectories)]
    A = [z + 0.15 * e for z, e in zip(of_groups(outcome, 1e-6), economy, strict=True)]
    assert actual == pytest.approx(A, abs=1e-12) and economy[4] == 0.0 and len(set(economy[8:12])) == 3


def test_lc_r1() -> None:
    """zxiangx/LC-R1@f7333a9 trl/trainer/grpo_trainer.py, 1300-1412, but for the thought that it cuts out, of answers in
    its format: rewards less lengths over the longest right one's, and the bonus at </think> of the right ones. Its 1e-4
    beside lengths is left out."""
    texts = ["42..#42", ".....#42", "4 42.#42", ".......#7", "42..#9"]
    right = [True, True, True, False, False]
    rows = []
    for text in texts:
        thought, _, answer = text.partition("#")
        rows.append([*map(ord, thought), TAG, *map(ord, answer)])
    longest = max(len(row) for row, ok in zip(rows, right, strict=True) if ok)
    paid = [ok + 1 - len(row) / longest for row, ok in zip(rows, right, strict=True)]
    mean = math.fsum(paid) / len(paid)
    bonus = [1 - 2 / 4, -1.0, 1 - 4 / 5, 0.0, 0.0]  # "42" ends 2 of 4, nowhere, 4 of 5 ("4 " states nothing)
    expected = []
    for row, own_value, more in zip(rows, paid, bonus, strict=True):
        expected += [own_value - mean + (more if token == TAG else 0.0) for token in row]
    f = Forest.from_completions([[1]], [rows], [[float(ok) for ok in right]])
    f = Spans(patterns=("</think>",))(f.replace(success=f.outcome), SegmentTools(decode))
    m = gxpo.method("lc_r1")
    f = m.shaped(f)
    signal = valid_thinking(f, decode, lambda _: ["42"] * 5)
    assert m.advantages(f, {"valid_thinking": signal}).tolist() == pytest.approx(expected, abs=1e-12)


def test_vppo() -> None:
    """huaixuheqing/VPPO-RL@a23c54b verl/workers/actor/dp_actor.py, 275-295 and 400-525, micro-batch and mini-batch one:
    masked advantages scaled by dependence on the picture. Its 1e-8 beside the mean is left out."""
    A = of_groups([r for _, r, _ in ROWS], 1e-6)
    masked = [o + 0.9 * math.sin(2.3 * t) - (0.4 if t % 4 == 1 else 0.0) for t, o in enumerate(OLD)]
    masked[3] = OLD[3] + 4.0  # e^4 - 5 is above 10
    depends = [[min(math.exp(b - a) - (b - a) - 1, 10.0) for a, b in zip(*two, strict=True)]
               for two in zip(rows_of(OLD), rows_of(masked), strict=True)]  # fmt: skip
    means = [math.fsum(row) / len(row) for row in depends]
    unit = [(x - min(means)) / (max(means) - min(means)) for x in means]
    top = 0.9 + 0.1 / (math.fsum(unit) / len(unit))
    scale = [0.9 + x * (top - 0.9) for x in unit]

    def wanted(lp):
        answers = []
        for a, now, old, d, s in zip(A, lp, rows_of(OLD), depends, scale, strict=True):
            first = sorted(range(len(d)), key=lambda t: -d[t])[: math.ceil(0.4 * len(d))]
            each = []
            for t in first:
                rho = torch.exp(now[t] - old[t])
                each.append(torch.maximum(-a * s * rho, -a * s * rho.clamp(0.8, 1.2)))
            answers.append(sum(each) / len(d))
        return sum(answers) / len(answers)

    old = torch.tensor(OLD, dtype=F64)
    signals = {"proximal_logprob": old, "masked_logprob": torch.tensor(masked, dtype=F64)}
    agree(gxpo.method("vppo"), wanted, signals, proximal_logprob=old)
