"""Checks of the update: learning rate, frozen weights, KL coefficient, non-finite steps."""

from __future__ import annotations

import re

import numpy as np

from gxpo.doctor.finding import Finding
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Floats, stationary
from gxpo.doctor.sickness import finding, sickness

LEAST = 20  # steps below which a flat run is no evidence of anything
NO_KL = ("openrlhf",)  # trainers that log a KL of 0 where its coefficient is 0, so that none is computed
MEANS = ("trl", "unsloth", "ms-swift")  # trainers whose rows are means over the steps since the last
NOT_FINITE = re.compile(
    r"contains either `?inf`?|(?:loss|grad\w{0,20}|logits|probabilit\w{1,20}|tensor)\b.{0,40}\b(?:nan|inf)\b", re.I
)
LOSSES = re.compile(r"^(?!.*(?:eval|val_|valid)).*(?:loss|grad_norm)$", re.I)  # of any part, in training
PART = re.compile(r"(?:pg|policy)[_ ]?loss$", re.I)  # key of a loss without its KL term
ROUNDED = 3e-5  # rate below which most updates of bfloat16 weights are lost: they are 2^-8 of a weight apart
SHARP = 0.02  # standard error of the entropy's change over the run, as a share of it, up to which rest can be told
TINY_RATE = 1.1e-7  # below the rates that any published recipe of full fine-tuning uses
STEEP = 6.0  # standard errors of the slope of loss over KL from which it is the coefficient
STRONG_KL = 0.5  # coefficient from which the KL outweighs rewards of size 1 at a divergence of a few nats


def policy_at_rest(log: RunLog) -> tuple[bool, list[str]]:
    """Tell if the policy looks as if it did not move at all; also the evidence."""
    # transformers' rows are means over several steps, those of reports single steps
    is_averaged = log.source in MEANS and log.n_steps >= LEAST // 2 and log.last_step >= 2.5 * LEAST
    if (log.n_steps < LEAST and not is_averaged) or log.gains or log.falls("reward"):
        return False, []
    # without a reward, or with one that is 0 for all, a policy at rest has a nearer cause
    if not (log.has("reward") or log.has("success")) or log.is_zero("reward"):
        return False, []
    score = log.trend("reward")
    if not _stated_rest(log) and log.has("reward_max") and log.mean("reward") > 0.95 * log.top_reward > 0:
        return False, []  # there is nothing left to gain
    if (
        not _stated_rest(log)
        and score is not None
        and abs(score.change) > 2.2 * score.error
        and abs(score.change) > 0.02
    ):
        return False, []  # perhaps it moves
    if log.has("kl") and float(np.abs(log.values("kl")).max()) > 1e-3:
        return False, []
    # constant series tell nothing: a silent run has them, too
    watched_names = [n for n in ("reward", "success", "entropy", "length") if log.has(n) and not log.is_constant(n)]
    if not watched_names or not any(n in watched_names for n in ("entropy", "length", "reward")):
        return False, []
    # a policy that moves would show in its entropy, if that is known well enough
    level = log.trend("entropy")
    is_sharp = level is not None and level.error < SHARP * max(level.first, level.last)
    # without an entropy, a long run in which a gain of a tenth would have been seen
    if not log.has("entropy") and score is not None and log.n_steps >= 2.5 * LEAST and log.has("length", "lr"):
        is_sharp = score.detectable < 0.1 * log.top_reward
    rest_is_stated = _stated_rest(log)
    if log.n_steps < 1.5 * LEAST and not is_averaged and not rest_is_stated:
        return False, []
    if all(stationary(log.values(n)) for n in watched_names) and (is_sharp or rest_is_stated):
        evidence = [log.quote(n) for n in watched_names]
        if log.has("kl"):
            evidence.append(log.quote("kl", ".2g"))
        return True, evidence
    return False, []


def _stated_rest(log: RunLog) -> bool:
    """True if rate, gradient bound, precision or KL show already that nothing can move."""
    rates, bound = log.values("lr"), log.number("max_grad_norm")
    slow = len(rates) > 0 and float(rates.max()) <= TINY_RATE
    clipped = bound is not None and 0 < bound <= 1e-3
    short = str(log.setting("dtype")).endswith(("bfloat16", "bf16"))
    # updates far below the spacing of bfloat16 weights are lost, but for a few
    rounded = short and len(rates) > 0 and float(rates.max()) <= ROUNDED
    return slow or clipped or rounded or _is_at_reference(log)


