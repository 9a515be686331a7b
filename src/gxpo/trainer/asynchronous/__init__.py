"""Asynchronous training (`async.max_staleness` above 0): groups are sampled beside the updates, with a bound on their
age."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gxpo.trainer.asynchronous.pipeline import Pipeline, Stage

if TYPE_CHECKING:
    from gxpo.trainer.step import Stages


def overlap_of(stages: Stages, run: Path) -> Pipeline:
    """The pipeline that samples beside the steps of these stages, with its ledger in a run directory."""
    stage = Stage(
        engine=stages.engine,
        learner=stages.learner,
        rewards=stages.rewards,
        envs=stages.envs,
        source=stages.source,
        rollout=stages.method.rollout,
        segmenter=stages.method.segmenter,
        session=partial(stages.session, seed=stages.settings.seed, sampling=stages.sampling),
    )
    return Pipeline(stages.settings, stage, run)
