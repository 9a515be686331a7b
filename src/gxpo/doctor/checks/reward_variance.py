"""Checks of the variance of rewards: noise, independence of the answer, near-constant, dead and interrupted rewards."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.checks.scored import PENALTY, examples_of, rewards_of_others
from gxpo.doctor.finding import Finding
from gxpo.doctor.rollout_answers import STYLE
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.sickness import finding, sickness

BLOWN_UP = 10  # times the largest advantage that a group can give its members
SPIKE = 1000.0  # gradient norm, in itself and in medians of the run, that advantages of about 1 do not reach
FAR_KL = 1.0  # nats a token from the reference, from which the policy itself may have broken
TINY = 0.05  # size up to which rewards are small beside the usual 0 to 1
FAINT = 2e-3  # length of a gradient that is made of rounding; advantages of about 1 give 0.01 and more


@sickness(
    "reward_noise",
    1,
    "rewards do not belong to their completions",
    "identical completions of one prompt with different scores; or as many rewards as verdicts a step, on other rows",
    needs=("rollouts",),
    follows=(),
)
def reward_noise(log: RunLog) -> Finding | None:
    if (others := rewards_of_others(log)) is not None:
        return others
    if log.facts is None or log.facts.same_text is None:
        return None
    pairs, differing, ratio, rows = log.facts.same_text
    if pairs < 10 or differing < 5 or differing / pairs < 0.05:
        return None
    # judges sampled hot differ a little on equal texts; noise differs as much as any two answers
    strong = ratio > 0.5
    slight = ratio < 0.2 or (log.gains and not strong)  # a judge that is not quite sure
    return finding(
        "reward_noise",
        "note" if slight else "critical" if strong and not log.evaluation_gain > 0 else "warning",
        "proved",
        "the same completion of the same prompt gets different scores",
        f"{differing} of {pairs} pairs of identical completions of one group differ in their score; the difference is "
        f"{ratio:.0%} of that of any two answers of a group",
        log.quote("reward"),
        examples=examples_of(log, rows),
    )


def pays_for_anything(log: RunLog) -> bool:
    """True if all answers get the same reward above 0, although the verifier accepts only some of them."""
    if not log.has("reward", "success") or len(log.values("reward")) < 5 or not log.is_constant("reward"):
        return False
    accepted_share = log.values("success")
    return (
        log.mean("reward") > 0
        and log.is_silent
        and bool(((accepted_share > 0.02) & (accepted_share < 0.98)).mean() > 0.5)
    )


@sickness(
    "reward_ignores_completion",
    1,
    "the reward does not depend on the completion",
    "no variance within groups although completions differ, variance between groups",
    needs=("rollouts", "zero_signal"),
    follows=("no_diversity",),
)
def reward_ignores(log: RunLog) -> Finding | None:
    if pays_for_anything(log):
        return finding(
            "reward_ignores_completion",
            "critical",
            "proved",
            "right and wrong answers earn the same: the reward pays for anything",
            *(log.quote(n) for n in ("reward", "success", "zero_signal") if log.has(n)),
        )
    # one reward for all, and none that right answers usually have
    reward = log.values("reward")
    level = float(reward.mean()) if len(reward) else 0.0
    is_usual = abs(level - round(level)) <= 0.01 * abs(level) or log.has("reward_max") or log.has("success")
    is_alone = len(log.components()) < 2  # of several, `no_diversity` quotes what each pays
    if is_alone and len(reward) >= 5 and log.is_constant("reward") and log.is_silent and level > 0 and not is_usual:
        return finding(
            ["reward_ignores_completion", "all_right"],
            "critical",
            "likely",
            f"every answer earns {level:.3g}: a part that all have is paid for, and nothing that tells them apart",
            *(log.quote(n) for n in ("reward", "zero_signal", "grad_norm") if log.has(n)),
            *(log.quote(f"component/{n}") for n in log.components()[:4]),
        )
    # rollouts prove it: no variance within groups, some between them, and texts that differ
    spread = None if log.facts is None else log.facts.spread
    if spread is not None:
        spread_within, spread_between, distinct_share, groups = spread
        if (
            groups < 6
            or spread_within > 1e-6 * max(spread_between, 1e-9)
            or spread_between < 1e-4
            or distinct_share < 0.3
        ):
            return None
        return finding(
            "reward_ignores_completion",
            "critical",
            "proved",
            "all answers of a group score the same, whatever they say",
            f"deviation of the score within groups {spread_within:.2g}, between groups {spread_between:.2g} ({groups} "
            f"groups); {distinct_share:.0%} of the completions of a group differ",
            log.quote("zero_signal") if log.has("zero_signal") else "",
            examples=examples_of(log, log.facts.members[0][:2]) if log.facts is not None else (),
        )
    if not log.is_silent or not log.has("reward") or not log.is_silent_at_first:
        return None
    # metrics alone: rewards vary over prompts, and no group has a signal from the start
    spread_between = max([log.mean(n) for n in log.series if n.startswith("component_std/")], default=0.0)
    wanders = float(log.values("reward").std())
    if max(spread_between, wanders) < 1e-3 or (log.is_solved and log.first("reward") > 0.9 * log.top_reward):
        return None
    if float((log.values("reward") == log.values("reward").min()).mean()) > 0.5:
        return None  # at its floor in most steps there is nothing that groups differ by
    # entropy is the model's, not the sampler's: greedy answers of an unsure model are equal, too
    warm = log.number("temperature")
    is_sampled = log.first_entropy > 0.1 and warm is not None and warm >= 0.3 and log.number("top_k") != 1
    # without a gradient, and nothing that tells advantages: a mask over all tokens looks the same
    is_known = log.has("zero_signal") or log.has("advantage_max") or log.has("zero_wrong")
    return finding(
        ["reward_ignores_completion", *([] if is_sampled else ["no_diversity"]), *([] if is_known else ["all_masked"])],
        "critical",
        "likely" if log.first_entropy > 0.1 else "possible",
        "all answers of a group score the same, and groups differ",
        *(log.quote(n) for n in ("zero_signal", "reward", "entropy", "grad_norm") if log.has(n)),
        ""
        if is_sampled
        else "are the answers of a group the same text, as at temperature 0? The completions would tell",
    )


@sickness(
    "near_constant_reward",
    1,
    "a near-constant reward is blown up by its standard deviation",
    "deviation within groups below 1% of the reward's level, advantages of about 1; equal rewards with an advantage; "
    "advantages ten times what a group of that size can give, or lone gradient norms above 1000 medians",
    needs=("reward_std", "rollouts", "advantage_max", "grad_norm"),
    follows=(),
)
def near_constant(log: RunLog) -> Finding | None:
    advantages = None if log.facts is None else log.facts.advantages
    if advantages is not None and not log.gains:
        count, total, size = len(advantages.residue), advantages.equal, advantages.size
        if count >= 0.2 * total and count >= 8:
            return finding(
                "near_constant_reward",
                "critical",
                "proved",
                "equal rewards of a group have advantages other than 0: rounding is trained on",
                f"{count} of {total} rollouts in groups of equal scores have an advantage, up to {size:.1e}",
                log.quote("zero_signal") if log.has("zero_signal") else "",
                examples=examples_of(log, advantages.residue),
            )
    if (blown_up := _blown_up(log)) is not None:
        return blown_up
    if (tiny := _tiny(log)) is not None:
        return tiny
    if not log.has("reward"):
        return None
    # a gradient of rounding: rewards differ by prompt, and within a group by their last bits
    pull = log.values("grad_norm")
    if (
        len(pull) >= 8
        and log.has("reward_std")
        and float(np.median(pull[:8])) > 0
        and float(pull.max()) < 5 * FAINT
        and log.mean("reward_std") > 0.01
    ):
        return finding(
            ["reward_ignores_completion", "near_constant_reward"],
            "critical",
            "possible" if log.gains else "likely",
            "the gradient is almost 0 although rewards differ: within a group they are equal up to rounding",
            *(log.quote(n) for n in ("grad_norm", "reward_std", "zero_signal", "reward") if log.has(n)),
        )
    spread = log.mean("reward_std") if log.has("reward_std") else _within(log)
    has_gradient = log.has("grad_norm") and float(np.median(log.values("grad_norm"))) > FAINT
    if not np.isfinite(spread) and (log.is_silent or not (log.largest("advantage_max") > 0.5 or has_gradient)):
        return None
    spread = spread if np.isfinite(spread) else _spread_of_means(log)
    reward = log.values("reward")
    level = float(np.abs(reward).mean())
    # at rest over hundreds of steps: a twentieth of the level, divided by itself, is noise as well
    is_at_rest = len(reward) >= 5 and log.last_step >= 50 and float(np.ptp(reward)) < max(0.01 * level, 1.5e-3)
    if not (np.isfinite(spread) and 0 < spread < (0.07 if is_at_rest else 0.01) * level):
        return None
    # a reward that moves over the run, or groups without any signal, is another finding
    if (float(np.ptp(reward)) > 0.05 * level and not is_at_rest) or (
        log.has("zero_signal") and log.mean("zero_signal") > 0.9 and spread > 1e-6 * level
    ):
        return None
    return finding(
        "near_constant_reward",
        "critical",
        "likely",
        "the reward hardly differs, and division by its deviation makes noise of it",
        log.quote("reward", ".6g"),
        log.quote("reward_std") if log.has("reward_std") else f"deviation of single rewards at most {spread:.2g}",
        *(log.quote(n) for n in ("reward_min", "reward_max", "advantage_max", "zero_signal") if log.has(n)),
    )


def _blown_up(log: RunLog) -> Finding | None:
    """Report advantages or single gradients that only a division by a tiny deviation (or quartile range) makes."""
    # divided by its deviation, a group of G has advantages up to sqrt(G) (64: a batch); undivided, up to its range
    size = max(log.group_size or 0, 64)
    rewards = [log.values(n) for n in ("reward", "reward_max", "reward_min") if log.has(n)]
    rollouts = log.training_rollouts
    rewards += [] if rollouts is None else [rollouts.score[np.isfinite(rollouts.score)]]
    largest_reward = max((float(np.abs(values).max()) for values in rewards if len(values)), default=0.0)
    bound = BLOWN_UP * max(float(np.sqrt(size)), 2 * largest_reward)
    title = "advantages are blown up: rewards that hardly differ are divided by a deviation near 0"
    # the rollouts show the rewards beside them
    if (
        rollouts is not None
        and log.facts is not None
        and (rows := np.flatnonzero(np.abs(rollouts.advantage) > bound)).size
    ):
        largest = float(np.abs(rollouts.advantage[rows]).max())
        return finding(
            "near_constant_reward",
            "warning" if log.gains else "critical",
            "proved",
            title,
            f"{len(rows)} of {len(rollouts)} rollouts have advantages above {bound:.3g}, up to {largest:,.0f}",
            log.quote("grad_norm") if log.has("grad_norm") else "",
            examples=log.facts.examples(rows),
        )
    columns = [n for n in ("advantage_max", "advantage_min") if log.has(n)]
    largest = max((float(np.abs(log.values(n)).max()) for n in columns), default=0.0)
    if largest > bound:
        return finding(
            "near_constant_reward",
            "warning" if log.gains else "critical",
            "likely",
            title,
            f"{log.key(columns[0])} up to {largest:,.0f}; divided by its deviation a group of {size:g} has at most "
            f"{np.sqrt(size):.3g}",
            *(log.quote(n) for n in ("reward_std", "grad_norm") if log.has(n)),
        )
    # single steps with a gradient that no usual advantage gives, the KL at rest
    grad, steps = log.values("grad_norm"), log.steps("grad_norm")
    usual = float(np.median(grad[grad > 0])) if (grad > 0).any() else 0.0
    spikes = np.flatnonzero(grad > SPIKE * max(usual, 1.0))
    if len(grad) < 6 or not len(spikes) or len(spikes) > 0.2 * len(grad) or log.falls("reward"):
        return None
    if columns or (log.has("kl") and float(log.values("kl").max()) > FAR_KL):
        return None  # advantages are as usual, or a far reference explains it
    return finding(
        ["near_constant_reward", "lr_too_high"],
        "note" if log.gains else "warning",
        "possible",
        f"the gradient is {grad[spikes].max():,.0f} long in single steps and {usual:.3g} in most",
        f"{log.key('grad_norm')} {grad[spikes[0]]:,.0f} at step {steps[spikes[0]]:.0f}, {usual:.3g} in the median",
        log.quote("reward_std") if log.has("reward_std") else "",
        "the largest advantage of these steps would tell: far above the root of the group's size, a deviation near 0 "
        "was divided by",
    )


def _tiny(log: RunLog) -> Finding | None:
    """Report rewards within a few hundredths of 0 whose deviation is divided by itself, where what moves is the length
    of the answers; as possible only."""
    reward, spread = log.values("reward"), log.values("reward_std")
    if len(reward) < 20 or not len(spread) or len(log.components()) > 1 or log.setting("scale") == "none":
        return None
    if float(np.abs(reward).max()) > TINY or float(np.median(spread)) > TINY / 4 or not float(spread.max()) > 0:
        return None
    if log.correctness or log.evaluation or not log.last("length") < 0.6 * log.first("length"):
        return None
    return finding(
        ["near_constant_reward", "length_collapse"],
        "warning",
        "possible",
        f"rewards are at most {reward.max():.2g} and differ by {np.median(spread):.1g}: divided by that, they pay as "
        "much as right answers would, and what moves is the length",
        *(log.quote(n) for n in ("reward", "reward_std", "length", "grad_norm") if log.has(n)),
    )


def _spread_of_means(log: RunLog) -> float:
    """Bound of the deviation of rewards where it was not recorded: half of largest less smallest, else the deviation of
    the steps' means, times the root of the rollouts of a step (at least 64); nan if unknown."""
    if log.has("reward_max", "reward_min"):
        return (log.mean("reward_max") - log.mean("reward_min")) / 2
    score = log.trend("reward")
    # nearly all right, a step may have no wrong answer by chance
    if score is None or score.n < 20 or abs(log.mean("reward") - 1) < 0.02:
        return float("nan")
    return 8 * score.noise


