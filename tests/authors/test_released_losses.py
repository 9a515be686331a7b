"""Losses, with their gradients, as the authors' repositories compute them.

Each `wanted` is written from the files that the method's `code` names, in loops over answers and tokens; autograd gives
its gradient. Answers of unequal length, an all-right and an all-wrong group, ratios on either side of 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gxpo
from gxpo.forest.forest import Forest

GROUPS = {
    "mixed": [(1, 3), (0, 2), (0, 4)],
    "right": [(1, 2), (1, 1)],
    "wrong": [(0, 3), (0, 1)],
    "pair": [(1, 1), (0, 2)],
}
ROWS = [(g, r, n) for g, rows in GROUPS.items() for r, n in rows]
N = [n for *_, n in ROWS]
OLD = torch.tensor(
    [
        -0.3,
        -1.1,
        -0.7,
        -2.0,
        -0.4,
        -0.9,
        -1.6,
        -0.2,
        -1.0,
        -0.8,
        -0.5,
        -1.3,
        -0.6,
        -2.2,
        -0.1,
        -0.9,
        -1.2,
        -0.35,
        -0.75,
    ],
    dtype=torch.float64,
)
MOVED = torch.tensor(
    [0.5, -0.6, 0.05, -0.45, 0.3, 0.7, -0.02, -0.9, 0.1, 0.2, -0.1, 0.4, -0.3, 0.25, 0.06, -0.5, 0.15, -0.21, 0.33],
    dtype=torch.float64,
)
OTHER = torch.tensor(
    [-0.9, -0.2, -3.5, -1.0, -0.4, -0.1, -1.9, -0.6, -5.0, -0.7, -0.55, -1.0, -0.2, -0.4, -1.5, -0.3, -2.0, -0.9, -0.6],
    dtype=torch.float64,
)


def forest() -> Forest:
    at, records = 0, []
    for i, (g, r, n) in enumerate(ROWS):
        turn = {"action": [10 * i + t for t in range(n)], "logprob": OLD[at : at + n].tolist()}
        records.append(
            {"schema": "gxpo.rollouts/1", "group": g, "id": f"t{i}", "prompt": [1], "reward": float(r)}
            | {"success": bool(r), "turns": [turn]}
        )
        at += n
    return Forest.from_records(records)


def cut(x: Tensor) -> list[list[Tensor]]:
    """Token values by answer."""
    return [list(row) for row in x.split(N)]


def z(scale: bool = True, eps: float = 1e-6) -> list[float]:
    """GRPO's advantages of the answers."""
    out = []
    for rows in GROUPS.values():
        r = [float(x) for x, _ in rows]
        out += [(x - np.mean(r)) / (np.std(r, ddof=1) + eps if scale else 1.0) for x in r]
    return out


def mean(x: list[Tensor]) -> Tensor:
    return torch.stack(x).mean()


def agree(method: str, wanted: Callable[[list[list[Tensor]]], Tensor], tolerance: float = 1e-9, **more: Any) -> None:
    """gxpo's loss and gradient, of a policy that has moved from OLD, against `wanted` of its log-probs by answer."""
    settings, signals = more.pop("settings", {}), more.pop("signals", {})
    lp = (OLD + more.pop("moved", MOVED)).requires_grad_()
    value = gxpo.method(method, settings).loss(forest(), gxpo.PolicyTokens(lp, OLD, **more), signals=signals).value
    (actual,) = torch.autograd.grad(value, lp)
    ours = lp.detach().clone().requires_grad_()
    right = wanted(cut(ours))
    (slope,) = torch.autograd.grad(right, ours)
    assert float(value.detach()) == pytest.approx(float(right.detach()), abs=tolerance)
    assert actual.tolist() == pytest.approx(slope.tolist(), abs=tolerance)
    assert any(abs(x) > 1e-6 for x in slope.tolist())


