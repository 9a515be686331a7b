"""Rows, loss, configuration and steps of verl's FSDP engine, shared by torchrun processes and Ray workers."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import CheckpointError, ModelError, need
from gxpo.parts.protocols import TokenRow

VERSION = "0.9.1"  # of verl, whose engines say that they may change
NAMES = {"logprob": "log_probs", "entropy": "entropy"}  # verl's names
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}


def check_version() -> None:
    """Raise ModelError unless verl has the supported version."""
    verl: Any = need("verl", "verl")
    if verl.__version__ != VERSION:
        raise ModelError(
            f"cluster.backend=verl is for verl {VERSION}, not {verl.__version__}: pip install 'gxpo[verl]'"
        )


def has_packed_rows() -> bool:
    """Return True if rows go without padding here, for which verl needs CUDA and the package flash-attn."""
    return torch.cuda.is_available() and importlib.util.find_spec("flash_attn") is not None


# ---------------------------------------------------------------- rows
@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Readings of a row at one temperature: verl takes a single one for a row."""

    row: int
    reading_index: Tensor  # [j] of the row's readings
    tokens: Tensor
    read: Tensor
    temperature: float


def parts_of(rows: Sequence[TokenRow]) -> list[Part]:
    """Split rows as verl reads them: a row with several temperatures becomes one part for each."""
    out = []
    for number, row in enumerate(rows):
        for heat in row.temperature.unique().tolist():
            reading_index = (row.temperature == heat).nonzero().squeeze(1)
            out.append(Part(number, reading_index, row.tokens, row.read[reading_index], heat))
    return out


def batch(
    parts: Sequence[Part],
    *,
    packed: bool,
    names: Sequence[str] = (),
    slopes: Mapping[str, Sequence[Tensor]] | None = None,
    n_fillers: int = 0,
    processes: int = 1,
) -> Any:
    """TensorDict of rows for verl's engines, in one micro-batch of each process.

    names      outputs to compute; "entropy" also where there are slopes of it
    slopes     name -> [k] of each row of the parts, which `linear` pulls
    repeated   the last so many parts only fill the processes and pull nothing
    processes  that the rows are divided among
    """
    tensordict: Any = need("tensordict", "verl")
    tensordict_utils: Any = need("verl.utils.tensordict_utils", "verl")
    data = tensordict.TensorDict(
        {
            "input_ids": jagged_tensor([p.tokens for p in parts]),
            "position_ids": jagged_tensor([torch.arange(p.tokens.numel()) for p in parts]),
            "loss_mask": jagged_tensor([torch.ones_like(p.tokens) for p in parts]),
            "temperature": torch.tensor([p.temperature for p in parts], dtype=torch.float32),
        },
        batch_size=len(parts),
    )
    # slopes travel as columns, since verl's loss sees nothing but the batch
    for name, row_slopes in (slopes or {}).items():
        data[f"slope_{name}"] = jagged_tensor(_slopes_by_token(parts, row_slopes, len(parts) - n_fillers))
    # verl's own micro-batching and reductions are off: the rows come cut, and `linear` is the whole loss
    tensordict_utils.assign_non_tensor(
        data,
        use_remove_padding=packed,
        calculate_entropy="entropy" in names or "entropy" in (slopes or {}),
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=len(parts) // processes,
        return_model_output=True,
        global_token_num=None,
        compute_loss=False,
    )
    return data


def _slopes_by_token(parts: Sequence[Part], row_slopes: Sequence[Tensor], part_count: int) -> list[Tensor]:
    """[n] float32 slopes of each part's tokens, at the positions of verl's next-token log-probs."""
    out = []
    for k, part in enumerate(parts):
        line = torch.zeros(part.tokens.numel(), dtype=torch.float64)
        if k < part_count:
            line.index_add_(0, part.read - 1, row_slopes[part.row].cpu().double()[part.reading_index])
        out.append(line.float())
    return out


