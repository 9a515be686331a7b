"""What moved: learning rate, frozen weights, the KL's weight, collapse, steps that are not finite."""

from __future__ import annotations

import re

import numpy as np

from gxpo.doctor.case import Case
from gxpo.doctor.checks.credit import SAMPLER
from gxpo.doctor.finding import Finding
from gxpo.doctor.runlog import Floats
from gxpo.doctor.sickness import found, sickness
from gxpo.doctor.trend import stationary

LEAST = 20  # steps below which a flat run is no evidence of anything
NOT_FINITE = re.compile(
    r"contains either `?inf`?|(?:loss|grad\w{0,20}|logits|probabilit\w{1,20}|tensor)\b.{0,40}\b(?:nan|inf)\b", re.I
)
ROUNDED = 3e-5  # rate below which most updates of bfloat16 weights are lost: they are 2^-8 of a weight apart
SHARP = 0.03  # deviation of the entropy from step to step, as a share of it, with which rest can be told from motion
TINY_RATE = 1.1e-7  # below the rates that any published recipe of full fine-tuning uses
STRONG_KL = 0.5  # coefficient from which the KL outweighs rewards of size 1 at a divergence of a few nats


def still(case: Case) -> tuple[bool, list[str]]:
    """Whether the policy looks as if it did not move at all, and by which series."""
    averaged = case.n >= LEAST // 2 and case.log.last_step >= 2.5 * LEAST  # rows are means over several steps
    if (case.n < LEAST and not averaged) or case.gains or case.falls("reward"):
        return False, []
    score = case.trend("reward")
    if (
        not _stated_rest(case)
        and score is not None
        and abs(score.change) > 2.2 * score.error
        and abs(score.change) > 0.02
    ):
        return False, []  # perhaps it moves
    if case.has("kl") and float(np.abs(case.values("kl")).max()) > 1e-3:
        return False, []
    watched = [n for n in ("reward", "success", "entropy", "length") if case.has(n) and not case.constant(n)]
    if not watched or not any(n in watched for n in ("entropy", "length", "reward")):
        return False, []
    # a policy that moves would show in its entropy, if that is known well enough
    level = case.trend("entropy")
    sharp = level is not None and level.noise < SHARP * max(level.first, level.last)
    told = _stated_rest(case)
    if case.n < 1.5 * LEAST and not averaged and not told:
        return False, []
    if all(stationary(case.values(n)) for n in watched) and (sharp or told):
        shown = [case.quote(n) for n in watched]
        if case.has("kl"):
            shown.append(case.quote("kl", ".2g"))
        return True, shown
    return False, []


def _stated_rest(case: Case) -> bool:
    """Whether rate, gradient bound or KL say already that nothing can move."""
    rates, bound = case.values("lr"), case.number("max_grad_norm")
    slow = len(rates) > 0 and float(rates.max()) <= TINY_RATE
    clipped = bound is not None and 0 < bound <= 1e-3
    short = str(case.setting("dtype")).endswith(("bfloat16", "bf16"))
    rounded = short and len(rates) > 0 and float(rates.max()) <= ROUNDED
    return slow or clipped or rounded or (case.has("kl") and float(np.abs(case.values("kl")).max()) < 1e-6)


def has_gradient(case: Case) -> bool:
    """Whether steps had a gradient to follow."""
    if case.has("grad_norm"):
        return float(np.median(case.values("grad_norm"))) > 0
    return not case.silent


def _unfinished_warmup(case: Case) -> bool:
    """Whether the rate rose from step to step until the end of the run, as a warm-up does."""
    rates = case.values("lr")
    if len(rates) < LEAST:
        return False
    rising = np.diff(rates) > 0
    asked, warm = case.number("lr"), case.number("warmup_steps")
    short = asked is not None and rates[-1] < 0.3 * asked
    return bool(rising.mean() > 0.95) and (short or asked is None or (warm or 0) >= case.n)


