"""Cluster plan of a run: placement, memory of a GPU, weight publication, throughput; as figures and as text.

Formulas for parameters and activations of 16 bits, AdamW with float32 copies, and sharding over all GPUs that train
(FSDP2, ZeRO-3). All figures are estimates: nothing is measured, and nothing is loaded.

trainer    `gxpo.explain.memory` in 16 bits: 18 N / GPUs (2 parameters, 4 gradients, 12 optimiser) + two gathered units
           of 2 bytes a parameter + activations of tokens / context_parallel with recomputation + a chunk of logits;
           with cluster.backend=fsdp or verl 2 N of a whole copy, which the sampler of each process reads
sampler    2 N / tensor_parallel + 4 kv_layers kv_heads head_dim bytes a token of every stream
publication  2 N / (links x speed)
update     8 N tokens / (MFU x peak): forward and backward 6, the forward for proximal log-probs 2; N active parameters
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.explain import memory as formulas
from gxpo.explain.memory import GPUS, Gpu, Training
from gxpo.explain.plan import arithmetic, duration
from gxpo.models.shape import ModelShape
from gxpo.parts.settings import ClusterSettings
from gxpo.training.config import RunConfig

SAMPLER_SHARE = 0.85  # of a sampler's memory for weights and caches: vLLM's 0.9, less activations and graphs
SPEED_TIMES_PARAMETERS = 2500 * 7.6e9  # tokens a second of a sampling H100 times active parameters
WITH_COPY = ("fsdp", "verl")  # backends in which each process samples from a whole copy of the weights
IN_16_BITS = Training(dtype="bfloat16", recompute=True, microbatch=1, row=1, samples=1, prompts=1, prompt=1, context=1)
WORTH_DELAYING = 0.05  # share of a step that a publication may take


@dataclass(frozen=True)
class Load:
    """Work of a step, and speed of the hardware that does it.

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


def gpu_of(name: str) -> Gpu:
    """Return the figures of a GPU; ConfigError for an unknown name."""
    if name.lower() not in GPUS:
        raise ConfigError(f"--gpu {name!r} is not one of {', '.join(GPUS)}{did_you_mean(name.lower(), GPUS)}")
    return GPUS[name.lower()]


def load_of(resolved: RunConfig, overrides: dict[str, Any]) -> Load:
    """Return the load of a run; `overrides` that are not None replace its own figures.

    Raises ConfigError for a figure that is out of range, or that only the environment knows and nobody gives.
    """
    s = resolved.settings
    overrides_given = {k: v for k, v in overrides.items() if v is not None}
    gpu = gpu_of(str(overrides_given.pop("gpu", "h100")))
    # checked here, where the option's name is known: a 0 would divide by zero further down
    for name, value in overrides_given.items():
        if value <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} {value:g} must be above 0")
    if overrides_given.get("mfu", 0) > 1:
        raise ConfigError(f"--mfu {overrides_given['mfu']:g} is a share of the peak: at most 1")
    figures, microbatch_tokens = arithmetic(resolved), s.learner.tokens_per_microbatch
    turns, tokens = figures["actions_per_rollout_at_most"], figures["generated_tokens_per_step_at_most"]
    # an environment without `env.max_turns` bounds neither tokens nor length: only the user can
    if "tokens" not in overrides_given and tokens is None:
        raise ConfigError("the environment decides how many tokens a step generates: state them with --tokens")
    if "context" not in overrides_given and turns is None:
        raise ConfigError("the environment decides how long a trajectory is: state its tokens with --context")
    defaults = {"tokens": tokens, "context": (turns or 1) * s.sampling.max_new_tokens}
    return Load(
        **{**defaults, **overrides_given},
        microbatch=8192 if microbatch_tokens == "auto" else microbatch_tokens,
        gpu=gpu,
        served=s.sampling.engine == "openai",
    )


def sharded(shape: ModelShape, gpus: int, offload: str = "none") -> dict[str, float]:
    """Return the bytes per GPU of parameters, optimiser and gradients, sharded over `gpus`."""
    bytes_by_part = formulas.states(shape, IN_16_BITS) | {"gradients": formulas.gradients(shape, IN_16_BITS)}
    return {name: n / gpus for name, n in bytes_by_part.items() if offload == "none" or name != "optimiser"}