def _within(log: RunLog) -> float:
    """Deviation of scores within groups; nan if unknown."""
    spread = None if log.facts is None else log.facts.spread
    return float("nan") if spread is None else spread[0]


@sickness(
    "dead_component",
    1,
    "a reward function is constant",
    "deviation of one component 0 over the whole run while others vary",
    needs=("component/NAME",),
    follows=("all_wrong", "all_right", "no_diversity", "verifier_rejects_right_answers", "wrong_template"),
)
def dead_component(log: RunLog) -> Finding | None:
    names = log.components()
    if len(names) < 2 or log.n_steps < 5:
        return None
    dead = []
    for name in names:
        values, spread = log.values(f"component/{name}"), log.values(f"component_std/{name}")
        rows = log.training_rollouts.components.get(name) if log.training_rollouts is not None else None
        if len(values) < 5 or not log.is_constant(f"component/{name}"):
            continue
        # a constant mean may hide a spread that is the same in each step
        if (len(spread) and spread.max() > 1e-9) or (rows is not None and np.nanmax(rows) - np.nanmin(rows) > 1e-9):
            continue
        dead.append((name, float(values[0])))
    alive = [n for n in names if n not in dict(dead)]
    if not dead:
        return _hardly_paid(log)
    if not alive:
        return None
    name, level = dead[0]
    # a penalty that never applies and a form that is always kept are as they should be; 0 of a rule that is not called
    # a reward may be for answers that keep it, and a form that nobody learns is no loss beside another that is paid
    is_kept = level == 1.0 or (level == 0.0 and ("reward" not in name or any(STYLE.search(n) for n in alive)))
    harmless = (PENALTY.search(name) is not None and level == 0.0) or (
        is_kept and STYLE.search(name) is not None and log.gains
    )
    return finding(
        "dead_component",
        "note" if harmless else "warning",
        "proved",
        f"the reward function {name} is {level:g} for every rollout",
        *(log.quote(f"component/{n}") for n, _ in dead[:3]),
        *(log.quote(f"component_std/{name}") for _ in range(log.has(f"component_std/{name}"))),
    )


