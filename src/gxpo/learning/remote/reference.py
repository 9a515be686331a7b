"""Reference training engine: a transformers model in this process, a row at a time, and AdamW."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import CheckpointError, need
from gxpo.learning.head import divide_by_temperature
from gxpo.learning.parameter_checks import fingerprint
from gxpo.parts.protocols import TokenRow

STATE = "engine.safetensors"


class TransformersEngine:
    """Plain `gxpo.parts.protocols.TrainEngine` against which other engines are compared.

    model  a causal language model of transformers, on its device; every parameter is trained. In evaluation mode
    """

    abilities = frozenset({"logprob", "entropy", "temperature", "save"})

    def __init__(self, model: Any, *, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0) -> None:
        self.model, self.version = model.eval(), 0
        self._parameter_by_name = dict(model.named_parameters())
        self.eps = 1e-8
        self.adamw = torch.optim.AdamW(self._parameter_by_name.values(), betas=betas, weight_decay=weight_decay)

    def forward(
        self, rows: Sequence[TokenRow], names: Sequence[str] = ("logprob",), policy: str = "current"
    ) -> dict[str, list[Tensor]]:
        with torch.no_grad():
            row_outputs = [self._outputs(row) for row in rows]
        return {name: [out[name] for out in row_outputs] for name in names}

    def pull(self, rows: Sequence[TokenRow], slopes: Mapping[str, Sequence[Tensor]]) -> None:
        for i, row in enumerate(rows):
            out = self._outputs(row)
            torch.stack([(out[name] * slope[i].to(out[name])).sum() for name, slope in slopes.items()]).sum().backward()

    def _outputs(self, row: TokenRow) -> dict[str, Tensor]:
        device = next(self.model.parameters()).device
        logits = self.model(input_ids=row.tokens[None].to(device), use_cache=False).logits[0]
        read = row.read.to(device)
        z = divide_by_temperature(logits[read - 1], row.temperature.to(device)).log_softmax(-1)
        target_logprob = z.gather(1, row.tokens.to(device)[read][:, None]).squeeze(1)
        return {"logprob": target_logprob, "entropy": -(z.exp() * z).sum(1)}

    def gradients(self) -> dict[str, Tensor]:
        """The gradient so far by parameter name. Not of the protocol; conformance compares it where there is one."""
        return {
            n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in self._parameter_by_name.items()
        }

    def step(self, lr: float, max_grad_norm: float | None, *, eps: float | None = None) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameter_by_name.values(), max_grad_norm or math.inf))
        if math.isfinite(norm):
            for group in self.adamw.param_groups:
                group["lr"], group["eps"] = lr, self.eps if eps is None else eps
            self.adamw.step()
        self.discard()
        return norm

    def discard(self) -> None:
        self.adamw.zero_grad(set_to_none=True)

    def publish(self, version: int, timeout: float) -> None:
        self.version = version  # samplers in this process use these parameters

    def save(self, path: Path) -> None:
        safetensors: Any = need("safetensors.torch", "train")
        tensors = {f"parameter/{n}": p.detach() for n, p in self._parameter_by_name.items()}
        for name, p in self._parameter_by_name.items():
            tensors |= {f"{key}/{name}": x for key, x in self.adamw.state.get(p, {}).items()}
        path.mkdir(parents=True, exist_ok=True)
        # tied parameters are one under one name, so nothing shares memory
        safetensors.save_file({n: x.contiguous().cpu() for n, x in tensors.items()}, path / STATE)

    def load(self, path: Path) -> None:
        safetensors: Any = need("safetensors.torch", "train")
        tensors = safetensors.load_file(path / STATE)
        # checked before anything is copied, so that a wrong file leaves the engine as it was
        if missing := [n for n in self._parameter_by_name if f"parameter/{n}" not in tensors]:
            raise CheckpointError(f"{path / STATE} lacks {missing[0]}: is it of this model?")
        # moments that the file lacks are those of parameters that have not moved yet
        self.adamw.state.clear()
        with torch.no_grad():
            for name, p in self._parameter_by_name.items():
                p.copy_(tensors[f"parameter/{name}"])
                if f"exp_avg/{name}" in tensors:
                    moments = {key: tensors[f"{key}/{name}"].to(p) for key in ("exp_avg", "exp_avg_sq")}
                    self.adamw.state[p] = {"step": tensors[f"step/{name}"], **moments}

    def fingerprint(self) -> int:
        return fingerprint(self._parameter_by_name)