def _is_at_reference(log: RunLog) -> bool:
    """True if the KL is 0 but for rounding in every step, and was computed."""
    return log.has("kl") and log.source not in NO_KL and float(np.abs(log.values("kl")).max()) < 1e-6


def has_gradient(log: RunLog) -> bool:
    """True if most steps had a gradient."""
    if log.has("grad_norm"):
        return float(np.median(log.values("grad_norm"))) > 0
    return not log.is_silent


def _unfinished_warmup(log: RunLog) -> bool:
    """True if the learning rate rose until the end of the run: a warm-up that never ended."""
    rates = log.values("lr")
    if len(rates) < LEAST:
        return False
    rising = np.diff(rates) > 0
    rate, warmup_steps, max_steps = log.number("lr"), log.number("warmup_steps"), log.number("max_steps")
    # the log of a run that has hardly begun: an ordinary warm-up is a tenth of it
    if max_steps is not None and log.last_step < 0.15 * max_steps and not (warmup_steps or 0) > 0.15 * max_steps:
        return False
    # a rate that rises to the end and has reached its value is a warm-up as long as the run
    is_short = rate is not None and rates[-1] < 0.3 * rate
    return bool(rising.mean() > 0.95) and (is_short or rate is None or (warmup_steps or 0) >= log.n_steps)


@sickness(
    "lr_too_low",
    4,
    "learning rate too small, or a warm-up longer than the run",
    "printed rate below 1e-7 or still warming up; reward, entropy and length keep one level, KL below 1e-3",
    needs=("lr", "reward"),
    follows=("all_right", "group_too_small"),
    of_training=True,
)
def lr_too_low(log: RunLog) -> Finding | None:
    flat, evidence = policy_at_rest(log)
    rates = log.values("lr")
    if not len(rates) or not has_gradient(log) or log.is_silent:
        return None
    largest = float(rates.max())
    # no model moves by such steps, whatever its other figures do by chance
    has_reward = (log.has("reward") or log.has("success")) and not log.is_zero("reward")
    flat = flat or (largest <= TINY_RATE / 10 and log.n_steps >= LEAST and has_reward and not log.gains)
    if largest == 0.0:
        return finding(
            "lr_too_low",
            "critical",
            "proved",
            "the learning rate is 0 in every step: nothing is learnt",
            log.quote("lr", ".2g"),
            *evidence,
        )
    has_curve = log.has("reward") or log.has("success")
    if _unfinished_warmup(log) and has_curve and not log.gains:
        rate = log.number("lr")
        return finding(
            "lr_too_low",
            "critical",
            "likely" if flat else "possible",
            f"the learning rate is still warming up after {log.n_steps} steps",
            log.quote("lr", ".2g"),
            f"configured: {rate:.2g}" if rate else "",
            *evidence,
        )
    # from here on the rate alone proves nothing: the policy must be at rest
    if not flat:
        return None
    if largest <= TINY_RATE:
        return finding(
            "lr_too_low",
            "critical",
            "likely",
            f"the learning rate ({largest:.2g}) is too small to move the policy",
            log.quote("lr", ".2g"),
            *evidence,
        )
    return None


