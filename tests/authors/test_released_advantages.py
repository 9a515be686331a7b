"""Outcome advantages, times the weight of the group, as the authors' repositories compute them.

Loops over lists, written from the repositories that each method's `code` names; eps and ddof are theirs. The groups:
mixed ones of unequal size and length, one all right, one all wrong.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

import gxpo
from gxpo.forest.forest import Forest

GROUPS = {  # (verdict, tokens, cut off by the limit)
    "mixed": [(1, 3, False), (0, 2, False), (0, 5, False), (1, 7, False), (0, 4, True)],
    "right": [(1, 2, False), (1, 4, False), (1, 1, False)],
    "wrong": [(0, 6, False), (0, 2, False), (0, 2, False), (0, 3, False)],
    "short": [(1, 1, False), (0, 4, False)],
    "rare": [(0, 2, False), (0, 3, False), (1, 6, False), (0, 1, False), (0, 2, False), (0, 5, False)],
}
ROWS = [(g, *row) for g, rows in GROUPS.items() for row in rows]


def forest() -> Forest:
    return Forest.from_records(
        [
            {
                "schema": "gxpo.rollouts/1",
                "group": g,
                "id": f"t{i}",
                "prompt": [1],
                "reward": float(r),
                "success": bool(r),
            }
            | {"turns": [{"action": list(range(n)), "logprob": [-1.0] * n}], "truncated": cut}
            for i, (g, r, n, cut) in enumerate(ROWS)
        ]
    )


def weighted(method: str, settings: dict | None = None) -> list[float]:
    """The credit that reaches the loss, of each trajectory's first token."""
    m, f = gxpo.method(method, settings or {}), forest()
    credit = m.advantages(f)
    actual = credit * m.token_weights(f, credit)
    return [float(actual[f.path_of(r)][0]) for r in range(f.n_trajectories)]


def per_group(function) -> list[float]:
    """`function` of the group's verdicts, group after group."""
    return [x for rows in GROUPS.values() for x in function([float(r) for r, *_ in rows])]


def z(r: list[float], eps: float = 1e-6) -> list[float]:
    if len(r) == 1:
        return [r[0] / (1 + eps)]
    return [(x - np.mean(r)) / (np.std(r, ddof=1) + eps) for x in r]


def test_a_grae() -> None:
    """Yu7-code/A-GRAE@5f129ef verl/trainer/ppo/core_algos.py, 196-226, where its setting is on (2.0)."""
    M = float(np.mean([np.mean([r for r, *_ in rows]) for rows in GROUPS.values()]))

    def group(r):
        p, out = np.mean(r), []
        for a in z(r):
            hard, easy = 0.5 * a / (math.sqrt(p) + 1e-6), 0.5 * a / (1 - math.sqrt(p) + 1e-6)
            a = (1 - M) * easy + M * hard
            out.append(a * min(1, M) if a > 0 else a)
        return out

    assert weighted("a_grae") == pytest.approx(per_group(group), abs=1e-9)


def test_adora() -> None:
    """ShadeCloak/ADORA@c518485 ADORA/verl/trainer/ppo/core_algos.py, 110-180: answers at the limit are in no mean."""
    expected = []
    for rows in GROUPS.values():
        right = [n for r, n, _ in rows if r]
        wrong = [n for r, n, cut in rows if not r and not cut]
        longest = max(right) if right else -math.inf
        pays = longest > (np.mean(wrong) if wrong else -math.inf)
        expected += [a * (1.0 if pays else 0.1) for a in z([float(r) for r, *_ in rows])]
    assert weighted("adora") == pytest.approx(expected, abs=1e-9)


def test_bnpo() -> None:
    """changyi7231/BNPO@a9c51b9 recipe/bnpo/src/bnpo_ray_trainer.py, 133-165."""
    p = [float(np.mean([r for r, *_ in rows])) for rows in GROUPS.values()]
    m, v = float(np.mean(p)), float(np.var(p, ddof=1))
    k = m * (1 - m) / v - 1
    alpha, beta = max(1.0, 1 + k * m / 3), max(1.0, 1 + k * (1 - m) / 3)
    full_gamma = math.gamma(alpha) * math.gamma(beta) / math.gamma(alpha + beta)

    def group(r):
        q = float(np.mean(r))
        density = q ** (alpha - 1) * (1 - q) ** (beta - 1) / full_gamma
        return [min(1 / density if density else 1e6, 1e6) * (x - q) for x in r]

    assert alpha > 1 and weighted("bnpo") == pytest.approx(per_group(group), abs=1e-9)


