"""TRL's settings for a method: which it needs there, their translation to its keys, and contradictions refused.

Everything is decided before the first step, and needs no TRL.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.adapters import asks
from gxpo.adapters.trl_config import stated_names
from gxpo.adapters.trl_growth import GROWS
from gxpo.adapters.trl_keys import QUANTILE, SettingKeys, has_sequence_ratio, is_left_open
from gxpo.base.errors import ConfigError
from gxpo.learning.base import Epochs
from gxpo.methods.compose import method as compose
from gxpo.methods.method import Method, controls
from gxpo.parts.definition import SettingValue, same, show
from gxpo.sampling.rollouts.rounds import Independent

# ---------------------------------------------------------------- translation
DEFAULT = "grpo@trl"  # the method that computes what TRL does
# settings of gxpo's own trainer -> what to do in TRL
OF_TRL: Mapping[str, str] = {
    "optim.lr": "set learning_rate",
    "optim.weight_decay": "set weight_decay",
    "sampling.temperature": "set temperature",
    "sampling.top_p": "set top_p",
    "sampling.top_k": "set top_k",
    "sampling.max_new_tokens": "set max_completion_length",
    "trainer.steps": "set max_steps",
    "trainer.seed": "set seed",
}


def translate_settings(
    args: Any, spec: str | Method, overrides: Mapping[str, Any], rewards: Sequence[tuple[str, float]] | None = None
) -> Method:
    """Compose a method with keys translated from TRL's settings.

    A setting that the user did not give is ignored (`trl_config.stated_names`). One that was given, at TRL's default or
    not, becomes its key where neither the method nor the overrides state that key; it is accepted where they state the
    same value, and refused where they state another one.

    rewards  (name, weight) of each reward function, where they are known
    """
    composed = compose(spec, overrides)
    setting_keys = SettingKeys.of(args, stated_names(args), composed, rewards)
    values = {key: SettingValue(value, f"GRPOConfig.{setting}") for key, (setting, value) in setting_keys.keys.items()}
    base, reasons = DEFAULT if isinstance(spec, Method) else spec, list(setting_keys.reasons)
    # composed once with every translated key as an override, to compare values after parts and defaults are resolved
    try:
        keys_with_settings = compose(base, {**overrides, **values}).keys
    except ConfigError as error:
        raise ConfigError(f"{composed.name} in TRL: {_untranslatable(base, overrides, values, error)}") from error
    translations: dict[str, Any] = {}
    contradictions: dict[str, dict[str, Any]] = {}  # setting -> its keys that the method states otherwise
    for key, (setting, _) in setting_keys.keys.items():
        method_key, value = composed.keys.get(key), keys_with_settings[key].value
        if method_key is not None and _equal(method_key.value, value):
            continue
        # a Method object was composed by the caller, so all its keys count as stated
        if not isinstance(spec, Method) and (method_key is None or is_left_open(key, method_key)):
            translations[key] = values[key]
        else:
            contradictions.setdefault(setting, {})[key] = value
    # the override that a refusal advises must work: it is tried first
    for setting, keys in contradictions.items():
        advises = not isinstance(spec, Method) and _composes(base, {**overrides, **keys})
        reasons.append(_contradiction(setting, getattr(args, setting), keys, composed, advises))
    refuse(composed, reasons)
    return compose(spec, {**translations, **overrides}) if translations else composed


def _untranslatable(
    base: str, overrides: Mapping[str, Any], values: Mapping[str, SettingValue], error: ConfigError
) -> str:
    """Describe the settings whose keys the method can't take, each with its reason; all of them if none fails alone."""
    by_setting: dict[str, dict[str, SettingValue]] = {}
    for key, value in values.items():
        by_setting.setdefault(value.origin.removeprefix("GRPOConfig."), {})[key] = value
    reasons = []
    for setting, keys in by_setting.items():
        try:
            compose(base, {**overrides, **keys})
        except ConfigError as alone:
            reasons.append(f"{setting}: {alone}; leave it out")
    return "; ".join(reasons) or f"{', '.join(by_setting)}: {error}; leave it out"


