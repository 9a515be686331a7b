"""Optimiser steps of a learner in this process: epochs and minibatches, AdamW and its schedule, checkpoint tensors."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from gxpo import runtime
from gxpo.errors import CheckpointError, ConfigError, ModelError, did_you_mean
from gxpo.forest import Forest
from gxpo.grouped import dense
from gxpo.learners.packing import constants, in_one_pass, in_two_passes, unit_of, whole_units
from gxpo.protocols import LossFunction, StepInfo, StepRunner
from gxpo.ranges import Part
from gxpo.registry import part


# ---------------------------------------------------------------- which optimiser steps
class UpdatePart(Part):
    """Base of updates: a frozen dataclass with `run` and `optimiser_steps` (`gxpo.protocols.Update`).

    sets_parameters  whether it reads gradients, or copies and sets parameters, beside taking steps
    """

    slot = "update"
    sets_parameters: ClassVar[bool] = False


def deal(group: Tensor, minibatches: int) -> list[Tensor]:
    """Split rows into `minibatches` parts of whole groups, in group order; fewer parts if there are fewer groups.

    group [R]: dense ids. The numbers of groups of two parts differ by at most one.

    >>> [part.tolist() for part in deal(torch.tensor([0, 0, 1, 1, 2, 2]), 2)]
    [[0, 1, 2, 3], [4, 5]]
    """
    groups = int(group.max()) + 1 if group.numel() else 0
    parts = torch.arange(groups).tensor_split(min(minibatches, max(groups, 1)))
    return [torch.isin(group, part).nonzero().squeeze(1) for part in parts if part.numel()]


@part("epochs", stage="update")
@dataclass(frozen=True)
class Epochs(UpdatePart):
    """`epochs` passes over the step's trajectories, each in `minibatches` optimiser steps; groups in forest order.

    first  None, or an origin ("replay") whose rollouts have minibatches of their own before all others, so that each
           step is a mean over its own kind. There are none where none of them has an advantage. With
           `objective.ratio_over: behaviour` each step takes its importance ratio against the rollout policy. Source:
           PIPO, arXiv 2604.00860 (retrospective step, then base step)
    """

    epochs: Annotated[int, Ge(1)] = 1
    minibatches: Annotated[int, Ge(1)] = 1
    first: str | None = None

    def optimiser_steps(self, groups: int) -> int:
        """Number of optimiser steps in a step of `groups` groups."""
        return self.epochs * min(self.minibatches, groups) * (1 if self.first is None else 2)

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]:
        parts = self._parts(forest, credit * weight)
        return [learner.step(forest, credit, weight, part) for _ in range(self.epochs) for part in parts]

    def _parts(self, forest: Forest, coefficient: Tensor) -> list[Tensor] | list[None]:
        """Trajectories of each optimiser step; None: all."""
        group = forest.ids("group", axis="R")
        early = torch.tensor([origin == self.first for origin in forest.origin], dtype=torch.bool)
        if not bool(early.any()):
            parts = deal(group, self.minibatches)
            return parts if len(parts) > 1 else [None] * len(parts)
        moved = bool(coefficient[forest.to_path(early, "R")].any())
        kinds = [kind.nonzero().squeeze(1) for kind in ([early] if moved else []) + [~early]]
        return [rows[part] for rows in kinds for part in deal(dense(group[rows]), self.minibatches)]


# ---------------------------------------------------------------- AdamW
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
        """`step` counts optimiser steps already taken."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.shape == "constant" or self.total is None:
            return 1.0
        progress = min((step - self.warmup) / (self.total - self.warmup), 1.0)
        return 1.0 - progress if self.shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


States = Literal["float32", "bfloat16"]
STATES = ("exp_avg", "exp_avg_sq")
SAMPLED = 1 << 16  # weights that are looked at to say what share of them a step moved