def test_dgpo() -> None:
    """AMAP-ML/MathForge@83edda0 trl-0.20.0/trl/trainer/grpo_trainer.py, 1690-1735 on one process: all wrong is 1."""
    p = {g: float(np.mean([r for r, *_ in rows])) for g, rows in GROUPS.items()}
    mixed = [g for g in GROUPS if 0 < p[g] < 1]
    tokens = {g: sum(n for _, n, _ in rows) for g, rows in GROUPS.items()}
    rest = sum(tokens.values()) / sum(tokens[g] for g in mixed)
    full_total = sum(math.exp(-p[g] / 2) for g in mixed)
    expected = []
    for g, rows in GROUPS.items():
        r = [float(x) for x, *_ in rows]
        extent = sum(abs(x - p[g]) for x in r)
        w = len(mixed) * math.exp(-p[g] / 2) / full_total if g in mixed else 1.0
        expected += [len(r) * (x - p[g]) / (extent + 1e-4) * rest * w for x in r]
    assert weighted("dgpo_math") == pytest.approx(expected, abs=1e-9)


def test_s_grpo() -> None:
    """shenpeijun0212/S-GRPO@75c3540 train/train_S-GRPO.py, 157-210 and 729-770, with p = 0.10."""

    def group(r):
        n, k, q = len(r), sum(x > 0 for x in r), 0.1
        share = k / n
        t = max(0.0, min(1.0, (share - q) / (1 - 2 * q)))
        below = math.sqrt(share * (1 - share) + 1e-8) * math.sqrt(t * (1 - t) + 1e-8)
        w = (1 - 2 * q) * t * (1 - t) / below
        return [(x - np.mean(r)) * w / (np.std(r, ddof=1) + 1e-8) for x in r]

    assert weighted("s_grpo@paper") == pytest.approx(per_group(group), abs=1e-9)


def test_ngrpo() -> None:
    """nangongrui-ngr/NGRPO@e7a3804 verl/trainer/ppo/core_algos.py, 182-203."""

    def group(r):
        more = [*r, 1.0]
        return [(x - np.mean(more)) / (np.std(more, ddof=1) + 1e-6) for x in r]

    assert weighted("ngrpo") == pytest.approx(per_group(group), abs=1e-9)


def test_mc_grpo() -> None:
    """lotusroot-kim/MC-GRPO@da07745 src/open_r1/grpo_trainer_math.py, 2033-2070: torch's median, the lower one."""

    def group(r):
        middle = sorted(r)[(len(r) - 1) // 2]
        spread = sorted(abs(x - middle) for x in r)[(len(r) - 1) // 2]
        return [(x - middle) / (spread + 1e-3) for x in r]

    m, f = gxpo.method("mc_grpo"), forest()
    credit = m.advantages(f)
    actual = [float(credit[f.path_of(r)][0]) for r in range(f.n_trajectories)]
    assert actual == pytest.approx(per_group(group), abs=1e-9)
    trained = m.token_weights(f, credit) > 0
    kept_totals = {g: sum(bool(trained[f.path_of(r)][0]) for r in range(len(ROWS)) if ROWS[r][0] == g) for g in GROUPS}
    assert kept_totals == {g: len(rows) - 1 for g, rows in GROUPS.items()}


@pytest.mark.parametrize("k", [1, 2, 3])
def test_pass_at_k(k: int) -> None:
    """RUCAIBox/Passk_Training@c3ba575 code/passk_adv.py, 10-20; here by counting subsets instead of binomials."""

    def share(pool, size):
        return sum(not any(s) for s in combinations(pool, size)) / math.comb(len(pool), size)

    def group(r):
        if len(r) < k:
            return [0.0] * len(r)
        rho = 1 - share(r, k)
        sigma = math.sqrt(rho * (1 - rho)) + 1e-6
        others = share([*[0.0] * (r.count(0.0) - 1), *[1.0] * r.count(1.0)], k - 1) if 0.0 in r else 0.0
        return [(1 - rho) / sigma if x else (1 - rho - others) / sigma for x in r]

    assert weighted("passk", {"credit.k": k}) == pytest.approx(per_group(group), abs=1e-9)


def test_cppo_keeps_the_largest() -> None:
    """lzhxmu/CPPO@52faeb3 src/open_r1/grpo_trainer_gsm.py, 900-921, where the batch of a process is one group."""
    rewards = [0.1, 0.9, 0.5, 0.45, 0.0, 1.0]
    f = Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": "a", "id": f"t{i}", "prompt": [1], "reward": x}
            | {"turns": [{"action": [5, 6][: 1 + i % 2], "logprob": [-1.0] * (1 + i % 2)}]}
            for i, x in enumerate(rewards)
        ]
    )
    a = z(rewards, 1e-6)
    dropped = sorted(range(6), key=lambda i: abs(a[i]))[: int(6 * 0.5)]
    m = gxpo.method("cppo")
    weight = m.token_weights(f, m.advantages(f))
    assert [float(weight[f.path_of(r)][0]) for r in range(6)] == [0.0 if i in dropped else 2.0 for i in range(6)]


