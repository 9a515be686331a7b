"""Memory plan of a run on one GPU that need not be there: does it fit, by which parts, and which settings make it fit.

All figures are estimates by the formulas of `gxpo.explain.memory`: nothing is measured, and nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.explain import memory
from gxpo.explain.cluster_plan import gpu_of
from gxpo.explain.memory import GPUS, Gpu, Training
from gxpo.explain.plan import arithmetic
from gxpo.learning.optimiser_kinds import Rule, betas_of, states_of
from gxpo.models.shape import ModelShape
from gxpo.training.config import RunConfig

PROMPT = 256  # tokens of a prompt, where nothing says how long prompts are
MICROBATCH = 8192  # tokens of a micro-batch that is still to be measured
KEPT = 2**17  # tokens whose keys and values an engine keeps between the turns of episodes
SHARE = 0.92  # of a GPU's memory: the rest is for CUDA's context and for gaps between blocks (an assumption)
RANK = 16  # of the adapters that are advised
ATTENTION = "[q_proj,k_proj,v_proj,o_proj]"  # what adapters of a mixture are counted on
LEAST = 512  # tokens of a micro-batch below which none is advised


def training_of(resolved: RunConfig, context: int | None) -> Training:
    """Return the settings and sizes of a run that decide its memory; its first phase's, if it has phases.

    context  tokens of the longest trajectory with its prompt; None: `PROMPT` and what the run may generate. Raises
             ConfigError where only the environment knows
    """
    s, method = resolved.settings, resolved.method
    figures = arithmetic(resolved)
    turns, rollouts = figures["actions_per_rollout_at_most"], figures["rollouts_per_step"]
    if context is None and turns is None:
        raise ConfigError("the environment decides how long a trajectory is: state its tokens with --context")
    generated = (turns or 1) * s.sampling.max_new_tokens
    longest = context or PROMPT + generated
    prompt = max(1, longest - generated)
    group_size = figures["group_size"] or 1
    tree = prompt + group_size * (longest - prompt)
    size = s.learner.tokens_per_microbatch
    limit = max(MICROBATCH if size == "auto" else size, longest)
    is_flat = s.learner.layout == "flat"
    row = longest if is_flat else min(limit, tree)
    in_step = s.tasks.per_step * (group_size * longest if is_flat else tree)
    samples = min(s.sampling.batch_rows, rollouts or s.tasks.per_step)
    kind = s.learner.optimiser
    rule = Rule(s.optim.direction, s.optim.threshold, s.optim.caution)
    # under Muon the embeddings are AdamW's, which keeps a number more: taken for all
    numbers = 2 if kind == "muon" else len(states_of(kind, betas_of(kind, s.optim.betas), rule))
    return Training(
        microbatch=min(limit, in_step),
        row=row,
        samples=samples,
        prompts=-(-samples // group_size),
        prompt=prompt,
        context=longest,
        dtype=s.learner.dtype,
        states=s.learner.states,
        optimiser_states=numbers,
        lora_rank=s.learner.lora_rank,
        base=s.learner.base,
        recompute=s.learner.recompute,
        has_reference="reference_logprob" in method.needs,
        is_flat=is_flat,
        kept_tokens=min(KEPT, samples * longest) if (turns or 2) > 1 else 0,
    )


def device_plan(shape: ModelShape, resolved: RunConfig, t: Training, gpu: str) -> dict[str, Any]:
    """Compute the plan: bytes by part of an update and of sampling, whether they fit, and `advice` in sentences.

    t  the run's memory settings, from `training_of(resolved, context)`
    """
    if t.base and shape.experts:
        raise ConfigError(f"learner.base={t.base} stores linear layers, and experts are not: leave it out")
    device = gpu_of(gpu)
    limit = SHARE * device.memory
    peaks = {"update": memory.update(shape, t), "sampling": memory.sampling(shape, t)}
    fits = {name: memory.total(parts) <= limit for name, parts in peaks.items()}
    return {
        "model": asdict(shape),
        "gpu": gpu.lower(),
        "memory_of_the_gpu": device.memory,
        "limit": limit,
        "training": asdict(t),
        **peaks,
        "fits": fits,
        "advice": _advice(shape, t, gpu.lower(), device, limit, resolved),
    }


def _advice(shape: ModelShape, t: Training, name: str, gpu: Gpu, limit: float, resolved: RunConfig) -> list[str]:
    """List what this GPU lacks, and the settings by which the run fits."""
    lines = []
    if t.dtype == "bfloat16" and not gpu.has_bfloat16:
        lines.append(f"a {name} has no bfloat16 in hardware: set learner.dtype=float32")
        t = replace(t, dtype="float32", states="float32")
    if resolved.settings.sampling.engine in ("auto", "vllm"):
        lines.append("a vLLM engine takes memory of its own beside this; sampling is counted for sampling.engine=torch")
    if shape.experts and t.lora_rank and resolved.settings.learner.lora_targets == "all-linear":
        lines.append(
            "peft may adapt the experts of a mixture too, and build their changed weights whole in each pass, which is "
            f"not counted here: set learner.lora_targets={ATTENTION}"
        )
    if _fits(shape, t, limit):
        return lines
    # the fewest changes first, and of as many those that cost least
    levers = [lever for lever in LEVERS if lever.is_possible(t, gpu, resolved, has_experts=bool(shape.experts))]
    for number in range(1, len(levers) + 1):
        for chosen in (x for x in combinations(levers, number) if _are_compatible(x, t)):
            for changed in _settings(t, list(chosen)):
                if _fits(shape, changed, limit):
                    keys = " and ".join(lever.text(changed, shape) for lever in chosen)
                    peak = max(
                        memory.total(memory.update(shape, changed)), memory.total(memory.sampling(shape, changed))
                    )
                    return [*lines, f"set {keys}: then it takes {peak / 1e9:.1f} GB at most"]
    least = min(
        max(memory.total(memory.update(shape, x)), memory.total(memory.sampling(shape, x)))
        for x in _settings(t, [lever for lever in levers if lever.field != "states"])
    )
    larger = [other for other, each in GPUS.items() if SHARE * each.memory >= least]
    where = f"; {', '.join(larger)} would hold that" if larger else "; no GPU known here holds that"
    return [
        *lines,
        f"no settings of one process make it fit (at least {least / 1e9:.1f} GB){where}; several GPUs shard it "
        "(cluster.backend=fsdp; gxpo plan with a cluster.* key shows it)",
    ]


def _fits(shape: ModelShape, t: Training, limit: float) -> bool:
    return max(memory.total(memory.update(shape, t)), memory.total(memory.sampling(shape, t))) <= limit


# ---------------------------------------------------------------- settings that save memory
@dataclass(frozen=True)
class Lever:
    """A setting that saves memory: `field` of `Training` takes one of `values`, largest need first."""

    field: str
    key: str

    def is_possible(self, t: Training, gpu: Gpu, resolved: RunConfig, *, has_experts: bool = False) -> bool:
        """Return True if the setting can be changed in this run."""
        s = resolved.settings
        is_full = not t.lora_rank
        can_be_16 = gpu.has_bfloat16 and t.dtype == "float32"
        return {
            "microbatch": t.microbatch > max(LEAST, t.context),
            "samples": t.samples > 1,
            "recompute": not t.recompute,
            "dtype": can_be_16,
            "states": is_full and gpu.has_bfloat16 and t.states == "float32" and s.learner.optimiser == "adamw",
            "lora_rank": is_full and s.cluster.backend != "verl",
            "base": not t.base and not has_experts and t.dtype != "float64" and s.cluster.backend == "local",
        }[self.field]

    def values(self, t: Training) -> Iterator[Training]:
        """Yield the run with the setting at each value that saves more."""
        if self.field == "microbatch":
            sizes = [2**k for k in range(20, 0, -1) if max(LEAST, t.context) <= 2**k < t.microbatch]
            for size in [*sizes, max(LEAST, t.context)]:
                yield replace(t, microbatch=size, row=min(t.row, size))
        elif self.field == "samples":
            by_prompt = max(1, t.samples // t.prompts)
            for samples in (2**k for k in range(20, -1, -1) if 2**k < t.samples):
                yield replace(t, samples=samples, prompts=-(-samples // by_prompt))
        elif self.field == "states":  # stochastic rounding needs 16-bit parameters
            yield replace(t, states="bfloat16", dtype="bfloat16")
        else:
            value = {"recompute": True, "dtype": "bfloat16", "lora_rank": RANK, "base": "nf4"}[self.field]
            yield replace(t, **{self.field: value})

    def text(self, t: Training, shape: ModelShape) -> str:
        """The setting as `key=value`, with those that go with it."""
        value = getattr(t, self.field)
        text = f"{self.key}={str(value).lower()}"
        if self.field == "lora_rank" and shape.experts:
            return f"{text} and learner.lora_targets={ATTENTION}"
        return f"learner.dtype=bfloat16 and {text}" if self.field == "states" else text


LEVERS = (  # by what they cost: speed, then precision, then what is trained
    Lever("microbatch", "learner.tokens_per_microbatch"),
    Lever("samples", "sampling.batch_rows"),
    Lever("recompute", "learner.recompute"),
    Lever("dtype", "learner.dtype"),
    Lever("states", "learner.states"),
    Lever("lora_rank", "learner.lora_rank"),
    Lever("base", "learner.base"),
)


def _are_compatible(levers: Sequence[Lever], t: Training) -> bool:
    """Return False for 16-bit states of adapters, which are float32, for states beside a dtype that they imply, and for
    4-bit weights without adapters."""
    fields = {lever.field for lever in levers}
    if "base" in fields and not (t.lora_rank or "lora_rank" in fields):
        return False
    return not ("states" in fields and fields & {"dtype", "lora_rank"})


def _settings(t: Training, levers: list[Lever]) -> Iterator[Training]:
    """Yield the run with all these settings changed, at each combination of their values."""
    if not levers:
        yield t
        return
    for changed in levers[0].values(t):
        yield from _settings(changed, levers[1:])


# ---------------------------------------------------------------- text
def device_text(plan: dict[str, Any], source: str | None = None, *, is_assumed: bool = False) -> str:
    """Format a plan: a line for each subject, then advice.

    source      where the model's sizes are from; None: they were read
    is_assumed  nobody has said how long prompts are
    """
    model, t = plan["model"], plan["training"]
    mixture = f", {model['experts']} experts, {model['active_experts']} of them active" if model["experts"] else ""
    prompts = f"prompts of {t['prompt']:,} tokens{' (assumed: --context)' if is_assumed else ''}"
    adapters = f", adapters of rank {t['lora_rank']}" if t["lora_rank"] else ""
    storage = f"{t['base']} beside {t['dtype']}" if t["base"] else t["dtype"]
    lines = [
        (
            "model",
            f"{model['parameters'] / 1e9:.3g} billion parameters in {storage}{adapters}, {model['layers']} layers "
            f"of {model['hidden']:,}, {model['vocabulary']:,} ids{mixture}{f' (sizes of {source})' if source else ''}",
        ),
        ("device", f"{plan['gpu']}: {_gb(plan['memory_of_the_gpu'])} GB, {_gb(plan['limit'])} of them for the run"),
        (
            "work",
            f"micro-batches of {t['microbatch']:,} tokens in rows of {t['row']:,}; {t['samples']:,} samples of "
            f"{t['context']:,} tokens together; {prompts}",
        ),
        *((name, _parts_text(plan[name], plan["fits"][name])) for name in ("update", "sampling")),
        *(("advice", line) for line in plan["advice"]),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in lines) + "\nestimates: nothing was measured or loaded"


def _parts_text(parts: dict[str, float], fits: bool) -> str:
    listed = ", ".join(f"{_gb(n)} {name}" for name, n in parts.items() if n >= 5e7)
    return f"{_gb(memory.total(parts))} GB, {'fits' if fits else 'does not fit'}: {listed}"


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}"