class Optimiser:
    """AdamW (Loshchilov & Hutter, 2019), weight decay on matrices, none on vectors (norms, biases).

    Parameters of less than 32 bits are updated through float32 copies, in which their gradients are also summed over
    micro-batches; with `states` "bfloat16" without copies, see `RoundedAdamW`. `max_grad_norm` of None or <= 0 leaves
    gradients as they are. `multiples`: prefix of names -> the multiple of the learning rate at which these move.
    """

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = 1.0,
        schedule: Schedule | None = None,
        multiples: Mapping[str, float] | None = None,
        states: States = "float32",
    ) -> None:
        if not named:
            raise ModelError("the model has no trainable parameters: every one has requires_grad=False")
        self.named = dict(sorted(named.items()))
        self.lr, self.schedule, self.max_grad_norm = lr, schedule or Schedule(), max_grad_norm
        self.steps = 0
        self.moved: float | None = None  # share of the parameters that the last step changed
        rounds = states == "bfloat16"
        if rounds and any(p.dtype != torch.bfloat16 for p in self.named.values()):
            raise ModelError("learner.states=bfloat16 needs learner.dtype=bfloat16: there is nothing to save otherwise")
        self._full = {name: p if rounds else self._full_precision(p) for name, p in self.named.items()}
        self._direct = [p for name, p in self.named.items() if self._full[name] is p]
        groups: dict[tuple[float, float, bool], list[Tensor]] = {}
        for name, p in self._full.items():
            multiple = next((m for prefix, m in (multiples or {}).items() if name.startswith(prefix)), 1.0)
            groups.setdefault((weight_decay if p.dim() >= 2 else 0.0, multiple, is_shard(p)), []).append(p)
        self._multiples = [multiple for _, multiple, _ in groups]
        by_group = [{"params": params, "weight_decay": decay} for (decay, _, _), params in groups.items()]
        device = next(iter(self._full.values())).device.type
        self._adamw: Any = None
        if rounds:
            from gxpo.learners.rounded import RoundedAdamW

            self._adamw = RoundedAdamW(by_group, lr=lr, betas=betas, eps=eps)
        else:
            fused = device in ("cpu", "cuda")
            self._adamw = torch.optim.AdamW(by_group, lr=lr, betas=betas, eps=eps, fused=fused)

    @staticmethod
    def _full_precision(p: nn.Parameter) -> nn.Parameter:
        if torch.finfo(p.dtype).bits >= 32:
            return p
        return nn.Parameter(p.detach().to(torch.float32))

    # ------------------------------------------------------------ gradients
    def zero(self) -> None:
        """Clear all gradients."""
        for name, p in self.named.items():
            p.grad = self._full[name].grad = None

    def collect(self) -> None:
        """Add low-precision gradients to the float32 sums, after a backward pass."""
        for name, p in self.named.items():
            full = self._full[name]
            if full is not p and p.grad is not None:
                grad = p.grad.to(torch.float32)
                full.grad = grad if full.grad is None else full.grad + grad
                p.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """Summed gradients by name, in order of names; zeros for parameters without one."""
        for full in self._full.values():
            if full.grad is None:
                full.grad = torch.zeros_like(full)
        return {name: full.grad for name, full in self._full.items() if full.grad is not None}

    def share(self) -> None:
        """Sum the gradients over processes; those of sharded parameters are summed already."""
        runtime.all_sum([g for g in self.gradients().values() if not is_shard(g)])

    def _norm(self, dtype: torch.dtype | None = None) -> float:
        """Global norm of the gradients; with `dtype`, each parameter's is computed in it."""
        found = list(self.gradients().values())
        if dtype is None and not any(map(is_shard, found)):
            return float(torch.nn.utils.get_total_norm(found))
        dtype = dtype or torch.float64
        whole = math.hypot(*(float(torch.linalg.vector_norm(g, dtype=dtype)) for g in found if not is_shard(g)))
        shards = [torch.linalg.vector_norm(local(g), dtype=dtype) for g in found if is_shard(g)]
        squares = torch.stack([x.cpu().double().square() for x in shards]).sum() if shards else torch.zeros(())
        runtime.all_sum([squares])
        return math.hypot(whole, math.sqrt(float(squares)))

    # ------------------------------------------------------------ steps
    @property
    def current_lr(self) -> float:
        """Learning rate of the next step."""
        return self.lr * self.schedule(self.steps)

    def step(self) -> float:
        """One optimiser step; gives the global gradient norm before clipping.

        Where that is not finite, nothing is changed: neither parameters nor moments nor the count of steps.
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
        for group, multiple in zip(self._adamw.param_groups, self._multiples, strict=True):
            group["lr"] = multiple * self.current_lr
        before = self._sample()
        self._adamw.step()
        torch.autograd.graph.increment_version(list(self._full.values()))  # fused steps go uncounted
        self.steps += 1
        changed, total = self._write_back()
        if before is not None:
            share = runtime.mean(float((self._sample() != before).double().mean()))
            size = sum(p.numel() for p in self._direct)
            changed, total = changed + share * size, total + size
        self.moved = changed / total
        return norm

    @torch.no_grad()
    def _sample(self) -> Tensor | None:
        """Some weights of each parameter that has no copy, the same ones at every step; None: all have one."""
        if not self._direct:
            return None
        apart = max(1, sum(p.numel() for p in self._direct) // SAMPLED)
        return torch.cat([local(p).reshape(-1)[::apart] for p in self._direct])

    @property
    def copies(self) -> bool:
        """Whether low-precision parameters are updated through float32 copies."""
        return len(self._direct) < len(self.named)

    def _write_back(self) -> tuple[float, int]:
        """Round the float32 copies to the model's parameters; how many of how many have changed."""
        changed = total = 0
        with torch.no_grad():
            for name, p in self.named.items():
                full = self._full[name]
                if full is not p:
                    rounded = full.to(p.dtype)
                    changed += int(torch.count_nonzero(rounded.view(torch.int16) != p.view(torch.int16)))
                    total += p.numel()
                    p.copy_(rounded)
        return changed, total

    # ------------------------------------------------------------ saving
    def parameters(self) -> dict[str, Tensor]:
        """Copies of the parameters at the precision of the update."""
        return {name: full.detach().clone() for name, full in self._full.items()}

    def set_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Set the parameters: the inverse of `parameters`."""
        _check(values, self._full)
        with torch.no_grad():
            for name, full in self._full.items():
                _put(full, values[name])
        self._write_back()

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and Adam's moments: `parameter/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME` (none before a step)."""
        out = {f"parameter/{name}": x for name, x in self.parameters().items()}
        for name, full in self._full.items():
            for state in STATES if full in self._adamw.state else ():
                out[f"{state}/{name}"] = self._adamw.state[full][state].detach().clone()
        return out

    def load_tensors(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Load `tensors` after `steps` optimiser steps. Changes nothing if anything is wrong."""
        kinds = ("parameter", *(STATES if steps else ()))
        _check(tensors, {f"{kind}/{name}": full for kind in kinds for name, full in self._full.items()})
        self.set_parameters({name: tensors[f"parameter/{name}"] for name in self._full})
        self._adamw.state.clear()
        for name, full in self._full.items() if steps else ():
            moments = {state: tensors[f"{state}/{name}"].to(full).clone() for state in STATES}
            self._adamw.state[full] = {"step": torch.tensor(float(steps)), **moments}
        self.steps = steps


def is_shard(x: Tensor) -> bool:
    """Whether a tensor is this process's shard of one (a `DTensor`)."""
    return hasattr(x, "to_local")


def local(x: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    to_local: Any = getattr(x, "to_local", None)
    return x if to_local is None else to_local()


def _put(p: Tensor, value: Tensor) -> None:
    """Copy a value to a parameter; of a whole value a shard takes its own rows."""
    if is_shard(p) and not is_shard(value):
        own = local(p)
        begin = min(runtime.rank() * -(-p.shape[0] // runtime.world()), p.shape[0])
        own.copy_(value[begin : begin + own.shape[0]])
    else:
        p.copy_(value)


def _check(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    missing, surplus = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or surplus:
        what = f"lacks {missing[0]!r}" if missing else f"has {surplus[0]!r}, which the model has not"
        raise CheckpointError(
            f"the saved state {what} ({len(missing)} missing, {len(surplus)} too many): is it of this model?"
        )
    for name, x in expected.items():
        if found[name].shape != x.shape:
            raise CheckpointError(
                f"{name!r} has shape {tuple(found[name].shape)} in the saved state and {tuple(x.shape)} in the model"
            )


# ---------------------------------------------------------------- learners
class InProcess:
    """Base of learners in this process: a module's parameters in an `Optimiser`, updated in micro-batches.

    A learner gives `outputs`, and for the steps: what a forest's tokens are for its model (`_packing`, which has
    `flat_tokens(entries)`), sets of entries that go through it together (`_microbatches`; each has `entries` and
    `stored`, the number of stored tokens), and the named outputs of one of them, live (`_live`).
    """

    optimiser: Optimiser
    tokens_per_microbatch: int
    writes_files = False  # whether checkpoints are written by `save(path)`, in all processes, in the place of `tensors`
    lockstep = False  # whether every process makes equally many passes: where parameters are sharded over them

    def _packing(self, forest: Forest) -> Any:
        raise NotImplementedError

    def _microbatches(self, packing: Any, entries: Tensor, cuts: Sequence[Tensor] | None) -> list[Any]:
        raise NotImplementedError

    def _live(self, batch: Any, names: Sequence[str], *given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """`given`: nothing, or the `given` of `step`."""
        raise NotImplementedError

    def _short_memory(self, doing: str) -> AbstractContextManager[None]:
        return runtime.memory_is_short(doing, f"learner.tokens_per_microbatch (now {self.tokens_per_microbatch})")

    # ------------------------------------------------------------ steps
    def step(
        self,
        forest: Forest,
        loss: LossFunction,
        *,
        names: Sequence[str] = ("logprob",),
        couples: str = "token",
        active: Tensor | None = None,
        cuts: Sequence[Tensor] | None = None,
        given: Mapping[str, Tensor] | None = None,
    ) -> StepInfo:
        """One optimiser step on L(x). Nothing changes if no token is active, or if the gradient is not finite
        (`StepInfo.nonfinite`). Every process has the summed gradient, so all of them decide alike.

        given  constants [P, ...] by name that some outputs are made with, such as a teacher's log-probs
        """
        try:
            with self._short_memory("updating"):
                info = self._accumulate(forest, loss, names, couples, active, cuts, two_pass=None, given=given)
                norm = 0.0 if info.empty else self.optimiser.step()
            if info.empty:
                return info
            if not math.isfinite(norm):
                from gxpo.learners.finite import first_not_finite

                own = {name: local(g) for name, g in self.optimiser.gradients().items()}
                where = runtime.first_of(first_not_finite(own) or "") or "the sum of its squares"
                return replace(info, grad_norm=norm, nonfinite=where)
            return replace(info, grad_norm=norm, moved=self.optimiser.moved)
        finally:
            self.optimiser.zero()

    def gradient(
        self,
        forest: Forest,
        loss: LossFunction,
        *,
        names: Sequence[str] = ("logprob",),
        couples: str = "token",
        active: Tensor | None = None,
        cuts: Sequence[Tensor] | None = None,
        two_pass: bool | None = None,
        given: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Gradient of L by parameter name, without a step. `two_pass` True or False forces that method."""
        try:
            with self._short_memory("updating"):
                self._accumulate(forest, loss, names, couples, active, cuts, two_pass, given)
            return {name: g.clone() for name, g in self.optimiser.gradients().items()}
        finally:
            self.optimiser.zero()

    def _accumulate(
        self,
        forest: Forest,
        loss: LossFunction,
        names: Sequence[str],
        couples: str,
        active: Tensor | None,
        cuts: Sequence[Tensor] | None,
        two_pass: bool | None,
        given: Mapping[str, Tensor] | None = None,
    ) -> StepInfo:
        """Accumulate the gradient in the optimiser.

        active [P] bool: tokens whose outputs L reads (None: all). The others are not run; their outputs are nan.
        cuts: micro-batches given as sets of entries.
        """
        beside = () if not given else (given,)
        for name, x in (given or {}).items():
            if len(x) != forest.n_entries:
                raise ValueError(f"{name} has {len(x)} rows; the forest has {forest.n_entries} path tokens")
        if active is None:
            active = torch.ones(forest.n_entries, dtype=torch.bool)
        if active.shape != (forest.n_entries,) or active.dtype != torch.bool:
            raise ValueError(f"active must be bool [{forest.n_entries}], not {active.dtype} {tuple(active.shape)}")
        unit = unit_of(forest, couples)
        entries = active.nonzero().squeeze(1)
        if not entries.numel():
            return StepInfo(empty=True)
        packing = self._packing(forest)
        batches = self._microbatches(packing, entries, cuts)
        start = constants(forest, names)
        whole = whole_units(unit, batches)
        if two_pass is False and not whole:
            raise ModelError(f"these micro-batches cut through a {couples}: the gradient needs two passes")
        way = in_one_pass if whole and not two_pass else in_two_passes
        x = way(
            lambda b: self._live(b, names, *beside),
            batches,
            loss,
            start,
            self.optimiser.collect,
            lockstep=self.lockstep,
        )
        self.optimiser.share()
        computed = torch.zeros(forest.n_entries, dtype=torch.bool)
        computed[entries] = True
        with torch.no_grad():
            value = float(loss(x))
        return StepInfo(
            empty=False,
            loss=value,
            tokens_forward=sum(batch.stored for batch in batches),
            tokens_flat=packing.flat_tokens(entries),
            microbatches=len(batches),
            outputs={name: v.masked_fill(~computed, torch.nan) for name, v in x.items()},
        )

    # ------------------------------------------------------------ samplers
    def publish(self) -> None:
        """Give the parameters to samplers in this process; those of `InProcess` read them where they are."""

    # ------------------------------------------------------------ parameters
    def snapshot(self) -> dict[str, Tensor]:
        """Copy the trainable parameters."""
        return self.optimiser.parameters()

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Restore the trainable parameters from a snapshot; the optimiser's state stays."""
        self.optimiser.set_parameters(snapshot)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of a checkpoint, for safetensors."""
        return {name: x.cpu() for name, x in self.optimiser.tensors().items()}

    def meta(self) -> dict[str, Any]:
        """The rest of a checkpoint's state, as JSON."""
        return {"steps": self.optimiser.steps}

    def save(self, path: Path) -> None:
        """Write the checkpoint's files below `path`; where `writes_files`."""
        raise NotImplementedError

    def load(self, path: Path, meta: Mapping[str, Any]) -> None:
        """Read what `save` and `meta` gave; where `writes_files`."""
        raise NotImplementedError

    def load_tensors(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Load the checkpoint state given by `tensors` and `meta`."""
        steps = meta.get("steps")
        if not isinstance(steps, int) or steps < 0:
            raise CheckpointError(f"the learner's part of the checkpoint has steps {steps!r}; it must be a number >= 0")
        self.optimiser.load_tensors(tensors, steps)

    def checksum(self) -> dict[str, int]:
        """Checksum of the trainable parameters, for the step's line."""
        return {"weights_crc": self.weights_crc()}

    def weights_crc(self) -> int:
        """CRC-32 of the trainable parameters, in order of names."""
        crc = 0
        for _, p in sorted(self.optimiser.named.items()):
            crc = zlib.crc32(p.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes(), crc)
        return crc
