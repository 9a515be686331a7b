"""Checks of what belongs together: advantages with the rewards of their group, log-probs with the sampler's tokens.

The sampler's tokens are those of its weights, too: staleness, and too many updates on the same rollouts.
"""

from __future__ import annotations

import numpy as np

from gxpo.doctor.checks.credit import SAMPLER
from gxpo.doctor.finding import Finding
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import trend
from gxpo.doctor.sickness import finding, sickness

GAPS = ("gap_mean", "gap_probability", "gap_kl", "gap_max", "gap_pearson", "gap_ratio")
USUAL = {
    "gap_mean": 0.05,
    "gap_probability": 0.02,
    "gap_kl": 0.005,
}  # nats, probability: above what bfloat16 engines show when in step
MOST_KL = 20.0  # nats a token: more than the first updates bring about
FAR = 0.1  # nats a token that a step moves the policy from where it sampled; 1e-3 to 1e-2 is usual
OFF_CENTRE = 0.25  # root mean square of the groups' mean advantage / that of all, above which they do not add up to 0
SHIFTED = {"gap_mean": 0.5, "gap_probability": 0.2, "gap_kl": 0.5}


@sickness(
    "wrong_groups",
    2,
    "advantages are not relative to their group",
    "mean advantage = mean reward; block means of the advantage far from 0",
    needs=("advantage_min", "rollouts"),
    follows=(),
)
def wrong_groups(log: RunLog) -> Finding | None:
    if log.has("advantage_min", "advantage_mean", "reward"):
        # metrics alone: the mean advantage of a step equals its mean reward, step by step
        steps = set(log.steps("advantage_mean").tolist()) & set(log.steps("reward").tolist())
        a = dict(zip(log.steps("advantage_mean").tolist(), log.values("advantage_mean").tolist(), strict=True))
        s = dict(zip(log.steps("reward").tolist(), log.values("reward").tolist(), strict=True))
        x, y = np.array([a[k] for k in sorted(steps)]), np.array([s[k] for k in sorted(steps)])
        close = len(x) >= 5 and float(np.abs(x - y).mean()) < 0.2 * float(np.abs(y).mean())
        if close and float(np.abs(x).mean()) > 0.02:  # relative to a group they would sum to about 0
            return finding(
                "wrong_groups",
                "critical",
                "proved",
                "advantages are the raw rewards: every rollout is a group of its own",
                log.quote("advantage_min"),
                log.quote("advantage_mean"),
                log.quote("reward"),
            )
    if log.facts is not None and log.facts.mixed > 0.5:
        return finding(
            "wrong_groups",
            "critical",
            "proved",
            "rollouts of different prompts are compared with each other",
            f"in {log.facts.mixed:.0%} of the blocks of {log.facts.group_size:g} rows that share a baseline, prompts "
            "differ",
            examples=log.facts.examples(log.facts.members[0]),
        )
    # with groups made of equal prompts, two groups of one prompt merge: their means are not the trainer's
    advantages = None if log.facts is None else log.facts.advantages
    if advantages is None or log.facts is None or log.facts.r.grouped_by == "prompt":
        return None
    if not (advantages.raw or advantages.off_centre > OFF_CENTRE) or not log.centres_outcomes:
        return None
    line = (
        f"root mean square of the groups' mean advantage / that of all advantages = {advantages.off_centre:.2f}; "
        f"correlation with the score within groups {advantages.correlation:.2f} ({advantages.groups} groups)"
    )
    if advantages.raw:
        return finding(
            "wrong_groups",
            "critical",
            "proved",
            "advantages are the raw rewards: no group's mean was subtracted",
            line,
            examples=log.facts.examples(log.facts.members[0]),
        )
    if advantages.correlation > 0.2:
        return finding(
            "wrong_groups",
            "critical",
            "likely",
            "advantages do not sum to 0 within a group: groups are of the wrong rollouts",
            line,
            examples=log.facts.examples(log.facts.members[0]),
        )
    return None


