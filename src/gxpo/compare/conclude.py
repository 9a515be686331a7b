"""Draw conclusions from runs: pairs by seed and held-out task, estimates, verdicts, and caveats for a reader."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

import numpy as np

from gxpo.base.errors import ConfigError
from gxpo.compare.inference import (
    FEWEST_SEEDS,
    Spread,
    area_under_curve,
    crossed_spread,
    holm,
    interquartile_mean,
    mean_over_settings,
    more_tasks,
    probability_of_improvement,
    seed_interval,
    seed_sd,
    seed_spread,
    seeds_needed,
)
from gxpo.compare.results import (
    COLLAPSED,
    Arm,
    ArmSummary,
    Budget,
    Comparison,
    Difference,
    Estimate,
    RunResult,
    Verdict,
)
from gxpo.compare.wording import interval, join_words, number, one_rate, places, probability

ACCURACY = "eval_accuracy"  # the measure that is the mean of verdicts by held-out task
ALPHA = 0.05
COLLAPSE_FLOOR = 0.05  # a run whose best is below this share can't collapse: it is noise near 0
SHARED_TASKS = 0.5  # least share of the held-out tasks that all runs must have in common to be paired by task
UNDERSPENT, OVERSPENT = 0.95, 1.1  # shares of the budget below and above which a note says so
ROUNDING = 1e-3  # by which a stored measure may differ from the mean of its verdicts
NO_ESTIMATE = Estimate(math.nan, math.nan, math.nan, 0)

Pair = tuple[RunResult, RunResult]  # of the arm, of the base
Verdicts = Callable[[RunResult], Mapping[str, float]]


def conclude(
    runs: Sequence[RunResult],
    arms: Sequence[Arm],
    *,
    setting: str,
    measure: str,
    better: Literal["more", "less"],
    budget: Budget,
    keys: Mapping[str, Any],
    tuned: Mapping[str, Mapping[str, Any]] | None = None,
    commands: Sequence[str] = (),
    versions: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare runs: estimates of each arm, and the difference and verdict of each arm against the base.

    A difference is paired by seed and, if every run recorded its verdicts (measure `eval_accuracy`), by held-out task.
    Its interval is over both (`crossed_spread`), otherwise over seeds alone. Runs that ended before their budget are
    counted and in no estimate. A verdict of `better` or `worse` takes three paired seeds, an interval without 0 and
    p < 0.05 by Holm's method over the arms (not over controls); `seeds_needed` is at 0.05 / arms.

    Raises `ConfigError` unless one arm is the base, labels are unique, and every run is of one of the arms, once.
    """
    # Failed runs stay in the summaries, where they are counted, and are in no estimate.
    runs_by_arm = _by_arm(runs, arms)
    base = next(arm for arm in arms if arm.kind == "base")
    usable_by_arm = {arm.label: [r for r in runs_by_arm[arm.label] if not trouble(r)] for arm in arms}
    summaries = [
        _summary(arm, runs_by_arm[arm.label], usable_by_arm[arm.label], measure, better, budget) for arm in arms
    ]
    compared_arms = [arm for arm in arms if arm.kind != "base"]
    pairs_by_arm = {arm.label: pair_runs(usable_by_arm[arm.label], usable_by_arm[base.label]) for arm in compared_arms}
    # All differences before any verdict: Holm's correction of one arm depends on the p of the others. Controls are not
    # claims of an improvement, so they neither count for the correction nor are corrected.
    sign = 1.0 if better == "more" else -1.0
    compared_labels = [arm.label for arm in compared_arms if arm.kind == "arm"]
    raw_differences = [
        _difference(a.label, base.label, pairs_by_arm[a.label], measure, sign, budget) for a in compared_arms
    ]
    adjusted_p = dict(
        zip(compared_labels, holm([d.end.p for d in raw_differences if d.arm in compared_labels]), strict=True)
    )
    decimals = places(summaries)
    differences = [
        _with_verdict(d, adjusted_p.get(d.arm), len(compared_labels), decimals, never_acted(pairs_by_arm[d.arm]))
        for d in raw_differences
    ]
    comparison = Comparison(
        setting=setting,
        measure=measure,
        better=better,
        budget=budget,
        keys=dict(keys),
        arms=summaries,
        differences=differences,
        tuned=dict(tuned or {}),
        commands=list(commands),
        versions=dict(versions or {}),
    )
    return replace(comparison, notes=_notes(comparison, usable_by_arm, pairs_by_arm, decimals))


