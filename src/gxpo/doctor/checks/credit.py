"""What credit there was: zero-signal groups, too small ones, no diversity."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.case import FRESH, Case
from gxpo.doctor.checks.reward_variance import pays_for_anything
from gxpo.doctor.finding import Finding
from gxpo.doctor.rollout_facts import Facts
from gxpo.doctor.sickness import found, sickness

SAMPLER = ("stale_sampler", "sampler_mismatch", "logprob_shift")


def spread_between(case: Case) -> float:
    """Deviation of the reward over a step's rollouts: recorded by component, or largest less smallest."""
    seen = [case.mean(n) for n in case.log.series if n.startswith("component_std/")]
    if case.has("reward_max", "reward_min"):
        seen.append(float((case.values("reward_max") - case.values("reward_min")).mean()))
    if case.rollouts is not None:
        r = case.rollouts
        known = r.score[np.isfinite(r.score)]
        if len(known):
            seen.append(float(known.std()))
    if not seen and case.has("reward"):
        seen.append(float(case.values("reward").std()))
    return max(seen, default=0.0)


@sickness(
    "all_wrong",
    2,
    "every answer is wrong: nothing to learn from",
    "largest = smallest reward in every step from the start; pass rate below 3 / rollouts",
    needs=("reward",),
    follows=(
        "no_eos",
        "truncation",
        "wrong_template",
        "verifier_rejects_right_answers",
        "labels_misaligned",
        "all_masked",
        "no_diversity",
        "missing_scores",
    ),
)
def all_wrong(case: Case) -> Finding | None:
    name = "success" if case.has("success") else "reward"
    values = case.values(name)
    sparse = 0 < len(values) < 5 <= case.log.last_step  # a few rows of a longer run
    if len(values) < 5 and not sparse:
        return _no_signal_yet(case, name)
    if name == "reward" and len(case.log.components()) > 1 and case.correctness is not None:
        name, values = case.correctness, case.values(case.correctness)
    lowest = float(values.min())
    zero = float((values <= lowest + 1e-9).mean())
    begin = float(values[:5].max())
    constant = zero > 0.9 and begin <= lowest + 1e-9 and lowest <= 0.0
    rare = name == "success" and max(float(values.mean()), float(values[0])) < 0.01 and not case.gains
    if not (constant or rare):
        return None
    if name == "reward" and not case.silent_from_start and spread_between(case) > 1e-9:
        return None
    seen = _counted(case)
    bound = (
        f"in {seen} rollouts none was right: the pass rate is below {3 / seen:.1e} (95%)"
        if seen and zero == 1.0
        else ""
    )
    evidence = [case.quote(name), *(case.quote(n) for n in ("zero_signal", "grad_norm") if case.has(n)), bound]
    ids = ["all_wrong"]
    form = _off_form_unmoved(case)
    if form is not None and form > 0.8:
        ids = ["wrong_template", "all_wrong"]
        evidence.append(
            f"{form:.0%} of the completions do not have the form of any reference answer: did the model see the prompt "
            "in the form that it was trained on? Its accuracy before training, on rendered prompts, would tell"
        )
    elif case.facts is None or case.facts.references is None:
        ids.append("verifier_rejects_right_answers")
        evidence.append(
            "too hard, or a verifier that can't read the answers? Reference answers beside the completions would tell"
        )
    if name.startswith("component/"):
        ids.append("dead_component")
    return found(
        ids,
        "critical",
        "possible" if sparse else "proved" if zero == 1.0 and len(ids) == 1 else "likely",
        "every answer is scored as wrong" if sparse else "every answer is scored as wrong from the first step on",
        *evidence,
        examples=case.facts.examples(range(3)) if case.facts is not None else (),
    )


def _off_form_unmoved(case: Case) -> float | None:
    """Share of completions without the form of an answer, of a policy that has not been trained on wrong answers: one
    that has (NGRPO) is pushed away from the forms that it knew, whatever its template is."""
    if case.facts is None or case.silent_from_start or not case.has("zero_signal"):
        return None if case.facts is None else case.facts.off_form
    r = case.facts.r
    first = r.step <= FRESH
    return Facts(r.select(first)).off_form if first.any() else None


def _no_signal_yet(case: Case, name: str) -> Finding | None:
    """A run of a few steps without any signal: what is seen, no more than that."""
    values = case.values(name)
    if not len(values) or not case.silent or not (values == values[0]).all():
        return None
    steps = f"{len(values)} step{'s' * (len(values) > 1)}"
    known = case.facts is not None and case.facts.references is not None
    if values[0] <= 0.0:
        ids, title = (
            ["all_wrong", *([] if known else ["verifier_rejects_right_answers"])],
            "every answer is scored as wrong",
        )
    else:
        ids, title = ["all_right", "reward_ignores_completion"], "every answer has the same reward"
    return found(
        ids,
        "warning",
        "possible",
        f"no group has had a signal: {title} in the {steps} so far, too few to say more",
        *(case.quote(n) for n in dict.fromkeys([name, "zero_signal", "grad_norm"]) if case.has(n)),
        examples=case.facts.examples(range(2)) if case.facts is not None else (),
    )