def _equal(a: Any, b: Any) -> bool:
    """Return True for equal values of a key; floats may differ by rounding."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b)
    return same(a, b) or (isinstance(a, str) != isinstance(b, str) and show(a) == show(b))  # a part, and its name


def _contradiction(setting: str, setting_value: Any, keys: Mapping[str, Any], composed: Method, advises: bool) -> str:
    """Describe a setting whose keys have other values in the method.

    keys     translation of the setting;   advises: True if these keys as overrides make a method
    """
    keys_text = ", ".join(f"{key}={show(value)}" for key, value in keys.items())
    method_keys = {key: composed.keys.get(key) for key in keys}
    method_text = ", ".join(f"no {key}" if x is None else f"{key}={show(x.value)}" for key, x in method_keys.items())
    typed = {key: v if isinstance(v, (bool, int, float, dict, type(None))) else show(v) for key, v in keys.items()}
    instead = f", or say overrides={typed}" if advises else ""
    return (
        f"{setting}={setting_value!r} is {keys_text} here, and {composed.name} has {method_text}: "
        f"leave {setting} out{instead}"
    )


def _composes(base: str, overrides: Mapping[str, Any]) -> bool:
    """Return True if a method can be composed with these overrides."""
    try:
        compose(base, overrides)
    except ConfigError:
        return False
    return True


def settings_against(args: Any, composed: Method, by_name: Sequence[tuple[str, float]] | None) -> list[str]:
    """Return problems with TRL settings that would have no effect, or contradict the method.

    by_name  (name, weight) of each reward function where the method reads rewards by name; else None
    """
    # loss and sampler
    problems = _kl_problems(args, composed) + _entropy_problems(args, composed) + _sampler_problems(args, composed)
    if args.steps_per_generation % (every := args.gradient_accumulation_steps):
        problems.append(
            f"steps_per_generation={args.steps_per_generation}: an optimiser step must not reach over two "
            f"generation batches; make it a multiple of gradient_accumulation_steps={every}"
        )
    # rewards: an estimator that weighs them by name would ignore TRL's weights
    weights, weights_setting = dict(by_name or ()), composed.keys.get("credit.weights")
    if len(weights) < len(by_name or ()):
        problems.append(
            "reward_funcs: two have the same name, and this method reads rewards by name; give each its own"
        )
    if any(w != 1.0 for w in weights.values()) and (weights_setting is None or weights_setting.value != weights):
        problems.append(
            f"reward_weights={list(weights.values())}: {show(composed.credit)} weighs rewards itself; say "
            f"overrides={{'credit.weights': {weights}}}"
        )
    # settings of gxpo's trainer: a method may bring its own, which do no harm; from the caller they are a mistake
    for key, setting in composed.run_keys.items():
        if setting.origin.split("@")[0] not in {d.name for d in composed.definitions}:
            problems.append(
                f"{key}={show(setting.value)}: TRL's trainer decides it; {OF_TRL.get(key, 'set it in GRPOConfig')}"
            )
    # optimiser steps, group size, length of the run
    problems += update_refusals(composed)
    for name, n in (update_settings(composed) or {}).items():
        has, unit = getattr(args, name), ""
        if name == "steps_per_generation":
            has, unit = has / every, " x gradient_accumulation_steps"
        if has != n:
            problems.append(
                f"{name}={getattr(args, name)}: {composed.name} takes other optimiser steps; set it to {n}{unit}"
            )
    if (size := stated_group_size(composed)) is not None and args.num_generations != size:
        problems.append(
            f"num_generations={args.num_generations}: {composed.name} has rollout.group_size={size}; set it to {size}"
        )
    if needs_length(composed) and args.max_steps <= 0:
        problems.append("max_steps: a coefficient follows the course of the run; set max_steps, or its total_steps")
    return problems


def _kl_problems(args: Any, composed: Method) -> list[str]:
    """Return problems with settings of the reference policy."""
    problems = []
    kl = composed.terms.get("kl") or composed.kl_reward
    coef = kl.coef if kl is not None else 0.0
    if "reference_logprob" in composed.needs and not args.beta:
        problems.append(f"beta=0: TRL loads a reference model only with a beta; set it to {coef or 'any value'}")
    is_controlled = (
        getattr(getattr(kl, "control", None), "from_zero", False) and not coef
    )  # TRL's beta loads the reference
    if args.beta and kl is not None and args.beta != coef and not is_controlled:
        problems.append(f"beta={args.beta}: objective.kl.coef is {coef}; give both the same value")
    weighted = composed.keys.get("objective.kl.ratio_weighted")
    if (
        weighted is not None
        and weighted.value
        and weighted.origin.startswith("GRPOConfig.")
        and has_sequence_ratio(composed)
    ):
        problems.append(
            "use_bias_correction_kl=True: TRL weighs the KL by the ratio of the sequence, gxpo by each token's; set it "
            "to False, or say overrides={'objective.kl.ratio_weighted': True} for each token's"
        )
    return problems


def _entropy_problems(args: Any, composed: Method) -> list[str]:
    """Return problems with settings of the entropy bonus that mean something else in TRL."""
    problems = []
    bonus = composed.terms.get("entropy")
    if (
        getattr(args, "top_entropy_quantile", 1.0) != 1.0
        and QUANTILE in composed.keys
        and bonus is not None
        and bonus.is_ever_used
    ):
        problems.append(
            f"top_entropy_quantile={args.top_entropy_quantile} with an entropy bonus: TRL's bonus is of those tokens "
            "alone, gxpo's of all; leave one of them out"
        )
    steps = args.steps_per_generation // args.gradient_accumulation_steps * args.num_iterations
    if getattr(args, "use_adaptive_entropy", False) and steps > 1:
        problems.append(
            f"use_adaptive_entropy=True: TRL moves the coefficient with each optimiser step, gxpo with each generation "
            f"batch, which has {steps} here; set num_iterations=1 and steps_per_generation=gradient_accumulation_steps"
        )
    return problems


def _sampler_problems(args: Any, composed: Method) -> list[str]:
    """Return a problem for each part that corrects vLLM's log-probs, where TRL corrects them too."""
    if not (getattr(args, "use_vllm", False) and getattr(args, "vllm_importance_sampling_correction", False)):
        return []
    correction_keys = [
        f"weight.{name}" for name, part in composed.weights.items() if getattr(part, "corrects_mismatch", False)
    ]
    correction_keys += [
        "objective" if name == "policy" else f"objective.{name}"
        for name, term in composed.terms.items()
        if getattr(term, "ratio_over", "") == "behaviour"
    ]
    return [
        f"{key}: TRL's vllm_importance_sampling_correction does the same a second time; set it to False"
        for key in correction_keys
    ]


