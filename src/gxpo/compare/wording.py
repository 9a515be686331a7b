"""Format figures, intervals and captions for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gxpo.compare.results import ArmSummary, Comparison, Estimate, Unit

RATES = ("lr", "learning_rate")  # ends of keys
UNITS: Mapping[Unit, str] = {"tokens": "generated tokens", "seconds": "seconds of training", "updates": "updates"}


def places(arms: Iterable[ArmSummary]) -> int:
    """Decimals that the measure is shown with: 3 for shares, fewer the larger its values are."""
    sizes = [abs(e.mean) for a in arms for e in (a.start, a.end) if math.isfinite(e.mean)]
    largest = max(sizes, default=0.0)
    return 3 if largest <= 1 else 2 if largest < 10 else 1 if largest < 100 else 0


def number(value: float, places: int = 3, *, sign: bool = False) -> str:
    """Format a value without a zero before the point; a dash if it is not finite.

    >>> number(0.0314), number(-0.2, 2), number(0.0314, sign=True), number(1234.5, 0), number(float("nan"))
    ('.031', '-.20', '+.031', '1,234', '-')
    """
    if not math.isfinite(value):
        return "-"
    text = f"{value:{'+' if sign else ''},.{places}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("+-")
    lead, digits = (text[0], text[1:]) if text[0] in "+-" else ("", text)
    return lead + (digits[1:] if digits.startswith("0.") else digits)


def interval(estimate: Estimate, places: int = 3, *, sign: bool = False) -> str:
    """Format a mean with its 95% interval, if it has one.

    >>> interval(Estimate(0.031, 0.008, 0.054, 10), sign=True)
    '+.031 (+.008 to +.054)'
    """
    mean = number(estimate.mean, places, sign=sign)
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return mean
    return f"{mean} ({number(estimate.low, places, sign=sign)} to {number(estimate.high, places, sign=sign)})"


def probability(p: float) -> str:
    """Format a p-value.

    >>> [probability(p) for p in (0.0002, 0.0203, 0.049, 0.37, 1.0, float("nan"))]
    ['<.001', '.02', '.049', '.37', '1', '-']
    """
    if not math.isfinite(p):
        return "-"
    if p < 0.001:
        return "<.001"
    text = f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
    return text.rstrip("0").rstrip(".").removeprefix("0") or "0"


def count(value: float) -> str:
    """Format a number of tokens or updates, shortened.

    >>> count(950), count(20_500), count(1_234_000), count(float("nan"))
    ('950', '20.5 k', '1.23 M', 'unknown')
    """
    if not math.isfinite(value):
        return "unknown"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / min(size, 1e3 if letter == 'k' else size):.3g} {letter}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(42.13), duration(204), duration(7500), duration(float("nan"))
    ('42 s', '3 min 24 s', '2 h 5 min', 'unknown')
    """
    if not math.isfinite(seconds):
        return "unknown"
    minutes, remainder = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {remainder} s" if minutes else f"{remainder} s"


def join_words(words: Sequence[str]) -> str:
    """Join words with commas and "and".

    >>> join_words(["a"]), join_words(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def settings(keys: Mapping[str, Any]) -> str:
    """Format keys as `key=value`, in one line."""
    return " ".join(f"{key}={value}" for key, value in keys.items()).replace("\n", "\\n")


def sort_arms(comparison: Comparison) -> list[ArmSummary]:
    """Sort the arms: base, then by their end from best to worst, then the controls."""
    direction = -1 if comparison.better == "more" else 1
    rank = {"base": 0, "arm": 1, "control": 2}

    def place(arm: ArmSummary) -> tuple[int, float]:
        return rank[arm.arm.kind], direction * arm.end.mean if math.isfinite(arm.end.mean) else math.inf

    return sorted(comparison.arms, key=place)


def label_with_kind(arm: ArmSummary) -> str:
    """Label of an arm, marked if it is the base or a control."""
    return arm.arm.label if arm.arm.kind == "arm" else f"{arm.arm.label} ({arm.arm.kind})"


def caption(comparison: Comparison, *, setting: bool = True) -> str:
    """Caption of every figure: measure, budget, setting, and whether learning rates were tuned."""
    c = comparison
    setting_text = f", {c.setting}" if setting else ""
    return f"{c.measure} ({c.better} is better), {c.budget} a run{setting_text}, {tuning_text(c)}"


def tuning_text(comparison: Comparison) -> str:
    """Say which keys were tuned, or that all arms ran at one learning rate."""
    if not any(comparison.tuned.values()):
        return "at one learning rate" if one_rate(comparison) else "learning rates as given"
    return f"{join_words(_keys(comparison.tuned.values()))} tuned for each arm on other seeds"


def one_rate(comparison: Comparison) -> bool:
    """Return True if no arm has a learning rate of its own, by gxpo's key or by another trainer's."""
    arms = [a.arm.keys for a in comparison.arms if a.arm.kind != "control"]
    rates = [{k: v for k, v in keys.items() if k.endswith(RATES)} for keys in arms]
    return all(rate == rates[0] for rate in rates)


def _keys(tuned_keys: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({key for keys in tuned_keys for key in keys})