@sickness(
    "all_right",
    2,
    "every answer is right: nothing left to learn",
    "nearly all groups at the largest reward from the first steps; later it is a run that is done",
    needs=("reward",),
    follows=("missing_scores",),
)
def all_right(case: Case) -> Finding | None:
    if len(case.values("reward")) < 5 or not np.isfinite(case.top) or case.top <= 0:
        return None
    if pays_for_anything(case):
        return None  # the verifier does not say that answers are right
    reward, top = case.values("reward"), case.top
    level = np.asarray(reward >= 0.98 * top)
    easy = case.has("zero_signal") and case.first("zero_signal") >= 0.6 and case.mean("zero_signal") >= 0.6
    exactly = case.constant("reward") and case.silent
    high = case.first("reward") >= 0.9 * top and float(reward.mean()) >= 0.85 * top
    if easy and not exactly and high and not case.gains:
        return found(
            "all_right",
            "warning",
            "likely",
            "nearly every answer is right from the first step on: the tasks are too easy",
            case.quote("reward"),
            case.quote("zero_signal"),
            case.quote(case.held_out) if case.held_out else "",
        )
    if (
        case.first("reward") >= 0.95 * top
        and level.mean() > 0.7
        and (case.silent_from_start or not case.has("zero_signal"))
    ):
        if case.has("zero_signal") and case.mean("zero_signal") < 0.8:
            return None
        if not case.has("zero_signal") and not (level.all() and case.constant("reward")):
            return None
        ids = ["all_right"]
        unread = case.rollouts is None
        if any(case.constant(f"component/{n}") and case.mean(f"component/{n}") <= 0 for n in case.log.components()):
            return None  # some reward is never paid
        evidence = [case.quote("reward"), case.quote("zero_signal") if case.has("zero_signal") else ""]
        cold = case.number("temperature")
        if case.has("entropy") and case.entropy_first < 1e-3:
            ids.append("no_diversity")
            evidence.append(case.quote("entropy"))
            if cold is not None and cold < 0.2:
                ids.reverse()
                evidence.append(f"sampling temperature = {cold:g}: the groups hold one answer each")
        elif exactly and unread and case.log.source == "trl":
            ids.append("missing_scores")
            evidence.append("a scorer that returns None for wrong answers looks the same: the completions would tell")
        return found(
            ids,
            "warning",
            "proved" if not unread else "likely",
            "every answer is right from the first step on: the tasks are too easy",
            *evidence,
        )
    if case.finished and case.has("zero_signal") and case.last("zero_signal") > 0.8:
        steps = case.log.steps("reward")
        since = steps[int(np.argmax(level))] if level.any() else steps[-1]
        return found(
            "all_right",
            "note",
            "likely",
            f"done: nearly all answers are right from step {since:.0f} on",
            case.quote("reward"),
            case.quote("zero_signal"),
        )
    return None


