"""Remedies of a finding in the trainer's own settings, those that helped in measurements first.

The lines are data: `remedies/SOURCE.yaml` holds those of one trainer, `remedies/any.yaml` those without settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from gxpo.base import yamltext
from gxpo.doctor import evidence
from gxpo.doctor.evidence import Measurement
from gxpo.doctor.runlog import RunLog

UNTESTED = "(untested here)"  # no comparison of ours with enough seeds has measured what it does
FOLDER = Path(__file__).with_name("remedies")
SOURCES = ("trl", "unsloth", "ms-swift", "verl", "gxpo")  # trainers with remedies in their own settings
OURS = "gxpo.adapters.trl"  # unsloth and ms-swift replace TRL's trainer, and with it ours
MEASURED = re.compile(r" \[(?P<where>measured(?: in gxpo)?)(?:, (?P<but>[a-z ]+))?: (?P<figures>[^]]*)\]$")
SCORE_SUSPECTS = ("verifier_rejects_right_answers", "labels_misaligned", "missing_scores", "reward_sign")
METHOD = re.compile(r"\bmethod=|\bgxpo/|adv_estimator=|loss_mode=|loss_type=")  # a line that changes the method
ORDER = ("helped", "untested", "mixed", "undecided")  # what harmed is not advised


@cache
def remedy_table(source: str) -> Mapping[str, tuple[str, ...]]:
    """Remedies by sickness in one trainer's settings, read once from its file; `any`: those without settings."""
    if source in ("unsloth", "ms-swift"):
        return {k: tuple(line for line in lines if OURS not in line) for k, lines in remedy_table("trl").items()}
    path = FOLDER / f"{source}.yaml"
    table = yamltext.plain(yamltext.load(path.read_text(encoding="utf-8"), path.name), path.name)
    return {name: tuple(lines) for name, lines in table.items()}


def lines_for(name: str, source: str) -> tuple[str, ...]:
    """Remedies of one sickness in a trainer's settings, or without settings where it has none of its own."""
    lines = remedy_table(source).get(name) if source in SOURCES else None
    return lines or remedy_table("any").get(name, ())


def remedies(
    ids: Sequence[str], log: RunLog, measurements: Sequence[Measurement] | None = None, *, with_methods: bool = True
) -> tuple[str, ...]:
    """Remedies of a finding in the keys of the run's trainer, each with its measurement.

    The order: what helped, the largest difference first; untested lines; then mixed and undecided results. What harmed
    is left out, unless there is nothing else.

    measurements  of the remedies; None: those that gxpo comes with
    with_methods  list other methods, too; without, all that is left for a sickness may be nothing
    """
    known_measurements = evidence.read() if measurements is None else measurements
    # a look at the scores is cheap, and before it nothing else is known
    ordered_ids = sorted(ids, key=lambda name: name not in SCORE_SUSPECTS)
    has_several_ids, source = len(ids) > 1, log.source
    composed = str(log.setting("method") or "").split("+") if source == "gxpo" else []
    # a method that the run composes already is no advice
    current_methods = tuple(f"method={name.split('@')[0]} " for name in composed if name)
    return tuple(
        f"{name}: {line}" if has_several_ids else line
        for name in ordered_ids
        for line in ranked(name, source, known_measurements)
        if not (current_methods and line.startswith(current_methods)) and (with_methods or not METHOD.search(line))
    )


def ranked(name: str, source: str, measurements: Sequence[Measurement]) -> list[str]:
    """Remedies of one sickness, each marked with its measurement, in the order of `remedies`.

    In gxpo's keys, measured remedies that helped and have no line of their own are added.
    """
    mark = "measured" if source == "gxpo" else "measured in gxpo"
    ranked_lines: list[tuple[tuple[int, float], str]] = []
    harmful_lines: list[str] = []
    lines = lines_for(name, source)
    line_measurements = [evidence.measured_for_line(name, line, measurements) for line in lines]
    if source == "gxpo":
        # other trainers lack the settings that these were measured with
        unlisted_measurements = [
            measurement
            for measurement in measurements
            if measurement.sickness == name and measurement.verdict == "helped" and measurement not in line_measurements
        ]
        lines, line_measurements = (
            (*lines, *(measurement.remedy for measurement in unlisted_measurements)),
            [*line_measurements, *unlisted_measurements],
        )
    for line, measurement in zip(lines, line_measurements, strict=True):
        if measurement is None:
            # 0.0: the sort is stable, so that untested lines keep the order of their file
            ranked_lines.append(((ORDER.index("untested"), 0.0), f"{line} {UNTESTED}"))
            continue
        reservation = "" if measurement.verdict == "helped" else f", {evidence.IN_WORDS[measurement.verdict]}"
        text = f"{line} [{mark}{reservation}: {measurement.figures}]"
        if measurement.verdict == "harmed":
            harmful_lines.append(text)
        else:
            ranked_lines.append(((ORDER.index(measurement.verdict), -measurement.difference), text))
    return [line for _, line in sorted(ranked_lines, key=lambda pair: pair[0])] or harmful_lines


def foremost(lines: Sequence[str], n: int) -> list[str]:
    """Return the first `n` remedies of a finding, those that helped in measurements before all others.

    The lines of a finding with several ids come sickness by sickness: without this, an untested line of the first
    would precede a measured one of the second.
    """
    return sorted(lines, key=lambda line: not ((match := MEASURED.search(line)) and not match["but"]))[:n]
