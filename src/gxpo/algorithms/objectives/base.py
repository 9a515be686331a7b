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
from gxpo.forest.reshape import pieces_of
from gxpo.parts.definition import kind_of, show
from gxpo.parts.functions import expect, naming
from gxpo.parts.ranges import Part
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals, Term

COUPLES = ("token", "trajectory", "group", "step")  # from narrow to wide
AGGREGATES = ("token_mean", "sequence_mean", "sequence_sum")

Evaluated = tuple[Tensor, dict[str, float]]  # a term's value on this batch, and its metrics by name


class TermPart(Part, ABC):
    """Base class of loss terms: frozen dataclasses whose `__call__` gives a scalar to minimise, in the dtype of
    `policy.logprob`, and metrics by name, which carry no gradient.

    A term is one function of the whole optimiser step, L(x), x the policy's outputs on all of P. `weight` [P] is the
    product of the weight parts and of the trajectories' own `forest.weight`; a term that importance weights do not
    concern (KL, entropy) reads `forest.weight` instead.

    couples   "token" | "trajectory" | "group" | "step": which entries of x may influence each other's derivative
    outputs   policy outputs that it reads, gradient included: `Output`s, or their names ("logprob", "entropy")
    needs     signals it reads
    constants signals [P, ...] that the learner computes some of its outputs with ("divergence@A": the teacher's)
    requires  what the rollouts must carry
    reads_credit  False for a term that reads outcomes or verdicts instead
    """

    slot = "objective"
    reads_credit: bool = True
    couples: str = "token"
    outputs: tuple[str, ...] = ("logprob",)
    needs: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    learns_from_equal_groups: bool = False

    @abstractmethod
    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        raise NotImplementedError

    @abstractmethod
    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Tokens whose policy outputs the term reads, [P] bool; the others may hold anything, nan included."""
        raise NotImplementedError

    def adapt_to(self, policy: Any, weights: Mapping[str, Any]) -> Any:
        """The term as it is when added to a policy term and under these weight parts; ConfigError if it can't be."""
        return self

    def metrics(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals
    ) -> Mapping[str, float]:
        """Metrics by name, for a term whose `__call__` returns the scalar alone."""
        return {}

    def __add__(self, other: Term) -> TermSum:
        return TermSum(_summands(self) + _summands(other))

    def __radd__(self, other: Term) -> TermSum:
        return TermSum(_summands(other) + _summands(self))


