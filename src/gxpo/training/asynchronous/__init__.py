"""Asynchronous training (`async.max_staleness` above 0): groups are sampled beside the updates, with a bound on their
age."""

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
from gxpo.training.asynchronous.checks import uncorrected
from gxpo.training.asynchronous.pipeline import Pipeline, Stage
from gxpo.training.session import Session

__all__ = ["Pipeline", "overlap_of"]


class Stages(Protocol):
    """What a pipeline needs of `gxpo.training.step.Stages`."""

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
    """The pipeline that samples beside the steps of these stages, with its ledger in a run directory; `notify` is told
    where the method does not correct for the age of what it trains."""
    a = stages.settings.async_
    if isinstance(stages.engine, VllmEngine | OpenAIEngine) and a.order == "finish" and not a.partial:
        raise ConfigError(
            "async.order=finish samples under several versions at a time, and vLLM has one: set async.partial=true, "
            "or async.order=dispatch"
        )
    if (key := uncorrected(stages.method)) is not None:
        notify(
            f"async.max_staleness={a.max_staleness}: the ratio of {stages.method.name} is over the policy at the start "
            f"of the step, so nothing corrects for the age of its rollouts; {key} does"
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
