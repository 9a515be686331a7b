"""Calls of functions in users' files: what went in, what was assigned, what came out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.explain.rollout_pages import ParsedReply, forest_of, numbers, record, write

from gxpo.explain import rollout_page
from gxpo.explain.outlook import look
from gxpo.explain.rollout_source import read
from gxpo.methods.compose import method

MINE = '''
import torch
from gxpo import grouped


def centred(outcome, group, *, share=0.5):
    """A = outcome - share * mean of the group."""
    mean_R = grouped.mean(outcome, group)
    return outcome - share * mean_R


def plain(forest, signals, step):
    gap_R = forest.outcome - 1
    return forest.to_path(gap_R, "R")


def damp(forest, credit, signals, step):
    size_P = credit.abs()
    return 1 / (1 + size_P)


def soft(x, *, width=0.5):
    """l = -A width tanh((rho - 1) / width)."""
    return -x.credit * width * torch.tanh((x.ratio - 1) / width)
'''


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def values(call):
    return {(v.role, v.name): v.text if v.values is None else (v.axis, v.values.tolist()) for v in call.variables}


def test_a_function_of_columns_shows_its_steps(mine):
    outlook = look(method("grpo", {"credit": f"{mine}:centred"}), forest_of([1.0, 0.0], tokens=2))
    (call,) = outlook.summands[0].calls
    assert call.title == "centred (mine.py line 6)"
    assert values(call) == {
        ("in", "outcome"): ("R", [1.0, 0.0]),
        ("in", "group"): ("R", [0.0, 0.0]),
        ("in", "share"): "0.5",
        ("then", "mean_R"): ("R", [0.5, 0.5]),
        ("out", "result"): ("R", [0.75, -0.25]),  # 1 - 0.5 * 0.5 and 0 - 0.5 * 0.5
    }
    assert outlook.credit is not None and outlook.credit.tolist() == [0.75, 0.75, -0.25, -0.25]


def test_a_function_of_the_forest_and_a_weight(mine):
    keys = {"credit": f"{mine}:plain", "weight.mine": f"{mine}:damp"}
    outlook = look(method("grpo", keys), forest_of([1.0, 3.0], tokens=2))
    (call,) = outlook.summands[0].calls
    assert values(call)["then", "gap_R"] == ("R", [0.0, 2.0])
    assert values(call)["out", "result"] == ("P", [0.0, 0.0, 2.0, 2.0])
    (call,) = outlook.calls["weight"]
    assert values(call)["in", "credit"] == ("P", [0.0, 0.0, 2.0, 2.0])
    assert values(call)["out", "result"] == ("P", [1.0, 1.0, 1 / 3, 1 / 3])


def test_parts_of_gxpo_are_not_traced():
    outlook = look("dr_grpo+tis", forest_of([1.0, 0.0]))
    assert outlook.summands[0].calls == [] and outlook.calls == {"weight": [], "loss": []}


def test_the_page_holds_the_calls_on_their_axes(tmp_path, mine):
    write(tmp_path / "rollouts" / "step-000001.jsonl", [record(0, 1.0), record(1, None), record(2, 0.0)])
    source = read(tmp_path / "rollouts" / "step-000001.jsonl")
    looks = rollout_page.looks_of(source, {"mine": {"method": "grpo", "credit": f"{mine}:centred"}})
    page = ParsedReply(rollout_page.page_text(source, looks))
    (call,) = page.data["methods"][0]["summands"][0]["calls"]
    rows = {row["name"]: row for row in call["rows"]}
    assert rows["share"]["text"] == "0.5" and rows["result"]["value"]["a"] == "R"
    # the unscored rollout takes part in nothing
    result = numbers(rows["result"]["value"], 3)
    assert [result[0], result[2]] == [0.75, -0.25] and result[1] != result[1]


def test_a_surrogate_is_shown_at_the_tokens_that_it_is_given(mine):
    forest = forest_of([1.0, 0.0], [1.0, 1.0], tokens=1)  # of the second group every advantage is 0
    outlook = look(method("dr_grpo", {"objective.surrogate": f"{mine}:soft"}), forest)
    (call,) = outlook.calls["loss"]
    output = values(call)
    axis, credit = output["in", "x.credit"]
    assert axis == "P" and credit[:2] == [0.5, -0.5] and all(x != x for x in credit[2:])
    assert output["in", "x.ratio"][1][:2] == [1.0, 1.0] and output["in", "width"] == "0.5"
    assert ("in", "x.entropy") not in output