@sickness(
    "advantage_sign",
    2,
    "advantages point the wrong way, or belong to other rows",
    "correlation of advantage and reward within groups of -1 or 0; else reward falls steadily from step 1 with a calm "
    "gradient",
    needs=("rollouts", "grad_norm"),
    follows=(
        "wrong_groups",
        "reward_noise",
        "group_too_small",
        "verifier_outage",
        "reward_sign",
        "too_off_policy",
        "non_finite",
        *SAMPLER,
    ),
    of_training=True,
)
def advantage_sign(log: RunLog) -> Finding | None:
    advantages = None if log.facts is None else log.facts.advantages
    is_odd = advantages is not None and advantages.groups >= 5 and advantages.correlation < 0.2
    if advantages is not None and log.facts is not None and is_odd and log.centres_outcomes:
        line = f"correlation of advantage and score within {advantages.groups} groups: {advantages.correlation:.2f}"
        examples = log.facts.examples(log.facts.members[0])
        if advantages.correlation < -0.5:
            return finding(
                "advantage_sign",
                "critical",
                "proved",
                "the better answer has the smaller advantage",
                line,
                examples=examples,
            )
        if advantages.correlation > -0.2:
            return finding(
                "advantage_sign",
                "critical",
                "proved",
                "advantages have nothing to do with the rewards beside them: rows are out of order",
                line,
                examples=examples,
            )
    # without rollouts: a policy that is pushed the wrong way falls at once, while a collapse comes after a peak
    score = log.trend("reward")
    if score is None or not score.falls or score.n < 10 or log.entropy_coefficient is not None:
        return None
    is_worse = score.first - score.last > 4 * score.ends_error or (log.evaluation_gain < 0 and score.falls)
    falls_from_start = is_worse and score.best - score.first < 2 * score.ends_error
    # a gradient that explodes is of a learning rate that is too high
    grad = log.values("grad_norm")
    positive = grad[grad > 0]
    is_calm = len(positive) >= 4 and float(positive.max()) < 10 * float(np.median(positive[:8]))
    keeps_length = all(0.6 < ratio < 1.6 for n in ("length",) if (ratio := _change(log, n)) is not None)
    if not (falls_from_start and is_calm and keeps_length and not log.last("truncated") > 0.5):
        return None
    ids = ["advantage_sign", "lr_too_high"]
    # equal texts with equal scores rule noise out; without enough of them it stays possible
    same_text = log.facts.same_text if log.facts is not None else None
    if same_text is None or same_text[0] < 10:
        ids.insert(1, "reward_noise")
    return finding(
        ids,
        "critical",
        "likely",
        "reward falls steadily from the first step on, with a calm gradient: the gradient points the wrong way",
        log.quote("reward"),
        log.quote("grad_norm"),
        *(log.quote(n) for n in ("entropy", "length") if log.has(n)),
        "to tell them apart, overfit one batch at a tenth of the learning rate: with the right sign its reward rises",
    )


def _change(log: RunLog, name: str) -> float | None:
    """Ratio of the last level of a series to its first; None if it is unknown."""
    return log.last(name) / log.first(name) if log.has(name) and log.first(name) > 0 else None


def _gap(log: RunLog) -> str | None:
    """Name of the best recorded series for the mean gap of sampler and learner."""
    return next((n for n in ("gap_mean", "gap_probability", "gap_kl") if log.has(n)), None)


def grows(log: RunLog, name: str) -> bool:
    """True if a gap begins at about 0 and grows to several times its start, at the end or between deliveries of the
    weights, after each of which it starts anew."""
    values, usual = log.values(name), USUAL.get(name, 0.1)
    gap_trend = trend(values)
    if gap_trend is None:
        return False
    if gap_trend.may_rise and gap_trend.last > 3 * max(gap_trend.first, 1e-4) and gap_trend.last > 0.4 * usual:
        return True
    # with deliveries now and then the gap is a saw-tooth without a trend, high most of the time
    return bool(values[0] < 0.25 * usual and np.quantile(values[1:], 0.7) > max(usual, 5 * float(values[0])))


