"""The parts by the names that configurations use: a part's name is its class's, in lower case with underscores."""

from __future__ import annotations

from gxpo import credit, objectives, rewards, rollouts, weighting
from gxpo.keys import show
from gxpo.learners.epochs import Epochs


def _named(*parts: type) -> dict[str, type]:
    return {show(part): part for part in parts}


CREDITS = _named(credit.GroupRelative, credit.LengthWeighted, credit.BatchWhiten, credit.AnchorState)
WEIGHTS = _named(weighting.Truncated)
ROLLOUTS = _named(rollouts.Independent, rollouts.DynamicSampling)
REWARDS = _named(rewards.Overlong)
GATES = _named(objectives.Clip, objectives.DualClip, objectives.LogClip, objectives.Truncate)
UPDATES = _named(Epochs)
TERMS: dict[str, type] = {}  # further terms, added as objective.add.NAME