@sickness(
    "lr_too_low",
    4,
    "learning rate too small, or a warm-up longer than the run",
    "printed rate below 1e-7 or still warming up; reward, entropy and length keep one level, KL below 1e-3",
    needs=("lr", "reward"),
    follows=(),
)
def lr_too_low(case: Case) -> Finding | None:
    flat, shown = still(case)
    rates = case.values("lr")
    if not len(rates) or not has_gradient(case) or case.silent:
        return None
    largest = float(rates.max())
    if largest == 0.0:
        return found(
            "lr_too_low",
            "critical",
            "proved",
            "the learning rate is 0 in every step: nothing is learnt",
            case.quote("lr", ".2g"),
            *shown,
        )
    if _unfinished_warmup(case) and not case.gains:
        asked = case.number("lr")
        return found(
            "lr_too_low",
            "critical",
            "likely" if flat else "possible",
            f"the learning rate is still warming up after {case.n} steps",
            case.quote("lr", ".2g"),
            f"asked for: {asked:.2g}" if asked else "",
            *shown,
        )
    if not flat:
        return None
    if largest <= TINY_RATE:
        return found(
            "lr_too_low",
            "critical",
            "likely",
            f"the learning rate ({largest:.2g}) is too small to move the policy",
            case.quote("lr", ".2g"),
            *shown,
        )
    return None


@sickness(
    "weights_do_not_move",
    4,
    "weights do not move although there is a gradient",
    "checksum or share of moved weights; else gradient > 0 and rate > 0 while reward, entropy, length keep one level "
    "and KL or ratio stay exactly at rest",
    needs=("weights_crc", "weights_moved", "grad_norm"),
    follows=(),
)
def weights_do_not_move(case: Case) -> Finding | None:
    if not has_gradient(case) or case.silent:
        return None
    if case.has("lr") and float(case.values("lr").max()) == 0.0:
        return None
    moved = case.values("weights_moved")
    if case.constant("weights_crc") and len(case.values("weights_crc")) >= 3:
        return found(
            "weights_do_not_move",
            "critical",
            "proved",
            "the weights are the same after every step",
            case.quote("weights_crc", ".0f"),
            case.quote("grad_norm"),
        )
    if len(moved) >= 3 and float(moved.max()) == 0.0:
        return found(
            "weights_do_not_move",
            "critical",
            "proved",
            "no weight changes in any step",
            case.quote("weights_moved"),
            case.quote("grad_norm"),
        )
    flat, shown = still(case)
    if not flat:
        return None
    if case.has("lr") and (float(case.values("lr").max()) <= TINY_RATE or _unfinished_warmup(case)):
        return None  # lr_too_low says it
    if strong_kl(case):
        return None
    bound = case.number("max_grad_norm")
    if bound is not None and 0 < bound <= 1e-3:
        return found(
            "weights_do_not_move",
            "critical",
            "likely",
            f"the gradient is clipped to {bound:g}: the weights hardly move",
            case.quote("grad_norm"),
            *shown,
        )
    if str(case.setting("dtype")).endswith(("bfloat16", "bf16", "float16")):
        return found(
            "weights_do_not_move",
            "critical",
            "likely",
            f"updates are lost in the rounding of {case.setting('dtype')} weights",
            case.quote("lr", ".2g"),
            case.quote("grad_norm"),
            *shown,
        )
    exact = case.has("kl") and float(np.abs(case.values("kl")).max()) < 1e-6
    told = "to tell them apart: the share of weights that a step changes, max_grad_norm, the rate asked for"
    ids = ["weights_do_not_move", "lr_too_low"]
    beta = case.number("beta")
    if case.has("kl") and not exact and (beta is None or beta >= STRONG_KL):
        ids.append("kl_too_high")
    return found(
        ids,
        "critical",
        "likely" if exact else "possible",
        "the policy does not move, although there is a gradient",
        case.quote("lr", ".2g"),
        case.quote("grad_norm"),
        *shown,
        told,
    )


def implied_beta(case: Case) -> float | None:
    """loss / KL: on policy the advantages sum to about 0 and the loss is the KL term alone; None where that can't be
    told."""
    steps = set(case.log.steps("kl").tolist()) & set(case.log.steps("loss").tolist())
    kl = dict(zip(case.log.steps("kl").tolist(), case.values("kl").tolist(), strict=True))
    loss = dict(zip(case.log.steps("loss").tolist(), case.values("loss").tolist(), strict=True))
    ratios = [loss[s] / kl[s] for s in steps if kl[s] > 1e-5]
    if len(ratios) < 10:
        return None
    middle = float(np.median(ratios))
    spread = float(np.median(np.abs(np.array(ratios) - middle)))
    return middle if middle > 0 and spread < 0.3 * middle else None