def test_gdpo_over_trajectories_and_over_tokens() -> None:
    """NVlabs/GDPO@b080e63: trl-0.18.0-gdpo grpo_trainer.py, 1221-1250, and verl-GDPO ray_trainer.py, 175-205."""
    rows = [("a", 1.0, 0.0, 2), ("a", 0.0, 1.0, 5), ("a", 0.0, 0.0, 1), ("b", 1.0, 1.0, 3), ("b", 0.0, 1.0, 4)]
    f = Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": g, "id": f"t{i}", "prompt": [1], "reward": r + s}
            | {"rewards": {"correct": r, "format": s}, "turns": [{"action": [7] * n, "logprob": [-1.0] * n}]}
            for i, (g, r, s, n) in enumerate(rows)
        ]
    )
    both = []
    for name, eps in (("trl", 1e-4), ("verl", 1e-6)):
        total = []
        for g in "ab":
            mine = [row for row in rows if row[0] == g]
            total += [x + y for x, y in zip(z([m[1] for m in mine], eps), z([m[2] for m in mine], eps), strict=True)]
        if name == "trl":
            both.append([(x - np.mean(total)) / (np.std(total, ddof=1) + 1e-4) for x in total])
        else:
            tokens = [x for x, row in zip(total, rows, strict=True) for _ in range(row[3])]
            scale = math.sqrt(np.var(tokens, ddof=1) + 1e-8)
            both.append([(x - np.mean(tokens)) / scale for x in total])
    m = gxpo.method("gdpo_multi")
    actual = m.advantages(f)
    assert [float(actual[f.path_of(r)][0]) for r in range(5)] == pytest.approx(both[0], abs=1e-9)
    actual = gxpo.method("gdpo_multi", {"credit.batch_unit": "tokens"}).advantages(f)
    # the port's eps is 1e-6 in the group and inside the root over the tokens; gxpo has one eps, 1e-4, for both
    assert [float(actual[f.path_of(r)][0]) for r in range(5)] == pytest.approx(both[1], abs=1e-3)


def test_dr_mas_counts_calls() -> None:
    """langfengQ/DrMAS@19c632b verl/trainer/ppo/core_algos.py, 535-566 with group_by_agent_id; single calls differ."""
    calls = {"t0": ("ab", 1.0), "t1": ("aab", 0.0), "t2": ("aaab", 0.5)}  # who acts in which turn
    f = Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": "g", "id": t, "prompt": [1], "reward": r}
            | {"turns": [{"agent": who, "action": [4], "logprob": [-1.0]} for who in agents]}
            for t, (agents, r) in calls.items()
        ]
    )
    actual = gxpo.method("dr_mas").advantages(f)
    for row, (agents, r) in enumerate(calls.values()):
        for turn, who in enumerate(agents):
            pool = [q for a, q in calls.values() for w in a if w == who]
            expected = (r - np.mean(pool)) / (np.std(pool, ddof=1) + 1e-6)
            assert float(actual[f.path_of(row)][turn]) == pytest.approx(expected, abs=1e-9)


