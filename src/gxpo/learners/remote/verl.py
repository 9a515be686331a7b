"""Training engine over verl's FSDP engine worker, in the processes of torchrun."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gxpo import runtime
from gxpo.errors import ModelError, need
from gxpo.learners.fingerprint import fingerprint
from gxpo.learners.remote import verl_cpu
from gxpo.protocols import TokenRow

VERSION = "0.9.1"  # of verl, whose engines say that they may change
NAMES = {"logprob": "log_probs", "entropy": "entropy"}  # verl's names
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}


class VerlEngine:
    """A `gxpo.protocols.TrainEngine` over `verl.workers.engine.fsdp.FSDPEngineWithLMHead` (`pip install 'gxpo[verl]'`).

    model     a directory that transformers loads
    strategy  "fsdp2" or "fsdp"
    dtype     "float32", or "bfloat16": float32 parameters under mixed precision
    betas, weight_decay  of AdamW, whose decay is on all parameters

    Every process of the group makes one and takes part in every call, with the same rows; each runs its share. FSDP
    averages gradients over processes, so the loss is the sum of slope times output, times their number.
    """

    abilities = frozenset({"logprob", "entropy", "temperature", "save"})

    def __init__(
        self,
        model: str | Path,
        *,
        strategy: str = "fsdp2",
        dtype: str = "float32",
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        verl: Any = need("verl", "verl")
        if verl.__version__ != VERSION:
            raise ModelError(
                f"cluster.backend=verl is for verl {VERSION}, not {verl.__version__}: pip install 'gxpo[verl]'"
            )
        if not dist.is_initialized():  # one process without torchrun: verl needs a group all the same
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            stores: Any = dist
            dist.init_process_group(backend, store=stores.HashStore(), rank=0, world_size=1)
        if not torch.cuda.is_available():
            verl_cpu.register()
        self.model, self.version, self.eps = Path(model), 0, 1e-8
        self._packed = torch.cuda.is_available()  # rows without padding need flash attention
        self._engine = self._made(str(model), strategy, DTYPES[dtype], betas, weight_decay)
        self._nested: Any = need("verl.utils.tensordict_utils", "verl")

    def _made(self, model: str, strategy: str, dtype: str, betas: tuple[float, float], decay: float) -> Any:
        config: Any = need("verl.workers.config", "verl")
        base: Any = need("verl.workers.engine", "verl")
        checkpoints: Any = need("verl.trainer.config", "verl")
        saved = ["model", "optimizer"]  # without the state of random numbers and of verl's schedule, which are not used
        precision = {"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
        engine = base.EngineRegistry.new(
            "language_model",
            strategy,
            model_config=config.HFModelConfig(
                path=model,
                use_remove_padding=self._packed,
                enable_gradient_checkpointing=False,
                override_config={} if self._packed else {"attn_implementation": "sdpa"},
            ),
            engine_config=config.FSDPEngineConfig(
                strategy=strategy, model_dtype="fp32", mixed_precision=precision, use_torch_compile=False
            ),
            optimizer_config=config.FSDPOptimizerConfig(
                lr=1e-6, betas=betas, weight_decay=decay, clip_grad=1.0, total_training_steps=1
            ),
            checkpoint_config=checkpoints.CheckpointConfig(save_contents=saved, load_contents=saved),
        )
        engine.initialize()
        return engine

    # ------------------------------------------------------------ rows
    def forward(
        self, rows: Sequence[TokenRow], names: Sequence[str] = ("logprob",), policy: str = "current"
    ) -> dict[str, list[Tensor]]:
        if policy != "current":
            raise ModelError("verl's engine holds the current policy alone")
        parts = [part for i, row in enumerate(rows) for part in _by_temperature(i, row)]
        mine = _share(len(parts))
        with self._engine.eval_mode():
            out = self._engine.infer_batch(self._batch(parts, mine, "entropy" in names), loss_function=None)
        found = {n: [x.detach().cpu() for x in out["model_output"][NAMES[n]].unbind()] for n in names}
        own = {
            part: {n: found[n][k][parts[part].read - 1].double().tolist() for n in names} for k, part in enumerate(mine)
        }
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, own)
        whole = {part: x for share in gathered for part, x in share.items()}
        result = {n: [torch.zeros(row.read.numel(), dtype=torch.float64) for row in rows] for n in names}
        for k, part in enumerate(parts):
            for n in names:
                result[n][part.row][part.which] = torch.tensor(whole[k][n], dtype=torch.float64)
        return result

    def pull(self, rows: Sequence[TokenRow], slopes: Mapping[str, Sequence[Tensor]]) -> None:
        parts = [part for i, row in enumerate(rows) for part in _by_temperature(i, row)]
        mine = _share(len(parts))
        entropy = "entropy" in slopes
        data = self._batch(parts, mine, entropy)
        for name, given in slopes.items():
            wide = []
            for k, part in enumerate(mine):
                line = torch.zeros(parts[part].tokens.numel(), dtype=torch.float64)
                if k * dist.get_world_size() + dist.get_rank() < len(parts):  # a repeated row pulls nothing
                    line.index_add_(0, parts[part].read - 1, given[parts[part].row].cpu().double()[parts[part].which])
                wide.append(line.float())
            data[f"slope_{name}"] = _jagged(wide)
        world = self._engine.get_data_parallel_size()

        def linear(model_output: Any, data: Any, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
            terms = [(model_output[NAMES[n]].values() * data[f"slope_{n}"].values()).sum() for n in slopes]
            return torch.stack(terms).sum() * world, {}

        with self._engine.train_mode(zero_grad_on_exit=False):
            self._engine.forward_backward_batch(data, loss_function=linear)

    def _batch(self, parts: Sequence[_Part], mine: Sequence[int], entropy: bool) -> Any:
        """This process's rows as verl's engines take them."""
        tensordict: Any = need("tensordict", "verl")
        own = [parts[i] for i in mine]
        data = tensordict.TensorDict(
            {
                "input_ids": _jagged([p.tokens for p in own]),
                "position_ids": _jagged([torch.arange(p.tokens.numel()) for p in own]),
                "loss_mask": _jagged([torch.ones_like(p.tokens) for p in own]),
                "temperature": torch.tensor([p.temperature for p in own], dtype=torch.float32),
            },
            batch_size=len(own),
        )
        self._nested.assign_non_tensor(
            data,
            use_remove_padding=self._packed,
            calculate_entropy=entropy,
            use_dynamic_bsz=False,
            micro_batch_size_per_gpu=len(own),
            return_model_output=True,
            global_token_num=None,
        )
        return data

    # ------------------------------------------------------------ steps
    def step(self, lr: float, max_grad_norm: float | None, *, eps: float | None = None) -> float:
        engine = self._engine
        engine.optimizer_config = dataclasses.replace(engine.optimizer_config, clip_grad=max_grad_norm or math.inf)
        for group in engine.optimizer.param_groups:
            group["lr"], group["eps"] = lr, self.eps if eps is None else eps
        with engine.train_mode():  # which zeroes the gradient at its end
            return float(engine.optimizer_step())

    def discard(self) -> None:
        self._engine.optimizer_zero_grad()

    # ------------------------------------------------------------ weights
    def gradients(self) -> dict[str, Tensor]:
        """The gradient so far by parameter name, gathered from all processes. Not of the protocol; for conformance."""
        return {
            n: _full(torch.zeros_like(p) if p.grad is None else p.grad)
            for n, p in self._engine.module.named_parameters()
        }

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters and their names, gathered from all processes one after the other."""
        for name, p in self._engine.module.named_parameters():
            yield name, _full(p.detach())

    def publish(self, version: int, timeout: float) -> None:
        self.version = version  # samplers in these processes are given `weights`

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._engine.save_checkpoint(local_path=str(path))

    def load(self, path: Path) -> None:
        self._engine.load_checkpoint(local_path=str(path), del_local_after_load=False)
        self.discard()

    def fingerprint(self) -> int:
        return fingerprint(dict(self._engine.module.named_parameters()))


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """The readings of a row at one temperature: verl has one for a row."""

    row: int
    which: Tensor  # [j] of the row's readings
    tokens: Tensor
    read: Tensor
    temperature: float


def _by_temperature(number: int, row: TokenRow) -> list[_Part]:
    out = []
    for heat in row.temperature.unique().tolist():
        which = (row.temperature == heat).nonzero().squeeze(1)
        out.append(_Part(number, which, row.tokens, row.read[which], heat))
    return out


def _share(n: int) -> list[int]:
    """This process's rows of n: every process has as many, so some are repeated."""
    world = runtime.world()
    return [*range(n), *[0] * (-n % world)][runtime.rank() :: world]


def _jagged(rows: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def _full(x: Tensor) -> Tensor:
    gathered: Any = getattr(x, "full_tensor", None)
    return x.clone() if gathered is None else gathered()
