"""`progress`: one line on whether the run gains, and the least gain that it could have shown."""

from __future__ import annotations

from gxpo.doctor.case import Case


def progress(case: Case) -> str:
    """Reward and evaluations from the first steps to the last, each with a 95% interval."""
    parts = []
    for name in ("success", "reward"):
        found = case.trend(name)
        if found is None:
            continue
        if case.constant(name):
            parts.append(f"{case.log.key(name)} = {found.first:.3g} in all {found.n} steps")
            break
        low, high = found.change - 1.96 * found.error, found.change + 1.96 * found.error
        if found.rises:
            said = "gains"
        elif found.falls:
            said = "falls"
        elif low > 0 or high < 0:
            said = f"may {'gain' if low > 0 else 'fall'}, but by less than three standard errors"
        else:
            said = f"no clear change, where a gain of {found.detectable:.2g} would have shown"
        parts.append(
            f"{case.log.key(name)} {found.first:.3g} -> {found.last:.3g} over {found.n} steps (trend "
            f"{found.change:+.2g}, 95% {low:+.2g} to {high:+.2g}): {said}"
        )
        break
    if case.held_out is not None:
        values, error = case.values(case.held_out), case.held_out_error
        change = float(values[-1] - values[0])
        low, high = change - 1.96 * error, change + 1.96 * error
        verdict = "may gain" if low > 0 else "may fall" if high < 0 else "no clear change"
        if case.held_out_gain:
            verdict = "gains" if case.held_out_gain > 0 else "falls"
        parts.append(
            f"{case.log.key(case.held_out)} {values[0]:.3g} -> {values[-1]:.3g} in {len(values)} evaluations (change "
            f"{change:+.2g}, 95% {low:+.2g} to {high:+.2g}): {verdict}"
        )
    if not parts:
        return f"{case.n} step{'s' * (case.n > 1)}: too few to say whether the reward gains" if case.n else ""
    return "; ".join(parts)
