"""`gxpo.method("dr_grpo+gspo")`: keys resolved to parts."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from gxpo import former, functions, ranges
from gxpo.errors import ConfigError, did_you_mean
from gxpo.functions import Formula
from gxpo.keys import Definition, Stated, check_refusals, finite, merge, same, show, unknown_key
from gxpo.pipeline import Method
from gxpo.signals import BUILT_IN
from gxpo.usercode import NotRun, Unusable, object_at

_SPEC = re.compile(r"^(?P<name>[a-z0-9_]+)(@(?P<system>[a-z0-9_-]+))?$")


def method(spec: str | Method, overrides: Mapping[str, Any] | None = None, *, compat: str | None = None) -> Method:
    """Compose published methods: `"gigpo+gspo"`, `"grpo@trl"`, `"grpo@paper"`.

    overrides  keys, `{"credit.scale": "none"}` or nested, `{"credit": {"scale": "none"}}`; a stage key takes a part's
               name, a method's name (as in that method), `file.py:name`, or a Python object (a credit may be any
               function of (forest, signals, step))
    compat     a system whose constants to take for every method of the composition that it has
    Raises ConfigError, MethodConflict; lists what is close for an unknown name or key.
    """
    if isinstance(spec, Method):
        if not overrides and compat is None:
            return spec
        raise ConfigError("give the overrides when the method is composed: gxpo.method('name', {...})")
    for key, value in (("method", spec), ("compat", "" if compat is None else compat)):
        if not isinstance(value, str):
            raise ConfigError(f"{key}={show(value)} is not a name")
    stated = dotted(overrides or {})
    from gxpo.compat import COMPAT
    from gxpo.methods import METHODS

    definitions: list[tuple[str, Definition, Mapping[str, Any]]] = []
    for word in spec.split("+"):
        match = _SPEC.match(word.strip())
        if match is None or match["name"] not in METHODS:
            raise ConfigError(
                f"unknown method {word.strip()!r}{did_you_mean(word, METHODS)} (`gxpo methods` lists them)"
            )
        definition, system = METHODS[match["name"]], match["system"]
        systems = {"paper": definition.paper_defaults} | {
            s: t[definition.name] for s, t in COMPAT.items() if definition.name in t
        }
        if system is not None and system not in systems:
            raise ConfigError(f"{definition.name}@{system} is not known; there is {', '.join(systems)}")
        if compat is not None and compat not in COMPAT:
            raise ConfigError(
                f"compat {compat!r} is not known{did_you_mean(compat, COMPAT)}; there is {', '.join(COMPAT)}"
            )
        definitions.append((definition.name, definition, definition.keys))
        for name in dict.fromkeys(s for s in (system, compat if compat in systems else None) if s):
            own = definition.keys
            extra = {k: v for k, v in systems[name].items() if k not in own or not same(own[k], v)}
            definitions[-1] = (word.strip(), definition, {**own, **extra})
    definitions = [(label, d, former.renewed_keys(keys, label)) for label, d, keys in definitions]
    stated = former.renewed(stated, [definition for _, definition, _ in definitions])
    return _build(spec, definitions, merge(definitions, stated, METHODS))


def dotted(given: Mapping[str, Any]) -> dict[str, Stated]:
    """Keys from Python, `Stated` or plain values, nested or dotted, as dotted ones. ConfigError where two are one."""
    out: dict[str, Stated] = {}
    for key, value in given.items():
        held = value if isinstance(value, Stated) else Stated(value, "override")
        for leaf, stated in leaves(key, held.value, held.origin):
            if leaf in out:
                raise ConfigError(f"{leaf} is set twice")
            out[leaf] = replace(held, value=stated.value)
    return out


def leaves(key: str, value: Any, origin: str, source: str | None = None) -> Iterator[tuple[str, Stated]]:
    """The dotted keys that a value stands for: `{"kl": {"coef": 0.1}}` under "objective" states "objective.kl.coef".

    `part` names the part of a key that takes one: `{"part": "gae", "lam": 1.0}` under "credit" states "credit" and
    "credit.lam". Settings that are mappings themselves (`is_mapping`) stay whole.

    source  the file, whose lines are told beside it
    """
    if not isinstance(value, Mapping) or is_mapping(key):
        yield key, Stated(value, origin)
        return
    lines = getattr(getattr(value, "lc", None), "data", None) or {}
    rewards = {k: v for k, v in value.items() if k not in ("part", "add", "shape", "step")} if key == "reward" else {}
    if rewards:  # the weights of rewards, by their former key
        yield key, Stated(rewards, origin)
    for name, inner in value.items():
        if name in rewards:
            continue
        at = f"{source}:{lines[name][0] + 1}" if source and name in lines else origin
        part = name == "part" and (key == "reward" or former.folder_of(key) is not None)
        yield from leaves(key if part else f"{key}.{name}" if key else str(name), inner, at, source)


def is_mapping(key: str) -> bool:
    """Whether a key's value is itself a mapping: of some settings, and of the `weights` that parts have."""
    if not key:
        return False
    from gxpo.settings import MAPPINGS

    return key == "versions" or key in MAPPINGS or key.endswith(".weights")


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Types of a part's fields; resolving them costs more than making the part."""
    return get_type_hints(kind)