def test_gmpo() -> None:
    """callsys/GMPO@205b2bf train_zero_math_gmpo.py, 675-700: the better of log-ratio and its clip, then one exp."""
    a = z()

    def wanted(lp):
        rows = []
        for A, now, old in zip(a, lp, cut(OLD), strict=True):
            s = -1.0 if A >= 0 else 1.0
            held_maximums = [
                torch.maximum(s * (x - o), (s * (x - o)).clamp(-0.4, 0.4)) * s for x, o in zip(now, old, strict=True)
            ]
            rows.append(-A * mean(held_maximums).exp())
        return mean(rows)

    agree("gmpo", wanted)


def test_kpo() -> None:
    """shuohe1995/verl-kpo@c313594 verl/trainer/ppo/core_algos.py, 1501-1660, by the recursion; P_0 = x_0 = 0.

    Its gains are held at 1e-6 and more, which the first one, Q / (Q + R), misses by 1e-12.
    """
    a = z()

    def wanted(lp):
        rows = []
        for A, now, old in zip(a, lp, cut(OLD), strict=True):
            x, P, tokens = 0.0, 0.0, []
            for new, was in zip(now, old, strict=True):
                K = min(max((P + 1e-6) / (P + 1e-6 + 1.0), 1e-6), 1 - 1e-6)
                x, P = x + K * (float(new.detach() - was) - x), K
                ratio = (x + new - new.detach()).exp()
                tokens.append(torch.maximum(-A * ratio, -A * ratio.clamp(1 - 3e-4, 1 + 4e-4)))
            rows.append(mean(tokens))
        return mean(rows)

    agree("kpo", wanted)


def test_real() -> None:
    """Red-RL/REAL@1c30726 verl/verl/trainer/ppo/core_algos.py, 295-357, tau 0.5: sums over all groups' number."""

    def wanted(lp):
        s = [mean([x - o for x, o in zip(now, old, strict=True)]) for now, old in zip(lp, cut(OLD), strict=True)]
        total, at = torch.zeros((), dtype=torch.float64), 0
        for rows in GROUPS.values():
            mine = list(zip([r for r, _ in rows], s[at : at + len(rows)], strict=True))
            at += len(rows)
            if {r for r, _ in mine} == {0, 1}:
                total = total + (1 + torch.stack([(x / 0.5).exp() for r, x in mine if not r]).sum()).log()
                total = total + (1 + torch.stack([(-x / 0.5).exp() for r, x in mine if r]).sum()).log()
        return total / len(GROUPS)

    agree("real", wanted)


def test_nft() -> None:
    """NVlabs/NFT@b358fae dp_actor.py, 322-370, as train_7B.sh sets it: the floors hold the value, not the gradient.

    Groups of equal verdicts, which the script filters, are in the mean with 0.
    """

    def wanted(lp):
        rows, at = [], 0
        for group in GROUPS.values():
            q = float(np.mean([r for r, _ in group]))
            for r, _ in group:
                tokens = []
                for x, o in zip(lp[at], cut(OLD)[at], strict=True):
                    ratio = (x - o).clamp(max=10.0).exp()
                    proxy = (1 - q * ratio) / (1 - q) if q < 1 else ratio
                    floor = proxy + (proxy.clamp(min=1.0) - proxy).detach()
                    tokens.append((-ratio.log() if r else -floor.log()) * (1 - q))
                rows.append(sum(tokens) / 1000.0 * (0 < q < 1))
                at += 1
        return mean(rows)

    agree("nft", wanted, settings={"objective.horizon": 1000.0})


def test_gvpo() -> None:
    """jszkc/GVPO@627aa25 GVPO/gvpo_core_algos.py, 39-61, beta 0.1; its sum over groups is a mean here."""

    def wanted(lp):
        total, at = torch.zeros((), dtype=torch.float64), 0
        for rows in GROUPS.values():
            r = [float(x) for x, _ in rows]
            own_totals = [torch.stack(lp[at + i]).sum() - torch.stack(cut(OLD)[at + i]).sum() for i in range(len(r))]
            at += len(r)
            middle = mean([x.detach() for x in own_totals]) * 0.1
            total = total + sum(
                0.5 * (0.1 * x - middle - (y - np.mean(r))) ** 2 for x, y in zip(own_totals, r, strict=True)
            ) / (len(r) - 1)
        return total / len(GROUPS)

    agree("gvpo", wanted)


