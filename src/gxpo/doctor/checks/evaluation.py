"""Checks of evaluation and data: repeated prompts, leaks, small evaluations; resumes, tool calls, slow sampling."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.checks.outcome import memorising
from gxpo.doctor.finding import Finding
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Floats, Series
from gxpo.doctor.sickness import finding, sickness

BLIND = 1e-3  # nats a token
WINDOW = 4  # steps on either side of a jump
FEW_TASKS = 32  # different prompts at most that make up a world of few tasks


@sickness(
    "duplicate_prompts",
    5,
    "few different prompts",
    "distinct prompts over the run, more than 20 passes over the data, evaluation flat",
    needs=("epoch", "rollouts"),
    follows=(),
)
def duplicate_prompts(log: RunLog) -> Finding | None:
    epochs = log.values("epoch")
    if (cause := memorising(log)) is not None and "duplicate_prompts" in cause.ids:
        return None  # it says what they lead to
    n_prompts, n_groups = (None, None) if log.facts is None else log.facts.prompts
    passes = float(epochs[-1]) if len(epochs) else float("nan")
    # repeated prompts are usual: they matter where they are few, or passed over more than twenty times
    is_tiny = n_prompts is not None and n_groups is not None and n_prompts <= 16 and n_groups >= 5 * n_prompts
    if not is_tiny and not passes > 20:
        return None
    evidence = (
        [f"{n_prompts} different prompts in {n_groups} groups of rollouts"]
        if n_prompts is not None and n_groups is not None
        else []
    )
    evidence += [log.quote("epoch")] if len(epochs) else []
    evidence += [log.quote(log.evaluation)] if log.evaluation else []
    if log.evaluation is not None and log.evaluation_gain > 0:
        return finding(
            "duplicate_prompts", "note", "proved", "the same few prompts are used again and again", *evidence
        )
    is_unjudged = not is_tiny and log.evaluation is None and log.gains
    return finding(
        "duplicate_prompts",
        "note" if is_unjudged else "warning",
        "proved" if is_tiny else "likely",
        "the same few prompts are used again and again",
        *evidence,
    )


@sickness(
    "blind_policy",
    5,
    "the policy answers from the text alone, whatever its pictures show",
    "KL of the policy from itself with the pictures hidden below 0.001 nats a token in the last evaluation",
    needs=("eval/picture_kl",),
    follows=(),
)
def blind_policy(log: RunLog) -> Finding | None:
    kl = log.values("eval/picture_kl")
    if not len(kl) or kl[-1] >= BLIND:
        return None
    evidence = [log.quote("eval/picture_kl", ".2g")]
    evidence += [log.quote(log.evaluation)] if log.evaluation else []
    title = "hiding the pictures changes nothing: the policy answers from the text"
    return finding("blind_policy", "note", "proved", title, *evidence)


@sickness(
    "eval_leak",
    5,
    "held-out prompts are training prompts",
    "overlap of evaluation and training prompts, spaces and case aside",
    needs=("rollouts",),
    follows=(),
)
def eval_leak(log: RunLog) -> Finding | None:
    facts = log.facts
    if facts is None or facts.overlap is None or facts.all_rollouts is None:
        return None
    share, count, total, rows = facts.overlap
    if share < 0.2 or count < 2:
        return None
    # a world of few tasks has no others to hold out
    n_tasks = facts.prompts[0] + total - count
    has_few_tasks = n_tasks <= FEW_TASKS
    return finding(
        "eval_leak",
        "note" if has_few_tasks else "warning",
        "proved",
        f"{share:.0%} of the held-out prompts are training prompts",
        f"{count} of {total} different held-out prompts also occur among the training rollouts that were read",
        f"there are only {n_tasks} different prompts in all: are there others to hold out?" if has_few_tasks else "",
        examples=facts.examples(rows, facts.all_rollouts),
    )


@sickness(
    "eval_too_small",
    5,
    "the evaluation is too small to see the gain",
    "95% interval of a difference of evaluations wider than the training gain",
    needs=("eval/accuracy", "eval/reward"),
    follows=(),
)
def eval_too_small(log: RunLog) -> Finding | None:
    tasks, train = log.evaluation_tasks, log.trend("success" if log.has("success") else "reward")
    if log.evaluation is None or train is None or tasks is None:
        return None
    error = log.evaluation_error
    values = log.values(log.evaluation)
    if not (values.min() >= 0 and values.max() <= 1):
        return None
    # 2 p (1 - p) / n = (0.1 / 1.96)^2 with p = 1/2, the worst case
    n_tasks_needed = int(np.ceil(2 * 0.25 * (1.96 / 0.1) ** 2))
    if tasks > 40 or 1.96 * error < 0.15 or log.evaluation_gain != 0:
        return None
    return finding(
        "eval_too_small",
        "warning" if tasks <= 8 else "note",
        "proved",
        f"an evaluation of {tasks} tasks can't show a change below {1.96 * error:.2f}",
        log.quote(log.evaluation),
        f"{n_tasks_needed} tasks would show a change of 0.1",
    )


@sickness(
    "resume_discontinuity",
    5,
    "a resume lost state: steps, rate or entropy jump",
    "step numbers repeat or jump; learning rate or its warm-up begins again in the middle of the run",
    needs=("lr", "loss", "reward"),
    follows=(),
)
def resume_discontinuity(log: RunLog) -> Finding | None:
    lines = []
    is_repeated = is_continued = False
    main = next((log.series[n] for n in ("reward", "loss", "grad_norm") if n in log.series), None)
    if main is not None and len(main) > 5:
        # in the order of the file: a step that comes twice was made twice
        jumps = np.diff(main.steps)
        back = np.flatnonzero(jumps <= 0)
        if len(back):
            i = int(back[0])
            lines.append(f"step {main.steps[i]:.0f} is followed by step {main.steps[i + 1]:.0f}")
            is_repeated = True
        # rows may be several steps apart; one jump ahead is a gap in the log, several are its rhythm, and in a table of
        # rows that somebody chose there is none
        usual = float(np.median(jumps[jumps > 0])) if (jumps > 0).any() else 1.0
        jump_places = np.flatnonzero(jumps > 3 * usual)
        is_regular = np.mean(jumps == usual) >= 0.8
        # a last row that stands apart is the end of a report's excerpt
        if (
            is_regular
            and len(jump_places) == 1
            and jumps[jump_places[0]] >= 5 * usual
            and jump_places[0] < len(jumps) - 2
        ):
            i = int(jump_places[0])
            lines.append(f"step {main.steps[i]:.0f} is followed by step {main.steps[i + 1]:.0f}")
    # a data loader that began anew shows in the epoch, even if steps go on
    passes = log.series.get("epoch")
    if passes is not None and len(passes) > 5:
        back = np.flatnonzero(np.diff(passes.values) < -0.05 * np.nanmax(passes.values))
        # steps that are made again belong to the pass that they belonged to
        if len(back) and not (is_repeated and _is_same_pass(passes, int(back[0]) + 1)):
            i = int(back[0])
            lines.append(f"{passes.key} goes from {passes.values[i]:.3g} back to {passes.values[i + 1]:.3g}")
    rate = log.series.get("lr")
    # a schedule with restarts rises again by design
    schedule = str(log.setting("schedule") or "")
    if rate is not None and len(rate) > 10 and "restart" not in schedule and "cycl" not in schedule:
        rates, steps = rate.finite.values, rate.finite.steps
        lowest = _second_rise(rates)
        if lowest is not None:
            is_at_end = rates[lowest] < 0.01 * rates.max() and _keeps_level(log, float(steps[lowest]))
            is_continued = is_at_end and not lines
            lines.append(f"{rate.key} is {rates[lowest]:.3g} at step {steps[lowest]:.0f} and rises again after it")
    if not lines:
        return _old_weights(log)
    entropy = log.quote("entropy") if log.has("entropy") else ""
    # steps since the last checkpoint are made again by every resume, whether it lost state or not
    is_harmless = len(lines) == 1 and (is_continued or (is_repeated and _goes_on(log)))
    return finding(
        "resume_discontinuity",
        "note" if is_harmless else "warning",
        "proved",
        "the learning rate had come to its end and begins anew; the reward goes on"
        if is_continued
        else "steps were made again after a resume; reward and entropy go on"
        if is_harmless
        else "a resume did not continue where the run had stopped",
        *lines,
        entropy,
    )


def _goes_on(log: RunLog) -> bool:
    """True if reward and entropy of steps that were made twice are the same both times, within their noise, or go on
    from the levels before the break."""
    for name in ("reward", "entropy"):
        series = log.series.get(name)
        if series is None or not len(series):
            continue
        begin = int(np.argmax(np.diff(series.steps) <= 0)) + 1
        value_by_step = dict(zip(series.steps[:begin].tolist(), series.values[:begin].tolist(), strict=True))
        second_pass = zip(series.steps[begin:].tolist(), series.values[begin:].tolist(), strict=True)
        change = np.array([value - value_by_step[step] for step, value in second_pass if step in value_by_step])
        noise = float(np.nanstd(np.diff(series.values)))  # of the difference of two steps
        is_apart = len(change) > 0 and abs(np.nanmean(change)) > 3 * noise / np.sqrt(len(change))
        step_over = float(
            np.nanmean(series.values[begin : begin + 2]) - np.nanmean(series.values[max(begin - 2, 0) : begin])
        )
        if is_apart and abs(step_over) > 2 * noise:
            return False
    return True


def _is_same_pass(passes: Series, row: int) -> bool:
    """True if a step that is made again has the part of the pass over the data that it had the first time."""
    first_values = passes.values[:row][passes.steps[:row] == passes.steps[row]]
    return len(first_values) > 0 and abs(float(first_values[0] - passes.values[row])) < 0.02 * float(
        np.nanmax(passes.values)
    )


def _keeps_level(log: RunLog, step: float) -> bool:
    """True if at a step the reward does not fall, nor the entropy jump, by more than usual."""
    for name in ("reward", "entropy"):
        values, steps = log.values(name), log.steps(name)
        earlier_values, later_values = values[steps <= step][-WINDOW:], values[steps > step][:WINDOW]
        if min(len(earlier_values), len(later_values)) < WINDOW:
            if name == "reward":
                return False
            continue
        change = float(later_values.mean() - earlier_values.mean())
        usual = 3 * float(np.median(np.abs(np.diff(values))))
        # over the steps of a window a series that falls steadily falls a few times as much
        if change < -usual if name == "reward" else abs(change) > WINDOW * usual:
            return False
    return True


def _old_weights(log: RunLog) -> Finding | None:
    """Report reward and entropy that fall back, between two steps, to levels of much earlier in the run."""
    entropy, steps = log.values("entropy"), log.steps("entropy")
    reward = log.values("reward")
    if len(entropy) != len(reward) or len(reward) < 24 or not log.rises("reward"):
        return None
    begin = 8 + int(np.argmax(np.abs(np.diff(entropy))[7:-4]))
    back = [_falls_back(values, begin) for values in (entropy, reward)]
    if not all(back):
        return None
    return finding(
        "resume_discontinuity",
        "warning",
        "possible",
        f"at step {steps[begin]:.0f} reward and entropy are back at levels of much earlier: were old weights loaded?",
        *(
            f"{log.key(name)} {values[begin - WINDOW : begin].mean():.3g} in the {WINDOW} steps before, "
            f"{values[begin : begin + WINDOW].mean():.3g} from it on, {log.first(name):.3g} in the first steps"
            for name, values in (("entropy", entropy), ("reward", reward))
        ),
        "harder tasks from there on look the same: the checkpoint that was resumed from would tell",
    )


def _falls_back(values: Floats, begin: int) -> bool:
    """True if a series loses at one step half of its way from the start or more, beyond its noise, and not all of it,
    and had not been there in the quarter of the run before."""
    earlier_level, later_level = (
        float(values[begin - WINDOW : begin].mean()),
        float(values[begin : begin + WINDOW].mean()),
    )
    start = float(values[:WINDOW].mean())
    noise = float(np.median(np.abs(np.diff(values)))) / 0.95  # the deviation of a normal difference is 1.05 medians
    gain, drop = earlier_level - start, earlier_level - later_level
    if gain == 0 or not 0.4 < drop / gain < 1.1 or abs(drop) < 3 * noise:
        return False
    # what came shortly before was nearer to the new level than any noise brings it
    recent = values[max(begin - max(len(values) // 8, WINDOW), 0) : begin]
    return bool((np.abs(recent - later_level) > 0.3 * abs(drop)).all())


def _second_rise(rates: Floats) -> int | None:
    """Index from which a rate that had fallen rises again by a fifth of its largest value; None if it does not."""
    top = float(rates.max()) if len(rates) else 0.0
    has_fallen, low, lowest = False, float("inf"), 0
    for i in range(1, len(rates)):
        if rates[i] < rates[i - 1] - 0.02 * top:
            has_fallen = True
        if has_fallen and rates[i] < low:
            low, lowest = float(rates[i]), i
        if has_fallen and rates[i] > low + 0.2 * top:
            return lowest
    return None


@sickness(
    "tool_failures",
    5,
    "tool calls fail",
    "share of failing or unreadable calls above one half over the whole run, or from one step on as the reward halves",
    needs=("tool_failures", "malformed", "illegal"),
    follows=("truncation", "wrong_template"),
)
def tool_failures(log: RunLog) -> Finding | None:
    for name in ("tool_failures", "malformed", "illegal"):
        if (begin := _fails_from(log, name)) is not None:
            return finding(
                "tool_failures",
                "critical",
                "likely",
                f"tool calls fail from step {begin:.0f} on, and the reward falls with them",
                log.quote(name),
                log.quote("reward"),
                *(log.quote(n) for n in ("tool_calls", "turns", "grad_norm") if log.has(n)),
            )
        if log.has(name) and log.first(name) > 0.5 and log.last(name) > 0.5 and not log.falls(name):
            # of next to no calls the share says nothing
            if name == "tool_failures" and log.has("tool_calls") and log.mean("tool_calls") < 0.05:
                continue
            return finding(
                "tool_failures",
                "warning" if log.gains else "critical",
                "likely",
                "most tool calls fail, and it does not get better",
                log.quote(name),
                log.quote("reward"),
            )
    return None


def _fails_from(log: RunLog, name: str) -> float | None:
    """Step from which most calls fail to the end of the run, where few did before and the reward has lost half since;
    None without one."""
    failing, steps = log.values(name), log.steps(name)
    rare_steps = np.flatnonzero(failing < 0.5)
    if (
        len(failing) < 8
        or len(rare_steps) < 3
        or len(failing) - rare_steps[-1] - 1 < 3
        or float(np.median(failing[rare_steps])) > 0.3
    ):
        return None
    begin = float(steps[rare_steps[-1] + 1])
    reward, reward_steps = log.values("reward"), log.steps("reward")
    earlier_rewards, later_rewards = reward[reward_steps < begin][-5:], reward[reward_steps >= begin]
    if (
        len(earlier_rewards) < 3
        or len(later_rewards) < 3
        or not float(np.median(later_rewards)) < 0.5 * float(earlier_rewards.mean())
    ):
        return None
    return begin


@sickness(
    "slow_tail",
    5,
    "sampling waits for the longest completion",
    "longest / mean completion or rollout time above 8, and sampling more than half of the step",
    needs=("seconds_sampling",),
    follows=("truncation", "no_eos", "length_hack"),
)
def slow_tail(log: RunLog) -> Finding | None:
    if not log.has("seconds_sampling", "seconds"):
        return None
    share = log.mean("seconds_sampling") / max(log.mean("seconds"), 1e-9)
    # by what was sampled, or by the time that it took: a tool or an engine may be what is waited for
    if share > 0.7 and log.mean("rollout_seconds_max") > 8 * max(log.mean("rollout_seconds"), 1e-9):
        return finding(
            "slow_tail",
            "warning",
            "likely",
            f"sampling takes {share:.0%} of a step and waits for rollouts "
            f"{log.mean('rollout_seconds_max') / log.mean('rollout_seconds'):.0f} times as long as the mean",
            *(log.quote(n) for n in ("rollout_seconds_max", "rollout_seconds", "seconds_sampling", "seconds")),
        )
    if not log.has("length", "length_max"):
        return None
    tail = log.mean("length_max") / max(log.mean("length"), 1e-9)
    if share < 0.5 or tail < 8:
        return None
    return finding(
        "slow_tail",
        "warning" if share > 0.7 and tail > 12 else "note",
        "likely",
        f"sampling takes {share:.0%} of a step and waits for answers {tail:.0f} times as long as the mean",
        log.quote("length_max"),
        log.quote("length"),
        log.quote("seconds_sampling"),
    )
