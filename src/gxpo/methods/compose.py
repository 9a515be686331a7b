"""Compose a method from its keys: `gxpo.method("dr_grpo+gspo")`."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import warnings
from collections.abc import Mapping
from typing import Any

from gxpo.algorithms.signals import BUILT_IN
from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.base.imports import collections_paused
from gxpo.methods.method import Method
from gxpo.parts import registry
from gxpo.parts.definition import (
    Definition,
    Stated,
    check_allowed,
    check_refusals,
    is_section,
    merge,
    show,
    unknown_key,
)
from gxpo.parts.learning import learns_from_equal_groups
from gxpo.parts.options import SECTIONS, Keys, Unexecuted, canonical, canonical_keys, dotted, resolve_part

_SPEC = re.compile(r"^(?P<name>[a-z0-9_]+)(@(?P<system>[a-z0-9_-]+))?$")


def method(spec: str | Method, overrides: Mapping[str, Any] | None = None, *, compat: str | None = None) -> Method:
    """Compose published methods: `"gigpo+gspo"`, `"grpo@trl"`, `"grpo@paper"`.

    overrides  keys, `{"credit.scale": "none"}` or nested, `{"credit": {"scale": "none"}}`; a stage key takes a part's
               name, a method's name (as in that method), `file.py:name`, or a Python object (a credit may be any
               function of (forest, signals, step))
    compat     a system whose constants to take for every method of the composition that it has
    spec       may be a composed method: the same composition, with `overrides` over those that it was made with
    Raises ConfigError, MethodConflict; lists what is close for an unknown name or key.
    """
    if isinstance(spec, Method):
        if not overrides and compat is None:
            return spec
        if spec.asked is None:
            raise ConfigError(
                f"{next(iter(overrides or {}), 'compat')}: parts of method {spec.name} were replaced after it was "
                "composed: give the keys when it is composed, gxpo.method('name', {...})"
            )
        before, system = spec.asked
        return method(spec.name, {**before, **dotted(overrides or {})}, compat=compat or system)
    for key, value in (("method", spec), ("compat", "" if compat is None else compat)):
        if not isinstance(value, str):
            raise ConfigError(f"{key}={show(value)} is not a name")
    from gxpo.methods import METHODS

    _import_base()
    definitions = [_defined(word.strip(), compat) for word in spec.split("+")]
    given = dotted(overrides or {})
    made = _build(spec, definitions, merge(definitions, canonical_keys(given), METHODS))
    object.__setattr__(made, "asked", (given, compat))
    return made


@functools.cache
def _import_base() -> None:
    """Import the parts that every composition has, once; others are imported as they are named."""
    with collections_paused():
        for module in (
            "algorithms.credit.relative",
            "learning.base",
            "sampling.rollouts.rounds",
            "algorithms.objectives",
        ):
            importlib.import_module(f"gxpo.{module}")


def _defined(word: str, compat: str | None) -> tuple[str, Definition, Mapping[str, Any]]:
    """(label, definition, keys) of a word of a composition: "grpo", "grpo@trl"; `compat` as in `method`."""
    from gxpo.methods import METHODS

    match = _SPEC.match(word)
    if match is None or match["name"] not in METHODS:
        raise ConfigError(f"unknown method {word!r}{did_you_mean(word, METHODS)} (`gxpo methods` lists them)")
    definition, system = METHODS[match["name"]], match["system"]
    label, own = definition.name, definition.keys
    if system is not None or compat is not None:
        from gxpo.methods.compat import COMPAT

        if compat is not None and compat not in COMPAT:
            close = did_you_mean(compat, COMPAT)
            raise ConfigError(f"compat {compat!r} is not known{close}; there is {', '.join(COMPAT)}")
        systems = {s: keys[label] for s, keys in COMPAT.items() if label in keys}
        systems = {"paper": definition.paper_defaults, **systems}
        if system is not None and system not in systems:
            raise ConfigError(f"{label}@{system} is not known; there is {', '.join(systems)}")
        for name in (system, compat):
            if name in systems:
                label, own = word, {**definition.keys, **systems[name]}
    return label, definition, {canonical(key): value for key, value in own.items()}


def _build(
    name: str, definitions: list[tuple[str, Definition, Mapping[str, Any]]], stated: dict[str, Stated]
) -> Method:
    from gxpo.algorithms.credit.relative import Relative
    from gxpo.learning.base import Epochs
    from gxpo.sampling.rollouts.build import RolloutPart
    from gxpo.sampling.rollouts.rounds import Independent

    keys = Keys(stated)
    total = _credit(keys, Relative)
    weights = keys.parts("weight", registry.WEIGHTS, "weight")
    rollout = keys.part("rollout", keys.take("rollout", Independent), registry.ROLLOUTS, what="rollout")
    named = keys.take("segment", None)
    segmenter = None if named is None else keys.part("segment", named, registry.SEGMENTERS, what="segmenter")
    named = keys.take("tasks.sampler", None)
    sampler = None if named is None else keys.part("tasks.sampler", named, registry.SAMPLERS, what="task sampler")
    shapes = keys.parts("reward.shape", registry.REWARDS, "reward")
    step_rewards = keys.parts("reward.step", registry.REWARDS, "reward")
    rewards = keys.parts("reward.add", registry.REWARDS, "reward")
    signals = keys.parts("signal", registry.SIGNALS, "signal")
    update = keys.part("update", keys.take("update", Epochs), registry.UPDATES, what="update")
    terms, kl_reward = _objective(keys)
    context = keys.choice("objective.context", "trained", "sampled")
    check_refusals(definitions, {k: s.value for k, s in keys.resolved.items()})
    run_keys = _run_keys(keys)
    check_allowed(rollout, run_keys)
    labels = [label for label, _, _ in definitions]
    for key in keys.leftover():
        if key in run_keys or _replaced(key, keys, stated, labels) or _is_empty_section(stated[key], key):
            continue
        if not stated[key].optional:
            _refuse_key(key, keys, stated, labels)
        left = f"{key}={show(stated[key].value)}"
        warnings.warn(f"{stated[key].origin}: {left} is left out: {name} has no such key", stacklevel=3)
    made = Method(
        name,
        tuple(d for _, d, _ in definitions),
        keys.resolved,
        total,
        weights,
        terms,
        rollout,
        rewards,
        update,
        kl_reward,
        shapes,
        signals,
        context,
        run_keys,
        segmenter,
        step_rewards,
        tuple(keys.scheduled),
        sampler,
    )
    _check_provided(made)
    _check_credit_is_read(made)
    if RolloutPart.hook(rollout, "drops_equal_groups") and learns_from_equal_groups(total):
        raise ConfigError(
            f"{name}: credit {show(total)} learns from groups of equal rewards, which rollout "
            f"{show(rollout)} drops: set rollout=independent"
        )
    return made


def _run_keys(keys: Keys) -> dict[str, Stated]:
    """What is left and belongs to the run, not to the method."""
    left = keys.leftover()
    if not left:
        return {}
    from gxpo.parts.settings import RUN_KEYS  # pydantic's models take a while

    return {k: keys.given[k] for k in left if k in RUN_KEYS}


def _credit(keys: Keys, default: Any) -> Any:
    """The advantage estimator, and those that are added to it."""

    total = keys.part("credit", keys.take("credit", default), registry.CREDITS, what="credit")
    for extra in keys.names("credit.add"):
        slot = f"credit.add.{extra}"
        total = total + keys.part(slot, keys.take(slot, extra), registry.CREDITS, what="credit", main="credit")
    return total


def _check_provided(made: Method) -> None:
    """Refuse two signal parts that provide one name, and signals that nobody provides."""
    owner: dict[str, str] = {}
    for name, part in made.signals.items():
        for signal in part.provides:
            if signal in owner:
                raise ConfigError(f"signal.{owner[signal]} and signal.{name} both provide {signal!r}: leave one out")
            owner[signal] = name
    if any(isinstance(part, Unexecuted) for part in made.signals.values()):
        return
    for signal in made.needs:
        if signal not in BUILT_IN and signal not in made.value_heads:
            raise _unprovided(made, signal, [*owner, *BUILT_IN])


def _unprovided(made: Method, signal: str, known: list[str]) -> ConfigError:
    """The error for a signal that nobody provides; a parameter of a user's function may be a misspelt column."""
    from gxpo.algorithms.credit.columns import COMPUTED
    from gxpo.algorithms.signals.function import TOOLS
    from gxpo.base.usercode import hint as close_name
    from gxpo.parts.functions import place_of
    from gxpo.parts.named_columns import HELD, TOKEN, TRAJECTORY

    asking = (part for part in made.parts() if signal in getattr(part, "needs", ()))
    place = next(filter(None, map(place_of, asking)), "")
    columns = [*TRAJECTORY, *TOKEN, *HELD, *COMPUTED, *TOOLS, "hidden", "past"] if place else []
    hint = close_name(signal, columns) or did_you_mean(signal, known)
    instead = "name the parameter after a column or a signal, or " if place else ""
    return ConfigError(
        f"{made.name} reads signal {signal!r}, which no part provides{place}{hint}: {instead}add signal.NAME with a "
        "part that does"
    )


