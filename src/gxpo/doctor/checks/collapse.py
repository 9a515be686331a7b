"""Checks of a collapse: a learning rate that is too high, by what breaks at once, slowly, or in a table of few rows."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.checks.credit import SAMPLER
from gxpo.doctor.finding import Finding
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Floats
from gxpo.doctor.sickness import finding, sickness

FEW = 12  # logged points below which a break may be nothing but two rows
FEW_WORDS = 30  # tokens that leave no room for a reasoned answer


def _start(values: Floats) -> float:
    """Level before training: mean of the first tenth of the steps, or the first step if a collapse follows at once."""
    level = float(values[: max(2, len(values) // 10)].mean())
    next_values = values[1:4]
    is_gone = len(next_values) > 0 and values[0] > 0 and float(next_values.mean()) < 0.6 * values[0]
    return float(values[0]) if is_gone and float(values[-3:].mean()) < 0.7 * values[0] else level


def _calm_noise(values: Floats) -> float:
    """Deviation of single steps, without the tenth that changes most, as a collapse is among these."""
    steps = np.sort(np.diff(values) ** 2)
    calm = steps[: max(3, int(0.9 * len(steps)))]
    return float(np.sqrt(calm.mean() / 2)) if len(calm) else 0.0


def _steps_of_fall(values: Floats, start: float, low: float) -> int:
    """Count the steps of a fall: from the last value above 80% of `low` to `start` to the first below 20% after it."""
    share = (values - low) / max(start - low, 1e-12)
    low_steps = np.flatnonzero(share < 0.2)
    if not len(low_steps):
        return len(values)
    high_steps = np.flatnonzero(share[: low_steps[0]] > 0.8)
    return int(low_steps[0] - high_steps[-1]) if len(high_steps) else int(low_steps[0])


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
        "near_constant_reward",
        "non_finite",
        "tool_failures",
        "kl_too_high",
        *SAMPLER,
    ),
    of_training=True,
)
def lr_too_high(log: RunLog) -> Finding | None:
    score = log.trend("reward")
    if score is None or log.n_steps < 8:
        return _few_points(log)
    if log.entropy_coefficient is not None or is_token(log):
        return None
    if (by_length := _length_moves_first(log)) is not None:
        return by_length
    reward, signs, evidence = log.values("reward"), [], []
    start, noise = _start(reward), _calm_noise(reward)
    # of the difference of a mean of two first steps and of the last fifth
    error = noise * float(np.sqrt(1 / 2 + 1 / max(3, score.n // 5)))
    # below the start, or below the peak and not above the start: a fall from a peak alone may be harder tasks
    drop_from_start = start - score.last
    drop_from_peak = score.best - score.last
    is_held_out_fall = log.evaluation_gain < 0 and not log.rises("reward")
    # what breaks in the first steps may learn something else later
    break_evidence = _breaks_at_once(log, start, error)
    # a few answers fewer, of tasks that are solved, are no collapse whatever the noise was
    is_material = score.last < 0.97 * max(start, score.best) or start <= 0
    # single right answers among steps without any are no level to fall from
    is_material = is_material and not (np.mean(reward <= reward.min()) > 0.9 and start < 0.3 * reward.max())
    has_fallen = is_material and (
        drop_from_start > 4 * error or (drop_from_peak > 4 * error and drop_from_start > error)
    )
    if has_fallen or is_held_out_fall or break_evidence:
        signs.append("reward")
        if break_evidence:
            evidence.append(break_evidence)
        if is_held_out_fall and log.evaluation is not None:
            evidence.append(log.quote(log.evaluation))
        evidence.append(
            f"{log.quote('reward')}" + (f", {score.best:.3g} at best" if score.best > start + error else "")
        )
    # at its lowest level at the end: it did not recover
    lowest = float(reward.min())
    collapsed = "reward" in signs and score.last <= lowest + 0.1 * (max(score.best, start) - lowest)
    collapsed = collapsed or bool(break_evidence)
    grad, is_longer = log.values("grad_norm"), False
    if len(grad) >= 6:
        positive = grad[grad > 0]
        usual_grad = float(np.median(positive[:5])) if len(positive) else 0.0
        # ten times in one step, or three times to the end while the reward has lost a third of its best
        is_longer = drop_from_peak > max(score.best, start) / 3 and log.last("grad_norm") > 3 * usual_grad
        if usual_grad > 0 and (float(grad.max()) > 10 * usual_grad or is_longer):
            signs.append("grad_norm")
            evidence.append(f"{log.key('grad_norm')} up to {grad.max():.3g}, {usual_grad:.3g} in the first steps")
    # entropy may go either way: one answer for all, or noise
    entropy = log.values("entropy")
    if len(entropy) >= 2:
        begin, end = float(entropy[0]), log.last("entropy")
        jump = float(np.abs(np.diff(entropy)).max())
        if begin > 0.02 and ((end < 0.1 * begin and jump > 0.3 * begin) or end > 2.5 * begin + 0.3):
            signs.append("entropy")
            evidence.append(log.quote("entropy"))
    length = log.values("length")
    if len(length) >= 6:
        begin, end = float(length[0]), log.last("length")
        truncated = log.values("truncated")
        if (
            end > 2.5 * begin
            or end < 0.35 * begin
            or (len(truncated) > 5 and truncated[0] < 0.3 and log.last("truncated") > 0.8)
        ):
            signs.append("length")
            evidence.append(log.quote("length"))
    # three steps far away: a single spike is usual
    kl = log.values("kl")
    if len(kl) >= 6 and float(np.sort(kl)[-3:].mean()) > 1.5:
        signs.append("kl")
        evidence.append(log.quote("kl"))
    # a fall within one step is no slow drift
    drop = float((reward[:-1] - reward[1:]).max()) if len(reward) > 1 else 0.0
    if "reward" in signs and drop > 0.75 * (max(score.best, start) - lowest) and drop > 6 * noise:
        signs.append("sudden")
        evidence.append(f"within one step {log.key('reward')} falls by {drop:.3g}")
    if "reward" not in signs or len(signs) < 2:
        return _find_fall(log) or _few_points(log)
    if len(signs) == 2 and not collapsed and not is_held_out_fall and not is_longer and score.last > 0.5 * start > 0:
        return None  # harder tasks do as much
    # gains are what a wrong sign can't have had
    grade = "likely" if len(signs) >= 3 or collapsed else "possible"
    ids = ["lr_too_high"]
    if not log.rises("reward") and score.best < start + 2 * error and _steps_of_fall(reward, start, lowest) >= 4:
        ids.append("advantage_sign")
        evidence.append(
            "it never gained and fell over several steps, as with a gradient of the wrong sign: overfitting one batch "
            "tells them apart"
        )
    return finding(
        ids,
        "critical",
        grade,
        "the policy has collapsed: the learning rate is too high",
        *evidence,
        log.quote("lr", ".2g") if log.has("lr") else "",
    )


def _length_moves_first(log: RunLog) -> Finding | None:
    """Report answers that shrink, or run into their limit, well before the reward falls and with an ordinary gradient:
    what is sampled changes first, and the reward follows."""
    score, reward, steps = log.trend("reward"), log.values("reward"), log.steps("reward")
    if score is None or len(reward) < FEW:
        return None
    drop = score.best - score.last
    if drop < max(4 * score.ends_error, 0.2 * abs(score.best)) or score.last > max(score.first, 0.6 * score.best):
        return None
    # the step at which half of the fall from the peak is done
    smooth = np.convolve(reward, np.ones(3) / 3, mode="valid")
    peak = int(smooth.argmax())
    low_steps = np.flatnonzero(smooth[peak:] < (smooth[peak] + smooth[peak:].min()) / 2)
    if not len(low_steps):
        return None
    fall = float(steps[min(peak + int(low_steps[0]) + 1, len(steps) - 1)])
    margin = max(2.0, (steps[-1] - steps[0]) / 20)
    # a gradient that is already long is of an update that is too large
    grad, grad_steps = log.values("grad_norm"), log.steps("grad_norm")
    usual = float(np.median(grad[:5])) if len(grad) else 0.0
    for name, title, has_moved in (
        ("length_collapse", "answers shrink first, and the reward falls after them", _has_shrunk),
        ("truncation", "answers grow into their limit first, and the reward falls after that", _is_cut),
    ):
        begin = has_moved(log)
        if begin is None or begin > fall - margin or _is_long(grad[grad_steps <= begin], usual):
            continue
        kin = "length_hack" if name == "truncation" else "kl_runaway"
        return finding(
            [name, kin, "lr_too_high"],
            "critical",
            "likely",
            title,
            f"by step {begin:.0f} the one, by step {fall:.0f} half of the other",
            *(log.quote(n) for n in ("length", "truncated", "reward", "grad_norm", "kl", "lr") if log.has(n)),
            "does the reward, or a KL term of the wrong sign or size, pay for length?",
        )
    return None


def _is_long(grad: Floats, usual: float) -> bool:
    """True if the last gradients are several times as long as usual; a single spike is none."""
    return usual > 0 and len(grad) > 0 and float(np.median(grad[-5:])) > 4 * usual


def _has_shrunk(log: RunLog) -> float | None:
    """Step from which on answers have at most half of their first length, to the end; None where they do not."""
    length, steps = log.values("length"), log.steps("length")
    if len(length) < FEW or not log.last("length") < 0.4 * log.first("length"):
        return None
    long = np.flatnonzero(length > 0.6 * log.first("length"))
    return float(steps[min(long[-1] + 1, len(steps) - 1)]) if len(long) else None


def _is_cut(log: RunLog) -> float | None:
    """Step from which on a quarter of the answers or more is cut, to the end, where few were at first."""
    truncated, steps = log.values("truncated"), log.steps("truncated")
    if len(truncated) < FEW or log.first("truncated") > 0.1 or log.last("truncated") < 0.4:
        return None
    low_steps = np.flatnonzero(truncated < 0.2)
    return float(steps[min(low_steps[-1] + 1, len(steps) - 1)]) if len(low_steps) else None


def _breaks_at_once(log: RunLog, start: float, error: float) -> str:
    """Evidence of a policy that is gone within the first quarter of the run: reward below a third of its start for five
    steps, and of entropy at most a fifth left; "" where it is not. What it learns later is one answer for all."""
    reward, entropy = log.values("reward"), log.values("entropy")
    early = max(len(reward) // 4, 6)
    if len(reward) < 12 or len(entropy) < 12 or not entropy[0] > 0.02 or not start > 0:
        return ""
    lowest = np.convolve(reward[:early], np.ones(5) / 5, mode="valid").min()
    entropy_share = np.median(entropy[len(entropy) // 4 :]) / entropy[0]
    if (
        lowest > start / 3
        or start - lowest < 2 * error
        or entropy_share > 0.2
        or log.last("entropy") > 0.2 * entropy[0]
    ):
        return ""
    return (
        f"within {early} steps {log.key('reward')} falls from {start:.3g} to {lowest:.3g} and {entropy_share:.0%} of "
        f"{log.key('entropy')} is left"
    )


def _few_points(log: RunLog) -> Finding | None:
    """Report a break in a table of four to eleven rows of a longer run: the reward has lost two fifths of its best, and
    entropy, KL, gradient or length have changed several times over; as possible only."""
    reward = log.values("reward")
    if not 4 <= len(reward) < FEW or log.last_step < 2 * len(reward) or not reward.max() > 0:
        return None
    if float(reward[-2:].mean()) > 0.6 * float(reward.max()):
        return None
    changed_names = []
    for name, factor in (("entropy", 3.0), ("kl", 10.0), ("grad_norm", 5.0), ("length", 2.0)):
        values = log.values(name)
        if len(values) >= 3 and values[0] > 0:
            ratio = float(np.median(values[-2:]) / values[0])
            if ratio > factor or (name in ("entropy", "length") and ratio < 1 / factor):
                changed_names.append(name)
    if not changed_names:
        return None
    return finding(
        ["lr_too_high", "kl_runaway", "entropy_collapse"],
        "warning",
        "possible",
        f"the reward falls from {reward.max():.3g} to {reward[-1]:.3g} in {len(reward)} logged points while "
        f"{' and '.join(log.key(name) for name in changed_names)} changes several times over",
        log.quote("reward"),
        *(log.quote(name) for name in changed_names),
        log.quote("lr", ".2g"),
    )


def shrinks_in_few_points(log: RunLog) -> Finding | None:
    """Report answers that shrink from row to row of a short table to a fifth, and to a few words; as possible only."""
    length, reward = log.values("length"), log.values("reward")
    if len(length) < 4 or len(reward) < 4 or not (np.diff(length) < 0).all():
        return None
    if length[-1] > 0.2 * length[0] or length[-1] > FEW_WORDS or reward[-1] >= reward.max():
        return None
    return finding(
        "length_collapse",
        "warning",
        "possible",
        f"answers shrink from {length[0]:.3g} to {length[-1]:.3g} tokens, and the reward is past its best",
        log.quote("length"),
        log.quote("reward"),
        *(log.quote(name) for name in ("grad_norm", "entropy") if log.has(name)),
    )


def is_token(log: RunLog) -> bool:
    """True if the reward is full for answers of a token that are always the same, and held-out ones are no better."""
    held_out = log.values(log.evaluation or "eval/accuracy")
    if (
        not log.has("length", "entropy", "reward")
        or len(held_out) < 2
        or float(held_out[-1]) > 0.7 * float(held_out[0])
    ):
        return False
    is_short = log.last("length") < 2.5 < float(log.values("length")[0])
    return (
        is_short
        and log.last("entropy") < 0.1 * float(log.values("entropy")[0])
        and (log.last("reward") > 0.95 * log.top_reward > 0)
    )


def is_torn(log: RunLog) -> bool:
    """True if the KL has spikes of tens of nats beside answers of another length, and no verdict says that more of them
    are right."""
    if log.evaluation_gain > 0 or (log.correctness is not None and log.rises(log.correctness)):
        return False
    return log.largest("kl") > 50 and log.has("length") and not 0.4 < log.column("length").start_to_last < 2.5


def pays_a_token(log: RunLog) -> Finding:
    """Report a reward that one and the same token earns: of a majority, or of a judge."""
    return finding(
        ["length_collapse", "entropy_collapse", "judge_hacked"],
        "critical",
        "likely",
        "all answers have become one and the same word, which is fully paid, and held-out ones are no longer right",
        *(log.quote(n) for n in ("length", "entropy", "reward", log.evaluation or "eval/accuracy")),
        "a reward of agreement (a majority vote) is largest where all answers are alike",
    )


def shrinks_far_away(log: RunLog) -> Finding | None:
    """Report answers that shrink to a third while the policy leaves its reference, where nothing says that they are
    right; as possible only."""
    size, length = np.abs(log.values("kl")), log.values("length")
    fifth = len(size) // 5
    # medians, since a few answers run on to the limit
    if not fifth or not np.median(length[-(len(length) // 5) :]) < 0.35 * np.median(length[:10]):
        return None
    near, far = float(np.median(size[: min(fifth, 10)])), float(np.quantile(size[-fifth:], 0.75))
    if far < 0.2 or far < 10 * near:
        return None
    return finding(
        ["length_collapse", "kl_runaway"],
        "warning",
        "possible",
        "answers shrink to a third while the policy leaves its reference",
        *(log.quote(name) for name in ("length", "kl", "reward", "reward_std") if log.has(name)),
    )


def _find_fall(log: RunLog) -> Finding | None:
    """Report a reward that falls beyond its noise, whatever the reason: no such run is healthy."""
    # a table of few rows whose first ones alone are higher: steps of few rollouts, or a mean over all steps so far
    values = log.values("reward")
    if 6 <= len(values) < 20 and float(np.ptp(values[len(values) // 4 :])) < 0.15 * float(np.ptp(values)):
        return None
    if not log.falls("reward") or log.gains or (log.correctness is not None and not log.falls(log.correctness)):
        return None
    # held-out answers that get no worse speak for harder tasks
    held_out = np.empty(0) if log.evaluation is None else log.values(log.evaluation)
    is_kept = len(held_out) >= 4 and float(held_out[-2:].mean()) >= float(held_out[:2].mean())
    return finding(
        ["lr_too_high", "reward_noise", "advantage_sign"],
        "note" if is_kept else "warning",
        "possible",
        "the reward falls, and nothing that was logged says why",
        log.quote("reward"),
        *(log.quote(n) for n in ("grad_norm", "entropy", "kl", "lr") if log.has(n)),
        "a tenth of the learning rate tells a rate that is too high from noise or a wrong sign in the reward",
    )
