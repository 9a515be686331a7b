"""Importance ratios (token, turn, GSPO's sequence) and surrogate losses: PPO clip, detached weights, unclipped.

With rho the ratio and A the advantage, a surrogate is a loss per entry, to be minimised: a function of `Entries`, often
by `clip_loss` (rho held between bounds) or `weighted_loss` (a detached weight on the log-likelihood). `shaped` is the
loss of a token without a ratio, because its rollout policy is unknown.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.base.errors import ConfigError, GxpoError, did_you_mean
from gxpo.parts.functions import UNBOUNDED, FunctionPart, checked_by, expect, place_of, signature
from gxpo.parts.ranges import Part
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.parts.protocols import PolicyTokens

Width = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
AboveOne = Annotated[float, Gt(1)]
Share = Annotated[float, Interval(gt=0, le=1)]


# ---------------------------------------------------------------- ratios
def denominator(
    policy: PolicyTokens, trainable: Tensor, ratio_over: str = "proximal", on_unknown_behaviour: str = "error"
) -> Tensor:
    """Log-probs of the ratio's denominator (the old policy), [P], detached, in the dtype of `policy.logprob`.

    ratio_over            "proximal": the proximal policy where the step has one, else the behaviour policy;
                          "behaviour": the behaviour policy always (objectives made for old data)
    on_unknown_behaviour  for trainable entries where that is nan: "error", or "one": stop_gradient(logprob), so that
                          the ratio is exactly 1 and the gradient is REINFORCE's. "shaped": the same where the
                          rollout policy is unknown (behaviour nan), since such a token has no ratio
                          (see `surrogate.shaped`); "error" elsewhere

    Raises GxpoError with the number of unknown entries. Entries that are not trainable never matter.
    """
    proximal = policy.proximal_logprob if ratio_over == "proximal" else None
    denominator_P = (policy.behaviour_logprob if proximal is None else proximal).detach().to(policy.logprob)
    # a shaped token is unknown by the rollout policy, even where the proximal policy is known
    is_shaped = policy.behaviour_logprob.isnan() & (on_unknown_behaviour == "shaped")
    is_unknown = denominator_P.isnan() & ~is_shaped
    if on_unknown_behaviour != "one" and (missing := int((is_unknown & trainable).sum())):
        kind = "behaviour" if proximal is None else "proximal"
        raise GxpoError(
            f"{missing} of {int(trainable.sum())} trainable tokens have no {kind} log-prob to divide the ratio by: "
            f"record `logprob` for them, or set objective.on_unknown_behaviour to 'one'"
        )
    return torch.where(is_unknown | is_shaped, policy.logprob.detach(), denominator_P)


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]  # torch declares any number of them
        (out,) = ctx.saved_tensors
        return torch.where(slope == 0, torch.zeros_like(out), slope * out)


def ratio_of(log_ratio: Tensor) -> Tensor:
    """Ratio e^log_ratio, with a derivative of exactly 0 where the incoming one is 0.

    A token that a clip cuts or a mask leaves out has no derivative, and 0 times a ratio that has overflowed would be
    nan. Elsewhere the derivative is the ratio, infinite or not.
    """
    return _Exp.apply(log_ratio)


def sequence_ratio(log_ratio: Tensor, trajectory: Tensor) -> Tensor:
    """GSPO-token log-ratio, [n]: log s_{i,t} = stop(mean over trajectory i of log rho) + log rho_t - stop(log rho_t).

    log_ratio   [n] of the trainable entries, all of those of each trajectory present
    trajectory  [n] which trajectory each belongs to

    The value is the geometric mean of the trajectory's token ratios; each token carries its own gradient. Under
    `sequence_mean` and an advantage that is constant over a trajectory, value and gradient are those of GSPO, whose
    ratio is s_i itself; an advantage that varies within a trajectory is allowed.

    Source: GSPO, arXiv 2507.18071, eq. 5, 7 and 13.
    """
    value = log_ratio.detach()
    # the value is the trajectory's mean; adding log_ratio - value leaves it and gives each token its own gradient
    n = int(trajectory.max()) + 1 if trajectory.numel() else 0
    total_R = value.new_zeros(n).index_add_(0, trajectory, value)
    length_R = value.new_zeros(n).index_add_(0, trajectory, torch.ones_like(value))
    return (total_R / length_R)[trajectory] + (log_ratio - value)


class Ratio(Part, ABC):
    """Base class of importance ratios: the level at which a token's log-ratio is taken.

    couples   "token" | "trajectory": whose log-ratios the value or the derivative at an entry depend on
    """

    slot = "objective"
    couples: str = "token"

    @abstractmethod
    def level(self, log_ratio: Tensor, trajectory: Tensor, turn: Tensor, segment: Tensor | None = None) -> Tensor:
        """Log-ratio at the part's level, [n]; each token carries its own gradient.

        log_ratio         [n] of the tokens, in path order; beyond "token" all trained ones of each trajectory
        trajectory, turn  [n] int64: which trajectory, and which step of one, each belongs to
        segment           [n] int64: which segment of a turn; None: turns have no segments
        """
        raise NotImplementedError


class RatioFunction(FunctionPart, Ratio):
    """A ratio that is one pure function: log-ratio, trajectory and turn [n] of the tokens -> log-ratio at its level."""

    @classmethod
    def facts(cls, function: Callable[..., Any]) -> dict[str, Any]:
        column_names = ("log_ratio", "trajectory", "turn", "segment")
        for name in signature(function).columns:
            if name not in column_names:
                raise ConfigError(
                    f"objective.ratio={function.__name__}{place_of(function)} has a parameter {name!r}"
                    f"{did_you_mean(name, column_names)}; a ratio reads {', '.join(column_names)}"
                )
        return {}

    def level(self, log_ratio: Tensor, trajectory: Tensor, turn: Tensor, segment: Tensor | None = None) -> Tensor:
        segment = turn if segment is None else segment
        columns = {"log_ratio": log_ratio, "trajectory": trajectory, "turn": turn, "segment": segment}
        return self.function(*(columns[name] for name in signature(self.function).columns), **self.options)


@part("token", stage="ratio")
@dataclass(frozen=True)
class Token(Ratio):
    """Token-level importance ratio (PPO, GRPO). Source: PPO, arXiv 1707.06347."""

    def level(self, log_ratio: Tensor, trajectory: Tensor, turn: Tensor, segment: Tensor | None = None) -> Tensor:
        return log_ratio


@part("sequence", stage="ratio", couples="trajectory")
def sequence(log_ratio: Tensor, trajectory: Tensor) -> Tensor:
    """Sequence-level importance ratio (GSPO-token): geometric mean over the trajectory, see `sequence_ratio`."""
    return sequence_ratio(log_ratio, trajectory)


@part("turn", stage="ratio", couples="trajectory")
def turn(log_ratio: Tensor, turn: Tensor) -> Tensor:
    """Turn-level importance ratio: geometric mean over the turn (a step), each token with its own gradient.

    With one turn a trajectory it is `sequence`. Source: segment ratios of ROLL; SeeUPO's ratio of a turn.
    """
    return sequence_ratio(log_ratio, turn)


@part("segment", stage="ratio", couples="trajectory")
def segment(log_ratio: Tensor, segment: Tensor) -> Tensor:
    """Segment-level importance ratio: geometric mean over the segment (of a turn without any, over the turn).

    Items of a list (Rank-GRPO, arXiv 2510.20150, with `segment: delimiter`), chunks of denoising steps (Chunk-GRPO,
    arXiv 2510.21583, with `rollout.chunks`). Each token has its own gradient, see `sequence_ratio`.
    """
    return sequence_ratio(log_ratio, segment)


# ---------------------------------------------------------------- surrogates
def shaped(logprob: Tensor, credit: Tensor, gamma: float = 0.1) -> Tensor:
    """Shaped loss of off-policy tokens without a known rollout policy (LUFFY), [n]: -A f(pi).

    f(x) = x / (x + gamma), pi = exp(logprob).

    The behaviour probability is taken to be 1, so the "ratio" is pi itself. The gradient in the log-prob is
    -A gamma pi / (pi + gamma)^2: greatest where pi = gamma and small for tokens that are certain either way, where
    plain pi would leave unlikely tokens without a gradient.

    gamma  above 0, in units of probability

    Source: LUFFY, arXiv 2504.14945 (policy shaping).
    """
    return -credit * torch.sigmoid(logprob - math.log(gamma))


@dataclass(frozen=True)
class Entries:
    """Inputs of surrogates and ratios: columns [n] of the action tokens whose outputs are read, in path order.

    logprob     of the current policy, carries the gradient
    below       detached log-prob that the token's ratio divides by
    log_ratio   the token's own, logprob - below
    ratio       at the ratio's level, after `Surrogate.before`; what most surrogates read
    credit      A
    trajectory, turn  int64: entries of one trajectory, or of one step of one, have the same number
    entropy     of the current policy (nats), detached or not as the learner gave it; None where no part asks for it
    level       log of `ratio`, also where that has left the range of its dtype; None: its logarithm
    standing    A less the median of its group, over trajectories; None unless the surrogate couples groups
    """

    logprob: Tensor
    below: Tensor
    log_ratio: Tensor
    ratio: Tensor
    credit: Tensor
    trajectory: Tensor
    turn: Tensor
    entropy: Tensor | None = None
    level: Tensor | None = None
    standing: Tensor | None = None

    @property
    def log_level(self) -> Tensor:
        """Log-ratio at its level: `level`, or the logarithm of `ratio`."""
        return self.ratio.log() if self.level is None else self.level

    def by_sign(self, positive: float, negative: float) -> Tensor:
        """Select by the advantage's sign, [n]: `positive` where A > 0, `negative` elsewhere."""
        one = torch.ones_like(self.ratio)
        return torch.where(self.credit > 0, positive * one, negative * one)

    @classmethod
    def of(cls, ratio: Tensor, credit: Tensor, logprob: Tensor | None = None) -> Entries:
        """Build the entries of one-token trajectories with these ratios; without a log-prob, `below` is 0."""
        logprob_n = ratio.log() if logprob is None else logprob
        row_ids = torch.arange(len(ratio))
        return cls(logprob_n, (logprob_n - ratio.log()).detach(), ratio.log(), ratio, credit, row_ids, row_ids)


