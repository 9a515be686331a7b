"""Arguments of `gxpo doctor` and `gxpo explain`; their results are tested in tests/doctor and tests/explain."""

import json

from tests import command_line


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