def test_ospo_agents_of_one_time() -> None:
    """RS2002/OSPO@02ed2da OSPO/Platform.py, 104-122: std over the fleet's earnings so far, of the population."""
    steps = [[1.0, 0.0, 3.0], [0.5, 2.0, 2.0]]  # reward of each agent at each time; all act
    f = Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": "g", "id": f"t{i}", "prompt": [1], "reward": 0.0}
            | {"turns": [{"action": [3], "logprob": [-1.0], "reward": steps[t][i]} for t in range(2)]}
            for i in range(3)
        ]
    )
    actual, earned, before = gxpo.method("ospo").advantages(f), np.zeros(3), 0.0
    for t, r in enumerate(steps):
        earned = earned + np.array(r)
        expected = (np.array(r) - np.mean(r)) / (np.std(r) + 1e-8) - (np.std(earned) - before)
        before = float(np.std(earned))
        assert [float(actual[f.path_of(i)][t]) for i in range(3)] == pytest.approx(expected.tolist(), abs=1e-9)


def test_anytime_reasoner() -> None:
    """sail-sg/AnytimeReasoner@7e3f5bb verl/verl/trainer/ppo/brpo.py, 514-567, two thinkings of one task, S = 3."""
    from gxpo.algorithms.credit.budget_relative import budget_relative

    score, P, S = [[0.0, 0.5, 1.0], [0.25, 0.25, 0.5]], [0.2, 0.3, 0.5], 3
    expected = []
    for g in range(2):
        for s in range(S):
            gain = sum(P[j] * score[g][j] for j in range(s, S))
            v2 = sum(sum(P[j] * other[j] for j in range(s, S)) for other in score) / 2
            v1 = 0.0
            if s:
                v1 = sum(2**j * score[g][j] for j in range(s)) / sum(2**j for j in range(s)) * sum(P[s:])
            expected.append(gain - (s * v1 + (S - s) * v2) / S)
    actual = budget_relative(
        torch.tensor(score), torch.zeros(2, dtype=torch.int64), torch.tensor(P, dtype=torch.float64)
    )
    assert actual.flatten().tolist() == pytest.approx(expected, abs=1e-9)


def test_poad() -> None:
    """morning9393/ADRL@5ec1aa5 mappo/utils/language_buffer.py, 134-166, mappo/trainers/llm_trainer_tppo.py, 81-85.

    Their std over the batch is the population's, gxpo's has one degree of freedom: 1 / sqrt(1 - 1 / n) apart.
    """
    turns, values, rewards = [2, 3, 1], [0.4, -0.2, 0.1, 0.7, -0.5, 0.3], [0.0, 1.0, -0.5]
    f = Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": "g", "id": "t", "prompt": [1], "reward": 0.5}
            | {
                "turns": [
                    {"action": [4] * n, "logprob": [-1.0] * n, "reward": r} for n, r in zip(turns, rewards, strict=True)
                ]
            }
        ]
    )
    gamma = lam = 0.95
    first, expected, gae = [0, 2, 5, None], [0.0] * 6, 0.0
    for turn in (2, 1, 0):
        begin, after = first[turn], first[turn + 1]
        for j in reversed(range(begin, begin + turns[turn])):
            if j == begin + turns[turn] - 1:
                beyond = values[after] if after is not None else 0.0
                going_on = 1.0 if after is not None else 0.0
                gae = rewards[turn] + gamma * beyond - values[j] + gamma * lam * going_on * gae
            else:
                gae = values[j + 1] - values[j] + lam * gae
            expected[j] = gae
    signals = {"value": torch.tensor(values, dtype=torch.float64)}
    plain = gxpo.method("poad").advantages(f, signals)
    assert plain.tolist() == pytest.approx(expected, abs=1e-9)
    scaled = [(x - np.mean(expected)) / (np.std(expected) + 1e-8) * math.sqrt(5 / 6) for x in expected]
    assert gxpo.method("poad@paper").advantages(f, signals).tolist() == pytest.approx(scaled, abs=1e-7)
