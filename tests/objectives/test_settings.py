"""What settings of gates, ratios and controls may be, to the edge, and what is said of those that may not."""

from __future__ import annotations

import math

import pytest
import torch

from gxpo.errors import ConfigError
from gxpo.objectives import Entries
from gxpo.objectives.control import DualBudget, EntropyTarget, Schedule, TwoPhaseDecay
from gxpo.objectives.gate_divergence import DivergenceMask
from gxpo.objectives.gate_mask import RatioMask
from gxpo.objectives.gate_nested import NestedClip
from gxpo.objectives.ratio_filtered import Filtered


def test_edges_are_allowed_and_mean_what_they_say():
    assert TwoPhaseDecay(fall=0.0).coefficient(0.3) == 0.3
    assert DualBudget(budget=0.0, rate=0.5).adjust({"kl": 0.25}) == {"kl_over_budget": 0.25}
    falling = Schedule(to=0.0, total_steps=2)
    falling.adjust({"step": 2})
    assert falling.coefficient(0.3) == 0.0
    exact = RatioMask(clip_low=0.0, clip_high=0.0, ring_low=0.0, ring_high=0.0, ratio_max=0.5)
    seen = Entries.of(torch.tensor([1.0, 1.5]), torch.tensor([1.0, 1.0]), torch.tensor([-2.0, -2.0]))
    assert exact.loss(seen).tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Schedule(to=math.inf), r"^control: to \(inf\)"),
        (lambda: DualBudget(rate=0.0), r"^control: budget \(0\.05\) is 0 or more, rate \(0\.0\) above 0"),
        (lambda: Schedule(shape="exponential").coefficient(0.0), r"^control: an exponential .* control\.shape=cosine$"),
        (lambda: DivergenceMask("mean"), r"^objective\.divergence is 'mean'"),  # type: ignore[arg-type]  # the point
        (lambda: RatioMask(importance="all"), r"^objective\.importance is 'all'"),  # type: ignore[arg-type]  # the point
        (lambda: Filtered(observation_noise=0.0), r"^objective: process_noise .* is above 0, "),
    ],
)
def test_what_is_beyond_them_is_refused_by_name(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_control_starts_in_force():
    assert EntropyTarget().adjust({}) == {"entropy_below_target": 1.0}


def test_the_nested_clip_counts_what_it_holds_and_nothing_else():
    near = Entries.of(torch.tensor([1.05, 1.0, 3.0, 3.0]), torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert NestedClip(0.2, 0.2).clipped(near).tolist() == [False, False, True, False]
