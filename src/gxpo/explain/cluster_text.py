"""A cluster plan (`gxpo.explain.cluster_plan`) as lines of text."""

from __future__ import annotations

from typing import Any

from gxpo.explain.plan import duration


def cluster_text(found: dict[str, Any]) -> str:
    """The plan, a line a subject, and what to change."""
    model, train, sample, publication, step, split = (
        found[k] for k in ("model", "train", "sample", "publication", "step", "split")
    )
    held, cached = train["memory"], sample["memory"]
    states = {k: v for k, v in held.items() if k not in ("gathered_units", "activations", "logits", "sampling_copy")}
    copy = f"; {_gb(held['sampling_copy'])} the sampler's copy" if "sampling_copy" in held else ""
    active = "" if model["active"] == model["parameters"] else f" ({_many(model['active'])} active)"
    every = publication["every"]
    lines = [
        (
            "model",
            f"{_many(model['parameters'])} parameters{active}, {model['layers']} layers of {model['hidden']:,}, "
            f"{model['vocabulary']:,} ids",
        ),
        ("trainers", _gpus(found["placement"]["train"])),
        ("samplers", _samplers(found["placement"]["sample"])),
        (
            "memory, trainer",
            f"{_gb(train['memory_bytes'])} of {_gb(train['memory_of_a_gpu'])} GB a GPU: {_gb(sum(states.values()))} "
            f"{', '.join(states).replace('_', ' ')}; {_gb(held['gathered_units'])} gathered units; "
            f"{_gb(held['activations'])} activations of {train['microbatch_tokens']:,} tokens; "
            f"{_gb(held['logits'])} logits{copy} ({_gb(train['whole_on_each_bytes'])} GB if each process held all)",
        ),
        (
            "memory, sampler",
            f"{_gb(sum(cached.values()))} of {_gb(sample['memory_of_a_gpu'])} GB a GPU: {_gb(cached['weights'])} "
            f"weights; {_gb(cached['keys_and_values'])} keys and values of {sample['streams']} streams of "
            f"{sample['context']:,} tokens ({sample['kv_bytes_per_token'] / 1e3:.0f} kB a token; "
            f"{sample['streams_that_fit']} fit)",
        ),
        (
            "publication",
            f"{_gb(publication['bytes'])} GB in {publication['seconds']:.2g} s, "
            f"{'every step' if every == 1 else f'every {every} steps'}: {publication['share_of_step']:.1%} of a step",
        ),
        (
            "step",
            f"{_many(step['tokens'])} tokens: update {duration(train['step_s'])}, sampling "
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
        *(("advice", line) for line in found["advice"]),
    ]
    return "\n".join(f"{name:<16} {text}" for name, text in lines) + "\nestimates: nothing was measured or loaded"


def _samplers(replicas: list[dict[str, Any]]) -> str:
    """`16 of 1 GPU, nodes 1-2`."""
    size = sum(len(node["gpus"]) for node in replicas[0]["gpus"])
    first, last = replicas[0]["gpus"][0]["node"], replicas[-1]["gpus"][-1]["node"]
    nodes = f"node {first}" if first == last else f"nodes {first}-{last}"
    return f"{len(replicas)} of {size} GPU{'s' * (size > 1)} each, {nodes} (--json: each)"


def _gpus(nodes: list[dict[str, Any]]) -> str:
    """`nodes 0-3 GPUs 0-7`, or each node where they differ."""
    if len(nodes) > 1 and len({tuple(n["gpus"]) for n in nodes}) == 1:
        return f"nodes {nodes[0]['node']}-{nodes[-1]['node']} GPUs {_range(nodes[0]['gpus'])}"
    return ", ".join(f"node {n['node']} GPU{'s' * (len(n['gpus']) > 1)} {_range(n['gpus'])}" for n in nodes)


def _range(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _gb(size: float) -> str:
    """10^9 bytes, one place after the point below 100."""
    return f"{size / 1e9:.0f}" if size >= 1e11 else f"{size / 1e9:.1f}"


def _many(n: float) -> str:
    """`7.6e9` as 7.6 billion.

    >>> _many(7615616512), _many(1e6), _many(640)
    ('7.6 billion', '1 million', '640')
    """
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if n >= size:
            return f"{round(n / size, 1):g} {name}"
    return f"{n:,.0f}"