@sickness(
    "recorded_logprobs",
    3,
    "recorded log-probs are not the policy's",
    "`gxpo verify` recomputes others from the checkpoints of the policy that sampled",
    needs=(),
    follows=(),
)
def recorded_logprobs(log: RunLog) -> Finding | None:
    different = [s for s in log.verified.get("steps", ()) if s.get("cause")]
    if not different:
        return None
    worst = max(different, key=lambda s: s.get("largest") or 0.0)
    place = worst.get("place") or {}
    # files that were changed afterwards do not make the run sick, but it can't be resumed or read as it was
    was_changed = worst["cause"] in ("records", "weights", "dtype")
    return finding(
        "recorded_logprobs",
        "warning" if was_changed or log.gains else "critical",
        "proved",
        f"recorded log-probs are not the policy's ({worst['cause']})",
        f"gxpo verify: {len(different)} of {len(log.verified['steps'])} steps; {worst['finding']}",
        f"largest deviation {worst['largest'] or float('inf'):.3g} nats"
        + (f" at step {place['step']}, rollout {place['rollout']!r}, token {place['token']}" if place else "")
        + f", tolerance {worst['tolerance']:.2g}",
        worst["remedy"],
    )


@sickness(
    "logprob_shift",
    3,
    "log-probs of sampler and learner belong to other tokens or another template",
    "mean gap above 0.5 nats (0.2 in probability) or Pearson below 0.5 at step 1",
    needs=GAPS,
    follows=("wrong_template", "recorded_logprobs"),
)
def logprob_shift(log: RunLog) -> Finding | None:
    if (far := _far_at_first(log)) is not None:
        return far
    name = _gap(log)
    at_once = name is not None and float(log.values(name)[0]) > SHIFTED[name]
    is_uncorrelated = log.has("gap_pearson") and float(log.values("gap_pearson")[0]) < 0.5
    # a largest gap alone tells no shift from others
    largest_gap = log.values("gap_max") if name is None else np.empty(0)
    if len(largest_gap) and float(largest_gap[0]) > 2 and float(np.median(largest_gap)) > 2:
        return finding(
            ["logprob_shift", "sampler_mismatch"],
            "critical",
            "likely",
            "from step 1 on the learner's log-prob of some sampled token is nats away from the sampler's",
            log.quote("gap_max"),
            "the mean gap would tell them apart: half a nat and more is a shift of tokens, less is numerics",
        )
    # sampled tokens are unlikely under shifted log-probs: far more than the policy is unsure of
    unlikely = name == "gap_mean" and log.has("entropy") and log.first("gap_mean") > 1.2 * log.first_entropy
    wide = log.has("gap_max") and float(np.median(log.values("gap_max"))) > 6
    if unlikely and wide and log.first("gap_mean") > USUAL["gap_mean"]:
        return finding(
            "logprob_shift",
            "critical",
            "likely",
            "from step 1 on sampled tokens are less likely to the learner than the policy's entropy allows",
            *(log.quote(n) for n in (*GAPS, "entropy") if log.has(n)),
        )
    if not (at_once or is_uncorrelated):
        return None
    evidence = [log.quote(n) for n in GAPS if log.has(n)]
    return finding(
        "logprob_shift",
        "critical",
        "proved" if is_uncorrelated and at_once else "likely",
        "at step 1 the learner's log-probs have little to do with the sampler's: shifted tokens or another template",
        *evidence,
    )


def _far_at_first(log: RunLog) -> Finding | None:
    """Report a KL of nats a token in the first row, before any update could bring it about."""
    kl, steps = log.values("kl"), log.steps("kl")
    if len(kl) < 2 or steps[0] > 10 or "reward" in log.key("kl"):
        return None
    if kl[0] < MOST_KL:
        return None
    return finding(
        ["logprob_shift", "kl_runaway"],
        "warning" if log.gains else "critical",
        "likely",
        f"the policy is {kl[0]:.3g} nats a token from its reference before it has moved: the log-probs are of other "
        "tokens, of a mask that sampling had, or of another model",
        log.quote("kl"),
        *(log.quote(n) for n in ("grad_norm", "loss", "entropy") if log.has(n)),
    )


