"""Evidence for health and against it: what is said of a run in which no other check finds anything."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from gxpo.doctor.finding import LEAST_POINTS, Finding
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import CERTAIN, trend
from gxpo.doctor.sickness import finding, sickness

ROUND_TOPS = (1.0, 1.1, 1.2, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0)  # largest rewards that are usual
GAIN = 2.0  # standard errors, before the widening for short runs, from which a run is seen to gain
LEAST = 20  # steps below which a level reward proves nothing
VISIBLE = 1 / 8  # of the distance from the lowest to the largest reward: a gain that 80% of such runs would have shown
NO_GAIN = "no_gain"

Condition = Callable[[RunLog], bool]


@sickness(
    NO_GAIN,
    5,
    "does not learn, cause not seen",
    "reward and evaluations level or falling over 20 steps and more, far from the top, where a gain of an eighth of "
    "the range would have been seen; told only where no cause is",
    needs=("reward", "success"),
    of_training=True,
)
def no_gain(log: RunLog) -> Finding | None:
    name = _score(log)
    line = log.trend(name)
    is_short = line is None or line.n < LEAST_POINTS or log.last_step < LEAST
    if line is None or is_short or _is_good(log) or log.evaluation_gain > 0 or _is_charge(log, name):
        return None
    values = log.values(name)
    span = max(log.top_reward, 1.0) - min(float(values.min()), 0.0)
    falls = line.change < -GAIN * line.error and line.ends < -GAIN * line.ends_error
    if not falls and not (line.detectable < VISIBLE * span and line.change < line.error):
        return None
    return finding(
        NO_GAIN,
        "warning",
        "possible",
        f"{log.key(name)} {'falls' if falls else 'is where it was'} after {line.n} logged points, and nothing that was "
        "logged says why",
        log.quote(name),
        f"a gain of {line.detectable:.2g} would have been visible",
        log.quote(log.evaluation) if log.evaluation else "",
    )


def against(log: RunLog) -> Finding | None:
    """The first sign against health of a run in which no check has found anything; None without one."""
    if max(len(log.values(name)) for name in ("reward", "success")) < LEAST_POINTS:
        return None
    sign = next((sign for sign in AGAINST if sign[1](log)), None)
    if sign is None:
        return None
    ids, _, words, names = sign
    quotes = [log.quote(name) for name in (*names.split(), _score(log), log.evaluation or "") if log.has(name)]
    return finding(ids.split(), "warning", "possible", words, *quotes)


def doubt(log: RunLog) -> str:
    """Reason for which a run in which no check finds anything is not healthy either: nothing shows that it gains or is
    done. "" where its reward, its verdicts or its evaluations do."""
    name = _score(log)
    line = log.trend(name)
    if line is None:
        return ""
    level = f"{log.key(name)} {log.column(name).start_text} -> {line.last:.3g} over {line.n} logged points"
    held_out = log.values(log.evaluation) if log.evaluation is not None else np.empty(0)
    if len(held_out) >= 3 and not held_out.any():
        return f"{log.key(log.evaluation or '')} is 0 in all {len(held_out)} evaluations, whatever {name} does"
    if _is_charge(log, name):
        return f"{level}: never above 0, so that it rises with fewer charges, and with a flipped sign"
    if unpaid := _unpaid(log):
        return f"{level}: {unpaid} is logged beside it, but not paid, and stays near 0"
    return "" if _is_good(log) else f"{level}: no clear gain, and not near its largest possible value"


def _score(log: RunLog) -> str:
    return "reward" if log.has("reward") else "success"


def _is_good(log: RunLog) -> bool:
    """True if the run is seen to gain, or to be done."""
    return _is_seen_to_gain(log) or _is_near_top(log, _score(log))


def _is_charge(log: RunLog, name: str) -> bool:
    """True if the reward is never above 0, and nothing tells right answers: it rises as charges are avoided, or as
    right answers are, if its sign is wrong."""
    is_charge = name == "reward" and log.largest(name) <= 0 and log.values(name).min() < 0
    return is_charge and log.correctness is None and log.evaluation_gain <= 0


def _unpaid(log: RunLog) -> str:
    """Key of a component that is above 0 now and then, but never above a twentieth, where another one is all of the
    reward; "" without one."""
    parts = [f"component/{part}" for part in log.components()]
    if log.correctness is not None or log.evaluation_gain > 0 or not any(map(log.is_total, parts)):
        return ""
    rare = [name for name in parts if 0 < log.largest(name) < 0.05 * log.top_reward]
    return log.key(rare[0]) if rare else ""


def _end(log: RunLog, name: str) -> float:
    """Last level of a series; 0 where there is none."""
    return log.last(name) if log.has(name) else 0.0


def _has_stopped(log: RunLog) -> bool:
    """True if the score does not rise in the second half of the run."""
    values = log.values(_score(log))
    late = trend(values[len(values) // 2 :])
    return late is not None and not late.may_rise


def _is_far_off(log: RunLog) -> bool:
    """True if the policy's KL is above half a nat a token and ten times its start, and no verdict says that it is right
    more often."""
    if log.evaluation_gain > 0 or (log.correctness is not None and log.rises(log.correctness)):
        return False
    size = np.abs(log.values("kl"))
    fifth = max(3, len(size) // 5)
    return len(size) >= 10 and float(np.median(size[-fifth:])) > max(0.5, 10 * float(np.median(size[:3])))


def _is_held_out_level(log: RunLog) -> bool:
    """True if five and more evaluations after the first are all alike, far from the top of a score of at most 1."""
    held_out = log.values(log.evaluation)[1:] if log.evaluation is not None else np.empty(0)
    is_level = len(held_out) >= 5 and log.top_reward <= 1.05 and float(np.ptp(held_out)) < 0.02
    return bool(is_level and 0 < float(held_out.max()) < 0.3)


def _pays_other(log: RunLog) -> bool:
    """True if a part of the reward falls as another, from which most of it comes at last, grows: two columns that sum
    to the reward in every row."""
    reward = log.values("reward")
    columns = {k: s.column.values for k, s in (log.series | log.raw).items() if len(s.column) == len(reward) >= 10}
    of_sum = [c for k, c in columns.items() if k != "reward" and float(c.min()) >= 0 and c.any()]
    for first, second in itertools.permutations(of_sum, 2):
        if np.allclose(first + second, reward, atol=1e-4) and (line := trend(first)) is not None:
            falls = line.change < -GAIN * line.error and line.last < 0.9 * line.first
            if (
                line.first > 0.25 * log.first("reward")
                and falls
                and log.rises("reward")
                and line.last < 0.3 * log.last("reward")
            ):
                return True
    return False


def _growth_of_length(log: RunLog) -> float:
    """Growth of the answers' length as a factor, where nothing tells if more of them are right; 1 elsewhere."""
    if log.correctness or log.evaluation or not log.has("length", "reward") or log.largest("reward") <= 1.05:
        return 1.0
    return log.last("length") / max(log.first("length"), 1e-9)


