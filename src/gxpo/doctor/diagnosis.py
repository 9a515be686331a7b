"""`diagnose`: a run's sicknesses, causes first; its progress; the sicknesses that could not be looked for."""

from __future__ import annotations

from dataclasses import replace

from gxpo.doctor import checks  # noqa: F401  # registers them
from gxpo.doctor.finding import Diagnosis, Finding, Unchecked
from gxpo.doctor.remedies import remedies
from gxpo.doctor.rollouts import Rollouts
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.sickness import SICKNESSES

SEVERITY = ("critical", "warning", "note")
GRADE = ("proved", "likely", "possible")
# titles of consequences that would name a cause of their own, which the finding above them has taken the place of
GUESSED = {"advantage_sign": "the reward falls steadily", "lr_too_high": "the policy has collapsed"}
LEAST = 5  # logged steps below which most checks say nothing
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
# A line that switches a source on. A sickness none of whose sources stands here is not listed: a run without
# tools has no failing calls, one without a KL term no KL that is too strong.
TRL = {
    "rollouts": "log_completions=True writes completions/*.parquet",
    "references": "log_extra('answer', answers) in the reward function, with log_completions=True",
    "entropy": "a newer TRL (1.16 logs entropy)",
    "kl": "beta=0.001 (loads a reference model)",
    "truncated": "a newer TRL (1.16 logs completions/clipped_ratio)",
    "gap_mean": "with use_vllm=True: vllm_importance_sampling_correction=True",
    "eval/accuracy": "eval_strategy='steps', eval_steps=10, and an eval_dataset",
    "component/NAME": "reward_funcs=[correct, well_formed]: a function for each aspect",
    "lr": "logging_steps=1",
    "loss": "logging_steps=1",
    "weights_crc": "callbacks=[gxpo.adapters.trl.Doctor()] looks at the weights",
    "reward_std": "logging_steps=1",
}
LINES = {
    "trl": TRL,
    "unsloth": {k: v for k, v in TRL.items() if "gxpo" not in v},
    "verl": {
        "rollouts": "trainer.rollout_data_dir=DIR",
        "references": "trainer.rollout_data_dir=DIR, with reward_model.ground_truth in the data",
        "entropy": "actor_rollout_ref.actor.calculate_entropy=True",
        "kl": "actor_rollout_ref.actor.use_kl_loss=True (loads a reference model)",
        "truncated": "trainer.logger=[console,file]",
        "clip_fraction": "trainer.logger=[console,file]",
        "gap_mean": "actor_rollout_ref.rollout.calculate_log_probs=True",
        "eval/accuracy": "trainer.test_freq=10",
        "component/NAME": "compute_score returns {'score': ..., NAME: ...}, with trainer.rollout_data_dir=DIR",
        "lr": "trainer.logger=[console,file]",
        "loss": "trainer.logger=[console,file]",
        "zero_signal": "trainer.rollout_data_dir=DIR",
    },
    "gxpo": {
        "rollouts": "trainer.rollouts_every=10",
        "references": "trainer.rollouts_every=10 with this version of gxpo, which records the tasks' answers",
        "kl": "objective.kl.coef=0.001 (loads a reference model)",
        "eval/accuracy": "eval.every=10",
        "component/NAME": "scoring.weights={correct: 1, well_formed: 0.2}: a reward for each aspect",
    },
}
ANY = {
    "rollouts": "keep the completions of some steps beside the metrics: prompt, completion, reward, step",
    "truncated": "log the share of completions that the length limit cut",
    "entropy": "log the mean entropy of the policy",
    "eval/accuracy": "evaluate on held-out prompts every few steps",
}
IN_FORCE = {"kl_too_high"}  # a term that is not logged is not in the loss


def diagnose(log: RunLog, *, recompute: bool = False) -> Diagnosis:
    """Look for every sickness that the log allows to be seen.

    The first finding is the diagnosis. Findings that another one explains stand under it (`follows_from`).

    recompute   whether to compute other methods' advantages on the rollouts of zero-signal groups (imports torch)
    """
    if not log.series and log.rollouts is None:
        return Diagnosis(log.source, [], notes=[*log.notes, *(f"the console says: {m}" for m in log.messages[-5:])])
    log = replace(log)  # conclusions are drawn anew: series may have been added since the last diagnosis
    findings = [f for s in SICKNESSES.values() if (f := s.check(log)) is not None]
    findings = _under_causes(_without_repeats(findings))
    findings = [replace(f, remedy=remedies(f.ids, log)) for f in findings]
    has_signal = log.has("zero_signal") and log.mean("zero_signal") < 0.5  # its own method gave equal groups one
    if recompute and log.training_rollouts is not None and not has_signal:
        findings = [_with_signal(f, log.training_rollouts) for f in findings]
    few = log.n_steps if log.n_steps < LEAST else 0
    return Diagnosis(log.source, list(log.read), findings, unchecked(log), progress(log), list(log.notes), few)


