"""`remedies`: what to change, in the trainer's own keys."""

from __future__ import annotations

from collections.abc import Sequence

from gxpo.doctor.case import Case
from gxpo.doctor.remedies_any import ANY
from gxpo.doctor.remedies_gxpo import GXPO
from gxpo.doctor.remedies_trl import TRL
from gxpo.doctor.remedies_verl import VERL

UNTESTED = "(untested here)"  # until `gxpo compare` has measured what a remedy does
OURS = "gxpo.adapters.trl"  # unsloth replaces TRL's trainer, and with it ours
UNSLOTH = {k: tuple(line for line in lines if OURS not in line) for k, lines in TRL.items()}
REMEDIES: dict[str, dict[str, tuple[str, ...]]] = {"trl": TRL, "unsloth": UNSLOTH, "verl": VERL, "gxpo": GXPO}


def lines_for(name: str, source: str) -> tuple[str, ...]:
    """Remedies of one sickness in a trainer's keys, or without keys where it has none of its own."""
    return REMEDIES.get(source, {}).get(name) or ANY.get(name, ())


def remedies(ids: Sequence[str], case: Case) -> tuple[str, ...]:
    """Lines for a finding's sicknesses in the keys of the run's trainer."""
    several = len(ids) > 1
    return tuple(
        f"{name}: {line} {UNTESTED}" if several else f"{line} {UNTESTED}"
        for name in ids
        for line in lines_for(name, case.log.source)
    )
