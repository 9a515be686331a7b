"""Names of tasks that are environments, through the whole of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

import gxpo
from gxpo.base.errors import ConfigError, TaskError
from gxpo.environments import worlds
from gxpo.environments.envs import WORLDS
from gxpo.training import checkpoint

STEPS = f"{Path(__file__).parents[1] / 'sampling' / 'rollouts' / 'countdown_env.py'}:Steps"
SMALL = {"tasks.per_step": 4, "rollout.group_size": 2, "eval.tasks": 4, "sampling.max_new_tokens": 3}


def test_a_prompt_task_has_no_environment():
    with_prompts = worlds.make("arithmetic", seed=0)
    assert with_prompts.envs is None and with_prompts.source.draw(1, 0)[0].prompt


def test_a_name_that_is_almost_a_world_is_told():
    with pytest.raises(TaskError, match="did you mean 'sokoban'"):
        worlds.make("sokobn", seed=0)


def test_tasks_of_a_file_are_the_same_wherever_it_lies(tmp_path, monkeypatch):
    file, _, kind = STEPS.rpartition(":")
    (tmp_path / "there").mkdir()
    (tmp_path / "there/countdown_env.py").write_text(Path(file).read_text())
    monkeypatch.chdir(tmp_path)
    names = [STEPS, f"there/countdown_env.py:{kind}", f"./there/../there/countdown_env.py:{kind}"]
    world_list = [worlds.make(name, seed=0, workers=0, options={"pool": 2}) for name in names]
    first, *others = [(w.source.draw(4, 1), w.source.held_out(3)) for w in world_list]
    assert others == [first, first] and first[0][0].id.startswith(f"countdown_env.py:{kind}/")
    for world in world_list:
        world.close()


def test_checkpoint_without_source_state_keeps_its_task_ids():
    """A checkpoint of 0.1.0 says nothing of its source: its tasks' ids began with the path as it was typed."""
    source = worlds.make(STEPS, seed=0, workers=0, options={"pool": 2}).source
    now = [t.id for t in source.pool_tasks]
    state = source.state_dict()
    source.load_state_dict({})
    assert [t.id for t in source.pool_tasks] == [i.replace("countdown_env.py", STEPS.rpartition(":")[0]) for i in now]
    assert source.state_dict() == {}
    source.load_state_dict(state)
    assert [t.id for t in source.pool_tasks] == now


@pytest.mark.slow
def test_paths_give_no_other_run(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(STEPS).parent)
    absolute_run = gxpo.train("tiny:cold", STEPS, "grpo", 2, out=tmp_path / "there", set=SMALL)
    relative_run = gxpo.train("tiny:cold", Path(STEPS).name, "grpo", 2, out=tmp_path / "here", set=SMALL)
    assert absolute_run.samples == relative_run.samples
    state = {run: checkpoint.newest_state(run.path)["source"] for run in (absolute_run, relative_run)}
    assert state[absolute_run] == {"label": Path(STEPS).name} and state[relative_run] == {}


@pytest.mark.parametrize("name", ["frozenlake", "sokoban", "keydoor", "shop"])
def test_every_bare_world_trains(name, tmp_path):
    keys = SMALL | {"tasks.options": {"style": "bare"}, "env.context": "window", "env.max_turns": 3}
    run = gxpo.train("tiny:cold", name, "gigpo", 1, out=tmp_path / name, set=keys)
    row = run.metrics[0]
    assert row["trajectories"] == 8 and row["env_raised"] == row["env_died"] == row["unscored"] == 0
    assert 1 <= row["turns_mean"] <= 3
    assert set(run.trainer.world.envs.provides) >= {"states", "expert", "legal", "snapshots", "content"}
    assert name in WORLDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("zoom", {}), ("buttons", {"steps": [1, 2], "max_turns": 3}), ("frozenlake", {"pixels": True})],
)
def test_every_world_that_is_seen_trains(name, options, tmp_path):
    keys = SMALL | {"tasks.options": {"style": "bare", **options}, "env.context": "window", "env.max_turns": 3}
    run = gxpo.train("tiny-vision:cold", name, "gigpo", 1, out=tmp_path / name, set=keys)
    row = run.metrics[0]
    assert row["trajectories"] == 8 and row["env_raised"] == row["env_nonsense"] == row["unscored"] == 0
    assert 1 <= row["turns_mean"] <= 3 and name in WORLDS
    turns = [turn for record in run.samples for turn in record["turns"]]
    assert turns and all(turn["observation_text"].startswith("<image ") for turn in turns)
    assert list((tmp_path / name / "rollouts" / "media").glob("*.png"))


