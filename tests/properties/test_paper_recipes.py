"""Recipes for papers: their rewards by hand, their settings resolve, and two steps on a stand-in."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.thorough import some

import gxpo
from gxpo.training import config

ROOT = Path(__file__).parents[2]
JUDGE = {"function": "judge.py:ask", "server": None}
STANDINS: dict[str, dict[str, Any]] = {  # settings in the place of the recipe's
    "open_rs": {},
    "wirelessmath": {},
    "qwen3_korean": {"scoring.options": {"match": {"metric": "script_share", "script": "hangul", "pattern": None}}},
    "rebuttal_agent": {},
    "vista": {},
}


def rewards() -> Any:
    spec = importlib.util.spec_from_file_location("recipe_rewards", ROOT / "recipes" / "rewards.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cosine_of_open_rs_by_hand() -> None:
    f = rewards().open_rs
    form = "<think>a</think> <answer>\\boxed{7}</answer>"
    # right: 1 + 2 * 1 at length 0, 1 + 2 * .5 at the limit and beyond; wrong: -2 at 0, -1 at the limit
    assert f(form, "7", []) == pytest.approx(3.0) and f(form, "7", [0] * 3584) == pytest.approx(2.0)
    assert f(form, "7", [0] * 7168) == pytest.approx(2.0) and f("\\boxed{8}", "7", []) == pytest.approx(-2.0)
    assert f("7", "7", [0] * 3584) == pytest.approx(-1.0)
    assert f("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", []) == pytest.approx(2.0)


def test_gain_of_a_tool_and_form_of_a_rebuttal() -> None:
    f, info = rewards().tool_gain, {"right": {"none": 1, "table": 1, "crop": 0}}
    assert [f(f"<tool>{t}</tool>", info) for t in ("table", "crop", "none", "saw")] == [0.0, -1.0, 0.0, -1.0]
    assert f("table", info) == -1.0 and f("<tool>crop</tool>", {"right": {"none": 0, "crop": 1}}) == 1.0
    tags = "<analysis>a</analysis><strategy>b</strategy><response>c</response>"
    assert rewards().rebuttal_form(tags) == 1.0 and rewards().rebuttal_form(tags[:-3]) == 0.0


@pytest.mark.parametrize("name", STANDINS)
def test_recipes_resolve_and_describe_their_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    path = ROOT / "recipes" / f"{name}.yaml"
    lines = path.read_text().splitlines()
    head = " ".join(line for line in lines if line.startswith("#"))
    assert len(lines) <= 40 and max(map(len, lines)) <= 130
    for words in ("Not run here", "stand-in", "# Data: ", "# Settings: ", f"gxpo train recipes/{path.name}"):
        assert words in head
    assert f"`{path.name}`" in (ROOT / "recipes" / "README.md").read_text()
    assert re.search(r"@[0-9a-f]{7}|arXiv \d{4}\.\d{5}", head)
    assert config.resolve(config.read(path)).settings.task


def lines_of(name: str) -> list[dict[str, Any]]:
    """Rows in the recipe's own columns."""
    question = "problem" if name in ("open_rs", "wirelessmath") else "prompt"
    right = {"none": 0, "crop": 1}
    more: dict[str, Any] = {"info": {"right": right}} if name == "vista" else {}
    return [{question: f"{i}+1=", "answer": str(i + 1), **more} for i in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("name", some(list(STANDINS), ["vista"]))
@pytest.mark.filterwarnings("ignore")
def test_two_steps_on_a_stand_in(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink(ROOT / "recipes", tmp_path / "recipes")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines_of(name)))
    (tmp_path / "judge.py").write_text("def ask(messages):\n    return 'Score: %d' % (len(str(messages)) % 11)\n")
    keys = {k: s.value for k, s in config.read(tmp_path / "recipes" / f"{name}.yaml").items()}
    options = dict(keys.get("scoring.options") or {})
    if "judge" in options:
        options["judge"] = {k: v for k, v in options["judge"].items() if k not in ("server", "model")}
        keys["scoring.options"] = {**options, "judge": {**options["judge"], "function": "judge.py:ask"}}
    columns = keys.get("tasks.options") or {}
    keys |= {
        "tasks.options": {**columns, "held_out_fraction": 0.5},
        "tasks.per_step": 2,
        "rollout.group_size": 2,
        "sampling.max_new_tokens": 4,
        "learner.dtype": "float32",
        "learner.device": "cpu",
        "eval.tasks": 2,
        "trainer.steps": 2,
    }
    for key in ("model", "task", "chat.system", "learner.tokens_per_microbatch", "update.minibatches"):
        keys.pop(key, None)
    run = gxpo.train("tiny:cold", "rows.jsonl", out=tmp_path / "run", set=keys)
    assert [row["step"] for row in run.metrics] == [1, 2] and run.metrics[-1]["trajectories"] == 4
