"""Rank-GRPO: hits of a list's items, advantages rank by rank, the ratio of an item."""

from __future__ import annotations

import pytest
import torch

import gxpo
from gxpo.algorithms.credit.piece_relative import rank_relative, rank_returns
from gxpo.algorithms.objectives.surrogate import segment
from gxpo.algorithms.signals.texts import item_hits
from gxpo.forest.forest import Forest

HITS = torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 0]], dtype=torch.float64)


def lists(segments, group="g"):
    """One answer for each row of `segments`, the item of each of its tokens."""
    return Forest.from_records(
        {
            "schema": "gxpo.rollouts/1", "group": group, "id": str(i), "prompt": [1], "reward": 0.0,
            "turns": [{"action": list(range(2, 2 + len(row))), "segments": [row.index(k) for k in sorted({*row})],
                       "logprob": [-1.0] * len(row)}],
        }
        for i, row in enumerate(segments)
    )  # fmt: skip


def test_returns_with_the_logarithmic_decay() -> None:
    # discounts 1, 1 / log2 3 = .63093, 1 / log2 4 = .5, .430677
    rows = rank_returns(HITS, "log").tolist()
    assert rows[0] == pytest.approx([1.5, 0.5, 0.5, 0.0])
    assert rows[1] == pytest.approx([0.63093, 0.63093, 0.0, 0.0], abs=1e-5)


def test_ranks_are_compared_with_the_same_rank() -> None:
    forest = lists([[0, 0, 1, 2, 3], [0, 1, 2, 3]])
    hit = torch.tensor([1.0, 1, 0, 1, 0, 0, 1, 0, 0])
    # ranks of two values 1 and 0: +-.5 / (.707107 + 1e-4) = +-.707007
    assert rank_relative(hit, forest, items=4).tolist() == pytest.approx(
        [0.707007, 0.707007, -0.707007, 0.707007, 0.0, -0.707007, 0.707007, -0.707007, 0.0], abs=1e-6
    )


def test_a_missing_rank_counts_as_a_miss() -> None:
    forest = lists([[0, 1], [0]])
    assert rank_relative(torch.tensor([1.0, 1.0, 1.0]), forest, items=2).tolist() == pytest.approx([0, 0.707007, 0],
                                                                                                  abs=1e-6)  # fmt: skip


def test_items_beyond_the_last_rank_have_no_advantage() -> None:
    assert rank_relative(torch.tensor([1.0, 1.0, 0.0]), lists([[0, 1], [0]]), items=1).tolist()[1] == 0.0


def test_the_ratio_of_an_item_is_its_geometric_mean() -> None:
    log_ratio = torch.tensor([0.1, -0.1, 0.3, 0.0], dtype=torch.float64, requires_grad=True)
    ratio = segment(log_ratio, torch.tensor([0, 0, 0, 1])).exp()
    assert ratio.tolist() == pytest.approx([1.105171] * 3 + [1.0], abs=1e-6)
    ratio.sum().backward()
    assert log_ratio.grad.tolist() == pytest.approx([1.105171] * 3 + [1.0], abs=1e-6)
    chunk = segment(torch.tensor([0.1, -0.2, 0.3]), torch.zeros(3).long()).exp()  # Chunk-GRPO: exp(.066667)
    assert chunk.tolist() == pytest.approx([1.068939] * 3, abs=1e-6)


def test_the_loss_reads_the_segments_of_the_rollouts() -> None:
    forest = lists([[0, 0, 1], [0, 1, 1]])
    logprob = torch.tensor([-0.9, -1.1, -1.0, -1.0, -0.8, -1.0], dtype=torch.float64)
    policy = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob)
    keys = {"objective.ratio": "segment", "objective.surrogate": "unclipped", "objective.aggregate": "token_mean"}
    loss = gxpo.method("grpo", keys).loss(forest, policy, advantages=torch.tensor([0.0, 0, 0, 0, 1, 1])).value
    # the item of the second answer: e^((.2 + 0) / 2) = 1.105171 on each of two tokens of six
    assert float(loss) == pytest.approx(-2 * 1.105171 / 6, abs=1e-6)


def test_hits_are_lines_of_the_reference_once() -> None:
    forest, texts = lists([[0, 1, 2, 3]]), {2: "Alien\n", 3: " blade  RUNNER\n", 4: "alien\n", 5: "Dune"}
    hits = item_hits(forest, lambda ids: "".join(texts[i] for i in ids), lambda forest: ["Alien\nBlade Runner\n\n"])
    assert hits.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert item_hits(forest, lambda ids: "x", lambda forest: [None]).tolist() == [0.0] * 4
