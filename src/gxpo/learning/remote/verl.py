"""Training engine over verl's FSDP engine worker, in the processes of torchrun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gxpo.base import runtime
from gxpo.base.errors import ModelError, need
from gxpo.learning.parameter_checks import fingerprint
from gxpo.learning.remote import verl_cpu, verl_rows
from gxpo.learning.remote.verl_rows import NAMES, EngineSettings
from gxpo.parts.protocols import TokenRow


class VerlEngine:
    """A `protocols.TrainEngine` over `verl.workers.engine.fsdp.FSDPEngineWithLMHead` (`pip install 'gxpo[verl]'`).

    model, settings  as of `gxpo.learning.remote.verl_rows.EngineSettings`

    Every process of the group makes one and takes part in every call, with the same rows; each runs its share. FSDP
    averages gradients over processes, so the loss is the sum of slope times output, times their number.
    """

    abilities = frozenset({"logprob", "entropy", "temperature", "save"})

    def __init__(self, model: str | Path, **settings: Any) -> None:
        verl_rows.check_version()
        if not dist.is_initialized():  # one process without torchrun: verl needs a group all the same
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            stores: Any = dist
            dist.init_process_group(backend, store=stores.HashStore(), rank=0, world_size=1)
        if not torch.cuda.is_available():
            verl_cpu.register()
        self.model, self.version, self.eps = Path(model), 0, 1e-8
        self.packed = verl_rows.has_packed_rows()
        base: Any = need("verl.workers.engine", "verl")
        settings_of_engine = EngineSettings(str(model), **settings)
        configs = verl_rows.configuration(settings_of_engine, packed=self.packed)
        self._engine: Any = base.EngineRegistry.new("language_model", settings_of_engine.strategy, **configs)
        self._engine.initialize()

    # ------------------------------------------------------------ rows
    def forward(
        self, rows: Sequence[TokenRow], names: Sequence[str] = ("logprob",), policy: str = "current"
    ) -> dict[str, list[Tensor]]:
        if policy != "current":
            raise ModelError("verl's engine holds the current policy alone")
        parts = verl_rows.parts_of(rows)
        own_parts = _share(len(parts))
        with self._engine.eval_mode():
            data = verl_rows.batch([parts[i] for i in own_parts], packed=self.packed, names=names)
            out = self._engine.infer_batch(data, loss_function=None)
        model_outputs = {n: [x.detach().cpu() for x in out["model_output"][NAMES[n]].unbind()] for n in names}
        own_readings = {
            part: {n: model_outputs[n][k][parts[part].read - 1].double().tolist() for n in names}
            for k, part in enumerate(own_parts)
        }
        # every process returns the readings of all rows, as the protocol has it
        shares: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(shares, own_readings)
        reading_by_part = {part: x for share in shares for part, x in share.items()}
        return verl_rows.readings_by_row(
            rows, parts, {n: [reading_by_part[k][n] for k in range(len(parts))] for n in names}
        )

    def pull(self, rows: Sequence[TokenRow], slopes: Mapping[str, Sequence[Tensor]]) -> None:
        parts = verl_rows.parts_of(rows)
        own_parts = _share(len(parts))
        n_fillers = int((len(own_parts) - 1) * dist.get_world_size() + dist.get_rank() >= len(parts))
        data = verl_rows.batch([parts[i] for i in own_parts], packed=self.packed, slopes=slopes, n_fillers=n_fillers)
        with self._engine.train_mode(zero_grad_on_exit=False):
            self._engine.forward_backward_batch(data, loss_function=verl_rows.linear)

    # ------------------------------------------------------------ steps
    def step(self, lr: float, max_grad_norm: float | None, *, eps: float | None = None) -> float:
        return verl_rows.take_step(self._engine, lr, max_grad_norm, self.eps if eps is None else eps)

    def discard(self) -> None:
        self._engine.optimizer_zero_grad()

    # ------------------------------------------------------------ weights
    def gradients(self) -> dict[str, Tensor]:
        """Gradient so far by parameter name, gathered from all processes (for conformance, not of the protocol)."""
        return verl_rows.whole_gradients(self._engine.module)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and parameters, gathered from all processes one after the other."""
        return verl_rows.whole_parameters(self._engine.module)

    def publish(self, version: int, timeout: float) -> None:
        self.version = version  # samplers in these processes are given `weights`

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._engine.save_checkpoint(local_path=str(path))

    def load(self, path: Path) -> None:
        verl_rows.check_same_processes(path, dist.get_world_size())
        self._engine.load_checkpoint(local_path=str(path), del_local_after_load=False)
        self.discard()

    def fingerprint(self) -> int:
        return fingerprint(dict(self._engine.module.named_parameters()))

    def close(self) -> None:
        """Nothing: the engine ends with its process."""


def _share(n: int) -> list[int]:
    """This process's share of n rows; every process needs equally many, so some rows are repeated."""
    world = runtime.world()
    return [*range(n), *[0] * (-n % world)][runtime.rank() :: world]
