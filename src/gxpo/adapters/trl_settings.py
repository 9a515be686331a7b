"""What a GRPOTrainer's settings and a method's keys say of each other, before the first step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.errors import ConfigError
from gxpo.keys import show
from gxpo.learners.epochs import Epochs
from gxpo.pipeline import Method, controls

# TRL's settings of the stages that gxpo takes over, and what says the same here; they must stand at their defaults.
REPLACED: Mapping[str, str] = {
    "loss_type": "objective.aggregate ('token_mean', 'sequence_mean', 'sequence_sum') or a method (gspo, cispo, ...)",
    "epsilon": "objective.clip_low",
    "epsilon_high": "objective.clip_high",
    "delta": "objective.gate='dual_clip'",
    "importance_sampling_level": "objective.ratio='sequence'",
    "scale_rewards": "credit.scale",
    "multi_objective_aggregation": "the method gdpo_multi",
    "top_entropy_quantile": "a method that weighs tokens by entropy",
    "entropy_coef": "objective.entropy.coef",
    "use_adaptive_entropy": "objective.entropy.coef",
    "off_policy_mask_threshold": "the method tis",
}


def settings_against(args: Any, composed: Method, reward_weights: Sequence[float] | None) -> list[str]:
    """Settings of TRL that would do nothing, or contradict the method.

    reward_weights  TRL's, where the method reads rewards by name; else None
    """
    found = []
    defaults = {f.name: f.default for f in dataclasses.fields(args)}
    for name, instead in REPLACED.items():
        value = getattr(args, name, None)
        if name in defaults and value != defaults[name]:
            found.append(f"{name}={value!r}: gxpo computes this; leave it out and set {instead}")
    kl = composed.terms.get("kl") or composed.kl_reward
    reads = "reference_logprob" in composed.needs
    coef = kl.coef if kl is not None else 0.0
    if reads and not args.beta:
        found.append(f"beta=0: TRL loads a reference model only with a beta; set it to {coef or 'any value'}")
    if args.beta and kl is not None and args.beta != coef:
        found.append(f"beta={args.beta}: objective.kl.coef is {coef}; give both the same value")
    if args.beta and not reads:
        found.append(f"beta={args.beta}: set overrides={{'objective.kl.coef': {args.beta}}}, or leave it out")
    if args.steps_per_generation % (every := args.gradient_accumulation_steps):
        found.append(
            f"steps_per_generation={args.steps_per_generation}: an optimiser step must not reach over two "
            f"generation batches; make it a multiple of gradient_accumulation_steps={every}"
        )
    corrected = getattr(args, "use_vllm", False) and getattr(args, "vllm_importance_sampling_correction", False)
    if corrected and "weight.mismatch" in composed.keys:
        found.append("weight.mismatch: TRL's vllm_importance_sampling_correction does the same; set it to False")
    if any(w != 1.0 for w in reward_weights or ()):
        found.append(
            f"reward_weights={reward_weights}: {show(composed.credit)} weighs rewards itself; set credit.weights"
        )
    update = composed.update
    if update != Epochs():
        found.append(
            f"update={show(update)}: TRL steps itself; set num_iterations and steps_per_generation there, and "
            "update=epochs, update.epochs=1, update.minibatches=1 here"
        )
    found += [
        f"{key}: it adapts to figures of each step, which are not shown to it in TRL"
        for key in controls(composed)
        if key != "update"
    ]
    return found


def refuse(composed: Method, reasons: list[str]) -> None:
    """Raise ConfigError with the reasons, if there are any."""
    if reasons:
        raise ConfigError(f"{composed.name} in TRL: {'; '.join(dict.fromkeys(reasons))}")
