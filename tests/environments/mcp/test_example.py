"""The example with tools learns: by imitation, then by reward, judged on held-out tasks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.command_line import run

ROOT = Path(__file__).parents[3]


@pytest.mark.thorough
def test_a_policy_learns_to_ask_a_tool(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder = tmp_path / "run"
    code, _, error = run(["train", "examples/mcp_tools.yaml", "--out", folder])
    assert code == 0, error
    # before, between and after the two phases
    evaluations = sorted((folder / "evaluations").glob("step-*.json"))
    rates = [sum(verdicts.values()) / len(verdicts) for verdicts in (json.loads(p.read_text()) for p in evaluations)]
    before, imitated, rewarded = rates
    records = [json.loads(line) for line in evaluations[-1].with_suffix(".jsonl").read_text().splitlines()]
    assert before == 0.0 and 0.1 <= imitated <= 0.6 and rewarded >= imitated + 0.2
    right = [record for record in records if record["success"]]
    assert right
    for record in right:
        a, b = re.findall("[0-9]+", record["prompt_text"].splitlines()[-1])
        *_, call, answer = (turn["action_text"] for turn in record["turns"])
        assert call == f'<tool>multiply({{"a": {a}, "b": {b}}})</tool>' and answer == str(int(a) * int(b))
