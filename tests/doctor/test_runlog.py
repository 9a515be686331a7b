"""`RunLog`: columns by name, and conclusions that are drawn once for each log."""

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


def test_updates_of_a_batch_are_counted_where_trl_logs_a_reward_for_several_losses():
    run = log(loss=rise(0, 1, 60), reward=rise(0, 1, 15))
    assert run.updates_per_batch == 4.0
    assert replace(run, config={"epochs": 8}).updates_per_batch == 8
    assert replace(run, source="verl").updates_per_batch is None


def test_a_diagnosis_sees_what_was_added_after_the_last_one():
    run = log(**healthy(reward=0.0, zero_signal=1.0, grad_norm=0.0))
    assert diagnose(run).findings[0].ids[0] == "all_wrong"
    for name, values in healthy().items():
        held = np.broadcast_to(np.asarray(values, dtype=float), 60)
        run.series[name] = Series(np.arange(1.0, 61.0), held, name)
    assert diagnose(run).findings == []
