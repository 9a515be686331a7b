"""The example that mends repositories learns: judged by hidden tests, on functions that no training repository has."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from tests.command_line import run

ROOT = Path(__file__).parents[3]
RIGHT = {
    "x plus {}": "x + {}",
    "x minus {}": "x - {}",
    "x times {}": "x * {}",
    "{} times x, plus 1": "{} * x + 1",
    "x, at most {}": "min(x, {})",
    "x, at least {}": "max(x, {})",
    "whether x is above {}": "x > {}",
    "the first {} of s": "s[:{}]",
    "the last {} of s": "s[-{}:]",
    "s, {} times": "s * {}",
}
LINE_OF_ISSUE = {
    f"f does not return {issue.format(k)}.": f"    return {right.format(k)}"
    for issue, right in RIGHT.items()
    for k in range(2, 10)
}


@pytest.mark.thorough
def test_a_policy_learns_to_mend_functions_that_it_never_saw(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder = tmp_path / "run"
    code, _, error = run(["train", "examples/repository.yaml", "--out", folder])
    assert code == 0, error
    _check_run(folder)


def _check_run(folder):
    def records(path):
        return [json.loads(line) for line in path.read_text().splitlines()]

    def issues(paths):
        return {record["prompt_text"].splitlines()[0] for path in paths for record in records(path)}

    evaluations = sorted((folder / "evaluations").glob("step-*.json"))
    rates = [sum(verdicts.values()) / len(verdicts) for verdicts in (json.loads(p.read_text()) for p in evaluations)]
    before, imitated, rewarded = rates
    assert before == 0.0 and imitated >= 0.4 and rewarded >= 0.6
    held_out, trained = issues([evaluations[-1].with_suffix(".jsonl")]), issues((folder / "rollouts").glob("*.jsonl"))
    assert held_out and trained and held_out.isdisjoint(trained) and held_out | trained <= LINE_OF_ISSUE.keys()
    right = [record for record in records(evaluations[-1].with_suffix(".jsonl")) if record["success"]]
    lines = [LINE_OF_ISSUE[record["prompt_text"].splitlines()[0]] for record in right]
    equal = [_written(record["turns"]) == _tree(line) for record, line in zip(right, lines, strict=True)]
    # 2 * x is as right as x * 2
    assert right and sum(equal) >= 0.9 * len(right)


def _tree(line):
    return ast.dump(ast.parse(line.strip()))


def _written(turns):
    """Syntax tree of the last line 3 that an attempt wrote, after it had read the file."""
    first, *actions = [turn["action_text"] for turn in turns]
    assert first == "read f.py"
    return _tree([action for action in actions if action.startswith("edit f.py 3 ")][-1].removeprefix("edit f.py 3 "))
