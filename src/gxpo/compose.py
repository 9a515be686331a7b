"""`gxpo.method("dr_grpo+gspo")`: a composition of parts, with its credit, weights and loss."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from gxpo.keys import Definition, Stated, check_refusals, merge, show, unknown_key
from gxpo.errors import ConfigError, GxpoError, did_you_mean
from gxpo.forest import Forest
from gxpo.protocols import PolicyTokens
from gxpo.settings import RUN_KEYS
from gxpo.signals import Signals


@dataclass(frozen=True)
class Loss:
    """`value`: scalar to minimise, in the dtype of the policy's log-probs; `metrics`: named floats."""

    value: Tensor
    metrics: dict[str, float]


@dataclass(frozen=True, eq=False)
class Method:
    """A composed method. Made by `gxpo.method`; `keys` holds every resolved key and where it came from."""

    name: str
    definitions: tuple[Definition, ...]
    keys: Mapping[str, Stated]
    credit: Any
    weights: Mapping[str, Any]
    terms: Mapping[str, Any]
    rollout: Any
    rewards: Mapping[str, Any]
    update: Any
    kl_reward: Any = None  # (coef, estimator) of a KL penalty that is part of the reward
    run_keys: Mapping[str, Stated] = field(default_factory=dict)

    # ------------------------------------------------------------ what it asks for
    def _parts(self) -> list[Any]:
        parts = [self.credit, *self.weights.values(), *self.terms.values(), self.rollout, *self.rewards.values(),
                 self.update]  # fmt: skip
        return [*parts, self.kl_reward] if self.kl_reward is not None else parts

    def _collect(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(x for part in self._parts() for x in getattr(part, name, ())))

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Signals that parts read beyond the sampler's and the proximal policy's log-probs."""
        return self._collect("needs")

    @cached_property
    def requires(self) -> tuple[str, ...]:
        """What rollouts or environments must provide."""
        return self._collect("requires")

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Policy outputs that the loss reads."""
        return ("logprob", *(o for o in self._collect("outputs") if o != "logprob"))

    @property
    def couples(self) -> str:
        """The widest coupling of the objective's terms."""
        order = ("token", "trajectory", "group", "step")
        return max((t.couples for t in self.terms.values()), key=order.index)

    # ------------------------------------------------------------ the pipeline on one forest
    def advantages(self, forest: Forest, signals: Mapping[str, Any] | None = None, step: int = 0) -> Tensor:
        """Credit alone, before weights: [P] float64, detached. Unscored trajectories have exactly 0.

        A KL penalty that is placed in the reward is subtracted from the outcome before any group statistic.
        """
        sub, entries = _scored(forest)
        held = Signals.of(forest, signals).index(entries, forest.n_entries)
        out = torch.zeros(forest.n_entries, dtype=torch.float64)
        if not sub.n_trajectories:
            return out
        with torch.no_grad():
            if self.kl_reward is not None:
                sub = self.kl_reward.penalise(sub, held)
            credit = self.credit(sub, held, step)
        if credit.shape != (sub.n_entries,):
            raise GxpoError(f"credit {show(self.credit)} gave shape {tuple(credit.shape)}; a forest of {sub.n_entries} "
                            "path tokens needs one value for each (use forest.to_path)")  # fmt: skip
        if not bool(credit.isfinite().all()):
            raise GxpoError(f"credit {show(self.credit)} gave {int((~credit.isfinite()).sum())} values that are not finite")
        out[entries] = credit.detach().to(torch.float64)
        return out

    def token_weights(
        self, forest: Forest, advantages: Tensor, signals: Mapping[str, Any] | None = None, step: int = 0
    ) -> Tensor:
        """The trajectories' own weights times the weight parts: [P] float64, finite and >= 0."""
        weight = forest.to_path(forest.weight, "R")
        held = Signals.of(forest, signals)
        for name, part in self.weights.items():
            with torch.no_grad():
                factor = part(forest, advantages, held, step).detach().to(torch.float64)
            if not bool((factor.isfinite() & (factor >= 0)).all()):
                raise GxpoError(f"weight {name!r} gave values that are negative or not finite")
            weight = weight * factor
        return weight

    def objective(
        self, forest: Forest, policy: PolicyTokens, advantages: Tensor, weight: Tensor,
        signals: Mapping[str, Any] | None = None, step: int = 0,
    ) -> Tensor:  # fmt: skip
        """L(x) of a whole optimiser step, the terms summed; unscored trajectories count nowhere."""
        sub, entries = _scored(forest)
        dtype = policy.logprob.dtype
        if not sub.n_trajectories:
            return policy.logprob.sum() * 0.0
        held = Signals.of(forest, signals).index(entries, forest.n_entries)
        narrow = policy.index(entries)
        args = (sub, narrow, advantages[entries].to(dtype), weight[entries].to(dtype), held, step)
        return torch.stack([term(*args) for term in self.terms.values()]).sum()

    def active(self, forest: Forest, advantages: Tensor, weight: Tensor) -> Tensor:
        """[P] bool: entries whose coefficient may differ from zero in some term."""
        sub, entries = _scored(forest)
        out = torch.zeros(forest.n_entries, dtype=torch.bool)
        for term in self.terms.values() if sub.n_trajectories else ():
            out[entries] |= term.active(sub, advantages[entries], weight[entries])
        return out

    def loss(
        self, forest: Forest, pol: PolicyTokens, *, advantages: Tensor | None = None,
        signals: Mapping[str, Any] | None = None, step: int = 0,
    ) -> Loss:  # fmt: skip
        """The objective with the weights applied, for a training loop of one's own.

        The weights see `pol`'s log-probs as their signals; without a proximal policy the mismatch weight is 1.
        """
        if pol.logprob.shape != (forest.n_entries,):
            raise GxpoError(f"pol.logprob has shape {tuple(pol.logprob.shape)}; the forest has {forest.n_entries} path tokens")
        held = dict(signals or {})
        held.setdefault("behaviour_logprob", pol.behaviour_logprob.detach().double())
        proximal = pol.behaviour_logprob if pol.proximal_logprob is None else pol.proximal_logprob
        held["proximal_logprob"] = proximal.detach().double()
        if pol.reference_logprob is not None:
            held.setdefault("reference_logprob", pol.reference_logprob.detach().double())
        credit = self.advantages(forest, held, step) if advantages is None else advantages
        weight = self.token_weights(forest, credit, held, step)
        value = self.objective(forest, pol, credit, weight, held, step)
        return Loss(value, {"loss": float(value.detach()), **self.metrics(forest, pol, credit, weight)})

    def metrics(self, forest: Forest, policy: PolicyTokens, advantages: Tensor, weight: Tensor) -> dict[str, float]:
        """What the terms report of a step (clip fraction, KL, entropy...), over scored trajectories."""
        sub, entries = _scored(forest)
        out: dict[str, float] = {}
        if sub.n_trajectories:
            narrow = policy.index(entries)
            for term in self.terms.values():
                if hasattr(term, "metrics"):
                    with torch.no_grad():
                        out |= term.metrics(sub, narrow, advantages[entries], weight[entries])
        return out

    # ------------------------------------------------------------ memory
    def _remembering(self) -> dict[str, Any]:
        named = {"credit": self.credit, "rollout": self.rollout, "update": self.update,
                 **{f"weight.{k}": v for k, v in self.weights.items()},
                 **{f"reward.{k}": v for k, v in self.rewards.items()},
                 **{f"objective.{k}": v for k, v in self.terms.items()}}  # fmt: skip
        return {k: v for k, v in named.items() if hasattr(v, "state_dict")}

    def observe(self, forest: Forest) -> None:
        """Show every part that remembers the step's rollouts."""
        for part in self._parts():
            if hasattr(part, "observe"):
                part.observe(forest)

    def state_dict(self) -> dict[str, Any]:
        return {k: v.state_dict() for k, v in self._remembering().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, part in self._remembering().items():
            part.load_state_dict(state[name])

    def fill(self, **values: Any) -> Method:
        """A copy in which fields left None are filled (`horizon`, `max_length`), wherever a part has them."""

        def filled(part: Any) -> Any:
            if not dataclasses.is_dataclass(part):
                return part
            empty = {k: v for k, v in values.items() if getattr(part, k, part) is None}
            return dataclasses.replace(part, **empty) if empty else part  # type: ignore[type-var]

        def mapped(parts: Mapping[str, Any]) -> dict[str, Any]:
            return {k: filled(v) for k, v in parts.items()}

        return dataclasses.replace(self, credit=filled(self.credit), weights=mapped(self.weights),
                                   terms=mapped(self.terms), rollout=filled(self.rollout),
                                   rewards=mapped(self.rewards), update=filled(self.update))  # fmt: skip

    def __repr__(self) -> str:
        lines = [f"method {self.name}"]
        lines += [f"  {d.name}: {d.formula}" for d in self.definitions]
        width = max((len(k) for k in self.keys), default=0)
        lines += [f"  {k:<{width}}  {show(s.value)}  [{s.origin}]" for k, s in self.keys.items()]
        return "\n".join(lines)


def _scored(forest: Forest) -> tuple[Forest, Tensor]:
    """The forest of the scored trajectories and their entries."""
    if bool(forest.scored.all()):
        return forest, torch.arange(forest.n_entries)
    return forest.select(forest.scored), forest.entries_of(forest.scored)


# ---------------------------------------------------------------- composing
_SPEC = re.compile(r"^(?P<name>[a-z0-9_]+)(@(?P<system>[a-z0-9_-]+))?$")


def method(spec: str | Method, overrides: Mapping[str, Any] | None = None, *, compat: str | None = None) -> Method:
    """Compose published methods: `"gigpo+gspo"`, `"grpo@trl"`, `"grpo@paper"`.

    overrides  leaf keys, e.g. `{"credit.scale": "none"}`; a stage key takes a part's name, a method's name (as in that
               method), `file.py:name`, or a Python object (a credit may be any function of (forest, signals, step))
    compat     a system whose constants to take for every method of the composition that it has
    Raises ConfigError, MethodConflict; lists what is close for an unknown name or key.
    """
    if isinstance(spec, Method):
        if not overrides and compat is None:
            return spec
        raise ConfigError("give the overrides when the method is composed: gxpo.method('name', {...})")
    stated = {k: v if isinstance(v, Stated) else Stated(v, "override") for k, v in (overrides or {}).items()}
    from gxpo.methods import COMPAT, METHODS

    definitions: list[tuple[str, Definition, Mapping[str, Any]]] = []
    for word in spec.split("+"):
        match = _SPEC.match(word.strip())
        if match is None or match["name"] not in METHODS:
            raise ConfigError(f"unknown method {word.strip()!r}{did_you_mean(word, METHODS)} (`gxpo methods` lists them)")
        definition, system = METHODS[match["name"]], match["system"]
        systems = {"paper": definition.paper_defaults} | {s: t[definition.name] for s, t in COMPAT.items()
                                                          if definition.name in t}  # fmt: skip
        if system is not None and system not in systems:
            raise ConfigError(f"{definition.name}@{system} is not known; there is {', '.join(systems)}")
        if compat is not None and compat not in COMPAT:
            raise ConfigError(f"compat {compat!r} is not known{did_you_mean(compat, COMPAT)}; there is {', '.join(COMPAT)}")
        definitions.append((definition.name, definition, definition.keys))
        for name in dict.fromkeys(s for s in (system, compat if compat in systems else None) if s):
            own = definition.keys
            extra = {k: v for k, v in systems[name].items() if k not in own or not _same(own[k], v)}
            definitions[-1] = (word.strip(), definition, {**own, **extra})
    return _build(spec, definitions, merge(definitions, stated, METHODS))


def _same(a: Any, b: Any) -> bool:
    from gxpo.keys import same

    return same(a, b)


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
        """NAME of every stated `prefix.NAME`, in order."""
        return list(dict.fromkeys(k[len(prefix) + 1 :].split(".")[0] for k in self.stated if k.startswith(prefix + ".")))

    def part(self, slot: str, value: Any, table: Mapping[str, Any], prefix: str | None = None, what: str = "part") -> Any:
        """The part that `value` names, its fields filled from `prefix.FIELD`."""
        kind = resolve_part(value, table, slot, what)
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            return kind
        prefix = slot if prefix is None else prefix
        hints = get_type_hints(kind)
        fields: dict[str, Any] = {}
        for entry in dataclasses.fields(kind):
            if not entry.init:
                continue
            default = entry.default_factory() if entry.default_factory is not dataclasses.MISSING else entry.default
            key = f"{prefix}.{entry.name}"
            fields[entry.name] = typed(key, self.take(key, default), hints[entry.name], self.stated.get(key))
        return kind(**fields)

    def leftover(self) -> list[str]:
        return [k for k in self.stated if k not in self.used]


def typed(key: str, value: Any, hint: Any, stated: Stated | None) -> Any:
    """`value` checked against the field's type; an int is taken for a float."""
    try:
        return TypeAdapter(hint, config={"arbitrary_types_allowed": True, "strict": True}).validate_python(value)
    except ValidationError as error:
        place = f" ({stated.origin})" if stated else ""
        raise ConfigError(f"{key}={show(value)}{place}: {error.errors()[0]['msg'].lower()}") from None


def resolve_part(value: Any, table: Mapping[str, Any], slot: str, what: str) -> Any:
    """A name in the table, `file.py:name`, `module:name`, a part class, a part or a function."""
    if not isinstance(value, str):
        if value is None or not callable(value):
            raise ConfigError(f"{slot}={value!r} is neither the name of a {what} nor a function")
        return value
    if value in table:
        return table[value]
    if ":" in value:
        return load_object(value, slot)
    raise ConfigError(f"{slot}: unknown {what} {value!r}{did_you_mean(value, table)}; there is {', '.join(table)}")


def load_object(path: str, slot: str) -> Any:
    """The object that `file.py:name` or `package.module:name` names."""
    import importlib
    import importlib.util
    from pathlib import Path

    where, _, name = path.rpartition(":")
    try:
        if where.endswith(".py"):
            if not Path(where).is_file():
                raise ConfigError(f"{slot}={path}: no such file {where}")
            found = importlib.util.spec_from_file_location(Path(where).stem, where)
            assert found is not None and found.loader is not None
            module: ModuleType = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{slot}={path}: can't import {where}: {type(error).__name__}: {error}") from None
    if not hasattr(module, name):
        raise ConfigError(f"{slot}={path}: {where} has no {name!r}{did_you_mean(name, vars(module))}")
    return getattr(module, name)


def _build(name: str, definitions: list[tuple[str, Definition, Mapping[str, Any]]], stated: dict[str, Stated]) -> Method:
    from gxpo import parts

    keys = _Keys(stated)
    total = keys.part("credit", keys.take("credit", parts.CREDITS["group_relative"]), parts.CREDITS, what="credit")
    for extra in keys.names("credit.add"):
        slot = f"credit.add.{extra}"
        total = total + keys.part(slot, keys.take(slot, extra), parts.CREDITS, what="credit")
    weights = {}
    for extra in keys.names("weight"):
        slot = f"weight.{extra}"
        weights[extra] = keys.part(slot, keys.take(slot, extra), parts.WEIGHTS, what="weight")
    rollout = keys.part("rollout", keys.take("rollout", parts.ROLLOUTS["independent"]), parts.ROLLOUTS, what="rollout")
    shaping = {}
    for extra in keys.names("reward.add"):
        slot = f"reward.add.{extra}"
        shaping[extra] = keys.part(slot, keys.take(slot, extra), parts.REWARDS, what="reward")
    update = keys.part("update", keys.take("update", parts.UPDATES["epochs"]), parts.UPDATES, what="update")
    terms, kl_reward = _objective(keys)
    check_refusals(definitions, {k: s.value for k, s in keys.resolved.items()})
    run_keys = {k: stated[k] for k in keys.leftover() if k in RUN_KEYS}
    for key in keys.leftover():
        if key not in run_keys:
            _refuse_key(key, keys, stated, [label for label, _, _ in definitions])
    made = Method(name, tuple(d for _, d, _ in definitions), keys.resolved, total, weights, terms, rollout, shaping,
                  update, kl_reward, run_keys)  # fmt: skip
    if getattr(rollout, "drops_equal_groups", False) and getattr(total, "on_equal", "zero") == "signal":
        raise ConfigError(f"{name}: credit {show(total)} learns from groups of equal rewards, which rollout "
                          f"{show(rollout)} drops: set rollout=independent")  # fmt: skip
    return made


def _objective(keys: _Keys) -> tuple[dict[str, Any], Any]:
    """The policy term (ratio, gate, aggregate), KL and entropy, and the terms that are added."""
    from gxpo import objectives, parts
    from gxpo.objectives.kl import ESTIMATORS
    from gxpo.objectives.kl_reward import KLReward

    gate = keys.part("objective.gate", keys.take("objective.gate", parts.GATES["clip"]), parts.GATES, "objective", "gate")
    fields: dict[str, Any] = {"gate": gate}
    hints = get_type_hints(objectives.PolicyGradient)
    for entry in dataclasses.fields(objectives.PolicyGradient):
        if entry.name != "gate":
            key = f"objective.{entry.name}"
            value = keys.take(key, entry.default)
            fields[entry.name] = typed(key, value, hints[entry.name], keys.stated.get(key))
    terms: dict[str, Any] = {"policy": objectives.PolicyGradient(**fields)}
    shared = {"aggregate": fields["aggregate"], "horizon": fields["horizon"]}
    coef = typed("objective.kl.coef", keys.take("objective.kl.coef", 0.0), float, keys.stated.get("objective.kl.coef"))
    estimator = keys.take("objective.kl.estimator", "k3")
    place = keys.take("objective.kl.place", "loss")
    aggregate = keys.take("objective.kl.aggregate", None) or shared["aggregate"]
    if estimator not in ESTIMATORS:
        raise ConfigError(f"objective.kl.estimator is one of {', '.join(ESTIMATORS)}, not {estimator!r}")
    if place not in ("loss", "reward"):
        raise ConfigError(f"objective.kl.place is 'loss' or 'reward', not {place!r}")
    if coef < 0:
        raise ConfigError(f"objective.kl.coef={coef} is negative")
    kl_reward = None
    if coef and place == "loss":
        terms["kl"] = objectives.KL(coef=coef, estimator=estimator, aggregate=aggregate, horizon=shared["horizon"])
    elif coef:
        kl_reward = KLReward(coef=coef, estimator=estimator)
    bonus = typed("objective.entropy.coef", keys.take("objective.entropy.coef", 0.0), float,
                  keys.stated.get("objective.entropy.coef"))  # fmt: skip
    spread = keys.take("objective.entropy.aggregate", "token_mean")
    if bonus:
        terms["entropy"] = objectives.Entropy(coef=bonus, aggregate=spread, horizon=shared["horizon"])
    for extra in keys.names("objective.add"):
        slot = f"objective.add.{extra}"
        terms[extra] = keys.part(slot, keys.take(slot, extra), parts.TERMS, what="term")
    return terms, kl_reward


def _refuse_key(key: str, keys: _Keys, stated: Mapping[str, Stated], names: list[str]) -> None:
    origin = stated[key].origin
    stage = "objective.gate" if key.startswith("objective.") else key.split(".")[0]
    if origin in names and stage in keys.resolved:
        owner = keys.resolved[stage]
        raise ConfigError(f"{origin} sets {key}, which {stage} {show(owner.value)} (from {owner.origin}) does not have: "
                          f"compose it with another {stage}, or --set {stage}={origin}")  # fmt: skip
    error = unknown_key(key, [*keys.valid, *RUN_KEYS])
    raise ConfigError(f"{error} ({origin})" if origin != "override" else str(error))


CreditFunction = Callable[[Forest, Mapping[str, Any], int], Tensor]
