"""`remedies`: what to change, in the trainer's own keys, what helped in measurements first."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gxpo.doctor import evidence
from gxpo.doctor.evidence import Measured
from gxpo.doctor.remedies_any import ANY
from gxpo.doctor.remedies_gxpo import GXPO
from gxpo.doctor.remedies_trl import TRL
from gxpo.doctor.remedies_verl import VERL
from gxpo.doctor.runlog import RunLog

UNTESTED = "(untested here)"  # no comparison of ours with enough seeds has measured what it does
OURS = "gxpo.adapters.trl"  # unsloth replaces TRL's trainer, and with it ours
UNSLOTH = {k: tuple(line for line in lines if OURS not in line) for k, lines in TRL.items()}
REMEDIES: dict[str, dict[str, tuple[str, ...]]] = {"trl": TRL, "unsloth": UNSLOTH, "verl": VERL, "gxpo": GXPO}
MEASURED = re.compile(r" \[(?P<where>measured(?: in gxpo)?)(?:, (?P<but>[a-z ]+))?: (?P<figures>[^]]*)\]$")
ORDER = ("helped", "untested", "mixed", "undecided")  # what harmed is not advised


def lines_for(name: str, source: str) -> tuple[str, ...]:
    """Remedies of one sickness in a trainer's keys, or without keys where it has none of its own."""
    return REMEDIES.get(source, {}).get(name) or ANY.get(name, ())


def remedies(ids: Sequence[str], log: RunLog, found: Sequence[Measured] | None = None) -> tuple[str, ...]:
    """Lines for a finding's sicknesses in the keys of the run's trainer, each with what was measured of it.

    What helped comes first, the largest difference before the others; then what is untested; last what changed nothing
    that could be told from 0. What harmed is left out, unless there is nothing else.

    found   measurements; None: those that gxpo comes with
    """
    known = evidence.read() if found is None else found
    several, source = len(ids) > 1, log.source
    composed = str(log.setting("method") or "").split("+") if source == "gxpo" else []
    taken = tuple(f"method={name.split('@')[0]} " for name in composed if name)  # what the run has is no advice
    return tuple(
        f"{name}: {line}" if several else line
        for name in ids
        for line in ranked(name, source, known)
        if not (taken and line.startswith(taken))
    )


def ranked(name: str, source: str, found: Sequence[Measured]) -> list[str]:
    """One sickness's lines, marked; in gxpo's keys also what helped and has no line."""
    where = "measured" if source == "gxpo" else "measured in gxpo"
    marked: list[tuple[tuple[int, float], str]] = []
    harmed: list[str] = []
    lines = lines_for(name, source)
    told = [evidence.of_line(name, line, found) for line in lines]
    more = [m for m in found if m.sickness == name and m.verdict == "helped" and m not in told]
    if source == "gxpo":
        lines, told = (*lines, *(m.remedy for m in more)), [*told, *more]
    for line, m in zip(lines, told, strict=True):
        if m is None:
            marked.append(((ORDER.index("untested"), 0.0), f"{line} {UNTESTED}"))
            continue
        but = "" if m.verdict == "helped" else f", {evidence.IN_WORDS[m.verdict]}"
        said = f"{line} [{where}{but}: {m.said}]"
        if m.verdict == "harmed":
            harmed.append(said)
        else:
            marked.append(((ORDER.index(m.verdict), -m.difference), said))
    return [line for _, line in sorted(marked, key=lambda pair: pair[0])] or harmed


def foremost(lines: Sequence[str], n: int) -> list[str]:
    """The first `n` of a finding's remedies, those that helped in measurements before the others of all its ids."""
    return sorted(lines, key=lambda line: not ((found := MEASURED.search(line)) and not found["but"]))[:n]
