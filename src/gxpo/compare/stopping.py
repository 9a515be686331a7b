"""Stopping rule of a trial: a fixed budget, or looks after every seed with 5 % false positives over all arms and looks.

At look k of at most S, an arm is decided where the t interval of its paired differences at level a_k excludes 0:

    a_k = alpha / arms * (F(k) - F(k - 1)),   F(k) = ((k - 2) / (S - 2))^2 for k >= 3, else 0

which sums to alpha / arms. The union over looks and arms bounds the false positives by alpha, however the looks depend
on each other. A look at which minutes or tokens end the trial is its last, and has all that is left, 1 - F(k - 1).

Source: alpha spending with a power of the information (Lan and DeMets 1983; Kim and DeMets 1987, rho = 2), repeated
intervals (Jennison and Turnbull 1989), with Bonferroni in place of the joint distribution of looks, so that none has
to be assumed. Assumes independent seeds and nearly normal or symmetric differences: docs/comparing-statistics.md says
where it fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gxpo.base.errors import ConfigError
from gxpo.compare.inference import FEWEST_SEEDS, seeds_needed
from gxpo.compare.results import Estimate
from gxpo.compare.wording import interval

SPENDING = 2.0  # power of the share of seeds: later looks, which know more, get more
MOST_SEEDS = 1000
UNEQUAL = 1e-12  # relative difference below which two differences are rounding of one
RESOLVED = 6.0  # the difference of two figures rounded to a step h has the variance h^2 / 6 from rounding alone

Verdict = Literal["better", "worse", "equal", "undecided"]
Reason = Literal["", "decided", "seeds", "minutes", "tokens"]


@dataclass(frozen=True)
class TrialBudget:
    """Limits of a trial, all fixed before its first look.

    seeds       most seeds of an arm; there is no trial without such a number
    minutes, tokens  of all runs together; None: no limit
    sequential  looks after every seed; False: one look, at the end
    alpha       probability of any false positive, over all arms and looks
    """

    seeds: int = 12
    minutes: float | None = None
    tokens: float | None = None
    sequential: bool = True
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not 1 <= self.seeds <= MOST_SEEDS or int(self.seeds) != self.seeds:
            raise ConfigError(f"--seeds {self.seeds}: give a whole number from 1 to {MOST_SEEDS}")
        for name, limit in (("--minutes", self.minutes), ("--tokens", self.tokens)):
            if limit is not None and not 0 < limit < math.inf:
                raise ConfigError(f"{name} {limit}: give a number above 0")
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha {self.alpha}: give a probability between 0 and 1")

    def same_as(self, recorded_budget: Mapping[str, Any]) -> TrialBudget:
        """Return this budget; ConfigError where the trial that continues was planned with another (`asdict`)."""
        for name, value in asdict(self).items():
            if name in recorded_budget and recorded_budget[name] != value:
                raise ConfigError(
                    f"this trial was planned with {name}={recorded_budget[name]}, not {value}: a budget that changes "
                    "after a look could go on until a difference appears; give another --out, with seeds of its own"
                )
        return self


@dataclass(frozen=True)
class ArmDecision:
    """State of one arm against the base.

    verdict       equal: every difference is exactly 0, in three pairs or more
    estimate      mean difference with its interval at the deciding look, else at the newest; all intervals of all arms
                  and looks hold together with probability 1 - alpha
    decided_at    seeds at the deciding look; the verdict stands from there on
    seeds_needed  of an undecided arm: seeds of a new trial that would find such a difference with 80 % power
    """

    verdict: Verdict
    estimate: Estimate
    decided_at: int | None = None
    seeds_needed: int | None = None


@dataclass(frozen=True)
class Decision:
    """Decision on whether a trial goes on, with the verdict on each arm.

    next_seeds  arms that need another seed: those that are undecided, and none once it stops
    """

    stop: bool
    reason: Reason
    arms: dict[str, ArmDecision]
    next_seeds: tuple[str, ...]


def decide(
    differences_by_arm: Mapping[str, Sequence[float]],
    budget: TrialBudget,
    *,
    minutes: float = 0.0,
    tokens: float = 0.0,
    resolution: float = 0.0,
) -> Decision:
    """Decide after a seed whether a trial stops, from all differences so far.

    differences_by_arm  arm -> measure of the arm less that of the base, by seed, in the planned order (not in that of
                        ending: runs that collapse end sooner); positive is better, nan: the pair has no figure. All
                        planned arms from the first call on, with [] before their first seed: their number is the factor
    minutes, tokens     spent so far. Once they reach the budget this is the last look: later differences may not follow
    resolution          step of the measure, 1 / held-out tasks for a share: no spread is believed below its rounding

    The same differences give the same decision, so that a trial continues without a state. ConfigError for no arms,
    more differences than seeds, or an infinite one.
    """
    # Whatever the differences are, the trial is over at the planned number of seeds, or when the budget is spent.
    if not differences_by_arm:
        raise ConfigError("a trial needs an arm besides the base")
    for label, differences in differences_by_arm.items():
        if len(differences) > budget.seeds:
            raise ConfigError(f"{label}: {len(differences)} seeds, planned were {budget.seeds}: leave the others out")
        if np.isinf(np.asarray(differences, dtype=np.float64)).any():
            raise ConfigError(f"{label}: an infinite difference; give nan for a pair without a figure")
    limit: Reason = ""
    if budget.minutes is not None and minutes >= budget.minutes:
        limit = "minutes"
    elif budget.tokens is not None and tokens >= budget.tokens:
        limit = "tokens"
    arms = {
        label: _arm(differences, budget, len(differences_by_arm), bool(limit), resolution)
        for label, differences in differences_by_arm.items()
    }
    # Arms that are decided get no further seed, the others do until the budget ends.
    open_arms = [label for label, arm in arms.items() if arm.decided_at is None]
    unfinished = [label for label in open_arms if len(differences_by_arm[label]) < budget.seeds]
    reason: Reason = "decided" if not open_arms else limit or ("seeds" if not unfinished else "")
    return Decision(bool(reason), reason, arms, () if reason else tuple(unfinished))


def look_levels(budget: TrialBudget, arms: int, looks: int | None = None) -> NDArray[np.float64]:
    """Two-sided level of the look after each of the first `looks` seeds; 0 where there is no look.

    looks  seeds at which minutes or tokens ended the trial: that look has all that is left. None: the planned number

    >>> look_levels(TrialBudget(seeds=4), arms=1).round(4).tolist()
    [0.0, 0.0, 0.0125, 0.0375]
    """
    last = budget.seeds if looks is None else looks
    k = np.arange(budget.seeds + 1)
    first = FEWEST_SEEDS - 1
    spent_share = (
        np.clip((k - first) / max(budget.seeds - first, 1), 0.0, 1.0) ** SPENDING if budget.sequential else k * 0.0
    )
    share = np.diff(spent_share)[:last]
    # What the looks before have not used, the last one may; below three seeds there is none.
    if last >= FEWEST_SEEDS:
        share[-1] = 1.0 - spent_share[last - 1]
    return np.asarray(budget.alpha / arms * share, dtype=np.float64)


@dataclass(frozen=True)
class Looks:
    """Mean, half-width of the interval and number of pairs at every look: [..., S], nan half-width without a look."""

    mean: NDArray[np.float64]
    half: NDArray[np.float64]
    sd: NDArray[np.float64]
    pairs: NDArray[np.int64]

    @property
    def deciding(self) -> NDArray[np.int64]:
        """[...] seeds at the first look whose interval excludes 0; 0: none does."""
        excludes = np.abs(self.mean) > self.half
        return np.where(excludes.any(-1), excludes.argmax(-1) + 1, 0)


def look(differences: ArrayLike, levels: NDArray[np.float64], resolution: float = 0.0) -> Looks:
    """Student's interval of the mean of the first k differences [..., S] at each look's own level [S].

    mean_k +- t(1 - a_k / 2, n - 1) s_k / sqrt(n), n the finite ones of the first k; nan differences are left out.
    No interval for fewer than three, and none where all are equal and no resolution says what spread is behind them.
    """
    from scipy.stats import t

    d = np.asarray(differences, dtype=np.float64)
    is_known = np.isfinite(d)
    n = is_known.cumsum(-1)
    # Sums of squares about the first difference: equal ones have a spread of exactly 0.
    first = np.take_along_axis(d, is_known.argmax(-1)[..., None], -1)
    centred = np.where(is_known, d - np.nan_to_num(first), 0.0)
    count = np.maximum(n, 1)
    shift = centred.cumsum(-1) / count
    variance = ((centred**2).cumsum(-1) - count * shift**2).clip(min=0.0) / np.maximum(n - 1, 1)
    mean = shift + np.nan_to_num(first)
    variance = np.where(variance <= (UNEQUAL * mean) ** 2, 0.0, variance)
    sd = np.sqrt(np.maximum(variance, resolution**2 / RESOLVED))
    has_look = (levels > 0) & (n >= FEWEST_SEEDS) & (sd > 0)
    # [pairs, looks], then gathered: quantiles are slow, and many trials share them.
    critical = t.isf(np.where(levels > 0, levels, 1.0) / 2, np.maximum(np.arange(len(levels) + 1) - 1, 1)[:, None])
    half = np.where(has_look, critical[n, np.arange(len(levels))] * sd / np.sqrt(count), math.nan)
    return Looks(np.where(n > 0, mean, math.nan), half, np.where(n > 1, sd, math.nan), n)


def trial_power(
    difference: float, sd: float, budget: TrialBudget, arms: int = 1, trials: int = 2000
) -> tuple[float, float]:
    """Share of simulated trials in which an arm of this true difference is decided, and the mean number of seeds used.

    Normal differences with the standard deviation `sd` from seed to seed, from a fixed generator.
    """
    draws = difference + sd * np.random.default_rng(0).standard_normal((trials, budget.seeds))
    deciding = look(draws, look_levels(budget, arms)).deciding
    return float((deciding > 0).mean()), float(np.where(deciding > 0, deciding, budget.seeds).mean())


def _arm(differences: Sequence[float], budget: TrialBudget, arms: int, is_last: bool, resolution: float) -> ArmDecision:
    """Decide on one arm from its differences by seed."""
    if not len(differences):
        return ArmDecision("undecided", Estimate(math.nan, math.nan, math.nan, 0))
    seeds = len(differences)
    looks = look(differences, look_levels(budget, arms)[:seeds], resolution)
    # Only an arm that is undecided when the budget ends has a last look: for it, the end depends on no difference.
    if is_last and seeds < budget.seeds and not looks.deciding:
        looks = look(differences, look_levels(budget, arms, seeds), resolution)
    decided_at = int(looks.deciding) or None
    # The deciding look stands; before one, the newest that has an interval.
    has_interval = np.flatnonzero(np.isfinite(looks.half))
    look_index = decided_at - 1 if decided_at else int(has_interval[-1]) if len(has_interval) else seeds - 1
    mean, half, sd, n = (float(x[look_index]) for x in (looks.mean, looks.half, looks.sd, looks.pairs))
    error = sd / math.sqrt(n) if n > 1 else math.nan
    estimate = Estimate(mean, mean - half, mean + half, int(n), spread=error, by_seed=error)
    if decided_at:
        return ArmDecision("better" if mean > 0 else "worse", estimate, decided_at)
    pairs = [d for d in differences if not math.isnan(d)]
    if len(pairs) >= FEWEST_SEEDS and not any(pairs):
        return ArmDecision("equal", estimate)
    n_seeds = seeds_needed(mean, sd, alpha=budget.alpha / arms) if n > 1 and sd > 0 else None
    return ArmDecision("undecided", estimate, seeds_needed=n_seeds)


def sentence(label: str, arm: ArmDecision, places: int = 3) -> str:
    """State the verdict on an arm in one line.

    >>> sentence("lr", ArmDecision("better", Estimate(0.2, 0.1, 0.3, 4), decided_at=4))
    'lr is better than the base: +.200 (+.100 to +.300), decided after 4 seeds'
    """
    estimate = arm.estimate
    if arm.decided_at is not None:
        figures = interval(estimate, places, sign=True)
        return f"{label} is {arm.verdict} than the base: {figures}, decided after {arm.decided_at} seeds"
    if not estimate.n:
        return f"{label} can't be told from the base: no pair of runs has a figure"
    seeds = f"{estimate.n} seed{'' if estimate.n == 1 else 's'}"
    if arm.verdict == "equal":
        return f"{label} equals the base: every difference of {seeds} is exactly 0"
    reason = ""
    if estimate.n < FEWEST_SEEDS:
        reason = f": fewer than {FEWEST_SEEDS} are not ranked"
    elif not arm.estimate.spread > 0:
        reason = ": they are all equal, so that their spread is unknown"
    elif arm.seeds_needed is not None:
        reason = f"; a new trial of about {max(arm.seeds_needed, estimate.n + 1)} seeds would"
    return f"{label} can't be told from the base: {interval(estimate, places, sign=True)}, {seeds}{reason}"