@sickness(
    "no_diversity",
    2,
    "a group's answers are all the same text",
    "distinct completions / group size at step 1; entropy near 0 at step 1 with right and wrong groups",
    needs=("rollouts", "entropy", "zero_signal"),
    follows=(),
)
def no_diversity(case: Case) -> Finding | None:
    facts = case.facts
    abrupt = None if facts is None else facts.alike_from
    if facts is not None and abrupt is not None and _unmoved(case, abrupt[0]):
        step, before, rows = abrupt
        return found(
            "no_diversity",
            "critical",
            "proved",
            f"the answers of a group are the same text from step {step} on: is sampling greedy since an evaluation?",
            f"{before:.0%} of a group's completions differ before step {step}, none after it",
            *(case.quote(n) for n in ("entropy", "grad_norm") if case.has(n)),
            examples=facts.examples(rows[:2]),
        )
    distinct = None if facts is None else facts.distinct_early
    if facts is not None and distinct is not None:
        count, size, rows = distinct
        if size < 2 or count > min(1.5, 0.6 * size):
            return None
        if case.entropy_first > 0.3 and count > 1.2:
            return None
        if facts.characters <= 1.5 and count > 1.05:
            return None
        unsure = case.entropy_first * case.first("length") if case.has("entropy", "length") else 0.0  # nats an answer
        if unsure < 1.0 and case.has("reward") and case.first("reward") >= 0.9 * case.top > 0:
            return None  # one right answer each: solved
        return found(
            "no_diversity",
            "critical",
            "proved",
            "the answers of a group are the same text from the first step on",
            f"{count:.1f} different completions in groups of {size:.0f} in the first steps read",
            *(case.quote(n) for n in ("entropy", "zero_signal") if case.has(n)),
            *(
                f"sampling {n} = {case.setting(n)}"
                for n in ("temperature", "top_k", "top_p")
                if case.setting(n) is not None
            ),
            examples=facts.examples(rows[:2]),
        )
    if len(case.log.components()) > 1 and case.constant("reward") and case.silent and case.silent_at_once:
        return found(
            ["no_diversity", "entropy_collapse", "reward_ignores_completion"],
            "critical",
            "possible",
            "every rollout gets the same reward: all groups have zero signal",
            *(case.quote(n) for n in ("reward", "zero_signal", "entropy") if case.has(n)),
            *(case.quote(f"component/{n}") for n in case.log.components()[:4]),
            "are the answers of a group the same text? The completions would tell",
        )
    if (step := _silent_at_once(case)) is not None:
        return found(
            ["no_diversity", "reward_ignores_completion"],
            "critical",
            "likely",
            f"from step {step} on every group has zero signal, at once: are its answers the same text since then?",
            *(case.quote(n) for n in ("zero_signal", "reward", "entropy", "grad_norm") if case.has(n)),
            "sampling that stays greedy after an evaluation looks like this, and a scorer that reads the prompt alone",
        )
    if not case.has("entropy", "reward") or not case.silent_from_start:
        return None
    reward, top = case.first("reward"), case.top
    mixed = spread_between(case) > 1e-3 and reward < 0.98 * top
    cold, mass = case.number("temperature"), case.number("top_p")
    narrow = mass is not None and mass < 0.1
    if not mixed or (case.has("zero_signal") and case.mean("zero_signal") < 0.9):
        return None
    if case.entropy_first < 0.02 or (cold is not None and cold < 0.1) or case.number("top_k") == 1 or narrow:
        return found(
            "no_diversity",
            "critical",
            "likely",
            "the answers of a group are all alike from the first step on",
            *(case.quote(n) for n in ("entropy", "zero_signal", "reward")),
            *(
                f"sampling {n} = {case.setting(n)}"
                for n in ("temperature", "top_k", "top_p")
                if case.setting(n) is not None
            ),
        )
    return None


def _silent_at_once(case: Case) -> int | None:
    """Step from which all groups have zero signal, where most had some before and tasks are neither solved nor lost."""
    silent, steps = case.values("zero_signal"), case.log.steps("zero_signal")
    loud = np.flatnonzero(silent < 0.95)
    if len(silent) < 8 or not len(loud) or len(silent) - loud[-1] - 1 < 4 or loud[-1] < 3:
        return None
    at = int(loud[-1]) + 1
    after = case.values("reward")[case.log.steps("reward") >= steps[at]]
    mixed = len(after) > 0 and 0.05 * case.top < float(after.mean()) < 0.9 * case.top and float(np.ptp(after)) > 0.01
    return int(steps[at]) if mixed and float(silent[at - 3 : at].mean()) < 0.7 else None


def _unmoved(case: Case, step: int) -> bool:
    """Whether entropy stays at a step and the tasks are not solved after it, so that equal texts are no success."""
    entropy, steps = case.values("entropy"), case.log.steps("entropy")
    before, after = entropy[steps < step][-3:], entropy[steps >= step][:3]
    sharpened = len(before) > 0 and len(after) > 0 and float(after.mean()) < 0.5 * float(before.mean())
    return not sharpened and not case.last("reward") >= 0.95 * case.top


@sickness(
    "group_too_small",
    2,
    "the group is too small for a baseline",
    "p^G + (1 - p)^G of the groups have no signal although the policy is neither always right nor always wrong",
    needs=("zero_signal", "rollouts"),
    follows=("wrong_groups",),
)
def group_too_small(case: Case) -> Finding | None:
    size = case.group_size
    if size is None or size > 3:
        return None
    if size <= 1:
        return found(
            "group_too_small",
            "critical",
            "proved",
            "groups of one: there is nothing to compare an answer with",
            f"group size {size:g}",
        )
    rate = case.mean("success") if case.has("success") else case.mean("reward") / case.top if case.top > 0 else 0.5
    rate = min(max(rate, 0.0), 1.0)
    expected = rate**size + (1 - rate) ** size
    evidence = [
        f"group size {size:g}, share of right answers {rate:.2f}: {expected:.0%} of groups have zero signal by chance"
    ]
    evidence += [case.quote("zero_signal")] if case.has("zero_signal") else []
    if str(case.setting("method") or "").startswith("two_grpo") or case.finished:
        return None
    if case.has("zero_signal") and case.mean("zero_signal") < 0.4:
        return None
    falls = case.falls("reward")
    return found(
        "group_too_small",
        "critical" if falls else "note" if case.gains else "warning",
        "likely",
        f"groups of {size:g}: the baseline is chance, and most groups have no signal",
        *evidence,
        case.quote("reward"),
    )


def _counted(case: Case) -> int:
    """Rollouts of the run: those of the metrics, else those that were read."""
    if case.has("rollouts"):
        return int(case.values("rollouts").sum())
    return len(case.rollouts) if case.rollouts is not None else 0
