"""What a comparison says, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gxpo.base.errors import ConfigError
from gxpo.compare.conclude import ALPHA, Overall, overall, rounded_up
from gxpo.compare.inference import holm
from gxpo.compare.results import Comparison, Difference, Estimate
from gxpo.compare.wording import interval, listed, places, probability


@dataclass(frozen=True)
class OverSettings:
    """An arm in several settings.

    settings     in how many it was compared
    difference   mean over them, less the base, each setting of equal weight; None where they do not share measure or
                 base, or not all have the arm
    p            of the difference, by Holm's method over the arms
    verdict      of the difference; undecided where there is none
    said         in how many settings it is told from the base, and the mean, which comes first where it is
    """

    arm: str
    against: str
    settings: int
    difference: Estimate | None
    p: float
    verdict: Literal["better", "worse", "undecided"]
    said: Sequence[str]


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


def over_settings(comparisons: Sequence[Comparison]) -> list[OverSettings]:
    """Every arm but the controls, in the order in which they first come."""
    found: dict[str, list[Difference]] = {}
    for c in comparisons:
        for d in compared(c):
            found.setdefault(d.arm, []).append(d)
    means = {o.arm: o for o in _overall(comparisons) if o.arm in found}
    p_values = dict(zip(means, holm([o.difference.p for o in means.values()]), strict=True)) if means else {}
    digits = max((places(c) for c in comparisons), default=3)
    out = []
    for arm, seen in found.items():
        mean, p = means[arm].difference if arm in means else None, p_values.get(arm, math.nan)
        said, against = [_counts(arm, seen)], seen[0].against
        verdict: Literal["better", "worse", "undecided"] = "undecided"
        if mean:
            tested = f"{interval(mean, digits, sign=True)}, p {probability(p)}{' after Holm' if len(means) > 1 else ''}"
            over = f"over all {len(seen)} settings: {tested}"
            if not mean.holds_zero and p < ALPHA:
                verdict = "better" if mean.mean > 0 else "worse"
                said.insert(0, f"{arm} is {verdict} than {against} {over}")
            else:
                said.append(f"{arm} can't be told from {against} {over}")
        out.append(OverSettings(arm, against, len(seen), mean, p, verdict, said))
    return out


def _overall(comparisons: Sequence[Comparison]) -> list[Overall]:
    try:
        return overall(comparisons)
    except ConfigError:  # measures or bases that have no common mean
        return []


def _counts(arm: str, found: Sequence[Difference]) -> str:
    """In how many settings an arm was told from the base."""
    against, n = found[0].against, len(found)
    counts = {v: sum(d.verdict == v for d in found) for v in ("better", "worse", "undecided")}
    said = [f"{v} than {against} in {counts[v]} of {n} settings" for v in ("better", "worse") if counts[v]]
    if not said:
        return f"{arm} can't be told from {against} in any one of {n} settings"
    rest = f", can't be told from it in {counts['undecided']}" if counts["undecided"] else ""
    return f"{arm} is {' and '.join(said)}{rest}"