def _is_entropy_gone(log: RunLog) -> bool:
    """True if a twentieth of the entropy is left, and next to nothing, before the tasks are solved."""
    return not log.is_solved and log.has("entropy") and log.last("entropy") < min(0.02, 0.05 * log.first("entropy"))


def _is_at_limit(log: RunLog) -> bool:
    """True if the longest answer has one length in all steps, and the mean one four fifths of it: a limit cuts many."""
    if not log.has("length", "length_max") or log.has("truncated") or len(log.values("length_max")) < LEAST_POINTS:
        return False
    return log.is_constant("length_max") and log.last("length") > 0.8 * log.last("length_max")


def _grows_into_limit(log: RunLog) -> bool:
    """True if many more answers are cut than at first, as they grow by half, and the score has stopped to rise."""
    truncation_gain = _end(log, "truncated") - log.first("truncated") if log.has("truncated") else 0.0
    longer = log.column("length").start_to_last if log.has("length") else 1.0
    return truncation_gain > 0.15 and longer > 1.5 and _has_stopped(log)


def _are_silent(log: RunLog) -> bool:
    """True if four fifths of the groups give no signal over the whole run, and not because most are right."""
    silent = max(log.mean(name) if log.has(name) else 0.0 for name in ("zero_signal", "zero_wrong"))
    has_begun = np.array_split(log.values(_score(log)), 2)[0].any()  # right answers that begin late are a beginning
    return bool(silent > 0.8 and has_begun and not log.has_critic and not _is_near_top(log, _score(log)))


def _is_clipped(log: RunLog) -> bool:
    """True if two fifths of the tokens are clipped, or a fifth of them as most of the entropy goes."""
    is_sharp = log.has("entropy") and log.last("entropy") < 0.2 * log.first("entropy")
    return _end(log, "clip_fraction") > (0.2 if is_sharp else 0.4)


def _ends_above(name: str, level: float) -> Condition:
    """Condition that the last level of a series is above another."""
    return lambda log: _end(log, name) > level


