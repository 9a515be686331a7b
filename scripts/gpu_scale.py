"""Measurements of `scripts/gpu.py` beyond one short row: trees by attention, a 7B adapter, a run that is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gpu_measures import GROUP, SHAPES, Peak, clock, random_forest, random_model, random_requests, sampled_forest

if TYPE_CHECKING:
    from gpu import Figures

ROOT = Path(__file__).resolve().parents[1]


# ---------------------------------------------------------------- trees
@dataclass(frozen=True)
class Way:
    """How rows of a transformers model attend: settings of the learner, and the kernel that the model is made with."""

    layout: str
    attention: str = "auto"
    kernel: str = "sdpa"


WAYS = {
    "flex": Way("packed", "flex"),
    "dense": Way("packed", "dense"),
    "flat": Way("flat"),
    "varlen": Way("flat", kernel="flash_attention_2"),
}


def trees(figures: Figures) -> None:
    """Compare packed trees by FlexAttention and by a dense mask, and flat rows by sdpa and flash attention: gradients,
    tokens a second, peak memory; and from which length on FlexAttention is faster."""
    shape = "toy" if figures.toy else "qwen2.5-0.5b"
    ways = [way for way in WAYS if is_usable(way, figures.device)]
    sizes = [(4, 8, 16)] if figures.toy else [(16, 4096, 2048), (8, 2048, 8192)]
    for way in [way for way in ways if way != "flat"]:
        figures.take(f"trees:gradient/{shape}/{way}", lambda way=way: against_flat(figures, shape, way))
    for samples, prompt, new in sizes:
        for way in ways:
            figures.take(
                f"trees:update/{shape}/{samples}x{new}on{prompt}/{way}",
                lambda way=way, s=samples, p=prompt, n=new: tree_update(figures, shape, way, s, p, n),
            )
    for length in (64,) if figures.toy else (1024, 2048, 4096, 8192, 16384):
        for way in ("flex", "dense"):  # eight samples on a prompt of a third of the row
            figures.take(
                f"trees:row/{shape}/{length}/{way}",
                lambda way=way, n=length: tree_update(figures, shape, way, 8, n // 3, n // 12),
            )


def is_usable(way: str, device: str) -> bool:
    """Tell whether this machine has the kernel; says so if not."""
    if WAYS[way].kernel != "flash_attention_2":
        return True
    if device == "cuda" and importlib.util.find_spec("flash_attn") is not None:
        return True
    print(f"trees: {way} skipped: it needs CUDA and the package flash-attn", flush=True)
    return False


def learner_of(figures: Figures, shape: str, way: str, dtype: torch.dtype, size: int) -> Any:
    from gxpo.learning.torch import TorchLearner

    setting = WAYS[way]
    model = random_model(shape, figures.device, dtype)
    if setting.kernel != "sdpa":
        model.set_attn_implementation(setting.kernel)
    return TorchLearner(model, lr=1e-6, device=figures.device, layout=setting.layout, attention=setting.attention,
                        kernels="transformers", recompute=True, tokens_per_microbatch=size)  # fmt: skip


def spread_loss(x: Mapping[str, Any]) -> Any:
    weight = torch.linspace(-1, 1, x["logprob"].numel(), dtype=torch.float64)
    return (weight * x["logprob"]).sum() / x["logprob"].numel()


def against_flat(figures: Figures, shape: str, way: str) -> dict[str, Any]:
    """Compare log-probs and gradient with flat rows by sdpa: of float32 (flash attention: bfloat16)."""
    dtype = torch.bfloat16 if WAYS[way].kernel == "flash_attention_2" else torch.float32
    forest = random_forest(SHAPES[shape]["vocab_size"], 2, 3 if figures.toy else 100, 5 if figures.toy else 60)
    way_learner, flat_learner = (learner_of(figures, shape, name, dtype, 8192) for name in (way, "flat"))
    gap = (way_learner.outputs(forest)["logprob"] - flat_learner.outputs(forest)["logprob"]).abs()
    row: dict[str, Any] = {"dtype": str(dtype), "logprob_largest_nats": float(gap.max())}
    if not has_backward(figures, way):
        return row
    gradient, flat_gradient = (learner.gradient(forest, spread_loss) for learner in (way_learner, flat_learner))
    squared_gap = sum(float((gradient[n] - g).double().square().sum()) for n, g in flat_gradient.items())
    return row | {"gradient_relative_difference": (squared_gap / sum(map(squared_norm, flat_gradient.values()))) ** 0.5}


def squared_norm(x: torch.Tensor) -> float:
    return float(x.double().square().sum())


def has_backward(figures: Figures, way: str) -> bool:
    """Tell whether gradients can be taken: FlexAttention has no backward pass on CPUs, there its log-probs are
    taken."""
    return way != "flex" or figures.device != "cpu"


def tree_update(figures: Figures, shape: str, way: str, samples: int, prompt: int, new: int) -> dict[str, Any]:
    """Time the second of two updates in bfloat16 on `samples` completions of one prompt, a tree in one row where it is
    packed; activations are recomputed."""
    learner = learner_of(figures, shape, way, torch.bfloat16, prompt + samples * new)
    forest = random_forest(SHAPES[shape]["vocab_size"], 1, prompt, new, group=samples)
    run: Callable[[], Any] = lambda: learner.step(forest, spread_loss)  # noqa: E731
    if not has_backward(figures, way):
        run = lambda: learner.outputs(forest)  # noqa: E731
    start = clock(figures.device)
    run()
    first, peak, start = clock(figures.device) - start, Peak(figures.device), clock(figures.device)
    info = run()
    seconds = clock(figures.device) - start
    return {
        "backward": has_backward(figures, way),
        "action_tokens_per_s": samples * new / seconds,
        "seconds": seconds,
        "first_seconds": first,
        "tokens_forward": getattr(info, "tokens_forward", None),
        **peak.figures(),
    }


# ---------------------------------------------------------------- 7B, adapters
def lora(figures: Figures) -> None:
    """Measure an adapter of rank 16 on a 7B model: peak memory, seconds of an update, bytes and seconds of its
    publication."""
    shape = "toy" if figures.toy else "qwen2.5-7b"
    figures.take(f"lora:{shape}", lambda: adapter_update(figures, shape))


def adapter_update(figures: Figures, shape: str) -> dict[str, Any]:
    import transformers

    from gxpo.learning.lora import LoraSettings
    from gxpo.learning.torch import TorchLearner

    prompt, new = (8, 8) if figures.toy else (256, 512)
    config = transformers.Qwen2Config(**SHAPES[shape], dtype=torch.bfloat16)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # 7B in float32 would be held first
    try:
        with torch.device(figures.device):
            model = transformers.Qwen2ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    learner = TorchLearner(model, lr=1e-5, device=figures.device, lora=LoraSettings(rank=16), recompute=True,
                           tokens_per_microbatch=8192)  # fmt: skip
    forest = random_forest(config.vocab_size, 2, prompt, new)
    learner.step(forest, spread_loss)
    peak, start = Peak(figures.device), clock(figures.device)
    learner.step(forest, spread_loss)
    seconds, start = clock(figures.device) - start, clock(figures.device)
    adapter = {n: x.detach().to("cpu") for n, x in learner.model.named_parameters() if x.requires_grad}
    return {
        "step_s": seconds,
        "action_tokens_per_s": forest.n_entries / seconds,
        "adapter_bytes": sum(x.numel() * x.element_size() for x in adapter.values()),
        "to_host_s": clock(figures.device) - start,
        **peak.figures(),
    }


# ---------------------------------------------------------------- kill -9
def kill(figures: Figures) -> None:
    """Compare a run killed with SIGKILL between two checkpoints and resumed with one that was left alone."""
    figures.take("kill:resume", lambda: compare_killed(figures))


def compare_killed(figures: Figures) -> dict[str, Any]:
    steps = 12 if figures.toy else 30
    keys = {"task": "arithmetic", "model": "tiny:cold", "method": "grpo", "trainer.steps": steps, "eval.tasks": 2,
            "tasks.per_step": 4, "sampling.max_new_tokens": 8, "trainer.checkpoint_every": 3,
            "learner.device": figures.device, "eval.every": 0}  # fmt: skip
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    with tempfile.TemporaryDirectory() as folder:
        whole, part = Path(folder) / "whole", Path(folder) / "part"
        start_gxpo(figures, "train", *words, "--out", whole).wait()
        process = start_gxpo(figures, "train", *words, "--out", part)
        while process.poll() is None and len(metric_rows(part)) < 5:  # past the checkpoint of step 3
            time.sleep(0.01)
        process.kill()
        process.wait()
        steps_done = len(metric_rows(part))
        if not 5 <= steps_done < steps:
            raise RuntimeError(f"the run was to be killed after step 5 of {steps}, and has {steps_done}")
        start = time.monotonic()
        start_gxpo(figures, "resume", part).wait()
        rows, resumed_rows = metric_rows(whole), metric_rows(part)
    return {
        "killed_after_step": steps_done,
        "resume_s": time.monotonic() - start,
        "steps": len(resumed_rows),
        "equal_weights": [row["weights_fingerprint"] for row in rows]
        == [row["weights_fingerprint"] for row in resumed_rows],
    }


def start_gxpo(figures: Figures, *words: Any) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-m", "gxpo", *map(str, words)], env=environment, **quiet)


def metric_rows(run: Path) -> list[dict[str, Any]]:
    """Read the whole lines of the run's metrics so far."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


