"""Where it went: entropy and length collapse, reward hacking, memorising, drift from the reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gxpo.doctor.case import CORRECT, STYLE, Case
from gxpo.doctor.finding import Finding
from gxpo.doctor.sickness import found, sickness
from gxpo.doctor.trend import trend

LEAST = 12  # steps below which a direction is not judged


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
    ),
)
def entropy_collapse(case: Case) -> Finding | None:
    entropy, reward = case.values("entropy"), case.values("reward")
    if len(entropy) < 8 or len(reward) < 2 or case.finished:
        return None
    begin, end = float(entropy[:2].mean()), case.last("entropy")
    if case.gains and case.last("reward") > 0.8 * case.top:
        return None  # it has learnt most of what there is
    silent = case.last("zero_signal") if case.has("zero_signal") else float("nan")
    gone = begin > 0.02 and end < (0.2 if silent > 0.7 else 0.1) * begin
    # few rewards among many entropies: the last ones against the first
    if len(reward) < LEAST and begin > 0.02 and (gone or end < 0.35 * begin) and case.log.last_step >= 100:
        if float(reward[-2:].mean()) > float(reward[:2].mean()) + 0.5 * float(np.ptp(reward)):
            return None
        return found(
            "entropy_collapse",
            "warning",
            "possible",
            "entropy has fallen and the reward is where it was",
            case.quote("entropy"),
            case.quote("reward"),
        )
    if not gone and case.held_out_gain < 0 and case.falls("reward") and 0.02 < end < 0.5 * begin:
        return found(
            ["entropy_collapse", "lr_too_high"],
            "critical",
            "possible",
            "the policy becomes surer and worse",
            case.quote("entropy"),
            case.quote("reward"),
            case.quote(case.held_out or "reward"),
            "does the loss have an entropy term, and the right sign?",
        )
    if case.n < LEAST or not gone:
        return None
    covered = case.covered
    lost = covered is not None and covered[0] - covered[1] > 0.1
    if covered is not None and not lost and not case.falls("reward"):
        return None  # as many tasks are solved at times as at the start
    half = trend(reward[len(reward) // 2 :])
    if half is None or half.rises:
        return None
    if case.held_out_gain > 0 and not silent > 0.8:
        return None
    return found(
        "entropy_collapse",
        "warning" if case.gains else "critical",
        "likely" if silent > 0.7 else "possible",
        "entropy has collapsed before the tasks are solved: a group's answers are all alike",
        case.quote("entropy"),
        case.quote("reward"),
        case.quote("zero_signal") if case.has("zero_signal") else "",
        f"groups with a right answer: about {covered[0]:.0%} in the first steps, {covered[1]:.0%} in the last"
        if covered is not None
        else "",
    )


@dataclass(frozen=True)
class Right:
    """The series that says whether answers get better: its change over the run and the change's standard error."""

    name: str
    change: float
    error: float

    @property
    def falls(self) -> bool:
        return self.change < -2.5 * self.error

    def lags(self, gain: float) -> bool:
        """Whether it gains less than half of a gain, and that much would have shown."""
        return self.change < 2 * self.error and self.change + 2 * self.error < 0.5 * gain


def _right(case: Case) -> Right | None:
    """Held-out accuracy, else verdicts or the component for correctness; None where none of them is known."""
    name = case.held_out
    if name == "eval/reward":  # the same reward as in training, which says what is right only where it is named so
        known = case.log.components()
        named = len(known) == 1 and CORRECT.search(known[0]) is not None and STYLE.search(known[0]) is None
        name = name if named else None
    if name is not None:
        return Right(name, *line(case, name))
    if case.correctness is not None:
        change = case.trend(case.correctness)
        if change is not None:
            return Right(case.correctness, change.change, max(change.error, 1e-9))
    return None