def _hardly_paid(log: RunLog) -> Finding | None:
    """Report a reward function that pays a fiftieth of the largest one at most, to the end of a long run that does not
    gain; as possible only."""
    score, names = log.trend("reward"), log.components()
    if score is None or score.n < 50 or log.gains:
        return None
    highest_level = max(log.last(f"component/{n}") for n in names)
    for name in names:
        level = f"component/{name}"
        lowest, last = float(log.values(level).min()), log.last(level)
        is_rare = lowest >= 0 and last < highest_level / 50 and log.largest(level) > 0
        if is_rare and not log.rises(level) and log.first(level) < highest_level / 50 and not PENALTY.search(name):
            return finding(
                "dead_component",
                "warning",
                "possible",
                f"the reward function {name} pays next to nothing to the end, and the reward does not rise",
                log.quote(level),
                log.quote("reward"),
                "can any answer earn it? Calling it on an answer that is surely right would tell",
            )
    return None


@sickness(
    "verifier_outage",
    1,
    "the verifier was out for a stretch",
    "a component at exactly one level for consecutive steps, entropy and length unchanged at the onset; or a burst of "
    "missing scores",
    needs=("reward",),
    follows=("non_finite",),
)
def verifier_outage(log: RunLog) -> Finding | None:
    if log.has("unscored", "rollouts"):
        unscored_share = log.values("unscored") / np.maximum(log.values("rollouts"), 1)
        steps = log.steps("unscored")
        if len(unscored_share) >= 8 and (unscored_share > 0.5).sum() >= 2 and np.median(unscored_share) < 0.05:
            bad = steps[unscored_share > 0.5]
            return finding(
                "verifier_outage",
                "warning",
                "proved",
                f"scores are missing in steps {bad[0]:.0f} to {bad[-1]:.0f}",
                log.quote("unscored"),
                log.quote("reward"),
            )
    # an outage changes scores alone: entropy and length of the policy go on as before
    names = [f"component/{n}" for n in log.components()] or ["reward"]
    for name in (*names, *(["success"] if log.has("success") else [])):
        stretch = _stretch(log, name)
        if stretch is None:
            continue
        start, end, level, mean_before, mean_after = stretch
        if not _is_calm(log, start):
            continue
        came_back = mean_after is not None
        return finding(
            "verifier_outage",
            "critical" if not came_back else "warning",
            "likely" if came_back or end - start >= 5 else "possible",
            f"{log.key(name)} is exactly {level:g} from step {start:.0f} to {end:.0f}: the verifier was out",
            f"mean of the steps before {mean_before:.3g}"
            + (f", after {mean_after:.3g}" if mean_after is not None else ""),
            *(log.quote(n) for n in ("entropy", "length") if log.has(n)),
        )
    return None