def test_simple_policy_optimization() -> None:
    """MyRepositories-hub/Simple-Policy-Optimization@9fdeda3 mujoco/trainer.py, 94-110, on group-relative credit."""
    a = z()

    def wanted(lp):
        rows = []
        for A, now, old in zip(a, lp, cut(OLD), strict=True):
            ratios = [(x - o).exp() for x, o in zip(now, old, strict=True)]
            rows.append(mean([-(A * x - abs(A) * (x - 1) ** 2 / 0.4) for x in ratios]))
        return mean(rows)

    agree("spo_simple", wanted)


def test_rec_has_the_gradient_of_its_masked_likelihood() -> None:
    """agentscope-ai/Trinity-RFT@1d7fae4 trinity/algorithm/policy_loss_fn/rec_policy_loss.py, "one-side", no weight."""
    a = z(scale=False)

    def wanted(lp):
        tokens = []
        for A, now, old in zip(a, lp, cut(OLD), strict=True):
            for x, o in zip(now, old, strict=True):
                ratio = math.exp(float((x - o).detach()))
                is_kept = (A >= 0 and ratio <= 1.2) or (A <= 0 and ratio >= 0.8)
                tokens.append(-A * x * float(is_kept))
        return mean(tokens)

    lp = (OLD + MOVED).requires_grad_()
    value = gxpo.method("rec").loss(forest(), gxpo.PolicyTokens(lp, OLD)).value
    (actual,) = torch.autograd.grad(value, lp)
    ours = lp.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(wanted(cut(ours)), ours)
    assert actual.tolist() == pytest.approx(slope.tolist(), abs=1e-9)


def test_rover() -> None:
    """tinnerhrhe/ROVER@b0fa587 Countdown/verl/workers/actor/dp_actor.py, 541-560: the next token's change of value."""
    a, before, after = z(scale=False), OTHER, OTHER + 0.3 * MOVED.flip(0)

    def wanted(lp):
        tokens, u = [], cut(after - before)
        for A, now, old, change in zip(a, lp, cut(OLD), u, strict=True):
            for t, (x, o) in enumerate(zip(now, old, strict=True)):
                target = A + (float(change[t + 1]) if t + 1 < len(now) else 0.0)
                tokens.append((x - o - target) ** 2)
        return mean(tokens)

    agree("rover", wanted, outputs={"mean_logprob": after}, signals={"start_mean_logprob": before})


def test_papo() -> None:
    """MikeWangWZHL/PAPO@fb63bf4 verl/workers/actor/dp_actor.py, 289-383, and core_algos.py, 597-601: k3 up to 10."""
    a = z()

    def wanted(lp):
        rows, bonus, brake = [], [], []
        for A, now, old, hidden in zip(a, lp, cut(OLD), cut(OTHER + 3.0), strict=True):
            tokens = []
            for x, o, m in zip(now, old, hidden, strict=True):
                ratio, d = (x - o).exp(), (m - x).clamp(-20.0, 20.0)
                tokens.append(torch.maximum(-A * ratio, -A * ratio.clamp(0.8, 1.2)))
                bonus.append((d.exp() - d - 1).clamp(-10.0, 10.0))
                brake.append(-x)
            rows.append(mean(tokens))
        assert any(float(x.detach()) == 10 for x in bonus)
        return mean(rows) - 0.01 * mean(bonus) + 0.03 * mean(brake)

    agree("papo", wanted, signals={"masked_logprob": OTHER + 3.0})