def line(case: Case, name: str) -> tuple[float, float]:
    """(change of a least-squares line through the evaluations from the first to the last, its standard error)."""
    values = case.values(name)
    n = len(values)
    time = np.arange(n) - (n - 1) / 2
    single = case.held_out_error / np.sqrt(2)
    return float(time @ values / (time @ time)) * (n - 1), max(float(single * (n - 1) / np.sqrt(time @ time)), 1e-9)


@sickness(
    "length_hack",
    5,
    "length hack: the reward pays length",
    "length grows to 1.5 times its start while reward rises and correctness or evaluation does not; correlation of "
    "length and reward within groups above 0.5",
    needs=("length",),
    follows=("judge_hacked",),
)
def length_hack(case: Case) -> Finding | None:
    if case.n < LEAST or not case.has("length", "reward"):
        return None
    begin, end = case.first("length"), case.last("length")
    if not (end > 1.4 * begin and case.rises("length") and case.rises("reward")):
        return None
    right = _right(case)
    total = case.trend("reward")
    room = 1.0 - case.first(right.name) if right is not None and case.top_of(right.name) <= 1 else float("inf")
    gain = 0.0 if total is None else min(max(total.change, total.ends), room)
    if right is not None and not (right.falls or (gain > 0.1 and right.lags(gain))):
        return None
    pays = None if case.facts is None else case.facts.length_pays
    paid = pays is not None and pays > 0.5
    if right is None and not paid:
        return None
    if pays is not None and pays < 0.2:
        return None
    evidence = [case.quote("length"), case.quote("reward")]
    evidence += [case.quote(right.name)] if right else []
    evidence += [f"within groups, completion length and reward correlate at {pays:.2f}"] if pays is not None else []
    return found(
        "length_hack",
        "critical" if right is not None and right.falls else "warning",
        "likely" if paid else "possible",
        "the reward is paid for length: answers grow and do not get better",
        *evidence,
    )


@sickness(
    "length_collapse",
    5,
    "length collapse: answers shrink to nothing while correctness falls",
    "length below 35% of its start, total reward not falling, correctness or evaluation falling",
    needs=("length",),
    follows=("lr_too_high", "reward_sign", "advantage_sign"),
)
def length_collapse(case: Case) -> Finding | None:
    if case.n < LEAST or not case.has("length", "reward"):
        return None
    begin, end = case.first("length"), case.last("length")
    if not (end < 0.6 * begin and case.falls("length")) or case.falls("reward"):
        return None
    right = _right(case)
    pays = None if case.facts is None else case.facts.length_pays
    if right is not None and right.falls:
        return found(
            "length_collapse",
            "critical",
            "likely",
            "answers shrink while fewer of them are right",
            case.quote("length"),
            case.quote("reward"),
            case.quote(right.name),
            f"within groups, completion length and reward correlate at {pays:.2f}" if pays is not None else "",
        )
    if right is None and pays is not None and pays < -0.6 and end < 0.35 * begin:
        return found(
            "length_collapse",
            "warning",
            "possible",
            "answers shrink, and short ones are paid",
            case.quote("length"),
            case.quote("reward"),
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
)
def component_dominates(case: Case) -> Finding | None:
    names = case.log.components()
    if case.n < LEAST or len(names) < 2 or not case.rises("reward") or case.correctness is None:
        return None
    right = case.trend(case.correctness)
    name = case.correctness.removeprefix("component/")
    if (
        right is None
        or right.rises
        or (case.top_of(case.correctness) and right.last > 0.9 * case.top_of(case.correctness))
    ):
        return None
    if case.constant(case.correctness):
        return None
    others = [n for n in names if n != name and case.rises(f"component/{n}")]
    if not others or case.held_out_gain > 0:
        return None
    share = {} if case.facts is None else case.facts.shares
    other = max(others, key=lambda n: share.get(n, case.trend(f"component/{n}").change))  # type: ignore[union-attr]
    big = share.get(other, 0.0) > 0.6
    if not (right.falls or big):
        return None
    lengthy = "len" in other.lower() or case.log.source == "unknown"
    evidence = [case.quote(f"component/{other}"), case.quote(case.correctness), case.quote("reward")]
    evidence += (
        [
            "share of the reward's variance within groups: "
            + ", ".join(f"{k} {max(v, 0.0):.0%}" for k, v in share.items())
        ]
        if share
        else []
    )
    ids = ["component_dominates"]
    if lengthy and case.has("length"):
        if case.last("length") > 1.4 * case.first("length"):
            ids = ["length_hack", "component_dominates"]
        elif case.last("length") < 0.6 * case.first("length"):
            ids = ["length_collapse", "component_dominates"]
    return found(
        ids,
        "critical" if right.falls else "warning",
        "likely",
        f"the policy is paid for {other}: {name} {'falls' if right.falls else 'stands still'}",
        *evidence,
    )


