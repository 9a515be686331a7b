"""Weights of the learner for vLLM: in shared memory for gxpo's own vLLM process, in safetensors files for vLLM servers.

Servers are vLLM 0.32 in developer mode (`VLLM_SERVER_DEV_MODE=1`), started with the worker extension
`engines.in_vllm.gxpo_vllm.WeightLoader`: `/collective_rpc` loads a file in every worker of a server and returns which
publication each one holds, `/reset_prefix_cache` drops keys and values of the old weights.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import torch
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import save_file
from torch import Tensor

from gxpo.base.errors import ConfigError, ModelError
from gxpo.base.remote import Line, Unanswered, plain
from gxpo.models.decoder.vision import vision_of
from gxpo.sampling.engines.decode import parameter_version
from gxpo.sampling.engines.in_vllm.gxpo_vllm import checksum

ALIGNED = 64  # bytes
MEMORY = Path("/dev/shm")
TOWER = "vision_tower."  # of Llava
WITHIN = f"{TOWER}vision_model."  # where CLIP and SigLIP have their parameters in vLLM
ANSWER = 1 << 24  # bytes of a server's answer
ASKING = 30.0  # seconds until a server has to have answered which weights it holds
FOLDER = "gxpo-weights-"  # prefix of a run's own folder of weights; a random word follows
LOCK = ".lock"  # in that folder; held as long as the run lives


# ---------------------------------------------------------------- names and tensors
def weights_of(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers by name, each tensor once; peft adapters are merged into their weights.

    Parameters of a vision-language model have the names of its checkpoint, which vLLM expects; transformers 5 renames
    some. Weight plus adapter is rounded to the weight's own dtype, so in bfloat16 small adapters lose digits that the
    learner, which runs them beside the weights, keeps.
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    weights = _merged_weights(causal)
    return weights if vision_of(causal) is None else iter(with_checkpoint_names(causal, dict(weights)).items())


def with_checkpoint_names(causal: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors as `save_pretrained` writes them; `ModelError` if it would write other tensors.

    Llava's vision tower gets its older names even if transformers 5 wrote the checkpoint.
    """
    converting: Any = importlib.import_module("transformers.core_model_loading")
    checkpoint_weights: dict[str, Tensor] = converting.revert_weight_conversion(causal, dict(weights))
    # A conversion that splits or merges tensors makes new ones: vLLM would then be sent tensors that the model lacks.
    model_tensor_ids = {id(x) for x in weights.values()}
    if len(checkpoint_weights) != len(weights) or not {id(x) for x in checkpoint_weights.values()} <= model_tensor_ids:
        raise ModelError(
            f"{type(causal).__name__}: its checkpoint holds other tensors than the model, and vLLM would be given the "
            "model's: set sampling.engine=torch"
        )
    return {
        (WITHIN + name.removeprefix(TOWER) if _is_bare(name) else name): x for name, x in checkpoint_weights.items()
    }


def _is_bare(name: str) -> bool:
    """Return True for a vision tower parameter without the `vision_model.` level that vLLM has."""
    return name.startswith(TOWER) and not name.startswith(WITHIN)


