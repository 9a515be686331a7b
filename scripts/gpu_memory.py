"""Peak memory on a device against the formulas of `gxpo plan --gpu` (`gxpo.explain.memory`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from gpu_measures import GROUP, SHAPES, functions_of, random_forest, random_model, sample
from gpu_scale import spread_loss

if TYPE_CHECKING:
    from gpu import Figures

WAYS: Mapping[str, Mapping[str, Any]] = {  # settings of a learner, by name
    "float32": {},
    "float32/recompute": {"recompute": True},
    "float32/lora": {"lora_rank": 16},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16/states": {"dtype": "bfloat16", "states": "bfloat16"},
    "bfloat16/lora/recompute": {"dtype": "bfloat16", "lora_rank": 16, "recompute": True},
}


def memory(figures: Figures) -> None:
    """Measure the bytes that torch has allocated in the second update in two micro-batches and in sampling, by way of
    training."""
    shape = "toy" if figures.toy else "qwen2.5-0.5b"
    for way in WAYS:
        figures.take(f"memory:update/{shape}/{way}", lambda way=way: measure_update(figures, shape, way))
    for dtype in ("float32", "bfloat16"):
        figures.take(f"memory:sampling/{shape}/{dtype}", lambda dtype=dtype: measure_sampling(figures, shape, dtype))


class Allocated:
    """Bytes allocated on a device since this was made, at their peak; 0 on a CPU, which counts none."""

    def __init__(self, device: str) -> None:
        self.functions = functions_of(device)
        self.before = 0
        if self.functions is not None:
            self.functions.empty_cache()
            self.functions.reset_peak_memory_stats()
            self.before = self.functions.memory_allocated()

    def figures(self, bytes_by_part: Mapping[str, float]) -> dict[str, Any]:
        peak = 0 if self.functions is None else self.functions.max_memory_allocated() - self.before
        total = sum(bytes_by_part.values())
        return {
            "peak_gb": peak / 1e9,
            "foretold_gb": total / 1e9,
            "foretold_over_peak": total / peak if peak else None,
            "parts_gb": {name: round(n / 1e9, 3) for name, n in bytes_by_part.items()},
        }


def measure_update(figures: Figures, shape: str, way: str) -> dict[str, Any]:
    from gxpo.explain.memory import Training, update
    from gxpo.learning.lora import LoraSettings
    from gxpo.learning.torch import TorchLearner
    from gxpo.models.shape import shape_of_model

    settings = dict(WAYS[way])
    prompt, new, size = (4, 8, 68) if figures.toy else (128, 512, 4224)
    allocated = Allocated(figures.device)
    model = random_model(shape, figures.device, getattr(torch, settings.get("dtype", "float32")))
    sizes = shape_of_model(model)
    rank = settings.pop("lora_rank", 0)
    learner = TorchLearner(
        model, lr=1e-6, device=figures.device, kernels="transformers", attention="dense", tokens_per_microbatch=size,
        lora=LoraSettings(rank=rank) if rank else None, recompute=settings.get("recompute", False),
        states=settings.get("states", "float32"),
    )  # fmt: skip
    forest = random_forest(SHAPES[shape]["vocab_size"], 2, prompt, new)
    for _ in range(2):
        info = learner.step(forest, spread_loss)
    longest = prompt + GROUP * new
    training = Training(
        microbatch=longest,
        row=longest,
        samples=1,
        prompts=1,
        prompt=prompt,
        context=prompt + new,
        lora_rank=rank,
        **settings,
    )
    return {"microbatches": info.microbatches, **allocated.figures(update(sizes, training))}


def measure_sampling(figures: Figures, shape: str, dtype: str) -> dict[str, Any]:
    from gxpo.explain.memory import Training, sampling
    from gxpo.models.shape import shape_of_model

    samples, prompt, new = (8, 4, 8) if figures.toy else (64, 256, 512)
    allocated = Allocated(figures.device)
    model = random_model(shape, figures.device, getattr(torch, dtype))
    sample(model, figures.device, samples, prompt=prompt, new=new)
    training = Training(
        microbatch=1, row=1, samples=samples, prompts=samples // GROUP, prompt=prompt, context=prompt + new, dtype=dtype
    )
    bytes_by_part = {name: n for name, n in sampling(shape_of_model(model), training).items() if name != "optimiser"}
    return allocated.figures(bytes_by_part)