@dataclass(frozen=True)
class Overall:
    """Comparison of an arm with the base over several settings of equal weight; positive is in the arm's favour.

    difference         mean over settings of the paired difference of the last evaluation
    middle, of_base    interquartile mean over all runs of all settings, of the arm and of the base
    improves           probability that a run of the arm ends above a run of the base, mean over settings
    """

    arm: str
    against: str
    settings: Sequence[str]
    difference: Estimate
    middle: Estimate
    of_base: Estimate
    improves: Estimate


def overall(comparisons: Sequence[Comparison]) -> list[Overall]:
    """Average each arm that all comparisons have (controls too) over the settings.

    ConfigError if the settings have different measures or bases. An arm without a pair in some setting is left out.
    """
    # A mean over different units would have none.
    if len({(c.measure, c.better, _base(c).arm.label) for c in comparisons}) > 1:
        raise ConfigError("settings with different measures or bases have no common mean: report each by itself")
    out = []
    for arm in comparisons[0].arms if comparisons else ():
        label = arm.arm.label
        if arm.arm.kind == "base" or any(label not in {a.arm.label for a in c.arms} for c in comparisons):
            continue
        first = comparisons[0]
        sign = 1.0 if first.better == "more" else -1.0
        # Only seeds that both arms have, in each setting by itself.
        pairs = [pair_runs(usable_runs(c.arm(label).runs), usable_runs(_base(c).runs)) for c in comparisons]
        # An arm without a pair in one setting has no mean over all of them.
        if not all(pairs):
            continue
        # [settings][side][seeds]; the sign makes the probability one of improvement also where less is better.
        ends = [[[r.end for r in side] for side in zip(*p, strict=True)] for p in pairs]
        signed = [[[sign * x for x in side] for side in sides] for sides in ends]
        out.append(
            Overall(
                label,
                _base(first).arm.label,
                [c.setting for c in comparisons],
                mean_over_settings([difference_spread(p, first.measure, sign) for p in pairs]),
                interquartile_mean([sides[0] for sides in ends]),
                interquartile_mean([sides[1] for sides in ends]),
                probability_of_improvement([sides[0] for sides in signed], [sides[1] for sides in signed]),
            )
        )
    return out


def trouble(run: RunResult) -> str:
    """Reason why a run is in no estimate; empty if it is in them."""
    if run.trouble or not run.points:
        return run.trouble or "no evaluation"
    return "" if math.isfinite(run.start) and math.isfinite(run.end) else "an evaluation without a value"


def pair_runs(arm: Sequence[RunResult], base: Sequence[RunResult]) -> list[Pair]:
    """Pairs (arm, base) of runs of equal seed, in the order of seeds."""
    of_base = {r.seed: r for r in base}
    return [(r, of_base[r.seed]) for r in sorted(arm, key=lambda r: r.seed) if r.seed in of_base]


def difference_spread(pairs: Sequence[Pair], measure: str, sign: float = 1.0) -> Spread:
    """Paired difference of the last evaluations, over seeds and, if verdicts are known, held-out tasks."""
    arm, base = (_verdict_table(side, measure, lambda r: r.after, field="end") for side in _sides(pairs))
    if arm is not None and base is not None:
        tasks = sorted(set(arm) & set(base))
        if _share_enough_tasks(tasks, [*arm, *base]):
            return crossed_spread(np.array([sign * np.subtract(arm[t], base[t]) for t in tasks]).T)
    return seed_spread([sign * subtract(a.end, b.end) for a, b in pairs])