def test_trpa() -> None:
    """XueruiSu/Trust-Region-Preference-Approximation@f372585 verl/trainer/ppo/core_algos.py, 285-350: 2.5 in the
    sigmoid, no beta without a pair. A micro-batch is a group here; at the old policy, where the KL is 0."""

    def wanted(lp):
        scores = [mean([x - o for x, o in zip(now, ref, strict=True)]) for now, ref in zip(lp, cut(OTHER), strict=True)]
        losses, at = [], 0
        for rows in GROUPS.values():
            mine = list(zip([r for r, _ in rows], scores[at : at + len(rows)], strict=True))
            at += len(rows)
            h = [2.5 * 0.1 * (x - y) for r, x in mine for q, y in mine if r > q]
            h = h or [x if r else -x for r, x in mine]
            losses.append(mean([-x.sigmoid().log() for x in h]))
        return mean(losses)

    agree("trpa", wanted, moved=0 * MOVED, reference_logprob=OTHER)


def test_trpa_levels_below_the_right_one_have_slope_one() -> None:
    """The same, 316-332: two wrong levels."""
    f = Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": "g", "id": f"t{i}", "prompt": [1], "reward": r, "success": r == 1.0}
            | {"turns": [{"action": [5], "logprob": [-1.0]}]}
            for i, r in enumerate((1.0, 0.2, 0.0))
        ]
    )
    lp, ref = torch.full((3,), -1.0, dtype=torch.float64), torch.tensor([-1.3, -0.8, -2.0], dtype=torch.float64)
    actual = gxpo.method("trpa").loss(f, gxpo.PolicyTokens(lp, lp, ref)).value
    s = [0.3, -0.2, 1.0]
    h = [0.25 * (s[0] - s[1]), 0.25 * (s[0] - s[2]), 0.1 * (s[1] - s[2])]
    assert float(actual) == pytest.approx(sum(math.log1p(math.exp(-x)) for x in h) / 3, abs=1e-9)


def test_gtpo() -> None:
    """winstonsmith1897/GTPO@5d33811 gtpo/gtpo_training.py, 320-375 and 243-270, without the division by conflicts.

    Every token id is its own here, so that no token is shared; the entropies of two answers are above 0.7.
    """
    entropy = torch.tensor(
        [0.2, 0.3, 0.1, 0.5, 0.6, 1.2, 0.9, 0.8, 0.4, 0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.5, 0.6, 0.9, 0.8],
        dtype=torch.float64,
    )
    a = z(scale=False)

    def wanted(lp):
        rows = []
        for A, now, h in zip(a, lp, cut(entropy), strict=True):
            H = float(sum(h)) / len(h)
            rows.append(mean([-(A - 0.1 * H if H <= 0.7 else 0.0) * x for x in now]))
        return mean(rows)

    lp = (OLD + MOVED).requires_grad_()
    value = gxpo.method("gtpo").loss(forest(), gxpo.PolicyTokens(lp, OLD), signals={"entropy": entropy}).value
    (actual,) = torch.autograd.grad(value, lp)
    ours = lp.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(wanted(cut(ours)), ours)
    assert actual.tolist() == pytest.approx(slope.tolist(), abs=1e-9)