class Unexecuted:
    """Stand-in for a part whose file must not be run (`usercode.unexecuted`): needs nothing, accepts any setting."""

    provides = needs = requires = outputs = ()
    couples, axes, calls = "token", {}, None

    def __init__(self, path: str, fields: Mapping[str, Any] | None = None) -> None:
        self.path = path
        vars(self).update(fields or {})

    def __add__(self, other: Any) -> Unexecuted:
        return self

    __radd__ = __add__

    def __call__(self, *args: Any) -> Any:
        raise ConfigError(f"{self.path} is not run here")

    def optimiser_steps(self, tasks: int) -> int:
        raise ConfigError(f"update={self.path} is not run here, so how many optimiser steps it takes is not known")


class _Keys:
    """Stated keys being consumed; every resolved value is noted with its origin."""

    def __init__(self, stated: Mapping[str, Stated]) -> None:
        self.stated, self.used, self.resolved, self.valid = stated, set[str](), dict[str, Stated](), list[str]()

    def take(self, key: str, default: Any) -> Any:
        self.valid.append(key)
        self.used.add(key)
        found = self.stated.get(key, Stated(default, "default"))
        self.resolved[key] = found
        return found.value

    def names(self, prefix: str) -> list[str]:
        """NAME of every stated `prefix.NAME`, in order; optional options of a part that is not stated make none."""
        words = len(prefix.split("."))
        below = {k: k.split(".")[words] for k in self.stated if k.startswith(f"{prefix}.")}
        return list(dict.fromkeys(n for k, n in below.items() if k == f"{prefix}.{n}" or not self.stated[k].optional))

    def part(
        self,
        slot: str,
        value: Any,
        table: Mapping[str, Any],
        prefix: str | None = None,
        what: str = "part",
        main: str | None = None,
    ) -> Any:
        """The part that `value` names, its fields filled from `prefix.FIELD`.

        main  the slot of the part that it is added to: fields that its class names in `follows`, and those whose
              default is None, are as they are there unless they are stated
        """
        kind = resolve_part(value, table, slot, what)
        if isinstance(kind, Unexecuted):
            for key in [k for k in self.stated if k.startswith(f"{prefix or slot}.")]:
                self.take(key, None)
            return kind
        _check_protocol(f"{slot}={show(value)}", kind, what)
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            return kind
        prefix = slot if prefix is None else prefix
        hints = hints_of(kind)
        fields: dict[str, Any] = {}
        for entry in dataclasses.fields(kind):
            if not entry.init or (entry.name == "options" and issubclass(kind, Formula)):
                continue
            default = entry.default_factory() if entry.default_factory is not dataclasses.MISSING else entry.default
            key = f"{prefix}.{entry.name}"
            if entry.name == "control":
                fields["control"] = self.control(key, default)
            elif main is not None and self.follows(kind, entry, key, f"{main}.{entry.name}"):
                self.take(key, None)
                of_main = self.resolved[f"{main}.{entry.name}"].value
                fields[entry.name] = default if of_main is None else of_main
            else:
                fields[entry.name] = self.field(key, default, hints[entry.name], "unbounded" in entry.metadata)
        self.check(kind, fields, prefix)
        try:
            if issubclass(kind, Formula):
                fields["options"] = self.options(kind, fields, prefix)
            return kind(**fields)
        except NotRun as needed:
            return Unexecuted(str(needed), fields)

    def follows(self, kind: type, entry: dataclasses.Field[Any], key: str, of_main: str) -> bool:
        """Whether a field of an added part is as in the part that it is added to."""
        may = entry.default is None or entry.name in getattr(kind, "follows", ())
        return may and of_main in self.resolved and (key not in self.stated or self.stated[key].value is None)

    def check(self, kind: type, fields: Mapping[str, Any], prefix: str) -> None:
        """Refuse values that the annotations of a part's fields exclude, by their whole keys."""
        keys = [f"{prefix}.{name}" for name in fields]
        fields = {name: value for name, value in fields.items() if not isinstance(value, Unexecuted)}
        ranges.check(kind, fields, prefix, {k: _said(self.stated[k]) for k in keys if k in self.stated})

    def options(self, kind: type[Formula], fields: dict[str, Any], prefix: str) -> dict[str, Any]:
        """Options of the functions that a part applies: they lie beside its fields, under `prefix.OPTION`."""
        out: dict[str, Any] = {}
        for name, (module, free) in kind.functions.items():
            fields[name] = functions.named(fields[name], module, f"{prefix}.{name}", free=free)
            if callable(fields[name]):
                for option, (hint, default) in functions.signature(fields[name]).options.items():
                    out[option] = self.field(f"{prefix}.{option}", default, hint, default == math.inf)
                    rule, key = ranges.rule_of(hint, default == math.inf), f"{prefix}.{option}"
                    if rule is not None and not rule.holds(out[option]):
                        raise ConfigError(ranges.refusal(key, out[option], rule, _said(self.stated[key])))
        return out

    def control(self, key: str, default: Any) -> Any:
        """What moves a coefficient: a part inside a part, its fields under `KEY.FIELD`."""
        from gxpo import registry

        named = self.take(key, None if default is None else type(default))
        made = None if named is None else self.part(key, named, registry.CONTROLS, what="control")
        return None if isinstance(made, Unexecuted) else made

    def field(self, key: str, default: Any, hint: Any, unbounded: bool = False) -> Any:
        """What is stated, of the field's type, or the default as it is.

        Numbers are finite, but where the default is inf or the field's metadata says `unbounded`.
        """
        value = self.take(key, default)
        if value is dataclasses.MISSING:
            raise ConfigError(f"{key} has no default: set it")
        if key not in self.stated:
            return value
        stated = self.stated[key]
        found = typed(key, value, hint, stated)
        if not finite(found, unbounded or default in (math.inf, -math.inf)):
            raise ConfigError(f"{key}={show(value)} ({stated.origin}): it must be a finite number")
        return found

    def leftover(self) -> list[str]:
        return [k for k in self.stated if k not in self.used]


