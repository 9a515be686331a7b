"""Checks of the outcome: collapse of entropy or length, hacked rewards and judges, memorising, drift."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gxpo.doctor.checks.collapse import is_token, is_torn, pays_a_token, shrinks_far_away, shrinks_in_few_points
from gxpo.doctor.finding import Finding
from gxpo.doctor.rollout_answers import CORRECT, STYLE
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import CERTAIN, certain, has_stopped, trend
from gxpo.doctor.sickness import finding, sickness

LEAST = 12  # steps below which a direction is not judged
CERTAINTY = 0.04  # nats a token, below which an answer of tens of tokens is nearly always the same
JUDGE, EXPLOITED = "component/judge", "component/exploitation"
JUDGES = re.compile(r"judge|reward_?model|\brm\b", re.I)  # names of reward functions that are models


@sickness(
    "judge_hacked",
    5,
    "the policy exploits its judge: its score rises, held-out judges' or verdicts fall",
    "score of the training judge rises while the held-out panel's, the verdicts or held-out accuracy fall; or they do "
    "not rise and the share of credited answers that the panel rejects does",
    needs=(JUDGE, "component/NAME"),
    of_training=True,
)
def judge_hacked(log: RunLog) -> Finding | None:
    judge = next((f"component/{name}" for name in log.components() if JUDGES.search(name)), JUDGE)
    if log.n_steps < LEAST or not log.rises(judge):
        return None
    # whoever the reward does not pay has no reason to be fooled: held-out judges, labels
    other_figures = [
        n
        for n in dict.fromkeys(("component/held_out", "success", log.correctness or "success"))
        if log.has(n) and n != judge and not log.is_constant(n)
    ]
    falling_figures = [n for n in other_figures if log.falls(n)]
    rising_figures = [n for n in other_figures if log.rises(n)]
    if not falling_figures and log.evaluation == "eval/accuracy" and log.evaluation_gain < 0:
        falling_figures = ["eval/accuracy"]
    is_exploited = log.rises(EXPLOITED)
    if not falling_figures and not (is_exploited and other_figures and not rising_figures):
        return None
    # by the labels it gets better
    if "success" in rising_figures and "component/held_out" not in falling_figures:
        return None
    evidence = [log.quote(judge), *(log.quote(n) for n in other_figures), log.quote(EXPLOITED)]
    if log.evaluation is not None:
        evidence.append(log.quote(log.evaluation))
    return finding(
        "judge_hacked",
        "critical" if falling_figures else "warning",
        "likely" if falling_figures else "possible",
        "the score of the judge that is paid for rises, while held-out judges or verdicts do not",
        *evidence,
    )


@sickness(
    "entropy_collapse",
    5,
    "entropy collapse: one answer per prompt before the tasks are solved",
    "entropy below 10% of its start and reward stalled below the largest seen, no gain in the second half",
    needs=("entropy",),
    follows=(
        "lr_too_high",
        "reward_ignores_completion",
        "length_hack",
        "component_dominates",
        "reward_noise",
        "reward_sign",
        "advantage_sign",
        "kl_runaway",
        "too_off_policy",
        "non_finite",
    ),
    of_training=True,
)
def entropy_collapse(log: RunLog) -> Finding | None:
    entropy, reward = log.values("entropy"), log.values("reward")
    if len(entropy) < 4 or len(reward) < 2 or log.is_solved:
        return None
    begin, end = float(entropy[:2].mean()), log.last("entropy")
    if log.entropy_coefficient is not None and end < 0.2 * begin and not log.gains:
        return finding(
            "entropy_collapse",
            "critical",
            "proved",
            "the loss pays for certainty: its entropy term has the wrong sign",
            f"{log.key('loss')} / {log.key('entropy')} = {log.entropy_coefficient:.2g} at most steps",
            *(log.quote(n) for n in ("entropy", "loss", "reward", "zero_wrong") if log.has(n)),
        )
    # entropy and length gone together are no sharpening: what is left is one short answer
    if begin > 0.02 and end < 0.1 * begin and log.column("length").start_to_last < 1 / 3 and not log.gains:
        return finding(
            ["entropy_collapse", "lr_too_high"],
            "critical",
            "likely",
            "the policy has collapsed: entropy and length are gone",
            *(log.quote(n) for n in ("entropy", "length", "reward", "grad_norm", "lr") if log.has(n)),
        )
    if len(entropy) < 8:
        return None
    # it has learnt most of what there is: low entropy is then what it should have
    if log.gains and log.last("reward") > 0.8 * log.top_reward:
        return None
    silent_share = log.last("zero_signal") if log.has("zero_signal") else float("nan")
    # with most groups silent a smaller fall suffices: they are what the collapse leads to
    is_low = begin > 0.02 and end < (0.2 if silent_share > 0.7 else 0.1) * begin
    # few rewards among many entropies: the last ones against the first
    if len(reward) < LEAST and begin > 0.02 and (is_low or end < 0.35 * begin) and log.last_step >= 100:
        if float(reward[-2:].mean()) > float(reward[:2].mean()) + 0.5 * float(np.ptp(reward)):
            return None
        return finding(
            "entropy_collapse",
            "warning",
            "possible",
            "entropy has fallen and the reward has not risen",
            log.quote("entropy"),
            log.quote("reward"),
        )
    if not is_low and log.evaluation_gain < 0 and log.falls("reward") and 0.02 < end < 0.5 * begin:
        return finding(
            ["entropy_collapse", "lr_too_high"],
            "critical",
            "possible",
            "entropy falls and so does the reward: the policy becomes more certain and worse",
            log.quote("entropy"),
            log.quote("reward"),
            log.quote(log.evaluation or "reward"),
            "does the loss have an entropy term, and the right sign?",
        )
    if log.n_steps < LEAST or not is_low:
        return None
    solved = log.solved_shares
    solved_gain = 0.0 if solved is None else solved[1] - solved[0]
    has_lost_tasks = solved is not None and (solved_gain < -0.1 or log.rises("zero_wrong"))
    # as many tasks are solved at times as at the start: nothing was given up for certainty, while groups have a signal
    is_gone = silent_share > 0.8 or end < min(0.06 * begin, CERTAINTY)
    # gone by the middle of a run that gains nothing more, far below its top: what there was to gain was given up early
    middle = float(np.median(entropy[len(entropy) // 3 : len(entropy) // 2]))
    stopped = has_stopped(log.values("reward"), log.values(log.evaluation or "eval/accuracy"))
    is_early = middle < 0.1 * begin and log.last("reward") < 0.75 * max(log.top_reward, 1.0) and stopped
    if solved is not None and not has_lost_tasks and not log.falls("reward") and not is_gone and not is_early:
        return None
    # a run that still gains late has not collapsed, nor one near its top
    half = trend(reward[len(reward) // 2 :])
    is_near_top = is_gone and not silent_share > 0.8 and log.last("reward") > 0.8 * max(log.top_reward, 1.0)
    # more groups than at first have a right answer, held-out tasks too: they are silent because they are solved
    is_solving = log.evaluation_gain > 0 and not is_early and (solved_gain > 0.1 or not is_gone)
    if half is None or half.rises or is_near_top or is_solving:
        return None
    score = log.trend("reward")  # certainty keeps its level; one that is lost speaks of steps that are too long
    return finding(
        ["entropy_collapse", *(["lr_too_high"] if score is not None and score.is_past_best else [])],
        "warning" if log.gains else "critical",
        "likely" if silent_share > 0.7 else "possible",
        "entropy has collapsed before the tasks are solved: a group's answers are all alike",
        log.quote("entropy"),
        log.quote("reward"),
        log.quote("zero_signal") if log.has("zero_signal") else "",
        f"groups with a right answer: about {solved[0]:.0%} in the first steps, {solved[1]:.0%} in the last"
        if solved is not None
        else "",
    )


@dataclass(frozen=True)
class Right:
    """The series of correctness: its change over the run and the change's standard error."""

    name: str
    change: float
    error: float

    @property
    def falls(self) -> bool:
        return self.change < -2.5 * self.error

    def lags(self, gain: float) -> bool:
        """True if it gains less than half of `gain`, and a gain of half would have been seen."""
        return self.change < 2 * self.error and self.change + 2 * self.error < 0.5 * gain


