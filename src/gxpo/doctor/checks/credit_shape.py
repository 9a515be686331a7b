"""Checks of the advantages: relative to their group, and of the same sign as the reward."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.checks.credit import SAMPLER
from gxpo.doctor.finding import Finding
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.sickness import finding, sickness

# compositions of gxpo whose advantages are the score less its group's mean; others have baselines of their own
GROUP_MEAN = ("grpo", "dr_grpo", "dapo", "gspo", "gmpo", "cispo", "rloo")
POSITIVE_ONLY = (
    "psr",
    "gpg",
    "raft",
    "rest_em",
    "gvpo",
    "luffy",
    "disco",
    "ppo",
    "gae",
)  # advantages need no mean of 0


@sickness(
    "wrong_groups",
    2,
    "advantages are not relative to their group",
    "mean advantage = mean reward; block means of the advantage far from 0",
    needs=("advantage_min", "rollouts"),
    follows=(),
)
def wrong_groups(log: RunLog) -> Finding | None:
    if str(log.setting("method") or "").startswith(POSITIVE_ONLY):
        return None
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
    if advantages is None or log.facts is None or log.facts.r.grouped_by == "prompt" or not _by_group_mean(log):
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
    if advantages.off_centre > 0.25 and advantages.correlation > 0.2:
        return finding(
            "wrong_groups",
            "critical",
            "likely",
            "advantages do not sum to 0 within a group: groups are of the wrong rollouts",
            line,
            examples=log.facts.examples(log.facts.members[0]),
        )
    return None


def _by_group_mean(log: RunLog) -> bool:
    """True if the run's method makes advantages relative to the group's mean; other trainers always do."""
    return log.source != "gxpo" or str(log.setting("method") or "").split("+")[0].split("@")[0] in GROUP_MEAN


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
)
def advantage_sign(log: RunLog) -> Finding | None:
    advantages = None if log.facts is None else log.facts.advantages
    if advantages is not None and log.facts is not None and advantages.groups >= 5:
        line = f"correlation of advantage and score within {advantages.groups} groups: {advantages.correlation:.2f}"
        some = log.facts.examples(log.facts.members[0])
        if advantages.correlation < -0.5:
            return finding(
                "advantage_sign",
                "critical",
                "proved",
                "the better answer has the smaller advantage",
                line,
                examples=some,
            )
        if abs(advantages.correlation) < 0.2 and _by_group_mean(log):
            return finding(
                "advantage_sign",
                "critical",
                "proved",
                "advantages have nothing to do with the rewards beside them: rows are out of order",
                line,
                examples=some,
            )
    # without rollouts: a policy that is pushed the wrong way falls at once, while a collapse comes after a peak
    score = log.trend("reward")
    if score is None or not score.falls or score.n < 10 or log.entropy_coefficient is not None:
        return None
    worse = score.first - score.last > 4 * score.ends_error or (log.evaluation_gain < 0 and score.falls)
    from_start = worse and score.best - score.first < 2 * score.ends_error
    # a gradient that explodes is of a learning rate that is too high
    grad = log.values("grad_norm")
    positive = grad[grad > 0]
    calm = len(positive) >= 4 and float(positive.max()) < 10 * float(np.median(positive[:8]))
    shape = all(0.6 < ratio < 1.6 for n in ("length",) if (ratio := _change(log, n)) is not None)
    if not (from_start and calm and shape and not log.last("truncated") > 0.5):
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