def _said(stated: Stated) -> str:
    """Where a value comes from, but for those of a call's own arguments."""
    return "" if stated.origin == "override" else stated.origin


_PROTOCOL = {  # what a part must have, where it is more than being callable
    "rollout": ("grow",),
    "signal": ("compute", "provides", "axes"),
    "update": ("run", "optimiser_steps"),
    "surrogate": ("loss", "clipped"),
    "ratio": ("level", "couples"),
    "control": ("coefficient", "adjust"),
    "term": ("__call__", "active", "couples"),
    "term of the objective": ("__call__", "active", "couples"),
}


def _check_protocol(stated: str, part: Any, what: str) -> None:
    """Refuse an object that lacks what the protocol of its stage asks for, before a step of a run finds out."""
    needed = _PROTOCOL.get(what, ("__call__",))
    if isinstance(part, type):
        if not dataclasses.is_dataclass(part):
            raise ConfigError(f"{stated} is a class but no dataclass: decorate it with @dataclass(frozen=True)")
        lacking = [n for n in needed if not any(n in vars(base) for base in part.__mro__)]
        lacking += sorted(getattr(part, "__abstractmethods__", ()))
    else:
        lacking = [n for n in needed if not hasattr(part, n)]
    if lacking:
        raise ConfigError(f"{stated} can't be a {what}: it has no {', '.join(dict.fromkeys(lacking))}")


