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
        low, high = found.change - 1.96 * found.error, found.change + 1.96 * found.error
        if found.rises:
            said = "gains"
        elif found.falls:
            said = "falls"
        elif found.noise == 0:
            said = "does not change"
        else:
            said = f"no change that shows; a gain of {found.detectable:.2g} over these {found.n} steps would have"
        parts.append(
            f"{case.log.key(name)} {found.first:.3g} -> {found.last:.3g} (line {found.change:+.2g}, 95% {low:+.2g} to "
            f"{high:+.2g}): {said}"
        )
        break
    if case.held_out is not None:
        values, error = case.values(case.held_out), case.held_out_error
        change = float(values[-1] - values[0])
        verdict = "gains" if case.held_out_gain > 0 else "falls" if case.held_out_gain < 0 else "within its noise"
        parts.append(
            f"{case.log.key(case.held_out)} {values[0]:.3g} -> {values[-1]:.3g} ({change:+.2g}, 95% "
            f"+-{1.96 * error:.2g}): {verdict}"
        )
    if not parts:
        return f"{case.n} steps: too few to say whether it gains" if case.n else ""
    return "; ".join(parts)