def _merged_weights(causal: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor, peft's wrapping removed from the names and its adapters added to the weights."""
    adapted_layers = {name: m for name, m in causal.named_modules() if hasattr(m, "base_layer")}
    yielded_ids: set[int] = set()
    for name, x in causal.state_dict(keep_vars=True).items():
        if id(x) in yielded_ids:  # a head tied to the embedding is the same tensor
            continue
        yielded_ids.add(id(x))
        owner = next((o for o in adapted_layers if name.startswith(f"{o}.")), None)
        if owner is None:
            yield name, x.detach()
        elif name.startswith(f"{owner}.base_layer."):
            parameter_name = name.removeprefix(f"{owner}.base_layer.")
            yield (
                f"{owner}.{parameter_name}",
                _with_adapters(adapted_layers[owner], x.detach()) if parameter_name == "weight" else x.detach(),
            )


@torch.no_grad()
def _with_adapters(layer: Any, weight: Tensor) -> Tensor:
    """Weight plus the deltas of the layer's active adapters, summed in float32."""
    if getattr(layer, "disable_adapters", False):
        return weight
    names = [name for name in layer.active_adapters if name in layer.lora_A or name in layer.lora_embedding_A]
    deltas = [layer.get_delta_weight(name).to(torch.float32) for name in names]
    return (weight.to(torch.float32) + sum(deltas)).to(weight.dtype) if deltas else weight


# ---------------------------------------------------------------- shared memory, for our own process
class SharedWeights:
    """Shared-memory file of weights, unlinked as soon as the vLLM process has opened it."""

    def __init__(self) -> None:
        self._bytes: Tensor | None = None
        self.path: Path | None = None

    def write(self, model: Any) -> tuple[dict[str, Any], dict[str, int]]:
        """Copy the weights into the file; return its layout for the reader and a checksum of every tensor."""
        entries: list[list[Any]] = []
        sums: dict[str, int] = {}
        offset = 0
        tensors = dict(weights_of(model))
        for name, x in tensors.items():
            size = x.numel() * x.element_size()
            entries.append([name, str(x.dtype).removeprefix("torch."), list(x.shape), offset, size])
            sums[name] = checksum(x)
            offset += -(-size // ALIGNED) * ALIGNED
        # A file of the same size stays mapped on both sides: later updates send no path and copy in place.
        needs_new_file = self._bytes is None or self._bytes.numel() != offset
        if needs_new_file:
            self._open(offset)
        assert self._bytes is not None
        for (_, _, shape, start, size), x in zip(entries, tensors.values(), strict=True):
            self._bytes[start : start + size].view(x.dtype).view(shape).copy_(x)
        return {"path": str(self.path) if needs_new_file else None, "bytes": offset, "tensors": entries}, sums

    def _open(self, size: int) -> None:
        """Create and map a file of `size` bytes, in /dev/shm where it is writable."""
        self.unlink()
        folder = MEMORY if os.access(MEMORY, os.W_OK) else None
        handle, name = tempfile.mkstemp(prefix="gxpo-weights-", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.truncate(size)
        self.path = Path(name)
        self._bytes = torch.from_file(name, shared=True, size=size, dtype=torch.uint8)

    def unlink(self) -> None:
        """Unlink the file: its memory is freed once no process maps it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.path = None


# ---------------------------------------------------------------- files, for servers
Result = TypeVar("Result", bound="WorkerState")


class WorkerState(BaseModel):
    """State that a vLLM worker reports: `boot` names its process, `stamp` the publication that it has loaded."""

    model_config = ConfigDict(strict=True, frozen=True)

    boot: str
    stamp: str | None = None


class LoadReport(WorkerState):
    """Worker state after loading: tensors whose checksums were `wrong`, checksums of parameters `held` afterwards."""

    wrong: list[str] = []
    held: Mapping[str, int] = {}


class Results(BaseModel, Generic[Result]):
    """Response of /collective_rpc: one result from each worker of the server."""

    model_config = ConfigDict(strict=True)

    results: Annotated[list[Result], Field(min_length=1)]


class Reset(BaseModel):
    """Response of /reset_prefix_cache; `success` is false while blocks are in use."""

    model_config = ConfigDict(strict=True)

    success: bool = True


@dataclass(frozen=True)
class Publication:
    """Published weights: file, `stamp` (unique over all runs), policy version, and a checksum of each tensor."""

    path: Path
    stamp: str
    version: int
    sums: Mapping[str, int]

    @property
    def message(self) -> str:
        """JSON argument of `WeightLoader.gxpo_load`."""
        return json.dumps({"path": str(self.path), "stamp": self.stamp, "sums": dict(self.sums)})


class WeightFiles:
    """Weight files of a run, in its own subfolder of a folder that the servers see by the same path.

    Subfolders left by killed runs (no process holds their lock) are removed.
    """

    def __init__(self, model: Any, folder: str) -> None:
        self.model = model
        shared_folder = Path(folder).expanduser().resolve()
        if not shared_folder.is_dir():
            raise ConfigError(f"sampling.engine_options: weights={folder} is no folder; name one that the servers see")
        _remove_abandoned(shared_folder)
        new_folder = Path(tempfile.mkdtemp(prefix=".partial-", dir=shared_folder))
        new_folder.chmod(0o755)  # the servers may be another user's
        self._lock = FileLock(new_folder / LOCK, thread_local=False)
        with contextlib.suppress(OSError, NotImplementedError):  # a file system without locks
            self._lock.acquire(timeout=0)
        self.folder = shared_folder / f"{FOLDER}{new_folder.name.removeprefix('.partial-')}"
        # Renamed last: another run that cleans up can only ever see the folder with its lock held.
        os.rename(new_folder, self.folder)
        self._run, self._number = uuid.uuid4().hex[:12], 0

    def parameter_version(self) -> int:
        """Version counter of the model's parameters; a change means new weights to publish."""
        return parameter_version(self.model)

    def write(self, version: int) -> Publication:
        """Write the current weights to a new file; the final name appears only when the file is complete."""
        self._number += 1
        tensors = {name: x.detach().to("cpu").contiguous() for name, x in weights_of(self.model)}
        path = self.folder / f"weights-{self._number}.safetensors"
        partial = path.with_suffix(".partial")
        save_file(tensors, partial)
        os.replace(partial, path)
        sums = {name: checksum(x) for name, x in tensors.items()}
        return Publication(path, f"{self._run}-{self._number}", version, sums)

    def keep_only(self, publication: Publication) -> None:
        """Remove the files of all other publications."""
        for path in self.folder.iterdir():
            if path != publication.path and path.name != LOCK:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder and release its lock."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()


def _remove_abandoned(shared_folder: Path) -> None:
    """Remove weight folders whose lock no process holds."""
    for folder in shared_folder.glob(f"{FOLDER}*"):
        if not (folder / LOCK).is_file():
            continue
        with contextlib.suppress(Timeout, OSError, NotImplementedError), FileLock(folder / LOCK, timeout=0):
            shutil.rmtree(folder, ignore_errors=True)


async def server_state(root: Line) -> WorkerState:
    """Return the weights that a server holds; `Unanswered` if its workers disagree or it does not answer."""
    body = {"method": "gxpo_state"}
    first, *others = (await root.once("POST", "/collective_rpc", body, Results[WorkerState], ANSWER, ASKING)).results
    if any(worker.stamp != first.stamp for worker in others):
        raise Unanswered("nonsense", f"{root.url} has workers with different weights")
    return WorkerState(boot="/".join(s.boot for s in (first, *others)), stamp=first.stamp)


async def load_publication(root: Line, weights: Publication, timeout: float) -> WorkerState:
    """Load a publication into every worker of an idle server; `Unanswered` unless all acknowledge every checksum."""
    body = {"method": "gxpo_load", "args": [weights.message], "timeout": timeout}
    workers = (await root.once("POST", "/collective_rpc", body, Results[LoadReport], ANSWER, timeout)).results
    for worker in workers:
        wrong = worker.wrong or [name for name, x in worker.held.items() if x != weights.sums.get(name)]
        if wrong or worker.stamp != weights.stamp:
            difference = f"the checksum of {wrong[0][:80]} differs" if wrong else f"stamp {str(worker.stamp)[:40]}"
            raise Unanswered(
                "nonsense", f"{root.url} holds other weights than version {weights.version}: {plain(difference)}"
            )
    # Prefixes cached under the old weights would give log-probs of the old policy.
    if not (await root.once("POST", "/reset_prefix_cache", {}, Reset, ANSWER, ASKING)).success:
        raise Unanswered("raised", f"{root.url} did not drop its prefix cache, which is of the old weights", again=True)
    return WorkerState(boot="/".join(s.boot for s in workers), stamp=weights.stamp)
