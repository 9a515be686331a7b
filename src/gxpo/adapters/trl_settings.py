"""Translate GRPOTrainer's settings to a method's keys, and refuse contradictions, before the first step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.adapters.trl_asks import needs_length, of_settings, of_update
from gxpo.compat import COMPAT
from gxpo.compose import method as compose
from gxpo.definition import Stated, same, show
from gxpo.errors import ConfigError
from gxpo.pipeline import Method

# TRL's settings of the stages that gxpo takes over and that have no key here, and what does the same.
WITHOUT_KEY: Mapping[str, str] = {
    "use_adaptive_entropy": "say overrides={'objective.entropy.control': 'entropy_target'}",
    "top_entropy_quantile": "use a method that weighs tokens by entropy",
    "off_policy_mask_threshold": "use the method tis",
}
# loss_type -> aggregate of GRPO's loss, or the method whose loss it is
AGGREGATES = {"grpo": "sequence_mean", "bnpo": "token_mean", "dapo": "token_mean", "dr_grpo": "sequence_sum"}
LOSSES = {"cispo": "cispo@trl", "luspo": "luspo@trl", "sapo": "sapo_gate@trl", "vespo": "vespo@trl"}
# keys of an objective that it fixes
OF_A_LOSS = ("surrogate", "ratio", "aggregate", "horizon", "ratio_over", "ratio_max")
NUMBERS: Mapping[str, str] = {
    "entropy_coef": "objective.entropy.coef",
    "sapo_temperature_pos": "objective.tau_positive",
    "sapo_temperature_neg": "objective.tau_negative",
    "vespo_k_pos": "objective.power_positive",
    "vespo_lambda_pos": "objective.decay_positive",
    "vespo_k_neg": "objective.power_negative",
    "vespo_lambda_neg": "objective.decay_negative",
}
SCALES = {"group": "std", "batch": "batch_std", "none": "none"}
TRANSLATED = ("loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "scale_rewards",
              "multi_objective_aggregation", *NUMBERS)  # fmt: skip
DEFAULT = "grpo@trl"  # the method that computes what TRL does


def translated(args: Any, spec: str | Method, overrides: Mapping[str, Any]) -> Method:
    """The method with keys translated from TRL's settings.

    A setting at TRL's default asks for nothing. Another is translated into its key where neither the method nor the
    overrides state that key, accepted where they state the same value, and refused where they state another one.
    """
    composed = compose(spec, overrides)
    asked, reasons = _asked(args, composed)
    wanted = {key: Stated(value, f"GRPOConfig.{setting}") for key, (setting, value) in asked.items()}
    try:
        meant = compose(DEFAULT if isinstance(spec, Method) else spec, {**overrides, **wanted}).keys
    except ConfigError as error:
        settings = ", ".join(dict.fromkeys(setting for setting, _ in asked.values()))
        raise ConfigError(f"{composed.name} in TRL: {settings}: {error}; leave it out") from error
    free: dict[str, Any] = {}
    for key, (setting, _) in asked.items():
        stated, value = composed.keys.get(key), meant[key].value
        if stated is not None and _equal(stated.value, value):
            continue
        if not isinstance(spec, Method) and (stated is None or _left_open(key, stated)):
            free[key] = wanted[key]
            continue
        has = "no such key" if stated is None else f"{key}={show(stated.value)}"
        reasons.append(
            f"{setting}={getattr(args, setting)!r} is {key}={show(value)} here, and {composed.name} has {has}: leave "
            f"{setting} out, or say overrides={{{key!r}: {value if isinstance(value, float) else repr(show(value))}}}"
        )
    refuse(composed, reasons)
    return compose(spec, {**free, **overrides}) if free else composed


def _asked(args: Any, composed: Method) -> tuple[dict[str, tuple[str, Any]], list[str]]:
    """Key -> (TRL's setting, value) of settings that differ from TRL's defaults; and those without a key."""
    defaults = {f.name: f.default for f in dataclasses.fields(args)}
    changed = {n: v for n in defaults if (v := getattr(args, n)) != defaults[n] and n in (*TRANSLATED, *WITHOUT_KEY)}
    asked: dict[str, tuple[str, Any]] = {}
    reasons = [f"{n}={v!r}: {WITHOUT_KEY[n]}; leave it out" for n, v in changed.items() if n in WITHOUT_KEY]

    def ask(setting: str, **keys: Any) -> None:
        asked.update({f"objective.{key}": (setting, value) for key, value in keys.items()})

    loss: str = changed.get("loss_type", "")
    if loss in AGGREGATES:
        ask("loss_type", aggregate=AGGREGATES[loss])
    elif loss in LOSSES:
        own = compose(LOSSES[loss]).keys
        wanted = {n: own[f"objective.{n}"].value for n in OF_A_LOSS if f"objective.{n}" in own}
        ask("loss_type", **{n: value for n, value in wanted.items() if value is not None})
    elif loss:
        reasons.append(f"loss_type={loss!r} is not known here: leave it out and give a method")
    if "importance_sampling_level" in changed:
        ask("importance_sampling_level", ratio=changed["importance_sampling_level"])
    if loss == "cispo" or show(getattr(composed.terms.get("policy"), "surrogate", None)) == "truncate":
        bounds: dict[str, tuple[str, ...]] = {"epsilon": ("ratio_max",), "epsilon_high": ("ratio_max",)}
    else:
        bounds = {"epsilon": ("clip_low", "clip_high"), "epsilon_high": ("clip_high",)}
    for setting, keys in bounds.items():
        if setting in changed:
            ask(setting, **dict.fromkeys(keys, changed[setting]))
    if "delta" in changed:
        ask("delta", surrogate="dual_clip", ratio_max=changed["delta"])
    for setting, key in NUMBERS.items():
        if setting in changed:
            asked[key] = (setting, changed[setting])
    if "scale_rewards" in changed:
        name: Any = {True: "group", False: "none"}.get(changed["scale_rewards"], changed["scale_rewards"])
        asked["credit.scale"] = ("scale_rewards", SCALES.get(name, name))
    if "multi_objective_aggregation" in changed and type(composed.credit) is not type(compose("gdpo_multi").credit):
        reasons.append(
            f"multi_objective_aggregation={changed['multi_objective_aggregation']!r}: give method='gdpo_multi' instead"
        )
    if args.beta and "reference_logprob" not in composed.needs:  # a method that reads it has a coefficient of its own
        ask("beta", **{"kl.coef": args.beta})
        if getattr(args, "use_bias_correction_kl", False):
            ask("beta", **{"kl.ratio_weighted": True})
    return asked, reasons


def _left_open(key: str, stated: Stated) -> bool:
    """Whether this value is a default: gxpo's, or a constant of TRL's that was not set."""
    method, _, system = stated.origin.partition("@")
    return stated.origin == "default" or (system == "trl" and key in COMPAT["trl"].get(method, ()))


def _equal(a: Any, b: Any) -> bool:
    return math.isclose(a, b) if isinstance(a, float) and isinstance(b, float) else same(a, b)


def settings_against(args: Any, composed: Method, reward_weights: Sequence[float] | None) -> list[str]:
    """TRL settings that would have no effect, or contradict the method.

    reward_weights  TRL's, where the method reads rewards by name; else None
    """
    found = []
    kl = composed.terms.get("kl") or composed.kl_reward
    reads = "reference_logprob" in composed.needs
    coef = kl.coef if kl is not None else 0.0
    if reads and not args.beta:
        found.append(f"beta=0: TRL loads a reference model only with a beta; set it to {coef or 'any value'}")
    moves = getattr(getattr(kl, "control", None), "from_zero", False) and not coef  # TRL's beta loads the reference
    if args.beta and kl is not None and args.beta != coef and not moves:
        found.append(f"beta={args.beta}: objective.kl.coef is {coef}; give both the same value")
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
    found += of_settings(composed)
    for name, n in (of_update(composed) or {}).items():
        has, unit = getattr(args, name), ""
        if name == "steps_per_generation":
            has, unit = has / every, " x gradient_accumulation_steps"
        if has != n:
            found.append(
                f"{name}={getattr(args, name)}: {composed.name} takes other optimiser steps; set it to {n}{unit}"
            )
    if needs_length(composed) and args.max_steps <= 0:
        found.append("max_steps: a coefficient follows the course of the run; set max_steps, or its total_steps")
    return found


def refuse(composed: Method, reasons: list[str]) -> None:
    """Raise ConfigError with the reasons, if there are any."""
    if reasons:
        raise ConfigError(f"{composed.name} in TRL: {'; '.join(dict.fromkeys(reasons))}")
