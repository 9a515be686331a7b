"""The estimator of progress: its loss by hand, what it learns, and that a restored one goes on alike."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.learning.llamas import clean_llama

from gxpo.algorithms.signals.progress_estimator import ProgressEstimator, contribution, redistribution_loss
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner

F64 = torch.float64


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


# ---------------------------------------------------------------- worked numbers
def test_card_loss() -> None:
    """c = [.1, .3, .5], R = 1: (.9 - 1)^2 = .01; its slope is 2 * -.1 at every turn."""
    share = column(0.1, 0.3, 0.5).requires_grad_()
    loss = redistribution_loss(share, torch.zeros(3).long(), column(1.0), torch.tensor([True]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.01)
    assert share.grad is not None and share.grad.tolist() == pytest.approx([-0.2] * 3)


def test_the_loss_is_a_mean_over_those_that_count() -> None:
    """Sums [.5, 1, 3], outcomes [1, 1, 0], the last not counted: (.25 + 0) / 2."""
    owner = torch.tensor([0, 0, 1, 2])
    where = torch.tensor([True, True, False])
    loss = redistribution_loss(column(0.2, 0.3, 1, 3), owner, column(1, 1, 0), where)
    assert float(loss) == pytest.approx(0.125)


def test_a_contribution_by_hand() -> None:
    """x = [1, 3], middle [0, 1], spread [1, 2]: [1, 1]; an inner unit of weights [0, 1], bias 0; gelu(1) = .841345."""
    net = {"inner": column(0, 1)[None], "inner_bias": column(0), "outer": column(2), "outer_bias": column(0.5)[0]}
    net |= {"middle": column(0, 1), "spread": column(1, 2)}
    assert float(contribution(column(1, 3)[None], net)) == pytest.approx(2 * 0.8413447 + 0.5, abs=1e-5)
    net["spread"] = column(1, torch.inf)  # a component that never varied
    assert float(contribution(column(1, 9)[None], net)) == pytest.approx(0.5)


# ---------------------------------------------------------------- the part
def forest_of(rows: list[tuple[float | None, list[int]]], **fields: Any) -> Forest:
    """(outcome, a token for each turn) of each trajectory; every turn is that token three times."""
    return Forest.from_records(
        [
            {
                "schema": "gxpo.rollouts/1",
                "group": "g",
                "id": f"t{i}",
                "prompt": [1],
                "turns": [{"observation": [2], "action": [t] * 3} for t in turns],
                "reward": reward,
                **fields,
            }
            for i, (reward, turns) in enumerate(rows)
        ]
    )


@pytest.fixture(scope="module")
def tools() -> Any:
    return SimpleNamespace(learner=TorchLearner(clean_llama(), lr=1e-3), decode=str, blank_id=0, step=1, seed=5)


def taught(forest: Forest, tools: Any, steps: int, **fields: Any) -> tuple[ProgressEstimator, list[dict[str, float]]]:
    part = ProgressEstimator(**{"lr": 0.02, "updates": 4, "min_rows": 0, **fields})
    figures = []
    for _ in range(steps):
        part.compute(forest, {}, tools)  # type: ignore[arg-type]  # no signals are read
        figures.append(part.learn(forest, {}, tools))  # type: ignore[arg-type]
    return part, figures


def test_shares_begin_at_zero_and_come_to_add_up_to_the_outcome(tools: Any) -> None:
    """A turn of token 7 is worth 1, others nothing: sums reach the outcomes, and the shares tell the turns apart."""
    rng = random.Random(1)
    rows = [[rng.choice([7, 8, 9]) for _ in range(rng.randint(1, 3))] for _ in range(24)]
    forest = forest_of([(float(turns.count(7)), turns) for turns in rows])
    part = ProgressEstimator(min_rows=0)
    assert part.compute(forest, {}, tools)["progress"].tolist() == [0.0] * forest.n_steps  # type: ignore[arg-type]
    part, figures = taught(forest, tools, 3, updates=150)
    losses = [f["progress_loss"] for f in figures]
    assert losses[0] == pytest.approx(float(forest.outcome.square().mean())) and losses[-1] < 0.05 * losses[0]
    assert figures[-1]["progress_explained"] > 0.9 > figures[0]["progress_explained"]
    share = part.compute(forest, {}, tools)["progress"]  # type: ignore[arg-type]
    total = torch.zeros(24, dtype=F64).index_add_(0, forest.step_trajectory, share)
    assert float((total - forest.outcome).abs().max()) < 0.4
    seven = torch.tensor([t == 7 for turns in rows for t in turns])
    assert float(share[seven].mean()) > 0.6 > 0.4 > float(share[~seven].mean())


def test_the_first_step_of_adam_by_hand(tools: Any) -> None:
    """With the outer layer 0 only it has a slope, and Adam's first step is lr against its sign; shares are 0, so the
    bias's slope is mean over trajectories of 2 (0 - R) * turns < 0."""
    forest = forest_of([(1.0, [7, 8]), (0.5, [9])])
    part, _ = taught(forest, tools, 1, updates=1, lr=0.01)
    assert float(part.memory["outer_bias"]) == pytest.approx(0.01)
    fresh = ProgressEstimator()
    fresh.compute(forest, {}, tools)  # type: ignore[arg-type]
    assert torch.equal(part.memory["inner"], fresh.memory["inner"]) and float(part.memory["steps"]) == 1