def _check_credit_is_read(made: Method) -> None:
    """Refuse a stated advantage estimator where no term of the objective reads advantages."""
    if made.reads_credit:
        return
    from gxpo.algorithms.credit.relative import Relative

    usual = {"credit": Relative} | {f"credit.{f.name}": f.default for f in dataclasses.fields(Relative)}
    key = next(
        (
            k
            for k, s in made.keys.items()
            if k.split(".")[0] == "credit"
            and s.origin != "default"
            # a run's own config.yaml states every key, as it came out
            and not (k in usual and show(tuple(s.value) if isinstance(s.value, list) else s.value) == show(usual[k]))
        ),
        None,
    )
    if key is not None or made.kl_reward is not None:
        term = show(made.terms["policy"])
        raise ConfigError(
            f"{made.name}: objective {term} reads outcomes, not advantages, so {key or 'objective.kl.place=reward'} "
            "would do nothing: leave it out, or choose another objective"
        )


def _policy_term(keys: Keys) -> Any:
    """The term in the policy gradient's place: `objective`, its fields under `objective.FIELD`."""
    from gxpo.algorithms import objectives
    from gxpo.algorithms.objectives.surrogate import Token

    kind = resolve_part(
        keys.take("objective", objectives.PolicyGradient), registry.TERMS, "objective", "term of the objective"
    )
    if not (isinstance(kind, type) and issubclass(kind, objectives.PolicyGradient)):
        return keys.part("objective", kind, registry.TERMS, what="term of the objective")
    slot = "objective.surrogate"
    surrogate = keys.part(slot, keys.take(slot, objectives.Clip), registry.SURROGATES, "objective", "surrogate")
    named = keys.take("objective.ratio", "token")  # whose class is here already: the table would load the whole folder
    named = Token if named == "token" else named
    ratio = keys.part("objective.ratio", named, registry.RATIOS, "objective", "ratio")
    fields = keys.fields(kind, "objective", preset={"surrogate": surrogate, "ratio": ratio})
    unread = next((part for part in (surrogate, ratio) if isinstance(part, Unexecuted)), None)
    return unread or keys.owned(kind(**fields), "objective")