# ---------------------------------------------------------------- vLLM beside the learner
def vllm(figures: Figures) -> None:
    """Measure vLLM beside the learner's model, awake on the same GPU: start, tokens a second at 64 and 256 streams,
    publication with its checksums, gap between its log-probs and the learner's."""
    from gxpo.sampling.engines.vllm_process import PROGRAM, can_import, interpreter

    python = interpreter(os.environ.get("GXPO_VLLM_PYTHON"))
    program = (PROGRAM,)
    if figures.toy:
        program = (str(ROOT / "tests" / "sampling" / "engines" / "fake_vllm.py"), PROGRAM)
    elif not can_import(python):
        print(f"vllm: skipped: {python} has no vLLM; GXPO_VLLM_PYTHON names an interpreter that has", flush=True)
        return
    shape = "toy" if figures.toy else "qwen2.5-0.5b"
    figures.take(f"vllm:{shape}", lambda: measure_beside(figures, shape, python, program))


def measure_beside(figures: Figures, shape: str, python: str, program: tuple[str, ...]) -> dict[str, Any]:
    from gxpo.learning.torch import TorchLearner
    from gxpo.parts.protocols import Sampling
    from gxpo.sampling.engines.vllm import VllmEngine

    new, streams = (4, (8, 16)) if figures.toy else (400, (64, 256))
    model = random_model(shape, figures.device, torch.float32 if figures.toy else torch.bfloat16)
    options = {"max_model_len": 1024} | ({} if figures.device == "cpu" else {"gpu_memory_utilization": 0.4})
    start = time.monotonic()
    engine = VllmEngine(model, python=python, program=program, stop_ids=(), arguments=options)
    row: dict[str, Any] = {"start_s": time.monotonic() - start, "vllm": engine.vllm_version}
    try:
        for n_streams in streams:
            requests = random_requests(model.config.vocab_size, n_streams, prompt=16)
            start = time.monotonic()
            answers = engine.sample(requests, Sampling(max_new_tokens=new))
            row[f"tokens_per_s_{n_streams}"] = n_streams * new / (time.monotonic() - start)
        group_requests = random_requests(model.config.vocab_size, GROUP, prompt=16)
        sample_seconds = []
        for version in (0, 1):  # the second sends the weights first, and compares every checksum
            engine.policy_version = version
            start = time.monotonic()
            engine.sample(group_requests, Sampling(max_new_tokens=1))
            sample_seconds.append(time.monotonic() - start)
    finally:
        engine.close()
    forest = sampled_forest(requests, answers)
    learner: Any = TorchLearner(model, lr=0.0, device=figures.device)
    gap = (learner.outputs(forest)["logprob"] - forest.path_behaviour_logprob).abs()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return {
        **row,
        "publish_s": max(0.0, sample_seconds[1] - sample_seconds[0]),
        "weights_bytes": size,
        "gap_mean_nats": float(gap.mean()),
        "gap_largest_nats": float(gap.max()),
        "gap_tokens": gap.numel(),
    }