class Surrogate(Part):
    """Base class of surrogates: the unclipped importance-weighted loss -A rho.

    couples   "token" | "trajectory" | "group" | "step": whose outputs an entry's derivative may depend on, through
              detached factors too. Beyond "token", all trained entries of such a trajectory (of the step) are in
              `Entries`; with "group", whole groups are there and `Entries.standing` is given
    beside    None, or, of one that couples a step through denominators alone, "trajectory": it is enough for it that
              the trajectories of non-zero advantage are in `Entries`
    outputs   policy outputs beyond the log-prob that it reads: "entropy"
    on_policy  it has no ratio, so that its gradient is right for the policy's own rollouts alone
    """

    slot = "objective"

    couples: str = "token"
    beside: str | None = None
    outputs: tuple[str, ...] = ()
    on_policy: bool = False

    def before(self, log_ratio: Tensor, credit: Tensor) -> Tensor:
        """Token log-ratio that enters the ratio's level (the sequence mean, for a sequence ratio)."""
        return log_ratio

    def loss(self, x: Entries) -> Tensor:
        """Loss of each token, [n]."""
        return -x.credit * x.ratio

    def clipped(self, x: Entries) -> Tensor:
        """Clipped tokens, [n] bool: those whose gradient is 0, or smaller than that of -A rho."""
        return torch.zeros_like(x.ratio, dtype=torch.bool)

    def left_out(self, x: Entries) -> Tensor | None:
        """Tokens excluded from the loss and from its denominator, [n] bool, which couples a step; None: never any."""
        return None

    def metrics(self, x: Entries) -> Mapping[str, float]:
        """Further metrics, by name."""
        return {}