def _objective(keys: Keys) -> tuple[dict[str, Any], Any]:
    """The policy term, KL and entropy, and the terms that are added."""
    from gxpo.algorithms import objectives
    from gxpo.algorithms.objectives.penalty import KLReward

    policy = _policy_term(keys)
    terms: dict[str, Any] = {"policy": policy}
    horizon = {"horizon": getattr(policy, "horizon", None)}
    of_kl: dict[str, Any] = {"aggregate": getattr(policy, "aggregate", "token_mean")}
    place = keys.choice("objective.kl.place", "loss", "reward")
    if isinstance(policy, objectives.PolicyGradient):  # the ratio that may weigh it is the policy term's
        of_kl["ratio_over"] = policy.ratio_over
        of_kl["on_unknown_behaviour"] = {"shaped": "one"}.get(policy.on_unknown_behaviour, policy.on_unknown_behaviour)
    kl = objectives.KL(**keys.fields(objectives.KL, "objective.kl", preset=horizon, shared=of_kl))
    if place == "reward" and "objective.kl.coef" in keys.schedules:
        raise ConfigError("objective.kl.coef: a schedule moves the KL in the loss: set objective.kl.place=loss")
    kl_reward = None
    if kl.is_ever_used and place == "loss":
        terms["kl"] = keys.owned(kl, "objective.kl")
    elif kl.is_ever_used:
        if kl.ratio_weighted:
            raise ConfigError("objective.kl.ratio_weighted is of the KL in the loss: set objective.kl.place=loss")
        kl_reward = KLReward(coef=kl.coef, estimator=kl.estimator)
        if kl.control is not None:
            raise ConfigError("objective.kl.control moves the KL in the loss: set objective.kl.place=loss")
    bonus = objectives.Entropy(**keys.fields(objectives.Entropy, "objective.entropy", preset=horizon))
    if bonus.is_ever_used:
        terms["entropy"] = keys.owned(bonus, "objective.entropy")
    return terms | keys.parts("objective.add", registry.TERMS, "term"), kl_reward


