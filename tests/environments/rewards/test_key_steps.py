"""Key steps and their order."""

from __future__ import annotations

import math

import pytest
import torch
from tests.environments.rewards.shapes import shape
from tests.environments.rewards.test_tiered import grown

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.built_in import KeySteps, contained, in_order, valid
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task

AddedComponent = shape("added_component")


def test_a_key_step_counts_in_any_of_its_wordings() -> None:
    steps = [["6/3=2", r"\frac{6}{3}=2"], "5 + 2 = 7", ["never"]]
    assert contained(r"SO \FRAC{6}{3}=2, and 5 + 2 = 7.", steps) == pytest.approx(2 / 3)
    assert contained("nothing", steps) == contained("nothing", []) == 0.0
    assert contained("5+2=7", steps) == 0.0  # spaces count


IMAGE, WHY, END = "### Image Description: a\n", "### Rationales: b\n", "### The final answer is: 2"
ONE, TWO = "### Step 1: c\n", "### Step 2: d\n"


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (IMAGE + WHY + ONE + TWO + END, 1.0),
        (ONE + WHY + TWO + IMAGE + END, 1.0),  # where the background stands is not checked
        (IMAGE + WHY + ONE + END, 1.0),
        (IMAGE + WHY + ONE + END + " " + TWO + "### The final answer is:  ", 1.0),  # ends with the heading
        (IMAGE + WHY + ONE + END + TWO, 0.0),
        (IMAGE + WHY + TWO + ONE + END, 0.0),
        (IMAGE + WHY + ONE + ONE + END, 0.0),
        (IMAGE + ONE + END, 0.0),
        (IMAGE + WHY + ONE.replace("S", "s") + END, 0.0),
        (IMAGE + WHY + ONE + TWO, 0.0),
        ("", 0.0),
    ],
)
def test_headings_have_to_be_there_and_steps_in_order(text: str, right: float) -> None:
    assert valid(text) == right


def test_parts_of_ones_own_have_to_be_in_order() -> None:
    parts = (r"description|background", r"step\s*\d", r"the answer is|<answer>")
    assert in_order("Background: a. Step 1: b. <answer>2</answer>", parts) == 1.0
    assert in_order("Background: a. The answer is 2. Step 1: b", parts) == 0.0
    assert in_order("Background: a. Step 1: b", parts) == in_order("", parts) == 0.0


def test_the_reward_reads_the_tasks_key_steps() -> None:
    forest = Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": t, "task": t, "id": t, "prompt": [1], "turns": [{"action": [2]}]}
            for t in ("a", "b")
        ]
    )
    tasks = [Task("a", "?", info={"key_steps": ["x=1", "y=2"]}), Task("b", "?")]
    found = KeySteps(parts=("one", "two"))(forest, ["one x=1 two", "two one"], tasks)
    assert found["key_steps"].tolist() == [0.5, 0.0] and found["ordered"].tolist() == [1.0, 0.0]
    texts = [IMAGE + "y=2" + WHY + "### Step 1: so X=1\n" + END, IMAGE + WHY + ONE + END]
    found = KeySteps()(forest, texts, tasks)  # y=2 stands outside the steps
    assert found["key_steps"].tolist() == [0.5, 0.0] and found["ordered"].tolist() == [1.0, 1.0]


def shaped(forest: Forest) -> Forest:
    """The forest with the method's outcomes, one shape after the other as the trainer takes them."""
    return gxpo.method("step_grpo_r1vl").shaped(forest)


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
    for wrong in ({"parts": ()}, {"step": "Step"}):
        with pytest.raises(ConfigError, match="has the number of the step as a group"):
            KeySteps(**wrong)  # type: ignore[arg-type]