@sickness(
    "kl_runaway",
    5,
    "the policy runs away from its reference",
    "KL grows more than tenfold and past 1 nat a token while reward or evaluation falls",
    needs=("kl",),
    follows=("lr_too_high", "too_off_policy", "reward_noise", "stale_sampler", "length_hack"),
)
def kl_runaway(case: Case) -> Finding | None:
    kl = case.values("kl")
    if len(kl) < 4:
        return None
    width = 3 if len(kl) >= 8 else 1
    begin, end = max(float(np.median(kl[:width])), 1e-4), float(np.median(kl[-max(width, len(kl) // 5) :]))
    if not (end > 10 * begin and end > (1.0 if len(kl) >= 8 else 10.0)):
        return None
    score = case.trend("reward")
    worse = score is not None and (score.falls or score.best - score.last > 4 * score.ends_error)
    if case.gains and not worse and case.held_out_gain >= 0:
        return found(
            "kl_runaway", "note", "possible", "the policy is far from its reference, but still gains", case.quote("kl")
        )
    return found(
        "kl_runaway",
        "critical" if worse or case.held_out_gain < 0 else "warning",
        "likely",
        "the policy runs away from its reference",
        case.quote("kl"),
        case.quote("reward"),
        case.quote(case.held_out) if case.held_out else "",
    )


@sickness(
    "memorising",
    5,
    "memorising: training reward rises, held-out reward does not",
    "training reward gains significantly, evaluations do not although they could have shown it",
    needs=("eval/accuracy", "eval/reward"),
    follows=("duplicate_prompts",),
)
def memorising(case: Case) -> Finding | None:
    name = case.held_out
    if name is None or case.n < LEAST or len(case.values(name)) < 3:
        return None
    source = "success" if case.has("success") else "reward"
    # training reward between the first evaluation and the last: what was gained before shows in neither
    since = case.log.steps(source) >= case.log.steps(name)[0]
    train = trend(case.values(source)[since])
    if train is None or not train.rises:
        return None
    values = case.values(name)
    gain = max(train.ends, train.change)
    change, error = line(case, name)
    # the level differs (greedy against sampled), so the gains are compared; a gain of greedy accuracy is capped at 1
    room = 1.0 - float(values[0]) if values.max() <= 1 else gain
    expected = min(gain, room)
    if expected < 0.1 or change > 0.35 * expected:
        return None
    if expected - change < 3.5 * float(np.hypot(error, train.error)):
        return None
    few = None if case.facts is None else case.facts.prompts[0]
    evidence = [
        case.quote(source),
        case.quote(name),
        f"change of a line through the evaluations {change:+.2g}, standard error {error:.2g}",
    ]
    if few is not None:
        evidence.append(f"{few} different prompts in the rollouts that were read")
    epochs = case.values("epoch")
    many = (len(epochs) > 0 and epochs[-1] > 5) or (few is not None and few <= 64)
    if len(epochs):
        evidence.append(case.quote("epoch"))
    return found(
        "memorising",
        "critical" if change < -2 * error else "warning",
        "likely" if many or change < 0 else "possible",
        "training reward rises and the held-out one does not: the policy memorises its prompts",
        *evidence,
    )
