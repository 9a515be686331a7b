"""Key steps and their order."""

from __future__ import annotations

import math

import pytest
import torch
from tests.rewards.test_tiered import grown

import gxpo
from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Task
from gxpo.rewards.key_steps import AddedComponent, KeySteps, contained, in_order


def test_a_key_step_counts_in_any_of_its_wordings() -> None:
    steps = [["6/3=2", r"\frac{6}{3}=2"], "5 + 2 = 7", ["never"]]
    assert contained(r"So \frac{6}{3} = 2, and 5+2=7.", steps) == pytest.approx(2 / 3)
    assert contained("nothing", steps) == 0.0 and math.isnan(contained("nothing", []))


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("### Background: a\n### Step 1: b\n### Step 2: c\nThe answer is 2", 1.0),
        ("Description: a. Let's think step by step. <answer>2</answer>", 1.0),
        ("Step 1: b. Background: a. The answer is 2", 0.0),
        ("Background: a. The answer is 2. Step 1: b", 0.0),
        ("Background: a. Step 1: b", 0.0),
        ("", 0.0),
    ],
)
def test_parts_have_to_be_there_and_in_order(text: str, valid: float) -> None:
    assert in_order(text) == valid


def test_the_reward_reads_the_tasks_key_steps() -> None:
    forest = Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": t, "task": t, "id": t, "prompt": [1], "turns": [{"action": [2]}]}
            for t in ("a", "b")
        ]
    )
    tasks = [Task("a", "?", info={"key_steps": ["x=1", "y=2"]}), Task("b", "?")]
    found = KeySteps(parts=("one", "two"))(forest, ["one x = 1 two", "two one"], tasks)
    assert float(found["key_steps"][0]) == 0.5 and math.isnan(found["key_steps"][1])
    assert found["ordered"].tolist() == [1.0, 0.0]


def shaped(forest: Forest) -> Forest:
    """The forest with the method's outcomes, one shape after the other as the trainer takes them."""
    for part in gxpo.method("step_grpo_r1vl").shapes.values():
        forest = forest.replace(outcome=part(forest))
    return forest


def with_components(outcome: list[float], steps: list[float], ordered: list[float]) -> Forest:
    forest = grown([("a", x == 1, 0.0) for x in outcome])
    columns = {"key_steps": torch.tensor(steps), "ordered": torch.tensor(ordered)}
    return forest.with_rewards(torch.tensor(outcome, dtype=torch.float64), components=columns)


def test_outcome_key_steps_and_order_add_up() -> None:
    """1 + .1 * 2/4 + 1 = 2.05; 0 + .1 + 0 = .1; an unknown share: unscored."""
    found = shaped(with_components([1, 0, 0], [0.5, 1.0, math.nan], [1, 0, 1])).outcome
    assert found[:2].tolist() == pytest.approx([2.05, 0.1]) and math.isnan(found[2])


def test_with_all_steps_in_order_only_the_answer_tells_attempts_apart() -> None:
    forest = with_components([1, 0, 0], [1, 1, 1], [1, 1, 1])
    found, plain = (gxpo.method(n).advantages(f) for n, f in (("step_grpo_r1vl", shaped(forest)), ("grpo", forest)))
    assert found.tolist() == pytest.approx(plain.tolist(), abs=1e-9)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="added_component reads component 'key_steps'"):
        AddedComponent()(grown([("a", False, 0.5)]))
    with pytest.raises(ConfigError, match="no regular expression"):
        KeySteps(parts=("(",))
