"""Checks of the learning signal: all-wrong, all-right, identical and too small groups."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.checks.reward_variance import near_constant, pays_for_anything
from gxpo.doctor.finding import Finding
from gxpo.doctor.rollout_facts import Facts
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import FRESH
from gxpo.doctor.sickness import finding, sickness

LITTLE = 0.85  # share of silent groups from which the others are too few to learn from
RARE = 0.01  # share of right answers up to which a run that does not gain counts as one without any
SAMPLER = ("stale_sampler", "sampler_mismatch", "logprob_shift")


def spread_between(log: RunLog) -> float:
    """Largest known measure of the spread of rewards over a step's rollouts."""
    deviations = [log.mean(n) for n in log.series if n.startswith("component_std/")]
    if log.has("reward_max", "reward_min"):
        deviations.append(float((log.values("reward_max") - log.values("reward_min")).mean()))
    if log.training_rollouts is not None:
        r = log.training_rollouts
        score = r.score[np.isfinite(r.score)]
        if len(score):
            deviations.append(float(score.std()))
    if not deviations and log.has("reward"):
        deviations.append(float(log.values("reward").std()))
    return max(deviations, default=0.0)


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
def all_wrong(log: RunLog) -> Finding | None:
    name = "success" if log.has("success") else "reward"
    values = log.values(name)
    sparse = 0 < len(values) < 5 <= log.last_step  # a few rows of a longer run
    if len(values) < 5 and not sparse:
        return _no_signal_yet(log, name)
    # a total with a part for form is above its lowest level even if no answer is right
    if name == "reward" and len(log.components()) > 1 and log.correctness is not None:
        name, values = log.correctness, log.values(log.correctness)
    # wrong is whatever scores least, at 0 or below: a lowest reward above 0 may be for right answers
    lowest = float(values.min())
    zero = float((values <= lowest + 1e-9).mean())
    begin = float(values[:5].max())
    is_constant = zero > 0.9 and begin <= lowest + 1e-9 and lowest <= 0.0
    # a rare success that the policy learns from is no all-wrong run; a reward is one of right answers where its floor
    # is 0 or a whole number below it, at which most steps stay
    is_floor = lowest == round(lowest) and lowest <= 0.0 and zero >= 0.5
    mean_gain = max(float(values.mean()), float(values[:5].mean())) - lowest
    is_rare = lowest <= 0.0 and (name == "success" or (is_floor and zero < 1)) and mean_gain < RARE and not log.gains
    if not (is_constant or is_rare) or _begins_to_succeed(values > lowest + 1e-9):
        return None
    # equal means hide groups with a signal
    if name == "reward" and not is_rare and not log.is_silent_from_start and spread_between(log) > 1e-9:
        return None
    n_rollouts = _count_rollouts(log)
    # the rule of three: with no success in n trials, the rate is below 3 / n at 95%
    bound = (
        f"in {n_rollouts} rollouts none was right: the pass rate is below {3 / n_rollouts:.1e} (95%)"
        if n_rollouts and zero == 1.0
        else ""
    )
    evidence = [log.quote(name), *(log.quote(n) for n in ("zero_signal", "grad_norm") if log.has(n)), bound]
    ids = ["all_wrong"]
    # too hard, an unreadable prompt and a blind verifier look alike in the metrics: the completions tell
    form = _off_form_unmoved(log)
    if form is not None and form > 0.8:
        ids = ["wrong_template", "all_wrong"]
        evidence.append(
            f"{form:.0%} of the completions do not have the form of any reference answer: did the model see the prompt "
            "in the form that it was trained on? Its accuracy before training, on rendered prompts, would tell"
        )
    elif log.facts is None or log.facts.references is None:
        ids.append("verifier_rejects_right_answers")
        evidence.append(
            "either the tasks are too hard or the verifier can't read the answers: reference answers would tell which"
        )
        if log.facts is not None:
            evidence.append("gxpo doctor PATH --reward FILE.py:FUNCTION calls the verifier on these completions")
    if name.startswith("component/"):
        ids.append("dead_component")
    return finding(
        ids,
        "critical",
        "possible" if sparse else "proved" if zero == 1.0 and len(ids) == 1 else "likely",
        "every answer is scored as wrong"
        if sparse
        else "every answer is scored as wrong from the first step on"
        if zero == 1.0
        else f"no answer is scored as right in {zero:.0%} of the steps",
        *evidence,
        examples=log.facts.examples(range(3)) if log.facts is not None else (),
    )


