"""The doctor in the trainer's own loop: it warns once, may end the run, changes no number and breaks nothing."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

import gxpo
from gxpo.doctor.finding import Diagnosis, Finding
from gxpo.training import checkup, config
from gxpo.training.checkup import Checkup, verdict_of
from gxpo.training.metrics import comparable
from gxpo.training.progress import Progress

KEYS = {"tasks.per_step": 2, "sampling.max_new_tokens": 4, "eval.tasks": 2, "trainer.rollouts_every": 1}


def train(out: Path, steps: int, **keys):
    with warnings.catch_warnings(record=True) as catch_warnings:
        warnings.simplefilter("always")
        run = gxpo.train("tiny:cold", "arithmetic", steps=steps, out=out, set={**KEYS, **keys})
    return run, [str(w.message) for w in catch_warnings]


@pytest.fixture
def sick(monkeypatch):
    """Every check finds one critical cause; gives the logs that were looked at."""
    logs = []

    def examine(log):
        logs.append(log)
        actual = Finding(("no_eos",), "critical", "likely", "nothing ends", ("truncated_rate = 1",))
        return Diagnosis("gxpo", log.read, [actual])

    real = checkup.Live
    monkeypatch.setattr(checkup, "Live", lambda *args, **how: real(*args, **how, examine=examine))
    monkeypatch.setattr(checkup, "diagnose", examine)
    return logs


def test_a_cause_is_said_once_and_no_number_changes(tmp_path, sick):
    run, message = train(tmp_path / "on", 3, **{"doctor.every": 1})
    mine = [line for line in message if line.startswith("doctor")]
    assert mine == ["doctor, step 1: nothing ends (likely: no_eos); truncated_rate = 1"]
    assert sick[0].values("reward").tolist() == [run.metrics[0]["reward_mean"]]
    assert sick[0].config["group_size"] == 8 and sick[0].rollouts is not None and len(sick[0].rollouts) == 16
    off, message = train(tmp_path / "off", 3, **{"doctor.every": 0})
    assert not [line for line in message if line.startswith("doctor")]
    assert [comparable(row) for row in run.metrics] == [comparable(row) for row in off.metrics]


def test_doctor_stop_ends_a_sick_run_that_resume_continues(tmp_path, sick):
    run, _ = train(tmp_path / "run", 5, **{"doctor.every": 2, "doctor.stop": True})
    assert run.trainer.step_number == 2 and run.diagnosis is not None and run.diagnosis.sick
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert gxpo.resume(run.path).trainer.step_number == 3  # the cause is still there
    assert sick[-1].steps("reward").tolist() == [1, 2, 3]


def test_the_closing_lines(tmp_path, sick, capsys):
    run, _ = train(tmp_path / "run", 1)
    Progress().close(run)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        "doctor: nothing ends (likely)",
        "  truncated_rate = 1",
        f"  more: gxpo doctor {run.path}",
    ]
    Progress(quiet=True).close(run, as_json=True)
    actual = json.loads(capsys.readouterr().out)
    assert actual["verdict"] == "nothing ends (likely)" and actual["findings"] == ["no_eos"]


def test_what_was_said_already_is_not_said_again(tmp_path):
    resolved = config.load(None, ["model=tiny:cold", "task=arithmetic"])
    doctor = Checkup(tmp_path, resolved, [{"step": 0, "eval_accuracy": 0.0}])
    doctor({"step": 1, "reward_mean": 0.0}, has_warned=True)
    assert doctor.live.warned_ids >= checkup.NOTHING_LEARNED
    assert doctor.live.log().steps("eval/accuracy").tolist() == [0]


def test_a_doctor_that_fails_is_a_warning(tmp_path, monkeypatch):
    def broken(*args):
        raise KeyError("odd")

    monkeypatch.setattr(checkup, "read_json", broken)
    run, message = train(tmp_path / "run", 2, **{"doctor.every": 1})
    assert run.trainer.step_number == 2
    assert [line for line in message if line.startswith("doctor: rollouts")] == [
        "doctor: rollouts can't be read: KeyError: 'odd'"
    ]
    monkeypatch.setattr(checkup, "read", broken)
    with pytest.warns(UserWarning, match="doctor: no verdict: KeyError: 'odd'"):
        assert verdict_of(run.path) is None


def test_each_phase_is_looked_at_by_its_own_settings_and_rollouts(tmp_path, sick):
    phases = [
        {"method": "grpo", "steps": 2, "credit": "batch_whiten", "rollout.group_size": 4},
        {"method": "grpo", "steps": 2, "rollout.group_size": 2},
    ]
    train(tmp_path / "run", None, **{"doctor.every": 1, "phases": phases})
    # some checks are left out, as they would take too long beside such steps; the last is that of the run's end
    first, last = sick[0], sick[-1]
    assert (first.config["group_size"], first.centres_outcomes, first.rollouts.step.tolist()) == (4, False, [1] * 8)
    assert (last.config["group_size"], last.centres_outcomes) == (2, True)
    assert last.training_rollouts.step.tolist() == [3] * 4 + [4] * 4
    in_second = [log for log in sick[:-1] if log.last_step > 2]
    assert in_second and all(log.centres_outcomes and min(log.rollouts.step) == 3 for log in in_second)