def test_epo_weighs_the_penalty_alone() -> None:
    """WujiangXu/EPO@5b6fa98 verl/workers/actor/dp_actor.py, 300-350 and 774-826: the published penalty, every token of
    the second turn counted, at 3 of 8 epochs; c 0.001, s 1, 0.1 outside of half to one and a half of the history."""
    lengths = [(2, 3), (1, 2)]
    f = Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": "g", "id": f"t{i}", "prompt": [1], "reward": 1.0}
            | {"turns": [{"action": [4] * n, "logprob": [-1.0] * n} for n in row]}
            for i, row in enumerate(lengths)
        ]
    )
    term = "objective.add.entropy_band"
    m = gxpo.method("epo", {f"{term}.hinge": False, f"{term}.aggregate": "token_mean"}).fill(total_steps=8)
    history = (0.6, 0.9)
    for step in (1, 2, 3):
        m.adjust({"step": step, "entropy_turn_0": history[0], "entropy_turn_1": history[1]})
    h = torch.tensor([0.5, 1.2, 0.05, 0.8, 1.4, 0.31, 0.46, 0.44], dtype=torch.float64)
    turn = [0, 0, 1, 1, 1, 0, 1, 1]
    outside = [0.0 if 0.5 * history[k] < x < 1.5 * history[k] else 0.1 for x, k in zip(h.tolist(), turn, strict=True)]
    w = 1 - 0.2 * (1 - math.exp(-2 * 3 / 4))
    expected = -0.001 * (float(h.mean()) - 1.0 * w * sum(outside) / len(outside))
    lp = torch.full((8,), -1.0, dtype=torch.float64)
    actual = m.loss(f, gxpo.PolicyTokens(lp, lp, entropy=h)).value  # equal rewards: nothing but the term
    assert sum(outside) > 0 and float(actual) == pytest.approx(expected, abs=1e-9)


def test_edge_grpo() -> None:
    """ZhangXJ199/EDGE-GRPO@cbe13ca trl_edge/trainer/grpo_aha_trainer.py, 1217-1235, over the answers' own tokens."""
    entropy = torch.linspace(0.2, 0.9, len(OLD), dtype=torch.float64)
    a = z(eps=1e-4)
    own_cuts = [float(sum(h)) / len(h) for h in cut(entropy)]

    def wanted(lp):
        rows = []
        for A, now, old, H in zip(a, lp, cut(OLD), own_cuts, strict=True):
            B = A / H * float(np.mean(own_cuts))
            ratios = [(x - o).exp() for x, o in zip(now, old, strict=True)]
            rows.append(mean([-torch.minimum(x * B, x.clamp(0.8, 1.2) * B) for x in ratios]))
        return mean(rows)

    agree("edge_grpo@paper", wanted, signals={"entropy": entropy})


def test_tree_po_means_over_subtrees() -> None:
    """multimodal-art-projection/TreePO@f055523 verl/trainer/ppo/core_algos.py, 266-355, "average" as its script sets.

    Leaves p#0#0, p#0#1, p#1#0 and p#1#1: depth 0 is the prompt, depth 1 the first segment.
    """
    rewards, length = [1.0, 0.0, 1.0, 1.0], [3, 2, 3, 2]
    base = {"schema": "gxpo.rollouts/1", "group": "p", "prompt": [1]}
    f = Forest.from_records(
        [
            base
            | {
                "id": "a",
                "reward": 1.0,
                "turns": [{"action": [2], "logprob": [-1.0]}, {"action": [3, 4], "logprob": [-1.0] * 2}],
            },
            base
            | {"id": "b", "reward": 0.0, "fork": {"of": "a", "turn": 0}, "turns": [{"action": [5], "logprob": [-1.0]}]},
            base
            | {
                "id": "c",
                "reward": 1.0,
                "turns": [{"action": [6], "logprob": [-1.0]}, {"action": [7, 8], "logprob": [-1.0] * 2}],
            },
            base
            | {"id": "d", "reward": 1.0, "fork": {"of": "c", "turn": 0}, "turns": [{"action": [9], "logprob": [-1.0]}]},
        ]
    )
    scores = []
    for i, r in enumerate(rewards):
        below = rewards[:2] if i < 2 else rewards[2:]
        scores.append(np.mean([r - np.mean(rewards), r - np.mean(below)]))
    tokens = [s for s, n in zip(scores, length, strict=True) for _ in range(n)]
    expected = [(s - np.mean(tokens)) / math.sqrt(np.var(tokens, ddof=1) + 1e-8) for s in scores]
    actual = gxpo.method("tree_po@paper").advantages(f)
    assert [float(actual[f.path_of(r)][-1]) for r in range(4)] == pytest.approx(expected, abs=1e-9)
