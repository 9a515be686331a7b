"""Records of a method in TRL's own outputs: its log, checkpoints and model cards.

The log has advantages and figures of the loss under TRL's names; figures of whole optimiser steps also move the
coefficients that follow them (`objective.kl.control` and others).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.adapters import asks
from gxpo.adapters.trl_rollouts import ScoredBatch
from gxpo.algorithms.objectives.base import PolicyGradient, evaluate
from gxpo.algorithms.objectives.surrogate import Clip
from gxpo.algorithms.objectives.surrogate_weights import gamma_kernel
from gxpo.base.errors import CheckpointError, need
from gxpo.forest.forest import Forest
from gxpo.methods.method import Method
from gxpo.parts.definition import show
from gxpo.parts.protocols import PolicyTokens

Base: Any = object  # the class here is mixed into TRL's, which need not be installed
Gather = Callable[[Tensor], Tensor]  # a column [n] of this process -> that of all of them
SOFT = ("sigmoid",)  # surrogates of TRL's that cut nothing, and of which it logs no share


class LossLog:
    """Writer of a trainer's log: advantages and loss under TRL's names, and the method's own figures under gxpo/."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def advantages(self, scored_batch: ScoredBatch) -> None:
        """Replace TRL's advantages in its table of completions by each row's mean under the method."""
        logged_advantages = self._trainer._logs["advantages"]
        forest, rows = scored_batch.forest, scored_batch.forest.n_trajectories
        total = torch.zeros(rows, dtype=torch.float64).index_add_(0, forest.path_trajectory, scored_batch.credit)
        count = torch.bincount(forest.path_trajectory, minlength=rows).clamp_min(1)
        for _ in range(min(rows, len(logged_advantages))):
            logged_advantages.pop()
        logged_advantages.extend((total / count).tolist())

    def figures(self, mode: str, scored_batch: ScoredBatch, x: Mapping[str, Tensor]) -> None:
        """Log the figures of the terms on these rows, and TRL's own figures under its names.

        x  outputs of the policy [P], detached
        """
        metrics, method = self._trainer._metrics[mode], self._trainer.gxpo_method
        policy = scored_batch.policy(x)
        evaluation = method.evaluate(
            scored_batch.forest,
            policy,
            scored_batch.credit,
            scored_batch.weight,
            scored_batch.signals,
            scored_batch.step,
        )
        for name, value in evaluation.metrics.items():
            metrics[f"gxpo/{name}"].append(value)
        for name, value in loss_figures(method, scored_batch, policy, self._gather).items():
            metrics[name].append(value)

    @property
    def has_bonus(self) -> bool:
        """True if the loss has an entropy bonus."""
        return self._bonus_term is not None

    def bonus(self, scored_batch: ScoredBatch, policy: PolicyTokens) -> float:
        """Return the entropy bonus's share in the loss; 0 without one."""
        if (term := self._bonus_term) is None:
            return 0.0
        with torch.no_grad():
            term_inputs = scored_batch.credit, scored_batch.weight, scored_batch.signals, scored_batch.step
            return float(evaluate(term, scored_batch.forest, policy, *term_inputs)[0])

    def policy_loss(self, mode: str, share: float) -> None:
        """Log the loss without its entropy bonus, where it has one; `share` is this process's and micro-batch's."""
        if self._bonus_term is None:
            return
        trainer = self._trainer
        parts = trainer.args.gradient_accumulation_steps if mode == "train" else 1
        factor = 1 if is_sum_of_shares(trainer.args, trainer.gxpo_method) else parts
        local_share = torch.tensor([share * factor * trainer.accelerator.num_processes], dtype=torch.float64)
        trainer._metrics[mode]["policy_loss"].append(float(self._gather(local_share).nanmean()))

    def coefficient(self) -> None:
        """Log the entropy bonus's coefficient after an optimiser step, and set the trainer's attribute of TRL's."""
        if (term := self._bonus_term) is None:
            return
        current = term.coef if term.control is None else term.control.level(term.coef)
        self._trainer.entropy_coef = current
        self._trainer._metrics["train"]["entropy_coef"].append(current)

    @property
    def _bonus_term(self) -> Any:
        term = self._trainer.gxpo_method.terms.get("entropy")
        return term if getattr(term, "is_ever_used", False) else None

    def _gather(self, x: Tensor) -> Tensor:
        """Gather a column of all processes, each with as many rows, in float64 on the CPU."""
        accelerator = self._trainer.accelerator
        if accelerator.num_processes == 1:
            return x.detach().double().cpu()
        return accelerator.gather(x.detach().to(accelerator.device, torch.float32)).double().cpu()


