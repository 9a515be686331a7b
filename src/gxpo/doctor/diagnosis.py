"""`diagnose`: sicknesses of a run with causes first, its progress, and the checks that lacked data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gxpo.doctor import checks  # noqa: F401  # registers them
from gxpo.doctor.checks.few_rows import few_rows
from gxpo.doctor.finding import LEAST_POINTS, Diagnosis, Finding, Unchecked
from gxpo.doctor.readers.keys import UNKNOWN, lookalikes, trainer
from gxpo.doctor.remedies import SCORE_SUSPECTS, remedies
from gxpo.doctor.rollouts import Rollouts
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import CERTAIN
from gxpo.doctor.sickness import SICKNESSES

SEVERITY = ("critical", "warning", "note")
GRADE = ("proved", "likely", "possible")
# Titles of consequences. These sicknesses' own titles name a cause ("the learning rate is too high"), which would
# contradict the finding that they follow from.
CONSEQUENCE_TITLES = {
    "advantage_sign": "the reward falls steadily",
    "lr_too_high": "the policy has collapsed",
    "verifier_outage": "the reward stays at one level",
}
ROUND_TOPS = (1.0, 1.1, 1.2, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0)  # largest rewards that are usual
GAIN = 2.0  # standard errors, before the widening for short runs, from which a run is seen to gain
MOST_ENABLED = 3  # lines of advice where a run shows nothing
MOST_PROPOSED = 3  # keys that are proposed as the reward
SILENT = {"all_wrong", "all_right", "group_too_small", "no_diversity"}  # groups of equal scores are what is wrong

# Reasons for which a sickness could not be looked for, by the source that it needs.
MISSING = {
    "rollouts": "no completions were found",
    "references": "no reference answers beside the completions",
    "entropy": "no entropy was logged",
    "kl": "no KL to the reference was logged",
    "truncated": "the share of cut completions was not logged",
    "clip_fraction": "the share of clipped tokens was not logged",
    "gap_mean": "the gap between sampler and learner was not logged",
    "eval/accuracy": "fewer than two evaluations",
    "component/NAME": "only the total reward was logged",
    "lr": "no learning rate was logged",
    "loss": "neither loss nor gradient norm was logged",
    "weights_crc": "nothing tells whether weights changed",
    "zero_signal": "the share of zero-signal groups was not logged",
    "reward_std": "no spread of the reward was logged",
}
# Keys that are no figures of the training, and need not be named where the reward is looked for.
CLOCKS = re.compile(
    r"time|timing|perf|memory|runtime|per_sec|tflops|_timestamp|_runtime|epoch|step$|num_tokens|gpu", re.I
)
NEVER_UNCHECKED = {"kl_too_high"}  # a KL that is not logged is no term of the loss, so it can't be too strong


# Method -> (groups of equal scores in which it gives some answer an advantage, all of them).
SignalInEqualGroups = Callable[[Rollouts], Mapping[str, tuple[int, int]]]


def diagnose(
    log: RunLog, *, recompute: SignalInEqualGroups | None = None, further: Sequence[Finding] = ()
) -> Diagnosis:
    """Run every check that the log has data for.

    The first finding is the diagnosis. Findings that another one explains come after it, with `follows_from`.

    recompute   counts the zero-signal groups to which other methods give a signal, as
                `gxpo.explain.run_signal.signal_in_equal_groups` does
    further     findings of checks outside, which are put in order with the others
    """
    if not log.series and log.rollouts is None:
        notes = [*log.notes, *(f"the console says: {m}" for m in log.messages[-5:])]
        return Diagnosis(log.source, list(log.read) if log.raw else [], notes=notes, **_evidence(log))
    # a copy without cached conclusions: series may have been added since the last diagnosis
    log = replace(log)
    findings = [f for s in SICKNESSES.values() if (f := s.check(log)) is not None]
    findings = _under_causes(_without_repeats([*further, *findings, *(few_rows(log) if log.is_excerpt else ())]))
    # no method mends a score that may be wrong
    is_suspect = any(set(SCORE_SUSPECTS) & set(f.ids) and f.severity != "note" for f in findings)
    findings = [replace(f, remedy=remedies(f.ids, log, with_methods=not is_suspect)) for f in findings]
    # below a half, the run's own method gave equal groups a signal: another method is no remedy
    has_signal = is_suspect or (log.has("zero_signal") and log.mean("zero_signal") < 0.5)
    if recompute is not None and log.training_rollouts is not None and not has_signal:
        findings = _with_signal(findings, recompute, log.training_rollouts)
    missing = unchecked(log)
    reason = doubt(log)
    evidence = _evidence(log)
    if reason and evidence["points"] >= LEAST_POINTS:
        evidence["advice"] = [
            *list(dict.fromkeys(f"{m.enable} ({m.why})" for m in missing))[:MOST_ENABLED],
            "the same run at three times the learning rate: a reward that stays lacks a signal, not speed",
        ]
    # time is the machine's, too: no doubt about what was learned
    slowed = ["steps take more than five times as long as at first, answers don't"] if _is_slowed(log) else []
    notes = [*log.notes, *slowed]
    return Diagnosis(log.source, list(log.read), findings, missing, progress(log), notes, doubt=reason, **evidence)


def _evidence(log: RunLog) -> dict[str, Any]:
    """Points of the reward, keys that have no name, and what would enable a verdict: fields of `Diagnosis`."""
    points = max(len(log.values(name)) for name in ("reward", "success"))
    one = trainer(log.source)
    unknown_keys = sorted(s.key for k, s in log.raw.items() if not CLOCKS.search(s.key) and not one.has(k))
    advice = []
    if points < LEAST_POINTS:
        advice = [
            f"{key!r} looks like the {'reward' if name == 'reward' else 'success rate'}: --map {name}={key}"
            for name, key in lookalikes([k for k in unknown_keys if one.plain(k) not in one.no_reward])[:MOST_PROPOSED]
        ]
        if points:
            advice.append(
                f"{log.key('reward' if log.has('reward') else 'success')}: run on, to {LEAST_POINTS} logged steps"
            )
        else:
            advice.append(_lines(log.source).get("reward", _lines(UNKNOWN)["reward"]))
    return {"points": points, "unknown_keys": unknown_keys, "advice": advice}


def doubt(log: RunLog) -> str:
    """Reason for which a run in which no check finds anything is not healthy either: nothing shows that it gains or is
    done. "" where its reward, its verdicts or its evaluations do."""
    name = "reward" if log.has("reward") else "success"
    line = log.trend(name)
    if line is None:
        return ""
    level = f"{log.key(name)} {_start(log, name)} -> {line.last:.3g} over {line.n} logged points"
    held_out = log.values(log.evaluation) if log.evaluation is not None else np.empty(0)
    if len(held_out) >= 3 and not held_out.any():
        return f"{log.key(log.evaluation or '')} is 0 in all {len(held_out)} evaluations, whatever {name} does"
    # a reward that is never above 0 rises as charges are avoided, or as right answers are, if its sign is wrong
    is_charge = name == "reward" and log.largest(name) <= 0 and log.values(name).min() < 0
    if is_charge and log.correctness is None and log.evaluation_gain <= 0:
        return f"{level}: never above 0, so that it rises with fewer charges, and with a flipped sign"
    if not (_is_seen_to_gain(log) or _is_near_top(log, name)):
        return f"{level}: no clear gain, and not near its largest possible value"
    against = next((text for is_against, text in AGAINST if is_against(log)), None)
    return "" if against is None else f"{level}, but {against}"


def _end(log: RunLog, name: str) -> float:
    """Last level of a series; 0 where there is none."""
    return log.last(name) if log.has(name) else 0.0


def _is_far_off(log: RunLog) -> bool:
    """True if the policy's KL is above half a nat a token and ten times its start, and no verdict says that it is right
    more often."""
    if log.evaluation_gain > 0 or (log.correctness is not None and log.rises(log.correctness)):
        return False
    size = np.abs(log.values("kl"))
    fifth = max(3, len(size) // 5)
    return len(size) >= 10 and float(np.median(size[-fifth:])) > max(0.5, 10 * float(np.median(size[: min(fifth, 10)])))


def _is_unproved(log: RunLog) -> bool:
    """True if answers have become three times as long, or as short, and nothing tells if more of them are right."""
    if log.correctness or log.evaluation or not log.has("length", "reward") or log.largest("reward") <= 1.05:
        return False
    ratio = log.last("length") / max(log.first("length"), 1e-9)
    return not 1 / 3 < ratio < 3


def _is_slowed(log: RunLog) -> bool:
    """True if a step takes five times as long as the first ones, and longer answers do not explain it."""
    longer = log.last("length") / log.first("length") if log.has("length") and log.first("length") > 0 else 1.0
    return log.has("seconds") and log.last("seconds") > 5 * log.first("seconds") * max(longer, 1.0) > 0


def _is_entropy_gone(log: RunLog) -> bool:
    """True if a twentieth of the entropy is left, and next to nothing, before the tasks are solved."""
    return not log.is_solved and log.has("entropy") and log.last("entropy") < min(0.02, 0.05 * log.first("entropy"))


def _is_at_limit(log: RunLog) -> bool:
    """True if the longest answer has one length in all steps, and the mean one four fifths of it: a limit cuts many."""
    if not log.has("length", "length_max") or log.has("truncated") or len(log.values("length_max")) < LEAST_POINTS:
        return False
    return log.is_constant("length_max") and log.last("length") > 0.8 * log.last("length_max")


# What speaks against health whatever the reward does, where no check has made a finding of it: condition, words.
AGAINST: tuple[tuple[Callable[[RunLog], bool], str], ...] = (
    (lambda log: not log.is_solved and log.is_zero("grad_norm"), "the gradient is 0 in every step"),
    (_is_entropy_gone, "entropy is gone: the answers of a group are all alike"),
    (_is_far_off, "the policy is far from its reference"),
    (lambda log: _end(log, "truncated") > 0.5, "most completions are cut at the length limit"),
    (_is_at_limit, "the mean answer is nearly as long as the longest, which has one length: a limit cuts many"),
    (
        lambda log: _end(log, "zero_wrong") > log.first("zero_wrong") + 0.2,
        "groups without any right answer become more",
    ),
    (lambda log: _end(log, "approx_kl") > 0.3, "the policy moves by 0.3 nats a token and more within a step"),
    (lambda log: _end(log, "clip_fraction") > 0.4, "most of the update is clipped"),
    (lambda log: _end(log, "staleness_mean") > 16, "rollouts are more than sixteen updates old"),
    (lambda log: _end(log, "repetition") > 0.3, "completions repeat themselves"),
    (lambda log: _end(log, "length") > 0 and log.last("length") < 2, "completions are a token long"),
    (lambda log: log.evaluation_gain < 0, "held-out answers get worse"),
    (lambda log: log.is_past_best, "both training and held-out answers are past their best"),
    (_is_unproved, "answers have another length than at first, and nothing tells if more of them are right"),
)


def _is_seen_to_gain(log: RunLog) -> bool:
    """True if what tells right answers rises, beyond two standard errors: verdicts, a component for correctness or the
    evaluations; the reward where none of these is logged."""
    names = {"success", log.correctness} if log.correctness else {"reward", "success"}
    lines = [line for name in names if (line := log.trend(name)) is not None]
    factor = GAIN / CERTAIN
    every = [line for name in ("reward", "success") if (line := log.trend(name)) is not None]
    # two or three evaluations of a reward, of which nobody knows how many tasks they are, differ by chance
    is_known = log.evaluation is not None and (
        len(log.values(log.evaluation)) > 3
        or log.evaluation_tasks
        or 0 <= float(log.values(log.evaluation).min()) <= log.largest(log.evaluation) <= 1
    )
    is_better = log.evaluation_gain > 0 and bool(is_known)
    return (
        is_better
        or any(line.may_rise for line in every)
        or any(
            line.change > factor * line.certain * line.error and line.ends > factor * line.certain * line.ends_error
            for line in lines
        )
    )


def _is_near_top(log: RunLog, name: str) -> bool:
    """True if the last steps are within a fifth of the largest reward: as recorded, else the next round number."""
    values = log.values(name)
    low, high = float(min(values.min(), 0.0)), float(values.max())
    parts = log.components()
    if log.has("reward_max") and name == "reward":
        top = log.largest("reward_max")
    elif name == "reward" and high > 1.001 and len(parts) > 1:
        # the largest sum is not known by sums of steps that differ by chance: each part is near its own top
        return all(log.last(f"component/{part}") <= 0 or _is_near_top(log, f"component/{part}") for part in parts)
    else:
        top = 0.0 if high <= 0 else next(n for n in (*ROUND_TOPS, high) if high <= n * 1.001)
    return log.last(name) >= top - 0.2 * (top - low)


def _lines(source: str) -> Mapping[str, str]:
    """The settings of a trainer that switch the source of a check on.

    A sickness whose sources are all missing here is not listed as unchecked: a run without tools has no failing calls,
    one without a KL term no KL that is too strong.
    """
    lines = trainer(source).lines
    return {k: v for k, v in lines.items() if "gxpo" not in v} if source in ("unsloth", "ms-swift") else lines


def _with_signal(findings: list[Finding], recompute: SignalInEqualGroups, rollouts: Rollouts) -> list[Finding]:
    """Add to findings of zero-signal groups how many of these other methods would give a signal."""
    silent = [bool(SILENT & set(f.ids)) and f.severity != "note" for f in findings]
    if not any(silent):
        return findings
    lines = [
        f"computed on these rollouts: {name} would give a signal to {n} of {total} zero-signal groups ({n / total:.0%})"
        for name, (n, total) in recompute(rollouts).items()
        if n
    ]
    return [replace(f, remedy=(*f.remedy, *lines)) if s else f for f, s in zip(findings, silent, strict=True)]


def _rank(finding: Finding) -> tuple[int, int, int]:
    stage = min(SICKNESSES[i].stage for i in finding.ids)
    return SEVERITY.index(finding.severity), GRADE.index(finding.grade), stage


def _without_repeats(findings: list[Finding]) -> list[Finding]:
    """Keep one finding per sickness: the graver, the better founded, then the one with fewer alternatives.

    A guess among alternatives of which one is proved is left out, too.
    """
    distinct: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (*_rank(f)[:2], len(f.ids), _rank(f)[2])):
        is_guess = finding.grade == "possible"
        if not any(
            finding.ids[0] in f.ids or (is_guess and f.grade == "proved" and f.ids[0] in finding.ids) for f in distinct
        ):
            distinct.append(finding)
    return distinct


def _under_causes(findings: list[Finding]) -> list[Finding]:
    """Order findings: causes from the gravest and best founded on, each followed by its consequences."""
    # the parent of a finding: the strongest finding of a sickness that it is declared to follow from. A note explains
    # nothing, and a guess explains only a guess
    by_id = {f.ids[0]: f for f in findings}
    parents: dict[str, str] = {}
    for finding in findings:
        causes = [c for i in finding.ids for c in SICKNESSES[i].follows]
        explaining = [
            f
            for f in findings
            if f is not finding
            and set(f.ids) & set(causes)
            and f.severity != "note"
            and (f.grade != "possible" or finding.grade == "possible")
            and (f.grade != "possible" or SEVERITY.index(f.severity) <= SEVERITY.index(finding.severity))
        ]
        if explaining:
            parents[finding.ids[0]] = min(explaining, key=_rank).ids[0]
    # declared causes may form a circle (length_hack, truncation): one of it must stay a root, or all would be lost
    roots = [f for f in findings if not _has_root(f.ids[0], parents)]
    # depth first, so that a text can indent each consequence below its cause
    ordered: list[Finding] = []

    def place(finding: Finding) -> None:
        parent = parents.get(finding.ids[0])
        placed = replace(finding, ids=tuple(i for i in finding.ids if i != parent), follows_from=parent)
        if placed.follows_from is not None and placed.ids[0] in CONSEQUENCE_TITLES and placed.grade != "proved":
            placed = replace(placed, title=CONSEQUENCE_TITLES[placed.ids[0]])
        ordered.append(placed)
        for child in sorted(findings, key=_rank):
            if parents.get(child.ids[0]) == finding.ids[0]:
                place(child)

    for root in sorted(roots, key=_rank):
        parents.pop(root.ids[0], None)
        place(by_id[root.ids[0]])
    return ordered


def _has_root(name: str, parents: dict[str, str]) -> bool:
    """True if a finding has a cause above it; in a circle of causes, the first by name counts as the root."""
    if name not in parents:
        return False
    chain, cause = [name], parents[name]
    while cause in parents and cause not in chain:
        chain.append(cause)
        cause = parents[cause]
    return not (cause == name and name == min(chain))


def _start(log: RunLog, name: str) -> str:
    """Start of a series as findings quote it: the level of the first steps, or of the first alone with its number."""
    level, place = log.column(name).start
    return f"{level:.3g}" if place == "in the first steps" else f"{level:.3g} {place}"


def progress(log: RunLog) -> str:
    """Describe how reward and evaluations changed over the run, each with a 95% interval."""
    parts = []
    # one of them is quoted: verdicts if they have a trend, else the reward
    for name in ("success", "reward"):
        line = log.trend(name)
        if line is None:
            continue
        if log.is_constant(name):
            parts.append(f"{log.key(name)} = {line.first:.3g} in all {line.n} steps")
            break
        # the interval is 1.96 standard errors wide, yet a gain counts from 3 on: between the two it is a "may"
        low, high = line.change - 1.96 * line.error, line.change + 1.96 * line.error
        if line.rises:
            verdict = "gains"
        elif line.falls:
            verdict = "falls"
        elif low > 0 or high < 0:
            verdict = f"may {'gain' if low > 0 else 'fall'}, but by less than three standard errors"
        else:
            verdict = f"no clear change (a gain of {line.detectable:.2g} or more would have been visible)"
        parts.append(
            f"{log.key(name)} {_start(log, name)} -> {line.last:.3g} over {line.n} steps (trend "
            f"{line.change:+.2g}, 95% {low:+.2g} to {high:+.2g}): {verdict}"
        )
        break
    # `evaluation_gain` demands two standard errors; the interval here is only for reading
    if log.evaluation is not None:
        values, error = log.values(log.evaluation), log.evaluation_error
        change = float(values[-1] - values[0])
        low, high = change - 1.96 * error, change + 1.96 * error
        verdict = "may gain" if low > 0 else "may fall" if high < 0 else "no clear change"
        if log.evaluation_gain:
            verdict = "gains" if log.evaluation_gain > 0 else "falls"
        parts.append(
            f"{log.key(log.evaluation)} {values[0]:.3g} -> {values[-1]:.3g} in {len(values)} evaluations (change "
            f"{change:+.2g}, 95% {low:+.2g} to {high:+.2g}): {verdict}"
        )
    if not parts:
        n = log.n_steps
        if n and not log.has("reward") and not log.has("success"):
            return f"no reward was logged in {n} step{'s' * (n > 1)}"
        return f"{n} step{'s' * (n > 1)}: too few to say whether the reward gains" if n else ""
    return "; ".join(parts)


def unchecked(log: RunLog) -> list[Unchecked]:
    """List the sicknesses that could not be checked for want of data that the user can switch on.

    Empty if nothing was read.
    """
    if not log.read:
        return []
    missing = []
    lines = _lines(log.source)
    # of alternatives, the first that this trainer can log is proposed
    for s in SICKNESSES.values():
        if s.id in NEVER_UNCHECKED or not s.needs or any(_has_source(log, need) for need in s.needs):
            continue
        need = next((n for n in s.needs if n in lines and n in MISSING), None)
        if need is not None:
            missing.append(Unchecked(s.id, MISSING[need], lines[need]))
    return missing


def _has_source(log: RunLog, need: str) -> bool:
    """True if the log holds one source of a check, in the words of `Sickness.needs`."""
    if need == "rollouts":
        return log.training_rollouts is not None
    if need == "references":
        return log.training_rollouts is not None and any(r is not None for r in log.training_rollouts.reference)
    if need == "messages":
        return bool(log.messages)
    if need.endswith("/NAME"):
        return any(name.startswith(need.removesuffix("NAME")) for name in log.series)
    return need in log.series  # with values that are not finite, too: they are a finding
