"""scripts/compare_validity.py on simulated runs: what covers, what is found, what it refuses."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("compare_validity", SCRIPTS / "compare_validity.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["compare_validity"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["compare_validity"]
    sys.path.remove(str(SCRIPTS))


def simulated(script: ModuleType, runs: int, tasks: int = 100) -> Any:
    rng = np.random.default_rng(7)
    chance = rng.uniform(0.2, 0.9, tasks) + rng.normal(0, 0.03, (runs, 1))
    return script.Runs((rng.random((runs, tasks)) < chance) * 1.0, rng.normal(0.5, 0.02, runs))


def test_runs_that_differ_in_nothing_and_a_planted_difference(script: ModuleType) -> None:
    actual = script.validity(simulated(script, 24), n_splits=120, seeds=6)
    assert (actual["runs"], actual["tasks"], actual["pairs"]) == (24, 100, 12)
    for name in ("end", "area"):
        assert 0.88 <= actual[name]["coverage"] <= 1.0
        planted = actual["planted"][name]
        assert planted["seeds_predicted"] == 6
        assert 0.6 <= planted["found"] <= 0.95
        assert planted["mean_seen"] == pytest.approx(planted["difference"], rel=0.25)


def test_flips_turn_wrong_verdicts_alone(script: ModuleType) -> None:
    right = np.array([[0.0, 1.0] * 500])
    changed = script.flip_verdicts(right, 0.2, 3)
    assert (changed[right == 1] == 1).all()
    assert changed[right == 0].mean() == pytest.approx(0.2, abs=0.06)


def test_too_few_runs_are_refused(script: ModuleType) -> None:
    with pytest.raises(script.TooFewRuns, match="7 runs can't be split"):
        script.validity(simulated(script, 7), seeds=3)
    with pytest.raises(script.TooFewRuns, match="two sides of 10"):
        script.validity(simulated(script, 12))


def test_rows_are_those_of_the_list(script: ModuleType, tmp_path: Path) -> None:
    listed, store = tmp_path / "list.yaml", tmp_path / "runs.jsonl"
    listed.write_text(
        "settings:\n  sums: {keys: {model: tiny}, budget: {tokens: 100}, measure: eval_accuracy}\n"
        "experiments:\n- {id: same, setting: sums, seeds: 3, base: {label: grpo, keys: {method: grpo}}, arms: []}\n"
    )
    plan = script.read_list(listed)
    name = script.digest(script.keys_of(plan["settings"]["sums"], plan["experiments"][0]["base"]))

    def row(seed: int, trouble: str = "") -> str:
        ends = [{"step": i, "tokens": 100 * i, "updates": i, "seconds": 1.0, "eval_accuracy": 0.5 * i} for i in (0, 1)]
        text = {"digest": name, "seed": seed, "evaluations": ends, "discarded_rollouts": 0, "trouble": trouble}
        return json.dumps({**text, "bits_before": "4:10", "bits": "4:1a"}) + "\n"  # 0 0 0 0, then 1 0 1 0

    store.write_text(row(0) + row(1) + row(2, "killed") + row(7))
    with pytest.raises(script.TooFewRuns, match="2 of the 3 runs of same"):
        script.read_runs(listed, store)
    store.write_text(row(0) + row(1) + row(2))
    actual = script.read_runs(listed, store)
    assert actual.right.tolist() == [[1, 0, 1, 0]] * 3
    assert actual.area.tolist() == [0.25] * 3
