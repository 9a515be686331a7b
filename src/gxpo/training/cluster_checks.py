"""What a run with `cluster.backend` can't have, refused in one line before anything runs."""

from __future__ import annotations

from gxpo.algorithms.signals.base import OwnModel
from gxpo.base import runtime
from gxpo.base.errors import ConfigError
from gxpo.learning.natural_gradient import NaturalGradient
from gxpo.learning.remote.learner import unsupported
from gxpo.learning.remote.tinker import TinkerEngine
from gxpo.learning.remote.verl import VerlEngine
from gxpo.methods.method import Method
from gxpo.parts.definition import show
from gxpo.parts.settings import ClusterSettings, RunSettings
from gxpo.training.models import flow
from gxpo.training.models.load import COLD

ENGINES = {"tinker": TinkerEngine, "verl": VerlEngine}
PLACED = frozenset({"train.nodes", "train.gpus_per_node"})  # what says how many workers verl has on Ray


def check_cluster(s: RunSettings, method: Method) -> None:
    """Refuse what the chosen training engine can't train, in one line, before anything runs."""
    backend = s.cluster.backend
    read = PLACED if backend == "verl" and s.cluster.address is not None else frozenset[str]()
    for section in ("train", "sample", "sync"):
        stated, unread = getattr(s.cluster, section), ClusterSettings()
        for name, value in stated:
            if f"{section}.{name}" not in read and value != getattr(getattr(unread, section), name):
                raise ConfigError(
                    f"cluster.{section}.{name}={value} is read by `gxpo plan` alone: leave it out to train"
                )
    if backend not in ENGINES:
        if s.cluster.address is not None:
            raise ConfigError(f"cluster.address is of cluster.backend=tinker and verl, and the backend is {backend}")
        for what in _sharded(s, method) if backend == "fsdp" else ():
            raise ConfigError(f"cluster.backend=fsdp can't have {what}: change it, or use cluster.backend=local")
        return
    if why := unsupported(method, ENGINES[backend].abilities):
        raise ConfigError(f"cluster.backend={backend} can't train {method.name}: {why}; use cluster.backend=local")
    for trouble, remedy in {**_common(s), **(_tinker(s) if backend == "tinker" else _verl(s))}.items():
        raise ConfigError(f"cluster.backend={backend} {trouble}: {remedy}")


def _sharded(s: RunSettings, method: Method) -> list[str]:
    """What is asked for that parameters in shards can't do."""
    unfit = {
        f"model {s.model}": flow.is_flow(s.model),
        "learner.states=bfloat16": s.learner.states == "bfloat16",
        "learner.optimiser=muon": s.learner.optimiser == "muon",
        "learner.tokens_per_microbatch=auto (give a number)": s.learner.tokens_per_microbatch == "auto",
        f"update {show(method.update)}": isinstance(method.update, NaturalGradient),
        **{f"signal {name}, a second model": isinstance(x, OwnModel) for name, x in method.signals.items()},
    }
    return [what for what, asked in unfit.items() if asked]


def _common(s: RunSettings) -> dict[str, str]:
    """What no engine can do -> what to set; empty: nothing of it is asked for."""
    unfit = {
        ("trains language models alone", f"leave out model={s.model}"): flow.is_flow(s.model),
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
    return dict(pair for pair, asked in unfit.items() if asked)


def _tinker(s: RunSettings) -> dict[str, str]:
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
    return dict(pair for pair, asked in unfit.items() if asked)


def _verl(s: RunSettings) -> dict[str, str]:
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
    return dict(pair for pair, asked in unfit.items() if asked)
