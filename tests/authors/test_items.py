"""Items of a list, as the authors' repository computes them: loops over lists, ranks and tokens."""

from __future__ import annotations

import math

import torch
from tests.authors.test_released_steps import agree, z

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.forest.forest import Forest

ITEMS = [[0, 0, 1, 2, 2], [0, 1, 1], [0, 0, 0, 1, 2], [0]]  # the item of each token, of four lists
HITS = [[1.0, 0.0, 1.0], [0.0, 1.0], [0.0, 1.0, 1.0], [1.0]]


def forest() -> Forest:
    return Forest.from_records(
        {
            "schema": "gxpo.rollouts/1", "group": "g", "id": str(i), "prompt": [1], "reward": 0.0,
            "turns": [{"action": list(range(2, 2 + len(row))), "segments": [row.index(k) for k in sorted({*row})],
                       "logprob": [-1.0 - 0.1 * t for t in range(len(row))]}],
        }
        for i, row in enumerate(ITEMS)
    )  # fmt: skip


def test_rank_grpo() -> None:
    """yaochenzhu/Rank-GRPO@0808d82 libs/trl/rank_grpo_trainer.py, 1799-1850 and 2024-2086, and `reward_func_exp_inf`: a
    row of rec_num rewards a list, 0 where it has no such rank; ratios of items; a mean over tokens (`bnpo`)."""
    n_ranks, rolled = 3, forest()
    table = [[row[k] if k < len(row) else 0.0 for k in range(n_ranks)] for row in HITS]
    old = rolled.path_behaviour_logprob.split([len(row) for row in ITEMS])

    def wanted(rows):
        terms = []
        for i, row in enumerate(ITEMS):
            for item in row:
                tokens = [t for t, other in enumerate(row) if other == item]
                rho = torch.exp(sum((rows[i][t] - old[i][t] for t in tokens), torch.zeros(())) / len(tokens))
                a = z(table[i][item], [other[item] for other in table], 1, 1e-4)
                terms.append(-torch.minimum(a * rho, a * rho.clamp(1 - 0.06, 1 + 0.08)))
        return sum(terms) / len(terms)

    hit_P = torch.tensor([HITS[i][item] for i, row in enumerate(ITEMS) for item in row], dtype=torch.float64)
    method = gxpo.method("rank_grpo", {"credit.items": n_ranks})

    class Given:
        """The method, with the signal that its segmenter and texts would give."""

        @staticmethod
        def loss(rolled, policy):
            return method.loss(rolled, policy, signals=Signals.of(rolled, {"item_hit": hit_P}, method.axes))

    gap = [0.05 * math.sin(3.0 * p) for p in range(rolled.n_entries)]
    agree(Given, rolled, gap, wanted)
