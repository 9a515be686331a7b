"""Composition of methods from their keys into parts: `gxpo.method("dr_grpo+gspo")`.

The steps: look up each word of the spec, merge the keys of all methods with the caller's overrides, make each stage's
parts from its keys, and refuse whatever key no part has read.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import warnings
from collections.abc import Mapping
from typing import Any

from gxpo.algorithms.signals import BUILT_IN
from gxpo.base.errors import ConfigError, GxpoError, did_you_mean
from gxpo.base.imports import collections_paused
from gxpo.base.usercode import unexecuted
from gxpo.methods.method import Method
from gxpo.parts import registry
from gxpo.parts.definition import (
    Definition,
    SettingValue,
    check_allowed,
    check_refusals,
    is_section,
    merge,
    show,
    unknown_key,
)
from gxpo.parts.learning import learns_from_equal_groups
from gxpo.parts.options import SECTIONS, Keys, Unexecuted, canonical, canonical_keys, flatten_keys, resolve_part

_SPEC = re.compile(r"^(?P<name>[a-z0-9_]+)(@(?P<system>[a-z0-9_-]+))?$")


def method(spec: str | Method, overrides: Mapping[str, Any] | None = None, *, compat: str | None = None) -> Method:
    """Compose published methods: `"gigpo+gspo"`, `"grpo@trl"`, `"grpo@paper"`.

    spec       names joined by "+", each with an optional "@system"; or a composed method: the same composition, with
               `overrides` over those that it was made with
    overrides  keys, `{"credit.scale": "none"}` or nested, `{"credit": {"scale": "none"}}`; a stage key takes a part's
               name, a method's name (as in that method), `file.py:name`, or a Python object (a credit may be any
               function of (forest, signals, step))
    compat     a system ("trl", "verl", ...) whose constants to take for every method of the composition that it has
    Raises ConfigError, MethodConflict; lists close matches for an unknown name or key.
    """
    if isinstance(spec, Method):
        if not overrides and compat is None:
            return spec
        # a Method is composed anew from the caller's arguments: its parts can't be changed one by one, since a key
        # may decide several of them. A copy with other parts has no such arguments any more.
        if spec.recipe is None:
            raise ConfigError(
                f"{next(iter(overrides or {}), 'compat')}: parts of method {spec.name} were replaced after it was "
                "composed: give the keys when it is composed, gxpo.method('name', {...})"
            )
        before, system = spec.recipe
        return method(spec.name, {**before, **flatten_keys(overrides or {})}, compat=compat or system)
    for key, value in (("method", spec), ("compat", "" if compat is None else compat)):
        if not isinstance(value, str):
            raise ConfigError(f"{key}={show(value)} is not a name")
    from gxpo.methods import METHODS

    _import_base()
    definitions = [_look_up(word.strip(), compat) for word in spec.split("+")]
    override_keys = flatten_keys(overrides or {})
    composed = _build(spec, definitions, merge(definitions, canonical_keys(override_keys), METHODS))
    object.__setattr__(composed, "recipe", (override_keys, compat))
    return composed


@functools.cache
def _import_base() -> None:
    """Import the parts that every composition has, once; other parts are imported when a key names them."""
    with collections_paused():
        for module in (
            "algorithms.credit.relative",
            "learning.base",
            "sampling.rollouts.rounds",
            "algorithms.objectives",
        ):
            importlib.import_module(f"gxpo.{module}")


def _look_up(word: str, compat: str | None) -> tuple[str, Definition, Mapping[str, Any]]:
    """Return (label, definition, keys) of one word of a spec, "grpo" or "grpo@trl"; `compat` as in `method`."""
    from gxpo.methods import METHODS

    match = _SPEC.match(word)
    if match is None or match["name"] not in METHODS:
        raise ConfigError(f"unknown method {word!r}{did_you_mean(word, METHODS)} (`gxpo methods` lists them)")
    definition, system = METHODS[match["name"]], match["system"]
    label, method_keys = definition.name, definition.keys
    # compat.py imports parts for its values, so it is only loaded where a system is named
    if system is not None or compat is not None:
        from gxpo.methods.compat import COMPAT

        if compat is not None and compat not in COMPAT:
            close = did_you_mean(compat, COMPAT)
            raise ConfigError(f"compat {compat!r} is not known{close}; there is {', '.join(COMPAT)}")
        systems = {s: keys[label] for s, keys in COMPAT.items() if label in keys}
        systems = {"paper": definition.paper_defaults, **systems}
        if system is not None and system not in systems:
            raise ConfigError(f"{label}@{system} is not known; there is {', '.join(systems)}")
        # an `@system` that a method lacks is an error, a `compat` that it lacks leaves it as published: other methods
        # of the composition may have it. Where both are given, `compat` decides.
        for name in (system, compat):
            if name in systems:
                label, method_keys = word, {**definition.keys, **systems[name]}
    return label, definition, {canonical(key): value for key, value in method_keys.items()}


def _build(
    name: str, definitions: list[tuple[str, Definition, Mapping[str, Any]]], merged: dict[str, SettingValue]
) -> Method:
    """Make the parts of every stage from the merged keys, and refuse keys that none of them has.

    definitions  (label, definition, keys) of each word;   merged: key -> value and origin
    """
    from gxpo.learning.base import Epochs
    from gxpo.sampling.rollouts.build import RolloutPart
    from gxpo.sampling.rollouts.rounds import Independent

    # `keys` notes which keys the stages read: only after the last stage is an unread key a mistake
    keys = Keys(merged)
    estimator = _credit(keys)
    weights = keys.parts("weight", registry.WEIGHTS, "weight")
    rollout = keys.part("rollout", keys.take("rollout", Independent), registry.ROLLOUTS, role="rollout")
    segmenter = _optional_part(keys, "segment", registry.SEGMENTERS, "segmenter")
    sampler = _optional_part(keys, "tasks.sampler", registry.SAMPLERS, "task sampler")
    likelihood = _optional_part(keys, "likelihood", registry.LIKELIHOODS, "likelihood")
    shapes = keys.parts("reward.shape", registry.REWARDS, "reward")
    step_rewards = keys.parts("reward.step", registry.REWARDS, "reward")
    rewards = keys.parts("reward.add", registry.REWARDS, "reward")
    signals = keys.parts("signal", registry.SIGNALS, "signal")
    update = keys.part("update", keys.take("update", Epochs), registry.UPDATES, role="update")
    terms, kl_reward = _objective(keys, weights)
    context = keys.choice("objective.context", "trained", "sampled")
    # checked on the resolved values: an override may bring a value that a method can't work with, or replace it
    check_refusals(definitions, {k: s.value for k, s in keys.resolved.items()})
    run_keys = _run_keys(keys)
    check_allowed(rollout, run_keys)
    _check_unread(name, keys, merged, [label for label, _, _ in definitions], run_keys)
    composed = Method(
        name=name,
        definitions=tuple(definition for _, definition, _ in definitions),
        keys=keys.resolved,
        credit=estimator,
        weights=weights,
        terms=terms,
        rollout=rollout,
        rewards=rewards,
        update=update,
        kl_reward=kl_reward,
        shapes=shapes,
        signals=signals,
        context=context,
        run_keys=run_keys,
        segmenter=segmenter,
        step_rewards=step_rewards,
        scheduled=tuple(keys.scheduled),
        sampler=sampler,
        likelihood=likelihood,
    )
    _check_provided(composed)
    _check_credit_is_read(composed)
    # a filter of groups without spread would drop exactly those that such an estimator learns from
    if RolloutPart.hook(rollout, "drops_equal_groups") and learns_from_equal_groups(estimator):
        raise ConfigError(
            f"{name}: credit {show(estimator)} learns from groups of equal rewards, which rollout "
            f"{show(rollout)} drops: set rollout=independent"
        )
    return composed


def _optional_part(keys: Keys, key: str, table: Any, label: str) -> Any:
    """Make the part under a key whose stage may be empty; None where nothing is stated."""
    name = keys.take(key, None)
    return None if name is None else keys.part(key, name, table, role=label)


def _run_keys(keys: Keys) -> dict[str, SettingValue]:
    """Return the unread keys that are settings of the run, such as `optim.lr`, and not of the method."""
    unread = keys.leftover()
    if not unread:
        return {}
    from gxpo.parts.settings import RUN_KEYS  # pydantic's models take a while

    return {k: keys.all_stated[k] for k in unread if k in RUN_KEYS}


def _check_unread(
    name: str, keys: Keys, merged: Mapping[str, SettingValue], labels: list[str], run_keys: Mapping[str, SettingValue]
) -> None:
    """Refuse the keys that neither a part nor the run has, so that no misspelt setting is ignored.

    labels  of the composed methods, as in the origins of their keys
    """
    for key in keys.leftover():
        # a caller who replaces a part of a method need not take back each of its parameters
        if key in run_keys or _is_of_replaced_part(key, keys, merged, labels) or _is_empty_section(merged[key], key):
            continue
        if not merged[key].optional:
            _refuse_key(key, keys, merged, labels)
        # an optional key may be shared by several methods, of which only some have the part: a warning is enough
        assignment = f"{key}={show(merged[key].value)}"
        warnings.warn(f"{merged[key].origin}: {assignment} is left out: {name} has no such key", stacklevel=4)


def centres_outcomes(keys: Mapping[str, Any]) -> bool:
    """Return True if the credit that these keys state is known to centre outcomes (`CreditPart.centres_outcomes`).

    keys  `credit` and those below it; no file of a user's is run, and what it computes is not known
    """
    if "credit" not in keys:
        return False
    credit_keys = Keys(canonical_keys(flatten_keys(keys)))
    try:
        with unexecuted():
            credit = _credit(credit_keys)
    except GxpoError:
        return False
    # keys that no part reads are of another version, in which they may have meant anything
    return not credit_keys.leftover() and bool(getattr(credit, "centres_outcomes", False))


def _credit(keys: Keys) -> Any:
    """Make the advantage estimator: the one under `credit`, plus those under `credit.add.NAME`."""
    from gxpo.algorithms.credit.relative import Relative

    total = keys.part("credit", keys.take("credit", Relative), registry.CREDITS, role="credit")
    for extra in keys.names("credit.add"):
        slot = f"credit.add.{extra}"
        total = total + keys.part(slot, keys.take(slot, extra), registry.CREDITS, role="credit", main="credit")
    return total


def _check_provided(composed: Method) -> None:
    """Refuse two signal parts that provide one name, and signals that nobody provides."""
    owner: dict[str, str] = {}
    for name, part in composed.signals.items():
        for signal in part.provides:
            if signal in owner:
                raise ConfigError(f"signal.{owner[signal]} and signal.{name} both provide {signal!r}: leave one out")
            owner[signal] = name
    # while a configuration is only checked, a part of a user's file stays unexecuted, so what it provides is unknown
    if any(isinstance(part, Unexecuted) for part in composed.signals.values()):
        return
    for signal in composed.needs:
        if signal not in BUILT_IN and signal not in composed.value_heads:
            raise _unprovided(composed, signal, [*owner, *BUILT_IN])


def _unprovided(composed: Method, signal: str, signal_names: list[str]) -> ConfigError:
    """Build the error for a signal that no part provides.

    Parameters of a user's function are names of columns or of signals, so there the hint looks among columns first.
    """
    from gxpo.algorithms.credit.columns import COMPUTED
    from gxpo.algorithms.signals.base import TOOLS
    from gxpo.base.usercode import hint as close_name
    from gxpo.parts.functions import place_of
    from gxpo.parts.named_columns import HELD, TOKEN, TRAJECTORY

    readers = (part for part in composed.parts() if signal in getattr(part, "needs", ()))
    place = next(filter(None, map(place_of, readers)), "")
    columns = [*TRAJECTORY, *TOKEN, *HELD, *COMPUTED, *TOOLS, "hidden", "past"] if place else []
    hint = close_name(signal, columns) or did_you_mean(signal, signal_names)
    remedy = "name the parameter after a column or a signal, or " if place else ""
    return ConfigError(
        f"{composed.name} reads signal {signal!r}, which no part provides{place}{hint}: {remedy}add signal.NAME with a "
        "part that does"
    )


def _check_credit_is_read(composed: Method) -> None:
    """Refuse a stated advantage estimator where no term of the objective reads advantages: it would do nothing."""
    if composed.reads_credit:
        return
    from gxpo.algorithms.credit.relative import Relative

    defaults = {"credit": Relative} | {f"credit.{f.name}": f.default for f in dataclasses.fields(Relative)}
    # only what somebody stated is refused, and only where it differs from the base
    key = next(
        (
            k
            for k, s in composed.keys.items()
            if k.split(".")[0] == "credit"
            and s.origin != "default"
            # a run's own config.yaml states every key, as it came out
            and not (
                k in defaults and show(tuple(s.value) if isinstance(s.value, list) else s.value) == show(defaults[k])
            )
        ),
        None,
    )
    if key is not None or composed.kl_reward is not None:
        term = show(composed.terms["policy"])
        raise ConfigError(
            f"{composed.name}: objective {term} reads outcomes, not advantages, so "
            f"{key or 'objective.kl.place=reward'} would do nothing: leave it out, or choose another objective"
        )


def _policy_term(keys: Keys) -> Any:
    """Make the term under `objective` from its fields `objective.FIELD`: PolicyGradient, or another in its place."""
    from gxpo.algorithms import objectives
    from gxpo.algorithms.objectives.surrogate import Token

    kind = resolve_part(
        keys.take("objective", objectives.PolicyGradient), registry.TERMS, "objective", "term of the objective"
    )
    # only the policy gradient is made of a ratio and a surrogate; another objective has fields alone
    if not (isinstance(kind, type) and issubclass(kind, objectives.PolicyGradient)):
        return keys.part("objective", kind, registry.TERMS, role="term of the objective")
    slot = "objective.surrogate"
    surrogate = keys.part(slot, keys.take(slot, objectives.Clip), registry.SURROGATES, "objective", "surrogate")
    # the class of the default ratio is imported already; its name would make the registry load the whole folder
    ratio_name = keys.take("objective.ratio", "token")
    ratio_name = Token if ratio_name == "token" else ratio_name
    ratio = keys.part("objective.ratio", ratio_name, registry.RATIOS, "objective", "ratio")
    fields = keys.fields(kind, "objective", preset={"surrogate": surrogate, "ratio": ratio})
    # a surrogate of a file that was not executed can't be checked against the other fields
    unexecuted = next((part for part in (surrogate, ratio) if isinstance(part, Unexecuted)), None)
    return unexecuted or keys.start_schedules(kind(**fields), "objective")


def _objective(keys: Keys, weights: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Make the objective under these weight parts: (terms by name, KL part of the reward or None).

    Terms are "policy", "kl" and "entropy" where their coefficients are ever other than 0, and `objective.add.NAME`.
    """
    from gxpo.algorithms import objectives
    from gxpo.algorithms.objectives.penalty import KLReward

    policy = _policy_term(keys)
    terms: dict[str, Any] = {"policy": policy}
    # the KL is aggregated like the policy term unless its own keys say otherwise; all terms have one horizon, that of a
    # sum over sequences
    horizon = {"horizon": getattr(policy, "horizon", None)}
    kl_fields: dict[str, Any] = {"aggregate": getattr(policy, "aggregate", "token_mean")}
    place = keys.choice("objective.kl.place", "loss", "reward")
    to, where = (
        keys.choice("objective.kl.to", "reference", "teacher"),
        keys.choice("objective.kl.rollouts", "all", "wrong"),
    )
    if place == "loss" and (to, where) != ("reference", "all"):
        raise ConfigError(
            f"objective.kl.{'to' if to == 'teacher' else 'rollouts'} belongs to a KL in the reward: set "
            "objective.kl.place=reward; in the loss a teacher is objective.add.NAME=distillation"
        )
    # a KL that is weighed by the ratio (`ratio_weighted`) takes the policy term's denominator
    if isinstance(policy, objectives.PolicyGradient):
        kl_fields["ratio_over"] = policy.ratio_over
        kl_fields["on_unknown_behaviour"] = {"shaped": "one"}.get(
            policy.on_unknown_behaviour, policy.on_unknown_behaviour
        )
    kl = objectives.KL(**keys.fields(objectives.KL, "objective.kl", preset=horizon, shared=kl_fields))
    # a KL in the reward enters the advantages once, before the update: nothing there could move or weigh it later
    if place == "reward" and "objective.kl.coef" in keys.schedules:
        raise ConfigError("objective.kl.coef: a schedule moves the KL in the loss: set objective.kl.place=loss")
    kl_reward = None
    if kl.is_ever_used and place == "loss":
        terms["kl"] = keys.start_schedules(kl, "objective.kl")
    elif kl.is_ever_used:
        if kl.ratio_weighted:
            raise ConfigError("objective.kl.ratio_weighted weighs the KL in the loss: set objective.kl.place=loss")
        kl_reward = KLReward(kl.coef, kl.estimator, to, where)
        if kl.control is not None:
            raise ConfigError("objective.kl.control moves the KL in the loss: set objective.kl.place=loss")
    bonus = objectives.Entropy(**keys.fields(objectives.Entropy, "objective.entropy", preset=horizon))
    if bonus.is_ever_used:
        terms["entropy"] = keys.start_schedules(bonus, "objective.entropy")
    added = keys.parts("objective.add", registry.TERMS, "term")
    adapted_terms = {name: objectives.TermPart.hook(term, "adapt_to")(policy, weights) for name, term in added.items()}
    return terms | adapted_terms, kl_reward


