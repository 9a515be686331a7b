"""Optimiser over named parameters: learning rate schedule, clipping, state for checkpoints; whole tensors or shards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from gxpo.base import runtime
from gxpo.base.errors import CheckpointError, ConfigError, ModelError, did_you_mean
from gxpo.learning.optimiser_kinds import (
    RoundedAdamW,
    Rule,
    betas_of,
    is_hidden,
    is_shard,
    local,
    make_optimiser,
    norm_in,
    states_of,
)
from gxpo.learning.parameter_checks import refuse_float16

SHAPES = ("constant", "cosine", "linear")


@dataclass(frozen=True)
class Schedule:
    """Learning rate schedule: linear warm-up over `warmup` steps, `shape` to 0 at `total` ("constant": stays at 1).

    >>> [round(Schedule("linear", warmup=2, total=6)(step), 2) for step in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    shape: Literal["constant", "cosine", "linear"] = "constant"
    warmup: int = 0
    total: int | None = None

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ConfigError(
                f"schedule {self.shape!r} is not one of {', '.join(SHAPES)}{did_you_mean(self.shape, SHAPES)}"
            )
        if self.shape != "constant" and (self.total is None or self.total <= self.warmup):
            raise ConfigError(f"a {self.shape} schedule needs a total of steps above its warm-up of {self.warmup}")

    def __call__(self, step: int) -> float:
        """Multiple of the learning rate after `step` optimiser steps."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.shape == "constant" or self.total is None:
            return 1.0
        progress = min((step - self.warmup) / (self.total - self.warmup), 1.0)
        return 1.0 - progress if self.shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


States = Literal["float32", "bfloat16"]
OF_SCHEDULE = {
    "schedule": "shape",
    "warmup_steps": "warmup",
    "total_steps": "total",
}  # settings -> fields of `Schedule`


class OptimiserSettings(TypedDict, total=False):
    """Settings of a learner's optimiser, by keyword; defaults are those of `Optimiser` and `Schedule`.

    optimiser   its kind, see `gxpo.learning.optimiser_kinds`
    states      "float32" copies and moments, or "bfloat16" (see `RoundedAdamW`)
    schedule, warmup_steps, total_steps   see `Schedule`;   the others: see `Optimiser`
    """

    optimiser: str
    betas: Sequence[float] | None
    eps: float
    weight_decay: float
    max_grad_norm: float | None
    states: States
    rule: Rule | None
    schedule: Literal["constant", "cosine", "linear"]
    warmup_steps: int
    total_steps: int | None


def with_constant_rate(settings: OptimiserSettings) -> OptimiserSettings:
    """Return the settings without those of the schedule, for a second learner of the same kind."""
    constant: Any = {name: value for name, value in settings.items() if name not in OF_SCHEDULE}
    return constant


SAMPLED = 1 << 16  # weights compared before and after a step, to estimate the share of them that it moved


class Optimiser:
    """AdamW (Loshchilov & Hutter, 2019) or another `kind` (`gxpo.learning.optimiser_kinds`); weight decay on matrices,
    none on vectors (norms, biases).

    Parameters of less than 32 bits are updated through float32 copies, in which their gradients are also summed over
    micro-batches; with `states` "bfloat16" without copies, see `RoundedAdamW`. `max_grad_norm` of None or <= 0 leaves
    gradients as they are. `multiples`: prefix of names -> the multiple of the learning rate at which these move.
    `outer_names`: prefixes of the matrices that AdamW moves under Muon, embeddings and heads. `rule`: see `Rule`.
    """

    @classmethod
    def of(
        cls, parameter_by_name: Mapping[str, nn.Parameter], settings: OptimiserSettings, *, lr: float, **further: Any
    ) -> Optimiser:
        """Make the optimiser of a learner; `further` are arguments of the class that are no settings of learners."""
        names = {"optimiser": "kind"}
        arguments: Any = {names.get(name, name): x for name, x in settings.items() if name not in OF_SCHEDULE}
        shape: Any = {OF_SCHEDULE[name]: x for name, x in settings.items() if name in OF_SCHEDULE}
        return cls(parameter_by_name, lr=lr, schedule=Schedule(**shape), **arguments, **further)

    def __init__(
        self,
        parameter_by_name: Mapping[str, nn.Parameter],
        *,
        lr: float,
        kind: str = "adamw",
        betas: Sequence[float] | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = 1.0,
        schedule: Schedule | None = None,
        multiples: Mapping[str, float] | None = None,
        states: States = "float32",
        outer_names: Sequence[str] = (),
        rule: Rule | None = None,
    ) -> None:
        if not parameter_by_name:
            raise ModelError("the model has no trainable parameters: every one has requires_grad=False")
        if lr > 0:
            refuse_float16(parameter_by_name.values())
        # sorted by name: the order of the states in a checkpoint must not depend on the model's
        self.parameter_by_name = dict(sorted(parameter_by_name.items()))
        self.lr, self.schedule, self.max_grad_norm = lr, schedule or Schedule(), max_grad_norm
        self.steps = 0
        self.moved_share: float | None = None  # share of the parameters that the last step changed
        # bfloat16 states round stochastically in place; float32 states need master copies of 16-bit parameters
        is_rounded = states == "bfloat16"
        if is_rounded and any(p.dtype != torch.bfloat16 for p in self.parameter_by_name.values()):
            raise ModelError("learner.states=bfloat16 needs learner.dtype=bfloat16: there is nothing to save otherwise")
        if is_rounded and kind != "adamw":
            raise ModelError(f"learner.states=bfloat16 is of AdamW: leave it out, or learner.optimiser={kind}")
        betas, rule = betas_of(kind, betas), rule or Rule()
        rule.check(kind, is_rounded=is_rounded)
        self._master = {
            name: p if is_rounded else self._full_precision(p) for name, p in self.parameter_by_name.items()
        }
        self._without_master = [p for name, p in self.parameter_by_name.items() if self._master[name] is p]
        # Muon is for hidden matrices alone: embeddings, heads and vectors stay with AdamW
        self._kind_by_name = {
            n: "adamw" if kind == "muon" and not is_hidden(n, p, outer_names) else kind for n, p in self._master.items()
        }
        if kind == "muon" and any(is_shard(p) for p in self._master.values()):
            raise ModelError(
                "learner.optimiser=muon makes whole matrices orthogonal, and these are sharded: use another"
            )
        # torch takes one weight decay and learning rate a group, and mixes no shards with whole tensors
        groups: dict[tuple[str, float, float, bool], list[Tensor]] = {}
        for name, p in self._master.items():
            multiple = next((m for prefix, m in (multiples or {}).items() if name.startswith(prefix)), 1.0)
            # vectors (norms, biases) are not decayed, as is usual
            key = self._kind_by_name[name], weight_decay if p.dim() >= 2 else 0.0, multiple, is_shard(p)
            groups.setdefault(key, []).append(p)
        self._state_names = {
            name: states_of(parameter_kind, betas, rule) for name, parameter_kind in self._kind_by_name.items()
        }
        self._inner_by_kind: dict[str, Any] = {}
        self._multiples: dict[str, list[float]] = {}
        for parameter_kind in dict.fromkeys(self._kind_by_name.values()):
            kind_groups = {key: params for key, params in groups.items() if key[0] == parameter_kind}
            by_group = [{"params": params, "weight_decay": decay} for (_, decay, _, _), params in kind_groups.items()]
            self._multiples[parameter_kind] = [multiple for _, _, multiple, _ in kind_groups]
            if is_rounded:
                self._inner_by_kind[parameter_kind] = RoundedAdamW(by_group, lr=lr, betas=betas, eps=eps)
            else:
                self._inner_by_kind[parameter_kind] = make_optimiser(
                    parameter_kind, by_group, lr=lr, betas=betas, eps=eps, rule=rule
                )

    @staticmethod
    def _full_precision(p: nn.Parameter) -> nn.Parameter:
        """The parameter itself, or a float32 copy if it has fewer than 32 bits."""
        if torch.finfo(p.dtype).bits >= 32:
            return p
        return nn.Parameter(p.detach().to(torch.float32))

    # ------------------------------------------------------------ gradients
    def zero(self) -> None:
        """Clear all gradients."""
        for name, p in self.parameter_by_name.items():
            p.grad = self._master[name].grad = None

    def collect(self) -> None:
        """Add low-precision gradients to the float32 sums, after a backward pass."""
        for name, p in self.parameter_by_name.items():
            full = self._master[name]
            if full is not p and p.grad is not None:
                grad = p.grad.to(torch.float32)
                full.grad = grad if full.grad is None else full.grad + grad
                p.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """Summed gradients by name, in order of names; zeros for parameters without one."""
        for full in self._master.values():
            if full.grad is None:
                full.grad = torch.zeros_like(full)
        return {name: full.grad for name, full in self._master.items() if full.grad is not None}

    def share(self) -> None:
        """Sum the gradients over processes; those of sharded parameters are summed already."""
        runtime.all_sum([g for g in self.gradients().values() if not is_shard(g)])

    def _norm(self, dtype: torch.dtype | None = None) -> float:
        """Global norm of the gradients; `dtype`: in which each parameter's norm is computed."""
        gradient_list = list(self.gradients().values())
        if dtype is None and not any(map(is_shard, gradient_list)):
            return float(torch.nn.utils.get_total_norm(gradient_list))
        dtype = dtype or torch.float64
        # shards are parts of a tensor: squares are summed over processes, whole tensors counted once
        whole_norm = math.hypot(*(float(norm_in(g, dtype)) for g in gradient_list if not is_shard(g)))
        shard_norms = [norm_in(local(g), dtype) for g in gradient_list if is_shard(g)]
        squares = (
            torch.stack([x.cpu().double().square() for x in shard_norms]).sum() if shard_norms else torch.zeros(())
        )
        runtime.all_sum([squares])
        return math.hypot(whole_norm, math.sqrt(float(squares)))

    # ------------------------------------------------------------ steps
    @property
    def current_lr(self) -> float:
        """Learning rate of the next step."""
        return self.lr * self.schedule(self.steps)

    def step(self) -> float:
        """Take one optimiser step; return the global gradient norm before clipping.

        If the norm is not finite, nothing changes: neither parameters nor moments nor the count of steps.
        """
        gradients, limit = self.gradients(), self.max_grad_norm or 0.0
        norm = self._norm()
        if limit and math.isinf(norm):  # the squares of finite gradients may overflow; clipped, those can be followed
            norm = self._norm(torch.float64)
        if not math.isfinite(norm):
            return norm
        if 0 < limit < norm:
            for g in gradients.values():
                g.mul_(limit / (norm + 1e-6))
        # the rate of this step, times the multiple of each group, such as that of value heads
        for kind, inner in self._inner_by_kind.items():
            for group, multiple in zip(inner.param_groups, self._multiples[kind], strict=True):
                group["lr"] = multiple * self.current_lr
                group["step"] = self.steps  # keys the noise of stochastic signs
        # parameters without copies change in place: compare a sample of them to tell if the step moved anything
        before = self._sample()
        for inner in self._inner_by_kind.values():
            inner.step()
        torch.autograd.graph.increment_version(list(self._master.values()))  # fused steps go uncounted
        self.steps += 1
        # 16-bit parameters are rounded from their float32 masters
        n_changed, total = self._write_back()
        if before is not None:
            share = runtime.mean(int(torch.count_nonzero(self._sample() != before)) / before.numel())
            size = sum(p.numel() for p in self._without_master)
            n_changed, total = n_changed + share * size, total + size
        self.moved_share = n_changed / total
        return norm

    @torch.no_grad()
    def _sample(self) -> Tensor | None:
        """A sample of the weights of parameters without copies, the same at every step; None if all have copies."""
        if not self._without_master:
            return None
        stride = max(1, sum(p.numel() for p in self._without_master) // SAMPLED)
        return torch.cat([local(p).reshape(-1)[::stride] for p in self._without_master])

    @property
    def copies(self) -> bool:
        """True if low-precision parameters are updated through float32 copies."""
        return len(self._without_master) < len(self.parameter_by_name)

    def _write_back(self) -> tuple[float, int]:
        """Round the float32 copies into the model's parameters; return how many changed, and of how many."""
        changes: list[Tensor] = []
        n_changed = total = 0
        with torch.no_grad():
            for name, p in self.parameter_by_name.items():
                full = self._master[name]
                if full is not p:
                    rounded_values = full.to(p.dtype)
                    count = torch.count_nonzero(rounded_values.view(torch.int16) != p.view(torch.int16))
                    if is_shard(full):
                        n_changed += int(count)
                    else:
                        changes.append(count)
                    total += p.numel()
                    p.copy_(rounded_values)
        # summed where they are: the host waits once
        return n_changed + (int(torch.stack(changes).sum()) if changes else 0), total

    # ------------------------------------------------------------ saving
    def parameters(self) -> dict[str, Tensor]:
        """Copies of the parameters at the precision of the update."""
        return {name: full.detach().clone() for name, full in self._master.items()}

    def set_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Set the parameters: the inverse of `parameters`."""
        _check(values, self._master)
        with torch.no_grad():
            for name, full in self._master.items():
                copy_value(full, values[name])
        self._write_back()

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and the optimiser's states: `parameter/NAME`, of AdamW `exp_avg/NAME`, `exp_avg_sq/NAME` (none
        before a step)."""
        out = {f"parameter/{name}": x for name, x in self.parameters().items()}
        for name, full in self._master.items():
            inner_state = self._inner_by_kind[self._kind_by_name[name]].state
            for state in self._state_names[name] if full in inner_state else ():
                out[f"{state}/{name}"] = inner_state[full][state].detach().clone()
        return out

    def expected_tensors(self, steps: int) -> dict[str, Tensor]:
        """Names of `tensors` after so many steps, each with a tensor of its shape, dtype and device."""
        out: dict[str, Tensor] = {f"parameter/{name}": full for name, full in self._master.items()}
        for name, full in self._master.items() if steps else ():
            out |= {f"{state}/{name}": full for state in self._state_names[name]}
        return out

    def load_tensors(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Load `tensors` after `steps` optimiser steps. Changes nothing if anything is wrong."""
        _check(tensors, self.expected_tensors(steps))
        self.set_parameters({name: tensors[f"parameter/{name}"] for name in self._master})
        for inner in self._inner_by_kind.values():
            inner.state.clear()
        for name, full in self._master.items() if steps else ():
            moments = {state: tensors[f"{state}/{name}"].to(full).clone() for state in self._state_names[name]}
            step_count = {"step": torch.tensor(float(steps))} if self._kind_by_name[name] == "adamw" else {}
            self._inner_by_kind[self._kind_by_name[name]].state[full] = {**step_count, **moments}
        self.steps = steps


def copy_value(p: Tensor, value: Tensor) -> None:
    """Copy a value into a parameter; a shard takes its own rows of a whole value."""
    if is_shard(p) and not is_shard(value):
        shard = local(p)
        begin = min(runtime.rank() * -(-p.shape[0] // runtime.world()), p.shape[0])
        shard.copy_(value[begin : begin + shard.shape[0]])
    else:
        p.copy_(value)


def _check(tensors: Mapping[str, Tensor], expected_tensors: Mapping[str, Tensor]) -> None:
    missing, surplus = (
        sorted(expected_tensors.keys() - tensors.keys()),
        sorted(tensors.keys() - expected_tensors.keys()),
    )
    if missing or surplus:
        mismatch = f"lacks {missing[0]!r}" if missing else f"has {surplus[0]!r}, which the model has not"
        raise CheckpointError(
            f"the saved state {mismatch} ({len(missing)} missing, {len(surplus)} too many): is it of this model?"
        )
    # shapes too: a saved state of another model may have the same names
    for name, x in expected_tensors.items():
        if tensors[name].shape != x.shape:
            raise CheckpointError(
                f"{name!r} has shape {tuple(tensors[name].shape)} in the saved state and {tuple(x.shape)} in the model"
            )
