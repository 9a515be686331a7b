"""`RunLog`: columns by name, and conclusions that are drawn once for each log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.doctor.logs import groups, healthy, log, rise, rollouts

from gxpo.doctor import RunLog, Series, diagnose


def test_a_series_that_was_not_recorded_has_no_values():
    run = log(reward=[0.5, np.nan])
    assert "reward" in run and "kl" not in run
    assert run.has("reward") and not run.has("reward", "kl")
    assert run.values("kl").tolist() == [] and run.steps("kl").tolist() == []
    assert run.key("kl") == "kl" and run.quote("kl") == ""
    assert run.largest("kl") == 0.0 and not run.is_zero("kl")
    assert np.isnan(run.mean("kl")) and run.trend("kl") is None


def test_conclusions_of_one_log():
    run = log(**healthy(eval__accuracy=rise(0.2, 0.6, 6), eval__tasks=[200.0] * 6))
    assert run.n_steps == 60 and run.gains and run.evaluation == "eval/accuracy" and run.evaluation_gain == 1.0
    assert run.evaluation_tasks == 200 and not run.is_silent and not run.is_solved
    assert log(zero_signal=1.0).is_silent and log(grad_norm=0.0).is_silent_from_start
    assert log(reward=0.0).n_steps == 60 and RunLog().n_steps == 0


def test_training_rollouts_are_those_that_are_not_held_out():
    rows = groups(4, 2, lambda g, m: {"completion": f"{g}{m}", "score": m, "held_out": g == 3})
    run = log(rows=rollouts(rows))
    assert run.rollouts is not None and len(run.rollouts) == 8
    assert run.training_rollouts is not None and len(run.training_rollouts) == 6
    assert run.facts is not None and len(run.facts.members) == 3


def test_updates_of_a_batch_are_losses_per_reward_in_trl():
    run = log(loss=rise(0, 1, 60), reward=rise(0, 1, 15))
    assert run.updates_per_batch == 4.0
    assert replace(run, config={"epochs": 8}).updates_per_batch == 8
    assert replace(run, source="verl").updates_per_batch is None


def test_a_diagnosis_sees_what_was_added_after_the_last_one():
    run = log(**healthy(reward=0.0, zero_signal=1.0, grad_norm=0.0))
    assert diagnose(run).findings[0].ids[0] == "all_wrong"
    for name, values in healthy().items():
        column = np.broadcast_to(np.asarray(values, dtype=float), 60)
        run.series[name] = Series(np.arange(1.0, 61.0), column, name)
    assert diagnose(run).findings == []


def series(values: list[float], key: str, steps: list[float] | None = None) -> Series:
    return Series(np.array(steps or range(1, len(values) + 1), dtype=float), np.array(values), key)


def test_figures_are_quoted_by_how_many_there_are():
    series_by_name = {
        "kl": series([0.5], "kl", [83]),
        "entropy": series([2.0, 1.0], "entropy", [10, 20]),
        "reward": series([0.25] * 7, "reward"),
        "eval/accuracy": series([0.1, 0.2, 0.3, 0.2, 0.3, 0.5], "eval_acc", [0, 1, 2, 3, 4, 5]),
        "length": series([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10], "len"),
    }
    case = RunLog("trl", ["x"], series_by_name)
    assert case.quote("kl") == "kl = 0.5 at step 83, the only one logged"
    assert case.quote("entropy") == "entropy 2, 1 at steps 10, 20"
    assert case.quote("reward") == "reward = 0.25 in all 7 logged steps"
    assert case.quote("eval/accuracy") == "eval_acc 0.1 at step 0, 0.5 at step 5"
    assert case.quote("length") == "len 1.5 in the first steps, 9 in the last (steps 1 to 10)"
    assert case.quote("grad_norm") == ""


def test_a_lone_component_counts_if_it_is_not_the_total():
    part = rise(0.0, 0.4)
    assert log(reward=part + 0.5, component__correct=part).correctness == "component/correct"
    assert log(reward=part, component__correct=part).correctness is None