def _begins_to_succeed(is_paid: np.ndarray) -> bool:
    """True if the steps with a right answer, however few, come late: four or more, four times the first half's."""
    half = len(is_paid) // 2
    early, late = int(is_paid[:half].sum()), int(is_paid[half:].sum())
    return late >= max(4, 4 * early)


def _off_form_unmoved(log: RunLog) -> float | None:
    """Share of completions without the form of an answer, before training on wrong answers could change it.

    A policy that learns from all-wrong groups (NGRPO) is pushed away from the forms it knew, whatever its template.
    """
    if log.facts is None or log.is_silent_from_start or not log.has("zero_signal"):
        return None if log.facts is None else log.facts.off_form
    # some groups have a signal, so that the policy moves: only the first steps show what it was
    r = log.facts.r
    first = r.step <= FRESH
    return Facts(r.select(first)).off_form if first.any() else None


def _no_signal_yet(log: RunLog, name: str) -> Finding | None:
    """Report a run of a few steps without any signal, as possible only."""
    values = log.values(name)
    if not len(values) or not log.is_silent or not (values == values[0]).all():
        return None
    steps = f"{len(values)} step{'s' * (len(values) > 1)}"
    has_references = log.facts is not None and log.facts.references is not None
    if values[0] <= 0.0:
        ids, title = (
            ["all_wrong", *([] if has_references else ["verifier_rejects_right_answers"])],
            "every answer is scored as wrong",
        )
    else:
        ids, title = ["all_right", "reward_ignores_completion"], "every answer has the same reward"
    return finding(
        ids,
        "warning",
        "possible",
        f"no group has had a signal: {title} in the {steps} so far, too few to say more",
        *(log.quote(n) for n in dict.fromkeys([name, "zero_signal", "grad_norm"]) if log.has(n)),
        examples=log.facts.examples(range(2)) if log.facts is not None else (),
    )


@sickness(
    "all_right",
    2,
    "every answer is right: nothing left to learn",
    "nearly all groups at the largest reward from the first steps; later it is a run that is done",
    needs=("reward",),
    follows=("missing_scores",),
)
def all_right(log: RunLog) -> Finding | None:
    if len(log.values("reward")) < 5 or not np.isfinite(log.top_reward):
        return None
    if log.top_reward <= 0:
        return _never_charged(log)
    if log.has("success") and log.mean("success") < 0.9:
        return None  # the reward is near its largest value, and answers are wrong
    if pays_for_anything(log) or near_constant(log) is not None:
        return None  # the verifier does not say that answers are right
    reward, top = log.values("reward"), log.top_reward
    # easy from the start is a warning; solved in the course of the run is its success, a note
    level = np.asarray(reward >= 0.98 * top)
    easy = log.has("zero_signal") and log.first("zero_signal") >= 0.6 and log.mean("zero_signal") >= 0.6
    exactly = log.is_constant("reward") and log.is_silent
    # the largest mean of a step is the largest reward only where it is a round one
    is_round = abs(top - round(top)) <= 0.01 * top
    is_full = (log.has("reward_max") or is_round) and float(reward.mean()) > 0.97 * top and not log.gains
    high = log.first("reward") >= 0.9 * top and float(reward.mean()) >= 0.85 * top
    is_known = log.has("reward_max") or log.has("success") or is_round  # the largest reward, not the largest mean
    if exactly and not is_known:
        return None  # one reward for all that is no usual largest one: `reward_ignores_completion` says it
    if easy and is_known and not exactly and high and not log.gains:
        return finding(
            "all_right",
            "warning",
            "likely",
            "nearly every answer is right from the first step on: the tasks are too easy",
            log.quote("reward"),
            log.quote("zero_signal"),
            log.quote(log.evaluation) if log.evaluation else "",
        )
    if (
        log.first("reward") >= 0.95 * top
        and (level.mean() > 0.7 or is_full)
        and (log.is_silent_from_start or not log.has("zero_signal"))
    ):
        if log.has("zero_signal") and log.mean("zero_signal") < 0.8:
            return None
        if not log.has("zero_signal") and not (level.all() and log.is_constant("reward")) and not is_full:
            return None
        ids = ["all_right"]
        has_no_rollouts = log.training_rollouts is None
        if any(log.is_constant(f"component/{n}") and log.mean(f"component/{n}") <= 0 for n in log.components()):
            return None  # some reward is never paid
        evidence = [log.quote("reward"), log.quote("zero_signal") if log.has("zero_signal") else ""]
        # one and the same right answer in every sample, too, has zero signal: entropy or temperature tell
        cold = log.number("temperature")
        if log.has("entropy") and log.first_entropy < 1e-3:
            ids.append("no_diversity")
            evidence.append(log.quote("entropy"))
            if cold is not None and cold < 0.2:
                ids.reverse()
                evidence.append(f"sampling temperature = {cold:g}: the groups hold one answer each")
        elif exactly and has_no_rollouts and log.source in ("trl", "ms-swift"):
            ids.append("missing_scores")
            evidence.append("a scorer that returns None for wrong answers looks the same: the completions would tell")
        return finding(
            ids,
            "warning",
            "proved" if not has_no_rollouts else "likely",
            "every answer is right from the first step on: the tasks are too easy",
            *evidence,
        )
    if log.is_solved and log.has("zero_signal") and log.last("zero_signal") > 0.8:
        steps = log.steps("reward")
        since = steps[int(np.argmax(level))] if level.any() else steps[-1]
        silent = log.column("zero_signal")
        late = silent.values[silent.steps >= since]
        is_idle = float(level[steps >= since].mean()) > 0.7 and float(late.mean()) > 0.75
        is_early = (since - steps[0]) < 0.2 * (steps[-1] - steps[0]) and len(steps) >= 100
        return finding(
            "all_right",
            "warning" if is_idle and is_early else "note",
            "likely",
            f"done: nearly all answers are right from step {since:.0f} on",
            log.quote("reward"),
            log.quote("zero_signal"),
        )
    return None


