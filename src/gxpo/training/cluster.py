"""Policies whose weights a training engine holds (`cluster.backend: tinker | verl`), and checks of `cluster`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gxpo.algorithms.signals.base import OwnModel
from gxpo.base import runtime
from gxpo.base.errors import ConfigError
from gxpo.learning.natural_gradient import NaturalGradient
from gxpo.learning.optimiser import Schedule
from gxpo.learning.remote import RemoteLearner
from gxpo.learning.remote.learner import unsupported
from gxpo.learning.remote.probe import BFLOAT16
from gxpo.learning.remote.probe import check as check_engine
from gxpo.learning.remote.tinker import Adapter, TinkerEngine
from gxpo.learning.remote.verl import VerlEngine
from gxpo.learning.remote.verl_ray import RayVerlEngine
from gxpo.methods.method import Method
from gxpo.models.decoder.architecture import positions
from gxpo.parts.definition import show
from gxpo.parts.protocols import TokenRow
from gxpo.parts.settings import ClusterSettings, RunSettings
from gxpo.sampling.engines.tinker import TinkerSampler
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training import models
from gxpo.training.models import pipelines
from gxpo.training.models.load import COLD

PROBED = (3, 4, 5, 6)  # ids of the row on which an engine is probed


def tinker_policy(
    s: RunSettings, learning: dict[str, Any], notify: Callable[[str], None]
) -> tuple[Any, RemoteLearner, TinkerSampler, int | None]:
    """Connect to a Tinker server; return tokenizer, learner, sampler and number of positions of its policy."""
    description = models.describe(s.model, task=s.task, notify=notify)
    n_positions, _ = positions(description.config.get_text_config())
    address = str(s.cluster.address)
    notify(f"measuring how {address} reduces a loss")
    engine = TinkerEngine(
        address,
        str(description.path or s.model),
        adapter=Adapter(rank=s.learner.lora_rank, seed=s.seed),
        betas=learning["betas"],
        weight_decay=learning["weight_decay"],
    )
    # A server may accept the setting and ignore it, which the measured reduction shows.
    if learning["max_grad_norm"] and not engine.clips:
        raise ConfigError(f"{address} ignores the limit on the gradient norm: set optim.max_grad_norm=0")
    notify(f"{address}: {engine.reduction.name}")
    sampler = TinkerSampler(
        engine,
        tokenizer=description.tokenizer,
        vocabulary=description.config.get_text_config().vocab_size,
        positions=n_positions,
    )
    return description.tokenizer, _learner(engine, learning, s.learner.dtype), sampler, n_positions


def verl_policy(
    s: RunSettings, learning: dict[str, Any], device: str, notify: Callable[[str], None]
) -> tuple[Any, RemoteLearner, TorchEngine, int | None]:
    """Start verl's FSDP engine; return tokenizer, learner, sampler and number of positions of its policy."""
    loaded = models.load(s.model, task=s.task, device=device, dtype=s.learner.dtype, notify=notify)
    engine = _verl_engine(s, loaded.path or s.model, {"dtype": s.learner.dtype, "betas": learning["betas"]}, notify)
    # Verl's processes are running already, and would stay behind.
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
    n_positions, _ = positions(loaded.model.config.get_text_config())
    return loaded.tokenizer, learner, sampler, n_positions


def _verl_engine(
    s: RunSettings, model: Any, settings: dict[str, Any], notify: Callable[[str], None]
) -> VerlEngine | RayVerlEngine:
    """Start verl's engine in these processes, or in workers of a Ray cluster."""
    if s.cluster.address is None:
        return VerlEngine(model, **settings)
    nodes, each = s.cluster.train.nodes, s.cluster.train.gpus_per_node
    notify(f"starting {nodes * each} workers of verl on the Ray cluster {s.cluster.address}")
    return RayVerlEngine(model, address=s.cluster.address, nodes=nodes, per_node=each, **settings)


def _learner(engine: TinkerEngine | VerlEngine | RayVerlEngine, learning: dict[str, Any], dtype: str) -> RemoteLearner:
    row = TokenRow(torch.tensor(PROBED), torch.tensor([1]), torch.ones(1, dtype=torch.float64))
    check_engine(engine, row, **(BFLOAT16 if dtype == "bfloat16" else {}))
    schedule = Schedule(learning["schedule"], learning["warmup_steps"], learning["total_steps"])
    return RemoteLearner(
        engine,
        lr=learning["lr"],
        schedule=schedule,
        max_grad_norm=learning["max_grad_norm"] or None,
        tokens_per_microbatch=learning["tokens_per_microbatch"],
    )


class GatheredEngine(TorchEngine):
    """Engine that samples from a whole copy of a policy that this and other processes hold in shards.

    trained  the training engine; its weights are gathered when `policy_version` changes, in which all processes take
             part. `model` has those of version 0
    """

    def __init__(self, train_engine: VerlEngine | RayVerlEngine, model: Any, tokenizer: Any, **settings: Any) -> None:
        super().__init__(model, tokenizer, **settings)
        self._train_engine = train_engine

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        if version == self._policy_version:
            return
        parameter_by_name = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, x in self._train_engine.weights():
                parameter_by_name[name].copy_(x)
        self.release()
        self._policy_version = version

    def close(self) -> None:
        """End the training engine's workers."""
        self._train_engine.close()


# ---------------------------------------------------------------- checks
ENGINES = {"tinker": TinkerEngine, "verl": VerlEngine}
PLACED = frozenset({"train.nodes", "train.gpus_per_node"})  # what says how many workers verl has on Ray