@sickness(
    "weights_do_not_move",
    4,
    "weights do not move although there is a gradient",
    "checksum or share of moved weights; else gradient > 0 and rate > 0 while reward, entropy, length keep one level "
    "and KL or ratio stay exactly at rest",
    needs=("weights_crc", "weights_moved", "grad_norm"),
    follows=("all_right", "group_too_small"),
    of_training=True,
)
def weights_do_not_move(log: RunLog) -> Finding | None:
    if not has_gradient(log) or log.is_silent:
        return None
    if log.has("lr") and float(log.values("lr").max()) == 0.0:
        return None
    moved_share = log.values("weights_moved")
    # checksum and share of moved weights are proofs
    if log.is_constant("weights_crc") and len(log.values("weights_crc")) >= 3:
        return finding(
            "weights_do_not_move",
            "critical",
            "proved",
            "the weights are the same after every step",
            log.quote("weights_crc", ".0f"),
            log.quote("grad_norm"),
        )
    if len(moved_share) >= 3 and float(moved_share.max()) == 0.0:
        return finding(
            "weights_do_not_move",
            "critical",
            "proved",
            "no weight changes in any step",
            log.quote("weights_moved"),
            log.quote("grad_norm"),
        )
    is_flat, evidence = policy_at_rest(log)
    if not is_flat:
        return _hardly_moves(log)
    if log.has("lr") and (float(log.values("lr").max()) <= TINY_RATE or _unfinished_warmup(log)):
        return None  # lr_too_low says it
    if strong_kl(log):
        return None
    # everything at rest although there is a gradient: bound and precision explain it, if they are known
    bound = log.number("max_grad_norm")
    if bound is not None and 0 < bound <= 1e-3:
        return finding(
            "weights_do_not_move",
            "critical",
            "likely",
            f"the gradient is clipped to {bound:g}: the weights hardly move",
            log.quote("grad_norm"),
            *evidence,
        )
    if str(log.setting("dtype")).endswith(("bfloat16", "bf16", "float16")):
        return finding(
            "weights_do_not_move",
            "critical",
            "likely",
            f"updates are lost in the rounding of {log.setting('dtype')} weights",
            log.quote("lr", ".2g"),
            log.quote("grad_norm"),
            *evidence,
        )
    # a KL of exactly 0 means equal weights; a small one, slow or held ones
    is_at_reference = _is_at_reference(log)
    advice = (
        "to tell these apart, look at the share of weights that a step changes, max_grad_norm and the configured rate"
    )
    ids = ["weights_do_not_move", "lr_too_low"]
    beta = log.number("beta")
    if log.has("kl") and not is_at_reference and (beta is None or beta >= STRONG_KL):
        ids.append("kl_too_high")
    return finding(
        ids,
        "critical",
        "likely" if is_at_reference else "possible",
        "the policy does not move, although there is a gradient",
        log.quote("lr", ".2g"),
        log.quote("grad_norm"),
        *evidence,
        advice,
    )


def _hardly_moves(log: RunLog) -> Finding | None:
    """Report a run that keeps its reward and its policy: its entropy or length, and a KL that is next to nothing, one
    level or (every token unclipped) unknown, over enough steps to have shown a gain; as possible only."""
    score = log.trend("reward")
    if score is None or score.n < LEAST or log.gains or log.is_solved or log.evaluation_gain:
        return None
    kl, clipped = log.trend("kl"), log.values("clip_fraction")
    top = max(log.top_reward, 1.0)
    if abs(score.change) > 2 * score.error or score.last > 0.8 * top:
        return None
    # near the reference to the end; an estimate that is negative at times averages out, and has to show more
    largest_kl = 5e-3 if float(log.values("kl").min(initial=0.0)) >= 0 else 1e-3
    is_near = kl is not None and abs(kl.last) + 2 * kl.noise / np.sqrt(kl.n / 5) < largest_kl and not log.is_zero("kl")
    # the same distance from it in every step: the policy began elsewhere and has stayed there
    is_level = kl is not None and kl.last > 0.05 and abs(kl.change) < 2 * kl.error and kl.error < 0.1 * kl.first
    is_unclipped = kl is None and len(clipped) > 0 and float(clipped.max()) < 1e-4
    if not (is_near or is_level or is_unclipped):
        return None
    # hundreds of steps within a thousandth of a nat need no further sign; else a gain of a seventh of the range (a
    # fifth) would have been seen, in the reward and in what is sampled
    is_at_rest = is_near and float(np.abs(log.values("kl")).max()) < 2e-3 and log.last_step >= 300
    span = top - min(float(log.values("reward").min()), 0.0)
    level = log.trend("entropy") or log.trend("length")
    is_seen = score.detectable < span / (5 if is_level else 7) and level is not None
    is_seen = is_seen and level is not None and level.error < 0.1 * level.first
    is_kept = level is None or abs(level.change) < max(2 * level.error, 0.03 * level.first)
    if not (is_kept and (is_at_rest or is_seen)):
        return None
    return finding(
        ["lr_too_low", "weights_do_not_move", "kl_too_high"][: 2 if is_unclipped else 3],
        "warning",
        "possible",
        f"in {log.last_step} steps neither reward nor policy has moved",
        *(log.quote(name) for name in ("reward", "entropy", "length", "kl", "clip_fraction") if log.has(name)),
        *(log.quote(name, ".2g") for name in ("lr", "grad_norm") if log.has(name)),
        log.quote(log.evaluation) if log.evaluation else "",
        f"a gain of {score.detectable:.2g} would have been visible: three times the learning rate would tell",
    )