def _right(log: RunLog) -> Right | None:
    """Find the series of correctness: held-out accuracy, else verdicts or the component for it; None without one."""
    name = log.evaluation
    if name == "eval/reward":  # the same reward as in training, which says what is right only where it is named so
        only, *other_components = log.components() or [""]
        name = None if other_components or not CORRECT.search(only) or STYLE.search(only) else name
    if name is not None:
        return Right(name, *line(log, name))
    if log.correctness is not None:
        change = log.trend(log.correctness)
        if change is not None:
            return Right(log.correctness, change.change, max(change.error, 1e-9))
    return None


def line(log: RunLog, name: str) -> tuple[float, float]:
    """Change of a least-squares line through the evaluations, first to last, and its standard error."""
    values = log.values(name)
    n = len(values)
    time = np.arange(n) - (n - 1) / 2
    # `evaluation_error` is that of a difference of two evaluations
    single = log.evaluation_error / np.sqrt(2)
    return float(time @ values / (time @ time)) * (n - 1), max(float(single * (n - 1) / np.sqrt(time @ time)), 1e-9)


@sickness(
    "length_hack",
    5,
    "length hack: the reward pays length",
    "length grows to 1.5 times its start while reward rises and correctness or evaluation does not; correlation of "
    "length and reward within groups above 0.5",
    needs=("length",),
    follows=("judge_hacked",),
    of_training=True,
)
def length_hack(log: RunLog) -> Finding | None:
    if log.n_steps < LEAST or not log.has("length", "reward"):
        return None
    begin, end = log.first("length"), log.last("length")
    if not (end > 1.4 * begin and log.rises("length") and log.rises("reward")):
        return None
    right = _right(log)
    total = log.trend("reward")
    # correctness can't gain more than what is missing to 1
    room = 1.0 - log.first(right.name) if right is not None and log.largest(right.name) <= 1 else float("inf")
    gain = 0.0 if total is None else min(max(total.change, total.ends), room)
    if right is not None and not (right.falls or (gain > 0.1 and right.lags(gain))):
        return None
    # the correlation within groups proves the payment; without rollouts correctness that falls behind suggests it
    corr = None if log.facts is None else log.facts.length_pays
    is_paid = corr is not None and corr > 0.5
    if right is None and not is_paid:
        return None
    if corr is not None and corr < 0.2:
        return None
    evidence = [log.quote("length"), log.quote("reward")]
    evidence += [log.quote(right.name)] if right else []
    evidence += [f"within groups, completion length and reward correlate at {corr:.2f}"] if corr is not None else []
    return finding(
        "length_hack",
        "critical" if right is not None and right.falls else "warning",
        "likely" if is_paid else "possible",
        "the reward pays for length: answers grow and do not get better",
        *evidence,
    )


