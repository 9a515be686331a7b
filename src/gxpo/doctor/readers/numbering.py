"""Steps of rows that carry none, from the progress bars between them, `logging_steps`, or counted."""

from __future__ import annotations

from collections import Counter

from gxpo.doctor.readers.found import Found


def renumber(found: Found, every: float | None) -> list[str]:
    """Give counted rows the steps of the trainer as far as anything tells them; a note says what did.

    every  `logging_steps`, where a configuration or a state says so
    """
    if not found.rows:
        return []
    count = int(max(step for step, _ in found.rows))
    bars = _first_after(found.bars)
    steps = [bars.get(row) for row in range(1, count + 1)]
    known = [s for s in steps if s is not None]
    if len(known) == count > 1 and known == sorted(set(known)):
        table = {0.0: 0.0} | {row: float(step) for row, step in enumerate(known, 1)}
        found.rows = [(table[step], row) for step, row in found.rows]
        found.numbered = True
        return []
    if every is not None:
        found.rows = [(step * every, row) for step, row in found.rows]
        found.numbered = True
        if every == 1:
            return []
        return [f"rows carry no step: they were counted, logging_steps ({every:g}) each"]
    return ["rows carry no step: they were counted"]


def _first_after(bars: list[tuple[int, int, int]]) -> dict[int, int]:
    """Step that the training's progress bar shows when it is drawn again after a row.

    The bars of evaluations have another length and come later.
    """
    if not bars:
        return {}
    first: dict[int, tuple[int, int]] = {}
    for row, step, length in bars:
        first.setdefault(row, (step, length))
    usual = Counter(length for _, length in first.values()).most_common(1)[0][0]
    return {row: step for row, (step, length) in first.items() if length == usual}
