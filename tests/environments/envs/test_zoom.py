from __future__ import annotations

import json

import numpy as np
import pytest

from gxpo.base.errors import ConfigError
from gxpo_worlds.zoom import Hidden, Zoom, clip, picture

# 7 in 3 x 5
SEVEN = ["###", "..#", "..#", ".#.", ".#."]


def at(digit: int, x: int, y: int, **options) -> Zoom:
    """An episode in which the plate is there."""
    env = Zoom(style="bare", **options)
    env.reset(0)
    env._level = Hidden(digit, x, y)
    return env


def bright(pixels) -> np.ndarray:
    """[H, W] whether a pixel is of the digit, which is yellow."""
    return (pixels[:, :, 0] > 190) & (pixels[:, :, 2] < 190)


def shown(step) -> np.ndarray:
    return step.observation[0]["content"][0]["image"]


def test_the_digit_is_ten_pixels_high_and_stands_on_its_plate():
    full_picture = picture(Hidden(7, 100, 40))
    assert full_picture.shape == (256, 256, 3)
    rows, columns = np.nonzero(bright(full_picture))
    # 6 x 10 in the middle of 16 x 16: 5 to the right and 3 down of its corner
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == (105, 110, 43, 52)
    font = bright(full_picture)[43:53:2, 105:111:2]
    assert ["".join("#" if x else "." for x in row) for row in font] == SEVEN


def test_a_crop_is_the_same_picture_nearer():
    env = at(7, 100, 40)
    near = bright(shown(env.step("crop(100,40,16,16)")))
    assert near.shape == (32, 32)
    # twice as large: a pixel of the font is 4 x 4; the digit begins at (10, 6)
    font = near[6:26:4, 10:22:4]
    assert ["".join("#" if x else "." for x in row) for row in font] == SEVEN and near.sum() == 16 * 7
    assert env._state == "100,40,16,16"


def test_the_plate_is_seen_from_afar_and_the_digit_is_not():
    for x, y in ((0, 0), (97, 203), (240, 240)):
        pixels = shown(at(8, x, y)._time_step(None))
        dark = pixels.astype(int)[:, :, 1] < 90
        plate_pixels = np.argwhere(dark | bright(pixels))
        assert len(plate_pixels) == 4  # 2 x 2 of the pixels at 4, 12, 20, ...
        assert abs(plate_pixels.mean(axis=0) * 8 + 4 - (y + 8, x + 8)).max() <= 4.5


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((0, 0, 256, 256), (0, 0, 256, 256)),
        ((10, 20, 30, 40), (10, 20, 30, 40)),
        ((-10, 20, 30, 40), (0, 20, 20, 40)),  # from -10 to 20
        ((250, 0, 100, 8), (248, 0, 8, 8)),
        ((100, 100, 0, -5), (100, 100, 8, 8)),
        ((-900, -900, 10, 10), (0, 0, 8, 8)),
        ((999999, 5, 999999, 999999), (248, 5, 8, 251)),
    ],
)
def test_crops_are_clipped(box, expected):
    assert clip(box) == expected
    text = at(1, 0, 0).step(f"crop({','.join(map(str, box))})")
    state = ",".join(map(str, expected))
    assert text.state == state and text.action_error == ("illegal" if expected == (0, 0, 256, 256) else None)


def test_crops_are_in_pixels_of_the_whole_picture():
    env, straight = at(3, 50, 60), at(3, 50, 60)
    env.step("crop(200,200,8,8)")
    assert (shown(env.step("CROP( 48, 56, 20, 20 )")) == shown(straight.step("crop(48,56,20,20)"))).all()


def test_a_digit_ends_it():
    for message, success in (("7", True), ("3", False), ("<action>7</action>", True)):
        step = at(7, 10, 10).step(message)
        assert (step.done, step.success, step.truncated, step.reward) == (True, success, False, None)
        assert step.state.startswith("0,0,256,256=")


NO_ACTIONS = [
    "", "77", "seven", "crop(1,2,3)", "crop(1,2,3,4,5)", "crop(1.5,2,3,4)", "crop(a,b,c,d)", "crop(1,2,3,4", "-7",
    "\u0667", "crop(9999999,0,8,8)", "it is 7",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_ACTIONS)
def test_what_is_no_action(text):
    step = at(7, 10, 10).step(text)
    assert (step.action_error, step.done, step.state) == ("malformed", False, "0,0,256,256")


def test_the_third_turn_is_the_last():
    env = at(7, 10, 10)
    steps = [env.step(a) for a in ("crop(0,0,64,64)", "crop(0,0,32,32)", "crop(0,0,16,16)")]
    assert [s.truncated for s in steps] == [False, False, True] and steps[-1].success is False


def test_the_expert_looks_and_answers():
    env = at(7, 100, 40)
    assert env.expert() == "crop(92,32,32,32)"
    env.step("crop(64,0,64,64)")  # has the plate, and every pixel of the digit
    assert env.expert() == "7"
    env.restore(json.dumps({"seed": 0, "turn": 1, "state": "0,0,128,128"}))
    assert env.expert().startswith("crop(")


def test_what_is_asked():
    env = Zoom()
    assert env.reset(0).observation[0]["content"][1]["text"].endswith("width 256, height 256. Which digit is it?")
    assert Zoom(style="bare").reset(0).observation[0]["content"][1]["text"] == "digit?"
    assert "whole picture" in env.instructions and Zoom(style="bare").instructions == ""
    assert env.answer(4) == env.content(4).split(" ")[0]
    assert len({env.content(seed) for seed in range(200)}) == 200
    assert {env.answer(seed) for seed in range(200)} == set("0123456789")


def test_in_cells_the_plate_is_in_the_middle_of_its_square():
    env = Zoom(style="bare", cells=4, plate=48)
    places, digits, noises = set(), set(), set()
    for seed in range(300):
        level = env._make(seed)
        places.add((level.x, level.y))
        digits.add(level.digit)
        noises.add(level.noise)
    # 16 pixels in the middle of 64: from 24, 88, 152 and 216 on
    assert places == {(x, y) for x in (24, 88, 152, 216) for y in (24, 88, 152, 216)}
    assert digits == set(range(10)) and len(noises) > 290  # pictures of one digit in one place are not the same


def test_a_larger_plate_is_around_the_same_digit():
    small, large = picture(Hidden(7, 88, 152)), picture(Hidden(7, 88, 152, 48))
    rows, columns = np.nonzero((large[:, :, 1] < 90) | bright(large))
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == (72, 119, 136, 183)
    assert np.array_equal(bright(small), bright(large))
    shown_small = large[4::8, 4::8]
    assert ((shown_small[:, :, 1] < 90) | bright(shown_small)).sum() == 36  # 6 x 6 of the 32 x 32 that are shown


@pytest.mark.parametrize(
    "options, message",
    [({"cells": 17}, "from 0 to 16"), ({"cells": True}, "cells"), ({"plate": 8}, "from 16 to 64")],
)
def test_places_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Zoom(**options)


def test_turns_note_the_looks_that_were_taken():
    env = Zoom(style="bare", max_turns=9)
    assert env.reset(0).info == {}
    box = {"x": 0, "y": 200, "w": 10, "h": 56}  # (-10, 200, 20, 100), clipped
    noted = [env.step(message).info["calls"] for message in ("crop(-10,200,20,100)", "crop(0,200,10,56)", "look", "7")]
    assert noted == [[{"name": "crop", "arguments": box}]] * 2 + [[], []]  # the second shows nothing new, and is a look
