"""Policy-gradient loss: importance ratio, surrogate (clip), aggregation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, MissingSignal
from gxpo.objectives.base import COUPLES, Evaluated, TermPart, coefficients
from gxpo.objectives.surrogate import (
    Clip,
    Entries,
    Positive,
    Ratio,
    Sequence,
    Surrogate,
    Token,
    Turn,
    denominator,
    ratio_of,
    shaped,
)
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals

Aggregate = Literal["token_mean", "sequence_mean", "sequence_sum"]
_RATIOS = {"token": Token, "sequence": Sequence, "turn": Turn}


@torch.no_grad()
def standing(forest: Forest, credit: Tensor) -> Tensor:
    """Advantage relative to the group's median, [P] float64: that of the compared trajectories' mean advantages.

    For advantages (r - c) / s of outcomes r it is (r - median of r) / s, whatever the centre c; of a group of one, the
    advantage. Exactly 0 within 1e-12 of the largest advantage: a mean over tokens has rounded.
    """
    credit = credit.to(torch.float64)
    own = levels.mean(credit, forest.path_trajectory)
    each = torch.zeros(forest.n_trajectories, dtype=torch.float64)
    each[forest.path_trajectory] = own
    there = torch.zeros(forest.n_trajectories, dtype=torch.bool)
    there[forest.path_trajectory] = True
    group, counts = forest.ids("group", axis="R"), forest.compared & there
    middle = torch.where(levels.count(group, counts) > 1, levels.median(each, group, counts), 0.0)
    found = credit - forest.to_path(middle, "R")
    rounding = levels.DEGENERATE * float(credit.abs().max()) if len(credit) else 0.0
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
    def gate(self) -> Surrogate:
        """Former name of `surrogate`."""
        return self.surrogate

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
        loss = self.surrogate.loss(seen)
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
        log_ratio, owner, turn = logprob - below[entries], trajectory[entries], forest.path_step[entries]
        held = self._level.level(self.surrogate.before(log_ratio, given), owner, turn)
        entropy = None
        if "entropy" in self.surrogate.outputs:
            if policy.entropy is None:
                raise MissingSignal("this objective's surrogate needs the policy's entropy: give it as `entropy`")
            entropy = policy.entropy[entries].to(logprob)
        known = torch.ones_like(entries, dtype=torch.bool)
        if self.on_unknown_behaviour == "shaped":
            known = ~policy.behaviour_logprob[entries].isnan()
        above = standing(forest, credit)[entries].to(logprob) if self.surrogate.couples == "group" else None
        ratio = ratio_of(held)
        seen = Entries(logprob, below[entries], log_ratio, ratio, given, owner, turn, entropy, held, above)
        out = self.surrogate.left_out(seen)
        counted = trainable if out is None else trainable.index_fill(0, entries[out], False)
        shared = forest.path_token if self.dedup_shared_tokens else None
        scale = coefficients(trajectory, counted, self.aggregate, self.horizon, shared)
        return _Active((scale * weight.to(scale))[entries].to(logprob), seen, known)

    @torch.no_grad()
    def cut(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> tuple[int, int]:
        """Number of tokens whose gradient the surrogate cuts: those of A < 0, and those of A > 0."""
        x = self._entries(forest, policy, credit, weight)
        clipped = self.surrogate.clipped(x.seen) & x.has_ratio
        return int((clipped & (x.seen.credit < 0)).sum()), int((clipped & (x.seen.credit > 0)).sum())

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