def _never_charged(log: RunLog) -> Finding | None:
    """Report a reward of 0 and below that charges hardly any answer from the first steps on."""
    reward = log.values("reward")
    charged = log.values("reward_min") if log.has("reward_min") else reward
    if log.top_reward < 0 or not charged.min() <= -0.01 or float(reward.min()) < -0.1 or (reward == 0).sum() < 3:
        return None
    if log.first("reward") < -0.03 or log.mean("reward") < -0.03 or log.gains:
        return None
    return finding(
        "all_right",
        "warning",
        "likely",
        "hardly any answer is charged for anything from the first step on: the tasks are too easy",
        *(log.quote(n) for n in ("reward", "reward_min", "zero_signal", "grad_norm") if log.has(n)),
        log.quote(log.evaluation) if log.evaluation else "",
    )


@sickness(
    "no_diversity",
    2,
    "a group's answers are all the same text",
    "distinct completions / group size at step 1; entropy near 0 at step 1 with right and wrong groups",
    needs=("rollouts", "entropy", "zero_signal"),
    follows=(),
)
def no_diversity(log: RunLog) -> Finding | None:
    facts = log.facts
    # a change from one step to the next is a switch (greedy after an evaluation), not a collapse
    abrupt = None if facts is None else facts.alike_from
    if facts is not None and abrupt is not None and _is_unmoved(log, abrupt[0]):
        step, share_before, rows = abrupt
        return finding(
            "no_diversity",
            "critical",
            "proved",
            f"the answers of a group are the same text from step {step} on: is sampling greedy since an evaluation?",
            f"{share_before:.0%} of a group's completions differ before step {step}, none after it",
            *(log.quote(n) for n in ("entropy", "grad_norm") if log.has(n)),
            examples=facts.examples(rows[:2]),
        )
    distinct = None if facts is None else facts.distinct_early
    if facts is not None and distinct is not None:
        count, size, rows = distinct
        # of certain answers that are never scored apart, one in four may differ by a few words
        most_distinct = 0.3 * size if log.is_silent and log.first_entropy < 0.05 else 0.0
        if size < 2 or count > max(min(1.5, 0.6 * size), most_distinct):
            return None
        # short answers repeat by chance: an unsure policy may give equal ones
        if log.first_entropy > 0.3 and count > 1.2:
            return None
        if facts.characters <= 1.5 and count > 1.05:
            return None
        # a sure policy gives one answer; that is the end of training if the answer is right
        unsure = log.first_entropy * log.first("length") if log.has("entropy", "length") else 0.0  # nats an answer
        if unsure < 1.0 and log.has("reward") and log.first("reward") >= 0.9 * log.top_reward > 0:
            return None  # one right answer each: solved
        return finding(
            "no_diversity",
            "critical",
            "proved",
            "the answers of a group are the same text from the first step on",
            f"{count:.1f} different completions in groups of {size:.0f} in the first steps read",
            *(log.quote(n) for n in ("entropy", "zero_signal") if log.has(n)),
            *(
                f"sampling {n} = {log.setting(n)}"
                for n in ("temperature", "top_k", "top_p")
                if log.setting(n) is not None
            ),
            examples=facts.examples(rows[:2]),
        )
    # without completions equal rewards have several explanations, which the finding lists
    if len(log.components()) > 1 and log.is_constant("reward") and log.is_silent and log.is_silent_at_first:
        return finding(
            ["no_diversity", "entropy_collapse", "reward_ignores_completion"],
            "critical",
            "possible",
            "every rollout gets the same reward: all groups have zero signal",
            *(log.quote(n) for n in ("reward", "zero_signal", "entropy") if log.has(n)),
            *(log.quote(f"component/{n}") for n in log.components()[:4]),
            "are the answers of a group the same text? The completions would tell",
        )
    if (step := _silent_at_once(log)) is not None:
        return finding(
            ["no_diversity", "reward_ignores_completion"],
            "critical",
            "likely",
            f"from step {step} on every group has zero signal, at once: are its answers the same text since then?",
            *(log.quote(n) for n in ("zero_signal", "reward", "entropy", "grad_norm") if log.has(n)),
            "sampling that stays greedy after an evaluation looks like this, and a scorer that reads the prompt alone",
        )
    if not log.has("entropy", "reward") or not log.is_silent_from_start:
        return None
    # right and wrong groups, each of one answer: only the settings or the entropy tell
    reward, top = log.first("reward"), log.top_reward
    is_mixed = spread_between(log) > 1e-3 and reward < 0.98 * top
    tau, top_p = log.number("temperature"), log.number("top_p")
    is_narrow = top_p is not None and top_p < 0.1
    if not is_mixed or (log.has("zero_signal") and log.mean("zero_signal") < 0.9):
        return None
    if log.first_entropy < 0.02 or (tau is not None and tau < 0.1) or log.number("top_k") == 1 or is_narrow:
        return finding(
            "no_diversity",
            "critical",
            "likely",
            "the answers of a group are all alike from the first step on",
            *(log.quote(n) for n in ("entropy", "zero_signal", "reward")),
            *(
                f"sampling {n} = {log.setting(n)}"
                for n in ("temperature", "top_k", "top_p")
                if log.setting(n) is not None
            ),
        )
    return None


