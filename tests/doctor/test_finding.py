"""`Diagnosis`: verdict, exit code and JSON."""

import json

import pytest

from gxpo.doctor.finding import Diagnosis, Finding, Unchecked


def finding_of(name, severity, follows_from=None, grade="likely"):
    return Finding((name,), severity, grade, f"title of {name}", follows_from=follows_from)


@pytest.mark.parametrize(
    ("read", "findings", "code"),
    [([], [], 2), (["x"], [], 0), (["x"], ["note"], 0), (["x"], ["warning"], 1), (["x"], ["note", "critical"], 1)],
)
def test_the_exit_code_tells_unread_healthy_and_sick(read, findings, code):
    assert Diagnosis("trl", read, [finding_of(f"s{i}", s) for i, s in enumerate(findings)]).exit_code == code


def test_a_verdict_names_first_finding_and_gravest_consequence():
    cause = finding_of("no_eos", "critical")
    mild, grave = finding_of("slow_tail", "warning", "no_eos"), finding_of("kl_runaway", "critical", "no_eos")
    other = finding_of("memorising", "critical")  # of no cause
    assert Diagnosis("trl", ["x"], [cause, mild, grave, other]).verdict == (
        "title of no_eos (likely); in consequence title of kl_runaway"
    )
    assert Diagnosis("trl", ["x"], [cause, mild, other]).verdict == "title of no_eos (likely)"
    wrong = finding_of("all_wrong", "warning", "no_eos")
    assert Diagnosis("trl", ["x"], [cause, wrong]).verdict.endswith("in consequence title of all_wrong")


def test_a_verdict_without_findings_tells_if_steps_are_few():
    assert Diagnosis("trl", []).verdict == "nothing could be read"
    assert Diagnosis("trl", ["x"]).verdict == "no sickness found"
    assert Diagnosis("trl", ["x"], few=1).verdict == "no sickness found in 1 logged step, too few for most checks"
    assert Diagnosis("trl", ["x"], few=4).verdict == "no sickness found in 4 logged steps, too few for most checks"


def test_json_holds_every_field_as_plain_values():
    finding = Finding(("a", "b"), "warning", "proved", "t", ("e",), ({"where": "f:1", "score": 0.5},), ("r",), "c")
    document = Diagnosis("verl", ["f"], [finding], [Unchecked("kl", "none", "beta=1")], "flat", ["odd"], 3).as_json()
    assert json.loads(json.dumps(document)) == {
        "source": "verl",
        "read": ["f"],
        "findings": [
            {
                "ids": ["a", "b"],
                "severity": "warning",
                "grade": "proved",
                "title": "t",
                "evidence": ["e"],
                "examples": [{"where": "f:1", "score": 0.5}],
                "remedy": ["r"],
                "follows_from": "c",
            }
        ],
        "unchecked": [{"id": "kl", "why": "none", "enable": "beta=1"}],
        "progress": "flat",
        "few": 3,
        "notes": ["odd"],
    }
