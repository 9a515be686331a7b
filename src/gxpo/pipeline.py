"""A composed method at work on a forest: credit, weights, objective, and what it asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gxpo.errors import GxpoError
from gxpo.forest import Forest
from gxpo.keys import Definition, Stated, show
from gxpo.protocols import PolicyTokens
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
    kl_reward: Any = None  # a `KLReward`, where the KL is part of the reward
    run_keys: Mapping[str, Stated] = field(default_factory=dict)

    # ------------------------------------------------------------ what it asks for
    def _parts(self) -> list[Any]:
        parts = [
            self.credit,
            *self.weights.values(),
            *self.terms.values(),
            self.rollout,
            *self.rewards.values(),
            self.update,
        ]
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
            raise GxpoError(
                f"credit {show(self.credit)} gave shape {tuple(credit.shape)}; a forest of {sub.n_entries} "
                "path tokens needs one value for each (use forest.to_path)"
            )
        if not bool(credit.isfinite().all()):
            raise GxpoError(
                f"credit {show(self.credit)} gave {int((~credit.isfinite()).sum())} values that are not finite"
            )
        out[entries] = credit.detach().to(torch.float64)
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
        held = Signals.of(forest, signals).index(entries, forest.n_entries)
        for name, part in self.weights.items():
            with torch.no_grad():
                factor = part(sub, credit, held, step).detach().to(torch.float64)
            if not bool((factor.isfinite() & (factor >= 0)).all()):
                raise GxpoError(f"weight {name!r} gave values that are negative or not finite")
            weight = weight * factor
        out[entries] = weight
        return out

    def objective(
        self,
        forest: Forest,
        policy: PolicyTokens,
        advantages: Tensor,
        weight: Tensor,
        signals: Mapping[str, Any] | None = None,
        step: int = 0,
    ) -> Tensor:
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
        named = {
            "credit": self.credit,
            "rollout": self.rollout,
            "update": self.update,
            **{f"weight.{k}": v for k, v in self.weights.items()},
            **{f"reward.{k}": v for k, v in self.rewards.items()},
            **{f"objective.{k}": v for k, v in self.terms.items()},
        }
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
            if not dataclasses.is_dataclass(part) or isinstance(part, type):
                return part
            empty = {k: v for k, v in values.items() if getattr(part, k, part) is None}
            return dataclasses.replace(part, **empty) if empty else part

        def mapped(parts: Mapping[str, Any]) -> dict[str, Any]:
            return {k: filled(v) for k, v in parts.items()}

        return dataclasses.replace(
            self,
            credit=filled(self.credit),
            weights=mapped(self.weights),
            terms=mapped(self.terms),
            rollout=filled(self.rollout),
            rewards=mapped(self.rewards),
            update=filled(self.update),
        )

    def __repr__(self) -> str:
        lines = [f"method {self.name}"]
        lines += [f"  {d.name}: {d.formula}" for d in self.definitions]
        stages = ("credit", "rollout", "update", "objective.ratio", "objective.gate", "objective.aggregate")
        shown = {k: s for k, s in self.keys.items() if k in stages or s.origin != "default"}
        width = max(len(k) for k in shown)
        return "\n".join([*lines, *(f"  {k:<{width}}  {show(s.value)}  [{s.origin}]" for k, s in shown.items())])


def _scored(forest: Forest) -> tuple[Forest, Tensor]:
    """The forest of the scored trajectories and their entries."""
    if bool(forest.scored.all()):
        return forest, torch.arange(forest.n_entries)
    return forest.select(forest.scored), forest.entries_of(forest.scored)