class SurrogateFunction(FunctionPart, Surrogate):
    """A surrogate that is one pure function: `Entries` -> loss [n], or (loss, clipped tokens [n] bool).

    A user's function is one, too: `objective.surrogate: my_parts.py:fading`, its keyword arguments options under
    `objective`.
    """

    @classmethod
    def accepts(cls, function: Callable[..., Any]) -> bool:
        return True

    def loss(self, x: Entries) -> Tensor:
        output = self.function(x, **self.options)
        return output[0] if isinstance(output, tuple) else output

    def clipped(self, x: Entries) -> Tensor:
        output = self.function(x, **self.options)
        if not isinstance(output, tuple):
            return super().clipped(x)
        label = f"the second value of surrogate {self.function.__name__}"
        return expect(output[1], x.ratio.shape, label, self.function, "entry of x")


@part("unclipped", stage="surrogate")
def unclipped(x: Entries) -> Tensor:
    """Unclipped surrogate: -A rho, however far the policy has moved.

    Source: LUFFY's recipe (arXiv 2504.14945) for on-policy tokens.
    """
    return -x.credit * x.ratio


# ---------------------------------------------------------------- a ratio held between bounds
def hold(ratio: Tensor, credit: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Ratio (or log-ratio) clipped on the side that the advantage pushes it to, [n]: up to `high` for A >= 0, down to
    `low` for A < 0; without a gradient beyond."""
    return torch.where(credit >= 0, ratio.clamp(max=high), ratio.clamp(min=low))


def beyond(ratio: Tensor, credit: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Tokens that `hold` clips, [n] bool; none of advantage 0, none on a bound."""
    return ((credit > 0) & (ratio > high)) | ((credit < 0) & (ratio < low))


def clip_loss(
    x: Entries,
    low: float | Tensor,
    high: float | Tensor,
    ratio_max: float = math.inf,
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate -A rho, rho held by `hold` between bounds, [n], and the tokens that are clipped, [n] bool.

    low, high  of the ratio, for all or [n], detached
    ratio_max  absolute, for A < 0: no gradient beyond it either (dual clip)
    factor     [n] detached, multiplies the loss; None: 1
    """
    ratio = x.ratio
    # dual clip: for A < 0 the loss -A rho has no bound above, so the ratio is held there before the other clip
    if ratio_max < math.inf:
        ratio = torch.where(x.credit < 0, ratio.clamp_max(ratio_max), ratio)
    loss = -x.credit * hold(ratio, x.credit, low, high)
    if factor is not None:
        # a factor of 0 removes a token even where its loss is infinite
        loss = torch.where(factor == 0, torch.zeros_like(loss), factor * loss)
    return loss, beyond(x.ratio, x.credit, low, high) | ((x.credit < 0) & (x.ratio > ratio_max))


@part("clip", stage="surrogate")
@dataclass(frozen=True)
class Clip(Surrogate):
    """PPO clip: max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)): no gradient where A > 0 and rho > 1 +
    clip_high, or A < 0 and rho < 1 - clip_low; -A rho elsewhere, bounds included.

    clip_low, clip_high   relative to 1

    Source: PPO, arXiv 1707.06347, eq. 7. Clip-higher (DAPO, arXiv 2503.14476) is 0.2 / 0.28; GSPO (arXiv 2507.18071)
    is 3e-4 / 4e-4 on the sequence ratio, where 0.2 would never bind. No clamp on the log-ratio (verl: +-20).
    """

    clip_low: Width = 0.2
    clip_high: Width = 0.2

    ratio_max = math.inf  # absolute bound for A < 0, see `DualClip`

    def bounds(self, x: Entries) -> tuple[float | Tensor, float | Tensor]:
        """Lower and upper bound of the ratio, for all or [n], detached."""
        return 1 - self.clip_low, 1 + self.clip_high

    def loss(self, x: Entries) -> Tensor:
        return clip_loss(x, *self.bounds(x), self.ratio_max)[0]

    def clipped(self, x: Entries) -> Tensor:
        return clip_loss(x, *self.bounds(x), self.ratio_max)[1]


@part("dual_clip", stage="surrogate")
@dataclass(frozen=True)
class DualClip(Clip):
    """Dual-clip PPO: `Clip`, and min(that, -A ratio_max) for A < 0: no gradient there where rho > ratio_max either.

    ratio_max   absolute (3.0 means rho <= 3)

    Source: Ye et al., arXiv 1912.09729; the same as holding rho <= delta = ratio_max for A < 0 (INTELLECT-2).
    """

    ratio_max: AboveOne = 3.0


@part("log_clip", stage="surrogate")
@dataclass(frozen=True)
class LogClip(Surrogate):
    """Clip of each token's log-ratio on the improving side, before the ratio is taken (GMPO): for a sequence ratio the
    geometric mean of the clipped tokens.

    log rho' = min(log rho, log_clip_high) for A >= 0, max(log rho, -log_clip_low) for A < 0;   loss = -A rho'

    log_clip_low, log_clip_high   in log space: 0.4 holds rho in (e^-0.4, e^0.4)

    Source: GMPO, arXiv 2507.20673 (with ratio "sequence" and `sequence_mean`); unclipped it equals unclipped GSPO.
    """

    log_clip_low: Width = 0.4
    log_clip_high: Width = 0.4

    def before(self, log_ratio: Tensor, credit: Tensor) -> Tensor:
        return hold(log_ratio, credit, -self.log_clip_low, self.log_clip_high)

    def clipped(self, x: Entries) -> Tensor:
        return beyond(x.log_ratio, x.credit, -self.log_clip_low, self.log_clip_high)


# ---------------------------------------------------------------- a weight on the log-likelihood
def weighted_loss(x: Entries, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Detached weight on the log-likelihood, -stop(w) A logprob, [n], and the tokens that weigh less than their ratio,
    [n] bool: they count as clipped.

    weight  [n], 0 or more. With w = rho the gradient is that of -A rho, with w = 1 REINFORCE's

    The value has no meaning.
    """
    return -weight.detach() * x.credit * x.logprob, (x.credit != 0) & (weight < x.ratio)