def loss_figures(method: Method, scored_batch: ScoredBatch, policy: PolicyTokens, gather: Gather) -> dict[str, float]:
    """Return the figures that TRL logs of a micro-batch on all processes: `kl`, and clip ratios of the policy's loss.

    scored, policy  of this process's rows
    """
    metrics = {}
    kl = method.terms.get("kl")
    if kl is not None and kl.current_coef != 0:
        entries = scored_batch.forest.path_trainable.nonzero().squeeze(1)
        value = (
            kl.quantity(scored_batch.forest, policy, entries).detach() if entries.numel() else policy.logprob[entries]
        )
        metrics["kl"] = _ratio(gather, value.double().sum(), entries.numel())
    term = method.terms["policy"]
    if isinstance(term, PolicyGradient) and show(term.surrogate) not in SOFT:
        metrics |= _policy_figures(term, scored_batch, policy, gather)
    return metrics


def is_sum_of_shares(args: Any, method: Method) -> bool:
    """Return True if TRL divides a micro-batch's loss by the tokens of the whole optimiser step: the losses add up.

    Elsewhere they are means over a micro-batch, and are averaged.
    """
    term = method.terms["policy"]
    return getattr(term, "aggregate", "") == "token_mean" and args.loss_type != "bnpo"


@dataclass(frozen=True)
class _Rows:
    """A process's rows, and means of columns [P] over them as TRL takes these."""

    forest: Forest
    gather: Gather
    is_by_row: bool  # a row has one ratio, and counts once whatever its length

    def each(self, x: Tensor) -> Tensor:
        """Mean over the tokens of each row, of all processes [R]; nan for a row without any."""
        entries = self.forest.path_trainable
        owner, rows = self.forest.path_trajectory[entries], self.forest.n_trajectories
        total = torch.zeros(rows, dtype=torch.float64).index_add_(0, owner, x[entries].double())
        return self.gather(total / torch.bincount(owner, minlength=rows))

    def mean(self, x: Tensor) -> float:
        """Mean over all tokens, or over the rows where a row has one ratio."""
        if self.is_by_row:
            return float(self.each(x).nan_to_num(0.0).mean())
        values_P = x[self.forest.path_trainable].double()
        return _ratio(self.gather, values_P.sum(), values_P.numel())