@pytest.mark.slow
def test_an_episode_cannot_be_longer_than_the_world_allows(tmp_path):
    run = gxpo.train("tiny:cold", STEPS, "grpo", 1, out=tmp_path / "run", set=SMALL | {"env.max_turns": 99})
    assert run.trainer.episode.max_turns == 20
    assert run.trainer.method.keys["objective.aggregate"] is not None
    assert run.metrics[0]["turns_mean"] <= 20


@pytest.mark.slow
def test_a_pool_is_evaluated_beside_the_held_out_instances(tmp_path):
    keys = SMALL | {"tasks.options": {"pool": 3, "start": 1}}
    run = gxpo.train("tiny:cold", STEPS, "grpo", 2, out=tmp_path / "run", set=keys)
    assert all("eval_pool_accuracy" in row for row in run.evaluations)
    assert {r["task"] for r in run.samples} <= {t.id for t in run.trainer.source.pool_tasks}


def test_an_environment_and_a_reward_of_ones_own_add_up(tmp_path):
    (tmp_path / "mine.py").write_text("def shout(completion):\n    return 1.0\n")
    reward = {"env": 1.0, f"{tmp_path / 'mine.py'}:shout": 0.5}
    keys = SMALL | {"tasks.options": {"start": 1}}
    run = gxpo.train("tiny:cold", STEPS, "grpo", 1, reward, out=tmp_path / "run", set=keys)
    row = run.metrics[0]
    assert row["reward_shout"] == 1.0
    assert row["reward_mean"] == pytest.approx(row["reward_env"] + 0.5)
    assert row["success_rate"] == row["reward_env"]


@pytest.mark.slow
def test_run_counts_crashing_and_hanging_environments_exactly(tmp_path):
    """Of 100 seeds 5 raise and 2 hang at their second action, if they get there: none ends before (start >= 2)."""
    options = {"start": 30, "crash": 5, "hang": 2}
    keys = SMALL | {
        "tasks.options": options,
        "tasks.per_step": 60,
        "env.max_turns": 3,
        "env.workers": 4,
        "env.timeout": 2.0,
        "eval.tasks": 2,
        "trainer.rollouts_every": 1,
        "sampling.max_new_tokens": 2,
    }
    run = gxpo.train("tiny:cold", STEPS, "grpo", 2, out=tmp_path / "run", set=keys)
    for step, row in enumerate(run.metrics, 1):
        fates = [t.info["seed"] % 100 for t in run.trainer.source.draw(60, step) for _ in range(2)]
        raised, hung = sum(f < 5 for f in fates), sum(5 <= f < 7 for f in fates)
        assert (row["env_raised"], row["env_timeout"], row["env_died"]) == (raised, hung, 0)
        assert row["unscored"] == raised + hung and row["trajectories"] == 120
        assert row["turn_limit_rate"] == pytest.approx(1 - (raised + hung) / 120)
        assert row["truncated_rate"] == 0  # nothing was cut: all others met the limit on turns
    assert sum(row["env_raised"] for row in run.metrics) > 0 and sum(row["env_timeout"] for row in run.metrics) > 0


@pytest.mark.slow
def test_shuffled_outcomes_leave_no_step_reward_that_tells(tmp_path):
    keys = SMALL | {"tasks.options": {"start": 1}, "scoring.shuffle": True}
    run = gxpo.train("tiny:cold", STEPS, "gigpo", 1, out=tmp_path / "run", set=keys)
    assert run.metrics[0]["reward_mean"] == run.metrics[0]["reward_env"]
    assert all(turn.get("reward") is None for record in run.samples for turn in record["turns"])


def test_options_of_the_class_are_checked_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="strat"):
        gxpo.train("tiny:cold", STEPS, "grpo", 1, out=tmp_path / "run", set=SMALL | {"tasks.options": {"strat": 3}})
    assert not (tmp_path / "run").exists()