@sickness(
    "length_collapse",
    5,
    "length collapse: answers shrink to nothing while correctness falls",
    "length below 35% of its start, total reward not falling, correctness or evaluation falling",
    needs=("length",),
    follows=("lr_too_high", "reward_sign", "advantage_sign"),
    of_training=True,
)
def length_collapse(log: RunLog) -> Finding | None:
    if log.n_steps < LEAST:
        return shrinks_in_few_points(log)
    if not log.has("length", "reward"):
        return None
    if is_token(log):
        return pays_a_token(log)
    begin, end = log.first("length"), log.last("length")
    if not (end < 0.6 * begin and log.falls("length")) or log.falls("reward"):
        return None
    # shorter answers that stay right are an improvement
    right = _right(log)
    pays = None if log.facts is None else log.facts.length_pays
    if right is not None and right.falls:
        return finding(
            "length_collapse",
            "critical",
            "likely",
            "answers shrink while fewer of them are right",
            log.quote("length"),
            log.quote("reward"),
            log.quote(right.name),
            f"within groups, completion length and reward correlate at {pays:.2f}" if pays is not None else "",
        )
    if right is None and pays is None:
        return shrinks_far_away(log)
    if right is None and pays is not None and pays < -0.6 and end < 0.35 * begin:
        return finding(
            "length_collapse",
            "warning",
            "possible",
            "answers shrink, and short ones are paid",
            log.quote("length"),
            log.quote("reward"),
            f"within groups, completion length and reward correlate at {pays:.2f}",
        )
    return None