def check_cluster(s: RunSettings, method: Method) -> None:
    """Refuse methods and settings that the chosen training engine can't train, before anything runs."""
    backend = s.cluster.backend
    # Fields that only a plan reads must not look as if a run obeyed them.
    read = PLACED if backend == "verl" and s.cluster.address is not None else frozenset[str]()
    for section in ("train", "sample", "sync"):
        section_settings, defaults = getattr(s.cluster, section), ClusterSettings()
        for name, value in section_settings:
            if f"{section}.{name}" not in read and value != getattr(getattr(defaults, section), name):
                raise ConfigError(
                    f"cluster.{section}.{name}={value} is read by `gxpo plan` alone: leave it out to train"
                )
    if backend not in ENGINES:
        if s.cluster.address is not None:
            raise ConfigError(f"cluster.address is of cluster.backend=tinker and verl, and the backend is {backend}")
        for obstacle in _unfit_for_shards(s, method) if backend == "fsdp" else ():
            raise ConfigError(f"cluster.backend=fsdp can't have {obstacle}: change it, or use cluster.backend=local")
        return
    # Terms that an engine can't compute are refused before its processes start.
    if reason := unsupported(method, ENGINES[backend].abilities):
        raise ConfigError(f"cluster.backend={backend} can't train {method.name}: {reason}; use cluster.backend=local")
    for trouble, remedy in {
        **_unfit_for_engines(s),
        **(_unfit_for_tinker(s) if backend == "tinker" else _unfit_for_verl(s)),
    }.items():
        raise ConfigError(f"cluster.backend={backend} {trouble}: {remedy}")


def _unfit_for_shards(s: RunSettings, method: Method) -> list[str]:
    """Settings that sharded parameters (`cluster.backend=fsdp`) can't have, as words for the error."""
    unfit = {
        f"model {s.model}": pipelines.denoises(s.model),
        "learner.states=bfloat16": s.learner.states == "bfloat16",
        "learner.optimiser=muon": s.learner.optimiser == "muon",
        "learner.tokens_per_microbatch=auto (give a number)": s.learner.tokens_per_microbatch == "auto",
        f"update {show(method.update)}": isinstance(method.update, NaturalGradient),
        **{f"signal {name}, a second model": isinstance(x, OwnModel) for name, x in method.signals.items()},
    }
    return [obstacle for obstacle, is_set in unfit.items() if is_set]


def _unfit_for_engines(s: RunSettings) -> dict[str, str]:
    """Settings that no training engine supports: (problem, remedy) of each that is set."""
    # Each line of this table is a message and the test for it.
    unfit = {
        ("trains language models alone", f"leave out model={s.model}"): pipelines.denoises(s.model),
        ("can't start from another run's parameters", "leave out init_from"): s.init_from is not None,
        ("steps with AdamW", f"leave out learner.optimiser={s.learner.optimiser}"): s.learner.optimiser != "adamw",
        ("cuts rows into micro-batches by a number", "set learner.tokens_per_microbatch=8192"): (
            s.learner.tokens_per_microbatch == "auto"
        ),
        ("shows no pictures", "leave out learner.freeze_vision_tower and images_per_microbatch"): (
            s.learner.freeze_vision_tower or s.learner.images_per_microbatch is not None
        ),
        ("reads log-probs over the whole vocabulary", "set sampling.top_k=0 and sampling.top_p=1"): (
            s.sampling.top_k > 0 or s.sampling.top_p < 1
        ),
    }
    return dict(pair for pair, is_set in unfit.items() if is_set)


def _unfit_for_tinker(s: RunSettings) -> dict[str, str]:
    """Settings that a Tinker server does not support: problem -> remedy."""
    unfit = {
        ("needs its server's URL", "set cluster.address=http://HOST:PORT"): s.cluster.address is None,
        ("trains LoRA adapters", "set learner.lora_rank=32 or another rank"): s.learner.lora_rank == 0,
        ("leaves scale and places of the adapters to the server", "leave out learner.lora_alpha and lora_targets"): (
            s.learner.lora_alpha != 16.0 or s.learner.lora_targets != "all-linear"
        ),
        ("reads log-probs at temperature 1 alone", "set sampling.temperature=1"): s.sampling.temperature != 1,
        ("samples on the server, which stops at ids", "leave out sampling.stop"): bool(s.sampling.stop),
        ("samples on the server", "leave out sampling.engine"): s.sampling.engine != "auto",
        ("reads the model's tokenizer from a directory or the hub", f"leave out model={s.model}"): (s.model in COLD),
    }
    return dict(pair for pair, is_set in unfit.items() if is_set)


def _unfit_for_verl(s: RunSettings) -> dict[str, str]:
    """Settings that verl does not support: problem -> remedy."""
    unfit = {
        ("has its workers on Ray where cluster.address is given", "start the run without torchrun"): (
            s.cluster.address is not None and runtime.environment("WORLD_SIZE", 1) > 1
        ),
        ("has its workers on Ray", f"cluster.address={s.cluster.address} is no Ray address: set auto or HOST:PORT"): (
            (s.cluster.address or "").startswith(("http://", "https://"))
        ),
        (
            f"can't be had by Ray's client ({s.cluster.address}), which does not tell verl where its workers are",
            "start the run on a node of the cluster with cluster.address=auto",
        ): ((s.cluster.address or "").startswith("ray://")),
        ("trains every parameter", "set learner.lora_rank=0"): s.learner.lora_rank > 0,
        ("decays every parameter, not matrices alone", "set optim.weight_decay=0"): s.optim.weight_decay > 0,
        ("samples in its own processes", "set sampling.engine=torch"): s.sampling.engine not in ("auto", "torch"),
        ("holds float32 or bfloat16", "set learner.dtype=float32"): s.learner.dtype == "float64",
        ("loads the model from a directory or the hub", f"leave out model={s.model}"): s.model
        in ("tiny:cold", "tiny-vision:cold"),
    }
    return dict(pair for pair, is_set in unfit.items() if is_set)
