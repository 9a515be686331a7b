"""Checks of a collapse: a learning rate that is too high, by what breaks at once, slowly, or in a table of few rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gxpo.doctor.checks.credit import SAMPLER
from gxpo.doctor.finding import Finding
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Floats, denominator
from gxpo.doctor.sickness import finding, sickness

FEW = 12  # logged points below which a break may be nothing but two rows
FEW_WORDS = 30  # tokens that leave no room for a reasoned answer
LEAST_ROWS, MOST_ROWS = 4, 15  # of a table of few rows
SURE = 0.12  # nats a token, below which a policy is nearly certain of an answer of some hundred tokens
GONE = 0.05  # nats a token, at which little is left to sample
BLIND = 3.0  # nats a token that a model of language reaches only where it does not know what it was asked
ALL_TOKENS = 12.5  # nats, of all tokens of a vocabulary alike: more is a sum over tokens


def _start(values: Floats) -> float:
    """Level before training: mean of the first tenth of the steps, or the first step if a collapse follows at once."""
    level = float(values[: max(2, len(values) // 10)].mean())
    after = values[1:4]
    gone = len(after) > 0 and values[0] > 0 and float(after.mean()) < 0.6 * values[0]
    return float(values[0]) if gone and float(values[-3:].mean()) < 0.7 * values[0] else level


def _calm_noise(values: Floats) -> float:
    """Deviation of single steps, without the tenth that changes most, as a collapse is among these."""
    steps = np.sort(np.diff(values) ** 2)
    calm = steps[: max(3, int(0.9 * len(steps)))]
    return float(np.sqrt(calm.mean() / 2)) if len(calm) else 0.0


def _steps_of_fall(values: Floats, start: float, low: float) -> int:
    """Count the steps of a fall: from the last value above 80% of `low` to `start` to the first below 20% after it."""
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
        "near_constant_reward",
        "non_finite",
        *SAMPLER,
    ),
)
def lr_too_high(log: RunLog) -> Finding | None:
    score = log.trend("reward")
    if score is None or log.n_steps < 8:
        return _few_points(log)
    if log.entropy_coefficient is not None:
        return None
    reward, signs, evidence = log.values("reward"), [], []
    start, noise = _start(reward), _calm_noise(reward)
    # of the difference of a mean of two first steps and of the last fifth
    error = noise * float(np.sqrt(1 / 2 + 1 / max(3, score.n // 5)))
    # below the start, or below the peak and not above the start: a fall from a peak alone may be harder tasks
    fallen = start - score.last
    from_peak = score.best - score.last
    outside = log.evaluation_gain < 0 and not log.rises("reward")
    # what breaks in the first steps may learn something else later
    broken = _breaks_at_once(log, start, error)
    if fallen > 4 * error or (from_peak > 4 * error and fallen > error) or outside or broken:
        signs.append("reward")
        if broken:
            evidence.append(broken)
        if outside and log.evaluation is not None:
            evidence.append(log.quote(log.evaluation))
        evidence.append(
            f"{log.quote('reward')}" + (f", {score.best:.3g} at best" if score.best > start + error else "")
        )
    # at its lowest level at the end: it did not recover
    low = float(reward.min())
    collapsed = "reward" in signs and score.last <= low + 0.1 * (max(score.best, start) - low)
    collapsed = collapsed or bool(broken)
    grad = log.values("grad_norm")
    if len(grad) >= 6:
        positive = grad[grad > 0]
        usual = float(np.median(positive[:5])) if len(positive) else 0.0
        if usual > 0 and float(grad.max()) > 10 * usual:
            signs.append("grad_norm")
            evidence.append(f"{log.key('grad_norm')} up to {grad.max():.3g}, {usual:.3g} in the first steps")
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
        cut = log.values("truncated")
        if end > 2.5 * begin or end < 0.35 * begin or (len(cut) > 5 and cut[0] < 0.3 and log.last("truncated") > 0.8):
            signs.append("length")
            evidence.append(log.quote("length"))
    # three steps far away: a single spike is usual
    kl = log.values("kl")
    if len(kl) >= 6 and float(np.sort(kl)[-3:].mean()) > 1.5:
        signs.append("kl")
        evidence.append(log.quote("kl"))
    # a fall within one step is no slow drift
    drop = float((reward[:-1] - reward[1:]).max()) if len(reward) > 1 else 0.0
    if "reward" in signs and drop > 0.75 * (max(score.best, start) - low) and drop > 6 * noise:
        signs.append("sudden")
        evidence.append(f"within one step {log.key('reward')} falls by {drop:.3g}")
    if "reward" not in signs or len(signs) < 2:
        return _falling(log) or _few_points(log)
    if len(signs) == 2 and not collapsed and not outside and score.last > 0.5 * start > 0:
        return None  # harder tasks do as much
    # gains are what a wrong sign can't have had
    grade = "likely" if len(signs) >= 3 or collapsed else "possible"
    ids = ["lr_too_high"]
    if not log.rises("reward") and score.best < start + 2 * error and _steps_of_fall(reward, start, low) >= 4:
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


def _breaks_at_once(log: RunLog, start: float, error: float) -> str:
    """Evidence of a policy that is gone within the first quarter of the run: reward below a third of its start for five
    steps, and of entropy at most a fifth left; "" where it is not. What it learns later is one answer for all."""
    reward, entropy = log.values("reward"), log.values("entropy")
    early = max(len(reward) // 4, 6)
    if len(reward) < 12 or len(entropy) < 12 or not entropy[0] > 0.02 or not start > 0:
        return ""
    lowest = np.convolve(reward[:early], np.ones(5) / 5, mode="valid").min()
    left = np.median(entropy[len(entropy) // 4 :]) / entropy[0]
    if lowest > start / 3 or start - lowest < 2 * error or left > 0.2 or log.last("entropy") > 0.2 * entropy[0]:
        return ""
    return (
        f"within {early} steps {log.key('reward')} falls from {start:.3g} to {lowest:.3g} and {left:.0%} of "
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
    changed = []
    for name, factor in (("entropy", 3.0), ("kl", 10.0), ("grad_norm", 5.0), ("length", 2.0)):
        values = log.values(name)
        if len(values) >= 3 and values[0] > 0:
            ratio = float(np.median(values[-2:]) / values[0])
            if ratio > factor or (name in ("entropy", "length") and ratio < 1 / factor):
                changed.append(name)
    if not changed:
        return None
    return finding(
        ["lr_too_high", "kl_runaway", "entropy_collapse"],
        "warning",
        "possible",
        f"the reward falls from {reward.max():.3g} to {reward[-1]:.3g} in {len(reward)} logged points while "
        f"{' and '.join(log.key(name) for name in changed)} changes several times over",
        log.quote("reward"),
        *(log.quote(name) for name in changed),
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


def _falling(log: RunLog) -> Finding | None:
    """Report a reward that falls beyond its noise, whatever the reason: no such run is healthy."""
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


# ---------------------------------------------------------------- few rows


@dataclass(frozen=True)
class Sign:
    """What rows of a table show: the sicknesses that look so, a title, and the series that are quoted."""

    ids: tuple[str, ...]
    title: str
    names: tuple[str, ...]


def few_rows(log: RunLog) -> list[Finding]:
    """Findings of a table of four to fourteen rows, as reports have it, where a sign is strong; as possible only."""
    n = max((len(log.values(name)) for name in (score_of(log), "grad_norm", "kl", "gap_kl", "gap_mean")), default=0)
    if not LEAST_ROWS <= n < MOST_ROWS:
        return []
    is_chosen = log.last_step >= 2 * n  # rows of a longer run that somebody picked
    signs = [sign(log) for sign in (SIGNS if is_chosen else SIGNS_OF_FIRST_STEPS)]
    return [
        finding(
            sign.ids,
            "warning",
            "possible",
            sign.title,
            *(log.quote(name) for name in dict.fromkeys((*sign.names, score_of(log))) if log.has(name)),
        )
        for sign in signs
        if sign is not None
    ]


def score_of(log: RunLog) -> str:
    """Name of the series that should rise: reward, verdicts, or the only reward function that was recorded."""
    names = [name for name in ("reward", "success") if log.has(name)]
    parts = log.components()
    return names[0] if names else f"component/{parts[0]}" if len(parts) == 1 else "reward"


def stalls(log: RunLog) -> bool:
    """True if the last third of the rows is no better than the first: by less than two fifths of the range."""
    values = log.values(score_of(log))
    if len(values) < LEAST_ROWS:
        return False
    third = max(len(values) // 3, 2 if len(values) > 4 else 1)
    gain = float(values[-third:].mean() - values[:third].mean())
    return gain < 0.4 * float(np.ptp(values)) or gain < 0.02 * float(np.abs(values).max())


def _ends(log: RunLog, name: str) -> tuple[float, float]:
    """First value and the median of the last two; nan where there are fewer than three."""
    values = log.values(name)
    return (float(values[0]), float(np.median(values[-2:]))) if len(values) >= 3 else (float("nan"), float("nan"))


def _certain_of_little(log: RunLog) -> Sign | None:
    """Entropy near 0 from the first row on, far from the largest reward and without a gain."""
    entropy, score = log.values("entropy"), log.values(score_of(log))
    if len(entropy) < 6 or len(score) < 6 or not stalls(log) or float(np.median(entropy)) > SURE:
        return None
    # the first steps of a run say so only where next to nothing is right
    most = 0.8 if log.last_step >= 2 * len(score) else 0.2
    if float(score.mean()) > most * max(float(score.max()), 1.0) or float(entropy[0]) > 2 * SURE:
        return None
    title = "the policy is nearly certain of its answers from the first row on, and does not gain"
    return Sign(("no_diversity", "entropy_collapse", "all_wrong"), title, ("entropy", "reward_std", "zero_signal"))


def _entropy_gone(log: RunLog) -> Sign | None:
    """Entropy falls to a fifth and below a twentieth of a nat, or most groups fall silent with it, past the best."""
    begin, end = _ends(log, "entropy")
    score = log.values(score_of(log))
    is_gone = end < min(0.2 * begin, GONE) or (log.last("zero_signal") > 0.8 and end < min(0.5 * begin, SURE))
    if not is_gone or len(score) < LEAST_ROWS or float(score[-1]) >= 0.97 * max(float(score.max()), 1.0):
        return None
    if float(score[-2:].mean()) > float(score.max()) - 0.02 and not log.last("zero_signal") > 0.8:
        return None
    title = "entropy is gone before the tasks are solved: the answers of a group are all alike"
    return Sign(("entropy_collapse", "no_diversity"), title, ("entropy", "zero_signal", "reward_std"))


def _breaks(log: RunLog) -> Sign | None:
    """Entropy far up, or the gradient ten times as long, while the score does not gain or falls by a fifth."""
    entropy, score = log.values("entropy"), log.values(score_of(log))
    begin, end = _ends(log, "entropy")
    is_hot = begin > 0.02 and (end > max(1.8 * begin, begin + 0.25) or (len(entropy) and entropy.max() > 3 * begin))
    first, last = _ends(log, "grad_norm")
    is_long = first > 0 and last > 10 * first
    has_lost = len(score) >= LEAST_ROWS and score.max() > 0 and score[-2:].mean() < 0.85 * score.max()
    if not ((is_hot and stalls(log)) or (is_long and (has_lost or stalls(log)))):
        return None
    what = log.key("entropy" if is_hot else "grad_norm")
    title = f"{what} rises several times over, and the reward does not"
    return Sign(("lr_too_high", "kl_runaway", "reward_noise"), title, ("entropy", "grad_norm", "kl", "lr"))


def _far_away(log: RunLog) -> Sign | None:
    """KL above half a nat a token and eight times its start, without a gain."""
    begin, end = (abs(value) for value in _ends(log, "kl"))
    if not (end > 0.5 and end > 8 * max(begin, 1e-3) and stalls(log)):
        return None
    return Sign(("kl_runaway", "lr_too_high"), "the policy leaves its reference and does not gain", ("kl", "grad_norm"))


def _at_rest(log: RunLog) -> Sign | None:
    """KL below 0.002 nats over a hundred steps and more, the reward where it was."""
    kl, clipped = np.abs(log.values("kl")), log.values("clip_fraction")
    # a KL that is 0 in every row is one that nobody computes
    if (
        len(kl) < 5
        or log.last_step < 100
        or not 0 < float(kl.max()) < 2e-3
        or (len(clipped) and float(clipped.max()) > 1e-3)
    ):
        return None
    begin, end = _ends(log, "entropy")
    score = log.values(score_of(log))
    is_level = len(score) >= 5 and (stalls(log) or float(np.ptp(score)) < 0.1 * max(1.0, float(np.abs(score).max())))
    if not is_level or (log.has("entropy") and abs(end - begin) > 0.15 * begin):
        return None
    title = f"after {log.last_step} steps the policy is still at its reference"
    return Sign(("lr_too_low", "weights_do_not_move", "kl_too_high"), title, ("kl", "clip_fraction", "lr", "entropy"))


def _lost(log: RunLog) -> Sign | None:
    """A score that falls to a seventh of its best and stays there."""
    score = log.values(score_of(log))
    if len(score) < 6 or score.min() < 0 or float(score[:2].max()) < 0.5 * float(score.max()) or not score.max() > 0:
        return None
    if float(score[-2:].max()) > 0.15 * float(score.max()):
        return None
    title = f"{log.key(score_of(log))} falls from {score.max():.3g} to {score[-1]:.3g}"
    return Sign(("lr_too_high", "kl_runaway", "advantage_sign"), title, ("kl", "grad_norm", "entropy", "length", "lr"))


def _unnamed_fall(log: RunLog) -> Sign | None:
    """Two or more shares without a name that fall to two thirds at most while the KL grows threefold."""
    begin, end = (abs(value) for value in _ends(log, "kl"))
    if log.has("reward") or log.has("success") or not end > 3 * begin:
        return None
    columns = [s.column for s in log.raw.values() if len(s.column) >= 4]
    shares = [c for c in columns if 0 <= float(c.values.min()) <= float(c.values.max()) <= 1]
    fallen = [c for c in shares if float(c.values[-2:].mean()) < 2 / 3 * float(c.values.max())]
    if len(fallen) < max(2, len(shares) / 2):
        return None
    title = f"{', '.join(c.key for c in fallen[:3])} fall while the policy leaves its reference"
    return Sign(("kl_runaway", "lr_too_high"), title, ("kl", "entropy", "grad_norm"))


def _grows_for_nothing(log: RunLog) -> Sign | None:
    """Answers that grow on, by half and more, while the score stays."""
    length, score = log.column("length"), log.column(score_of(log))
    if len(length) < LEAST_ROWS or len(score) < LEAST_ROWS or not length.values[0] > 2:
        return None
    # of a score that has risen with the first part of the growth, what the rest of it brought
    longer = np.flatnonzero(length.values > 1.4 * length.values[0])
    if not len(longer) or float(length.values[-2:].mean()) < 1.8 * length.values[0]:
        return None
    since = score.values[score.steps >= length.steps[longer[0]]]
    grown = float(length.values[-2:].mean() / length.values[longer[0]])
    bound = 0.02 * max(1.0, float(np.abs(score.values).max()))
    if grown < 1.25 or len(since) < 3 or float(since[-2:].mean() - since[0]) > bound:
        return None
    title = f"answers grow to {length.values[-2:].mean() / length.values[0]:.1f} times their length for no reward"
    return Sign(("length_hack", "no_eos", "truncation"), title, ("length", "truncated", "entropy"))


def _easy(log: RunLog) -> Sign | None:
    """Held-out accuracy of nine tenths before training and no more after it."""
    held_out = log.values("eval/accuracy")
    if len(held_out) < 3 or held_out[0] < 0.9 or float(held_out[-2:].mean()) > float(held_out[0]) + 0.02:
        return None
    title = "held-out answers were right before training: the tasks are too easy"
    return Sign(("all_right", "no_diversity"), title, ("eval/accuracy", "zero_signal", "grad_norm"))


def _seldom_right(log: RunLog) -> Sign | None:
    """A score of exactly 0 in two rows of three, the first ones among them."""
    score = log.values(score_of(log))
    if len(score) < 6 or score.min() < 0 or (score == 0).mean() < 2 / 3 or score[:3].any() or not stalls(log):
        return None
    title = f"no answer is right in {int((score == 0).sum())} of {len(score)} rows"
    return Sign(("all_wrong", "verifier_rejects_right_answers"), title, ("zero_signal", "entropy", "grad_norm"))


def _of_few_rollouts(log: RunLog) -> Sign | None:
    """Mean rewards that are multiples of a quarter at most: four rollouts a step tell nothing."""
    score = log.values(score_of(log))
    if len(score) < 8 or not stalls(log) or score.min() < 0 or score.max() > 1 or len(np.unique(score)) < 3:
        return None
    if (denominator(score) or 99) > 4:
        return None
    title = (
        f"the mean reward is a multiple of 1 / {denominator(score)} in every row: a step of so few rollouts is noise"
    )
    return Sign(("group_too_small", "no_diversity"), title, ("loss", "grad_norm"))


def _spikes_of_kl(log: RunLog) -> Sign | None:
    """Single KL values of nats beside thousandths, without a gain: log-probs of other tokens or of other weights."""
    kl = np.abs(log.values("kl"))
    if len(kl) < 6 or not stalls(log) or float(kl.max()) < max(5.0, 300 * float(np.median(kl))):
        return None
    title = f"{log.key('kl')} is {kl.max():.3g} in single steps and {np.median(kl):.2g} in most"
    return Sign(("sampler_mismatch", "stale_sampler", "kl_runaway"), title, ("kl", "gap_mean"))


def _clipped_from_start(log: RunLog) -> Sign | None:
    """A tenth of the tokens clipped from the first row on, without a gain."""
    clipped = log.values("clip_fraction")
    if len(clipped) < 5 or float(clipped.min()) < 0.1 or not stalls(log):
        return None
    title = "many tokens are clipped from the first row on: sampler and learner do not agree"
    return Sign(("sampler_mismatch", "too_off_policy"), title, ("clip_fraction", "approx_kl", "grad_norm", "entropy"))


def _unsure_of_all(log: RunLog) -> Sign | None:
    """Entropy of three nats a token and more from the first rows on: the policy does not know what it was asked."""
    entropy = log.values("entropy")
    if len(entropy) < LEAST_ROWS or not BLIND < float(np.median(entropy[:3])) < ALL_TOKENS or not stalls(log):
        return None
    title = (
        f"the policy hesitates between {np.exp(np.median(entropy[:3])):.0f} tokens at each place from the first row "
        "on: does it see its prompts in the form that it was trained on?"
    )
    return Sign(("wrong_template", "logprob_shift"), title, ("entropy", "kl", "grad_norm"))


SIGNS_OF_FIRST_STEPS = (_certain_of_little, _of_few_rollouts, _clipped_from_start, _unsure_of_all, _spikes_of_kl)
SIGNS = (
    *SIGNS_OF_FIRST_STEPS,
    _entropy_gone,
    _breaks,
    _far_away,
    _at_rest,
    _lost,
    _unnamed_fall,
    _grows_for_nothing,
    _easy,
    _seldom_right,
)
