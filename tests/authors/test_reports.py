"""Methods read in the technical reports of their authors' models, in plain loops with literal numbers."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from tests.sampling.rollouts.replay_session import StepSession, train

import gxpo
from gxpo.sampling.rollouts.replay import GroupReplay, draw_by_weight


# ---------------------------------------------------------------- r1v2_ssb: Skywork R1V2, section 3.3
def test_r1v2_ssb_draws_stored_samples_by_their_advantage():
    """Samples of non-zero advantage are stored, weighed by |A| of equation 6, and come back beside fresh ones."""
    part = gxpo.method("r1v2_ssb", {"rollout.group_size": 4}).rollout
    assert isinstance(part, GroupReplay)
    right = {"m": [1, 0, 0, 0], "n": [1, 1, 0, 0], "z": [0, 0, 0, 0]}
    first = train(part, list(right), StepSession(lambda s: right[s.task][s.attempt], step=1))
    assert set(first.origin) == {"policy"} and set(part.buffer.records_by_key) == {"s1/m", "s1/n"}  # z has no advantage
    expected = []
    for rewards in (right["m"], right["n"]):
        mean = sum(rewards) / 4
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 3)
        expected += [abs(r - mean) / std for r in rewards]
    assert part._strengths() == pytest.approx(expected, abs=1e-5)

    draw_counts = Counter(draw_by_weight(expected, 1, ("step", i))[0] for i in range(4000))
    for i, weight in enumerate(expected):
        assert draw_counts[i] / 4000 == pytest.approx(weight / sum(expected), abs=0.03)

    second = train(part, ["z", "m"], StepSession(lambda s: right[s.task][s.attempt], step=2))
    back = [r for r, o in enumerate(second.origin) if o == "replay" and float(second.weight[r]) > 0]
    assert len(back) == 4  # one for each fresh rollout without advantage, those of z
    assert {second.task[r] for r in back} <= {"m", "n"}
    credit = gxpo.method("r1v2_ssb", {"rollout.group_size": 4}).advantages(second)
    for r in back:  # its advantage is that of the group it was sampled in
        name = second.task[r]
        mean = sum(right[name]) / 4
        std = math.sqrt(sum((x - mean) ** 2 for x in right[name]) / 3)
        own_value = (float(second.outcome[r]) - mean) / std
        assert credit[second.path_of(r)].tolist() == pytest.approx([own_value] * len(second.path_of(r)), abs=1e-5)
