"""Incidents of others: what their logs show is read, and every one says where it is from and what was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "incidents"
INCIDENTS: list[dict[str, Any]] = json.loads((HERE / "incidents.json").read_text())
KEYS = {"name", "source", "trainer", "logged", "finding", "expected", "told_by_log", "why"}


def test_every_incident_has_a_log_and_every_log_its_incident() -> None:
    names = [i["name"] for i in INCIDENTS]
    assert sorted(names) == sorted(p.name for p in HERE.iterdir() if p.is_dir())
    assert len(names) >= 12


@pytest.mark.parametrize("incident", INCIDENTS, ids=[i["name"] for i in INCIDENTS])
def test_an_incident_says_its_source_and_its_finding(incident: dict[str, Any]) -> None:
    assert set(incident) == KEYS
    assert incident["source"].startswith("https://")
    assert incident["finding"] and incident["logged"] and incident["why"]
    assert any(p.is_file() and p.stat().st_size for p in (HERE / incident["name"]).iterdir())
