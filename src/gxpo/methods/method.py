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
from gxpo.parts.definition import Definition, SettingValue, show
from gxpo.parts.functions import expect, naming, place_of, title_of
from gxpo.parts.protocols import Output, PolicyTokens
from gxpo.parts.schedule import Scheduled


@dataclass(frozen=True)
class Loss:
    """Result of an objective: `value` to minimise, a scalar in the log-probs' dtype, and `metrics`, named floats."""

    value: Tensor
    metrics: dict[str, float]


def zero_signal_groups(forest: Forest, credit: Tensor) -> Tensor:
    """Find the groups that give no gradient: advantage [P] 0 on every trainable token. [G] bool."""
    group = forest.ids("group", axis="R")
    strength = grouped.max(credit.abs() * forest.path_trainable, forest.ids("trajectory", axis="P"))
    by_trajectory = torch.zeros(forest.n_trajectories, dtype=torch.float64)
    by_trajectory[forest.path_trajectory] = strength
    strongest = torch.zeros(len(set(forest.group)), dtype=torch.float64)
    strongest[group] = grouped.max(by_trajectory, group)
    return strongest == 0


def _inner(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield (field, part) for the surrogate and the control inside a part of the objective."""
    for name in ("surrogate", "control"):
        if dataclasses.is_dataclass(inner := getattr(part, name, None)):
            yield name, inner


def with_inner(key: str, part: Any) -> Iterator[tuple[str, Any]]:
    """Yield (key, part), then (key.FIELD, part) for the parts inside it."""
    yield key, part
    for name, inner in _inner(part):
        yield f"{key}.{name}", inner


def controls(method: Method) -> dict[str, Any]:
    """Return the parts that adapt to each step's figures (`adjust`), by key: of credit, objective and update."""
    parts = {
        k: part
        for name, term in method.terms.items()
        for k, part in with_inner("objective" if name == "policy" else f"objective.{name}", term)
    }
    parts |= {"update": method.update, **dict(with_inner("credit", method.credit))}
    return {k: v for k, v in parts.items() if hasattr(v, "adjust")}


@dataclass(frozen=True, eq=False)
class Method:
    """A composed method, made by `gxpo.method`: the parts of each stage, applied to forests.

    `keys` holds every resolved key with its origin. A step of a training loop of one's own calls `at`, `shaped` and
    `loss`, then `observe` for parts that remember rollouts and `adjust` for coefficients that follow figures.
    """

    name: str
    definitions: tuple[Definition, ...]
    keys: Mapping[str, SettingValue]
    credit: Any
    weights: Mapping[str, Any]
    terms: Mapping[str, Any]
    rollout: Any
    rewards: Mapping[str, Any]
    update: Any
    kl_reward: Any = None  # a `KLReward` where the KL is part of the reward
    shapes: Mapping[str, Any] = field(default_factory=dict)  # replace the outcome, before `rewards` add to it
    signals: Mapping[str, Any] = field(default_factory=dict)  # compute quantities that other parts read by name
    context: str = "trained"  # the context that the policy is evaluated under: see `Forest.in_context`
    run_keys: Mapping[str, SettingValue] = field(default_factory=dict)  # settings of the run that the method states
    segmenter: Any = None  # writes the forest's column `segment`, before any other part reads it
    step_rewards: Mapping[str, Any] = field(default_factory=dict)  # added to the environment's step rewards
    scheduled: tuple[Scheduled, ...] = ()  # numbers of parts that are functions of the step
    sampler: Any = None  # draws tasks by their measured success rates
    likelihood: Any = None  # how the log-probs of a masked model's answers are estimated; None: a causal model's
    recipe: tuple[Mapping[str, SettingValue], str | None] | None = field(default=None, init=False)  # overrides, compat

    # ------------------------------------------------------------ requirements
    def parts(self) -> list[Any]:
        """Return every part of every stage."""
        parts = [
            self.credit,
            *self.weights.values(),
            *self.terms.values(),
            self.rollout,
            *(part for part in (self.segmenter, self.sampler, self.likelihood) if part is not None),
            *self.shapes.values(),
            *self.step_rewards.values(),
            *self.rewards.values(),
            *self.signals.values(),
            self.update,
        ]
        return [*parts, self.kl_reward] if self.kl_reward is not None else parts

    def _collect(self, name: str) -> tuple[str, ...]:
        """Join an attribute of all parts that names things ("needs", "outputs", "requires"), without repeats."""
        return tuple(dict.fromkeys(x for part in self.parts() for x in getattr(part, name, ())))

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Signals that the caller must provide: those that parts read, but for those that its own parts provide."""
        provided = {*self.credit_targets, *(name for part in self.signals.values() for name in part.provides)}
        return tuple(name for name in self._collect("needs") if name not in provided)

    @cached_property
    def credit_targets(self) -> tuple[str, ...]:
        """Names of the targets that the advantage estimator gives the terms: see `CreditPart.targets`."""
        return tuple(CreditPart.hook(self.credit, "provides"))

    @cached_property
    def output_signals(self) -> tuple[str, ...]:
        """Signals that policy outputs are computed with, such as a teacher's log-probs: see `TermPart.constants`."""
        return tuple(dict.fromkeys(n for term in self.terms.values() for n in TermPart.hook(term, "constants")))

    @cached_property
    def reads_texts(self) -> bool:
        """True if one of its own rewards reads the texts of the actions."""
        parts = (*self.shapes.values(), *self.step_rewards.values(), *self.rewards.values())
        return any(RewardPart.hook(part, "reads_texts") for part in parts)

    @cached_property
    def axes(self) -> dict[str, str]:
        """Axes of the signals that its own parts provide, by name, where they are not on P."""
        return {name: axis for part in self.signals.values() for name, axis in part.axes.items()}

    @cached_property
    def requires(self) -> tuple[str, ...]:
        """Features that rollouts or environments must provide, such as snapshots."""
        return self._collect("requires")

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """Policy outputs that the loss reads; log-probs always."""
        return tuple(dict.fromkeys(map(Output, ("logprob", *self._collect("outputs")))))

    @cached_property
    def remains(self) -> dict[str, str]:
        """A line for each method whose formula the caller's settings change, by method; "" where they don't."""
        from gxpo.parts.overrides import remains  # only printing a method needs it

        return {d.name: remains(d, {**self.keys, **self.run_keys}).text for d in self.definitions}

    @property
    def without(self) -> list[str]:
        """Warnings for methods whose published formula is not computed, since the caller's settings replace it."""
        return [f"{name}: {text}" for name, text in self.remains.items() if text]

    @property
    def value_heads(self) -> tuple[str, ...]:
        """Value heads that some part reads or trains: "value", "value@NAME"."""
        return tuple(sorted({x for x in (*self.outputs, *self.needs) if Output(x).kind == "value"}))

    @cached_property
    def reads_credit(self) -> bool:
        """True if some term of the objective reads advantages."""
        return any(TermPart.hook(term, "reads_credit") for term in self.terms.values())

    @property
    def couples(self) -> str:
        """The widest coupling of the objective's terms: how large a unit must be evaluated at once."""
        order = ("token", "trajectory", "group", "step")
        return max((t.couples for t in self.terms.values()), key=order.index)

    # ------------------------------------------------------------ stages on one forest
    def shaped(self, forest: Forest) -> Forest:
        """Apply the method's own rewards (`reward.shape`, `reward.step`, `reward.add`) to scored rollouts.

        Call it before `advantages` and `loss`. The forest notes them, so that none is applied twice; GxpoError for
        rollouts with another method's.
        """
        parts = self.shapes, self.step_rewards, self.rewards
        names = own.keys(*parts) if any(parts) else ()
        if forest.shaped_by == names:
            return forest
        if forest.shaped_by:
            applied = ", ".join(forest.shaped_by)
            raise GxpoError(
                f"{self.name}: the rollouts hold {applied} of another method: shape them as scored by the task"
            )
        return own.apply(forest, *parts) if names else forest

    def _signals_of_scored(self, forest: Forest, signals: Mapping[str, Any] | None) -> Signals:
        """Restrict the signals to the scored trajectories, in whose forest every part works."""
        all_signals = Signals.of(forest, signals, self.axes)
        return all_signals if bool(forest.scored.all()) else all_signals.select(forest, forest.scored)

    def advantages(self, forest: Forest, signals: Mapping[str, Any] | None = None, step: int = 0) -> Tensor:
        """Advantages before weights: [P] float64, detached; exactly 0 for unscored trajectories.

        Outcomes are read as they are, so the method's own rewards have to be in them (`shaped`); a warning names those
        that are missing. A KL penalty in the reward is subtracted before any group statistic.
        """
        parts = self.shapes, self.step_rewards, self.rewards
        if any(parts) and (lacking := own.missing(forest, *parts)):
            warnings.warn(
                f"{self.name} without {', '.join(lacking)}: the rollouts hold the task's rewards alone; "
                "forest = method.shaped(forest) adds the method's own",
                stacklevel=2,
            )
        columns = self._credit_columns(forest, signals, lambda sub, inputs: {"credit": self.credit(sub, inputs, step)})
        return columns["credit"]

    def targets(self, forest: Forest, signals: Mapping[str, Any] | None = None, step: int = 0) -> dict[str, Tensor]:
        """Targets that terms regress to, [P] each by name, from the advantage estimator (`CreditPart.targets`)."""
        if not self.credit_targets:
            return {}
        return self._credit_columns(forest, signals, lambda sub, inputs: self.credit.targets(sub, inputs, step))

    def _credit_columns(
        self,
        forest: Forest,
        signals: Mapping[str, Any] | None,
        compute: Callable[[Forest, Signals], Mapping[str, Tensor]],
    ) -> dict[str, Tensor]:
        """Compute columns [P] of the advantage estimator on the scored trajectories; 0 elsewhere.

        Raises GxpoError for a column of another shape, and for values that are not finite.
        """
        # an unscored trajectory must be in no statistic: the estimator sees a forest without it
        sub, entries = _scored_trajectories(forest)
        sub_signals = self._signals_of_scored(forest, signals)
        empty = torch.zeros(forest.n_entries, dtype=torch.float64)
        if not sub.n_trajectories:
            return dict.fromkeys(("credit", *self.credit_targets), empty)
        # the KL in the reward is part of the outcome, so group means and stds have to contain it
        with torch.no_grad():
            if self.kl_reward is not None:
                sub = self.kl_reward.penalise(sub, sub_signals)
            with naming("credit", self.credit, name=show):
                columns = compute(sub, sub_signals)
        # an estimator may be a user's function: a wrong shape would broadcast silently in the loss
        out = {}
        for name, x in columns.items():
            label = "credit" if name == "credit" else f"{name} of credit"
            expect(x, (sub.n_entries,), label, self.credit, "path token (use forest.to_path)", name=show)
            if fault := _describe_invalid(name, x):
                raise GxpoError(f"{title_of(label, self.credit, name=show)} gave {fault}")
            x = x.detach().to(torch.float64)
            out[name] = x if sub is forest else empty.index_copy(0, entries, x)
        return out

    def token_weights(
        self, forest: Forest, advantages: Tensor, signals: Mapping[str, Any] | None = None, step: int = 0
    ) -> Tensor:
        """Weights of tokens: the trajectories' own times all weight parts; [P] float64, >= 0, and 0 where unscored."""
        sub, entries = _scored_trajectories(forest)
        out = torch.zeros(forest.n_entries, dtype=torch.float64)
        if not sub.n_trajectories:
            return out
        # every part sees the same advantages, never those that an earlier weight has scaled: their order is free
        weight, credit = sub.to_path(sub.weight, "R"), advantages[entries]
        sub_signals = self._signals_of_scored(forest, signals)
        for name, part in self.weights.items():
            with torch.no_grad(), naming(f"weight {name!r}", part):
                output_P = part(sub, credit, sub_signals, step)
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
        """Objective L(x) of a whole optimiser step: the terms' sum, and their figures (clip fraction, KL, ...).

        policy has outputs [P] with their gradient. Unscored trajectories are in no term and no denominator.
        """
        sub, entries = _scored_trajectories(forest)
        dtype = policy.logprob.dtype
        # nothing is scored: 0 with a graph, so that a caller's backward() works
        if not sub.n_trajectories:
            return Loss(policy.logprob.sum() * 0.0, {})
        sub_signals = self._signals_of_scored(forest, signals)
        sub_policy = policy.index(entries)
        args = (sub, sub_policy, advantages[entries].to(dtype), weight[entries].to(dtype), sub_signals, step)
        evaluations = [evaluate(term, *args) for term in self.terms.values()]
        figures = {name: x for _, term_figures in evaluations for name, x in term_figures.items()}
        return Loss(torch.stack([value for value, _ in evaluations]).sum(), figures)

    def objective(self, *args: Any, **kwargs: Any) -> Tensor:
        """Value of `evaluate` alone; the same arguments."""
        return self.evaluate(*args, **kwargs).value

    def metrics(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Figures of `evaluate` alone, without a graph; the same arguments."""
        with torch.no_grad():
            return self.evaluate(*args, **kwargs).metrics

    def active(
        self, forest: Forest, advantages: Tensor, weight: Tensor, signals: Mapping[str, Any] | None = None
    ) -> Tensor:
        """Entries whose outputs some term reads, [P] bool: the others need no forward pass; fewer with the signals."""
        sub, entries = _scored_trajectories(forest)
        out = torch.zeros(forest.n_entries, dtype=torch.bool)
        sub_signals = None if signals is None else self._signals_of_scored(forest, signals)
        for term in self.terms.values() if sub.n_trajectories else ():
            out[entries] |= term.active(sub, advantages[entries], weight[entries], sub_signals)
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
        """Loss of a whole optimiser step with the weights applied, for a training loop of one's own.

        pol         the policy's tokens [P] with their gradient, and the log-probs of the other policies
        advantages  [P] where they are known already, as in a second pass over the same rollouts
        Weights read `pol`'s log-probs as signals; without proximal log-probs the mismatch weight is 1.
        """
        if pol.logprob.shape != (forest.n_entries,):
            raise GxpoError(f"pol.logprob has shape {tuple(pol.logprob.shape)}, not [{forest.n_entries} path tokens]")
        # the caller's signals come before `pol`'s, but for the proximal policy's: the ratio is over `pol`'s, and the
        # mismatch weight has to fit it. The sampler's stand in for unknown ones, which makes that weight 1.
        all_signals = dict(Signals(signals))
        all_signals.setdefault("behaviour_logprob", pol.behaviour_logprob.detach().double())
        proximal = pol.behaviour_logprob if pol.proximal_logprob is None else pol.proximal_logprob
        all_signals["proximal_logprob"] = proximal.detach().double()
        if pol.reference_logprob is not None:
            all_signals.setdefault("reference_logprob", pol.reference_logprob.detach().double())
        credit = self.advantages(forest, all_signals, step) if advantages is None else advantages
        if missing := set(self.credit_targets) - set(all_signals):
            targets = self.targets(forest, all_signals, step)
            all_signals |= {name: targets[name] for name in missing}
        weight = self.token_weights(forest, credit, all_signals, step)
        evaluation = self.evaluate(forest, pol, credit, weight, all_signals, step)
        return Loss(evaluation.value, {"loss": float(evaluation.value.detach()), **evaluation.metrics})

    # ------------------------------------------------------------ state across steps
    def _stateful_parts(self) -> dict[str, Any]:
        """Parts with state for a checkpoint, by key; a part with `remembers = False` has none for now."""
        parts = {
            "credit": self.credit,
            "rollout": self.rollout,
            "update": self.update,
            **{f"weight.{k}": v for k, v in self.weights.items()},
            **{f"reward.{k}": v for k, v in (*self.shapes.items(), *self.step_rewards.items(), *self.rewards.items())},
            **{f"signal.{k}": v for k, v in self.signals.items()},
            **{f"objective.{k}": v for k, v in self.terms.items()},
        }
        inner = {k: v for key, part in parts.items() for k, v in with_inner(key, part)}
        return {k: v for k, v in inner.items() if hasattr(v, "state_dict") and getattr(v, "remembers", True)}

    def adjust(self, figures: Mapping[str, Any]) -> dict[str, float]:
        """Pass a step's figures to every control, after its update; return their new values by metric name."""
        finite_figures = {k: float(v) for k, v in figures.items() if isinstance(v, (int, float)) and math.isfinite(v)}
        return {name: x for part in controls(self).values() for name, x in part.adjust(finite_figures).items()}

    def at(self, step: int) -> dict[str, float]:
        """Set every scheduled number to its value in a step, counted from 1; return the values by metric name.

        Call it before `shaped`. It has no state: a resumed run asks for the same steps.
        """
        values = [(number, number.at(step)) for number in self.scheduled]
        for number, value in values:
            number.set(value)
        return {f"scheduled_{number.key}": value for number, value in values}

    def observe(self, forest: Forest) -> None:
        """Pass a step's rollouts to every part that remembers some of them."""
        for part in self.parts():
            if hasattr(part, "observe"):
                part.observe(forest)

    def state_dict(self) -> dict[str, Any]:
        """State of the parts that remember earlier steps, by key, as JSON; tensors are in `tensors`."""
        return {k: v.state_dict() for k, v in self._stateful_parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, part in self._stateful_parts().items():
            part.load_state_dict(state[name])

    def tensors(self) -> dict[str, Tensor]:
        """Tensors that parts own, such as weights of a trained model: "signal/NAME/...", and "rollout/..."."""
        owners = self._tensor_owners().items()
        return {f"{prefix}{name}": x for prefix, part in owners for name, x in part.tensors().items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore `tensors`; names of other parts are ignored, so that a whole checkpoint can be passed."""
        for prefix, part in self._tensor_owners().items():
            part.load_tensors({k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)})

    def _tensor_owners(self) -> dict[str, Any]:
        parts = {**{f"signal/{name}/": part for name, part in self.signals.items()}, "rollout/": self.rollout}
        return {prefix: part for prefix, part in parts.items() if hasattr(part, "tensors")}

    def fill(self, **values: Any) -> Method:
        """Return a copy without memories in which `values` fill the fields that parts leave None (`horizon`, ...)."""
        scheduled_ids, copies = {id(number.part) for number in self.scheduled}, dict[int, Any]()
        # a part settles what it needs when it is made: a coefficient that begins at 0 and grows must not be taken for
        # one that is off
        for number in self.scheduled:
            number.set(number.schedule.largest)

        def filled(part: Any) -> Any:
            # which copy belongs to which part: schedules have to move the copies
            new = copies[id(part)] = renewed(part)
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
                if (new_inner := filled(inner)) is not inner:
                    changes[name] = new_inner
            # a part with a memory or a scheduled number is copied too, so that two runs of one method share neither
            needs_copy = changes or hasattr(part, "state_dict") or id(part) in scheduled_ids
            return dataclasses.replace(part, **changes) if needs_copy else part

        def mapped(parts: Mapping[str, Any]) -> dict[str, Any]:
            return {k: filled(v) for k, v in parts.items()}

        copy = dataclasses.replace(
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
        # schedules follow their parts into the copy; both methods then begin at step 1, since `largest` was set above
        total = {"total_steps": values.get("total_steps")} if "total_steps" in values else {}
        numbers = [dataclasses.replace(s, part=copies.get(id(s.part), s.part), **total) for s in self.scheduled]
        object.__setattr__(copy, "scheduled", tuple(numbers))
        for composed in (self, copy):
            composed.at(1)
        return copy

    def __repr__(self) -> str:
        lines = [f"method {self.name}"]
        for d in self.definitions:
            formula = (self.remains[d.name] or d.formula).replace("\n", "\n" + " " * (len(d.name) + 4))
            lines.append(f"  {d.name}: {formula}")
        stages = ("credit", "rollout", "update", *(f"objective{x}" for x in ("", ".ratio", ".surrogate", ".aggregate")))
        settings = {k: s for k, s in self.keys.items() if k in stages or s.origin != "default"}
        width = max(len(k) for k in settings)
        return "\n".join([*lines, *(f"  {k:<{width}}  {show(s.value)}  [{s.origin}]" for k, s in settings.items())])


def _describe_invalid(name: str, x: Tensor) -> str:
    """Describe invalid values of advantages, or of one of their targets; "" where all are valid."""
    if x.numel() and all(math.isfinite(float(end)) for end in x.aminmax()):  # aminmax passes nan on
        return ""
    bad = ~x.isfinite() if name == "credit" else x.isinf()  # a target may be nan: no target at that token
    return f"{int(bad.sum())} values that are not finite" if bool(bad.any()) else ""


def _scored_trajectories(forest: Forest) -> tuple[Forest, Tensor]:
    """Return the forest of the scored trajectories, and its entries' positions in the whole forest."""
    if bool(forest.scored.all()):
        return forest, torch.arange(forest.n_entries)
    return forest.select(forest.scored), forest.entries_of(forest.scored)