def _stage(key: str, resolved: Mapping[str, Stated]) -> str:
    """The key of the part that a parameter belongs to."""
    words = key.split(".")
    if words[0] == "objective":
        return "objective.surrogate" if "objective.surrogate" in resolved else "objective"
    return ".".join(words[:2]) if words[0] in ("weight", "signal", "tasks") else words[0]


def _replaced(key: str, keys: Keys, stated: Mapping[str, Stated], names: list[str]) -> bool:
    """A method's parameter of a part in whose place the caller has put another, which does not have it."""
    part = keys.resolved.get(_stage(key, keys.resolved), Stated(None, "default"))
    return stated[key].origin in names and part.origin not in ("default", *names) and "(as in " not in part.origin


def _is_empty_section(stated: Stated, key: str) -> bool:
    """True of `{}` for a section of the run's settings."""
    if not stated.is_silent or stated.by_method:
        return False
    from gxpo.parts.settings import RUN_KEYS

    return is_section(key, RUN_KEYS)


def _refuse_key(key: str, keys: Keys, stated: Mapping[str, Stated], names: list[str]) -> None:
    origin, stage = stated[key].origin, _stage(key, keys.resolved)
    if stated[key].by_method and registry.table_at(key) is not None:
        from gxpo.methods import METHODS

        other = METHODS[stated[key].value]
        slots = [k for k in (*keys.given, *other.keys) if k != key and registry.table_at(k) is not None]
        hint = did_you_mean(key, slots)
        searched = list(dict.fromkeys([*names, other.name]))
        has = f"neither {' nor '.join(searched)} has" if searched[1:] else f"{other.name} does not have"
        raise _at_origin(f"{key}={other.name}: {has} this key{hint}", origin)
    if origin in names and stage in keys.resolved:
        owner = keys.resolved[stage]
        raise ConfigError(
            f"{origin} sets {key}, which {stage} {show(owner.value)} (from {owner.origin}) does not have: "
            f"compose it with another {stage}, or --set {stage}={origin}"
        )
    from gxpo.parts.settings import RUN_KEYS

    if key in ("method", "compat"):
        raise _at_origin(f"{key} is an argument of gxpo.method, not one of its keys", origin)
    stated_key = key.replace("scoring.weights.", "reward.")  # an entry of a mapping that is stated as a whole here
    raise _at_origin(str(unknown_key(stated_key, [*keys.valid, *SECTIONS, "advantage", *RUN_KEYS])), origin)


def _at_origin(message: str, origin: str) -> ConfigError:
    return ConfigError(message if origin == "override" else f"{message} ({origin})")