@torch.no_grad()
def _policy_figures(
    term: PolicyGradient, scored_batch: ScoredBatch, policy: PolicyTokens, gather: Gather
) -> dict[str, float]:
    """Return the clip ratios that TRL logs for the policy term's kind of loss."""
    forest, credit = scored_batch.forest, scored_batch.credit
    surrogate: Any = term.surrogate  # its options are of its kind
    rows = _Rows(forest, gather, show(term.ratio) == "sequence")
    # the term skips tokens whose advantage or weight is 0, while TRL's figures count all tokens: a made-up advantage of
    # the right sign and a weight of 1 bring them in
    sign = torch.where(credit < 0, -1.0, 1.0).to(torch.float64)
    places, x = term.inputs(forest, policy, sign, torch.ones_like(scored_batch.weight))

    def column(values: Tensor) -> Tensor:
        return torch.zeros(forest.n_entries, dtype=torch.float64).index_copy(0, places, values.detach().double())

    # TRL has other figures for VESPO and CISPO, whose losses do not clip
    if (name := show(surrogate)) == "gamma":
        options = surrogate.options
        power = x.by_sign(options["power_positive"], options["power_negative"])
        decay = x.by_sign(options["decay_positive"], options["decay_negative"])
        phi = rows.each(column(gamma_kernel(x.ratio, power, decay)))
        return {"vespo/phi_seq_mean": float(phi.nan_to_num(1.0).mean())}  # of no token phi is that of the ratio 1
    if name == "truncate":
        return {"cispo_clip_ratio": rows.mean((column(x.ratio > surrogate.options["ratio_max"]) > 0) & (credit > 0))}
    if isinstance(surrogate, Clip):  # whatever the weight, and without a further bound for large ratios of A < 0
        least, most = (torch.as_tensor(bound, dtype=x.ratio.dtype) for bound in surrogate.bounds(x))
        low = (column(x.ratio < least) > 0) & (credit < 0)
        high = (column(x.ratio > most) > 0) & (credit > 0)
    else:
        cut = term.is_cut(forest, policy, credit, scored_batch.weight)
        low, high = cut & (credit < 0), cut & (credit > 0)
    return {
        "clip_ratio/low_mean": rows.mean(low),
        "clip_ratio/high_mean": rows.mean(high),
        "clip_ratio/region_mean": rows.mean(low | high),
        "clip_ratio/low_min": _extreme(rows.each(low), torch.min),
        "clip_ratio/high_max": _extreme(rows.each(high), torch.max),
    }


def _ratio(gather: Gather, total: Tensor, count: int) -> float:
    sums = gather(torch.stack([total, torch.tensor(float(count), dtype=torch.float64)])).reshape(-1, 2).sum(0)
    return float(sums[0] / sums[1].clamp_min(1))


def _extreme(rows: Tensor, reduce: Callable[[Tensor], Tensor]) -> float:
    valid_R = rows[~rows.isnan()]
    return float(reduce(valid_R)) if valid_R.numel() else float("nan")


# ---------------------------------------------------------------- figures of optimiser steps
class StepFigures:
    """Figures of whole optimiser steps, for coefficients that follow them (`objective.kl.control` and others).

    Call `add` for each micro-batch, `close` for each optimiser step, `adjust` after the last one of a generation batch.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._outputs: dict[str, Tensor] = {}
        self._steps: list[dict[str, float]] = []

    def add(self, scored_batch: ScoredBatch, entries: Tensor, outputs: Mapping[str, Tensor]) -> None:
        """Take a micro-batch's policy outputs, at `entries` [n] of the optimiser step's path tokens."""
        for name, x in outputs.items():
            start = torch.zeros(scored_batch.forest.n_entries, dtype=torch.float64)
            self._outputs[name] = self._outputs.get(name, start).index_copy(0, entries, x.detach().double())

    def close(self, scored_batch: ScoredBatch, summed: Callable[[Tensor], Tensor]) -> None:
        """Compute the figures of an optimiser step; `summed` adds up processes, each of which has its own rows."""
        x = {name: summed(column) for name, column in self._outputs.items()}
        self._outputs = {}
        method, forest = self._method, scored_batch.forest
        metrics: dict[str, float] = {}
        if bool(method.active(forest, scored_batch.credit, scored_batch.weight, scored_batch.signals).any()):
            term_inputs = scored_batch.credit, scored_batch.weight, scored_batch.signals, scored_batch.step
            with torch.no_grad():
                metrics = method.evaluate(forest, scored_batch.policy(x), *term_inputs).metrics
        # also of a step that moves nothing, as TRL measures it
        entropy = x["entropy"][forest.path_trainable]
        self._steps.append({**metrics, **({"entropy": float(entropy.mean())} if entropy.numel() else {})})

    def adjust(self, forest: Forest, step: int) -> dict[str, float]:
        """Move the method's coefficients by the figures' means over optimiser steps; return their new values."""
        names = dict.fromkeys(name for step_figures in self._steps for name in step_figures)
        figures: dict[str, Any] = {}
        for name in names:
            # a step without any gradient has fewer figures
            values = [step_figures[name] for step_figures in self._steps if name in step_figures]
            figures[name] = sum(values) / len(values)
        self._steps = []
        for name, column in (("reward_mean", forest.outcome), ("success_rate", forest.success)):
            values = column[column.isfinite()]
            if values.numel():
                figures[name] = float(values.mean())
        return self._method.adjust({**figures, "trajectories": forest.n_trajectories, "step": step})


# ---------------------------------------------------------------- checkpoints and model cards
STATE, TENSORS = "gxpo_method.json", "gxpo_method.safetensors"


def keys_of(method: Method) -> dict[str, str]:
    """Return the keys that differ from gxpo's defaults, with their values as text."""
    return {key: show(setting.value) for key, setting in method.keys.items() if setting.origin != "default"}


