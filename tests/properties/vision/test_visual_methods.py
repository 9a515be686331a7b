"""Methods of papers on models that see, on worlds with pictures: two steps, and what they pay by hand."""

from __future__ import annotations

import json

import pytest
from tests.properties.vision.scripted import two_steps

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments import worlds
from gxpo.environments.tasks import make

pytestmark = pytest.mark.filterwarnings("ignore:step 1. the sampler")  # a script has no log-probs

ONE_CLICK = {"style": "bare", "steps": [1], "max_turns": 1, "pool": 2}


def steps_of(run):
    """Records of each step, with `trainer.rollouts_every: 1`."""
    files = sorted((run.path / "rollouts").glob("*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def rows_of(run, task):
    """Records of a task in the last step, attempt by attempt."""
    return [r for r in run.samples if r["task"] == task]


def moved(run):
    """Two steps that were learnt from."""
    return [r["step"] for r in run.metrics] == [1, 2] and len({r["weights_fingerprint"] for r in run.metrics}) == 2


@pytest.mark.slow
def test_lpo_pays_a_click_by_its_distance_from_the_target(tmp_path, monkeypatch):
    targets = {t.id: t.answer for t in worlds.make("buttons", seed=0, options=ONE_CLICK).source.pool_tasks}

    def say(key):
        x, y = map(int, targets[key.task].removeprefix("click(").removesuffix(")").split(","))
        return [f"click({x},{y})", f"click({x + 3},{y + 4})", f"click({x},{y + 30})", "type(7)"][key.attempt]

    run = two_steps("lpo_gui", "buttons", say, tmp_path / "run", monkeypatch, **{"tasks.options": ONE_CLICK})
    for task in targets:
        # 1 - 0/50, 1 - 5/50, 1 - 30/50; another kind of action is a point that can't be read
        assert [r["reward"] for r in rows_of(run, task)] == pytest.approx([1.0, 0.9, 0.4, 0.0])
        assert [r["success"] for r in rows_of(run, task)] == [True, True, False, False]
        # mean .575, std with one degree of freedom sqrt(.6475 / 3) = .464579
        advantages = [r["info"]["advantage"] for r in rows_of(run, task)]
        assert advantages == pytest.approx([0.91481, 0.69956, -0.37669, -1.23768], abs=1e-4)
    assert moved(run)


def test_screens_with_more_than_a_click_have_no_distance(tmp_path):
    options = {"style": "bare", "steps": [1, 2], "max_turns": 2}
    with pytest.raises(ConfigError, match=r"'buttons/[0-9a-f]*' has none: choose options of the world") as caught:
        gxpo.train("tiny-vision:cold", "buttons", "lpo_gui", 2, out=tmp_path / "run", set={"tasks.options": options})
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_craft_gui_lengthens_instructions_once_mastered(tmp_path, monkeypatch):
    options = {"style": "bare", "steps": [1, 2], "pool": 12}
    tasks = {t.id: t for t in worlds.make("buttons", seed=0, options=options).source.pool_tasks}
    assert {t.info["level"] for t in tasks.values()} == {1, 2}
    # of four attempts at one click three are right; the level after it is never done
    say = lambda key: tasks[key.task].answer or "0" if key.attempt < 3 else "click(63,0)"  # noqa: E731
    keys = {"tasks.options": options, "env.max_turns": 2, "env.context": "window", "trainer.rollouts_every": 1}
    keys |= {"tasks.sampler.window": 1, "tasks.sampler.mastery_rate": 0.7, "tasks.sampler.uniform_share": 0.0}
    run = two_steps("craft_gui", "buttons", say, tmp_path / "run", monkeypatch, **keys)
    levels = [{tasks[r["task"]].info["level"] for r in step} for step in steps_of(run)]
    assert levels == [{1}, {2}] and run.metrics[0]["success_rate"] == 0.75
    # all draws are of one level: exp(entropy) of (1, 0) and of (0, 1)
    assert [r["tasks_effective"] for r in run.metrics] == [1.0, 1.0]


@pytest.mark.slow
def test_hdpo_counts_the_looks_that_zoom_notes(tmp_path, monkeypatch):
    options = {"style": "bare", "pool": 2}
    digits = {t.id: t.answer for t in worlds.make("zoom", seed=0, options=options).source.pool_tasks}
    looks = ["crop(0,0,64,64)", "crop(9,9,64,64)"]

    def say(key):
        right = digits[key.task]
        return [[right], [*looks[:1], right], [*looks, right], [str((int(right) + 1) % 10)]][key.attempt][key.turn]

    keys = {"tasks.options": options, "env.context": "window"}
    run = two_steps("hdpo", "zoom", say, tmp_path / "run", monkeypatch, **keys)
    for task in digits:
        rows = rows_of(run, task)
        assert [sum(len(turn["info"]["calls"]) for turn in r["turns"]) for r in rows] == [0, 1, 2, 0]
        assert [r["rewards"]["tool_calls"] for r in rows] == pytest.approx([1, 1 / 2, 1 / 3, 0])
        # outcome 1 1 1 0: z .5 .5 .5 -1.5; economy of the right ones, mean 11/18, std .346944: z 1.120897 -.320256
        # -.800641; A = z + .15 z
        expected = [0.668135, 0.451962, 0.379904, -1.5]
        assert [r["info"]["advantage"] for r in rows] == pytest.approx(expected, abs=1e-4)
    assert moved(run)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["shapes", "charts"])
def test_vas_draws_pictures_by_the_variance_of_verdicts(task, tmp_path, monkeypatch):
    pool = {t.id: t for t in make(task, seed=0, options={"pool": 4}).pool_tasks}
    first = next(iter(pool))
    # two of four answers to the first picture are right, all four to any other
    say = lambda key: pool[key.task].answer if key.task != first or key.attempt < 2 else "?"  # noqa: E731
    keys = {"tasks.options": {"pool": 4}, "tasks.per_step": 4}
    run = two_steps("vas", task, say, tmp_path / "run", monkeypatch, **keys)
    assert moved(run) and {r["task"] for r in run.samples} == set(pool) and run.metrics[-1]["tasks_coverage"] == 1.0
    # of the newest visit: p = 1/2 and 1, p (1 - p) = 1/4 and 0, stretched 1 and 0: P(first) = 1/2 1/4 + 1/2 1
    chances = dict(zip(run.trainer.source.arms.names, run.trainer.source.chances().tolist(), strict=True))
    assert chances[first] == pytest.approx(0.625, abs=1e-9)


def test_mobile_r1_pays_single_actions_and_then_episodes(tmp_path, monkeypatch):
    options = {"style": "bare", "steps": [1], "buttons": 2, "pool": 2}
    tasks = worlds.make("buttons", seed=0, options=options).source.pool_tasks
    centre = {t.id: tuple(map(int, t.answer[6:-1].split(","))) for t in tasks}

    def say(key):
        x, y = centre[key.task]
        # within the 16 x 16 pixels around the middle; beside all buttons; no action; OK
        return [f"click({x - 8},{y + 7})", "click(63,0)", "press it", "click(52,54)"][key.attempt]

    keys = {"tasks.options": options, "env.max_turns": 2, "env.context": "window", "trainer.rollouts_every": 1}
    run = two_steps("mobile_r1", "buttons", say, tmp_path / "run", monkeypatch, **keys)
    actions, episodes = steps_of(run)
    # [it leads where the expert's click leads] + [it could be read]
    assert [r["reward"] for r in actions] == [2.0, 1.0, 0.0, 1.0] * 2 and {len(r["turns"]) for r in actions} == {1}
    assert [r["reward"] for r in episodes] == [1.0, 0.0, 0.0, 0.0] * 2
    assert [len(r["turns"]) for r in episodes] == [1, 2, 2, 1] * 2  # a click on OK ends an episode, others go on
    assert moved(run) and [r["phase"] for r in run.metrics] == [1, 2]


@pytest.mark.slow
def test_uav_vl_r1_asks_for_attributes_then_objects_then_space(tmp_path, monkeypatch):
    say = lambda key: ["red", "1", "yes", "?"][key.attempt]  # noqa: E731
    keys = {"trainer.rollouts_every": 1, "trainer.steps": 3}
    run = two_steps("uav_vl_r1", "shapes", say, tmp_path / "run", monkeypatch, **keys)
    asked_tasks = [{r["task"].split("/")[1] for r in step} for step in steps_of(run)]
    assert asked_tasks[0] == {"colour"} and asked_tasks[1] <= {"count", "same"} and asked_tasks[2] <= {"row", "column"}
    for r in steps_of(run)[0]:  # a wrong colour is well-formed, and nothing else is
        right, colour = r["turns"][0]["action_text"] == r["info"]["answer"], r["turns"][0]["action_text"] == "red"
        assert r["reward"] == float(right) + float(colour)
    assert run.gain is None  # no held-out question is asked in the first phase and the last


@pytest.mark.slow
def test_videochat_r1_pays_each_kind_of_answer_by_its_metric(tmp_path, monkeypatch):
    options = {"questions": ["colour", "box"], "pool": 6, "noise": 0}
    pool = {t.id: t for t in make("shapes", seed=0, options=options).pool_tasks}
    assert {t.info["kind"] for t in pool.values()} == {"choice", "box"}

    def say(key):
        task = pool[key.task]
        if task.info["kind"] == "choice":
            return [task.answer, "purple", "box", "red"][key.attempt]
        x, y, right, low = json.loads(task.answer)
        return [task.answer, f"[{x},{y},{right + 8},{low}]", f"[{x},{y}]", "red"][key.attempt]

    keys = {"tasks.options": options, "tasks.per_step": 6, "scoring.options.match.pattern": None}
    keys |= {"scoring.weights": {"match": 1.0, "format": 1.0, "correct": 0.0}, "reward.add.form.coef": 0.0}
    run = two_steps("videochat_r1", "shapes", say, tmp_path / "run", monkeypatch, **keys)
    for name, task in pool.items():
        actual = [r["reward"] for r in rows_of(run, name)]
        if task.info["kind"] == "box":
            # right and one of the 16 boxes: 2; twice as wide, IoU 64/128 and none of them; no box; none
            assert actual == pytest.approx([2.0, 0.5, 0.0, 0.0])
        else:
            assert actual == [2.0, 0.0, 0.0, 2.0 if task.answer == "red" else 1.0]
    assert moved(run)


@pytest.mark.slow
def test_mixed_r1_knows_the_kinds_of_charts(tmp_path, monkeypatch):
    pool = {t.id: t for t in make("charts", seed=0, options={"pool": 6}).pool_tasks}
    say = lambda key: pool[key.task].answer if key.attempt else "?"  # noqa: E731
    keys = {"tasks.options": {"pool": 6}, "tasks.per_step": 6, "scoring.options.match.pattern": None}
    run = two_steps("mixed_r1", "charts", say, tmp_path / "run", monkeypatch, **keys)
    assert {t.info["kind"] for t in pool.values()} == {"choice", "number"}
    assert [r["reward"] for r in run.samples] == [0.0, 1.0, 1.0, 1.0] * 6 and moved(run)
