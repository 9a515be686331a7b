"""`diagnose`: sicknesses of a run with causes first, its progress, and the checks that lacked data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gxpo.doctor import checks  # noqa: F401  # registers them
from gxpo.doctor.checks.few_rows import few_rows
from gxpo.doctor.checks.health import NO_GAIN, against, doubt
from gxpo.doctor.finding import LEAST_POINTS, Diagnosis, Finding, Unchecked
from gxpo.doctor.readers.keys import UNKNOWN, lookalikes, trainer
from gxpo.doctor.remedies import SCORE_SUSPECTS, remedies
from gxpo.doctor.rollouts import Rollouts
from gxpo.doctor.runlog import RunLog
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
        return Diagnosis(log.source, list(log.read) if log.raw else [], few_rows(log), notes=notes, **_evidence(log))
    # a copy without cached conclusions: series may have been added since the last diagnosis
    log = replace(log)
    findings = [f for s in SICKNESSES.values() if (f := s.check(log)) is not None]
    findings = [*further, *findings, *(few_rows(log) if log.is_excerpt else ())]
    findings = _of_what_happened(findings, log)
    # what has a cause is told by it; signs against health, and that nothing was learnt, are the last resort
    causes = [f for f in findings if f.ids[0] != NO_GAIN]
    if any(f.severity != "note" for f in causes):
        findings = causes
    elif (sign := against(log)) is not None:
        findings = [*causes, *_of_what_happened([sign], log)]
    findings = _under_causes(_without_repeats(findings))
    # no method mends a score that may be wrong
    is_suspect = any(set(SCORE_SUSPECTS) & set(f.ids) and f.severity != "note" for f in findings)
    findings = [replace(f, remedy=remedies(f.ids, log, with_methods=not is_suspect)) for f in findings]
    # below a half, the run's own method gave equal groups a signal: another method is no remedy
    has_signal = is_suspect or (log.has("zero_signal") and log.mean("zero_signal") < 0.5)
    if recompute is not None and log.training_rollouts is not None and not has_signal:
        findings = _with_signal(findings, recompute, log.training_rollouts)
    missing = unchecked(log)
    reason = doubt(log) if log.is_trained else ""
    evidence = _evidence(log)
    if reason and evidence["points"] >= LEAST_POINTS:
        evidence["advice"] = [
            *list(dict.fromkeys(f"{m.enable} ({m.why})" for m in missing))[:MOST_ENABLED],
            "the same run at three times the learning rate: a reward that stays lacks a signal, not speed",
        ]
    # time is the machine's, too: no doubt about what was learned
    slowed = ["steps take more than five times as long as at first, answers don't"] if _is_slowed(log) else []
    untrained = [] if log.is_trained else [f"update={log.setting('update')} trains nothing, and no gain is looked for"]
    notes = [*log.notes, *slowed, *untrained]
    return Diagnosis(log.source, list(log.read), findings, missing, progress(log), notes, doubt=reason, **evidence)


def _of_what_happened(findings: Sequence[Finding], log: RunLog) -> list[Finding]:
    """Leave out what presupposes training (`Sickness.of_training`) in a run that trains nothing, by design."""
    if log.is_trained:
        return list(findings)
    of_data = [f for f in findings if not SICKNESSES[f.ids[0]].of_training]
    return [replace(f, ids=tuple(i for i in f.ids if not SICKNESSES[i].of_training)) for f in of_data]


def _evidence(log: RunLog) -> dict[str, Any]:
    """Points of the reward, keys that have no name, and what would enable a verdict: fields of `Diagnosis`."""
    points = max(len(log.values(name)) for name in ("reward", "success"))
    trainer_keys = trainer(log.source)
    unknown_keys = sorted(s.key for k, s in log.raw.items() if not CLOCKS.search(s.key) and not trainer_keys.has(k))
    advice = []
    if points < LEAST_POINTS:
        advice = [
            f"{key!r} looks like the {'reward' if name == 'reward' else 'success rate'}: --map {name}={key}"
            for name, key in lookalikes(
                [k for k in unknown_keys if trainer_keys.plain(k) not in trainer_keys.no_reward]
            )[:MOST_PROPOSED]
        ]
        if points:
            advice.append(
                f"{log.key('reward' if log.has('reward') else 'success')}: run on, to {LEAST_POINTS} logged steps"
            )
        else:
            advice.append(_lines(log.source).get("reward", _lines(UNKNOWN)["reward"]))
    return {"points": points, "unknown_keys": unknown_keys, "advice": advice}


def _is_slowed(log: RunLog) -> bool:
    """True if a step takes five times as long as the first ones, and longer answers do not explain it."""
    longer = log.last("length") / log.first("length") if log.has("length") and log.first("length") > 0 else 1.0
    return log.has("seconds") and log.last("seconds") > 5 * log.first("seconds") * max(longer, 1.0) > 0


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
        child_finding = replace(finding, ids=tuple(i for i in finding.ids if i != parent), follows_from=parent)
        if (
            child_finding.follows_from is not None
            and child_finding.ids[0] in CONSEQUENCE_TITLES
            and child_finding.grade != "proved"
        ):
            child_finding = replace(child_finding, title=CONSEQUENCE_TITLES[child_finding.ids[0]])
        ordered.append(child_finding)
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
            f"{log.key(name)} {log.column(name).start_text} -> {line.last:.3g} over {line.n} steps (trend "
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
        if s.of_training and not log.is_trained:
            continue
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
