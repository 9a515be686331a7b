"""Checks of the scores: rejected right answers, misaligned labels, missing scores, flipped signs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from gxpo.doctor.finding import Finding
from gxpo.doctor.rollout_answers import CORRECT, STYLE, References
from gxpo.doctor.rollout_texts import closed_only
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Series
from gxpo.doctor.sickness import finding, sickness

ERROR = re.compile(r"err|wrong|mistake|incorrect|distance|loss|fail|miss", re.I)
FINAL = 0.3  # share of rejected hits that end in the reference, from which they count as right answers
PENALTY = re.compile(r"penal|overlong|cost|length|repet", re.I)


@sickness(
    "verifier_rejects_right_answers",
    1,
    "the verifier rejects right answers",
    "reference answers occur in completions with the lowest score, far more often than other tasks' references do; or "
    "completions that close a tag which they did not open all have the lowest score",
    needs=("references",),
    follows=("wrong_template", "reward_noise"),
)
def verifier_rejects(log: RunLog) -> Finding | None:
    match = _references(log)
    if match is None or match.hits < 8:
        return _half_open(log)
    # short references (a digit) occur by chance: the rate must be far above that of other prompts' ones
    rate = match.hits / match.n
    if (
        match.accepted_share > 0.25
        or rate < 2 * match.chance
        or rate < 0.02
        or match.score_hit < match.score_miss - 0.2
    ):
        return _half_open(log)
    # a wrong answer may name the right number on its way: then some verdict tells the two apart
    if match.final < FINAL and match.accepted_share > 0:
        return _half_open(log)
    return finding(
        "verifier_rejects_right_answers",
        "critical",
        "proved",
        "completions with the right answer are scored as wrong",
        f"{match.hits} of {match.n} completions contain their reference answer, {match.chance:.1%} would by chance",
        f"{match.accepted_share:.0%} of those {match.hits} have more than the lowest score",
        _unopened_evidence(log),
        log.quote("reward"),
        examples=examples_of(log, match.rejected_rows),
    )


def rewards_of_others(log: RunLog) -> Finding | None:
    """Report rewards of 0 and 1 that are the verdicts of other rollouts: as many in every step, on other rows."""
    rollouts = log.training_rollouts
    if rollouts is None:
        return None
    rows = np.flatnonzero(np.isfinite(rollouts.score) & np.isfinite(rollouts.success))
    score, verdict, step = rollouts.score[rows], rollouts.success[rows], rollouts.step[rows]
    if len(score) < 48 or not np.isin(score, (0.0, 1.0)).all() or not np.isin(verdict, (0.0, 1.0)).all():
        return None
    # another property of the answers, as their form, would not be paid as often as answers are right, step by step
    steps = [s for s in np.unique(step) if 0 < verdict[step == s].sum() < (step == s).sum()]
    if len(steps) < 2 or any(score[step == s].sum() != verdict[step == s].sum() for s in np.unique(step)):
        return None
    differs = score != verdict
    right_rates = np.array([verdict[step == s].mean() for s in steps])
    expected_rate = float((2 * right_rates * (1 - right_rates)).mean())
    if differs.sum() < 8 or differs[np.isin(step, steps)].mean() < 0.6 * expected_rate:
        return None
    return finding(
        "reward_noise",
        "critical",
        "proved" if len(steps) > 2 else "likely",  # in two steps another reward may have equal sums by chance
        "rewards belong to other rollouts: each step pays as many as the verifier accepts, but not the same ones",
        f"{differs.sum()} of {len(score)} rollouts have another reward than their verdict; shuffled, about "
        f"{expected_rate:.0%} of them would",
        f"rewards and verdicts have equal sums in all {len(np.unique(step))} recorded steps",
        "is scoring.shuffle set, or are rewards joined to rollouts in another order?",
        log.quote("reward"),
        examples=examples_of(log, rows[differs]),
    )


def _unopened_evidence(log: RunLog) -> str:
    """Evidence where most completions close a tag that they did not open; "" where they do not."""
    rollouts = log.training_rollouts
    tag, is_closed_only = ("", np.zeros(1)) if rollouts is None else closed_only(rollouts.completion)
    share = float(is_closed_only.mean())
    opens = (
        0.0
        if rollouts is None
        else float(np.mean([re.search(rf"<{tag}>\s*$", p, re.I) is not None for p in rollouts.prompt]))
    )
    if share < 0.5:
        return ""
    prompt_text = f"{opens:.0%} of the prompts end in <{tag}>" if opens else "does the chat template open it?"
    return f"{share:.0%} of the completions hold </{tag}> and no <{tag}>: {prompt_text}"


def _half_open(log: RunLog) -> Finding | None:
    """Report a reward that rejects every completion that closes a tag which its prompt had opened."""
    rollouts = log.training_rollouts
    if rollouts is None or len(rollouts) < 16:
        return None
    tag, is_closed_only = closed_only(rollouts.completion)
    if is_closed_only.mean() < 0.5:
        return None
    # the columns that are at their lowest for all of these: the total, or one reward function
    columns = {"the reward": rollouts.score, **{f"the reward function {n}": v for n, v in rollouts.components.items()}}
    rejecting = [
        name
        for name, values in columns.items()
        if (known_values := values[is_closed_only & np.isfinite(values)]).size >= 16
        and float(known_values.max()) <= min(float(np.nanmin(values)), 0.0) + 1e-9
    ]
    if not rejecting:
        return None
    is_dead = rejecting[0] == "the reward"
    name = rejecting[0] if is_dead else rejecting[-1]
    return finding(
        ["verifier_rejects_right_answers", "all_wrong" if is_dead else "dead_component"],
        "critical" if is_dead or not log.gains else "warning",
        "likely",
        f"{name} rejects every completion that holds </{tag}> without <{tag}>: does it want both tags?",
        _unopened_evidence(log),
        log.quote("reward"),
        f"gxpo doctor PATH --reward FILE.py:FUNCTION scores these completions again, with <{tag}> before them, too",
        examples=examples_of(log, np.flatnonzero(is_closed_only)),
    )


@sickness(
    "labels_misaligned",
    1,
    "answers belong to other prompts",
    "one prompt with several references; completions agree with a neighbour's reference, or with each other and not "
    "with their own",
    needs=("references",),
    follows=(),
)
def labels_misaligned(log: RunLog) -> Finding | None:
    match = _references(log)
    if match is None:
        return None
    # what the answer depends on may lie in a world behind the prompt
    world = log.has("turns") or (log.has("tool_calls") and log.mean("tool_calls") > 0)
    if not world and match.contradictions >= 3 and match.contradictions > 0.3 * match.n_repeated:
        return finding(
            "labels_misaligned",
            "critical",
            "proved",
            "the same prompt stands beside different reference answers",
            f"{match.contradictions} of {match.n_repeated} repeated prompts have more than one reference answer",
            examples=examples_of(log, match.contradicting),
        )
    # a fit with a neighbour's reference: prompts and answers were shuffled or dropped apart
    if match.shift is not None:
        shift, rate, hits = match.shift
        way = (
            "the next prompt"
            if shift == 1
            else "the prompt before"
            if shift == -1
            else f"the prompt {shift:+d} places on"
        )
        return finding(
            "labels_misaligned",
            "critical",
            "proved",
            f"answers agree with the reference of {way}, not with their own",
            f"{rate:.0%} of the completions contain that reference, {hits:.0%} their own",
            examples=examples_of(log, range(3)),
        )
    # a group agrees on what is not the reference: either side may be wrong, so two ids
    if match.consensus is not None and not log.gains:
        agree, hits, n_groups = match.consensus
        return finding(
            ["labels_misaligned", "verifier_rejects_right_answers"],
            "critical",
            "possible",
            "a group's answers agree with each other and not with the reference",
            f"in {n_groups} groups {agree:.0%} of the answers are the commonest one; it contains the reference in "
            f"{hits:.0%}",
            log.quote("reward"),
            examples=examples_of(log, range(3)),
        )
    return None


def _is_summed(log: RunLog) -> bool:
    """True if the logged total is the plain sum of its components, so that no weight is negative."""
    names = [f"component/{n}" for n in log.components()]
    if not names or not log.has("reward") or any(len(log.values(n)) != len(log.values("reward")) for n in names):
        return False
    total = sum(log.values(n) for n in names)
    return bool(np.abs(total - log.values("reward")).max() < 0.02 * max(float(np.abs(total).max()), 1e-9))


def _subtracted_components(log: RunLog) -> list[str]:
    """Components for correctness whose weight in the total is negative, where a weighted sum of them is the total."""
    names, total = log.components(), log.values("reward")
    if len(names) < 2 or len(total) < 10 or any(len(log.values(f"component/{n}")) != len(total) for n in names):
        return []
    parts = np.stack([log.values(f"component/{n}") for n in names], axis=1)
    weights, _, rank, _ = np.linalg.lstsq(parts, total, rcond=1e-6)
    largest_residual = float(np.abs(parts @ weights - total).max())
    if rank < len(names) or largest_residual > 0.03 * max(float(np.ptp(total)), 1e-9):
        return []
    return [n for n, w in zip(names, weights, strict=True) if w < -0.05 and CORRECT.search(n) and not STYLE.search(n)]


def _references(log: RunLog) -> References | None:
    """Comparison with reference answers; None without rollouts or references."""
    return None if log.facts is None else log.facts.references


def examples_of(log: RunLog, rows: Iterable[int]) -> tuple[dict[str, Any], ...]:
    """At most three of these rollouts as evidence; none if there are no rollouts."""
    return () if log.facts is None else log.facts.examples(rows)


@sickness(
    "missing_scores",
    1,
    "scores are missing",
    "share of rollouts without a score; missing ones are wrong ones where the known ones are all right",
    needs=("unscored", "rollouts", "messages", "reward"),
    follows=("verifier_outage",),
)
def missing_scores(log: RunLog) -> Finding | None:
    warnings = [m for m in log.messages if "returned None" in m]
    share, title, evidence, examples = 0.0, "", [], []
    if log.has("unscored", "rollouts"):
        share = float(log.values("unscored").sum() / max(1.0, log.values("rollouts").sum()))
        evidence.append(log.quote("unscored"))
    rollouts = log.training_rollouts
    # the metrics count none: rows without a score are then turns or parts of a rollout
    has_partial_rows = log.has("unscored") and float(log.values("unscored").max()) == 0
    if rollouts is not None and len(rollouts) and not has_partial_rows:
        is_row_missing = ~np.isfinite(rollouts.score)
        for name, values in rollouts.components.items():
            partly = log.facts is not None and log.facts.partly_missing(values) > 0.1
            if len(rollouts.components) == 1 or CORRECT.search(name) or partly:
                is_component_missing = ~np.isfinite(values)
                if not (np.isfinite(rollouts.score) & ~is_component_missing).any():
                    continue  # a column of other rows, or of those alone that have no score
                is_row_missing = (
                    is_component_missing if is_component_missing.mean() > is_row_missing.mean() else is_row_missing
                )
        if is_row_missing.mean() > 0.02:
            score = rollouts.score[~is_row_missing]
            share = max(share, float(is_row_missing.mean()))
            evidence.append(f"{int(is_row_missing.sum())} of {len(rollouts)} rollouts that were read have no score")
            # a scorer that returns None for wrong answers leaves only right ones in every mean
            if len(score) and np.nanmin(score) == np.nanmax(score):
                evidence.append(f"all others have {np.nanmax(score):.3g}: only such answers seem to get a score")
            examples = examples_of(log, np.flatnonzero(is_row_missing))
    # means over no score at all are not a number
    score = log.series.get("reward")
    is_missing = np.empty(0) if score is None else np.isnan(score.values)
    if is_missing.sum() >= 3 and not is_missing.all() and is_missing.mean() > share and _is_finite_at(log, score):
        share = float(is_missing.mean())
        evidence.append(f"{log.key('reward')} has no value in {int(is_missing.sum())} of {len(is_missing)} steps")
        title = f"in {share:.0%} of the steps no rollout has a score"
    if warnings and not evidence:
        evidence.append(f"the console says: {warnings[0]}")
        share = max(share, 0.1)
    if share < 0.05:
        return None
    return finding(
        "missing_scores",
        "critical" if share > 0.2 or not log.gains else "warning",
        "proved",
        title or f"{share:.0%} of the rollouts have no score",
        *evidence,
        *(f"the console says: {t}" for t in warnings[:1]),
        log.quote("reward"),
        examples=examples,
    )


def _is_finite_at(log: RunLog, score: Series | None) -> bool:
    """True if loss and gradient are finite in the steps without a mean score, so that nothing broke but the scores."""
    if score is None:
        return False
    without = set(score.steps[np.isnan(score.values)].tolist())
    series = [log.series[n] for n in ("loss", "grad_norm") if n in log.series]
    return all(np.isfinite(s.values[[step in without for step in s.steps.tolist()]]).all() for s in series)


@sickness(
    "reward_sign",
    1,
    "a reward has the wrong sign",
    "total rises while verdicts, evaluation or a component fall; a score of right answers below that of wrong ones",
    needs=("success", "component/NAME", "rollouts", "reward"),
    follows=("near_constant_reward",),
)
def reward_sign(log: RunLog) -> Finding | None:
    match = _references(log)
    # two or three levels are a verdict; a sum of graded rewards may well pay a wrong answer more
    is_verdict = log.facts is not None and len(log.facts.levels) in (2, 3)
    if is_verdict and match is not None and match.hits >= 8 and match.score_miss - match.score_hit > 0.4:
        return finding(
            "reward_sign",
            "critical",
            "proved",
            "completions with the right answer score less than the others",
            f"mean score {match.score_hit:.0%} of its range where the reference answer occurs, {match.score_miss:.0%} "
            "elsewhere",
            log.quote("reward"),
            examples=examples_of(log, match.rejected_rows),
        )
    # components against the total within groups: a negative weight shows there, whatever the run does
    flipped = None if log.facts is None else log.facts.flipped
    if flipped is not None and not PENALTY.search(flipped[0]) and not _is_summed(log):
        name, correlation = flipped
        is_correctness = CORRECT.search(name) is not None and STYLE.search(name) is None
        if is_correctness or log.falls(f"component/{name}"):
            return finding(
                "reward_sign",
                "critical",
                "proved",
                f"the total falls where {name} rises: its weight is negative",
                f"within groups, {name} and the total reward (or the advantage) correlate at {correlation:.2f}",
                *(log.quote(n) for n in ("reward", f"component/{name}") if log.has(n)),
            )
    # a total that its components make up exactly, one of them with a negative weight
    for name in _subtracted_components(log):
        return finding(
            "reward_sign",
            "critical",
            "proved",
            f"the total falls where {name} rises: its weight is negative",
            log.quote("reward"),
            *(log.quote(f"component/{n}") for n in log.components()),
        )
    # a negative weight in the configuration, where no rollouts were read
    weights, components = log.setting("reward_weights"), log.components()
    if isinstance(weights, list) and len(weights) == len(components):
        for name, weight in zip(components, weights, strict=True):
            if isinstance(weight, int | float) and weight < 0 and CORRECT.search(name) and not STYLE.search(name):
                return finding(
                    "reward_sign",
                    "critical",
                    "likely",
                    f"the weight of {name} is negative",
                    f"reward weights {weights}",
                    log.quote(f"component/{name}"),
                    log.quote("reward"),
                )
    # metrics over the run: what is paid rises while correctness falls
    rising_components = [n for n in components if f"component/{n}" != log.correctness and log.rises(f"component/{n}")]
    rising_styles = [n for n in rising_components if not (CORRECT.search(n) and not STYLE.search(n))]
    # answers that grow with the reward are paid for their length, whatever becomes of the right ones
    is_longer = log.rises("length") and log.last("length") > 1.4 * log.first("length")
    is_worse = log.has("success") and log.falls("success") and not is_longer
    if log.rises("reward") and is_worse and not (rising_styles and not log.is_total(f"component/{rising_styles[0]}")):
        return finding(
            "reward_sign",
            "critical",
            "proved",
            "the reward rises while fewer answers are right",
            log.quote("reward"),
            log.quote("success"),
        )
    # a penalty falls where it works, and its sign is negative by design
    names = [n for n in log.components() if not PENALTY.search(n)]
    if log.rises("reward"):
        if len(log.components()) == 1 and names and log.falls(f"component/{names[0]}") and not is_longer:
            return finding(
                "reward_sign",
                "critical",
                "proved",
                f"the total rises while its only component {names[0]} falls",
                log.quote("reward"),
                log.quote(f"component/{names[0]}"),
            )
        right = log.correctness
        rising_others = [n for n in names if f"component/{n}" != right and log.rises(f"component/{n}")]
        rising_penalties = [n for n in log.components() if PENALTY.search(n) and log.rises(f"component/{n}")]
        if right is not None and log.falls(right) and right != "success" and not rising_others and not rising_penalties:
            low = log.values("reward").max() <= 1e-9
            if low or len(log.components()) == 1:
                return finding(
                    "reward_sign",
                    "critical",
                    "likely",
                    "the total rises while correctness falls, and is never above 0",
                    log.quote("reward"),
                    log.quote(right),
                )
    # components that are named as errors must not rise with the total
    for name in log.components():
        if ERROR.search(name) and log.rises(f"component/{name}") and log.rises("reward") and log.first("reward") >= 0:
            return finding(
                "reward_sign",
                "critical",
                "likely",
                f"{name} rises with the total: the reward pays for errors",
                log.quote(f"component/{name}"),
                log.quote("reward"),
                log.quote("entropy") if log.has("entropy") else "",
                examples=examples_of(log, range(3)),
            )
    # a score in [-1, 0] that ends at 0: right answers scored -1
    low, high = (float(log.values("reward").min()), float(log.values("reward").max())) if log.has("reward") else (0, 0)
    label = names[0] if len(log.components()) == 1 and names else None
    is_correctness = label is not None and CORRECT.search(label) and not STYLE.search(label)
    if (
        len(components) <= 1
        and high <= 1e-9
        and -1.05 < low < -0.05
        and (log.rises("reward") or (log.evaluation_gain < 0 and not log.falls("reward")))
    ):
        is_worse = log.evaluation_gain < 0 and log.evaluation != "eval/reward"
        levels = log.facts.levels if log.facts is not None else ()
        # a charge for length rises to 0 as answers shrink
        if not is_correctness and not levels and log.falls("length") and log.last("length") < 0.6 * log.first("length"):
            return None
        if is_worse or is_correctness or levels == (-1.0, 0.0):
            return finding(
                "reward_sign",
                "critical",
                "likely",
                "the reward lies between -1 and 0 and rises to 0: the sign of a score of right answers is flipped",
                log.quote("reward"),
                log.quote(log.evaluation) if log.evaluation else "",
                f"the reward function is called {label}" if label else "",
                examples=examples_of(log, range(2)),
            )
    return None
