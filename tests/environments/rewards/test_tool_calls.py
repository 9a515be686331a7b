"""Economy of tool calls: shares by calls and the fewest that suffice, and what is remembered of a task."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from tests.sampling.rollouts.resumed import check_resumed

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError, GxpoError
from gxpo.environments.rewards.tool_calls import ToolCalls, ToolResult, inverse, linear, otc, zero_if_unneeded
from gxpo.forest.forest import Forest


def attempts(*rows: tuple[str, list[str], bool], gold: int | None = 0, task: str = "q") -> Forest:
    """Rows (group, names of tools called, right), each call a turn, then a turn that answers."""

    def turn(names: list[str]) -> dict[str, Any]:
        return {"observation": [2], "action": [3], "info": {"calls": [{"name": n, "arguments": {}} for n in names]}}

    info = {} if gold is None else {"gold_calls": [{}] * gold}
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": group, "task": f"{task}{group}", "id": str(i), "prompt": [1],
             "turns": [*(turn([name]) for name in names), turn([])], "reward": float(right), "success": right,
             "info": info}
            for i, (group, names, right) in enumerate(rows)
        ]
    )  # fmt: skip


SEARCHES = [("a", ["search"], True), ("a", ["search", "search"], True), ("a", [], False)]


# ---------------------------------------------------------------- shares
def test_the_numbers_of_otc():
    # n 2: sin(pi m / (m + 2)); n 0: cos(pi m / (2 m + c))
    m = torch.tensor([0, 1, 2, 3, 4, 8])
    assert otc(m, torch.full((6,), 2)).tolist() == pytest.approx(
        [0, 0.866025, 1, 0.951057, 0.866025, 0.587785], abs=1e-6
    )
    none = torch.zeros(4)
    assert otc(torch.tensor([0, 1, 2, 4]), none).tolist() == pytest.approx([1, 0.5, 0.309017, 0.173648], abs=1e-6)
    assert otc(torch.tensor([1, 2, 0]), none[:3], smooth=4.0).tolist() == pytest.approx(
        [0.866025, 0.707107, 1], abs=1e-6
    )


def test_the_other_shares():
    m, n = torch.tensor([0, 1, 3]), torch.tensor([0, 1, 1])
    assert inverse(m, n).tolist() == [1.0, 0.5, 0.25]
    assert linear(m, n, cost=0.3).tolist() == pytest.approx([1, 1, 0.4])
    assert linear(m, n, cost=1.0).tolist() == [1, 1, 0]
    # SEM: none needed and none made; needed and made; made and not needed; needed and not made
    pairs = zip([(0, 0), (2, 1), (1, 0), (0, 1)], [1, 1, 0, 0], strict=True)
    assert all(float(zero_if_unneeded(torch.tensor([m]), torch.tensor([n]))) == x for (m, n), x in pairs)


# ---------------------------------------------------------------- the part
def test_right_answers_are_paid_by_the_fewest_calls_of_the_group():
    # n 1: sin(pi/2) 1, sin(2 pi / 3) .866025; the wrong answer without a call keeps its 0
    assert ToolCalls(reference="group_min")(attempts(*SEARCHES)).tolist() == pytest.approx([1, 0.866025, 0], abs=1e-6)
    inverse = ToolCalls("inverse", reference="group_min", scales=False)(attempts(*SEARCHES))
    assert inverse.tolist() == pytest.approx([1 / 2, 1 / 3, 0])


def test_groups_of_different_tasks_do_not_meet():
    forest = attempts(("a", ["s"], True), ("b", ["s", "s"], True), ("b", ["s"] * 4, True))
    # b alone: n 2, sin(4 pi / 6)
    assert ToolCalls()(forest).tolist() == pytest.approx([1, 1, math.sin(4 * math.pi / 6)])


def test_the_running_minimum_after_an_attempt_without_calls():
    part = ToolCalls(options={"smooth": 4.0})
    first = attempts(("a", [], True))
    assert part(first).tolist() == [1.0] and part.fewest == {}  # scoring alone remembers nothing
    part.observe(first)
    later = attempts(("a", ["s"], True), ("a", ["s", "s"], True), ("a", [], True))
    assert part(later).tolist() == pytest.approx([0.866025, 0.707107, 1], abs=1e-6)
    again = ToolCalls(options={"smooth": 4.0})
    again.load_state_dict(json.loads(json.dumps(part.state_dict())))
    assert torch.equal(again(later), part(later))
    with pytest.raises(CheckpointError, match="tool_calls"):
        again.load_state_dict({"tasks": {}})


def test_step_is_measured_by_the_minimum_that_it_lowered():
    part = ToolCalls()
    part.observe(attempts(("a", ["s"] * 3, True)))
    assert part(attempts(("a", ["s"], True))).tolist() == [1.0]  # n is 1, not 3: sin(pi / 4) else


def test_what_a_task_says_it_needs():
    forest = attempts(("a", ["s"], True), ("a", [], True), gold=0)
    part = ToolCalls("zero_if_unneeded", reference="task")
    assert part(forest).tolist() == [0, 1]
    assert part(attempts(("a", ["s"], True), ("a", [], True), gold=2)).tolist() == [1, 0]
    with pytest.raises(GxpoError, match="neither needed_calls nor gold_calls"):
        part(attempts(("a", ["s"], True), gold=None))


def test_turns_are_counted_where_there_are_no_calls():
    bare = Forest.from_completions([[1]], [[[2], [3]]], [[1.0, 0.0]])
    assert ToolCalls("inverse", count="turns", scales=False)(bare.replace(success=bare.outcome)).tolist() == [0.5, 0]
    with pytest.raises(GxpoError, match=r"no turn has `calls`.*count=turns"):
        ToolCalls()(bare.replace(success=bare.outcome))
    with pytest.raises(ConfigError, match="there is otc, linear, inverse, zero_if_unneeded"):
        ToolCalls("cosine")


# ---------------------------------------------------------------- the methods
def test_hdpo_compares_calls_among_right_answers_alone():
    # right 1 1 1 0, calls 0 1 3 0: 1/(T+1) = 1 .5 .25 0; among the right (mean .583333, std .381881):
    # 1.091087 -.218217 -.872869; outcome z_g: .5 .5 .5 -1.5; A = z + .15 z_tool
    rows = [("a", [], True), ("a", ["s"], True), ("a", ["s"] * 3, True), ("a", [], False)]
    m = gxpo.method("hdpo")
    forest = attempts(*rows)
    forest = m.shaped(
        forest.with_rewards(forest.outcome, components={"correct": forest.outcome}, success=forest.outcome)
    )
    assert forest.outcome.tolist() == [2, 1.5, 1.25, 0]  # what the metric `reward_mean` is of: calls with weight 1
    credit = m.advantages(forest)
    ends = torch.tensor([int((forest.path_trajectory == r).nonzero()[-1]) for r in range(4)])
    expected = [0.5 + 0.15 * z for z in (1.091087, -0.218217, -0.872869)] + [-1.5]
    assert credit[ends].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_group_with_one_right_answer_has_nothing_from_calls():
    m = gxpo.method("hdpo", {"credit.weights": {"tool_calls": 1.0}})
    assert m.advantages(m.shaped(attempts(("a", ["s"], True), ("a", [], False)))).tolist() == [0.0] * 3
    with pytest.raises(ConfigError, match=r"credit\.conditions names 'other'"):
        gxpo.method(
            "hdpo", {"credit.conditions": {"other": "success"}, "credit.weights": {"tool_calls": 1.0}}
        ).advantages(m.shaped(attempts(*SEARCHES)))
    with pytest.raises(ConfigError, match=r"lists every component of these rollouts by name: leave '\*' out"):
        gxpo.method("hdpo").advantages(m.shaped(attempts(*SEARCHES)))


def test_tool_star_pays_right_answers_of_several_tools():
    # F1 .5 with both tools .6, with one .5; wrong 0; an action that can't be read -1
    rows = [(["search", "python"], True), (["search"] * 2, True), (["search", "python"], False), (["search"], False)]
    forest = attempts(*(("a", names, right) for names, right in rows))
    step_info = list(forest.step_info)
    step_info[-1] = {**step_info[-1], "action_error": "malformed"}
    outcome = torch.tensor([0.5, 0.5, 0, 0], dtype=torch.float64)
    shaped = gxpo.method("tool_star").shaped(forest.replace(outcome=outcome, step_info=step_info))
    assert shaped.outcome.tolist() == pytest.approx([0.6, 0.5, 0, -1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_remembers_over_a_resume(tmp_path):
    keys = {"reward.shape.tool_calls.count": "turns"}
    check_resumed("otc", tmp_path, '"fewest": {"', **keys)


def episode(i: int, turns: list[tuple[str, str | None, float | None]], expected: str | None) -> dict[str, Any]:
    """Turns as (what was seen before it, its error, what the environment paid)."""
    return {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": f"t{i}",
        "prompt": [1],
        "turns": [
            {
                "observation": [2],
                "observation_text": observation,
                "action": [3],
                "reward": paid,
                "info": {} if error is None else {"action_error": error},
            }
            for observation, error, paid in turns
        ],
        "reward": 1.0,
        "info": {} if expected is None else {"expected": expected},
    }


def test_a_tool_that_ran_and_an_answer_in_its_result() -> None:
    """Ran, and "the Grey Sea" holds the answer: .7; failed: 0; failed, though the text holds it: .5; the last: none."""
    turns = [
        ("q", None, None),
        ("Into the Grey Sea", "illegal", None),
        ("no", "malformed", None),
        ("grey sea", None, None),
    ]
    actual = ToolResult()(Forest.from_records([episode(0, turns, "grey sea")]))
    assert actual[:3].tolist() == pytest.approx([0.7, 0.0, 0.5]) and actual.isnan().tolist() == [False] * 3 + [True]


@pytest.mark.parametrize(
    ("seen", "inside"),
    [
        ("56-18=38\n>", True), ("18-56=-38\n>", False), ("a3=138", False), ("b38?", False), ("38.5", False),
        ("It is 38.", True), ("(41-3)=38", True),
    ],
)  # fmt: skip
def test_whole_words_skip_an_answer_inside_a_longer_number(seen: str, inside: bool) -> None:
    forest = Forest.from_records([episode(0, [("q", None, None), (seen, None, None)], "38")])
    assert float(ToolResult(whole_words=True)(forest)[0]) == pytest.approx(0.7 if inside else 0.2)
    assert float(ToolResult()(forest)[0]) == pytest.approx(0.7)
    below = Forest.from_records([episode(0, [("q", None, None), ("18-56=-38\n>", None, None)], "-38")])
    assert float(ToolResult(whole_words=True)(below)[0]) == pytest.approx(0.7)


def test_only_execution_counts_without_an_expected_answer() -> None:
    forest = Forest.from_records(
        [episode(0, [("q", None, None), ("7", None, None)], None), episode(1, [("q", None, None)], "7")]
    )
    actual = ToolResult(execution_reward=0.3)(forest)
    assert float(actual[0]) == 0.3 and actual.isnan().tolist() == [False, True, True]


def test_what_the_environment_paid_for_the_turn_gives_way() -> None:
    forest = Forest.from_records([episode(0, [("q", None, 0.25), ("7", None, 1.0)], "7")])
    total = forest.step_reward + ToolResult()(forest).nan_to_num(0.0)
    assert total.tolist() == pytest.approx([0.7, 1.0])