def typed(key: str, value: Any, hint: Any, stated: Stated) -> Any:
    """`value` checked against the field's type; an int is taken for a float, a list for a tuple."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if hint is Any:
        return value
    if hint is float and type(value) in (int, float):
        return float(value)
    if (hint in (int, bool, str) and type(value) is hint) or (
        get_origin(hint) is Literal and type(value) is str and value in get_args(hint)
    ):
        return value
    if get_origin(hint) is Literal and type(value) is str:
        rule = ranges.rule_of(hint)
        assert rule is not None
        raise ConfigError(ranges.refusal(key, value, rule, _said(stated)))
    if isinstance(value, list) and get_origin(hint) is tuple:
        value = tuple(value)
    from pydantic import TypeAdapter, ValidationError  # a tenth of a second, for what plain comparisons don't decide

    try:
        return TypeAdapter(hint, config={"arbitrary_types_allowed": True, "strict": True}).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{key}={show(value)} ({stated.origin}): {error.errors()[0]['msg'].lower()}") from None


def resolve_part(value: Any, table: Mapping[str, Any], slot: str, what: str) -> Any:
    """A name in the table, `file.py:name`, `module:name`, a part class, a part or a function."""
    if not isinstance(value, str):
        if value is None or not (callable(value) or dataclasses.is_dataclass(value)):
            raise ConfigError(f"{slot}={value!r} is neither the name of a {what} nor a function")
        return value
    if value in table:
        return table[value]
    if ":" in value:
        return load_object(value, slot)
    raise ConfigError(f"{slot}: unknown {what} {value!r}{did_you_mean(value, table)}; there is {', '.join(table)}")


def load_object(path: str, slot: str) -> Any:
    """The object that `file.py:name` or `package.module:name` names."""
    try:
        return object_at(path)
    except NotRun:
        return Unexecuted(path)
    except Unusable as error:
        raise ConfigError(f"{slot}={path}: {error}") from None


def _build(
    name: str, definitions: list[tuple[str, Definition, Mapping[str, Any]]], stated: dict[str, Stated]
) -> Method:
    from gxpo import registry
    from gxpo.credit.relative import Relative
    from gxpo.learners.epochs import Epochs
    from gxpo.rollouts.independent import Independent

    keys = _Keys(stated)
    total = _credit(keys, Relative)
    weights = _named(keys, "weight", registry.WEIGHTS, "weight")
    rollout = keys.part("rollout", keys.take("rollout", Independent), registry.ROLLOUTS, what="rollout")
    named = keys.take("segment", None)
    segmenter = None if named is None else keys.part("segment", named, registry.SEGMENTERS, what="segmenter")
    shapes = _named(keys, "reward.shape", registry.REWARDS, "reward")
    step_rewards = _named(keys, "reward.step", registry.REWARDS, "reward")
    rewards = _named(keys, "reward.add", registry.REWARDS, "reward")
    signals = _named(keys, "signal", registry.SIGNALS, "signal")
    update = keys.part("update", keys.take("update", Epochs), registry.UPDATES, what="update")
    terms, kl_reward = _objective(keys)
    context = keys.take("objective.context", "trained")
    if context not in ("trained", "sampled"):
        raise ConfigError(f"objective.context is 'trained' or 'sampled', not {context!r}")
    check_refusals(definitions, {k: s.value for k, s in keys.resolved.items()})
    run_keys = _run_keys(keys)
    labels = [label for label, _, _ in definitions]
    for key in keys.leftover():
        if key in run_keys or _replaced(key, keys, stated, labels):
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
    )
    _check_provided(made)
    _check_credit_is_read(made)
    if getattr(rollout, "drops_equal_groups", False) and getattr(total, "on_equal", "zero") == "signal":
        raise ConfigError(
            f"{name}: credit {show(total)} learns from groups of equal rewards, which rollout "
            f"{show(rollout)} drops: set rollout=independent"
        )
    return made


def _run_keys(keys: _Keys) -> dict[str, Stated]:
    """What is left and belongs to the run, not to the method."""
    left = keys.leftover()
    if not left:
        return {}
    from gxpo.settings import RUN_KEYS  # pydantic's models take a while

    return {k: keys.stated[k] for k in left if k in RUN_KEYS}


def _credit(keys: _Keys, default: Any) -> Any:
    """The credit, and those that are added to it."""
    from gxpo import registry

    total = keys.part("credit", keys.take("credit", default), registry.CREDITS, what="credit")
    for extra in keys.names("credit.add"):
        slot = f"credit.add.{extra}"
        total = total + keys.part(slot, keys.take(slot, extra), registry.CREDITS, what="credit", main="credit")
    return total


def part_of(folder: str, value: Any, options: Mapping[str, Any]) -> Any:
    """The part of a stage's folder that `value` names, made with options as under the part's keys; several where a
    former part is a composition now: their sum, or their product."""
    from gxpo import registry

    name = show(value) if not isinstance(value, former.FormerPart) else value.name
    slot, table = registry.place_of(folder, name if (old := former.table(folder).get(name)) is None else show(old.now))
    slot = slot.replace("NAME", name)
    prefix = "objective" if slot in ("objective.surrogate", "objective.ratio") else slot
    stated = {slot: Stated(value, name), **{f"{prefix}.{k}": Stated(v, name) for k, v in options.items()}}
    keys = _Keys(former.renewed(stated))
    if folder == "credit":
        made = _credit(keys, None)
    elif folder == "weighting":
        made = functools.reduce(operator.mul, _named(keys, "weight", table, "weight").values())
    else:
        what = next((kind for kind in _PROTOCOL if kind in slot.split(".")), "part")
        made = keys.part(slot, keys.take(slot, None), table, prefix, what)
    if left := keys.leftover():
        raise unknown_key(left[0], keys.valid)
    return made


def _named(keys: _Keys, stage: str, table: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The parts under `stage.NAME`, each by its NAME, which is also what it is unless it says otherwise."""
    return {
        name: keys.part(f"{stage}.{name}", keys.take(f"{stage}.{name}", name), table, what=what)
        for name in keys.names(stage)
    }


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
            raise ConfigError(
                f"{made.name} reads signal {signal!r}, which no part provides"
                f"{did_you_mean(signal, [*owner, *BUILT_IN])}: add signal.NAME with a part that does"
            )