def test_the_share_is_read_at_the_turns_last_token(tools: Any) -> None:
    forest = forest_of([(1.0, [7, 8]), (0.0, [9])])
    part, _ = taught(forest, tools, 3)
    hidden = tools.learner.hidden(forest).double()
    for s, share in enumerate(part.compute(forest, {}, tools)["progress"].tolist()):  # type: ignore[arg-type]
        last = max(
            t for t, step in zip(forest.path_token.tolist(), forest.path_step.tolist(), strict=True) if step == s
        )
        assert share == pytest.approx(float(contribution(hidden[last][None], part.memory)), abs=1e-12)


def test_before_fitting_the_last_turn_has_the_outcome(tools: Any) -> None:
    """Two trajectories a step, min_rows 4: two steps with the outcome on the last turn, then the estimator's shares."""
    forest = forest_of([(1.0, [7, 8]), (0.5, [9]), (None, [9, 9])])
    part = ProgressEstimator(min_rows=4, updates=2)
    used = []
    for _ in range(3):
        share = part.compute(forest, {}, tools)["progress"].tolist()  # type: ignore[arg-type]
        used.append(part.learn(forest, {}, tools)["progress_used"])  # type: ignore[arg-type]
        assert (share == [0.0, 1.0, 0.5, 0.0, 0.0]) == (used[-1] == 0)
    assert used == [0.0, 0.0, 1.0]


def test_the_buffer_holds_the_newest(tools: Any) -> None:
    """Of three steps of two, buffer 3: the last of the second step, and the third's."""
    part = ProgressEstimator(buffer=3, min_rows=0, updates=1)
    for k in range(3):
        forest = forest_of([(float(k), [7, 8]), (k + 0.5, [9])])
        part.compute(forest, {}, tools)  # type: ignore[arg-type]
        part.learn(forest, {}, tools)  # type: ignore[arg-type]
    assert part.memory["outcome"].tolist() == [1.5, 2.0, 2.5] and part.memory["owner"].tolist() == [0, 1, 1, 2]
    hidden = tools.learner.hidden(forest)
    last = [max(forest.path_token[forest.path_step == s].tolist()) for s in range(3)]
    assert torch.equal(part.memory["features"][1:], hidden[last].double())


def test_who_is_unscored_or_not_compared_teaches_nothing(tools: Any) -> None:
    forest = forest_of([(1.0, [7, 8])])
    first, _ = taught(forest, tools, 2)
    second, _ = taught(forest_of([(1.0, [7, 8]), (None, [9, 9])]), tools, 2)
    assert all(torch.allclose(first.memory[k], second.memory[k], atol=1e-9) for k in first.memory)
    apart = forest_of([(1.0, [7])], compared=False)
    part, figures = taught(apart, tools, 1)
    assert figures == [{}] and float(part.memory["steps"]) == 0


def test_a_turn_without_tokens_has_no_share(tools: Any) -> None:
    record = {"schema": "gxpo.rollouts/1", "group": "g", "id": "t", "prompt": [1], "reward": 1.0}
    turns = [{"observation": [2], "action": [7]}, {"observation": [2], "action": []}]
    forest = Forest.from_records([{**record, "turns": turns}])
    part, _ = taught(forest, tools, 3)
    share = part.compute(forest, {}, tools)["progress"]  # type: ignore[arg-type]
    assert float(share[0]) != 0 and float(share[1]) == 0


def test_a_restored_estimator_goes_on_alike(tools: Any) -> None:
    forest = forest_of([(1.0, [7, 8]), (0.0, [9]), (0.5, [8])])
    part, _ = taught(forest, tools, 2)
    other = ProgressEstimator(lr=0.02, updates=4, min_rows=0)
    other.load_tensors({k: v.clone() for k, v in part.tensors().items()})
    for _ in range(2):
        one, two = part.compute(forest, {}, tools), other.compute(forest, {}, tools)  # type: ignore[arg-type]
        assert torch.equal(one["progress"], two["progress"])
        assert part.learn(forest, {}, tools) == other.learn(forest, {}, tools)  # type: ignore[arg-type]
    assert all(torch.equal(part.memory[k], other.memory[k]) for k in part.memory)


def test_bad_settings_are_refused() -> None:
    for wrong in ({"width": 0}, {"updates": 0}, {"lr": 0.0}, {"min_rows": 9, "buffer": 8}):
        with pytest.raises(ConfigError, match="progress_estimator"):
            ProgressEstimator(**wrong)  # type: ignore[arg-type]