def has_collapsed(run: RunResult, better: Literal["more", "less"]) -> bool:
    """Return True if the run ended below `COLLAPSED` times its best evaluation, and that was at least `COLLAPSE_FLOOR`.

    Always False if less is better: such a measure has no best value to fall from.
    """
    best = max((p.value for p in run.points if math.isfinite(p.value)), default=0.0)
    return better == "more" and best >= COLLAPSE_FLOOR and run.end < COLLAPSED * best


def _by_arm(runs: Sequence[RunResult], arms: Sequence[Arm]) -> dict[str, list[RunResult]]:
    labels = [arm.label for arm in arms]
    if len(set(labels)) < len(labels) or sum(arm.kind == "base" for arm in arms) != 1:
        raise ConfigError(f"arms {', '.join(labels)}: give each a name of its own, and make one of them the base")
    grouped: dict[str, list[RunResult]] = {label: [] for label in labels}
    # Sorted by seed: pairs and curves must not depend on the order in which runs were given.
    for run in sorted(runs, key=lambda r: r.seed):
        if run.arm not in grouped:
            raise ConfigError(f"{run.path} is of arm {run.arm}, which is not compared: there are {', '.join(labels)}")
        # Two runs of one seed would count as two independent ones.
        if grouped[run.arm] and grouped[run.arm][-1].seed == run.seed:
            raise ConfigError(f"{run.path} and {grouped[run.arm][-1].path} are both {run.arm} with seed {run.seed}")
        grouped[run.arm].append(run)
    return grouped


def usable_runs(runs: Sequence[RunResult]) -> list[RunResult]:
    """Runs that are in the estimates: those that spent their budget."""
    return [r for r in runs if not trouble(r)]


def _base(comparison: Comparison) -> ArmSummary:
    return next(a for a in comparison.arms if a.arm.kind == "base")


def _sides(pairs: Sequence[Pair]) -> tuple[list[RunResult], list[RunResult]]:
    return [a for a, _ in pairs], [b for _, b in pairs]


def subtract(a: float, b: float) -> float:
    """a - b, exactly 0 if the two differ by rounding alone."""
    return 0.0 if math.isclose(a, b, rel_tol=1e-12) else a - b


def _share_enough_tasks(shared_tasks: Sequence[str], all_tasks: Sequence[str]) -> bool:
    return len(shared_tasks) > 1 and len(shared_tasks) >= SHARED_TASKS * len(set(all_tasks))


def _verdict_table(
    runs: Sequence[RunResult], measure: str, verdicts: Verdicts, *, field: Literal["start", "end"]
) -> dict[str, list[float]] | None:
    """Verdicts of each run by held-out task, for the tasks that all runs have; None if the measure is not the mean of
    verdicts, or some run did not record them."""
    tables = [verdicts(r) for r in runs]
    if measure != ACCURACY or not tables or not all(tables):
        return None
    # Verdicts whose mean is not the reported value belong to another evaluation, or to a curve cut between two.
    if any(abs(fmean(v.values()) - getattr(r, field)) > ROUNDING for v, r in zip(tables, runs, strict=True)):
        return None
    shared_tasks = sorted(set(tables[0]).intersection(*tables[1:]))
    if not _share_enough_tasks(shared_tasks, [t for v in tables for t in v]):
        return None
    return {t: [v[t] for v in tables] for t in shared_tasks}


def _level(runs: Sequence[RunResult], measure: str, verdicts: Verdicts, field: Literal["start", "end"]) -> Estimate:
    """Mean of the measure with its interval over runs, and over tasks if it is known by task."""
    if not runs:
        return NO_ESTIMATE
    table = _verdict_table(runs, measure, verdicts, field=field)
    if table is not None:
        return crossed_spread(np.array(list(table.values())).T).estimate()
    return seed_interval([getattr(r, field) for r in runs])


