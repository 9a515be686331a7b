"""Letters that Pillow draws: what weight, shift and rotation do, and the reward that reads them."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gxpo.environments.tasks.letters import LETTERS, draw_letters, picture

EXAMPLE = Path(__file__).parents[3] / "examples" / "bold_letters.py"


def test_classes_come_in_turn_and_values_are_in_range():
    pixels, classes, weights = draw_letters(23, seed=4)
    assert pixels.shape == (23, 8, 8) and pixels.min() >= 0 and 0.9 < pixels.max() <= 1
    assert classes.tolist() == [*range(10), *range(10), 0, 1, 2]
    assert 0 <= weights.min() < weights.max() < 1
    assert draw_letters(0)[0].shape == (0, 8, 8)


def test_a_seed_names_its_letters():
    assert np.array_equal(draw_letters(5, seed=1)[0], draw_letters(5, seed=1)[0])
    assert not np.array_equal(draw_letters(5, seed=1)[0], draw_letters(5, seed=2)[0])


@pytest.mark.parametrize("letter", LETTERS)
def test_a_heavier_stroke_has_more_ink(letter):
    ink = [picture(letter, weight).sum() for weight in (0, 0.5, 1)]
    assert ink[0] < ink[1] < ink[2]


def test_a_shift_by_a_pixel_moves_the_picture_by_one():
    small = picture("T", size=0.7)
    assert small[:, [0, 7]].max() == 0 and small[[0, 7]].max() == 0  # nothing at the edges that could be lost
    assert np.array_equal(picture("T", size=0.7, shift=(1 / 8, -1 / 8)), np.roll(small, (-1, 1), (0, 1)))


def test_a_rotation_by_a_quarter_and_a_slant_to_the_right():
    upright = picture("L", size=0.7)
    assert np.allclose(picture("L", size=0.7, rotation=np.pi / 2), np.rot90(upright), atol=0.01)
    columns = np.arange(8)
    centres = [(x * columns).sum(1) / x.sum(1) for x in (row[2:6] for row in (upright, picture("L", 0, 0.7, 0, 0.4)))]
    assert centres[1][0] > centres[0][0] and centres[1][-1] < centres[0][-1]


def test_the_reward_reads_letter_and_weight():
    spec = importlib.util.spec_from_file_location("bold_letters", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def image(letter, weight):
        return Image.fromarray((255 * picture(letter, weight)).round().astype(np.uint8))

    rewards = np.array(
        [[module.bold_letter(image(x, weight), str(c)) for weight in (0, 0.4, 1)] for c, x in enumerate(LETTERS)]
    )
    assert rewards[:, 0].max() < 0.25 and rewards[:, 2].min() > 0.5 and rewards[:, 2].mean() > 0.7
    assert (np.diff(rewards, axis=1) > 0).all()
    # another letter than asked for
    assert np.mean([module.bold_letter(image(x, 1), str((c + 1) % 10)) for c, x in enumerate(LETTERS)]) < 0.05