def _silent_at_once(log: RunLog) -> int | None:
    """Step from which all groups have zero signal, if most had some before and tasks are neither solved nor lost."""
    silent, steps = log.values("zero_signal"), log.steps("zero_signal")
    # three steps or more before, four or more after: single silent steps are chance
    loud_steps = np.flatnonzero(silent < 0.95)
    if len(silent) < 8 or not len(loud_steps) or len(silent) - loud_steps[-1] - 1 < 4 or loud_steps[-1] < 3:
        return None
    begin = int(loud_steps[-1]) + 1
    rewards = log.values("reward")[log.steps("reward") >= steps[begin]]
    top = log.top_reward
    is_mixed = len(rewards) > 0 and 0.05 * top < float(rewards.mean()) < 0.9 * top and float(np.ptp(rewards)) > 0.01
    return int(steps[begin]) if is_mixed and float(silent[begin - 3 : begin].mean()) < 0.7 else None


def _is_unmoved(log: RunLog, step: int) -> bool:
    """True if entropy does not fall at a step and tasks are not solved after it, so that equal texts are no success."""
    entropy, steps = log.values("entropy"), log.steps("entropy")
    earlier_entropy, later_entropy = entropy[steps < step][-3:], entropy[steps >= step][:3]
    is_sharpened = (
        len(earlier_entropy) > 0
        and len(later_entropy) > 0
        and float(later_entropy.mean()) < 0.5 * float(earlier_entropy.mean())
    )
    return not is_sharpened and not log.last("reward") >= 0.95 * log.top_reward


