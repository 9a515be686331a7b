"""Steps of rows that carry none: counted, times the steps between two logs where that is known."""

from __future__ import annotations

import statistics

from gxpo.doctor.readers.found import Found


def renumber(found: Found, every: float | None) -> list[str]:
    """Multiply the counted steps by `every`, or by what the progress bars show; gives notes on it."""
    if not found.rows:
        return []
    said = "logging_steps"
    if not every or every < 1:
        every, said = _by_bars(found.bars), "the progress bar"
    if not every or every == 1:
        return ["rows carry no step: they were counted"]
    found.rows = [(step * every, row) for step, row in found.rows]
    found.bars = []
    return [f"rows carry no step: they were counted, {every:g} steps each by {said}"]


def _by_bars(bars: list[tuple[int, int]]) -> float | None:
    """Steps a row: a bar drawn after row r shows a step of at least r times that, and less than r + 1 times it."""
    last: dict[int, int] = {}
    for row, step in bars:
        last.setdefault(row, step)  # the first that is drawn after the row
    shares = [step / row for row, step in last.items() if row > 0]
    if len(shares) < 2:
        return None
    middle = round(statistics.median(shares))
    return float(middle) if middle >= 1 and all(abs(s - middle) < 0.5 * middle for s in shares) else None
