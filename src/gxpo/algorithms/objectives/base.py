"""Loss terms: their base class, aggregation over tokens and trajectories, sums, and the policy-gradient loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from gxpo.algorithms.objectives.surrogate import (
    Clip,
    Entries,
    Positive,
    Ratio,
    Surrogate,
    Token,
    denominator,
    ratio_of,
    sequence,
    shaped,
    turn,
)
from gxpo.base.errors import ConfigError, GxpoError, MissingSignal
from gxpo.forest import grouped
from gxpo.parts.definition import kind_of, show
from gxpo.parts.functions import expect, naming
from gxpo.parts.ranges import Part
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals, Term

COUPLES = ("token", "trajectory", "group", "step")  # from narrow to wide
AGGREGATES = ("token_mean", "sequence_mean", "sequence_sum")

Evaluated = tuple[Tensor, dict[str, float]]  # what a term is on this batch, and its figures by metric name


class TermPart(Part, ABC):
    """Base class of loss terms: frozen dataclasses whose `__call__` gives a scalar to minimise, in the dtype of
    `policy.logprob`, and metrics by name, which carry no gradient.

    A term is one function of the whole optimiser step, L(x), x the policy's outputs on all of P. `weight` [P] is the
    product of the weight parts and of the trajectories' own `forest.weight`; a term that importance weights do not
    concern (KL, entropy) reads `forest.weight` instead.

    couples   "token" | "trajectory" | "group" | "step": which entries of x may influence each other's derivative
    outputs   policy outputs that it reads, gradient included: `Output`s, or their names ("logprob", "entropy")
    needs     signals it reads
    given     signals [P, ...] that the learner makes some of its outputs with ("divergence@A": the teacher's)
    requires  what the rollouts must carry
    reads_credit  False for a term that reads outcomes or verdicts instead
    """

    slot = "objective"
    reads_credit: bool = True
    couples: str = "token"
    outputs: tuple[str, ...] = ("logprob",)
    needs: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    learns_from_equal_groups: bool = False

    @abstractmethod
    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        raise NotImplementedError

    @abstractmethod
    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Tokens whose outputs the term reads, [P] bool; the others may hold anything, nan included."""
        raise NotImplementedError

    def metrics(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals
    ) -> Mapping[str, float]:
        """Figures by name, where `__call__` gives a scalar alone."""
        return {}

    def __add__(self, other: Term) -> TermSum:
        return TermSum(_summands(self) + _summands(other))

    def __radd__(self, other: Term) -> TermSum:
        return TermSum(_summands(other) + _summands(self))


def evaluate(
    term: Term, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
) -> Evaluated:
    """Value and metrics of a term; where it returns a scalar alone they come from its `metrics`, if it has any."""
    with naming("term", term, name=show):
        output = term(forest, policy, credit, weight, signals, step)
    if isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], Mapping):
        return expect(output[0], (), "term", term, "", name=show), dict(output[1])
    value: Tensor = expect(output, (), "term", term, "", name=show)
    with torch.no_grad():
        return value, dict(TermPart.hook(term, "metrics")(forest, policy, credit, weight, signals))


@torch.no_grad()
def coefficients(
    trajectory: Tensor,
    counted: Tensor,
    mode: str,
    horizon: float | None = None,
    token: Tensor | None = None,
) -> Tensor:
    """Coefficients c [P] float64 such that sum_p c_p l_p is the aggregated loss; 0 for tokens that are not counted.

    trajectory  [P] which trajectory each entry belongs to
    counted     [P] bool, the trainable entries; a trajectory without any is not counted
    mode        "token_mean"     sum l / number of entries
                "sequence_mean"  mean over trajectories of the mean over their entries      (GRPO)
                "sequence_sum"   mean over trajectories of their sum / `horizon`            (Dr. GRPO)
    horizon     the constant of `sequence_sum`: the longest trainable length a trajectory can have
    token       [P] stored token of each entry, to count a shared token once: its term is the mean of its m entries'
                terms; it counts once in `token_mean` and 1/m in each of its m trajectories' means or sums

    The numerator's mask is the denominator's. Weights multiply the losses and change no denominator; padding and
    micro-batches do not exist here. Raises GxpoError where `sequence_sum` has no horizon.
    """
    if mode not in AGGREGATES:
        raise ConfigError(f"objective.aggregate is {mode!r}; it is one of {', '.join(AGGREGATES)}")
    if mode == "sequence_sum" and (horizon is None or not horizon > 0):
        raise GxpoError(
            f"objective.horizon is {horizon}, and objective.aggregate 'sequence_sum' divides by it: set it to the "
            "longest trainable length a trajectory can have, in tokens"
        )
    share = counted.to(torch.float64)  # how much of itself a token is in each of its trajectories
    if token is not None:
        share = share / _totals(share, token)[token].clamp_min(1)
    if mode == "token_mean":
        return share / share.sum().clamp_min(1)
    width = _totals(share, trajectory)
    divisor = width if mode == "sequence_mean" else torch.full_like(width, float(horizon or 1))
    held = (width > 0).sum().clamp_min(1) * torch.where(width > 0, divisor, torch.ones_like(divisor))
    part = share / held[trajectory]
    # a shared token's term is the mean of its entries: the weight that all its trajectories give it, spread evenly
    return part if token is None else share * _totals(part, token)[token]


