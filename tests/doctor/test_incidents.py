"""Incidents of others: their logs are read, and the first finding is what the thread found, or nothing is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gxpo.doctor import diagnose, read
from gxpo.doctor.sickness import SICKNESSES

HERE = Path(__file__).parent / "incidents"
INCIDENTS: list[dict[str, Any]] = json.loads((HERE / "incidents.json").read_text())
KEYS = {"name", "source", "trainer", "logged", "finding", "expected", "told_by_log", "why"}
NAMES = [i["name"] for i in INCIDENTS]

# What doctor does not say yet: name -> why. An entry that has become untrue fails.
MISSED = {
    "grpo-chess-recovery": "entropy in 23 rows up and down, reward in seven of them",
    "reasoning-7.6": "held-out accuracy without a number of tasks: its fall is within what neighbours differ by",
}
UNREAD: dict[str, str] = {}


def right(incident: dict[str, Any]) -> bool:
    """The first finding is the thread's; silence is right, too, where nothing was wrong or the log cannot tell."""
    diagnosis = diagnose(read(HERE / incident["name"]))
    if not diagnosis.sick:
        return not incident["expected"] or not incident["told_by_log"]
    return bool(set(diagnosis.findings[0].ids) & set(incident["expected"]))


def test_every_incident_has_a_log_and_every_log_its_incident() -> None:
    assert sorted(NAMES) == sorted(p.name for p in HERE.iterdir() if p.is_dir())
    assert len(NAMES) >= 12


@pytest.mark.parametrize("incident", INCIDENTS, ids=NAMES)
def test_an_incident_says_its_source_and_its_finding(incident: dict[str, Any]) -> None:
    assert set(incident) == KEYS
    assert set(incident["expected"]) <= set(SICKNESSES)
    assert incident["source"].startswith("https://")
    assert incident["finding"] and incident["logged"] and incident["why"]
    assert any(p.is_file() and p.stat().st_size for p in (HERE / incident["name"]).iterdir())


@pytest.mark.parametrize("incident", INCIDENTS, ids=NAMES)
def test_the_log_is_read(incident: dict[str, Any]) -> None:
    assert bool(read(HERE / incident["name"]).series) == (incident["name"] not in UNREAD)


@pytest.mark.parametrize("incident", INCIDENTS, ids=NAMES)
def test_the_first_finding_is_what_the_thread_found(incident: dict[str, Any]) -> None:
    assert right(incident) == (incident["name"] not in MISSED)