@sickness(
    "component_dominates",
    5,
    "one reward function pays while correctness falls or stands still",
    "total and one component rise, correctness does not; share of the within-group variance by component",
    needs=("component/NAME",),
    follows=("reward_sign", "judge_hacked"),
    of_training=True,
)
def component_dominates(log: RunLog) -> Finding | None:
    names = log.components()
    # verdicts beside a single component are the other one
    n_components = len(names) + (log.correctness == "success")
    if log.n_steps < LEAST or n_components < 2 or not log.rises("reward") or log.correctness is None:
        return None
    right = log.trend(log.correctness)
    name = log.correctness.removeprefix("component/")
    # a share of right answers is at most 1; of a component the largest is known as far as it was seen
    top = 1.0 if log.correctness == "success" else log.largest(log.correctness)
    if right is None or right.rises or (top and right.last > 0.9 * top):
        return None
    if log.is_constant(log.correctness):
        return None
    rising_components = [n for n in names if n != name and log.rises(f"component/{n}")]
    if not rising_components or log.evaluation_gain > 0:
        return None
    # by its share of the variance within groups, as that is all that the advantage sees
    share = {} if log.facts is None else log.facts.shares
    dominant = max(rising_components, key=lambda n: share.get(n, log.trend(f"component/{n}").change))  # type: ignore[union-attr]
    is_dominant = share.get(dominant, 0.0) > 0.6
    # without shares: it explains most of the gain, and correctness at most a third, within its error
    gain, change = log.trend("reward").change, log.trend(f"component/{dominant}").change  # type: ignore[union-attr]
    explains_gain = change > 0.6 * gain and right.change + 2 * right.error < gain / 3
    # late shares of a form that is learnt say nothing of what was paid for before
    explains_gain = explains_gain and (not share or right.change <= 0)
    if not (right.falls or is_dominant or explains_gain):
        return None
    # a component for length is better known by its symptom
    is_of_length = "len" in dominant.lower() or log.source == "unknown"
    evidence = [log.quote(f"component/{dominant}"), log.quote(log.correctness), log.quote("reward")]
    evidence += (
        [
            "share of the reward's variance within groups: "
            + ", ".join(f"{k} {max(v, 0.0):.0%}" for k, v in share.items())
        ]
        if share
        else []
    )
    ids = ["component_dominates"]
    if is_of_length and log.has("length"):
        if log.last("length") > 1.4 * log.first("length"):
            ids = ["length_hack", "component_dominates"]
        elif log.last("length") < 0.6 * log.first("length"):
            ids = ["length_collapse", "component_dominates"]
    return finding(
        ids,
        "critical" if right.falls else "warning",
        "likely",
        f"the reward pays for {dominant}, while {name} {'falls' if right.falls else 'does not improve'}",
        *evidence,
    )


