"""A composed method applied to a forest: advantages, weights, objective, and the signals it needs."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.objectives.base import TermPart, evaluate
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import GxpoError
from gxpo.environments.rewards import own
from gxpo.environments.rewards.base import RewardPart
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.definition import Definition, Stated, show
from gxpo.parts.functions import expect, naming, place_of, title_of
from gxpo.parts.protocols import Output, PolicyTokens
from gxpo.parts.schedule import Scheduled


@dataclass(frozen=True)
class Loss:
    """`value`: scalar to minimise, in the dtype of the policy's log-probs; `metrics`: named floats."""

    value: Tensor
    metrics: dict[str, float]


def zero_signal_groups(forest: Forest, credit: Tensor) -> Tensor:
    """Groups whose advantage [P] is 0 on every trainable token, so that they give no gradient; [groups] bool."""
    group = forest.ids("group", axis="R")
    strength = grouped.max(credit.abs() * forest.path_trainable, forest.ids("trajectory", axis="P"))
    by_trajectory = torch.zeros(forest.n_trajectories, dtype=torch.float64)
    by_trajectory[forest.path_trajectory] = strength
    strongest = torch.zeros(len(set(forest.group)), dtype=torch.float64)
    strongest[group] = grouped.max(by_trajectory, group)
    return strongest == 0


def _inner(part: Any) -> Iterator[tuple[str, Any]]:
    """(field, value) of the surrogate and of the controls that a part of the objective holds."""
    for name in ("surrogate", "control"):
        if dataclasses.is_dataclass(inner := getattr(part, name, None)):
            yield name, inner


def with_inner(key: str, part: Any) -> Iterator[tuple[str, Any]]:
    """(key, part), then those inside it."""
    yield key, part
    for name, inner in _inner(part):
        yield f"{key}.{name}", inner


