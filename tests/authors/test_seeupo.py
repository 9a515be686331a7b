"""SeeUPO as in modelscope/AgentEvolver@e59dea4 (branch seeupo), restated.

beyondagent/module/trainer/ba_ray_trainer.py: compute_grpo_outcome_advantage_local with special_norm (the outcome less
its group's mean, over the batch's sample std, held in +-3), update_ratios (both clips), get_agent_update_order
("reverse"), and the loop, in which each turn's old log-probs are recomputed before its step. Launch files:
launcher/qwen3_bfcl/qwen3-seeupo-bfcl.yaml (both widths 0.2, one mini-batch, norm_adv_by_std_in_grpo False).
"""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
import torch

import gxpo
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import StepInfo

F64 = torch.float64


def record(group: str, name: str, lengths: list[int], reward: float) -> dict[str, Any]:
    turns = [{"observation": [50 + i], "action": [5 + i] * n, "logprob": [-1.0] * n} for i, n in enumerate(lengths)]
    return {"schema": "gxpo.rollouts/1", "group": group, "id": name, "prompt": [1], "turns": turns, "reward": reward}


class Drifting:
    """A step moves every log-prob of the rollouts by amounts of its own; what it was given is kept."""

    def __init__(self, forest: Forest, moves: list[torch.Tensor]) -> None:
        self.now, self.moves, self.given = torch.zeros(forest.n_entries, dtype=F64), list(moves), []
        self.old: torch.Tensor | None = None
        self.divided_by: list[torch.Tensor] = []

    def logprob(self) -> torch.Tensor:
        self.old = self.now.clone() if self.old is None else self.old
        return self.now.clone()

    def renew(self) -> None:
        self.old = self.now.clone()

    def step(self, forest: Forest, credit: torch.Tensor, weight: torch.Tensor, rows: Any = None) -> StepInfo:
        assert self.old is not None
        self.given.append((credit * weight)[forest.path_trainable].tolist())
        self.divided_by.append(self.old)
        self.now = self.now + self.moves.pop(0)
        return StepInfo(empty=False)


def test_steps_and_credit_are_theirs() -> None:
    """Three turns each, of unequal lengths. Drifts are large: the clip of a turn and the clip of the product act."""
    rng = random.Random(4)
    shape = {"g": [[2, 1, 3], [1, 4, 2], [3, 3, 1]], "h": [[1, 1, 1], [2, 5, 2]]}
    rewards = {"g": [1.0, 0.0, 0.25], "h": [0.0, 1.0]}
    rows = [
        record(g, f"{g}{i}", lengths, rewards[g][i]) for g, group in shape.items() for i, lengths in enumerate(group)
    ]
    forest = Forest.from_records(rows)
    flat = [lengths for group in shape.values() for lengths in group]
    moves = [torch.tensor([rng.uniform(-0.4, 0.5) for _ in range(forest.n_entries)], dtype=F64) for _ in range(3)]
    m = gxpo.method("seeupo")
    learner = Drifting(forest, moves)
    credit = m.advantages(forest)
    m.update.run(forest, credit, m.token_weights(forest, credit), learner)  # type: ignore[arg-type]

    # their advantages: one a trajectory, the same in every turn
    centred = [r - statistics.fmean(rs) for rs in rewards.values() for r in rs]
    spread, middle = statistics.stdev(centred), statistics.fmean(centred)
    a = [min(max((x - middle) / spread, -3.0), 3.0) for x in centred]
    # their loop, on log-probs by (trajectory, turn, token)
    begins = [[sum(map(sum, flat[:i])) + sum(lengths[:k]) for k in range(3)] for i, lengths in enumerate(flat)]
    ratios, now = [1.0] * 5, [0.0] * forest.n_entries
    for n, turn in enumerate([2, 1, 0]):
        old = list(now)
        expected = [ratios[i] * a[i] for i in range(5) for _ in range(flat[i][turn])]
        assert learner.given[n] == pytest.approx(expected, abs=1e-9)
        assert learner.divided_by[n].tolist() == pytest.approx(old, abs=1e-12)  # so that the ratio is 1
        now = [x + float(move) for x, move in zip(now, moves[n], strict=True)]
        for i in range(5):
            tokens = range(begins[i][turn], begins[i][turn] + flat[i][turn])
            mean = statistics.fmean(now[p] - old[p] for p in tokens)
            own_math = min(max(math.exp(min(max(mean, -10.0), 10.0)), 0.8), 1.2)
            ratios[i] = min(max(ratios[i] * own_math, 0.8), 1.2)
    assert any(x in (0.8, 1.2) for x in ratios) and any(0.8 < x < 1.2 for x in ratios)


def test_the_advantage_is_held_at_three() -> None:
    """Eleven trajectories of which one differs: (1 - 1/11) over the std .3015 is 3.015."""
    forest = Forest.from_completions([[1]], [[[2 + i] for i in range(11)]], [1.0] + [0.0] * 10)
    actual = gxpo.method("seeupo").advantages(forest).tolist()
    spread = statistics.stdev([1.0] + [0.0] * 10)
    assert (1 - 1 / 11) / spread > 3.0
    assert actual == pytest.approx([3.0] + [-1 / 11 / spread] * 10, abs=1e-9)


def test_seeupo_turn_and_token_ratios_agree_on_policy() -> None:
    """Why a loss_mode that is not read does no harm: at ratio 1 both slopes are A / length / rows."""
    forest = Forest.from_records([record("g", "a", [2, 3], 1.0), record("g", "b", [4], 0.0)])
    slopes = []
    for ratio in ("turn", "token"):
        m = gxpo.method("seeupo", {"objective.ratio": ratio})
        at = torch.full((forest.n_entries,), -1.0, dtype=F64, requires_grad=True)
        m.loss(forest, gxpo.PolicyTokens(at, at.detach(), proximal_logprob=at.detach())).value.backward()
        assert at.grad is not None
        slopes.append(at.grad.tolist())
    assert slopes[0] == pytest.approx(slopes[1], abs=1e-12) and slopes[0][0] != 0.0