def save_checkpoint(folder: Path, method: Method) -> None:
    """Write the method's keys and state into a folder of TRL's checkpoint."""
    content = {"method": method.name, "keys": keys_of(method), "state": method.state_dict()}
    (folder / STATE).write_text(json.dumps(content, indent=1), encoding="utf-8")
    if tensors := method.tensors():
        need("safetensors.torch", "trl").save_file(tensors, folder / TENSORS)


def load_checkpoint(folder: Path, method: Method) -> None:
    """Restore the method's state from a checkpoint; CheckpointError for one of another method.

    A checkpoint that was made without gxpo can be started from, unless the method has parts with state.
    """
    path = folder / STATE
    if not path.exists():
        rollout = ["rollout"] if asks.has_state(method.rollout) else []
        if stateful_keys := [*rollout, *asks.stateful_keys(method)]:
            raise CheckpointError(
                f"{path} is missing, and {', '.join(stateful_keys)} can't go on without it: resume from another "
                "checkpoint"
            )
        return
    # resuming under other keys would silently be another method from here on
    checkpoint = json.loads(path.read_text(encoding="utf-8"))
    if "keys" not in checkpoint:  # written by gxpo 0.1: the state alone
        checkpoint = {"keys": keys_of(method), "method": method.name, "state": checkpoint}
    method_keys, checkpoint_keys = keys_of(method), checkpoint["keys"]
    different_keys = [
        key for key in {**checkpoint_keys, **method_keys} if checkpoint_keys.get(key) != method_keys.get(key)
    ]
    if different_keys:
        differences = ", ".join(
            f"{key}={checkpoint_keys.get(key, 'default')} there and {method_keys.get(key, 'default')} here"
            for key in different_keys
        )
        raise CheckpointError(
            f"{folder} was trained with method {checkpoint['method']}, this trainer has {method.name} ({differences}): "
            "make the trainer with the same method, or start another run from its weights"
        )
    if (folder / TENSORS).exists():
        method.load_tensors(need("safetensors.torch", "trl").load_file(folder / TENSORS))
    method.load_state_dict(checkpoint["state"])


class Records(Base):
    """Mixin of TRL's trainer that writes a method's keys and state into its checkpoints and model card."""

    gxpo_method: Method

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            save_checkpoint(folder, self.gxpo_method)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            load_checkpoint(Path(checkpoint), self.gxpo_method)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write TRL's model card, with a section on the method and its keys."""
        super().create_model_card(*args, **kwargs)
        card = Path(self.args.output_dir) / "README.md"
        if self.accelerator.is_main_process and card.exists():
            text = card.read_text(encoding="utf-8") + model_card_section(self.gxpo_method)
            card.write_text(text, encoding="utf-8")


def model_card_section(method: Method) -> str:
    """Return the Markdown section on a method for a model card."""
    lines = [f"- `{key}`: {value}" for key, value in keys_of(method).items()]
    return "\n".join(["", "## Method", "", f"Credit, weights and objective: gxpo, `{method.name}`.", "", *lines, ""])
