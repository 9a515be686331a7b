"""Measured remedies: verdicts, figures in words, and the lines and settings that they belong to."""

import pytest

from gxpo.doctor import evidence
from gxpo.doctor.evidence import Measurement, OfTask, format_signed, measured_for_keys, measured_for_line, to_json


def measured(low, high, p=0.01, tasks=None, label="ngrpo", keys=None, sickness="all_wrong"):
    middle = (low + high) / 2
    tasks = tasks or ((low, high),)
    of_task = tuple(OfTask(f"task{i}", (a + b) / 2, a, b, 20) for i, (a, b) in enumerate(tasks))
    return Measurement(
        sickness, label, "x", keys or {"method": label}, middle, low, high, p, 20, of_task, 0, 0, 20, "c0"
    )


@pytest.mark.parametrize(
    ("low", "high", "p", "tasks", "verdict"),
    [
        (0.1, 0.3, 0.01, None, "helped"),
        (-0.3, -0.1, 0.01, None, "harmed"),
        (0.1, 0.3, 0.2, None, "undecided"),  # not after Holm's correction
        (-0.1, 0.3, 0.01, None, "undecided"),
        (0.1, 0.3, 0.01, ((0.3, 0.5), (-0.4, -0.1)), "mixed"),
        (0.1, 0.3, 0.01, ((0.3, 0.5), (-0.4, 0.1)), "helped"),
        (-0.3, -0.1, 0.01, ((-0.5, -0.3), (-0.1, 0.2)), "harmed"),
    ],
)
def test_a_verdict_takes_interval_p_and_no_task_that_contradicts(low, high, p, tasks, verdict):
    assert measured(low, high, p, tasks).verdict == verdict


def test_tasks_that_contradict_each_other_are_quoted_one_by_one():
    assert measured(0.1, 0.3, 0.01, ((0.3, 0.5), (-0.4, -0.2))).figures == "+.40 on task0, -.30 on task1, 20 seeds"
    assert measured(0.1, 0.3).figures == "+.20 (95 % +.10 to +.30), 1 task, 20 seeds"
    assert measured(0.1, 0.3, tasks=((0.1, 0.3), (0.2, 0.3))).figures.endswith("2 tasks, 20 seeds")


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "+.50"), (-0.25, "-.25"), (1.25, "+1.25"), (0.004, ".00"), (-0.004, ".00"), (0, ".00")]
)
def test_differences_have_two_decimals_and_no_leading_zero(value, text):
    assert format_signed(value) == text


def test_a_line_is_matched_by_a_text_of_its_change():
    ngrpo = measured(0.1, 0.2)
    line = "gxpo.adapters.trl.GRPOTrainer(..., method='ngrpo') learns from groups that are all wrong"
    assert measured_for_line("all_wrong", line, [ngrpo]) is ngrpo
    assert measured_for_line("all_wrong", "take easier tasks", [ngrpo]) is None
    assert measured_for_line("all_right", line, [ngrpo]) is None


def test_settings_are_compared_as_texts_and_tis_is_grpo_with_it():
    tis = measured(0.1, 0.2, label="tis", keys={"method": "tis", "optim.lr": 1e-5, "flag": True}, sickness="s")
    settings_given = {"method": "grpo+tis", "optim.lr": "1e-05", "flag": "true"}
    assert measured_for_keys(["r", "s"], settings_given, [tis]) is tis
    assert measured_for_keys(["r"], settings_given, [tis]) is None
    assert measured_for_keys(["s"], settings_given | {"flag": "false"}, [tis]) is None
    plain = measured(0.1, 0.2, keys={"optim.lr": 1e-5}, sickness="s")
    assert measured_for_keys(["s"], {"method": "grpo", "optim.lr": "1e-05"}, [plain]) is plain


def test_measurements_are_written_and_read_back(tmp_path):
    rows = [measured(0.1, 0.3), measured(-0.2, 0.2, 0.9, ((-0.2, 0.2), (0.0, 0.1)))]
    (tmp_path / "e.json").write_text(to_json(rows))
    assert evidence.read(tmp_path / "e.json") == tuple(rows)
    assert evidence.read(tmp_path / "none.json") == ()