def strong_kl(case: Case) -> float | None:
    """The KL's coefficient where it is large, from the configuration or from loss / KL."""
    stated = case.number("beta")
    if stated is None and case.has("kl_coef"):
        stated = case.mean("kl_coef")
    if stated is None:
        stated = implied_beta(case)
    return stated if stated is not None and stated >= STRONG_KL else None


@sickness(
    "kl_too_high",
    4,
    "KL coefficient too high: the policy is held at its reference",
    "coefficient (stated, or loss / KL) of at least 0.5 while reward is flat and KL stays small",
    needs=("kl", "kl_coef"),
    follows=(),
)
def kl_too_high(case: Case) -> Finding | None:
    beta = strong_kl(case)
    if beta is None or case.n < LEAST or case.gains or case.silent or case.finished:
        return None
    if case.has("kl") and case.last("kl") > 0.05:
        return None
    stated = case.number("beta") is not None or case.has("kl_coef")
    return found(
        "kl_too_high",
        "critical",
        "likely",
        f"the KL coefficient of {beta:.2g} holds the policy at its reference",
        case.quote("kl", ".2g"),
        "" if stated else f"loss / kl = {beta:.3g} at most steps",
        case.quote("reward"),
        *(still(case)[1] or ()),
    )


def _start(values: Floats) -> float:
    """Level before much was learnt: the mean of the first tenth of the steps, or the first step alone where a collapse
    follows it at once."""
    level = float(values[: max(2, len(values) // 10)].mean())
    after = values[1:4]
    gone = len(after) > 0 and values[0] > 0 and float(after.mean()) < 0.6 * values[0]
    return float(values[0]) if gone and float(values[-3:].mean()) < 0.7 * values[0] else level


def _calm_noise(values: Floats) -> float:
    """Deviation of single steps without the tenth of the steps that change most, which a collapse is among."""
    steps = np.sort(np.diff(values) ** 2)
    kept = steps[: max(3, int(0.9 * len(steps)))]
    return float(np.sqrt(kept.mean() / 2)) if len(kept) else 0.0


def _steps_of_fall(values: Floats, start: float, low: float) -> int:
    """Steps from the last value above 80% of the way from `low` up to `start` to the first below 20% after it."""
    share = (values - low) / max(start - low, 1e-12)
    under = np.flatnonzero(share < 0.2)
    if not len(under):
        return len(values)
    above = np.flatnonzero(share[: under[0]] > 0.8)
    return int(under[0] - above[-1]) if len(above) else int(under[0])


@sickness(
    "lr_too_high",
    4,
    "learning rate too high: the policy collapses",
    "two of: reward below its start after a peak or at once; gradient norm x10; entropy to 0 or far up; length to its "
    "minimum or limit within a few steps",
    needs=("reward",),
    follows=(
        "reward_sign",
        "advantage_sign",
        "reward_noise",
        "labels_misaligned",
        "too_off_policy",
        "verifier_outage",
        *SAMPLER,
    ),
)
def lr_too_high(case: Case) -> Finding | None:
    score = case.trend("reward")
    if score is None or case.n < 8:
        return None
    reward, signs, evidence = case.values("reward"), [], []
    start, noise = _start(reward), _calm_noise(reward)
    error = noise * float(np.sqrt(1 / 2 + 1 / max(3, score.n // 5)))
    fallen = start - score.last
    from_peak = score.best - score.last
    outside = case.held_out_gain < 0 and not case.rises("reward")
    if fallen > 4 * error or (from_peak > 4 * error and fallen > error) or outside:
        signs.append("reward")
        if outside and case.held_out is not None:
            evidence.append(case.quote(case.held_out))
        evidence.append(
            f"{case.log.key('reward')} {start:.3g} at the start, {max(score.best, start):.3g} at best, "
            f"{score.last:.3g} at the end"
        )
    low = float(reward.min())
    collapsed = "reward" in signs and score.last <= low + 0.1 * (max(score.best, start) - low)
    grad = case.values("grad_norm")
    if len(grad) >= 6:
        known = grad[grad > 0]
        usual = float(np.median(known[:5])) if len(known) else 0.0
        if usual > 0 and float(grad.max()) > 10 * usual:
            signs.append("grad_norm")
            evidence.append(f"{case.log.key('grad_norm')} up to {grad.max():.3g}, {usual:.3g} in the first steps")
    entropy = case.values("entropy")
    if len(entropy) >= 2:
        begin, end = float(entropy[0]), case.last("entropy")
        jump = float(np.abs(np.diff(entropy)).max())
        if begin > 0.02 and ((end < 0.1 * begin and jump > 0.3 * begin) or end > 2.5 * begin + 0.3):
            signs.append("entropy")
            evidence.append(case.quote("entropy"))
    length = case.values("length")
    if len(length) >= 6:
        begin, end = float(length[0]), case.last("length")
        cut = case.values("truncated")
        if end > 2.5 * begin or end < 0.35 * begin or (len(cut) > 5 and cut[0] < 0.3 and case.last("truncated") > 0.8):
            signs.append("length")
            evidence.append(case.quote("length"))
    kl = case.values("kl")
    if len(kl) >= 6 and float(np.sort(kl)[-3:].mean()) > 1.5:
        signs.append("kl")
        evidence.append(case.quote("kl"))
    drop = float((reward[:-1] - reward[1:]).max()) if len(reward) > 1 else 0.0
    if "reward" in signs and drop > 0.75 * (max(score.best, start) - low) and drop > 6 * noise:
        signs.append("sudden")
        evidence.append(f"within one step {case.log.key('reward')} falls by {drop:.3g}")
    if "reward" not in signs or len(signs) < 2:
        return None
    if len(signs) == 2 and not collapsed and not outside and score.last > 0.5 * start > 0:
        return None  # harder tasks do as much
    grade = "likely" if len(signs) >= 3 or collapsed else "possible"
    ids = ["lr_too_high"]
    if not case.rises("reward") and score.best < start + 2 * error and _steps_of_fall(reward, start, low) >= 4:
        ids.append("advantage_sign")
        evidence.append(
            "it never gained and fell over several steps: a gradient that points the wrong way looks the same; an "
            "overfit test on one batch tells"
        )
    return found(
        ids,
        "critical",
        grade,
        "the policy has collapsed: the learning rate is too high",
        *evidence,
        case.quote("lr", ".2g") if case.has("lr") else "",
    )


@sickness(
    "non_finite",
    4,
    "loss or gradient is not finite",
    "non-finite loss or gradient norm in the last steps, steps skipped for it, or an infinite reward",
    needs=("loss", "grad_norm", "nonfinite_steps", "reward"),
    follows=(),
)
def non_finite(case: Case) -> Finding | None:
    for name in ("loss", "grad_norm"):
        held = case.log.series.get(name)
        if held is None or not len(held):
            continue
        bad = ~np.isfinite(held.values)
        if bad.any() and (bad[-1] or bad.mean() > 0.05 or bad.sum() >= 3):
            # a trainer that writes null where a step had no signal is no sick one
            if case.log.source == "gxpo" and not case.last("nonfinite_steps") > 0:
                continue
            at = int(held.steps[int(np.argmax(bad))])
            return found(
                "non_finite",
                "critical",
                "proved",
                f"{held.key} is not finite from step {at} on"
                if bad[-1]
                else f"{held.key} is not finite in {int(bad.sum())} steps",
                f"{int(bad.sum())} of {len(bad)} logged values, the first at step {at}",
            )
    died = [m for m in case.log.messages if NOT_FINITE.search(m)]
    if died:
        return found(
            "non_finite",
            "critical",
            "proved",
            "the run ended because probabilities, loss or gradient were not finite",
            f"the console says: {died[-1]}",
            *(case.quote(n) for n in ("entropy", "grad_norm", "reward") if case.has(n)),
        )
    scores = case.log.series.get("reward")
    if scores is not None and len(scores) and np.isinf(scores.values).sum() >= max(1, 0.05 * len(scores)):
        count = int(np.isinf(scores.values).sum())
        return found(
            "non_finite",
            "critical",
            "proved",
            "the reward is not finite: a rollout of infinite reward makes all advantages of its group so",
            f"{scores.key} is infinite in {count} of {len(scores)} logged steps",
        )
    skipped = case.values("nonfinite_steps")
    if len(skipped) and skipped[-1] >= max(2, 0.05 * len(skipped)):
        return found(
            "non_finite",
            "critical",
            "proved",
            "optimiser steps are skipped because their gradient is not finite",
            case.quote("nonfinite_steps", ".0f"),
        )
    return None