@sickness(
    "stale_sampler",
    3,
    "the sampler keeps old weights",
    "gap of sampler and learner grows from about 0; rollouts do not follow the policy",
    needs=(*GAPS, "staleness_mean"),
    follows=("recorded_logprobs",),
    of_training=True,
)
def stale_sampler(log: RunLog) -> Finding | None:
    if logprob_shift(log) is not None:
        return None
    # recorded staleness needs no inference from log-probs
    staleness = log.trend("staleness_mean")
    if staleness is not None and staleness.last > 8 and staleness.last > 3 * max(staleness.first, 1):
        # weights that arrive at a bounded distance: the bound is what is wrong
        values = log.values("staleness_mean")
        is_bounded = float(np.ptp(values[len(values) // 2 :])) < 0.05 * staleness.last
        return finding(
            ["too_off_policy", "stale_sampler"] if is_bounded else "stale_sampler",
            "critical",
            "proved",
            f"rollouts are {staleness.last:.0f} updates old, the bound of their age"
            if is_bounded
            else "rollouts are sampled with ever older weights",
            log.quote("staleness_mean"),
        )
    name = _gap(log) or ("gap_max" if log.has("gap_max") else None)
    if name is None or not grows(log, name):
        return None
    if name == "gap_max" and log.last(name) < 1.0:
        return None
    values = log.values(name)
    if _is_fresh(log):
        return None  # it is no age that grows
    if float(values[0]) > 3 * USUAL.get(name, 0.1):
        return None  # weights that were never apart at first begin near 0
    # a sampler that lags by a constant number of updates has a gap that stays at one level
    third = len(values) // 3
    saturates = abs(values[-third:].mean() - values[third:-third].mean()) < 0.15 * values[-third:].mean()
    if third and saturates and float(np.quantile(values, 0.7)) < 1.5 * USUAL.get(name, 0.1):
        return None  # a bounded lag
    return finding(
        "stale_sampler",
        "critical",
        "likely",
        "the sampler falls behind the learner: it does not receive its weights",
        *(log.quote(n) for n in GAPS if log.has(n)),
        log.quote("reward"),
        "an adapter that never reaches the sampler looks the same; where deliveries work, the gap drops after each one",
    )


def _is_fresh(log: RunLog) -> bool:
    """True if rollouts are recorded to be at most two updates old, from the first to the last."""
    return len(log.values("staleness_mean")) >= 6 and float(log.values("staleness_mean").max()) < 2.5


@sickness(
    "sampler_mismatch",
    3,
    "sampler and learner disagree on the same weights",
    "mean gap above 0.05 nats (0.02 in probability), or Pearson below 0.98, from step 1 and without growth",
    needs=GAPS,
    follows=("recorded_logprobs",),
)
def sampler_mismatch(log: RunLog) -> Finding | None:
    if logprob_shift(log) is not None or stale_sampler(log) is not None:
        return None
    name = _gap(log)
    # of few values, one that begins as usual is of a sampler that falls behind
    if name is not None and len(log.values(name)) < 6 and float(log.values(name)[0]) < USUAL[name]:
        return None
    if name is not None and _is_fresh(log) and grows(log, name) and log.last(name) > 3 * USUAL[name]:
        return finding(
            ["sampler_mismatch", "stale_sampler"],
            "warning" if log.gains else "critical",
            "likely",
            "sampler and learner come apart, although rollouts are fresh: the same weights give other probabilities",
            *(log.quote(n) for n in (*GAPS, "staleness_mean", "reward") if log.has(n)),
            "weights whose delivery is counted and does not arrive look the same: their checksums would tell",
        )
    # rollouts that are some updates old by design have these updates in their gap
    age = float(np.median(log.values("staleness_mean"))) if log.has("staleness_mean") else 0.0
    usual = USUAL[name] * (1 + max(age, 0.0)) if name is not None else 0.0
    large = name is not None and float(np.median(log.values(name))) > usual and log.first(name) > 0.6 * usual
    # a nucleus or another temperature shows beside the policy's own entropy, however small both are
    relative = name == "gap_mean" and log.has("entropy") and log.first("gap_mean") > max(5e-3, 0.4 * log.first_entropy)
    is_uncorrelated = log.has("gap_pearson") and float(np.median(log.values("gap_pearson"))) < 0.98
    ratio = log.has("gap_ratio") and float(np.median(log.values("gap_ratio"))) < 0.7
    worst = name is None and log.has("gap_max") and float(np.median(log.values("gap_max"))) > 1.0
    if not (
        large
        or (is_uncorrelated and name is None)
        or (is_uncorrelated and name is not None and log.first(name) > 0.3 * USUAL[name])
        or worst
        or relative
        or ratio
    ):
        return None
    return finding(
        "sampler_mismatch",
        "warning" if log.gains else "critical",
        "likely",
        "sampler and learner disagree on the probabilities of the same tokens from the first step on",
        *(log.quote(n) for n in GAPS if log.has(n)),
        *(f"sampling {n} = {log.setting(n)}" for n in ("temperature", "top_p", "top_k") if log.setting(n)),
    )


@sickness(
    "too_off_policy",
    3,
    "too many updates on the same rollouts",
    "clip share above 25%, largest ratio above 100 or divergence within a step above 0.1 nats, while reward stalls or "
    "falls",
    needs=("clip_fraction", "ratio_max"),
    follows=("stale_sampler", "sampler_mismatch", "logprob_shift"),
    of_training=True,
)
def too_off_policy(log: RunLog) -> Finding | None:
    shares = log.values("clip_fraction")  # after a collapse nothing is clipped any more
    early = shares[: max(6, len(shares) // 3)]
    clipped = max(float(np.quantile(x, 0.8)) for x in (shares, early)) if len(shares) else 0.0
    ratio = float(np.median(log.values("ratio_max"))) if log.has("ratio_max") else 0.0
    reuse = log.updates_per_batch
    # a saw-tooth within batches: the reward of fresh rollouts falls and comes back
    score = log.trend("reward")
    reward = log.values("reward")
    has_fallen = len(reward) >= 3 and float(reward[0] - reward[-1]) > max(0.3 * abs(float(reward[0])), 0.05)
    has_fallen = has_fallen and (len(reward) < 6 or log.falls("reward"))
    is_torn = score is not None and score.noise > 0.1 and score.noise > 0.15 * max(abs(score.best), 1e-9)  # a saw-tooth
    is_overused = reuse is not None and reuse >= 8 and (has_fallen or is_torn) and clipped > 0.05
    # the divergence within a step counts only with several updates: a single one can't run away
    drift = float(np.median(log.values("approx_kl"))) if log.has("approx_kl") else 0.0
    is_far = drift > FAR and (reuse or 0) >= 4
    # half as much, in a run that is past its best in training and held out
    is_clipped_past_best = log.is_past_best and clipped > 0.1
    if clipped < 0.25 and ratio < 100 and not is_overused and not is_far and not is_clipped_past_best:
        return None
    # with one update the ratio is 1, and what is clipped is a mismatch of sampler and learner
    if reuse is not None and reuse < 2 and clipped < 0.4:
        return None
    evidence = [log.quote(n) for n in ("clip_fraction", "ratio_max", "approx_kl") if log.has(n)]
    evidence += [f"updates on the same rollouts: {reuse:g}"] if reuse else []
    is_worse = is_overused or (
        score is not None and (log.falls("reward") or score.best - score.last > 4 * score.ends_error)
    )
    if log.gains and not is_worse:
        return finding(
            "too_off_policy", "note", "possible", "many tokens are clipped, but the run still gains", *evidence
        )
    return finding(
        "too_off_policy",
        "critical" if is_worse else "warning",
        "likely" if (reuse or 0) >= 4 or is_worse else "possible",
        "too many updates on the same rollouts: the policy moves far from the one that sampled",
        *evidence,
        log.quote("reward"),
    )