@sickness(
    "group_too_small",
    2,
    "the group is too small for a baseline",
    "p^G + (1 - p)^G of the groups have no signal although the policy is neither always right nor always wrong",
    needs=("zero_signal", "rollouts"),
    follows=("wrong_groups",),
    of_training=True,
)
def group_too_small(log: RunLog) -> Finding | None:
    size = log.group_size
    if log.has_critic:
        return None
    if size is None or size > 3:
        return _little_signal(log)
    if size <= 1:
        return finding(
            "group_too_small",
            "critical",
            "proved",
            "groups of one: there is nothing to compare an answer with",
            f"group size {size:g}",
        )
    rate = _right_share(log)
    # rewards that never differ leave groups of any size without a signal
    if rate is None or log.is_silent:
        return None
    # a group has no signal if all of its answers are right or all are wrong
    silent_share = rate**size + (1 - rate) ** size
    # the largest mean of a step is not the largest reward: a share of right answers takes verdicts or a known maximum
    is_known = log.has("success") or log.has("reward_max") or log.has_binary_rewards or log.facts is not None
    chance = f", share of right answers {rate:.2f}: {silent_share:.0%} of groups have zero signal by chance"
    evidence = [f"group size {size:g}{chance if is_known else ''}"]
    evidence += [log.quote(name) for name in ("zero_signal", "zero_wrong") if log.has(name)][:1]
    # methods for pairs have a baseline that needs no larger group
    if str(log.setting("method") or "").startswith("two_grpo") or log.is_solved:
        return None
    if log.has("zero_signal") and log.mean("zero_signal") < 0.4:
        return _little_signal(log)
    falls = log.falls("reward")
    return finding(
        "group_too_small",
        "critical" if falls else "note" if log.gains and not _hardly_gains(log) else "warning",
        "likely",
        f"groups of {size:g} are too small: their baseline is mostly noise, and most have no signal",
        *evidence,
        log.quote("reward"),
    )


def _hardly_gains(log: RunLog) -> bool:
    """True if four groups of five are silent to the end, and the reward has risen by less than a tenth of its range."""
    name = "zero_signal" if log.has("zero_signal") else "zero_wrong"
    rise = log.last("reward") - log.first("reward")
    return log.last(name) > 0.8 and log.n_steps >= 50 and rise < 0.1 * max(log.top_reward, 1.0)


def _little_signal(log: RunLog) -> Finding | None:
    """Report groups of which hardly any has a signal, in a run that does not gain; what they lack is by their rewards:
    right answers, wrong ones, or different ones."""
    silent = log.values("zero_signal")
    if len(silent) < 10 or log.gains or log.is_silent or not float(silent.mean()) >= LITTLE:
        return None
    if _right_share(log) is None or log.is_solved:
        return None
    # means of few right answers do not show the largest reward, which is 1 at least
    low = min(float(log.values("reward").min(initial=0.0)), 0.0)
    rate = log.mean("success") if log.has("success") else (log.mean("reward") - low) / (max(log.top_reward, 1.0) - low)
    if rate > 0.8:
        return None
    # in the middle most groups of four and more have both right and wrong answers, unless prompts differ much
    ids = ["group_too_small", "all_wrong"] if rate < 0.2 else ["no_diversity", "group_too_small"]
    # one reward above the lowest in nearly every step is what the reward pays for anything
    reward = log.values("reward")
    usual = float(np.median(reward))
    if float(silent.mean()) > 0.95 and float((np.abs(reward - usual) < 1e-6).mean()) > 0.7 and usual > low:
        ids = ["reward_ignores_completion", "no_diversity"]
    return finding(
        ids,
        "warning",
        "possible",
        f"only {1 - float(silent.mean()):.0%} of the groups have a signal, and the reward does not rise",
        log.quote("zero_signal"),
        log.quote("reward"),
        *(log.quote(n) for n in ("entropy", "grad_norm") if log.has(n)),
        "" if log.group_size is None else f"group size {log.group_size:g}",
    )


def _right_share(log: RunLog) -> float | None:
    """Mean share of right answers: verdicts, else the place of the mean reward between the lowest and the largest; None
    where no reward differs from another."""
    if log.has("success"):
        return log.mean("success")
    if not log.has("reward"):
        return None
    lows = [float(log.values(name).min()) for name in ("reward", "reward_min") if log.has(name)]
    low, top = min(*lows, 0.0), log.top_reward
    if top <= low or (log.is_constant("reward") and spread_between(log) <= 1e-9):
        return None
    return min(max((log.mean("reward") - low) / (top - low), 0.0), 1.0)


def _count_rollouts(log: RunLog) -> int:
    """Number of rollouts of the run: by the metrics, else those that were read."""
    if log.has("rollouts"):
        return int(log.values("rollouts").sum())
    return len(log.training_rollouts) if log.training_rollouts is not None else 0