def _gain(runs: Sequence[RunResult], measure: str) -> Estimate:
    """Last minus first evaluation, paired within each run."""
    if not runs:
        return NO_ESTIMATE
    start_table = _verdict_table(runs, measure, lambda r: r.before, field="start")
    end_table = _verdict_table(runs, measure, lambda r: r.after, field="end")
    if start_table is not None and end_table is not None:
        shared_tasks = sorted(set(start_table) & set(end_table))
        if _share_enough_tasks(shared_tasks, [*start_table, *end_table]):
            return crossed_spread(
                np.array([np.subtract(end_table[t], start_table[t]) for t in shared_tasks]).T
            ).estimate()
    return seed_interval([r.end - r.start for r in runs])


def area(run: RunResult, budget: Budget) -> float:
    """Mean of the measure over the budget; nan if the run has no value, or its cost is unknown."""
    is_known = any(math.isfinite(p.value) and math.isfinite(p.cost(budget.unit)) for p in run.points)
    return area_under_curve(run.points, budget.unit, budget.amount) if budget.amount > 0 and is_known else math.nan


def _summary(
    arm: Arm,
    runs: Sequence[RunResult],
    usable_runs: Sequence[RunResult],
    measure: str,
    better: Literal["more", "less"],
    budget: Budget,
) -> ArmSummary:
    # Costs are means over the runs that spent their budget; failed ones are only counted.
    def mean(value: Callable[[RunResult], float]) -> float:
        return fmean(value(r) for r in usable_runs) if usable_runs else math.nan

    return ArmSummary(
        arm=arm,
        runs=list(runs),
        # Before and after by held-out task where verdicts are recorded, or else by seed alone.
        start=_level(usable_runs, measure, lambda r: r.before, "start"),
        end=_level(usable_runs, measure, lambda r: r.after, "end"),
        area=seed_interval([area(r, budget) for r in usable_runs]) if usable_runs else NO_ESTIMATE,
        middle=interquartile_mean([r.end for r in usable_runs]) if usable_runs else NO_ESTIMATE,
        gain=_gain(usable_runs, measure),
        collapsed=sum(has_collapsed(r, better) for r in usable_runs),
        failed={r.seed: trouble(r) for r in runs if trouble(r)},
        tokens=mean(lambda r: r.tokens),
        updates=mean(lambda r: r.updates),
        seconds=mean(lambda r: r.seconds),
        discarded=mean(lambda r: r.discarded_rollouts),
    )


def _difference(
    label: str, against: str, pairs: Sequence[Pair], measure: str, sign: float, budget: Budget
) -> Difference:
    """Difference of an arm from the base, still without a verdict."""
    end = mean_area = improves = NO_ESTIMATE
    if pairs:
        end = difference_spread(pairs, measure, sign).estimate()
        mean_area = seed_interval([sign * subtract(area(a, budget), area(b, budget)) for a, b in pairs])
        arm, base = _sides(pairs)
        improves = probability_of_improvement([sign * r.end for r in arm], [sign * r.end for r in base])
    return Difference(label, against, end, mean_area, improves, math.nan, None, "undecided", "")