def evaluate(
    term: Term, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
) -> Evaluated:
    """Evaluate a term: value and metrics, the latter from its `metrics` method where it returns a scalar alone."""
    # a user's term may return the scalar alone, or a pair; its mistakes are reported with the term's name
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
    is_counted_P: Tensor,
    mode: str,
    horizon: float | None = None,
    token: Tensor | None = None,
) -> Tensor:
    """Per-token coefficients c [P] float64 of the aggregated loss sum_p c_p l_p; 0 for tokens that are not counted.

    trajectory    [P] which trajectory each entry belongs to
    is_counted_P  [P] bool, the trainable entries; a trajectory without any is not counted
    mode          "token_mean"     sum l / number of entries
                  "sequence_mean"  mean over trajectories of the mean over their entries      (GRPO)
                  "sequence_sum"   mean over trajectories of their sum / `horizon`            (Dr. GRPO)
    horizon       the constant of `sequence_sum`: the longest trainable length a trajectory can have
    token         [P] stored token of each entry, to count a shared token once: its term is the mean of its m entries'
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
    share_P = is_counted_P.to(torch.float64)
    if token is not None:
        # a token stored once and used by m trajectories is 1/m of a token in each of them
        share_P = share_P / _sum_by_id(share_P, token)[token].clamp_min(1)
    if mode == "token_mean":
        return share_P / share_P.sum().clamp_min(1)
    length_R = _sum_by_id(share_P, trajectory)
    divisor_R = length_R if mode == "sequence_mean" else torch.full_like(length_R, float(horizon or 1))
    # trajectories without a counted token are in no mean: they neither count nor divide by 0
    has_tokens_R = length_R > 0
    divisor_R = has_tokens_R.sum().clamp_min(1) * torch.where(has_tokens_R, divisor_R, torch.ones_like(divisor_R))
    coefficient_P = share_P / divisor_R[trajectory]
    # a shared token's term is the mean of its entries: the weight that all its trajectories give it, spread evenly
    return coefficient_P if token is None else share_P * _sum_by_id(coefficient_P, token)[token]


def _sum_by_id(x: Tensor, ids: Tensor) -> Tensor:
    return x.new_zeros(int(ids.max()) + 1 if ids.numel() else 0).index_add_(0, ids, x)


@dataclass(frozen=True)
class TermSum(TermPart):
    """Sum of loss terms, each with its own aggregation; couples as widely as the widest of them.

    A metric that two terms share is NAME for the first and NAME_2 for the second, and so on.
    """

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        if not self.terms:
            raise ConfigError("an objective needs at least one term")
        object.__setattr__(self, "couples", max((t.couples for t in self.terms), key=COUPLES.index))
        for name in ("outputs", "needs", "constants", "requires"):
            union = dict.fromkeys(x for term in self.terms for x in TermPart.hook(term, name))
            object.__setattr__(self, name, tuple(union))

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        values, figures = [], dict[str, float]()
        for term in self.terms:
            value, term_figures = evaluate(term, forest, policy, credit, weight, signals, step)
            values.append(value)
            # two terms of one kind have metrics of one name: neither may overwrite the other's
            for name, x in term_figures.items():
                numbered_names = (f"{name}_{k}" for k in count(2))
                figures[next(n for n in chain((name,), numbered_names) if n not in figures)] = x
        return torch.stack(values).sum(), figures

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        return torch.stack([t.active(forest, credit, weight, signals) for t in self.terms]).any(0)


def _summands(term: Term) -> tuple[Term, ...]:
    return term.terms if isinstance(term, TermSum) else (term,)


# ---------------------------------------------------------------- the policy gradient
Aggregate = Literal["token_mean", "sequence_mean", "sequence_sum"]
_RATIOS: Mapping[str, Any] = {"token": Token, "sequence": kind_of(sequence), "turn": kind_of(turn)}


@torch.no_grad()
def credit_above_median(forest: Forest, credit_P: Tensor) -> Tensor:
    """Advantage less its group's median, [P] float64: the median of the compared trajectories' mean advantages.

    For advantages (r - c) / s of outcomes r this is (r - median of r) / s, whatever the centre c; in a group of one it
    is the advantage itself. Exactly 0 within 1e-12 of the largest advantage.
    """
    credit_P = credit_P.to(torch.float64)
    mean_credit_P = grouped.mean(credit_P, forest.path_trajectory)
    mean_credit_R = torch.zeros(forest.n_trajectories, dtype=torch.float64)
    mean_credit_R[forest.path_trajectory] = mean_credit_P
    has_tokens_R = torch.zeros(forest.n_trajectories, dtype=torch.bool)
    has_tokens_R[forest.path_trajectory] = True
    # a trajectory without tokens has no mean advantage, so it has no say in the median
    group, counted_R = forest.ids("group", axis="R"), forest.compared & has_tokens_R
    median_R = torch.where(grouped.count(group, counted_R) > 1, grouped.median(mean_credit_R, group, counted_R), 0.0)
    standing_P = credit_P - forest.to_path(median_R, "R")
    # the mean over a trajectory's tokens has rounded, and the median member must be exactly at 0
    rounding = grouped.DEGENERATE * float(credit_P.abs().max()) if len(credit_P) else 0.0
    return torch.where(standing_P.abs() > rounding, standing_P, 0.0)


class _ActiveTokens(NamedTuple):
    """Surrogate inputs of the active tokens, with the aggregation's weight of each.

    coefficient  [n] factor of the token's loss: aggregation times weight
    inputs       columns [n] that the surrogate reads
    has_ratio    [n] bool; the others get the `shaped` loss, because their rollout policy is unknown
    """

    coefficient: Tensor
    inputs: Entries
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
        # a shared token, and one without a ratio, have no meaning in a ratio over several tokens
        narrow = isinstance(self.ratio, Token) and self.surrogate.couples == "token"
        for setting, is_on in (
            ("dedup_shared_tokens", self.dedup_shared_tokens),
            ("on_unknown_behaviour 'shaped'", self.on_unknown_behaviour == "shaped"),
        ):
            if is_on and not narrow:
                raise ConfigError(
                    f"objective.{setting} works with objective.ratio 'token' only, and surrogates that look at single "
                    "tokens: set one of the two"
                )
        object.__setattr__(self, "couples", max(self._level.couples, self.surrogate.couples, key=COUPLES.index))
        object.__setattr__(self, "outputs", tuple(dict.fromkeys(("logprob", *self.surrogate.outputs))))

    @property
    def read_scope(self) -> str:
        """Context read with a token of non-zero advantage: "token" (nothing more), its "trajectory", or the "step"."""
        return max(self._level.couples, self.surrogate.beside or self.surrogate.couples, key=COUPLES.index)

    @property
    def _level(self) -> Ratio:
        assert isinstance(self.ratio, Ratio)
        return self.ratio

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        x = self._entries(forest, policy, credit, weight)
        # a token of coefficient or advantage 0 adds nothing, but 0 times an overflowed ratio would be nan
        has_no_effect = (x.coefficient == 0) | (x.inputs.credit == 0)
        overflows = has_no_effect & x.inputs.ratio.isinf()
        inputs = replace(x.inputs, ratio=torch.where(overflows, torch.ones_like(x.inputs.ratio), x.inputs.ratio))
        with naming("surrogate", self.surrogate, name=show):
            loss = self.surrogate.loss(inputs)
        expect(loss, inputs.ratio.shape, "surrogate", self.surrogate, "entry of x", name=show)
        if not bool(x.has_ratio.all()):
            loss = torch.where(x.has_ratio, loss, shaped(x.inputs.logprob, x.inputs.credit, self.shaping_gamma))
        # selected, not multiplied: the loss of a token of coefficient 0 may be infinite
        value = torch.where(x.coefficient == 0, torch.zeros_like(loss), x.coefficient * loss).sum()
        return value, self._figures(forest, x)

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of non-zero advantage and weight; where tokens are coupled, all those of the trajectory (of
        the step)."""
        trainable_P = forest.path_trainable
        has_gradient_P = trainable_P & (credit != 0) & (weight != 0)
        if self.read_scope == "token":
            return has_gradient_P
        if self.read_scope == "step":
            return trainable_P if bool(has_gradient_P.any()) else has_gradient_P
        has_gradient_R = torch.zeros(forest.n_trajectories, dtype=torch.bool)
        has_gradient_R[forest.path_trajectory[has_gradient_P]] = True
        return trainable_P & forest.to_path(has_gradient_R, "R")

    def _entries(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> _ActiveTokens:
        # ratio: the surrogate may change log-ratios before their level is taken (GMPO clips tokens, then averages)
        trainable, trajectory = forest.path_trainable, forest.path_trajectory
        denominator_P = denominator(policy, trainable, self.ratio_over, self.on_unknown_behaviour)
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        logprob, advantage = policy.logprob[entries], credit[entries].to(policy.logprob)
        log_ratio, owner, step = logprob - denominator_P[entries], trajectory[entries], forest.path_step[entries]
        with naming("ratio", self._level, name=show):
            piece = None if self._level.couples == "token" else pieces_of(forest).piece[entries]
            log_level = self._level.level(self.surrogate.before(log_ratio, advantage), owner, step, piece)
        expect(log_level, log_ratio.shape, "ratio", self._level, "token that is trained", name=show)
        # what only some surrogates read is computed for those alone
        entropy = None
        if "entropy" in self.surrogate.outputs:
            if policy.entropy is None:
                raise MissingSignal("this objective's surrogate needs the policy's entropy: give it as `entropy`")
            entropy = policy.entropy[entries].to(logprob)
        # "shaped" tokens have no ratio even where a proximal policy would give one: their rollout policy is unknown
        has_ratio = torch.ones_like(entries, dtype=torch.bool)
        if self.on_unknown_behaviour == "shaped":
            has_ratio = ~policy.behaviour_logprob[entries].isnan()
        median_gap = (
            credit_above_median(forest, credit)[entries].to(logprob) if self.surrogate.couples == "group" else None
        )
        ratio = ratio_of(log_level)
        below = denominator_P[entries]
        inputs = Entries(logprob, below, log_ratio, ratio, advantage, owner, step, entropy, log_level, median_gap)
        # aggregation: tokens that the surrogate leaves out are in no denominator, those of weight 0 are
        out = self.surrogate.left_out(inputs)
        counted_P = trainable if out is None else trainable.index_fill(0, entries[out], False)
        token_ids_P = forest.path_token if self.dedup_shared_tokens else None
        coefficient_P = coefficients(trajectory, counted_P, self.aggregate, self.horizon, token_ids_P)
        return _ActiveTokens((coefficient_P * weight.to(coefficient_P))[entries].to(logprob), inputs, has_ratio)

    @torch.no_grad()
    def inputs(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> tuple[Tensor, Entries]:
        """Indices [n] into P of the active tokens, and the surrogate's inputs at them."""
        places = self.active(forest, credit, weight).nonzero().squeeze(1)
        return places, self._entries(forest, policy, credit, weight).inputs

    @torch.no_grad()
    def is_cut(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> Tensor:
        """Tokens whose gradient the surrogate cuts, [P] bool: the clipped ones that have a ratio."""
        x = self._entries(forest, policy, credit, weight)
        places = self.active(forest, credit, weight).nonzero().squeeze(1)
        return torch.zeros_like(forest.path_trainable).index_copy(
            0, places, self.surrogate.clipped(x.inputs) & x.has_ratio
        )

    @torch.no_grad()
    def _figures(self, forest: Forest, x: _ActiveTokens) -> dict[str, float]:
        """Metrics of the ratio and of its clip.

        clip_fraction  of all trainable tokens, those whose gradient the surrogate cuts
        approx_kl      mean of rho - 1 - log rho over the active tokens (k3 of the ratio's denominator to the policy)
        ratio_max      largest ratio among the active entries, at the ratio's level
        on_policy      1 where every active ratio is exactly 1, so that no clip can bind
        shaped_share   under "shaped": of the active entries, those that have no ratio (they are in no other figure)
        """
        shares = {}
        if self.on_unknown_behaviour == "shaped":
            shares["shaped_share"] = float((~x.has_ratio).sum()) / max(1, x.has_ratio.numel())
        # shaped tokens have a log-ratio of 0 by construction, which would dilute every mean
        log_ratio = x.inputs.log_ratio[x.has_ratio]
        if not log_ratio.numel():
            return {"clip_fraction": 0.0, "approx_kl": 0.0, "ratio_max": 1.0, "on_policy": 1.0, **shares}
        is_clipped_P = self.surrogate.clipped(x.inputs) & x.has_ratio
        return {
            "clip_fraction": float(is_clipped_P.sum()) / int(forest.path_trainable.sum()),
            "approx_kl": float((log_ratio.expm1() - log_ratio).mean()),
            "ratio_max": float(x.inputs.ratio[x.has_ratio].max()),
            "on_policy": float(bool((log_ratio == 0).all())),
            **shares,
            **self.surrogate.metrics(x.inputs),
        }
