"""The best checkpoint, early stopping: by hand on readings, then in runs, also killed and resumed."""

import json

import pytest
from tests.training.callbacks.parity import REWARD, SMALL

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.parts.definition import SettingValue
from gxpo.training import checkpoint, config, start
from gxpo.training.best import Best, Patience, best_of, rules_of


def reading(step, value, name="eval_accuracy"):
    return {"step": step, name: value}


def test_the_first_of_equal_readings_is_the_best():
    best = Best("trainer.keep_best", "eval_accuracy")
    seen_add_rows = [best.add_row(reading(i, x)) for i, x in enumerate([0.2, 0.5, 0.5, None, float("nan"), 0.4, 0.6])]
    assert seen_add_rows == [True, True, False, False, False, False, True]
    assert (best.value, best.step) == (0.6, 6)
    assert not best.add_row({"step": 7, "reward_mean": 9.0}) and best.n_waited == 0  # a line without it is no reading


def test_less_is_better_where_it_is_said():
    best = Best("trainer.keep_best", "min:eval_length")
    assert [best.add_row(reading(i, x, "eval_length")) for i, x in enumerate([8.0, 9.0, 7.0])] == [True, False, True]


def test_a_line_that_is_read_twice_counts_once():
    patience = Patience("eval_accuracy", 2, 0.1)
    for step, value in [(0, 0.5), (1, 0.55), (1, 0.55)]:  # .05 is less than min_delta
        patience.best.add_row(reading(step, value))
    assert not patience.is_over and patience.best.n_waited == 1
    patience.best.add_row(reading(2, 0.5))
    assert patience.is_over
    assert patience.reason == "eval_accuracy has not improved in 2 readings: best eval_accuracy 0.5 at step 0"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"trainer.keep_best": "clip_fractoin"}, "no metric has that name; did you mean 'clip_fraction'"),
        ({"trainer.keep_best": "reward_NAME"}, "no metric has that name"),
        ({"trainer.stop_early.metric": "min:time_step_s"}, "differs between equal runs"),
    ],
)
def test_what_is_no_metric_is_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        rules_of(config.resolve({k: SettingValue(v, "test") for k, v in keys.items()}).settings.trainer)


def train(path, steps, keys, **more):
    return gxpo.train(reward=REWARD, steps=steps, out=path, set=SMALL | keys, **more)


KEEP = {"trainer.keep_best": "reward_mean", "trainer.keep_checkpoints": 1}


@pytest.mark.slow
def test_the_best_checkpoint_outlives_pruning(tmp_path):
    run = train(tmp_path / "run", 6, KEEP)
    rewards = [row["reward_mean"] for row in run.metrics]
    step = 1 + rewards.index(max(rewards))
    assert run.best == best_of(run.path) == {"metric": "reward_mean", "value": max(rewards), "step": step}
    kept_names = {path.name for path in (run.path / "checkpoints").iterdir()}
    assert kept_names == {f"step-{step:06d}", "step-000006"}
    checkpoint.verify(run.path / "checkpoints" / f"step-{step:06d}")


@pytest.mark.slow
def test_a_killed_and_resumed_run_keeps_and_stops_as_a_calm_one(tmp_path):
    """Patience 3 on the reward: the run ends at the same step, with the same best, wherever it was cut off."""
    keys = KEEP | {"trainer.stop_early.metric": "reward_mean", "trainer.stop_early.patience": 3}
    calm = train(tmp_path / "calm", 30, keys)
    rewards = [row["reward_mean"] for row in calm.metrics]
    best = rewards.index(max(rewards))
    assert calm.step == best + 1 + 3 < 30 and calm.stopped.startswith("reward_mean has not improved in 3 readings")
    assert calm.trainer.is_finished and calm.evaluations[-1]["step"] == calm.step

    def kill(row):
        if row["step"] == best + 2:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path / "cut", 30, keys, watch=kill)
    cut = gxpo.resume(tmp_path / "cut")
    assert (cut.step, cut.best, cut.stopped) == (calm.step, calm.best, calm.stopped)
    assert [row["weights_fingerprint"] for row in cut.metrics] == [row["weights_fingerprint"] for row in calm.metrics]
    ended = gxpo.resume(tmp_path / "cut")  # once more: it has ended
    assert ended.step == calm.step and ended.stopped == calm.stopped
    assert gxpo.resume(tmp_path / "cut", steps=31).step > calm.step  # who asks for more steps gets some


def test_a_run_may_have_been_best_before_it_was_trained(tmp_path):
    run = train(tmp_path / "run", 2, {"trainer.keep_best": "min:eval_tasks"})  # 4 in every evaluation
    assert run.best == {"metric": "eval_tasks", "value": 4.0, "step": 0}
    assert (run.path / "checkpoints" / "step-000000").is_dir()


@pytest.mark.slow
def test_keep_best_of_a_missing_figure_fails_before_a_step(tmp_path):
    with pytest.raises(
        ConfigError, match=r"trainer.keep_best=eval_pass_at_4: the evaluation gives eval_tasks, eval_acc"
    ):
        train(tmp_path / "run", 1, {"trainer.keep_best": "eval_pass_at_4"})
    run = train(tmp_path / "two", 1, {"trainer.keep_best": "eval_pass_at_2", "eval.samples": 2})
    assert run.best["metric"] == "eval_pass_at_2"


def test_a_metric_that_no_line_has_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match=r"trainer.stop_early.metric=reward_colour: step 1 has no such figure"):
        run = train(tmp_path / "run", 2, {"trainer.stop_early.metric": "reward_colour", "trainer.keep_best": "kl"})
    assert run.step == 2 and run.best is None


@pytest.mark.slow
def test_the_command_line_takes_the_best(tmp_path, capsys):
    from safetensors.torch import load_file

    from gxpo.cli.app import app

    run = train(tmp_path / "run", 3, KEEP)
    app(["eval", str(run.path), "--best", "--tasks", "2", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["step"] == run.best["step"]
    app(["export", str(run.path), str(tmp_path / "model"), "--best"], standalone_mode=False)
    best = start.parameters_of(run.path, run.best["step"])
    exported = load_file(tmp_path / "model" / "model.safetensors")
    assert all(bool((best[name] == x).all()) for name, x in exported.items()) and len(exported) > 3
    plain = train(tmp_path / "plain", 1, {})
    with pytest.raises(ConfigError, match=r"has kept no best checkpoint: train with --set trainer.keep_best"):
        app(["eval", str(plain.path), "--best"], standalone_mode=False)
