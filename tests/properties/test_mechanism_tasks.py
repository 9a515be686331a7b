"""Tasks and rewards of studies/mechanisms.py."""

import importlib.util
import json
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "studies"
spec = importlib.util.spec_from_file_location("mechanisms", STUDIES / "mechanisms.py")
mechanisms = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mechanisms)


def rows(name):
    return [json.loads(line) for line in (STUDIES / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("angle", "along"), [("0", 1 / 2), ("90", 1 / 3), ("45", 5 / 6 * 2**-0.5)])
def test_reward_along_a_stated_direction(angle, along):
    scores = mechanisms.kinds("123ab-", angle)  # three digits and two letters of six characters
    assert (scores["digits"], scores["letters"]) == (1 / 2, 1 / 3) and scores["along"] == pytest.approx(along)


def test_rewards_of_the_critic_and_of_hints():
    assert [mechanisms.no_digit(text)["correct"] for text in ("abc-", "ab7")] == [1.0, 0.0]
    assert [mechanisms.three(text) for text in ("z.q7", "qq77")] == [1.0, 0.0]


@pytest.mark.parametrize("name", ["directions", "rare"])
def test_held_out_prompts_are_not_trained_on(name):
    assert not {row["prompt"] for row in rows(name)} & {row["prompt"] for row in rows(f"{name}_held_out")}


def test_reference_answers_of_rare_tasks_are_right():
    for row in rows("rare"):
        half = row["solution"][:4]
        assert mechanisms.three(row["solution"]) == 1.0 and "q" in half and "7" in half and "z" not in half