def _check_credit_is_read(made: Method) -> None:
    """Refuse a credit that was asked for where no term of the objective reads it."""
    if made.reads_credit:
        return
    from gxpo.credit.relative import Relative

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
            f"{made.name}: objective {term} reads outcomes, not credit, so {key or 'objective.kl.place=reward'} "
            "would do nothing: leave it out, or choose another objective"
        )


def _policy_term(keys: _Keys) -> Any:
    """The term in the policy gradient's place: `objective`, its fields under `objective.FIELD`."""
    from gxpo import objectives, registry

    kind = resolve_part(
        keys.take("objective", objectives.PolicyGradient), registry.TERMS, "objective", "term of the objective"
    )
    if not (isinstance(kind, type) and issubclass(kind, objectives.PolicyGradient)):
        return keys.part("objective", kind, registry.TERMS, what="term of the objective")
    slot = "objective.surrogate"
    surrogate = keys.part(slot, keys.take(slot, objectives.Clip), registry.SURROGATES, "objective", "surrogate")
    ratio = keys.part("objective.ratio", keys.take("objective.ratio", "token"), registry.RATIOS, "objective", "ratio")
    fields: dict[str, Any] = {"surrogate": surrogate, "ratio": ratio}
    hints = hints_of(kind)
    for entry in dataclasses.fields(kind):
        if entry.name not in fields:
            key = f"objective.{entry.name}"
            fields[entry.name] = keys.field(key, entry.default, hints[entry.name])
    keys.check(kind, fields, "objective")
    return next((part for part in (surrogate, ratio) if isinstance(part, Unexecuted)), None) or kind(**fields)