def never_acted(pairs: Sequence[Pair]) -> bool:
    """Return True if the runs of every pair logged the same figures in every step: what the arm changes never mattered.

    Figures that only one of the two logs are left out, and constant ones prove nothing: a reward of 0 in both is no
    sign that they sampled alike.
    """

    def equal(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> bool:
        names = [name for name in first if name in second]
        varies = any(len(set(first[name])) > 1 for name in names)
        return varies and all(np.array_equal(first[name], second[name], equal_nan=True) for name in names)

    return bool(pairs) and all(equal(a.trace, b.trace) for a, b in pairs)


def _with_verdict(
    d: Difference, p_adjusted: float | None, family: int, places: int, is_equal: bool = False
) -> Difference:
    """Add the verdict and the seeds needed. `p_adjusted` is None for a control, which is judged by its own p."""
    if is_equal:
        seeds = f"{d.end.n} seed{'' if d.end.n == 1 else 's'}"
        sentence = f"{d.arm} equals {d.against} in every step of {seeds}: what it changes never acted"
        return replace(d, verdict="equal", sentence=sentence)
    p = d.end.p if p_adjusted is None else p_adjusted
    tests = max(1, family) if p_adjusted is not None else 1
    verdict: Verdict = "undecided"
    if d.end.n >= FEWEST_SEEDS and not d.end.holds_zero and p < ALPHA:
        verdict = "better" if d.end.mean > 0 else "worse"
    by_task = 0.0 if math.isnan(d.end.by_task) else d.end.by_task
    n_seeds = seeds_needed(d.end.mean, seed_sd(d.end), by_task, ALPHA / tests)
    difference = replace(d, p_adjusted=math.nan if p_adjusted is None else p, seeds_needed=n_seeds, verdict=verdict)
    return replace(difference, sentence=_verdict_sentence(difference, p, tests, places))


def _verdict_sentence(d: Difference, p: float, tests: int, places: int) -> str:
    """State the verdict in a sentence, and for an undecided arm what it would take."""
    seeds = f"{d.end.n} seed{'' if d.end.n == 1 else 's'}"
    if d.verdict != "undecided":
        # The smaller bound first: for a loss that fell, low and high are negative.
        low, high = sorted((abs(d.end.low), abs(d.end.high)))
        tested = f"p {probability(p)}" + (" after Holm" if tests > 1 else "")
        return (
            f"{d.arm} is {d.verdict} than {d.against} by {number(abs(d.end.mean), places)} "
            f"(95 % {number(low, places)} to {number(high, places)}; {seeds}, {tested})"
        )
    if not d.end.n:
        return f"{d.arm} can't be told from {d.against}: there is no seed that both have"
    sentence = f"{d.arm} can't be told from {d.against}, {interval(d.end, places, sign=True)}, {seeds}"
    if d.end.n == 1:
        return f"{sentence}: one seed says nothing of other seeds"
    if d.end.n < FEWEST_SEEDS:
        sentence += f": fewer than {FEWEST_SEEDS} are not ranked"
    elif not d.end.holds_zero:
        sentence += f": p {probability(p)} after Holm's correction for {tests} arms"
    else:
        sentence += ": n too small to say"
    # Where no number of seeds is enough, the held-out tasks limit the precision, and only more of them would help.
    if d.seeds_needed is not None:
        # More seeds than there are now: the number is an estimate and may come out below.
        return f"{sentence}; about {rounded_up(max(d.seeds_needed, d.end.n + 1))} seeds would"
    by_task = 0.0 if math.isnan(d.end.by_task) else d.end.by_task
    times = more_tasks(d.end.mean, by_task, ALPHA / tests)
    if times > 1:
        return (
            f"{sentence}; more seeds alone would not: it takes about {rounded_up(times)} times as many held-out tasks"
        )
    return sentence


def rounded_up(n: float) -> str:
    """Round up to two digits, and format.

    >>> rounded_up(7.2), rounded_up(141), rounded_up(20_100)
    ('8', '150', '21,000')
    """
    ceiling = math.ceil(n)
    unit = 10 ** max(0, len(str(ceiling)) - 2)
    return f"{-(-ceiling // unit) * unit:,}"


def _notes(
    comparison: Comparison,
    usable_runs: Mapping[str, Sequence[RunResult]],
    pairs: Mapping[str, Sequence[Pair]],
    places: int,
) -> list[str]:
    """Caveats for a reader, one fact a line."""
    base, sign = _base(comparison), 1.0 if comparison.better == "more" else -1.0
    notes, overspent = [], dict[str, float]()
    # Runs that are missing, and budgets that were not spent alike.
    for summary in comparison.arms:
        label, n = summary.arm.label, len(summary.runs)
        # Failed runs are reported with the direction of their bias.
        if summary.failed:
            notes.append(
                f"{label}: {len(summary.failed)} of {n} runs ended before their budget and are in no estimate; where "
                "the method is the cause, its figures flatter it"
            )
        elif not n:
            notes.append(f"{label}: no run")
        # A run that spent less had less to learn from, one that spent more an advantage.
        spent_shares = [
            r.points[-1].cost(comparison.budget.unit) / comparison.budget.amount
            for r in usable_runs[label]
            if comparison.budget.amount > 0
        ]
        if short := [s for s in spent_shares if s < UNDERSPENT]:
            notes.append(f"{label}: {len(short)} of {n} runs spent less than the budget, {min(short):.0%} at the least")
        if spent_shares and fmean(spent_shares) > OVERSPENT:
            overspent[label] = fmean(spent_shares)
        # Tokens of judges are not in the budget, but they are paid for.
        if judged := [r.judge_tokens for r in usable_runs[label] if r.judge_tokens > 0]:
            notes.append(f"{label}: judges and teachers generated {fmean(judged):,.0f} tokens a run besides")
    if overspent:
        least, greatest = f"{min(overspent.values()):.0%}", f"{max(overspent.values()):.0%}"
        share = least if least == greatest else f"{least} to {greatest}"
        subject = "all arms" if len(overspent) == len(comparison.arms) else join_words(list(overspent))
        notes.append(f"{subject} spent {share} of the budget: the last step is large beside it")
    # Pairs that are none: without a partner, of another start, or of other tasks.
    for label, arm_pairs in pairs.items():
        # Twice the pairs: each pair accounts for a run of both arms.
        unpaired = len(usable_runs[label]) + len(usable_runs[base.arm.label]) - 2 * len(arm_pairs)
        if unpaired:
            notes.append(
                f"{label}: {unpaired} runs have no pair of equal seed in the other arm, and are in no difference"
            )
        # Equal starts are what pairing rests on: a seed decides tasks and sampling, and the first parameters.
        differing_seeds = [
            summary.seed
            for summary, b in arm_pairs
            if comparison.measure.startswith("eval_") and abs(summary.start - b.start) > 1e-9
        ]
        if differing_seeds:
            seeds = join_words([str(s) for s in differing_seeds])
            notes.append(f"{label}: began differently from {base.arm.label} at seeds {seeds}")
        if (
            comparison.measure == ACCURACY
            and arm_pairs
            and math.isnan(difference_spread(arm_pairs, comparison.measure).by_task)
        ):
            notes.append(f"{label}: not paired by held-out task (verdicts are missing, or of other tasks)")
    if comparison.measure != ACCURACY:
        notes.append(f"{comparison.measure}: intervals are over seeds alone and say nothing of other held-out tasks")
    # The control must not gain and the base must: otherwise the setting measures something else than learning.
    for summary in comparison.arms:
        has_gained = summary.gain.n >= FEWEST_SEEDS and not summary.gain.holds_zero and sign * summary.gain.mean > 0
        if summary.arm.kind == "control" and has_gained:
            notes.append(
                f"{summary.arm.label} gained {interval(summary.gain, places, sign=True)} without rewards to learn "
                "from: rewards leak, or the evaluation is not held out, or the start was still moving"
            )
        if summary.arm.kind == "base" and summary.gain.n >= FEWEST_SEEDS and not has_gained:
            notes.append(
                f"{summary.arm.label} itself did not gain: a setting in which nothing is learnt tells little apart"
            )
    if comparison.measure == ACCURACY and usable_runs[base.arm.label]:
        ends = [summary.end.mean for summary in comparison.arms if summary.arm.kind != "control" and summary.end.n]
        if min(ends) > 0.9 or max(ends) < 0.1:
            notes.append("every arm ends within .1 of the least or the greatest value: there is no room to differ")
    if not any(summary.arm.kind == "control" for summary in comparison.arms):
        notes.append("no control on shuffled rewards: a gain that does not come from them would not be seen")
    if not any(comparison.tuned.values()) and comparison.differences and one_rate(comparison):
        notes.append("all arms at one learning rate, which need not be the best for each")
    return notes