def linear(model_output: Any, data: Any, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
    """verl's loss function: the sum of slope times output, times the processes that verl averages gradients over."""
    tensordict_utils: Any = need("verl.utils.tensordict_utils", "verl")
    terms = [
        (model_output[verl_name].values() * data[f"slope_{name}"].values()).sum()
        for name, verl_name in NAMES.items()
        if f"slope_{name}" in data.keys()  # noqa: SIM118  # a TensorDict iterates over its rows
    ]
    return torch.stack(terms).sum() * tensordict_utils.get_non_tensor_data(data, "dp_size", 1), {}


def readings_by_row(
    rows: Sequence[TokenRow], parts: Sequence[Part], values_by_name: Mapping[str, Sequence[Sequence[float]]]
) -> dict[str, list[Tensor]]:
    """name -> [k] float64 readings of each row, from those of each part."""
    out = {name: [torch.zeros(row.read.numel(), dtype=torch.float64) for row in rows] for name in values_by_name}
    for name, values in values_by_name.items():
        for part, part_values in zip(parts, values, strict=True):
            out[name][part.row][part.reading_index] = torch.tensor(part_values, dtype=torch.float64)
    return out


def jagged_tensor(rows: Sequence[Tensor]) -> Tensor:
    """A nested tensor of rows of different lengths."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


# ---------------------------------------------------------------- the engine
@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """Settings of verl's engine.

    model     a directory that transformers loads
    strategy  "fsdp2" or "fsdp"
    dtype     "float32", or "bfloat16": float32 parameters under mixed precision
    betas, weight_decay  of AdamW, whose decay is on all parameters
    """

    model: str
    strategy: str = "fsdp2"
    dtype: str = "float32"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0


def configuration(settings: EngineSettings, *, packed: bool) -> dict[str, Any]:
    """verl's own configurations of the model, the engine, the optimiser and checkpoints.

    packed  rows without padding, for which verl needs flash attention
    """
    config: Any = need("verl.workers.config", "verl")
    checkpoints: Any = need("verl.trainer.config", "verl")
    contents = ["model", "optimizer"]  # without the state of random numbers and of verl's schedule, which are not used
    # gradients are summed in float32, whatever the parameters have
    precision = {"param_dtype": DTYPES[settings.dtype], "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return {
        "model_config": config.HFModelConfig(
            path=settings.model,
            use_remove_padding=packed,
            enable_gradient_checkpointing=False,
            override_config={} if packed else {"attn_implementation": "sdpa"},
        ),
        "engine_config": config.FSDPEngineConfig(
            strategy=settings.strategy, model_dtype="fp32", mixed_precision=precision, use_torch_compile=False
        ),
        # lr and clipping are set anew before each step
        "optimizer_config": config.FSDPOptimizerConfig(
            lr=1e-6, betas=settings.betas, weight_decay=settings.weight_decay, clip_grad=1.0, total_training_steps=1
        ),
        "checkpoint_config": checkpoints.CheckpointConfig(save_contents=contents, load_contents=contents),
    }


def check_same_processes(path: Path, world: int) -> None:
    """Raise CheckpointError unless equally many processes wrote the checkpoint: verl writes a file for each."""
    files = sorted(path.glob("model_world_size_*_rank_0.pt"))
    if files and files[0].name != f"model_world_size_{world}_rank_0.pt":
        writer_count = files[0].name.split("_")[3]
        raise CheckpointError(
            f"{path} was written by {writer_count} processes of verl, and now there are {world}: use {writer_count}"
        )


def take_step(engine: Any, lr: float, max_grad_norm: float | None, eps: float) -> float:
    """Take one AdamW step of an engine in this process; return the norm before clipping."""
    engine.optimizer_config = dataclasses.replace(engine.optimizer_config, clip_grad=max_grad_norm or math.inf)
    for group in engine.optimizer.param_groups:
        group["lr"], group["eps"] = lr, eps
    with engine.train_mode():  # which zeroes the gradient at its end
        return float(engine.optimizer_step())


def whole_parameters(module: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield names and parameters, gathered from all processes one after the other."""
    for name, p in module.named_parameters():
        yield name, whole_tensor(p.detach())


def whole_gradients(module: Any) -> dict[str, Tensor]:
    """Gradient so far by parameter name, gathered from all processes."""
    return {n: whole_tensor(torch.zeros_like(p) if p.grad is None else p.grad) for n, p in module.named_parameters()}


def whole_tensor(x: Tensor) -> Tensor:
    """Gather a sharded tensor; a collective of all processes."""
    gather: Any = getattr(x, "full_tensor", None)
    return x.clone() if gather is None else gather()
