"""Cluster plan of a run: placement, memory of a GPU, weight publication, throughput of trainers and samplers.

Formulas for parameters and activations of 16 bits, AdamW with float32 copies, and sharding over all GPUs that train
(FSDP2, ZeRO-3). All figures are estimates: nothing is measured, and nothing is loaded.

trainer    16 N / GPUs (2 weights, 2 gradient, 4 float32 copy, 8 moments a parameter) + two gathered units of 2 bytes a
           parameter + 2 hidden layers tokens / context_parallel with recomputation + a chunk of logits; with
           cluster.backend=fsdp or verl 2 N of a whole copy, which the sampler of each process reads
sampler    2 N / tensor_parallel + 4 kv_layers kv_heads head_dim bytes a token of every stream
publication  2 N / (links x speed)
update     8 N tokens / (MFU x peak): forward and backward 6, the forward for proximal log-probs 2; N active parameters
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.explain.plan import arithmetic
from gxpo.models.shape import ModelShape
from gxpo.parts.settings import ClusterSettings
from gxpo.training.config import Resolved

BYTES = {"weights": 2, "gradient": 2, "float32_copy": 4, "moments": 8}  # of a parameter
ON_HOST = ("float32_copy", "moments")  # with offload: optimiser
WHOLE = sum(BYTES.values()) + 2  # of a parameter where each process holds all; gradients are float32 there
LOGITS_AT_ONCE = 2**23  # of the learner: held in 16 bits, with two copies in float32
SAMPLER_SHARE = 0.85  # of a sampler's memory for weights and caches: vLLM's 0.9, less activations and graphs
SPEED_7B = 2500 * 7.6e9  # tokens a second of a sampling H100 times active parameters
WITH_COPY = ("fsdp", "verl")  # backends in which each process samples from a whole copy of the weights
WORTH_DELAYING = 0.05  # share of a step that a publication may take


@dataclass(frozen=True)
class Gpu:
    """memory in bytes; peak: dense 16-bit FLOP a second."""

    memory: float
    peak: float


GPUS = {
    "a100": Gpu(80e9, 312e12),
    "h20": Gpu(96e9, 148e12),
    "h100": Gpu(80e9, 989e12),
    "h200": Gpu(141e9, 989e12),
    "b200": Gpu(180e9, 2250e12),
}


@dataclass(frozen=True)
class Load:
    """What a step asks of a cluster, and how fast its parts are.

    tokens      generated in a step; context: of the longest trajectory, prompt included
    microbatch  tokens that go through the trainer together
    mfu         share of the peak that an update reaches
    links, link_gbit   links that weights leave the trainers by, and the speed of each in Gbit a second
    sample_speed   tokens a second of a GPU that samples; None: 2,500 at 7.6e9 active parameters, inversely with them
    served         servers sample, and no process has a copy of the weights for that
    """

    tokens: float
    context: int
    microbatch: int
    gpu: Gpu
    mfu: float = 0.4
    links: int = 1
    link_gbit: float = 200.0
    sample_speed: float | None = None
    served: bool = False


def load_of(resolved: Resolved, stated: dict[str, Any]) -> Load:
    """What a run asks, with what is stated (not None) in the place of the run's own figures."""
    s = resolved.settings
    named = {k: v for k, v in stated.items() if v is not None}
    gpu = str(named.pop("gpu", "h100")).lower()
    if gpu not in GPUS:
        raise ConfigError(f"--gpu {gpu!r} is not one of {', '.join(GPUS)}{did_you_mean(gpu, GPUS)}")
    for name, value in named.items():
        if value <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} {value:g} must be above 0")
    if named.get("mfu", 0) > 1:
        raise ConfigError(f"--mfu {named['mfu']:g} is a share of the peak: at most 1")
    figures, size = arithmetic(resolved), s.learner.tokens_per_microbatch
    turns, tokens = figures["actions_per_rollout_at_most"], figures["generated_tokens_per_step_at_most"]
    if "tokens" not in named and tokens is None:
        raise ConfigError("the environment decides how many tokens a step generates: state them with --tokens")
    if "context" not in named and turns is None:
        raise ConfigError("the environment decides how long a trajectory is: state its tokens with --context")
    own = {"tokens": tokens, "context": (turns or 1) * s.sampling.max_new_tokens}
    return Load(**{**own, **named}, microbatch=8192 if size == "auto" else size, gpu=GPUS[gpu],
                served=s.sampling.engine == "openai")  # fmt: skip


