"""Sentences that state the verdict of a comparison, for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gxpo.base.errors import ConfigError
from gxpo.compare.conclude import ALPHA, Overall, overall, rounded_up
from gxpo.compare.inference import holm
from gxpo.compare.results import Comparison, Difference, Estimate
from gxpo.compare.wording import interval, join_words, places, probability


@dataclass(frozen=True)
class OverSettings:
    """Verdict on an arm over several settings.

    settings     number of settings in which it was compared
    difference   mean difference from the base, each setting of equal weight; None if the settings do not share measure
                 or base, or not all have the arm
    p            of the difference, by Holm's method over the arms
    verdict      of the difference; undecided if there is none
    sentences    in how many settings the arm differs from the base, and the mean, which comes first if it is decided
    """

    arm: str
    against: str
    settings: int
    difference: Estimate | None
    p: float
    verdict: Literal["better", "worse", "undecided"]
    sentences: Sequence[str]


def differences_of_arms(comparison: Comparison) -> list[Difference]:
    """Differences of the arms, without controls."""
    kinds = {a.arm.label: a.arm.kind for a in comparison.arms}
    return [d for d in comparison.differences if kinds.get(d.arm) == "arm"]


def verdict(comparison: Comparison) -> list[str]:
    """Verdict in sentences: first the arms that differ from the base, best first, then those that equal it in
    every step, then one for the undecided."""
    differences = differences_of_arms(comparison)
    if not differences:
        return ["nothing is compared: there is no arm beside the base"]
    out = [d.sentence for d in sorted(differences, key=lambda d: -d.end.mean) if d.verdict in ("better", "worse")]
    out += [d.sentence for d in differences if d.verdict == "equal"]
    undecided = [d for d in differences if d.verdict == "undecided"]
    if len(undecided) == 1:
        return [*out, undecided[0].sentence]
    return [*out, _undecided_sentence(undecided, is_only_sentence=not out)] if undecided else out


def _undecided_sentence(unsure: Sequence[Difference], *, is_only_sentence: bool) -> str:
    """One sentence for several undecided arms, with the seeds that each would need if that is known."""
    subject = "no arm can" if is_only_sentence else f"{join_words([d.arm for d in unsure])} can't"
    sentence = f"{subject} be told from {unsure[0].against}: n too small to say"
    arms_by_seeds: dict[str, list[str]] = {}
    for d in sorted(unsure, key=lambda d: d.seeds_needed or 0):
        if d.seeds_needed is not None:
            # Arms that need the same rounded number share one phrase.
            arms_by_seeds.setdefault(rounded_up(max(d.seeds_needed, d.end.n + 1)), []).append(d.arm)
    if not arms_by_seeds:
        return sentence
    (least, arms), *further_counts = arms_by_seeds.items()
    unknown_arms = [d.arm for d in unsure if d.seeds_needed is None]
    for_arms = f" for {join_words(arms)}" if further_counts or unknown_arms else ""
    further_text = "".join(f", {n} for {join_words(further_arms)}" for n, further_arms in further_counts)
    unknown_text = f"; no number of seeds is known for {join_words(unknown_arms)}" if unknown_arms else ""
    return f"{sentence}; about {least} seeds would{for_arms}{further_text}{unknown_text}"


def over_settings(comparisons: Sequence[Comparison]) -> list[OverSettings]:
    """Verdicts of all arms over the settings, controls left out, in order of first appearance."""
    differences_by_arm: dict[str, list[Difference]] = {}
    for c in comparisons:
        for d in differences_of_arms(c):
            differences_by_arm.setdefault(d.arm, []).append(d)
    means = {o.arm: o for o in _overall(comparisons) if o.arm in differences_by_arm}
    # Holm's correction once more: the means over settings are a family of tests of their own.
    p_values = dict(zip(means, holm([o.difference.p for o in means.values()]), strict=True)) if means else {}
    digits = max((places(c.arms) for c in comparisons), default=3)
    out = []
    for arm, arm_differences in differences_by_arm.items():
        mean, p = means[arm].difference if arm in means else None, p_values.get(arm, math.nan)
        sentences, against = [_counts(arm, arm_differences)], arm_differences[0].against
        verdict: Literal["better", "worse", "undecided"] = "undecided"
        if mean:
            figures = (
                f"{interval(mean, digits, sign=True)}, p {probability(p)}{' after Holm' if len(means) > 1 else ''}"
            )
            basis = f"over all {len(arm_differences)} settings: {figures}"
            if not mean.holds_zero and p < ALPHA:
                # The sign is turned already, so that above 0 is better.
                verdict = "better" if mean.mean > 0 else "worse"
                sentences.insert(0, f"{arm} is {verdict} than {against} {basis}")
            else:
                sentences.append(f"{arm} can't be told from {against} {basis}")
        out.append(OverSettings(arm, against, len(arm_differences), mean, p, verdict, sentences))
    return out


def _overall(comparisons: Sequence[Comparison]) -> list[Overall]:
    try:
        return overall(comparisons)
    except ConfigError:  # measures or bases that have no common mean
        return []


def _counts(arm: str, differences: Sequence[Difference]) -> str:
    """Sentence that counts the settings in which an arm differs from the base."""
    against, n = differences[0].against, len(differences)
    counts = {v: sum(d.verdict == v for d in differences) for v in ("better", "worse", "undecided")}
    phrases = [f"{v} than {against} in {counts[v]} of {n} settings" for v in ("better", "worse") if counts[v]]
    if n_equal := sum(d.verdict == "equal" for d in differences):
        phrases.append(f"equal to {against} in every step in {n_equal} of {n} settings")
    if not phrases:
        return f"{arm} can't be told from {against} in any one of {n} settings"
    undecided = f", can't be told from it in {counts['undecided']}" if counts["undecided"] else ""
    return f"{arm} is {' and '.join(phrases)}{undecided}"