def _has_no_gradient(log: RunLog) -> bool:
    return not log.is_solved and log.is_zero("grad_norm")


def _loses_groups(log: RunLog) -> bool:
    return _end(log, "zero_wrong") > log.first("zero_wrong") + 0.2


LIMIT = "the mean answer is nearly as long as the longest, which has one length: a limit cuts many"
OTHER_LENGTH = "answers have another length than at first, and nothing tells if more of them are right"
SILENT = "four fifths of the groups give no signal, and the reward is far from its top"
STOPPED = "answers grow into their limit, and the reward has stopped to rise"
MOVES = "the policy moves by 0.3 nats a token and more within a step"
OLD = "rollouts are more than sixteen updates old"
TOKEN = "completions are a token long"
WORSE = "held-out answers get worse"
PART = "one part of the reward grows, and the other falls"
LEVEL = "held-out answers score as at first, far from the top"
PAST = "both training and held-out answers are past their best"
# What speaks against health whatever the reward does: the ids that fit, the condition, words, series to quote.
AGAINST: tuple[tuple[str, Condition, str, str], ...] = (
    ("weights_do_not_move all_masked", _has_no_gradient, "the gradient is 0 in every step", "grad_norm"),
    ("entropy_collapse no_diversity", _is_entropy_gone, "entropy is gone: a group's answers are all alike", "entropy"),
    ("kl_runaway lr_too_high", _is_far_off, "the policy is far from its reference", "kl lr"),
    (
        "truncation no_eos",
        _ends_above("truncated", 0.5),
        "most completions are cut at the length limit",
        "truncated length",
    ),
    ("truncation no_eos", _is_at_limit, LIMIT, "length length_max"),
    ("length_hack truncation", _grows_into_limit, STOPPED, "length truncated"),
    ("lr_too_high entropy_collapse", _loses_groups, "more and more groups have no right answer", "zero_wrong entropy"),
    ("too_off_policy lr_too_high sampler_mismatch", _ends_above("approx_kl", 0.3), MOVES, "approx_kl clip_fraction"),
    ("too_off_policy sampler_mismatch", _is_clipped, "much of the update is clipped", "clip_fraction approx_kl"),
    ("stale_sampler too_off_policy", _ends_above("staleness_mean", 16), OLD, "staleness_mean"),
    ("length_hack no_eos", _ends_above("repetition", 0.3), "completions repeat themselves", "repetition length"),
    (
        "length_collapse entropy_collapse",
        lambda log: 0 < _end(log, "length") < 2,
        "completions are a token long",
        "length",
    ),
    ("memorising lr_too_high component_dominates", lambda log: log.evaluation_gain < 0, WORSE, ""),
    ("component_dominates judge_hacked", _pays_other, PART, "kl"),
    ("all_wrong component_dominates memorising", _is_held_out_level, LEVEL, "reward_max"),
    ("lr_too_high entropy_collapse memorising", lambda log: log.is_past_best, PAST, "entropy kl lr"),
    ("length_hack", lambda log: _growth_of_length(log) > 3, OTHER_LENGTH, "length truncated"),
    ("length_collapse", lambda log: _growth_of_length(log) < 1 / 3, OTHER_LENGTH, "length entropy"),
    ("group_too_small all_wrong", _are_silent, SILENT, "zero_wrong zero_signal"),
)


def _is_seen_to_gain(log: RunLog) -> bool:
    """True if what tells right answers rises, beyond two standard errors: verdicts, a component for correctness or the
    evaluations; the reward where none of these is logged."""
    names = {"success", log.correctness} if log.correctness else {"reward", "success"}
    lines = [line for name in names if (line := log.trend(name)) is not None]
    factor = GAIN / CERTAIN
    all_lines = [line for name in ("reward", "success") if (line := log.trend(name)) is not None]
    # two or three evaluations of a reward, of which nobody knows how many tasks they are, differ by chance
    is_known = log.evaluation is not None and (
        len(log.values(log.evaluation)) > 3
        or log.evaluation_tasks
        or 0 <= float(log.values(log.evaluation).min()) <= log.largest(log.evaluation) <= 1
    )
    is_better = log.evaluation_gain > 0 and bool(is_known)
    bounds = [(line, factor * line.certain) for line in lines]
    are_up = [line.change > bound * line.error and line.ends > bound * line.ends_error for line, bound in bounds]
    return is_better or any(line.may_rise for line in all_lines) or any(are_up)


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