def refuse(composed: Method, reasons: list[str]) -> None:
    """Raise ConfigError with the reasons, if there are any."""
    if reasons:
        raise ConfigError(f"{composed.name} in TRL: {'; '.join(dict.fromkeys(reasons))}")


# ---------------------------------------------------------------- requirements
# Signals that TRL's own forward passes give, and the model's hidden states.
SIGNALS = ("proximal_logprob", "reference_logprob", "entropy", "hidden")
OUTPUTS = ("logprob", "entropy", "mean_logprob", "divergence")
LENDS = tuple(asks.SERVICES)
GIVES: Mapping[str, Any] = {"signals": SIGNALS, "outputs": OUTPUTS, "lends": LENDS, "grows": tuple(GROWS)}


def declared_refusals(method: Method) -> list[str]:
    """Return reasons why TRL's trainer can't run a method, whatever it is given."""
    return asks.declared_refusals(method, "TRL", **GIVES)


def refusals(method: Method, verdicts: bool, rewards: Sequence[str]) -> list[str]:
    """Return reasons why TRL's trainer can't run a method with these reward functions.

    verdicts  True if `success_at` is given
    """
    return asks.refusals(method, "TRL", facts=tuple(asks.FACTS), verdicts=verdicts, components=rewards, **GIVES)


def evaluation_problems(args: Any, method: Method, verdicts: bool, rewards: Sequence[str]) -> list[str]:
    """Return problems with evaluation during training: its batches are TRL's own groups, which a method may not take.

    verdicts, rewards  as of `refusals`
    """
    strategy = getattr(args, "eval_strategy", "no")
    if str(getattr(strategy, "value", strategy)) == "no":
        return []
    reasons = refusals(dataclasses.replace(method, rollout=Independent()), verdicts, rewards)
    return [f"eval_strategy={strategy}: its batches are independent rollouts, and {r}; set it to 'no'" for r in reasons]


def update_settings(method: Method) -> dict[str, int] | None:
    """Return the TRL settings for a method's optimiser steps: passes over a generation batch, and steps of each pass.

    Those at 1 only where they were stated. None if TRL has no such update.
    """
    update = method.update
    if type(update) is not Epochs or update.first is not None:
        return None
    fields = {"num_iterations": update.epochs, "steps_per_generation": update.minibatches}
    keys = {"num_iterations": "update.epochs", "steps_per_generation": "update.minibatches"}
    stated_names = {name for name, key in keys.items() if key in method.keys and method.keys[key].origin != "default"}
    return {name: n for name, n in fields.items() if n != 1 or name in stated_names}


def stated_group_size(method: Method) -> int | None:
    """Return the group size that the method or an override states; None if any will do."""
    size_setting = method.keys.get("rollout.group_size")
    return None if size_setting is None or size_setting.origin == "default" else size_setting.value


def update_refusals(method: Method) -> list[str]:
    """Return reasons why TRL can't take the method's optimiser steps, whatever its settings."""
    return asks.update_refusals(method, "TRL", ("first",))


def required_settings(method: Method) -> dict[str, Any]:
    """Return the fields of GRPOConfig that a method needs, with a value each.

    `steps_per_generation` counts optimiser steps, of gradient_accumulation_steps micro-batches each.
    """
    fields: dict[str, Any] = {}
    if "reference_logprob" in method.needs:  # TRL loads a reference with a beta alone
        kl = method.terms.get("kl") or method.kl_reward
        fields["beta"] = (kl.coef if kl is not None else 0.0) or 0.01
    fields |= update_settings(method) or {}
    if (size := stated_group_size(method)) is not None:
        fields["num_generations"] = size
    if needs_length(method):
        fields["max_steps"] = 1000
    return fields


def needs_length(method: Method) -> bool:
    """Return True if a schedule or control depends on the run's length, which the method leaves open."""
    by_run = any(number.schedule.over is None for number in method.scheduled)
    return by_run or any(getattr(part, "total_steps", 1) is None for part in controls(method).values())
