"""The registry of sicknesses: ids, causes and needs that exist, and a case for each in the tests of its check."""

import importlib

import pytest

from gxpo.doctor import diagnosis
from gxpo.doctor.series import NAMES
from gxpo.doctor.sickness import SICKNESSES, STAGES, Sickness, finding, sickness

assert diagnosis  # registers the checks
MODULES = (
    "correspondence",
    "credit",
    "evaluation",
    "health",
    "outcome",
    "reward_variance",
    "sampled",
    "scored",
    "update",
)


def test_every_sickness_has_a_case_beside_its_check():
    for module in MODULES:
        cases = set(importlib.import_module(f"tests.doctor.checks.test_{module}").CASES)
        assert cases == {i for i, s in SICKNESSES.items() if s.check.__module__ == f"gxpo.doctor.checks.{module}"}
    assert len(SICKNESSES) == 44


@pytest.mark.parametrize("entry", SICKNESSES.values(), ids=SICKNESSES)
def test_an_entry_names_stages_causes_and_sources_that_exist(entry: Sickness):
    assert 0 <= entry.stage < len(STAGES) == 6
    assert entry.title and entry.statistic
    assert set(entry.follows) <= set(SICKNESSES) - {entry.id}
    of_rollouts = {"rollouts", "references", "messages"}
    assert {n for n in entry.needs if not n.startswith("eval/")} <= {*NAMES, *of_rollouts, "component/judge"}


def test_a_registered_check_is_found_by_its_id(monkeypatch):
    monkeypatch.setattr("gxpo.doctor.sickness.SICKNESSES", entries := {})

    @sickness("tired", 5, "the run is tired", "yawns a step", needs=["entropy"])
    def check(log):
        return finding("tired", "note", "possible", "it yawns")

    assert entries["tired"].needs == ("entropy",) and entries["tired"].follows == ()
    assert entries["tired"].check is check


def test_a_finding_drops_empty_evidence_and_further_examples():
    finding_object = finding(
        ["a", "b"], "note", "likely", "title", "", "one", "", examples=[{"where": str(i)} for i in range(5)]
    )
    assert finding_object.ids == ("a", "b") and finding_object.evidence == ("one",)
    assert [e["where"] for e in finding_object.examples] == ["0", "1", "2"]
    assert finding_object.remedy == () and finding_object.follows_from is None