@sickness(
    "kl_runaway",
    5,
    "the policy runs away from its reference",
    "KL grows more than tenfold and past 1 nat a token while reward or evaluation falls",
    needs=("kl",),
    follows=("lr_too_high", "too_off_policy", "reward_noise", "stale_sampler", "length_hack", "non_finite"),
    of_training=True,
)
def kl_runaway(log: RunLog) -> Finding | None:
    kl = log.values("kl")
    if len(kl) < 4:
        return None
    # a spike of one step (the KL is heavy-tailed) is no drift
    width = 3 if len(kl) >= 8 else 1
    begin, end = max(float(np.median(kl[:width])), 1e-4), float(np.median(kl[-max(width, len(kl) // 5) :]))
    if not (end > 10 * begin and end > (1.0 if len(kl) >= 8 else 10.0)):
        return None
    score = log.trend("reward")
    right = _right(log)
    worse = score is not None and (score.falls or score.best - score.last > 4 * score.ends_error)
    worse = worse or (right is not None and right.falls and not log.gains)
    if log.gains and not worse and log.evaluation_gain >= 0 and not is_torn(log):
        return finding(
            "kl_runaway", "note", "possible", "the policy is far from its reference, but still gains", log.quote("kl")
        )
    return finding(
        "kl_runaway",
        "critical" if worse or log.evaluation_gain < 0 else "warning",
        "likely",
        "the policy runs away from its reference",
        log.quote("kl"),
        log.quote("reward"),
        log.quote(log.evaluation) if log.evaluation else "",
    )


@sickness(
    "memorising",
    5,
    "memorising: training reward rises, held-out reward does not",
    "training reward gains significantly, evaluations do not although they could have shown it",
    needs=("eval/accuracy", "eval/reward"),
    follows=("duplicate_prompts",),
    of_training=True,
)
def memorising(log: RunLog) -> Finding | None:
    name = log.evaluation
    # evaluations that never differ at all measure something else than the policy
    if name is None or log.n_steps < LEAST or len(log.values(name)) < 3 or log.is_constant(name):
        return None
    source = "success" if log.has("success") else "reward"
    # training reward between the first evaluation and the last: what was gained before shows in neither
    since = log.steps(source) >= log.steps(name)[0]
    train = trend(log.values(source)[since])
    values = log.values(name)
    held_out = trend(values)
    is_done = train is not None and not train.rises and train.last > 0.9 * max(log.top_reward, 1.0)
    if is_done and held_out is not None and len(values) >= 8 and held_out.falls:
        return finding(
            "memorising",
            "warning",
            "likely",
            "training tasks are solved, and held-out answers get worse with every further step",
            log.quote(source),
            log.quote(name),
            f"change of a line through the evaluations {held_out.change:+.2g}, standard error {held_out.error:.2g}",
        )
    # what is past its best in training, too, is not known by heart
    if train is None or not train.rises or train.is_past_best:
        return None
    gain = max(train.ends, train.change)
    change, error = line(log, name)
    # the level differs (greedy against sampled), so the gains are compared; a gain of greedy accuracy is capped at 1
    is_share = float(values.min()) >= 0 and float(values.max()) <= 1
    room = 1.0 - float(values[0]) if is_share else gain
    expected_gain = min(gain, room)
    low = min(float(log.values(source).min()), 0.0)
    if is_share and (log.largest(source) > 1.05 or low < -0.02):
        # on another scale than the evaluations: as a share of the rewards' range, and only beside none at all
        expected_gain = min(gain / (log.top_reward - low), room)
        if change > 2 * error:
            return None
    if expected_gain < 0.1 or change > 0.35 * expected_gain:
        return None
    # an error that a few neighbours tell is itself uncertain
    bound = 3.5 if log.evaluation_tasks else 3.5 * certain(len(values)) / CERTAIN
    if expected_gain - change < bound * float(np.hypot(error, train.error * expected_gain / gain)):
        return None
    # few prompts or many passes make it likely; without either the evaluation may just be harder
    n_prompts = None if log.facts is None else log.facts.prompts[0]
    evidence = [
        log.quote(source),
        log.quote(name),
        f"change of a line through the evaluations {change:+.2g}, standard error {error:.2g}",
    ]
    if n_prompts is not None:
        evidence.append(f"{n_prompts} different prompts in the rollouts that were read")
    epochs = log.values("epoch")
    has_many_passes = (len(epochs) > 0 and epochs[-1] > 5) or (n_prompts is not None and n_prompts <= 64)
    if len(epochs):
        evidence.append(log.quote("epoch"))
    # prompts that are hardly repeated can't be known by heart: what rises then is something else than what is evaluated
    shrinks = log.falls("length") and log.last("length") < 0.6 * log.first("length")
    if change < -2 * error and not has_many_passes and not shrinks:
        return finding(
            ["component_dominates", "memorising"],
            "critical",
            "likely",
            "the reward rises while held-out answers get worse: it pays for something else than they are judged by",
            *evidence,
        )
    # answers that grow with a reward that held-out ones do not earn are paid for their length
    grows = not has_many_passes and log.rises("length") and log.last("length") > 1.5 * log.first("length")
    if not has_many_passes and shrinks and change < 2 * error:
        return finding(
            ["length_collapse", "memorising"],
            "critical" if change < -2 * error else "warning",
            "likely",
            "the reward rises as answers shrink, and held-out answers get no better",
            *evidence,
            log.quote("length"),
        )
    return finding(
        ["length_hack", "memorising"] if grows else ["memorising", *(["duplicate_prompts"] if has_many_passes else [])],
        "critical" if change < -2 * error else "warning",
        "likely" if has_many_passes or change < 0 else "possible",
        "the reward rises with the length of the answers, and held-out answers get no better: it pays for length"
        if grows
        else "training reward rises and the held-out one does not: the policy memorises its prompts",
        *evidence,
        log.quote("length") if grows else "",
    )
