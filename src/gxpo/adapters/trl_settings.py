"""Translate GRPOTrainer's settings to a method's keys, and refuse contradictions, before the first step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gxpo.adapters.trl_asks import group_size, needs_length, of_settings, of_update
from gxpo.adapters.trl_keys import QUANTILE, Wanted, of_sequences
from gxpo.adapters.trl_stated import stated
from gxpo.compat import COMPAT
from gxpo.compose import method as compose
from gxpo.definition import Stated, same, show
from gxpo.errors import ConfigError
from gxpo.pipeline import Method

DEFAULT = "grpo@trl"  # the method that computes what TRL does


def translated(
    args: Any, spec: str | Method, overrides: Mapping[str, Any], rewards: Mapping[str, float] | None = None
) -> Method:
    """The method with keys translated from TRL's settings.

    A setting that was not given asks for nothing (`trl_stated`). One that was, at TRL's default or not, is translated
    into its key where neither the method nor the overrides state that key, accepted where they state the same value,
    and refused where they state another one.

    rewards  weights of the reward functions by name, where they are known
    """
    composed = compose(spec, overrides)
    asked = Wanted.by(args, stated(args), composed, rewards)
    wanted = {key: Stated(value, f"GRPOConfig.{setting}") for key, (setting, value) in asked.keys.items()}
    base, reasons = DEFAULT if isinstance(spec, Method) else spec, list(asked.reasons)
    try:
        meant = compose(base, {**overrides, **wanted}).keys
    except ConfigError as error:
        raise ConfigError(f"{composed.name} in TRL: {_without_place(base, overrides, wanted, error)}") from error
    free: dict[str, Any] = {}
    for key, (setting, _) in asked.keys.items():
        own, value = composed.keys.get(key), meant[key].value
        if own is not None and _equal(own.value, value):
            continue
        if not isinstance(spec, Method) and (own is None or _left_open(key, own)):
            free[key] = wanted[key]
            continue
        has = "no such key" if own is None else f"{key}={show(own.value)}"
        reasons.append(
            f"{setting}={getattr(args, setting)!r} is {key}={show(value)} here, and {composed.name} has {has}: leave "
            f"{setting} out, or say overrides={{{key!r}: {value if isinstance(value, float) else repr(show(value))}}}"
        )
    refuse(composed, reasons)
    return compose(spec, {**free, **overrides}) if free else composed


def _without_place(base: str, overrides: Mapping[str, Any], wanted: Mapping[str, Stated], error: ConfigError) -> str:
    """Settings whose keys the method can't take, each with the reason; all of them where only together they can't."""
    by_setting: dict[str, dict[str, Stated]] = {}
    for key, value in wanted.items():
        by_setting.setdefault(value.origin.removeprefix("GRPOConfig."), {})[key] = value
    found = []
    for setting, keys in by_setting.items():
        try:
            compose(base, {**overrides, **keys})
        except ConfigError as alone:
            found.append(f"{setting}: {alone}; leave it out")
    return "; ".join(found) or f"{', '.join(by_setting)}: {error}; leave it out"


def _left_open(key: str, stated: Stated) -> bool:
    """Whether this value is a default: gxpo's, or a constant of TRL's that was not set."""
    method, _, system = stated.origin.partition("@")
    return stated.origin == "default" or (system == "trl" and key in COMPAT["trl"].get(method, ()))


def _equal(a: Any, b: Any) -> bool:
    return math.isclose(a, b) if isinstance(a, float) and isinstance(b, float) else same(a, b)


def settings_against(args: Any, composed: Method, reward_weights: Mapping[str, float] | None) -> list[str]:
    """TRL settings that would have no effect, or contradict the method.

    reward_weights  TRL's by name of the function, where the method reads rewards by name; else None
    """
    found = _of_kl(args, composed) + _of_entropy(args, composed) + _of_sampler(args, composed)
    if args.steps_per_generation % (every := args.gradient_accumulation_steps):
        found.append(
            f"steps_per_generation={args.steps_per_generation}: an optimiser step must not reach over two "
            f"generation batches; make it a multiple of gradient_accumulation_steps={every}"
        )
    weights, own = reward_weights or {}, composed.keys.get("credit.weights")
    if any(w != 1.0 for w in weights.values()) and (own is None or own.value != weights):
        found.append(
            f"reward_weights={list(weights.values())}: {show(composed.credit)} weighs rewards itself; say "
            f"overrides={{'credit.weights': {weights}}}"
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
    if (size := group_size(composed)) is not None and args.num_generations != size:
        found.append(
            f"num_generations={args.num_generations}: {composed.name} has rollout.group_size={size}; set it to {size}"
        )
    if needs_length(composed) and args.max_steps <= 0:
        found.append("max_steps: a coefficient follows the course of the run; set max_steps, or its total_steps")
    return found


def _of_kl(args: Any, composed: Method) -> list[str]:
    """Settings of the reference policy."""
    found = []
    kl = composed.terms.get("kl") or composed.kl_reward
    coef = kl.coef if kl is not None else 0.0
    if "reference_logprob" in composed.needs and not args.beta:
        found.append(f"beta=0: TRL loads a reference model only with a beta; set it to {coef or 'any value'}")
    moves = getattr(getattr(kl, "control", None), "from_zero", False) and not coef  # TRL's beta loads the reference
    if args.beta and kl is not None and args.beta != coef and not moves:
        found.append(f"beta={args.beta}: objective.kl.coef is {coef}; give both the same value")
    weighted = composed.keys.get("objective.kl.ratio_weighted")
    if weighted is not None and weighted.value and weighted.origin.startswith("GRPOConfig.") and of_sequences(composed):
        found.append(
            "use_bias_correction_kl=True: TRL weighs the KL by the ratio of the sequence, gxpo by each token's; set it "
            "to False, or say overrides={'objective.kl.ratio_weighted': True} for each token's"
        )
    return found


def _of_entropy(args: Any, composed: Method) -> list[str]:
    """Settings of the entropy bonus that mean something else in TRL."""
    found = []
    bonus = composed.terms.get("entropy")
    if (
        getattr(args, "top_entropy_quantile", 1.0) != 1.0
        and QUANTILE in composed.keys
        and bonus is not None
        and bonus.ever
    ):
        found.append(
            f"top_entropy_quantile={args.top_entropy_quantile} with an entropy bonus: TRL's bonus is of those tokens "
            "alone, gxpo's of all; leave one of them out"
        )
    steps = args.steps_per_generation // args.gradient_accumulation_steps * args.num_iterations
    if getattr(args, "use_adaptive_entropy", False) and steps > 1:
        found.append(
            f"use_adaptive_entropy=True: TRL moves the coefficient with each optimiser step, gxpo with each generation "
            f"batch, which has {steps} here; set num_iterations=1 and steps_per_generation=gradient_accumulation_steps"
        )
    return found


def _of_sampler(args: Any, composed: Method) -> list[str]:
    """TRL's correction of vLLM's log-probs, where the method corrects them itself."""
    if not (getattr(args, "use_vllm", False) and getattr(args, "vllm_importance_sampling_correction", False)):
        return []
    own = [f"weight.{name}" for name, part in composed.weights.items() if getattr(part, "corrects_mismatch", False)]
    own += [
        "objective" if name == "policy" else f"objective.{name}"
        for name, term in composed.terms.items()
        if getattr(term, "ratio_over", "") == "behaviour"
    ]
    return [
        f"{key}: TRL's vllm_importance_sampling_correction does the same a second time; set it to False" for key in own
    ]


def refuse(composed: Method, reasons: list[str]) -> None:
    """Raise ConfigError with the reasons, if there are any."""
    if reasons:
        raise ConfigError(f"{composed.name} in TRL: {'; '.join(dict.fromkeys(reasons))}")