def _objective(keys: _Keys) -> tuple[dict[str, Any], Any]:
    """The policy term, KL and entropy, and the terms that are added."""
    from gxpo import objectives, registry
    from gxpo.objectives.kl_reward import KLReward

    policy = _policy_term(keys)
    terms: dict[str, Any] = {"policy": policy}
    shared: dict[str, Any] = {
        name: getattr(policy, name, default) for name, default in (("aggregate", "token_mean"), ("horizon", None))
    }
    place = keys.take("objective.kl.place", "loss")
    if place not in ("loss", "reward"):
        raise ConfigError(f"objective.kl.place is 'loss' or 'reward', not {place!r}")
    of_kl = dict(shared)
    if isinstance(policy, objectives.PolicyGradient):  # the ratio that may weigh it is the policy term's
        of_kl["ratio_over"] = policy.ratio_over
        of_kl["on_unknown_behaviour"] = {"shaped": "one"}.get(policy.on_unknown_behaviour, policy.on_unknown_behaviour)
    kl = _penalty(keys, objectives.KL, "objective.kl", of_kl)
    kl_reward = None
    if kl.ever and place == "loss":
        terms["kl"] = kl
    elif kl.ever:
        if kl.ratio_weighted:
            raise ConfigError("objective.kl.ratio_weighted is of the KL in the loss: set objective.kl.place=loss")
        kl_reward = KLReward(coef=kl.coef, estimator=kl.estimator)
        if kl.control is not None:
            raise ConfigError("objective.kl.control moves the KL in the loss: set objective.kl.place=loss")
    bonus = _penalty(keys, objectives.Entropy, "objective.entropy", {"horizon": shared["horizon"]})
    if bonus.ever:
        terms["entropy"] = bonus
    return terms | _named(keys, "objective.add", registry.TERMS, "term"), kl_reward


def _penalty(keys: _Keys, kind: Any, slot: str, shared: Mapping[str, Any]) -> Any:
    """A KL or entropy term, its fields under `slot.FIELD`; those of `shared` follow the policy term's."""
    hints, fields = hints_of(kind), {}
    for entry in dataclasses.fields(kind):
        key = f"{slot}.{entry.name}"
        if entry.name == "control":
            fields["control"] = keys.control(key, None)
        elif entry.name == "horizon":
            fields["horizon"] = shared["horizon"]
        elif entry.name in shared:
            fields[entry.name] = keys.field(key, None, hints[entry.name] | None) or shared[entry.name]
        else:
            fields[entry.name] = keys.field(key, entry.default, hints[entry.name])
    if fields["coef"] < 0:
        raise ConfigError(f"{slot}.coef={fields['coef']} is negative")
    keys.check(kind, fields, slot)
    return kind(**fields)


def _stage(key: str, resolved: Mapping[str, Stated]) -> str:
    """The key of the part that a parameter belongs to."""
    words = key.split(".")
    if words[0] == "objective":
        return "objective.surrogate" if "objective.surrogate" in resolved else "objective"
    return ".".join(words[:2]) if words[0] in ("weight", "signal") else words[0]


def _replaced(key: str, keys: _Keys, stated: Mapping[str, Stated], names: list[str]) -> bool:
    """A method's parameter of a part in whose place the caller has put another, which does not have it."""
    part = keys.resolved.get(_stage(key, keys.resolved), Stated(None, "default"))
    return stated[key].origin in names and part.origin not in ("default", *names) and "(as in " not in part.origin


def _refuse_key(key: str, keys: _Keys, stated: Mapping[str, Stated], names: list[str]) -> None:
    origin, stage = stated[key].origin, _stage(key, keys.resolved)
    if origin in names and stage in keys.resolved:
        owner = keys.resolved[stage]
        raise ConfigError(
            f"{origin} sets {key}, which {stage} {show(owner.value)} (from {owner.origin}) does not have: "
            f"compose it with another {stage}, or --set {stage}={origin}"
        )
    from gxpo.settings import RUN_KEYS

    error = unknown_key(key, [*keys.valid, *RUN_KEYS])
    raise ConfigError(f"{error} ({origin})" if origin != "override" else str(error))
