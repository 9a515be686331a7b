"""Recipes for GPUs: pinned, with their sources, and what of them can be tried without one: resolving, and two steps."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import types
from pathlib import Path

import pytest
from tests.thorough import some
from typer.testing import CliRunner

from gxpo.cli.app import app
from gxpo.compare.files import COLUMNS
from gxpo.training import config

ROOT = Path(__file__).parents[2]
README = (ROOT / "recipes" / "README.md").read_text()
PINNED = dict(re.findall(r"^\| `((?:models|data)/\S+)` \| .*?`([0-9a-f]{40})`", README, re.M))
TOYS = [line for line in README.splitlines() if line.startswith("gxpo train recipes/")]
PLANS = {  # method, rollouts of a step, and their tokens at most
    "qwen3_gsm8k": ("grpo", 64 * 8, 64 * 8 * 512),
    "qwen2.5_math_dr_grpo": ("dr_grpo", 128 * 8, 128 * 8 * 3000),
    "qwen2.5_sokoban_gigpo": ("gigpo", 32 * 8, 32 * 8 * 15 * 512),  # 15 turns
}
RECIPES = [ROOT / "recipes" / f"{name}.yaml" for name in PLANS]  # the others are test_paper_recipes.py's
each = pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
ROWS = {
    "./data/gsm8k-740312a": {"question": "1+1?", "answer": "Two.\n#### 2"},
    "./data/math-7ecc794": {"problem": "$\\sqrt{4}$?", "solution": "\\boxed{2}", "answer": "2", "level": 1},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory to type commands in."""
    monkeypatch.chdir(tmp_path)
    for name in ("recipes", "tests"):
        os.symlink(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def downloaded(here, monkeypatch):
    """The model directories, with files of the right names, and data sets of the right columns."""
    for directory in PINNED:
        if directory.startswith("models/"):
            (here / directory).mkdir(parents=True)
            for name in ("config.json", "model.safetensors", "tokenizer.json"):
                (here / directory / name).write_text("{}")

    def load_dataset(path, name=None, *, split):
        row = ROWS[path]
        key = next(iter(row))
        rows = [{**row, key: f"{split} {i}: {row[key]}"} for i in range(8)]
        return type("Rows", (list,), {"column_names": list(row)})(rows)

    module = types.ModuleType("datasets")
    monkeypatch.setattr(module, "load_dataset", load_dataset, raising=False)
    monkeypatch.setitem(sys.modules, "datasets", module)


def gxpo(*arguments):
    return CliRunner().invoke(app, [*arguments, "--json"])


@each
def test_recipes_are_short_and_give_a_band_with_sources(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 130
    head = " ".join(line for line in lines if line.startswith("#"))
    assert "Not run here: no GPU" in head and f"gxpo train recipes/{path.name}" in head
    low, high = map(float, re.findall(r"Band at the end: (\.\d\d) to (\.\d\d)", head)[0])
    assert 0 < low < high < 1
    assert len(re.findall(r"@[0-9a-f]{7}|arXiv \d{4}\.\d{5}|PR \d+|issue \d+", head)) >= 2
    assert re.search(rf"`{re.escape(path.name)}`.*\| \.{low * 100:.0f} to \.{high * 100:.0f} \|", README)


@each
def test_recipes_leave_credit_weight_and_seed_to_comparisons(path):
    assert not {k.split(".")[0] for k in config.read(path)} & {"credit", "weight", "seed", "out"}


@each
def test_models_and_data_are_pinned_to_commits(path):
    keys = {k: s.value for k, s in config.read(path).items()}
    listed_models = [keys["model"], keys["task"].partition(":")[2]]
    directories = [name.removeprefix("./") for name in listed_models if name]
    assert directories[0].startswith("models/") and len(directories) == (2 if "dataset:" in keys["task"] else 1)
    for directory in directories:
        commit = PINNED[directory]
        assert directory.endswith("-" + commit[:7])
        assert README.count(commit) >= 2  # in the table, and where it is downloaded


@each
def test_dry_run_of_what_was_downloaded(path, downloaded):
    output = gxpo("train", f"recipes/{path.name}", "--dry-run")
    assert output.exit_code == 0, output.output
    output = json.loads(output.stdout)
    method, rollouts, tokens = PLANS[path.stem]
    assert output["keys"]["method"]["value"] == method and float(output["keys"]["optim.lr"]["value"]) == 1e-6
    assert output["plan"]["rollouts_per_step"] == rollouts
    assert output["plan"]["generated_tokens_per_step_at_most"] == tokens
    assert not Path("runs").exists()


def test_without_the_download_the_directory_is_named(here):
    output = gxpo("train", "recipes/qwen2.5_sokoban_gigpo.yaml", "--dry-run")
    assert output.exit_code != 0 and "models/Qwen2.5-1.5B-Instruct-989aa79: no such model directory" in str(
        output.exception or output.output
    )


@pytest.mark.slow
@pytest.mark.parametrize("line", some(TOYS, [TOYS[0]]), ids=lambda line: Path(line.split()[2]).stem)
@pytest.mark.filterwarnings("ignore:nothing is learned")
def test_toy_size_trains_two_steps_as_typed(line, here):
    done = gxpo(*shlex.split(line)[1:])
    assert done.exit_code == 0, done.output
    (run,) = Path("runs").iterdir()
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "trajectories" in row] == [1, 2]


def test_every_recipe_has_a_line_at_toy_size():
    assert [line.split()[2] for line in TOYS] == [f"recipes/{name}.yaml" for name in PLANS]


def test_results_page_explains_every_column_and_links_resolve():
    page = (ROOT / "docs" / "contributing-results.md").read_text()
    first_cells = re.findall(r"^\| (`.*?) \|", page, re.M)
    assert tuple(re.findall(r"`(\w+)`", " ".join(first_cells))) == COLUMNS
    for folder, text in (("docs", page), ("recipes", README)):
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (ROOT / folder / link).exists(), link
