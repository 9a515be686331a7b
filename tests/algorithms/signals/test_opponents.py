"""Opponents (MNPO): the card's mixture, which policies are kept, a checkpoint."""

from __future__ import annotations

import pytest
import torch
from tests.battery import battery
from tests.learning.llamas import clean_llama

from gxpo.algorithms.objectives.preference_pairs import ipo
from gxpo.algorithms.signals.base import SignalTools
from gxpo.algorithms.signals.opponents import Opponents, mixed
from gxpo.base.errors import CheckpointError
from gxpo.learning.torch import TorchLearner


def column(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize(("eta", "loss"), [(0.0075, 4422.25), (0.5, 0.694444)])
def test_card(eta, loss):
    """theta -1/-1.4, reference -1.1/-1.3, two earlier ones -1.05/-1.35 and -1.1/-1.3: a margin of 1/6."""
    earlier = torch.stack([column(-1.05, -1.35), column(-1.1, -1.3)])
    scores = column(-1.0, -1.4) - mixed(column(-1.1, -1.3), earlier, 1 / 3)
    assert float(scores[0] - scores[1]) == pytest.approx(1 / 6)
    assert float(ipo(scores[0], scores[1], eta)) == pytest.approx(loss, abs=6e-7)
    assert mixed(column(-1.1, -1.3), earlier[:0], 1 / 3).tolist() == [-1.1, -1.3]


def tools(learner: TorchLearner, step: int) -> SignalTools:
    return SignalTools(learner, lambda ids: "", 0, step)


def moved(learner: TorchLearner) -> None:
    learner.restore({name: 1.01 * x for name, x in learner.snapshot().items()})


def test_the_last_policies_survive_a_checkpoint():
    learner, forest = TorchLearner(clean_llama(vocab_size=64), lr=0.0), battery(0)
    part, own_values, logprobs = Opponents(share=0.25, history=2, every=2), {}, []
    part.bind(tools(learner, 0))
    reference = {"reference_logprob": learner.outputs(forest)["logprob"]}
    assert torch.equal(part.compute(forest, reference, tools(learner, 1))["opponents_logprob"], *reference.values())
    for step in range(1, 7):
        moved(learner)
        figures = part.learn(forest, own_values, tools(learner, step))
        if step % 2 == 0:
            logprobs.append(learner.outputs(forest)["logprob"])
    assert figures == {"opponents": 2.0}
    actual = part.compute(forest, reference, tools(learner, 7))["opponents_logprob"]
    expected = 0.25 * reference["reference_logprob"] + 0.75 * (logprobs[1] + logprobs[2]) / 2
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    again = Opponents(share=0.25, history=2, every=2)
    again.bind(tools(learner, 0))
    again.load_tensors(part.tensors())
    again.load_state_dict(part.state_dict())
    assert torch.equal(again.compute(forest, reference, tools(learner, 7))["opponents_logprob"], actual)
    with pytest.raises(CheckpointError, match="kept 3 policies; 2 are in the checkpoint"):
        again.load_state_dict({"kept": 3})
