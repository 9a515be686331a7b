"""Weight transfer to another process: by checkpoint names, in shared memory."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import ModelError
from gxpo.models.decoder.vision import vision_of
from gxpo.sampling.engines.in_vllm.gxpo_vllm import checksum

ALIGNED = 64  # bytes
MEMORY = Path("/dev/shm")
TOWER = "vision_tower."  # of Llava
WITHIN = f"{TOWER}vision_model."  # where CLIP and SigLIP have their parameters in vLLM


def weights_of(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers by name, each tensor once; peft adapters are merged into their weights.

    Those of a model that sees have the names of its checkpoint, which vLLM reads; transformers 5 has others for some.
    The sum is rounded to the weights' own type, so in bfloat16 small adapters lose digits that the learner, which runs
    them beside the weights, has.
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    found = _by_module(causal)
    return found if vision_of(causal) is None else iter(in_checkpoint(causal, dict(found)).items())


def in_checkpoint(causal: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the names that `save_pretrained` writes. `ModelError` where it writes other tensors.

    A tower of Llava is told by its older names also where the checkpoint was written by transformers 5.
    """
    converting: Any = importlib.import_module("transformers.core_model_loading")
    found: dict[str, Tensor] = converting.revert_weight_conversion(causal, dict(weights))
    own = {id(x) for x in weights.values()}
    if len(found) != len(weights) or not {id(x) for x in found.values()} <= own:
        raise ModelError(
            f"{type(causal).__name__}: its checkpoint holds other tensors than the model, and vLLM would be given the "
            "model's: set sampling.engine=torch"
        )
    return {(WITHIN + name.removeprefix(TOWER) if _is_bare(name) else name): x for name, x in found.items()}


def _is_bare(name: str) -> bool:
    return name.startswith(TOWER) and not name.startswith(WITHIN)


def _by_module(causal: Any) -> Iterator[tuple[str, Tensor]]:
    adapted = {name: m for name, m in causal.named_modules() if hasattr(m, "base_layer")}
    seen: set[int] = set()
    for name, x in causal.state_dict(keep_vars=True).items():
        if id(x) in seen:  # a head that is the embedding
            continue
        seen.add(id(x))
        owner = next((o for o in adapted if name.startswith(f"{o}.")), None)
        if owner is None:
            yield name, x.detach()
        elif name.startswith(f"{owner}.base_layer."):
            own = name.removeprefix(f"{owner}.base_layer.")
            yield f"{owner}.{own}", _adapted(adapted[owner], x.detach()) if own == "weight" else x.detach()


@torch.no_grad()
def _adapted(layer: Any, weight: Tensor) -> Tensor:
    if getattr(layer, "disable_adapters", False):
        return weight
    names = [name for name in layer.active_adapters if name in layer.lora_A or name in layer.lora_embedding_A]
    deltas = [layer.get_delta_weight(name).to(torch.float32) for name in names]
    return (weight.to(torch.float32) + sum(deltas)).to(weight.dtype) if deltas else weight


class SharedWeights:
    """A shared memory file of weights; unlinked as soon as the other side has opened it."""

    def __init__(self) -> None:
        self._bytes: Tensor | None = None
        self.path: Path | None = None

    def write(self, model: Any) -> tuple[dict[str, Any], dict[str, int]]:
        """Copy the weights into the file; gives its layout for the reader, and a checksum of every tensor."""
        entries: list[list[Any]] = []
        sums: dict[str, int] = {}
        place = 0
        tensors = dict(weights_of(model))
        for name, x in tensors.items():
            size = x.numel() * x.element_size()
            entries.append([name, str(x.dtype).removeprefix("torch."), list(x.shape), place, size])
            sums[name] = checksum(x)
            place += -(-size // ALIGNED) * ALIGNED
        fresh = self._bytes is None or self._bytes.numel() != place
        if fresh:
            self._open(place)
        assert self._bytes is not None
        for (_, _, shape, start, size), x in zip(entries, tensors.values(), strict=True):
            self._bytes[start : start + size].view(x.dtype).view(shape).copy_(x)
        return {"path": str(self.path) if fresh else None, "bytes": place, "tensors": entries}, sums

    def _open(self, size: int) -> None:
        self.unlink()
        place = MEMORY if os.access(MEMORY, os.W_OK) else None
        handle, name = tempfile.mkstemp(prefix="gxpo-weights-", dir=place)
        with os.fdopen(handle, "wb") as file:
            file.truncate(size)
        self.path = Path(name)
        self._bytes = torch.from_file(name, shared=True, size=size, dtype=torch.uint8)

    def unlink(self) -> None:
        """Unlink the file: its memory is freed once it is closed everywhere."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.path = None