def implied_beta(log: RunLog) -> float | None:
    """Estimate the KL coefficient as loss / KL; None if the ratio is not steady.

    On policy the advantages sum to about 0, so that the loss is the KL term alone.
    """
    if PART.search(log.key("loss")):
        return None
    _, at_kl, at_loss = np.intersect1d(log.steps("kl"), log.steps("loss"), return_indices=True)
    kl, loss = log.values("kl")[at_kl], log.values("loss")[at_loss]
    kl, loss = kl[kl > 1e-5], loss[kl > 1e-5]
    if len(kl) < 10:
        return None
    ratios = loss / kl
    middle = float(np.median(ratios))
    if middle > 0 and float(np.median(np.abs(ratios - middle))) < 0.3 * middle:
        return middle
    # where the advantages' noise is larger than the term: a line through 0 that is steep beyond its error, and as steep
    # in either half of the run
    slope, error = _slope(kl, loss)
    halves = [_slope(kl[part], loss[part])[0] for part in (slice(len(kl) // 2), slice(len(kl) // 2, None))]
    is_steady = max(abs(half - slope) for half in halves) < 0.25 * slope
    return slope if len(kl) >= LEAST and slope > STEEP * error and is_steady else None


def _slope(x: Floats, y: Floats) -> tuple[float, float]:
    """Slope of the line through 0 and these points, and its standard error."""
    slope = float(x @ y / (x @ x))
    residual = y - slope * x
    return slope, float(np.sqrt(residual @ residual / max(len(x) - 1, 1) / (x @ x)))


def strong_kl(log: RunLog) -> float | None:
    """KL coefficient if it is large, from the configuration, the log or loss / KL; else None."""
    beta = log.number("beta")
    if beta is None and log.has("kl_coef"):
        beta = log.mean("kl_coef")
    if beta is None:
        beta = implied_beta(log)
    return beta if beta is not None and beta >= STRONG_KL else None


@sickness(
    "kl_too_high",
    4,
    "KL coefficient too high: the policy is held at its reference",
    "coefficient (stated, or loss / KL) of at least 0.5 while reward is flat and KL stays small; or a KL in the reward "
    "that is twice as large as the rewards differ",
    needs=("kl", "kl_coef", "kl_charge"),
    follows=(),
    of_training=True,
)
def kl_too_high(log: RunLog) -> Finding | None:
    if (outweighed := _find_outweighed(log)) is not None:
        return outweighed
    beta = strong_kl(log)
    if beta is None or log.n_steps < LEAST or log.gains or log.is_silent or log.is_solved:
        return None
    # far from its reference the policy is not held: there the term is small beside the rewards, or something broke
    if log.has("kl") and (log.last("kl") > 1.0 or 0.05 < log.last("kl") < 0.1 / beta):
        return None
    # a coefficient that was inferred is quoted as such
    is_stated = log.number("beta") is not None or log.has("kl_coef")
    return finding(
        "kl_too_high",
        "critical",
        "likely",
        f"the KL coefficient of {beta:.2g} holds the policy at its reference",
        log.quote("kl", ".2g"),
        "" if is_stated else f"the loss is {beta:.3g} times the KL, but for noise",
        log.quote("reward"),
        *(policy_at_rest(log)[1] or ()),
    )


def _find_outweighed(log: RunLog) -> Finding | None:
    """Report a KL in the reward that is larger than all differences of the rewards: the paid reward rises as answers
    lose their tokens, whatever becomes of the scores."""
    charge = log.values("kl_charge")
    if len(charge) < 8 or not log.has("reward") or log.gains:
        return None
    bounds = [log.values(n) for n in ("reward", "reward_max", "reward_min") if log.has(n)]
    span = max(float(v.max()) for v in bounds) - min(float(v.min()) for v in bounds)
    if not float(charge[:5].mean()) > 2 * span > 0:
        return None
    shrinks = log.has("length") and log.last("length") < 0.5 * log.first("length")
    return finding(
        ["kl_too_high", *(["length_collapse"] if shrinks else [])],
        "critical",
        "likely",
        "the KL that the reward is charged outweighs it"
        + (": it is least where answers are shortest" if shrinks else ""),
        f"{log.quote('kl_charge')}; rewards differ by {span:.3g} at most",
        *(log.quote(n) for n in ("reward", "length", "kl") if log.has(n)),
    )


@sickness(
    "non_finite",
    4,
    "loss or gradient is not finite",
    "non-finite loss or gradient norm in the last steps, steps skipped for it, or an infinite reward",
    needs=("loss", "grad_norm", "nonfinite_steps", "reward"),
    follows=(),
    of_training=True,
)
def non_finite(log: RunLog) -> Finding | None:
    for name in ("loss", "grad_norm"):
        series = log.series.get(name)
        if series is None or not len(series):
            continue
        is_bad = ~np.isfinite(series.values)
        if is_bad.any() and (is_bad[-1] or is_bad.mean() > 0.05 or is_bad.sum() >= 3):
            # a trainer that writes null where a step had no signal is no sick one
            if log.source == "gxpo" and not log.last("nonfinite_steps") > 0:
                continue
            first_bad = int(series.steps[int(np.argmax(is_bad))])
            return finding(
                "non_finite",
                "critical",
                "proved",
                f"{series.key} is not finite from step {first_bad} on"
                if is_bad[-1]
                else f"{series.key} is not finite in {int(is_bad.sum())} steps",
                f"{int(is_bad.sum())} of {len(is_bad)} logged values, the first at step {first_bad}",
            )
    # a loss or gradient of another part, as of a critic
    for series in log.raw.values():
        is_silent = log.source == "gxpo" or not LOSSES.search(series.key)
        if not is_silent and len(series) and not np.isfinite(series.values).any():
            quotes = [log.quote(n) for n in ("loss", "grad_norm", "reward") if log.has(n)]
            title = f"{series.key} is not finite in any of {len(series)} logged steps"
            return finding("non_finite", "critical", "proved", title, *quotes)
    # a KL that is in no row a number
    kl = log.series.get("kl")
    if kl is not None and len(kl) >= 3 and not np.isfinite(kl.values).any():
        return finding(
            "non_finite",
            "warning",
            "proved",
            f"{kl.key} is not finite in any of {len(kl)} rows",
            log.quote("loss"),
            log.quote("reward"),
            "log-probs of -inf, or of a reference that is not finite itself: look at one completion's log-probs",
        )
    # the run ended before it could log the figure
    end_messages = [m for m in log.messages if NOT_FINITE.search(m)]
    if end_messages:
        return finding(
            "non_finite",
            "critical",
            "proved",
            "the run ended because probabilities, loss or gradient were not finite",
            f"the console says: {end_messages[-1]}",
            *(log.quote(n) for n in ("entropy", "grad_norm", "reward") if log.has(n)),
        )
    scores = log.series.get("reward")
    if scores is not None and len(scores) and np.isinf(scores.values).sum() >= max(1, 0.05 * len(scores)):
        count = int(np.isinf(scores.values).sum())
        return finding(
            "non_finite",
            "critical",
            "proved",
            "the reward is not finite: a rollout of infinite reward makes all advantages of its group so",
            f"{scores.key} is infinite in {count} of {len(scores)} logged steps",
        )
    # a trainer that skips such steps goes on: once is chance
    nonfinite_steps = log.values("nonfinite_steps")
    if len(nonfinite_steps) and nonfinite_steps[-1] >= max(2, 0.05 * len(nonfinite_steps)):
        return finding(
            "non_finite",
            "critical",
            "proved",
            "optimiser steps are skipped because their gradient is not finite",
            log.quote("nonfinite_steps", ".0f"),
        )
    return None
