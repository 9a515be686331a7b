"""Worker of a Ray worker group of verl that holds shards of the policy; imports verl and Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gxpo.base.errors import need
from gxpo.learning.parameter_checks import fingerprint
from gxpo.learning.remote import verl_cpu, verl_rows

if not torch.cuda.is_available():
    verl_cpu.register()  # verl's engines note the platform's device when they are imported

_base: Any = need("verl.workers.engine_workers_tinker", "verl").TinkerTrainingWorker
_config: Any = need("verl.workers.config", "verl").TrainingWorkerConfig
_decorator: Any = need("verl.single_controller.base.decorator", "verl")
_in_all = _decorator.register(dispatch_mode=_decorator.Dispatch.ONE_TO_ALL)


class PolicyWorker(_base):
    """verl's `TinkerTrainingWorker` (`forward_backward`, `infer_batch`, `optimizer_zero_grad`, checkpoints) with the
    sum of slope times output for a loss, steps whose settings come with them, and the weights.

    settings  a `gxpo.learning.remote.verl_rows.EngineSettings`
    """

    def __init__(self, settings: verl_rows.EngineSettings) -> None:
        if not torch.cuda.is_available() and not dist.is_initialized():
            dist.init_process_group("gloo")  # verl's "cpu:gloo,cpu:gloo" would name the device twice
        configs = verl_rows.configuration(settings, packed=verl_rows.has_packed_rows())
        super().__init__(_config(model_type="language_model", **configs))
        self.loss_fn = verl_rows.linear

    @_in_all
    def begin(self) -> bool:
        """Load the model and shard it; return True if rows go without padding."""
        self.engine.initialize()
        return verl_rows.has_packed_rows()

    @_in_all
    def step(self, lr: float, max_grad_norm: float | None, eps: float) -> float:
        """Take one AdamW step; return the norm before clipping."""
        return verl_rows.take_step(self.engine, lr, max_grad_norm, eps)

    @_in_all
    def fingerprint(self) -> int:
        """Order-free sum over the shards of all workers."""
        return fingerprint(dict(self.engine.module.named_parameters()))

    @_in_all
    def shapes(self) -> list[tuple[str, int]]:
        """Name and bytes of each whole parameter."""
        return [(n, p.numel() * p.element_size()) for n, p in self.engine.module.named_parameters()]

    @_in_all
    def gather_tensors(self, names: Sequence[str], gradients: bool = False) -> list[Tensor]:
        """Gather parameters (or their gradients so far) by name; only the first worker returns them."""
        parameters = dict(self.engine.module.named_parameters())
        is_first = dist.get_rank() == 0
        out = []
        for name in names:
            p = parameters[name]
            x = p.detach() if not gradients else torch.zeros_like(p) if p.grad is None else p.grad
            whole = verl_rows.whole_tensor(x)  # a collective of all workers
            if is_first:
                out.append(whole.cpu())
        return out
