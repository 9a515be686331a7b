"""Methods of papers on models that see, on worlds with pictures: two steps, and what they pay by hand."""

from __future__ import annotations

import pytest
from tests.vision.scripted import two_steps

import gxpo
from gxpo import worlds
from gxpo.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:step 1. the sampler")  # a script has no log-probs

ONE_CLICK = {"style": "bare", "steps": [1], "max_turns": 1, "pool": 2}


def rows_of(run, task):
    """Records of a task in the last step, attempt by attempt."""
    return [r for r in run.samples if r["task"] == task and r["id"].startswith("s2/")]


def moved(run):
    """Two steps that were learnt from."""
    return [r["step"] for r in run.metrics] == [1, 2] and len({r["weights_crc"] for r in run.metrics}) == 2


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


def test_where_a_screen_asks_for_more_than_a_click_there_is_no_distance(tmp_path):
    options = {"style": "bare", "steps": [1, 2], "max_turns": 2}
    with pytest.raises(ConfigError, match="'buttons/[0-9a-f]*' has none: choose options of the world") as caught:
        gxpo.train("tiny-vision:cold", "buttons", "lpo_gui", 2, out=tmp_path / "run", set={"tasks.options": options})
    assert "\n" not in str(caught.value)
