"""Policies whose weights a training engine holds (`cluster.backend: tinker | verl`): learner, sampler, tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gxpo.base.errors import ConfigError
from gxpo.learning.optimiser import Schedule
from gxpo.learning.remote import RemoteLearner
from gxpo.learning.remote.probe import BFLOAT16
from gxpo.learning.remote.probe import check as check_engine
from gxpo.learning.remote.tinker import Adapter, TinkerEngine
from gxpo.learning.remote.verl import VerlEngine
from gxpo.learning.remote.verl_ray import RayVerlEngine
from gxpo.models.decoder.architecture import positions
from gxpo.parts.protocols import TokenRow
from gxpo.parts.settings import RunSettings
from gxpo.sampling.engines.tinker import TinkerSampler
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training import models

PROBED = (3, 4, 5, 6)  # ids of the row on which an engine is probed


def tinker_policy(
    s: RunSettings, learning: dict[str, Any], notify: Callable[[str], None]
) -> tuple[Any, RemoteLearner, TinkerSampler, int | None]:
    """Tokenizer, learner, sampler and number of positions of a policy on a Tinker server."""
    known = models.describe(s.model, task=s.task, notify=notify)
    found, _ = positions(known.config.get_text_config())
    address = str(s.cluster.address)
    notify(f"measuring how {address} reduces a loss")
    engine = TinkerEngine(
        address,
        str(known.path or s.model),
        adapter=Adapter(rank=s.learner.lora_rank, seed=s.seed),
        betas=learning["betas"],
        weight_decay=learning["weight_decay"],
    )
    if learning["max_grad_norm"] and not engine.clips:
        raise ConfigError(f"{address} ignores the limit on the gradient norm: set optim.max_grad_norm=0")
    notify(f"{address}: {engine.reduction.name}")
    sampler = TinkerSampler(
        engine, tokenizer=known.tokenizer, vocabulary=known.config.get_text_config().vocab_size, positions=found
    )
    return known.tokenizer, _learner(engine, learning, s.learner.dtype), sampler, found


def verl_policy(
    s: RunSettings, learning: dict[str, Any], device: str, notify: Callable[[str], None]
) -> tuple[Any, RemoteLearner, TorchEngine, int | None]:
    """Tokenizer, learner, sampler and number of positions of a policy in verl's FSDP engine."""
    loaded = models.load(s.model, task=s.task, device=device, dtype=s.learner.dtype, notify=notify)
    engine = _verl_engine(s, loaded.path or s.model, {"dtype": s.learner.dtype, "betas": learning["betas"]}, notify)
    try:
        learner = _learner(engine, learning, s.learner.dtype)
    except BaseException:
        engine.close()
        raise
    sampler = GatheredEngine(
        engine,
        loaded.model,
        loaded.tokenizer,
        device=device,
        batch_rows=s.sampling.batch_rows,
        kernels=s.learner.kernels,
    )
    found, _ = positions(loaded.model.config.get_text_config())
    return loaded.tokenizer, learner, sampler, found


def _verl_engine(
    s: RunSettings, model: Any, settings: dict[str, Any], notify: Callable[[str], None]
) -> VerlEngine | RayVerlEngine:
    """verl's engine in these processes, or in workers of a Ray cluster."""
    if s.cluster.address is None:
        return VerlEngine(model, **settings)
    nodes, each = s.cluster.train.nodes, s.cluster.train.gpus_per_node
    notify(f"starting {nodes * each} workers of verl on the Ray cluster {s.cluster.address}")
    return RayVerlEngine(model, address=s.cluster.address, nodes=nodes, per_node=each, **settings)


def _learner(engine: TinkerEngine | VerlEngine | RayVerlEngine, given: dict[str, Any], dtype: str) -> RemoteLearner:
    row = TokenRow(torch.tensor(PROBED), torch.tensor([1]), torch.ones(1, dtype=torch.float64))
    check_engine(engine, row, **(BFLOAT16 if dtype == "bfloat16" else {}))
    schedule = Schedule(given["schedule"], given["warmup_steps"], given["total_steps"])
    return RemoteLearner(
        engine,
        lr=given["lr"],
        schedule=schedule,
        max_grad_norm=given["max_grad_norm"] or None,
        tokens_per_microbatch=given["tokens_per_microbatch"],
    )


class GatheredEngine(TorchEngine):
    """Sampling from a whole copy of a policy that this and other processes hold in shards.

    trained  the training engine; its weights are gathered when `policy_version` changes, in which all processes take
             part. `model` has those of version 0
    """

    def __init__(self, trained: VerlEngine | RayVerlEngine, model: Any, tokenizer: Any, **settings: Any) -> None:
        super().__init__(model, tokenizer, **settings)
        self._trained = trained

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        if version == self._policy_version:
            return
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, x in self._trained.weights():
                own[name].copy_(x)
        self.release()
        self._policy_version = version

    def close(self) -> None:
        """End the training engine's workers."""
        self._trained.close()