def _stage(key: str, resolved: Mapping[str, SettingValue]) -> str:
    """Return the key of the part that a parameter belongs to: "weight.tis" of "weight.tis.cap"."""
    words = key.split(".")
    if words[0] == "objective":
        return "objective.surrogate" if "objective.surrogate" in resolved else "objective"
    return ".".join(words[:2]) if words[0] in ("weight", "signal", "tasks") else words[0]


def _is_of_replaced_part(key: str, keys: Keys, merged: Mapping[str, SettingValue], labels: list[str]) -> bool:
    """Return True for a method's parameter of a part that the caller has replaced by another one without it."""
    part = keys.resolved.get(_stage(key, keys.resolved), SettingValue(None, "default"))
    return merged[key].origin in labels and part.origin not in ("default", *labels) and "(as in " not in part.origin


def _is_empty_section(setting: SettingValue, key: str) -> bool:
    """Return True for `{}` under a section of the run's settings, which states nothing."""
    if not setting.is_silent or setting.by_method:
        return False
    from gxpo.parts.settings import RUN_KEYS

    return is_section(key, RUN_KEYS)


def _refuse_key(key: str, keys: Keys, merged: Mapping[str, SettingValue], labels: list[str]) -> None:
    """Raise ConfigError for a key that no part has, with the fix that fits its origin.

    labels  of the composed methods, as in the origins of their keys
    """
    origin, stage = merged[key].origin, _stage(key, keys.resolved)
    # a stage that was to be as in another method, which has nothing there
    if merged[key].by_method and registry.table_at(key) is not None:
        from gxpo.methods import METHODS

        source = METHODS[merged[key].value]
        slots = [k for k in (*keys.all_stated, *source.keys) if k != key and registry.table_at(k) is not None]
        hint = did_you_mean(key, slots)
        searched = list(dict.fromkeys([*labels, source.name]))
        lacks = f"neither {' nor '.join(searched)} has" if searched[1:] else f"{source.name} does not have"
        raise _at_origin(f"{key}={source.name}: {lacks} this key{hint}", origin)
    # a parameter that one method states of a part, where another method or the caller put a different part
    if origin in labels and stage in keys.resolved:
        owner = keys.resolved[stage]
        raise ConfigError(
            f"{origin} sets {key}, which {stage} {show(owner.value)} (from {owner.origin}) does not have: "
            f"compose it with another {stage}, or --set {stage}={origin}"
        )
    from gxpo.parts.settings import RUN_KEYS

    if key in ("method", "compat"):
        raise _at_origin(f"{key} is an argument of gxpo.method, not one of its keys", origin)
    # scoring.weights is stated as a whole, and the error for `reward.NAME` is the one that says so
    typed_key = key.replace("scoring.weights.", "reward.")
    raise _at_origin(str(unknown_key(typed_key, [*keys.valid, *SECTIONS, "advantage", *RUN_KEYS])), origin)


def _at_origin(message: str, origin: str) -> ConfigError:
    return ConfigError(message if origin == "override" else f"{message} ({origin})")