def pass_bytes(shape: ModelShape, tokens: int, context_parallel: int = 1) -> dict[str, float]:
    """Return the bytes per GPU of a micro-batch's activations, with recomputation, and of its logits."""
    parts = formulas.update(shape, replace(IN_16_BITS, microbatch=-(-tokens // context_parallel)))
    return {name: parts[name] for name in ("activations", "logits")}


def streams(shape: ModelShape, memory: float, context: int, tensor_parallel: int = 1) -> int:
    """Count the streams of `context` tokens whose keys and values fit beside the weights; 0 or less: not even one."""
    shards = min(tensor_parallel, shape.kv_heads)
    free = SAMPLER_SHARE * memory - 2 * shape.parameters / tensor_parallel
    return int(free // (formulas.cache_bytes(shape) / shards * context))


def publication_seconds(parameters: float, links: int, link_gbit: float) -> float:
    """Return the seconds in which 16-bit weights go over `links` links of so many Gbit a second each."""
    return 2 * parameters / (links * link_gbit * 1e9 / 8)


def update_gpu_seconds(active: float, tokens: float, mfu: float, peak: float) -> float:
    """Return the GPU-seconds of an update on that many tokens."""
    return 8 * active * tokens / (mfu * peak)


def placement(cluster: ClusterSettings) -> dict[str, list[dict[str, Any]]]:
    """Place trainers on the first nodes, then each sampler; a sampler that fits into one node is not split over two."""
    train, width = cluster.train, cluster.train.gpus_per_node
    model_parallel = train.tensor_parallel * train.context_parallel * train.pipeline_parallel
    if train.nodes * width % model_parallel:
        raise ConfigError(
            f"cluster.train: tensor_parallel x context_parallel x pipeline_parallel = {model_parallel} does not divide "
            f"{train.nodes * width} GPUs (nodes x gpus_per_node)"
        )
    sampler_gpus = cluster.sample.tensor_parallel
    if sampler_gpus > width and sampler_gpus % width:
        raise ConfigError(
            f"cluster.sample.tensor_parallel={sampler_gpus} fills no whole number of nodes of {width} GPUs "
            "(cluster.train.gpus_per_node)"
        )
    samplers, first_gpu = [], train.nodes * width
    for replica in range(cluster.sample.replicas):
        # a sampler that would cross the end of a node begins at the next one, and leaves the rest of this one free
        if first_gpu % width + sampler_gpus > width and first_gpu % width:
            first_gpu += width - first_gpu % width
        nodes: dict[int, list[int]] = {}
        for gpu in range(first_gpu, first_gpu + sampler_gpus):
            nodes.setdefault(gpu // width, []).append(gpu % width)
        samplers.append({"replica": replica, "gpus": [{"node": n, "gpus": g} for n, g in nodes.items()]})
        first_gpu += sampler_gpus
    return {"train": [{"node": n, "gpus": list(range(width))} for n in range(train.nodes)], "sample": samplers}


def cluster_plan(shape: ModelShape, cluster: ClusterSettings, load: Load) -> dict[str, Any]:
    """Compute all figures of the plan, by side: bytes, seconds, tokens a second, and `advice` in sentences."""
    train = _trainer(shape, cluster, load)
    sample = _sampler(shape, cluster, load)
    publish_s = publication_seconds(shape.parameters, load.links, load.link_gbit)
    every = cluster.sync.every
    # side by side, the slower of the two sets the pace; a publication comes on top
    asynchronous_s = max(train["step_s"], sample["step_s"]) + publish_s / every
    gpus = train["gpus"] + sample["gpus"]
    trained_share = train["gpu_s"] / (train["gpu_s"] + sample["gpu_s"])
    plan = {
        "model": asdict(shape),
        "placement": placement(cluster),
        "train": train,
        "sample": sample,
        "publication": {
            "bytes": 2 * shape.parameters,
            "seconds": publish_s,
            "every": every,
            "share_of_step": publish_s / every / asynchronous_s,
        },
        "step": {
            "tokens": load.tokens,
            "synchronous_s": train["step_s"] + sample["step_s"] + publish_s / every,
            "asynchronous_s": asynchronous_s,
            "tokens_per_s_needed": load.tokens / asynchronous_s,
        },
        "split": {
            "sample_per_train": sample["gpu_s"] / train["gpu_s"],
            "train_gpus": min(gpus - 1, max(1, round(gpus * trained_share))),
            "gpus": gpus,
        },
    }
    return {**plan, "advice": _advice(plan, cluster, load)}


def _trainer(shape: ModelShape, cluster: ClusterSettings, load: Load) -> dict[str, Any]:
    settings = cluster.train
    gpus = settings.nodes * settings.gpus_per_node
    # a trajectory is never split over micro-batches, so that the longest one is the least of them
    tokens = max(load.microbatch, load.context)
    memory = {
        **sharded(shape, gpus, settings.offload),
        "gathered_units": 2 * 2 * shape.largest_unit / settings.tensor_parallel,
        **pass_bytes(shape, tokens, settings.context_parallel),
    }
    # without servers each process samples with whole weights of its own, beside its shard
    if cluster.backend in WITH_COPY and not load.served:
        memory["sampling_copy"] = 2 * shape.parameters
    gpu_s = update_gpu_seconds(shape.active, load.tokens, load.mfu, load.gpu.peak)
    return {
        "gpus": gpus,
        "memory": memory,
        "memory_bytes": sum(memory.values()),
        "memory_of_a_gpu": load.gpu.memory,
        "whole_on_each_bytes": sum(sharded(shape, 1).values()),
        "microbatch_tokens": tokens,
        "gpu_s": gpu_s,
        "step_s": gpu_s / gpus,
        "tokens_per_s": load.tokens * gpus / gpu_s,
    }


def _sampler(shape: ModelShape, cluster: ClusterSettings, load: Load) -> dict[str, Any]:
    settings = cluster.sample
    # decoding reads all active weights for each token: its speed is inverse to their number
    speed = load.sample_speed or SPEED_TIMES_PARAMETERS / shape.active
    fitting_streams = streams(shape, load.gpu.memory, load.context, settings.tensor_parallel)
    gpus, gpu_s = settings.replicas * settings.tensor_parallel, load.tokens / speed
    used_streams = max(0, min(fitting_streams, settings.max_concurrent))
    shards = min(settings.tensor_parallel, shape.kv_heads)
    return {
        "gpus": gpus,
        "memory": {
            "weights": 2 * shape.parameters / settings.tensor_parallel,
            "keys_and_values": used_streams * formulas.cache_bytes(shape) / shards * load.context,
        },
        "memory_of_a_gpu": load.gpu.memory,
        "kv_bytes_per_token": formulas.cache_bytes(shape),
        "context": load.context,
        "streams_that_fit": max(0, fitting_streams),
        "streams": used_streams,
        "gpu_s": gpu_s,
        "step_s": gpu_s / gpus,
        "tokens_per_s": speed * gpus,
    }


def _advice(plan: dict[str, Any], cluster: ClusterSettings, load: Load) -> list[str]:
    """List what does not fit or is out of balance, each with the key to change."""
    train, sample, publication, split = (plan[k] for k in ("train", "sample", "publication", "split"))
    lines = []
    # the largest part of the memory decides which setting makes it smaller
    if train["memory_bytes"] > load.gpu.memory:
        largest = max(train["memory"], key=train["memory"].__getitem__)
        remedies = {
            "activations": "raise cluster.train.context_parallel",
            "logits": "lower learner.tokens_per_microbatch",
            "sampling_copy": "more GPUs do not make it smaller: set cluster.backend=tinker, or take a smaller model",
        }
        remedy = remedies.get(largest, "raise cluster.train.nodes, or set cluster.train.offload=optimiser")
        lines.append(f"a trainer's GPU does not hold it: the most is {largest.replace('_', ' ')}; {remedy}")
    if not sample["streams_that_fit"]:
        lines.append("a sampler holds no stream of that length: raise cluster.sample.tensor_parallel")
    elif sample["streams"] < cluster.sample.max_concurrent:
        lines.append(
            f"{sample['streams']} streams fit a sampler of cluster.sample.max_concurrent="
            f"{cluster.sample.max_concurrent}: the others wait"
        )
    # publishing every n steps divides its share: n is the least one for which it is below WORTH_DELAYING
    if publication["share_of_step"] > WORTH_DELAYING:
        step_s = max(train["step_s"], sample["step_s"])
        steps_between = math.ceil(publication["seconds"] / step_s * (1 - WORTH_DELAYING) / WORTH_DELAYING)
        lines.append(
            f"a publication takes {publication['share_of_step']:.1%} of a step, more than {WORTH_DELAYING:.0%}: set "
            f"cluster.sync.every={steps_between}, or use more links"
        )
    if publication["seconds"] > cluster.sync.timeout:
        lines.append(f"a publication takes longer than cluster.sync.timeout={cluster.sync.timeout:g}: raise it")
    # a difference of one GPU, or of a fifth of all, is within the error of these estimates
    slower = "samplers" if sample["step_s"] > train["step_s"] else "trainers"
    if abs(train["gpus"] - split["train_gpus"]) > max(1, 0.2 * split["gpus"]):
        lines.append(
            f"of {split['gpus']} GPUs {split['train_gpus']} should train and {split['gpus'] - split['train_gpus']} "
            f"sample, not {train['gpus']} and {sample['gpus']}: {slower} keep the others waiting"
        )
    return lines


# ---------------------------------------------------------------- text
def cluster_text(plan: dict[str, Any]) -> str:
    """Format a plan: a line for each subject, then advice."""
    model, train, sample, publication, step, split = (
        plan[k] for k in ("model", "train", "sample", "publication", "step", "split")
    )
    trainer_memory, sampler_memory = train["memory"], sample["memory"]
    # sharded states are shown as one sum, what one micro-batch needs as figures of its own
    states = {
        k: v for k, v in trainer_memory.items() if k not in ("gathered_units", "activations", "logits", "sampling_copy")
    }
    copy_text = (
        f"; {_gb(trainer_memory['sampling_copy'])} the sampler's copy" if "sampling_copy" in trainer_memory else ""
    )
    active_text = "" if model["active"] == model["parameters"] else f" ({_rounded_count(model['active'])} active)"
    every = publication["every"]
    lines = [
        (
            "model",
            f"{_rounded_count(model['parameters'])} parameters{active_text}, {model['layers']} layers of "
            f"{model['hidden']:,}, {model['vocabulary']:,} ids",
        ),
        ("trainers", _gpu_text(plan["placement"]["train"])),
        ("samplers", _sampler_text(plan["placement"]["sample"])),
        (
            "memory, trainer",
            f"{_gb(train['memory_bytes'])} of {_gb(train['memory_of_a_gpu'])} GB a GPU: {_gb(sum(states.values()))} "
            f"{', '.join(states).replace('_', ' ')}; {_gb(trainer_memory['gathered_units'])} gathered units; "
            f"{_gb(trainer_memory['activations'])} activations of {train['microbatch_tokens']:,} tokens; "
            f"{_gb(trainer_memory['logits'])} logits{copy_text} "
            f"({_gb(train['whole_on_each_bytes'])} GB if each process held all)",
        ),
        (
            "memory, sampler",
            f"{_gb(sum(sampler_memory.values()))} of {_gb(sample['memory_of_a_gpu'])} GB a GPU: "
            f"{_gb(sampler_memory['weights'])} weights; {_gb(sampler_memory['keys_and_values'])} keys and values of "
            f"{sample['streams']} streams of {sample['context']:,} tokens "
            f"({sample['kv_bytes_per_token'] / 1e3:.0f} kB a token; {sample['streams_that_fit']} fit)",
        ),
        (
            "publication",
            f"{_gb(publication['bytes'])} GB in {publication['seconds']:.2g} s, "
            f"{'every step' if every == 1 else f'every {every} steps'}: {publication['share_of_step']:.1%} of a step",
        ),
        (
            "step",
            f"{_rounded_count(step['tokens'])} tokens: update {duration(train['step_s'])}, sampling "
            f"{duration(sample['step_s'])}; one after the other {duration(step['synchronous_s'])}, side by side "
            f"{duration(step['asynchronous_s'])}",
        ),
        (
            "tokens a second",
            f"trainers {train['tokens_per_s']:,.0f}, samplers {sample['tokens_per_s']:,.0f}; side by side both need "
            f"{step['tokens_per_s_needed']:,.0f}",
        ),
        (
            "split",
            f"{train['gpu_s']:,.0f} GPU-s to train, {sample['gpu_s']:,.0f} to sample: 1 : "
            f"{split['sample_per_train']:.1f}, of {split['gpus']} GPUs {split['train_gpus']} train and "
            f"{split['gpus'] - split['train_gpus']} sample",
        ),
        *(("advice", line) for line in plan["advice"]),
    ]
    return "\n".join(f"{name:<16} {text}" for name, text in lines) + "\nestimates: nothing was measured or loaded"


def _sampler_text(replicas: list[dict[str, Any]]) -> str:
    """Format replicas: `16 of 1 GPU each, nodes 1-2`."""
    size = sum(len(node["gpus"]) for node in replicas[0]["gpus"])
    first, last = replicas[0]["gpus"][0]["node"], replicas[-1]["gpus"][-1]["node"]
    nodes = f"node {first}" if first == last else f"nodes {first}-{last}"
    return f"{len(replicas)} of {size} GPU{'s' * (size > 1)} each, {nodes} (--json: each)"


def _gpu_text(nodes: list[dict[str, Any]]) -> str:
    """Format nodes: `nodes 0-3 GPUs 0-7`, or each node where their GPUs differ."""
    if len(nodes) > 1 and len({tuple(n["gpus"]) for n in nodes}) == 1:
        return f"nodes {nodes[0]['node']}-{nodes[-1]['node']} GPUs {_range(nodes[0]['gpus'])}"
    return ", ".join(f"node {n['node']} GPU{'s' * (len(n['gpus']) > 1)} {_range(n['gpus'])}" for n in nodes)


def _range(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _gb(size: float) -> str:
    """Format bytes in units of 10^9, with one decimal below 100."""
    return f"{size / 1e9:.0f}" if size >= 1e11 else f"{size / 1e9:.1f}"


def _rounded_count(n: float) -> str:
    """Format a count: 7.6e9 as `7.6 billion`.

    >>> _rounded_count(7615616512), _rounded_count(1e6), _rounded_count(640)
    ('7.6 billion', '1 million', '640')
    """
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if n >= size:
            return f"{round(n / size, 1):g} {name}"
    return f"{n:,.0f}"