def whole_on_each(parameters: float) -> float:
    """Bytes of a process that holds all parameters, their float32 copies, moments and gradients."""
    return WHOLE * parameters


def states_of(parameters: float, gpus: int, offload: str = "none") -> dict[str, float]:
    """Bytes a GPU of weights, gradient, float32 copy and moments that `gpus` share."""
    kept = {k: n for k, n in BYTES.items() if offload == "none" or k not in ON_HOST}
    return {name: n * parameters / gpus for name, n in kept.items()}


def activations(shape: ModelShape, tokens: float, context_parallel: int = 1) -> float:
    """Bytes a GPU of the hidden states before each layer; all else is recomputed in the backward pass."""
    return 2 * shape.hidden * shape.layers * tokens / context_parallel


def logits_chunk(shape: ModelShape, tokens: float) -> float:
    """Bytes of the logits that are held at once."""
    return min(LOGITS_AT_ONCE, tokens * shape.vocabulary) * (2 + 2 * 4)


def streams(shape: ModelShape, memory: float, context: int, tensor_parallel: int = 1) -> int:
    """Trajectories of `context` tokens whose keys and values fit beside the weights; 0 or less: not even one."""
    shards = min(tensor_parallel, shape.kv_heads)
    free = SAMPLER_SHARE * memory - 2 * shape.parameters / tensor_parallel
    return int(free // (shape.kv_bytes_per_token / shards * context))


def publication_seconds(parameters: float, links: int, link_gbit: float) -> float:
    """Seconds in which 16-bit weights go over `links` links of so many Gbit a second each."""
    return 2 * parameters / (links * link_gbit * 1e9 / 8)


def update_gpu_seconds(active: float, tokens: float, mfu: float, peak: float) -> float:
    """GPU-seconds of an update on that many tokens."""
    return 8 * active * tokens / (mfu * peak)


def placement(cluster: ClusterSettings) -> dict[str, list[dict[str, Any]]]:
    """Nodes and GPUs that train, then those of each sampler; no sampler that fits into a node is spread over two."""
    train, width = cluster.train, cluster.train.gpus_per_node
    split = train.tensor_parallel * train.context_parallel * train.pipeline_parallel
    if train.nodes * width % split:
        raise ConfigError(
            f"cluster.train: tensor_parallel x context_parallel x pipeline_parallel = {split} does not divide "
            f"{train.nodes * width} GPUs (nodes x gpus_per_node)"
        )
    size = cluster.sample.tensor_parallel
    if size > width and size % width:
        raise ConfigError(
            f"cluster.sample.tensor_parallel={size} fills no whole number of nodes of {width} GPUs "
            "(cluster.train.gpus_per_node)"
        )
    samplers, at = [], train.nodes * width
    for replica in range(cluster.sample.replicas):
        if at % width + size > width and at % width:
            at += width - at % width
        nodes: dict[int, list[int]] = {}
        for gpu in range(at, at + size):
            nodes.setdefault(gpu // width, []).append(gpu % width)
        samplers.append({"replica": replica, "gpus": [{"node": n, "gpus": g} for n, g in nodes.items()]})
        at += size
    return {"train": [{"node": n, "gpus": list(range(width))} for n in range(train.nodes)], "sample": samplers}


def cluster_plan(shape: ModelShape, cluster: ClusterSettings, load: Load) -> dict[str, Any]:
    """All figures of the plan, by side: bytes, seconds, tokens a second, and `advice` in sentences."""
    train = _trainer(shape, cluster, load)
    sample = _sampler(shape, cluster, load)
    publish_s = publication_seconds(shape.parameters, load.links, load.link_gbit)
    every = cluster.sync.every
    both = max(train["step_s"], sample["step_s"]) + publish_s / every
    gpus = train["gpus"] + sample["gpus"]
    trained = train["gpu_s"] / (train["gpu_s"] + sample["gpu_s"])
    found = {
        "model": asdict(shape),
        "placement": placement(cluster),
        "train": train,
        "sample": sample,
        "publication": {
            "bytes": 2 * shape.parameters,
            "seconds": publish_s,
            "every": every,
            "share_of_step": publish_s / every / both,
        },
        "step": {
            "tokens": load.tokens,
            "synchronous_s": train["step_s"] + sample["step_s"] + publish_s / every,
            "asynchronous_s": both,
            "tokens_per_s_needed": load.tokens / both,
        },
        "split": {
            "sample_per_train": sample["gpu_s"] / train["gpu_s"],
            "train_gpus": min(gpus - 1, max(1, round(gpus * trained))),
            "gpus": gpus,
        },
    }
    return {**found, "advice": _advice(found, cluster, load)}


def _trainer(shape: ModelShape, cluster: ClusterSettings, load: Load) -> dict[str, Any]:
    own = cluster.train
    gpus = own.nodes * own.gpus_per_node
    tokens = max(load.microbatch, load.context)
    memory = {
        **states_of(shape.parameters, gpus, own.offload),
        "gathered_units": 2 * 2 * shape.largest_unit / own.tensor_parallel,
        "activations": activations(shape, tokens, own.context_parallel),
        "logits": logits_chunk(shape, tokens),
    }
    if cluster.backend in WITH_COPY and not load.served:
        memory["sampling_copy"] = 2 * shape.parameters
    gpu_s = update_gpu_seconds(shape.active, load.tokens, load.mfu, load.gpu.peak)
    return {
        "gpus": gpus,
        "memory": memory,
        "memory_bytes": sum(memory.values()),
        "memory_of_a_gpu": load.gpu.memory,
        "whole_on_each_bytes": whole_on_each(shape.parameters),
        "microbatch_tokens": tokens,
        "gpu_s": gpu_s,
        "step_s": gpu_s / gpus,
        "tokens_per_s": load.tokens * gpus / gpu_s,
    }


def _sampler(shape: ModelShape, cluster: ClusterSettings, load: Load) -> dict[str, Any]:
    own = cluster.sample
    speed = load.sample_speed or SPEED_7B / shape.active
    fitting = streams(shape, load.gpu.memory, load.context, own.tensor_parallel)
    gpus, gpu_s = own.replicas * own.tensor_parallel, load.tokens / speed
    used = max(0, min(fitting, own.max_concurrent))
    shards = min(own.tensor_parallel, shape.kv_heads)
    return {
        "gpus": gpus,
        "memory": {
            "weights": 2 * shape.parameters / own.tensor_parallel,
            "keys_and_values": used * shape.kv_bytes_per_token / shards * load.context,
        },
        "memory_of_a_gpu": load.gpu.memory,
        "kv_bytes_per_token": shape.kv_bytes_per_token,
        "context": load.context,
        "streams_that_fit": max(0, fitting),
        "streams": used,
        "gpu_s": gpu_s,
        "step_s": gpu_s / gpus,
        "tokens_per_s": speed * gpus,
    }


def _advice(found: dict[str, Any], cluster: ClusterSettings, load: Load) -> list[str]:
    """What does not fit or is out of balance, and the key to change."""
    train, sample, publication, split = (found[k] for k in ("train", "sample", "publication", "split"))
    out = []
    if train["memory_bytes"] > load.gpu.memory:
        most = max(train["memory"], key=train["memory"].__getitem__)
        key = {
            "activations": "raise cluster.train.context_parallel",
            "logits": "lower learner.tokens_per_microbatch",
            "sampling_copy": "more GPUs do not make it smaller: set cluster.backend=tinker, or take a smaller model",
        }
        what = key.get(most, "raise cluster.train.nodes, or set cluster.train.offload=optimiser")
        out.append(f"a trainer's GPU does not hold it: the most is {most.replace('_', ' ')}; {what}")
    if not sample["streams_that_fit"]:
        out.append("a sampler holds no stream of that length: raise cluster.sample.tensor_parallel")
    elif sample["streams"] < cluster.sample.max_concurrent:
        out.append(
            f"{sample['streams']} streams fit a sampler of cluster.sample.max_concurrent="
            f"{cluster.sample.max_concurrent}: the others wait"
        )
    if publication["share_of_step"] > WORTH_DELAYING:
        work = max(train["step_s"], sample["step_s"])
        enough = math.ceil(publication["seconds"] / work * (1 - WORTH_DELAYING) / WORTH_DELAYING)
        out.append(
            f"a publication takes {publication['share_of_step']:.1%} of a step, more than {WORTH_DELAYING:.0%}: set "
            f"cluster.sync.every={enough}, or use more links"
        )
    if publication["seconds"] > cluster.sync.timeout:
        out.append(f"a publication takes longer than cluster.sync.timeout={cluster.sync.timeout:g}: raise it")
    slower = "samplers" if sample["step_s"] > train["step_s"] else "trainers"
    if abs(train["gpus"] - split["train_gpus"]) > max(1, 0.2 * split["gpus"]):
        out.append(
            f"of {split['gpus']} GPUs {split['train_gpus']} should train and {split['gpus'] - split['train_gpus']} "
            f"sample, not {train['gpus']} and {sample['gpus']}: {slower} keep the others waiting"
        )
    return out