def _with_signal(finding: Finding, rollouts: Rollouts) -> Finding:
    """A finding of zero-signal groups with what other methods would make of them."""
    if not SILENT & set(finding.ids) or finding.severity == "note":
        return finding
    from gxpo.doctor.recompute import signal_of

    lines = [
        f"computed on these rollouts: {name} would give a signal to {some} of {of} zero-signal groups ({some / of:.0%})"
        for name, (some, of) in signal_of(rollouts).items()
        if some
    ]
    return replace(finding, remedy=(*finding.remedy, *lines))


def _rank(finding: Finding) -> tuple[int, int, int]:
    stage = min(SICKNESSES[i].stage for i in finding.ids)
    return SEVERITY.index(finding.severity), GRADE.index(finding.grade), stage


def _without_repeats(findings: list[Finding]) -> list[Finding]:
    """Name a sickness once: by the better founded finding, or by the one with fewer alternatives."""
    distinct: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (*_rank(f)[:2], len(f.ids), _rank(f)[2])):
        if not any(finding.ids[0] in f.ids for f in distinct):
            distinct.append(finding)
    return distinct


def _under_causes(findings: list[Finding]) -> list[Finding]:
    """Roots from the gravest and best founded on, each followed by what follows from it."""
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
        ]
        if explaining:
            parents[finding.ids[0]] = min(explaining, key=_rank).ids[0]
    roots = [f for f in findings if not _has_root(f.ids[0], parents)]
    ordered: list[Finding] = []

    def place(finding: Finding) -> None:
        placed = replace(finding, follows_from=parents.get(finding.ids[0]))
        if placed.follows_from is not None and placed.ids[0] in GUESSED and placed.grade != "proved":
            placed = replace(placed, title=GUESSED[placed.ids[0]])
        ordered.append(placed)
        for child in sorted(findings, key=_rank):
            if parents.get(child.ids[0]) == finding.ids[0]:
                place(child)

    for root in sorted(roots, key=_rank):
        parents.pop(root.ids[0], None)
        place(by_id[root.ids[0]])
    return ordered


def _has_root(name: str, parents: dict[str, str]) -> bool:
    """True if the chain of causes of a finding ends in one that has none; the first of a circle counts as that one."""
    if name not in parents:
        return False
    chain, at = [name], parents[name]
    while at in parents and at not in chain:
        chain.append(at)
        at = parents[at]
    return not (at == name and name == min(chain))


def progress(log: RunLog) -> str:
    """Reward and evaluations from the first steps to the last, each with a 95% interval."""
    parts = []
    for name in ("success", "reward"):
        line = log.trend(name)
        if line is None:
            continue
        if log.is_constant(name):
            parts.append(f"{log.key(name)} = {line.first:.3g} in all {line.n} steps")
            break
        low, high = line.change - 1.96 * line.error, line.change + 1.96 * line.error
        if line.rises:
            verdict = "gains"
        elif line.falls:
            verdict = "falls"
        elif low > 0 or high < 0:
            verdict = f"may {'gain' if low > 0 else 'fall'}, but by less than three standard errors"
        else:
            verdict = f"no clear change, where a gain of {line.detectable:.2g} would have shown"
        parts.append(
            f"{log.key(name)} {line.first:.3g} -> {line.last:.3g} over {line.n} steps (trend "
            f"{line.change:+.2g}, 95% {low:+.2g} to {high:+.2g}): {verdict}"
        )
        break
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
        return f"{n} step{'s' * (n > 1)}: too few to say whether the reward gains" if n else ""
    return "; ".join(parts)


def unchecked(log: RunLog) -> list[Unchecked]:
    """List the sicknesses none of whose sources the log has and one of whose sources the user can switch on.

    Empty where nothing was read.
    """
    if not log.read:
        return []
    out = []
    lines = LINES.get(log.source, ANY)
    for s in SICKNESSES.values():
        if s.id in IN_FORCE or not s.needs or any(_has_source(log, need) for need in s.needs):
            continue
        need = next((n for n in s.needs if n in lines), None)
        if need is not None:
            out.append(Unchecked(s.id, MISSING[need], lines[need]))
    return out


def _has_source(log: RunLog, need: str) -> bool:
    """True if the log holds a source of a check, as `Sickness.needs` names it."""
    if need == "rollouts":
        return log.training_rollouts is not None
    if need == "references":
        return log.training_rollouts is not None and any(r is not None for r in log.training_rollouts.reference)
    if need == "messages":
        return bool(log.messages)
    if need.endswith("/NAME"):
        return any(name.startswith(need.removesuffix("NAME")) for name in log.series)
    return need in log.series  # with values that are not finite, too: they are a finding