def _totals(x: Tensor, ids: Tensor) -> Tensor:
    return x.new_zeros(int(ids.max()) + 1 if ids.numel() else 0).index_add_(0, ids, x)


@dataclass(frozen=True)
class TermSum(TermPart):
    """Sum of loss terms, each with its own aggregation; couples as widely as the widest of them.

    A figure that a second term also has is called NAME_2 there, and so on.
    """

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        if not self.terms:
            raise ConfigError("an objective needs at least one term")
        object.__setattr__(self, "couples", max((t.couples for t in self.terms), key=COUPLES.index))
        for name in ("outputs", "needs", "given", "requires"):
            asked = dict.fromkeys(x for term in self.terms for x in TermPart.hook(term, name))
            object.__setattr__(self, name, tuple(asked))

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        values, figures = [], dict[str, float]()
        for term in self.terms:
            value, own = evaluate(term, forest, policy, credit, weight, signals, step)
            values.append(value)
            for name, x in own.items():
                numbered = (f"{name}_{k}" for k in count(2))
                figures[next(n for n in chain((name,), numbered) if n not in figures)] = x
        return torch.stack(values).sum(), figures

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        return torch.stack([t.active(forest, credit, weight, signals) for t in self.terms]).any(0)


def _summands(term: Term) -> tuple[Term, ...]:
    return term.terms if isinstance(term, TermSum) else (term,)


# ---------------------------------------------------------------- the policy gradient
Aggregate = Literal["token_mean", "sequence_mean", "sequence_sum"]
_RATIOS: Mapping[str, Any] = {"token": Token, "sequence": kind_of(sequence), "turn": kind_of(turn)}


@torch.no_grad()
def standing(forest: Forest, credit: Tensor) -> Tensor:
    """Advantage relative to the group's median, [P] float64: that of the compared trajectories' mean advantages.

    For advantages (r - c) / s of outcomes r it is (r - median of r) / s, whatever the centre c; of a group of one, the
    advantage. Exactly 0 within 1e-12 of the largest advantage: a mean over tokens has rounded.
    """
    credit = credit.to(torch.float64)
    own = grouped.mean(credit, forest.path_trajectory)
    each = torch.zeros(forest.n_trajectories, dtype=torch.float64)
    each[forest.path_trajectory] = own
    there = torch.zeros(forest.n_trajectories, dtype=torch.bool)
    there[forest.path_trajectory] = True
    group, counts = forest.ids("group", axis="R"), forest.compared & there
    middle = torch.where(grouped.count(group, counts) > 1, grouped.median(each, group, counts), 0.0)
    found = credit - forest.to_path(middle, "R")
    rounding = grouped.DEGENERATE * float(credit.abs().max()) if len(credit) else 0.0
    return torch.where(found.abs() > rounding, found, 0.0)


class _Active(NamedTuple):
    """The active entries, what multiplies the loss of each, and which of them have a ratio (the others are shaped,
    because their rollout policy is unknown)."""

    coefficient: Tensor
    seen: Entries
    has_ratio: Tensor


