"""Pictures of a class: which are asked for, what is seen of them, and what they are worth."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from gxpo.base.errors import TaskError
from gxpo.base.media import PICTURE, PICTURES, label
from gxpo.environments.rewards.scoring import RewardSet
from gxpo.environments.tasks.pictures import Pictures, brightness, compressibility
from gxpo.forest import records
from gxpo.forest.forest import Forest
from gxpo.training.picture_strips import strips

BLACK, GREY, NOISE = (
    np.zeros((8, 8, 3), dtype=np.uint8),
    np.full((8, 8, 3), 102, dtype=np.uint8),
    np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8),
)


def made(*pixels, reward=None):
    """A forest of one sample a picture, of class 3; None: the sample has none."""
    refs = [None if x is None else PICTURES.put(x) for x in pixels]
    rows = [
        {
            "schema": "gxpo.rollouts/1", "task": "pictures/3", "group": "s1/pictures/3", "id": str(i), "prompt": [3],
            "reward": reward, "turns": [{"action": [-1], "action_text": "" if ref is None else label(ref)}],
            "info": {} if ref is None else {PICTURE: ref},
        }
        for i, ref in enumerate(refs)
    ]  # fmt: skip
    return Forest.from_records(rows)


def test_brightness_and_compressibility():
    assert brightness(GREY) == pytest.approx(0.4) and brightness(BLACK) == 0.0
    assert compressibility(NOISE) < compressibility(GREY) < 0  # detail costs bytes


def test_all_classes_are_drawn_before_one_comes_again():
    source = Pictures(classes=[2, 5, 7])
    assert sorted(t.info["class"] for t in source.draw(3, 1)) == [2, 5, 7]
    assert [t.prompt for t in source.draw(6, 2)] == [t.prompt for t in source.draw(7, 2)][:6]
    assert [t.id for t in source.held_out(9)] == ["pictures/2", "pictures/5", "pictures/7"]
    with pytest.raises(TaskError, match="name at least one"):
        Pictures(classes=0)
    with pytest.raises(TaskError, match="success reads 'beauty'; it is brightness or compressibility"):
        Pictures(success={"beauty": 1})


def test_pictures_are_rated_and_a_sample_without_one_is_not():
    source = Pictures(success={"brightness": 0.3})
    columns = source.rate(made(GREY, None, BLACK), [""] * 3, source.draw(3, 1))
    assert columns["brightness"].nan_to_num(-1.0).tolist() == pytest.approx([0.4, -1.0, 0.0])
    assert columns["correct"].nan_to_num(-1.0).tolist() == [1.0, -1.0, 0.0]
    with pytest.raises(TaskError, match="these rollouts have none: use model diffusers:DIRECTORY"):
        source.rate(made(None), [""], source.draw(1, 1))


def test_a_reward_sees_a_picture_and_costs_one_where_it_raises():
    def red(picture):
        assert isinstance(picture, Image.Image)
        value = picture.getpixel((0, 0))[0]
        if not value:
            raise ValueError("too dark")
        return value / 255

    source = Pictures()
    with pytest.warns(UserWarning, match="can't be sent to a worker"):
        rewards = RewardSet.make(red, source=source)
    with rewards:
        scored = rewards.score(made(GREY, BLACK), ["", ""], source.draw(2, 1))
    assert scored.outcome.nan_to_num(-1.0).tolist() == pytest.approx([0.4, -1.0])
    assert rewards.counts["raised"] == 1


def test_records_store_pictures_once_and_the_report_shows_them(tmp_path):
    records.dump(made(GREY, BLACK, GREY, reward=0.25), tmp_path / "step-000001.jsonl")
    records.dump(made(NOISE, reward=0.75), tmp_path / "step-000009.jsonl")
    assert len(list((tmp_path / "media").iterdir())) == 3
    (table,) = strips(tmp_path)
    assert table.count("<img") == 2 and "mean reward 0.250" in table and "mean reward 0.750" in table
    info = json.loads((tmp_path / "step-000001.jsonl").read_text().splitlines()[0])["info"]
    assert torch.equal(torch.tensor(PICTURES.pixels(info[PICTURE])), torch.tensor(GREY))
    (tmp_path / "empty").mkdir()
    assert strips(tmp_path / "empty") == []
