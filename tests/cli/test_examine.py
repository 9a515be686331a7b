"""Arguments of `gxpo doctor` and `gxpo explain`; their results are tested in tests/doctor and tests/explain."""

import json

from tests import command_line
from tests.explain.rollout_pages import record, write


def test_the_doctor_lists_what_it_can_diagnose():
    code, text, _ = command_line.run(["doctor", "--list"])
    rows = json.loads(command_line.run(["doctor", "--list", "--json"])[1])
    assert code == 0 and len(rows) > 10 and {"id", "stage", "title", "statistic", "needs"} == set(rows[0])
    assert all(row["id"] in text for row in rows)


def test_the_doctor_needs_a_path():
    code, out, err = command_line.run(["doctor"])
    assert (code, out) == (2, "") and "give a PATH" in err and err.count("\n") == 1


def test_an_unreadable_path_is_a_diagnosis_in_json_alone(tmp_path):
    code, out, err = command_line.run(["doctor", tmp_path / "none", "--json"])
    assert code == 2 and json.loads(out)["source"] == "unknown" and err == ""
    code, out, err = command_line.run(["doctor", tmp_path / "none"])
    assert (code, out) == (2, "") and err.count("\n") == 1


def test_explain_of_what_is_no_run(tmp_path):
    code, out, err = command_line.run(["explain", tmp_path / "none"])
    assert (code, out) == (2, "") and err.count("\n") == 1 and not (tmp_path / "explain.html").exists()


def test_explain_takes_the_arms_of_compare(tmp_path):
    path = write(tmp_path / "step-000001.jsonl", [record(i, r) for i, r in enumerate([1.0, 0.0])])
    (tmp_path / "mine.py").write_text("def gap(outcome, group): return outcome - 0.25\n")
    (tmp_path / "plain.yaml").write_text("method: rloo\nmodel: tiny\n")
    arms = f"grpo@trl,dr_grpo:credit.shift=0.25,weight.mismatch=truncated,{tmp_path / 'plain.yaml'}"
    arm = f"my gap=grpo:credit={tmp_path / 'mine.py'}:gap"
    code, out, err = command_line.run(["explain", path, "--methods", arms, "--methods", arm, "--json"])
    assert code == 0, err
    names = ["grpo@trl", "dr_grpo:credit.shift=0.25,weight.mismatch=truncated", "plain", "my gap"]
    assert [m["name"] for m in json.loads(out)["methods"]] == names
    first, second = json.loads(out)["groups"][0]["rollouts"]
    assert first["advantage"]["my gap"]["mean"] == 0.75 and second["advantage"]["plain"]["mean"] == -1.0
    # (1 - 0.5) - 0.25 and (0 - 0.5) - 0.25
    assert [r["advantage"][names[1]]["mean"] for r in (first, second)] == [0.25, -0.75]
    code, _, err = command_line.run(["explain", path, "--methods", "mine.py:gap", "--json"])
    assert code == 2 and "as grpo:credit=mine.py:gap" in err and err.count("\n") == 1
