"""A mixture of a policy and a safe baseline: the share, what is trained, what is remembered."""

from __future__ import annotations

import pytest
import torch
from tests.sampling.rollouts.team_session import AnswerSession

from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.mixture import Mixture, lower_bound, safe_share

ADD = Task("add", "1+1=", "2")


def test_the_share_holds_the_floor() -> None:
    # floor .9 of .6 is .54; (.6 - .54) / (.6 - .4) = .3, and .3 * .4 + .7 * .6 = .54
    assert safe_share(0.6, 0.4, 0.9) == pytest.approx(0.3)
    assert safe_share(0.6, 0.54, 0.9) == 1.0 and safe_share(0.6, 0.0, 0.9) == pytest.approx(0.1)


def test_the_bound_is_hoeffdings() -> None:
    # sqrt(ln(1 / e^-2) / (2 * 25)) = sqrt(2 / 50) = .2
    assert lower_bound(0.6, 25, 0.1353352832) == pytest.approx(0.4)
    assert lower_bound(0.1, 25, 0.1353352832) == 0.0 and lower_bound(1.0, 0, 0.1) == 0.0


def test_the_baselines_attempts_are_not_trained() -> None:
    rollout = Mixture(200, floor=0.9)
    session = AnswerSession(lambda policy, context, attempt: "2" if policy == "reference" else "3")
    forest = session.score(rollout.grow(session.asked(ADD), session))
    own_flags = torch.tensor([origin == "policy" for origin in forest.origin])
    assert int(own_flags.sum()) == 20  # a tenth, before anything is known
    assert bool((forest.compared == own_flags).all()) and forest.outcome[own_flags].tolist() == [0.0] * 20
    rollout.observe(forest)
    assert rollout.sums == {"policy": [0.0, 20.0], "baseline": [180.0, 180.0]} and rollout.share == pytest.approx(0.1)
    again = Mixture(200)
    again.load_state_dict(rollout.state_dict())
    assert again.sums == rollout.sums


def test_a_policy_as_good_as_the_baseline_has_all_attempts() -> None:
    rollout = Mixture()
    rollout.sums.update(policy=[950.0, 1000.0], baseline=[50.0, 100.0])
    assert rollout.share == 1.0
