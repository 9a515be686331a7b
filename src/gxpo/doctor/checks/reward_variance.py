"""What was scored, by its variance: rewards that are noise, blind, nearly constant, dead, or interrupted."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.case import STYLE, Case
from gxpo.doctor.checks.scored import PENALTY, shown
from gxpo.doctor.finding import Finding
from gxpo.doctor.sickness import found, sickness

FAINT = 2e-3  # length of a gradient that is made of rounding; advantages of about 1 give 0.01 and more


@sickness(
    "reward_noise",
    1,
    "rewards do not belong to their completions",
    "identical completions of one prompt with different scores",
    needs=("rollouts",),
    follows=(),
)
def reward_noise(case: Case) -> Finding | None:
    if case.facts is None or case.facts.same_text is None:
        return None
    pairs, differing, ratio, rows = case.facts.same_text
    if pairs < 10 or differing < 5 or differing / pairs < 0.05:
        return None
    strong = ratio > 0.5
    slight = ratio < 0.2 or (case.gains and not strong)  # a judge that is not quite sure
    return found(
        "reward_noise",
        "note" if slight else "critical" if strong and not case.held_out_gain > 0 else "warning",
        "proved",
        "the same completion of the same prompt gets different scores",
        f"{differing} of {pairs} pairs of identical completions of one group differ in their score; the difference is "
        f"{ratio:.0%} of that of any two answers of a group",
        case.quote("reward"),
        examples=shown(case, rows),
    )


def pays_for_anything(case: Case) -> bool:
    """Whether one and the same reward above 0 goes to answers of which the verifier accepts some and refuses others."""
    if not case.has("reward", "success") or len(case.values("reward")) < 5 or not case.constant("reward"):
        return False
    accepted = case.values("success")
    return case.mean("reward") > 0 and case.silent and bool(((accepted > 0.02) & (accepted < 0.98)).mean() > 0.5)


@sickness(
    "reward_ignores_completion",
    1,
    "the reward does not depend on the completion",
    "no variance within groups although completions differ, variance between groups",
    needs=("rollouts", "zero_signal"),
    follows=("no_diversity",),
)
def reward_ignores(case: Case) -> Finding | None:
    if pays_for_anything(case):
        return found(
            "reward_ignores_completion",
            "critical",
            "proved",
            "right and wrong answers earn the same: the reward pays for anything",
            *(case.quote(n) for n in ("reward", "success", "zero_signal") if case.has(n)),
        )
    spread = None if case.facts is None else case.facts.spread
    if spread is not None:
        inside, between, differ, groups = spread
        if groups < 6 or inside > 1e-6 * max(between, 1e-9) or between < 1e-4 or differ < 0.3:
            return None
        return found(
            "reward_ignores_completion",
            "critical",
            "proved",
            "all answers of a group score the same, whatever they say",
            f"deviation of the score within groups {inside:.2g}, between groups {between:.2g} ({groups} groups); "
            f"{differ:.0%} of the completions of a group differ",
            case.quote("zero_signal") if case.has("zero_signal") else "",
            examples=shown(case, case.facts.members[0][:2]) if case.facts is not None else (),
        )
    if not case.silent or not case.has("reward") or not case.silent_at_once:
        return None
    between = max([case.mean(n) for n in case.log.series if n.startswith("component_std/")], default=0.0)
    wanders = float(case.values("reward").std())
    if max(between, wanders) < 1e-3 or case.finished:
        return None
    if case.entropy_first > 0.1:
        return found(
            "reward_ignores_completion",
            "critical",
            "likely",
            "all answers of a group score the same, and groups differ",
            *(case.quote(n) for n in ("zero_signal", "reward", "entropy", "grad_norm") if case.has(n)),
        )
    return found(
        ["reward_ignores_completion", "no_diversity"],
        "critical",
        "possible",
        "all answers of a group score the same, and groups differ",
        *(case.quote(n) for n in ("zero_signal", "reward", "entropy", "grad_norm") if case.has(n)),
        "are the answers of a group the same text? The completions, or the entropy, would tell",
    )


@sickness(
    "near_constant_reward",
    1,
    "a near-constant reward is blown up by its standard deviation",
    "deviation within groups below 1% of the reward's level, advantages of about 1; equal rewards with an advantage",
    needs=("reward_std", "rollouts"),
    follows=(),
)
def near_constant(case: Case) -> Finding | None:
    seen = None if case.facts is None else case.facts.advantages
    if seen is not None and not case.gains:
        count, of, size = len(seen.residue), seen.equal, seen.size
        if count >= 0.2 * of and count >= 8:
            return found(
                "near_constant_reward",
                "critical",
                "proved",
                "equal rewards of a group have advantages other than 0: rounding is trained on",
                f"{count} of {of} rollouts in groups of equal scores have an advantage, up to {size:.1e}",
                case.quote("zero_signal") if case.has("zero_signal") else "",
                examples=shown(case, seen.residue),
            )
    if not case.has("reward"):
        return None
    pull = case.values("grad_norm")
    if (
        len(pull) >= 8
        and case.has("reward_std")
        and float(np.median(pull[:8])) > 0
        and float(pull.max()) < 5 * FAINT
        and case.mean("reward_std") > 0.01
    ):
        return found(
            ["reward_ignores_completion", "near_constant_reward"],
            "critical",
            "possible" if case.gains else "likely",
            "the gradient is next to nothing although rewards differ: those of a group are equal up to rounding",
            *(case.quote(n) for n in ("grad_norm", "reward_std", "zero_signal", "reward") if case.has(n)),
        )
    spread = case.mean("reward_std") if case.has("reward_std") else _within(case)
    reward = case.values("reward")
    level = float(np.abs(reward).mean())
    if not (np.isfinite(spread) and 0 < spread < 0.01 * level):
        return None
    if float(np.ptp(reward)) > 0.05 * level or (
        case.has("zero_signal") and case.mean("zero_signal") > 0.9 and spread > 1e-6 * level
    ):
        return None
    return found(
        "near_constant_reward",
        "critical",
        "likely",
        "the reward hardly differs, and division by its deviation makes noise of it",
        case.quote("reward", ".6g"),
        case.quote("reward_std") if case.has("reward_std") else f"deviation within groups {spread:.2g}",
        case.quote("zero_signal") if case.has("zero_signal") else "",
    )


def _within(case: Case) -> float:
    """Deviation of scores within groups; nan where it is unknown."""
    spread = None if case.facts is None else case.facts.spread
    return float("nan") if spread is None else spread[0]


@sickness(
    "dead_component",
    1,
    "a reward function is constant",
    "deviation of one component 0 over the whole run while others vary",
    needs=("component/NAME",),
    follows=("all_wrong", "all_right", "no_diversity", "verifier_rejects_right_answers", "wrong_template"),
)
def dead_component(case: Case) -> Finding | None:
    names = case.log.components()
    if len(names) < 2 or case.n < 5:
        return None
    dead = []
    for name in names:
        values, spread = case.values(f"component/{name}"), case.values(f"component_std/{name}")
        rows = case.rollouts.components.get(name) if case.rollouts is not None else None
        if len(values) < 5 or not case.constant(f"component/{name}"):
            continue
        if (len(spread) and spread.max() > 1e-9) or (rows is not None and np.nanmax(rows) - np.nanmin(rows) > 1e-9):
            continue
        dead.append((name, float(values[0])))
    alive = [n for n in names if n not in dict(dead)]
    if not dead or not alive:
        return None
    name, level = dead[0]
    harmless = (PENALTY.search(name) is not None and level == 0.0) or (
        level == 1.0 and STYLE.search(name) is not None and case.gains
    )
    return found(
        "dead_component",
        "note" if harmless else "warning",
        "proved",
        f"the reward function {name} is {level:g} for every rollout",
        *(case.quote(f"component/{n}") for n, _ in dead[:3]),
        *(case.quote(f"component_std/{name}") for _ in range(case.has(f"component_std/{name}"))),
    )


@sickness(
    "verifier_outage",
    1,
    "the verifier was out for a stretch",
    "a component at exactly one level for consecutive steps, entropy and length unchanged at the onset; or a burst of "
    "missing scores",
    needs=("reward",),
    follows=(),
)
def verifier_outage(case: Case) -> Finding | None:
    if case.has("unscored", "rollouts"):
        lost = case.values("unscored") / np.maximum(case.values("rollouts"), 1)
        steps = case.log.steps("unscored")
        if len(lost) >= 8 and (lost > 0.5).sum() >= 2 and np.median(lost) < 0.05:
            bad = steps[lost > 0.5]
            return found(
                "verifier_outage",
                "warning",
                "proved",
                f"scores are missing in steps {bad[0]:.0f} to {bad[-1]:.0f}",
                case.quote("unscored"),
                case.quote("reward"),
            )
    names = [f"component/{n}" for n in case.log.components()] or ["reward"]
    for name in (*names, *(["success"] if case.has("success") else [])):
        stretch = _stretch(case, name)
        if stretch is None:
            continue
        start, end, level, before, after = stretch
        if not _calm(case, start):
            continue
        came_back = after is not None
        return found(
            "verifier_outage",
            "critical" if not came_back else "warning",
            "likely" if came_back or end - start >= 5 else "possible",
            f"{case.log.key(name)} is exactly {level:g} from step {start:.0f} to {end:.0f}: the verifier was out",
            f"mean of the steps before {before:.3g}" + (f", after {after:.3g}" if after is not None else ""),
            *(case.quote(n) for n in ("entropy", "length") if case.has(n)),
        )
    return None


def _stretch(case: Case, name: str) -> tuple[float, float, float, float, float | None] | None:
    """The longest run of equal values (0 or another level) in the middle of a series that otherwise varies."""
    values, steps = case.values(name), case.log.steps(name)
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
    before = values[max(0, i - 5) : i]
    noise = max(float(np.sqrt(np.mean(np.diff(values[:i]) ** 2) / 2)), 1e-6)
    level = float(values[i])
    if level >= case.top_of(name) - 1e-9 and level > 0:
        return None  # solved
    # a whole step of zeros is no chance where a step of many rollouts had some right ones
    exact = level == 0.0 and float(before.min()) > 0.05 and float(before.mean()) > 0.15 and j + 1 < len(values)
    if not exact and float(before.mean()) - level < max(4 * noise, 0.05):
        return None
    if not exact and float(before[-1]) - level < 2 * noise:
        return None
    rest = values[j + 1 :]
    after = float(rest[:5].mean()) if len(rest) else None
    if after is not None and not exact and after - level < 2 * noise:
        return None
    if exact and after is not None and after < 0.5 * float(before.mean()):
        return None
    return float(steps[i]), float(steps[j]), level, float(before.mean()), after


def _calm(case: Case, step: float) -> bool:
    """Whether entropy and length at a step are as in the steps before it."""
    known = False
    for name in ("entropy", "length"):
        values, steps = case.values(name), case.log.steps(name)
        before, at = values[(steps < step) & (steps >= step - 6)], values[(steps >= step) & (steps < step + 2)]
        if len(before) < 3 or not len(at):
            continue
        known = True
        noise = max(float(np.sqrt(np.mean(np.diff(before) ** 2) / 2)), 0.02 * abs(float(before.mean())), 1e-3)
        if abs(float(at.mean() - before[-3:].mean())) > 5 * noise:
            return False
    return known