@part("policy_gradient", stage="term")
@dataclass(frozen=True)
class PolicyGradient(TermPart):
    """Policy-gradient loss, sum_p c_p w_p f(rho_p, A_p): c the aggregation, w the weight, f the surrogate, rho the
    importance ratio, A the advantage.

    ratio                 at what level it is taken, a `Ratio` or a name: "token", "sequence" (geometric mean over the
                          trajectory, in GSPO-token form), "turn" (over the step), or another part's
    surrogate             Clip | DualClip | LogClip | Truncate | Unclipped | ...
    aggregate             "token_mean" | "sequence_mean" | "sequence_sum" (needs `horizon`)
    dedup_shared_tokens        a stored token that several trajectories share counts once; token ratios only
    ratio_over            "proximal" (where the step has one, else behaviour) | "behaviour"
    on_unknown_behaviour  "error" | "one" (both where the ratio's denominator is nan) | "shaped": entries whose
                          behaviour log-prob is nan, with a proximal policy or without, have no ratio and no clip; their
                          loss is -A pi / (pi + shaping_gamma) (token ratios only)
    shaping_gamma         of "shaped", in units of probability

    With these settings this is
      PPO, GRPO   token, Clip(0.2, 0.2), sequence_mean        arXiv 1707.06347, 2402.03300
      DAPO        token, Clip(0.2, 0.28), token_mean          arXiv 2503.14476
      Dr. GRPO    token, Clip(0.2, 0.2), sequence_sum         arXiv 2503.20783
      GSPO        sequence, Clip(3e-4, 4e-4), sequence_mean   arXiv 2507.18071
      GMPO        sequence, LogClip(0.4, 0.4), sequence_mean  arXiv 2507.20673
      CISPO       token, Truncate(1.28), token_mean           arXiv 2506.13585
      LUFFY       token, Unclipped, sequence_sum, "shaped"    arXiv 2504.14945
      LUSPO       sequence, Clip(2e-3, 2.5e-3), sequence_sum with horizon 1   arXiv 2602.05261
      TOPR        SequenceSum, Tapered, sequence_sum with horizon 1           arXiv 2503.14286

    Order: surrogate, then weights, then aggregation; weights never change a denominator. Tokens of zero advantage or
    weight stay in the denominators; those that the surrogate leaves out (`Surrogate.left_out`) do not.
    """

    ratio: Ratio | Literal["token", "sequence", "turn"] = "token"
    surrogate: Surrogate = field(default_factory=Clip)
    aggregate: Aggregate = "sequence_mean"
    horizon: float | None = None
    dedup_shared_tokens: bool = False
    ratio_over: Literal["proximal", "behaviour"] = "proximal"
    on_unknown_behaviour: Literal["error", "one", "shaped"] = "error"
    shaping_gamma: Positive = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.ratio, str):
            object.__setattr__(self, "ratio", _RATIOS[self.ratio]())
        narrow = isinstance(self.ratio, Token) and self.surrogate.couples == "token"
        for what, on in (
            ("dedup_shared_tokens", self.dedup_shared_tokens),
            ("on_unknown_behaviour 'shaped'", self.on_unknown_behaviour == "shaped"),
        ):
            if on and not narrow:
                raise ConfigError(
                    f"objective.{what} works with objective.ratio 'token' only, and surrogates that look at single "
                    "tokens: set one of the two"
                )
        object.__setattr__(self, "couples", max(self._level.couples, self.surrogate.couples, key=COUPLES.index))
        object.__setattr__(self, "outputs", tuple(dict.fromkeys(("logprob", *self.surrogate.outputs))))

    @property
    def beside(self) -> str:
        """What must be read besides a token of non-zero advantage: nothing ("token"), its trajectory, or the step."""
        return max(self._level.couples, self.surrogate.beside or self.surrogate.couples, key=COUPLES.index)

    @property
    def _level(self) -> Ratio:
        assert isinstance(self.ratio, Ratio)
        return self.ratio

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        x = self._entries(forest, policy, credit, weight)
        silent = (x.coefficient == 0) | (x.seen.credit == 0)
        overflown = silent & x.seen.ratio.isinf()  # they count for nothing, and 0 times infinity would be nan
        seen = replace(x.seen, ratio=torch.where(overflown, torch.ones_like(x.seen.ratio), x.seen.ratio))
        with naming("surrogate", self.surrogate, name=show):
            loss = self.surrogate.loss(seen)
        expect(loss, seen.ratio.shape, "surrogate", self.surrogate, "entry of x", name=show)
        if not bool(x.has_ratio.all()):
            loss = torch.where(x.has_ratio, loss, shaped(x.seen.logprob, x.seen.credit, self.shaping_gamma))
        value = torch.where(x.coefficient == 0, torch.zeros_like(loss), x.coefficient * loss).sum()
        return value, self._figures(forest, x)

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of non-zero advantage and weight; where tokens are coupled, all of such a trajectory (all of
        the step)."""
        trainable = forest.path_trainable
        found = trainable & (credit != 0) & (weight != 0)
        if self.beside == "token":
            return found
        if self.beside == "step":
            return trainable if bool(found.any()) else found
        reached = torch.zeros(forest.n_trajectories, dtype=torch.bool)
        reached[forest.path_trajectory[found]] = True
        return trainable & forest.to_path(reached, "R")

    def _entries(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> _Active:
        trainable, trajectory = forest.path_trainable, forest.path_trajectory
        below = denominator(policy, trainable, self.ratio_over, self.on_unknown_behaviour)
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        logprob, given = policy.logprob[entries], credit[entries].to(policy.logprob)
        log_ratio, owner, step = logprob - below[entries], trajectory[entries], forest.path_step[entries]
        with naming("ratio", self._level, name=show):
            log_level = self._level.level(self.surrogate.before(log_ratio, given), owner, step)
        expect(log_level, log_ratio.shape, "ratio", self._level, "token that is trained", name=show)
        entropy = None
        if "entropy" in self.surrogate.outputs:
            if policy.entropy is None:
                raise MissingSignal("this objective's surrogate needs the policy's entropy: give it as `entropy`")
            entropy = policy.entropy[entries].to(logprob)
        known = torch.ones_like(entries, dtype=torch.bool)
        if self.on_unknown_behaviour == "shaped":
            known = ~policy.behaviour_logprob[entries].isnan()
        above = standing(forest, credit)[entries].to(logprob) if self.surrogate.couples == "group" else None
        ratio = ratio_of(log_level)
        seen = Entries(logprob, below[entries], log_ratio, ratio, given, owner, step, entropy, log_level, above)
        out = self.surrogate.left_out(seen)
        counted = trainable if out is None else trainable.index_fill(0, entries[out], False)
        shared = forest.path_token if self.dedup_shared_tokens else None
        scale = coefficients(trajectory, counted, self.aggregate, self.horizon, shared)
        return _Active((scale * weight.to(scale))[entries].to(logprob), seen, known)

    @torch.no_grad()
    def inputs(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> tuple[Tensor, Entries]:
        """Places [n] in the path of the tokens that are read, and the surrogate's inputs at them."""
        places = self.active(forest, credit, weight).nonzero().squeeze(1)
        return places, self._entries(forest, policy, credit, weight).seen

    @torch.no_grad()
    def cut(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> Tensor:
        """Tokens whose gradient the surrogate cuts, [P] bool."""
        x = self._entries(forest, policy, credit, weight)
        places = self.active(forest, credit, weight).nonzero().squeeze(1)
        return torch.zeros_like(forest.path_trainable).index_copy(
            0, places, self.surrogate.clipped(x.seen) & x.has_ratio
        )

    @torch.no_grad()
    def _figures(self, forest: Forest, x: _Active) -> dict[str, float]:
        """clip_fraction  of all trainable tokens, those whose gradient the surrogate cuts
        approx_kl      mean of rho - 1 - log rho over the active tokens (k3 of the ratio's denominator to the policy)
        ratio_max      largest ratio among the active entries, at the ratio's level
        on_policy      1 where every active ratio is exactly 1, so that no clip can bind
        shaped_share   under "shaped": of the active entries, those that have no ratio (they are in no other figure)
        """
        shares = {}
        if self.on_unknown_behaviour == "shaped":
            shares["shaped_share"] = float((~x.has_ratio).sum()) / max(1, x.has_ratio.numel())
        log_ratio = x.seen.log_ratio[x.has_ratio]
        if not log_ratio.numel():
            return {"clip_fraction": 0.0, "approx_kl": 0.0, "ratio_max": 1.0, "on_policy": 1.0, **shares}
        clipped = self.surrogate.clipped(x.seen) & x.has_ratio
        return {
            "clip_fraction": float(clipped.sum()) / int(forest.path_trainable.sum()),
            "approx_kl": float((log_ratio.expm1() - log_ratio).mean()),
            "ratio_max": float(x.seen.ratio[x.has_ratio].max()),
            "on_policy": float(bool((log_ratio == 0).all())),
            **shares,
            **self.surrogate.metrics(x.seen),
        }
