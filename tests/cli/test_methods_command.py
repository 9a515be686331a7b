"""`gxpo methods`: the list by stage, filters, families, search, likeness, recommendations for a symptom."""

import json
import re
from functools import cache

import pytest
from tests.cli.small_run import run

from gxpo.explain import methods
from gxpo.methods import METHODS


@pytest.mark.slow
def test_methods_are_listed_by_stage_and_counted():
    code, text, _ = run("methods", "--all")
    lines = text.splitlines()
    assert code == 0 and f"{len(METHODS)} methods: " in text
    order = ["base", "rollout", "credit", "objective", "reconstruction"]
    headings = {line.split()[0]: i for i, line in enumerate(lines) if line[:2].strip()}  # rows are indented, and wrap
    actual = [headings[name] for name in order]
    assert actual == sorted(actual)
    below = {line.split()[0] for line in lines[actual[-1] + 1 :] if re.match(r" {3}\w", line)}
    made_up = {name for name, d in METHODS.items() if d.evidence == "reconstruction"}
    assert made_up <= below and not (set(METHODS) - made_up) & below


@pytest.mark.slow
def test_methods_can_be_filtered(monkeypatch):
    monkeypatch.setattr(methods, "entries", cache(methods.entries))

    def names(*conditions):
        code, text, _ = run("methods", "--json", *conditions)
        assert code == 0
        return {row["name"] for row in json.loads(text)}

    assert {"gspo", "gmpo"} <= names("--stage", "objective", "--needs", "none", "--cheap")
    assert {"gae", "poise"} & names("--needs", "none") == set()
    assert {"edge_grpo", "poise"} <= names("--needs", "entropy") and "grpo" not in names("--needs", "entropy")
    assert {"poise", "remax"} <= names("--needs", "baseline")  # which they compute themselves
    assert names("--evidence", "paper", "--evidence", "reconstruction") == {
        name for name, d in METHODS.items() if d.evidence in ("paper", "reconstruction")
    }
    assert "gvpo" in names("--zero-variance", "signal") and "grpo" in names("--zero-variance", "zero")
    assert run("methods", "--stage", "update", "--bibtex")[1].startswith("@misc{")
    for wrong, message in (
        (("--stage", "advantage"), "credit"),
        (("--needs", "entropie"), "did you mean 'entropy'"),
        (("--evidence", "rumour"), "secondary"),
        (("--zero-variance", "maybe"), "zero, signal"),
        (("gspo", "--cheap"), "not both"),
    ):
        code, out, err = run("methods", *wrong)
        assert code == 2 and message in err and err.count("\n") == 1 and not out


def test_methods_by_family_by_words_and_by_likeness():
    code, text, _ = run("methods")
    lines = text.splitlines()
    assert code == 0 and len(lines) < 70 and f"{len(METHODS)} methods: " in text
    assert lines[0].split()[:2] == ["baseline_and_scale", "18"]
    counts = [int(line.split()[1]) for line in lines[: lines.index("")]]
    assert sum(counts) == len(METHODS)

    code, text, _ = run("methods", "--family", "masked_observations")
    assert code == 0 and {line.split()[0] for line in text.splitlines() if line[:3] == "   " and line[3] != " "} == {
        "papo",
        "vppo",
    }
    code, text, _ = run("methods", "--search", "Kalman filter", "--json")
    assert [row["name"] for row in json.loads(text)] == ["kpo"]
    code, text, _ = run("methods", "--like", "gspo", "--json")
    alike = [row["name"] for row in json.loads(text)]
    assert "luspo" in alike and "gspo" not in alike
    for wrong, message in (
        (("--family", "flow"), "it is one of baseline_and_scale"),
        (("--like", "gsop"), "did you mean 'gspo'"),
        (("gspo", "--search", "clip"), "not both"),
    ):
        code, out, err = run("methods", *wrong)
        assert code == 2 and message in err and err.count("\n") == 1 and not out


def test_methods_for_a_symptom():
    code, text, _ = run("methods", "--for", "all-wrong")
    assert code == 0 and text.startswith("all-wrong groups: ")
    assert "gxpo train CONFIG --set method=scaf_grpo" in text and "formula read in the authors' code; cost: " in text
    messages = json.loads(run("methods", "--for", "lenght growth", "--json")[1])
    assert messages["symptom"] == "length growth" and len(messages["recommendations"]) <= 8
    assert {"method", "evidence", "cost", "why", "line"} <= set(messages["recommendations"][0])
    cheap = json.loads(run("methods", "--for", "length growth", "--cheap", "--json")[1])["recommendations"]
    assert {r["method"] for r in cheap} < {r["method"] for r in messages["recommendations"]}
    code, _, err = run("methods", "--for", "hair loss")
    assert code == 2 and "no symptom fits 'hair loss'; the nearest are" in err and err.count("\n") == 1
