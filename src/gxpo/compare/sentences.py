"""What a comparison says, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from gxpo.compare.conclude import rounded_up
from gxpo.compare.results import Comparison, Difference
from gxpo.compare.wording import listed


def compared(comparison: Comparison) -> list[Difference]:
    """The differences of the arms, those of controls left out."""
    kinds = {a.arm.label: a.arm.kind for a in comparison.arms}
    return [d for d in comparison.differences if kinds.get(d.arm) == "arm"]


def verdict(comparison: Comparison) -> list[str]:
    """A sentence an entry: arms told from the base first, the best before the others, then those that are not."""
    found = compared(comparison)
    if not found:
        return ["nothing is compared: there is no arm beside the base"]
    out = [d.said for d in sorted(found, key=lambda d: -d.end.mean) if d.verdict != "undecided"]
    unsure = [d for d in found if d.verdict == "undecided"]
    if len(unsure) == 1:
        return [*out, unsure[0].said]
    return [*out, _undecided(unsure, alone=not out)] if unsure else out


def _undecided(unsure: Sequence[Difference], *, alone: bool) -> str:
    """One sentence for several arms, with the seeds that each would need as far as there is a number."""
    who = "no arm can" if alone else f"{listed([d.arm for d in unsure])} can't"
    said = f"{who} be told from {unsure[0].against}: n too small to say"
    needed: dict[str, list[str]] = {}
    for d in sorted(unsure, key=lambda d: d.seeds_needed or 0):
        if d.seeds_needed is not None:
            needed.setdefault(rounded_up(max(d.seeds_needed, d.end.n + 1)), []).append(d.arm)
    if not needed:
        return said
    (least, arms), *rest = needed.items()
    unknown = [d.arm for d in unsure if d.seeds_needed is None]
    whose = f" for {listed(arms)}" if rest or unknown else ""
    more = "".join(f", {n} for {listed(others)}" for n, others in rest)
    last = f"; no number of seeds is known for {listed(unknown)}" if unknown else ""
    return f"{said}; about {least} seeds would{whose}{more}{last}"