def _stretch(log: RunLog, name: str) -> tuple[float, float, float, float, float | None] | None:
    """Longest stretch of equal values in the middle of a varying series, if it looks like an outage; else None.

    Returns first step, last step, level, mean of the steps before, mean of the steps after (None: none follow).
    """
    values, steps = log.values(name), log.steps(name)
    if len(values) < 10:
        return None
    best: tuple[int, int] | None = None
    i = 0
    while i < len(values):
        j = i
        while j + 1 < len(values) and abs(values[j + 1] - values[i]) <= 1e-12:
            j += 1
        if i >= 4 and j - i + 1 >= 3 and (best is None or j - i > best[1] - best[0]):
            best = (i, j)
        i = j + 1
    if best is None:
        return None
    i, j = best
    # a level that steps of few rollouts reach now and then is reached several times in a row, too
    usual = max(
        float((np.abs(part - values[i]) <= 1e-12).mean()) for part in (values[:i], np.delete(values, range(i, j + 1)))
    )
    if len(values) * usual ** (j - i + 1) > 0.05:
        return None
    earlier_values = values[max(0, i - 5) : i]
    # noise of the steps before it: what follows may be a policy that the outage spoilt
    noise = max(float(np.sqrt(np.mean(np.diff(values[:i]) ** 2) / 2)), 1e-6)
    level = float(values[i])
    if level >= log.largest(name) - 1e-9 and level > 0:
        return None  # solved
    if float(earlier_values.mean()) - level < 0.5 * (float(np.median(values[:i])) - level):
        return None  # it had been falling before: an outage comes at once
    # a whole step of zeros is no chance where a step of many rollouts had some right ones
    is_exact = (
        level == 0.0
        and float(earlier_values.min()) > 0.05
        and float(earlier_values.mean()) > 0.15
        and j + 1 < len(values)
    )
    if not is_exact and float(earlier_values.mean()) - level < max(4 * noise, 0.05):
        return None
    if not is_exact and float(earlier_values[-1]) - level < 2 * noise:
        return None
    later_values = values[j + 1 :]
    later_mean = float(later_values[:5].mean()) if len(later_values) else None
    if later_mean is not None and not is_exact and later_mean - level < 2 * noise:
        return None
    if is_exact and later_mean is not None and later_mean < 0.5 * float(earlier_values.mean()):
        return None
    return float(steps[i]), float(steps[j]), level, float(earlier_values.mean()), later_mean


def _is_calm(log: RunLog, step: float) -> bool:
    """True if entropy and length at a step are as in the steps before it, and the reference is near, so that the policy
    did not change."""
    is_known = False
    kl = log.column("kl")
    if (kl.steps <= step).any() and float(kl.values[kl.steps <= step][-1]) > FAR_KL:
        return False
    for name in ("entropy", "length"):
        values, steps = log.values(name), log.steps(name)
        earlier_values, later_values = values[steps < step][-6:], values[steps >= step][:2]
        if len(earlier_values) < 3 or not len(later_values):
            continue
        is_known = True
        noise = max(
            float(np.sqrt(np.mean(np.diff(earlier_values) ** 2) / 2)), 0.02 * abs(float(earlier_values.mean())), 1e-3
        )
        if abs(float(later_values.mean() - earlier_values[-3:].mean())) > 5 * noise:
            return False
    return is_known