def _ordered(ratio_max: float, ratio_min: float) -> str | None:
    return None if ratio_min <= ratio_max else f"ratio_min is {ratio_min}; it is from 0 to ratio_max ({ratio_max})"


@part("truncate", stage="surrogate")
@checked_by(_ordered)
def truncate(
    x: Entries, *, ratio_max: Annotated[Positive, UNBOUNDED] = 1.28, ratio_min: Width = 0.0
) -> tuple[Tensor, Tensor]:
    """Truncated importance weight (CISPO): -stop(clip(rho, ratio_min, ratio_max)) A logprob.

    The weight is bounded, every token keeps its gradient.

    ratio_max   absolute: 1.28 means rho <= 1.28. On policy the coefficient is exactly 1 for every ratio_max >= 1.
                (Elsewhere the same setting is written 0.28, or means an absolute bound by that name.)
    ratio_min   absolute; 0: no lower bound

    Source: CISPO, MiniMax-M1, arXiv 2506.13585, eq. 4-5; the paper disables the lower bound and does not publish the
    upper one: 1.28 is the bound of clip-higher.
    """
    return weighted_loss(x, x.ratio.clamp(ratio_min, ratio_max))


@part("log_likelihood", stage="surrogate", on_policy=True)
def log_likelihood(x: Entries) -> Tensor:
    """REINFORCE: -A logprob, without a ratio. The gradient is -A grad logprob, on policy that of every surrogate.

    Nothing bounds how far the policy moves: made for one update per batch. No entry counts as clipped.

    Source: Williams (1992); GPG, arXiv 2504.02546.
    """
    return -x.credit * x.logprob
