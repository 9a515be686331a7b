"""Asynchronous training (`async.max_staleness` above 0): sample groups during updates, with a bound on their age."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gxpo.base.errors import ConfigError
from gxpo.methods.method import Method
from gxpo.parts.protocols import Budget, Sampling, TaskSource
from gxpo.parts.settings import RunSettings
from gxpo.sampling.engines.openai import OpenAIEngine
from gxpo.sampling.engines.vllm import VllmEngine
from gxpo.training.asynchronous.checks import missing_correction
from gxpo.training.asynchronous.pipeline import Pipeline, Stage
from gxpo.training.session import Session

__all__ = ["Pipeline", "overlap_of"]


class Stages(Protocol):
    """The attributes of `gxpo.training.step.Stages` that a pipeline uses."""

    settings: RunSettings
    engine: Any
    learner: Any
    rewards: Any
    envs: Any
    source: TaskSource
    method: Method
    sampling: Sampling

    def session(self, step: int, *, seed: int, sampling: Sampling, budget: Budget, **others: Any) -> Session: ...


def overlap_of(stages: Stages, run: Path, notify: Callable[[str], None]) -> Pipeline:
    """Build the pipeline that samples beside the steps of `stages`, with its ledger in the run directory.

    notify  gets a message if the method does not correct for the age of its rollouts
    """
    options = stages.settings.async_
    # These engines keep their weights in another process, which holds one version; with order=finish groups of several
    # versions are under way unless all of them go on under the newest (`partial`).
    if isinstance(stages.engine, VllmEngine | OpenAIEngine) and options.order == "finish" and not options.partial:
        raise ConfigError(
            "async.order=finish samples under several versions at a time, and vLLM has one: set async.partial=true, "
            "or async.order=dispatch"
        )
    # A note, no error: such a method trains, only its gradient is of the policy at the start of the step.
    if (key := missing_correction(stages.method)) is not None:
        notify(
            f"async.max_staleness={options.max_staleness}: the ratio of {stages.method.name} is over the policy at the "
            f"start of the step, so nothing corrects for the age of its rollouts; {key} does"
        )
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