def controls(method: Method) -> dict[str, Any]:
    """What adapts to the figures of each step, by key: parts of the objective with `adjust`."""
    found = {
        k: own
        for name, term in method.terms.items()
        for k, own in with_inner("objective" if name == "policy" else f"objective.{name}", term)
    }
    found["update"] = method.update
    return {k: v for k, v in found.items() if hasattr(v, "adjust")}


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
    kl_reward: Any = None  # a `KLReward`, where the KL is part of the reward
    shapes: Mapping[str, Any] = field(default_factory=dict)  # a new outcome in place of the old, before `rewards`
    signals: Mapping[str, Any] = field(default_factory=dict)  # parts that compute what others read
    context: str = "trained"  # which context the policy is read under: see `Forest.in_context`
    run_keys: Mapping[str, Stated] = field(default_factory=dict)
    segmenter: Any = None  # writes the forest's column of segments, before anything reads it
    step_rewards: Mapping[str, Any] = field(default_factory=dict)  # are added to the steps' own
    scheduled: tuple[Scheduled, ...] = ()  # numbers of parts that are functions of the step
    sampler: Any = None  # how tasks are drawn, by their measured success rates
    # (the caller's keys, `compat`) that `gxpo.method` was given; None for a copy with other parts
    asked: tuple[Mapping[str, Stated], str | None] | None = field(default=None, init=False)

    # ------------------------------------------------------------ what it asks for
    def parts(self) -> list[Any]:
        """Every part of every stage."""
        parts = [
            self.credit,
            *self.weights.values(),
            *self.terms.values(),
            self.rollout,
            *(part for part in (self.segmenter, self.sampler) if part is not None),
            *self.shapes.values(),
            *self.step_rewards.values(),
            *self.rewards.values(),
            *self.signals.values(),
            self.update,
        ]
        return [*parts, self.kl_reward] if self.kl_reward is not None else parts

    def _collect(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(x for part in self.parts() for x in getattr(part, name, ())))

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Signals that parts read beyond the sampler's and the proximal policy's log-probs, and that none provides."""
        provided = {*self.credit_targets, *(name for part in self.signals.values() for name in part.provides)}
        return tuple(name for name in self._collect("needs") if name not in provided)

    @cached_property
    def credit_targets(self) -> tuple[str, ...]:
        """What the advantage estimator gives the terms beside advantages: see `CreditPart.targets`."""
        return tuple(CreditPart.hook(self.credit, "provides"))

    @cached_property
    def given(self) -> tuple[str, ...]:
        """The signals that outputs of the loss are made with: see `TermPart.given`."""
        return tuple(dict.fromkeys(n for term in self.terms.values() for n in TermPart.hook(term, "given")))

    @cached_property
    def reads_texts(self) -> bool:
        """True if a reward of its own reads what the actions say."""
        parts = (*self.shapes.values(), *self.step_rewards.values(), *self.rewards.values())
        return any(RewardPart.hook(part, "reads_texts") for part in parts)

    @cached_property
    def axes(self) -> dict[str, str]:
        """The axes of the signals that its own parts provide, where they are not on P."""
        return {name: axis for part in self.signals.values() for name, axis in part.axes.items()}

    @cached_property
    def requires(self) -> tuple[str, ...]:
        """What rollouts or environments must provide."""
        return self._collect("requires")

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """Policy outputs that the loss reads."""
        return tuple(dict.fromkeys(map(Output, ("logprob", *self._collect("outputs")))))

    @cached_property
    def remains(self) -> dict[str, str]:
        """By method of the composition: what the caller's own settings leave of it, in a line; "" where they leave its
        formula."""
        from gxpo.parts.overrides import remains  # asked for where a method is printed

        return {d.name: remains(d, {**self.keys, **self.run_keys}).text for d in self.definitions}

    @property
    def without(self) -> list[str]:
        """Lines on methods whose formula is not what is computed, since the caller's settings took its place."""
        return [f"{name}: {text}" for name, text in self.remains.items() if text]

    @property
    def value_heads(self) -> tuple[str, ...]:
        """The value heads that some part reads or trains: "value", "value@NAME"."""
        return tuple(sorted({x for x in (*self.outputs, *self.needs) if Output(x).kind == "value"}))

    @cached_property
    def reads_credit(self) -> bool:
        """Whether any term of the objective does."""
        return any(TermPart.hook(term, "reads_credit") for term in self.terms.values())

    @property
    def couples(self) -> str:
        """The widest coupling of the objective's terms."""
        order = ("token", "trajectory", "group", "step")
        return max((t.couples for t in self.terms.values()), key=order.index)

    # ------------------------------------------------------------ the pipeline on one forest
    def shaped(self, forest: Forest) -> Forest:
        """The scored rollouts with the method's own rewards (`reward.shape`, `reward.step`, `reward.add`) over the
        task's: before `advantages` and `loss`, in a loop of one's own. Rollouts that have them stay as they are.

        Raises GxpoError where they hold another method's.
        """
        parts = self.shapes, self.step_rewards, self.rewards
        names = own.keys(*parts) if any(parts) else ()
        if forest.shaped_by == names:
            return forest
        if forest.shaped_by:
            held = ", ".join(forest.shaped_by)
            raise GxpoError(f"{self.name}: the rollouts hold {held} of another method: shape them as they were scored")
        return own.apply(forest, *parts) if names else forest

    def _held(self, forest: Forest, signals: Mapping[str, Any] | None) -> Signals:
        """The signals of the scored trajectories."""
        held = Signals.of(forest, signals, self.axes)
        return held if bool(forest.scored.all()) else held.select(forest, forest.scored)

    def advantages(self, forest: Forest, signals: Mapping[str, Any] | None = None, step: int = 0) -> Tensor:
        """Credit alone, before weights: [P] float64, detached. Unscored trajectories have exactly 0.

        Reads the outcomes as they are: the method's own rewards are in them after `shaped`, and a warning says where
        they are missing. A KL penalty that is placed in the reward is subtracted before any group statistic.
        """
        parts = self.shapes, self.step_rewards, self.rewards
        if any(parts) and (lacking := own.missing(forest, *parts)):
            warnings.warn(
                f"{self.name} without {', '.join(lacking)}: the rollouts hold the task's rewards alone; "
                "forest = method.shaped(forest) adds the method's own",
                stacklevel=2,
            )
        return self._credited(forest, signals, lambda sub, held: {"credit": self.credit(sub, held, step)})["credit"]

    def targets(self, forest: Forest, signals: Mapping[str, Any] | None = None, step: int = 0) -> dict[str, Tensor]:
        """What terms regress to, [P] each, from the advantage estimator (`CreditPart.targets`): signals of theirs."""
        if not self.credit_targets:
            return {}
        return self._credited(forest, signals, lambda sub, held: self.credit.targets(sub, held, step))

    def _credited(
        self,
        forest: Forest,
        signals: Mapping[str, Any] | None,
        compute: Callable[[Forest, Signals], Mapping[str, Tensor]],
    ) -> dict[str, Tensor]:
        """Columns [P] over the scored trajectories, 0 elsewhere; refused where a shape or a value can't be right."""
        sub, entries = _scored(forest)
        held = self._held(forest, signals)
        empty = torch.zeros(forest.n_entries, dtype=torch.float64)
        if not sub.n_trajectories:
            return dict.fromkeys(("credit", *self.credit_targets), empty)
        with torch.no_grad():
            if self.kl_reward is not None:
                sub = self.kl_reward.penalise(sub, held)
            with naming("credit", self.credit, name=show):
                columns = compute(sub, held)
        out = {}
        for name, x in columns.items():
            what = "credit" if name == "credit" else f"{name} of credit"
            expect(x, (sub.n_entries,), what, self.credit, "path token (use forest.to_path)", name=show)
            if fault := _fault(name, x):
                raise GxpoError(f"{title_of(what, self.credit, name=show)} gave {fault}")
            x = x.detach().to(torch.float64)
            out[name] = x if sub is forest else empty.index_copy(0, entries, x)
        return out

    def token_weights(
        self, forest: Forest, advantages: Tensor, signals: Mapping[str, Any] | None = None, step: int = 0
    ) -> Tensor:
        """The trajectories' own weights times the weight parts: [P] float64, finite and >= 0; 0 where unscored."""
        sub, entries = _scored(forest)
        out = torch.zeros(forest.n_entries, dtype=torch.float64)
        if not sub.n_trajectories:
            return out
        weight, credit = sub.to_path(sub.weight, "R"), advantages[entries]
        held = self._held(forest, signals)
        for name, part in self.weights.items():
            with torch.no_grad(), naming(f"weight {name!r}", part):
                output_P = part(sub, credit, held, step)
            output_P = expect(output_P, (sub.n_entries,), f"weight {name!r}", part, "path token (use forest.to_path)")
            factor = output_P.detach().to(torch.float64)
            if not bool((factor.isfinite() & (factor >= 0)).all()):
                raise GxpoError(f"weight {name!r}{place_of(part)} gave values that are negative or not finite")
            weight = weight * factor
        out[entries] = weight
        return out

    def evaluate(
        self,
        forest: Forest,
        policy: PolicyTokens,
        advantages: Tensor,
        weight: Tensor,
        signals: Mapping[str, Any] | None = None,
        step: int = 0,
    ) -> Loss:
        """L(x) of a whole optimiser step, the terms summed, and what they report of it (clip fraction, KL...);
        unscored trajectories count nowhere."""
        sub, entries = _scored(forest)
        dtype = policy.logprob.dtype
        if not sub.n_trajectories:
            return Loss(policy.logprob.sum() * 0.0, {})
        held = self._held(forest, signals)
        narrow = policy.index(entries)
        args = (sub, narrow, advantages[entries].to(dtype), weight[entries].to(dtype), held, step)
        found = [evaluate(term, *args) for term in self.terms.values()]
        figures = {name: x for _, own in found for name, x in own.items()}
        return Loss(torch.stack([value for value, _ in found]).sum(), figures)

    def objective(self, *given: Any, **named: Any) -> Tensor:
        """The value of `evaluate` alone, from the same arguments."""
        return self.evaluate(*given, **named).value

    def metrics(self, *given: Any, **named: Any) -> dict[str, float]:
        """The figures of `evaluate` alone, from the same arguments."""
        with torch.no_grad():
            return self.evaluate(*given, **named).metrics

    def active(
        self, forest: Forest, advantages: Tensor, weight: Tensor, signals: Mapping[str, Any] | None = None
    ) -> Tensor:
        """[P] bool: entries whose outputs some term reads; with the signals, terms may need fewer."""
        sub, entries = _scored(forest)
        out = torch.zeros(forest.n_entries, dtype=torch.bool)
        held = None if signals is None else self._held(forest, signals)
        for term in self.terms.values() if sub.n_trajectories else ():
            out[entries] |= term.active(sub, advantages[entries], weight[entries], held)
        return out

    def loss(
        self,
        forest: Forest,
        pol: PolicyTokens,
        *,
        advantages: Tensor | None = None,
        signals: Mapping[str, Any] | None = None,
        step: int = 0,
    ) -> Loss:
        """The objective with the weights applied, for a training loop of one's own.

        The weights see `pol`'s log-probs as their signals; without a proximal policy the mismatch weight is 1.
        """
        if pol.logprob.shape != (forest.n_entries,):
            raise GxpoError(
                f"pol.logprob has shape {tuple(pol.logprob.shape)}; the forest has {forest.n_entries} path tokens"
            )
        held = dict(Signals(signals))
        held.setdefault("behaviour_logprob", pol.behaviour_logprob.detach().double())
        proximal = pol.behaviour_logprob if pol.proximal_logprob is None else pol.proximal_logprob
        held["proximal_logprob"] = proximal.detach().double()
        if pol.reference_logprob is not None:
            held.setdefault("reference_logprob", pol.reference_logprob.detach().double())
        credit = self.advantages(forest, held, step) if advantages is None else advantages
        if missing := set(self.credit_targets) - set(held):
            found = self.targets(forest, held, step)
            held |= {name: found[name] for name in missing}
        weight = self.token_weights(forest, credit, held, step)
        found = self.evaluate(forest, pol, credit, weight, held, step)
        return Loss(found.value, {"loss": float(found.value.detach()), **found.metrics})

    # ------------------------------------------------------------ memory
    def _remembering(self) -> dict[str, Any]:
        named = {
            "credit": self.credit,
            "rollout": self.rollout,
            "update": self.update,
            **{f"weight.{k}": v for k, v in self.weights.items()},
            **{f"reward.{k}": v for k, v in (*self.shapes.items(), *self.step_rewards.items(), *self.rewards.items())},
            **{f"signal.{k}": v for k, v in self.signals.items()},
            **{f"objective.{k}": v for k, v in self.terms.items()},
        }
        inner = {k: v for key, part in named.items() for k, v in with_inner(key, part)}
        return {k: v for k, v in inner.items() if hasattr(v, "state_dict") and getattr(v, "remembers", True)}

    def adjust(self, figures: Mapping[str, Any]) -> dict[str, float]:
        """Show every control what the step measured, after its update; gives what they now say, by metric name."""
        known = {k: float(v) for k, v in figures.items() if isinstance(v, (int, float)) and math.isfinite(v)}
        return {name: x for part in controls(self).values() for name, x in part.adjust(known).items()}

    def at(self, step: int) -> dict[str, float]:
        """Give the numbers that have a schedule their values in a step, from 1; gives them by metric name.

        Before `shaped`, in a loop of one's own. Nothing is remembered: a resumed run asks for the same steps.
        """
        now = [(number, number.at(step)) for number in self.scheduled]
        for number, value in now:
            number.set(value)
        return {f"scheduled_{number.key}": value for number, value in now}

    def observe(self, forest: Forest) -> None:
        """Show every part that remembers the step's rollouts."""
        for part in self.parts():
            if hasattr(part, "observe"):
                part.observe(forest)

    def state_dict(self) -> dict[str, Any]:
        return {k: v.state_dict() for k, v in self._remembering().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, part in self._remembering().items():
            part.load_state_dict(state[name])

    def tensors(self) -> dict[str, Tensor]:
        """What the signal parts own, by "signal/NAME/..."."""
        return {f"signal/{k}/{n}": x for k, part in self.signals.items() for n, x in part.tensors().items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`; other names are passed over."""
        for name, part in self.signals.items():
            own = f"signal/{name}/"
            part.load_tensors({k.removeprefix(own): x for k, x in tensors.items() if k.startswith(own)})

    def fill(self, **values: Any) -> Method:
        """A copy in which fields left None are filled (`horizon`, `max_length`), wherever a part has them, and parts
        that remember have nothing to remember yet."""
        moved, made = {id(number.part) for number in self.scheduled}, dict[int, Any]()
        for number in self.scheduled:  # parts are made with it: what they need is settled then
            number.set(number.schedule.largest)

        def filled(part: Any) -> Any:
            new = made[id(part)] = renewed(part)
            return new

        def renewed(part: Any) -> Any:
            if not dataclasses.is_dataclass(part) or isinstance(part, type):
                return part
            changes = {k: v for k, v in values.items() if getattr(part, k, part) is None}
            options = getattr(part, "options", {})
            if unfilled := {k: v for k, v in values.items() if options.get(k, v) is None}:
                changes["options"] = {**options, **unfilled}
            if isinstance(summands := getattr(part, "parts", None), tuple):
                changes["parts"] = tuple(filled(p) for p in summands)
            for name, inner in _inner(part):
                if (own := filled(inner)) is not inner:
                    changes[name] = own
            anew = changes or hasattr(part, "state_dict") or id(part) in moved
            return dataclasses.replace(part, **changes) if anew else part

        def mapped(parts: Mapping[str, Any]) -> dict[str, Any]:
            return {k: filled(v) for k, v in parts.items()}

        out = dataclasses.replace(
            self,
            credit=filled(self.credit),
            weights=mapped(self.weights),
            terms=mapped(self.terms),
            rollout=filled(self.rollout),
            shapes=mapped(self.shapes),
            step_rewards=mapped(self.step_rewards),
            rewards=mapped(self.rewards),
            signals=mapped(self.signals),
            update=filled(self.update),
        )
        total = {"total_steps": values.get("total_steps")} if "total_steps" in values else {}
        numbers = [dataclasses.replace(s, part=made.get(id(s.part), s.part), **total) for s in self.scheduled]
        object.__setattr__(out, "scheduled", tuple(numbers))
        for made_anew in (self, out):
            made_anew.at(1)
        return out

    def __repr__(self) -> str:
        lines = [f"method {self.name}"]
        for d in self.definitions:
            formula = (self.remains[d.name] or d.formula).replace("\n", "\n" + " " * (len(d.name) + 4))
            lines.append(f"  {d.name}: {formula}")
        stages = (
            "credit",
            "rollout",
            "update",
            "objective",
            "objective.ratio",
            "objective.surrogate",
            "objective.aggregate",
        )
        shown = {k: s for k, s in self.keys.items() if k in stages or s.origin != "default"}
        width = max(len(k) for k in shown)
        return "\n".join([*lines, *(f"  {k:<{width}}  {show(s.value)}  [{s.origin}]" for k, s in shown.items())])


def _fault(name: str, x: Tensor) -> str:
    """Describe what can't be right about values of advantages or of one of their targets; "" where nothing is."""
    if x.numel() and all(math.isfinite(float(end)) for end in x.aminmax()):  # nan comes through
        return ""
    bad = ~x.isfinite() if name == "credit" else x.isinf()  # a target that is nan: none at that token
    return f"{int(bad.sum())} values that are not finite" if bool(bad.any()) else ""


def _scored(forest: Forest) -> tuple[Forest, Tensor]:
    """The forest of the scored trajectories and their entries."""
    if bool(forest.scored.all()):
        return forest, torch.arange(forest.n_entries)
    return forest.select(forest.scored), forest.entries_of(forest.scored)
