"""Logs of inspect: conversation, tool calls, rewards by name, and what was recorded beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.explain.rollout_pages import record, write

from gxpo.base.errors import GxpoError
from gxpo.explain.inspect_log import export


def turn(text: str, **more: object) -> dict:
    return {"action": [4, 5], "action_text": text, "logprob": [-0.5, -0.25], **more}


def written(tmp_path: Path, *rows: dict, name: str = "step-000003.jsonl") -> dict:
    path = write(tmp_path / "rollouts" / name, list(rows))
    (file,) = export(path, tmp_path / "logs")
    return json.loads(file.read_text())


def test_a_conversation_keeps_turns_tools_rewards_and_advantage(tmp_path: Path) -> None:
    call = {"name": "lookup", "arguments": {"row": "wool"}}
    turns = [turn("<tool>lookup</tool>", info={"calls": [call]}, reward=0.5, finish="stop"),
             turn("it is 7", observation=[8], observation_text="7", agent="solver", finish="length")]  # fmt: skip
    row = record(0, 1.0, turns=turns, rewards={"correct": 1.0, "judge": None}, success=True, truncated=True,
                 sampling={"max_new_tokens": 2}, info={"answer": "7", "advantage": 0.75, "note": [1]})  # fmt: skip
    (sample,) = written(tmp_path, row)["samples"]
    assert (sample["id"], sample["epoch"], sample["input"], sample["target"]) == ("g0", 1, "what?", "7")
    roles = [(m["role"], m["content"]) for m in sample["messages"]]
    assert roles == [("user", "what?"), ("assistant", "<tool>lookup</tool>"), ("tool", "7"), ("assistant", "it is 7")]
    (called,) = sample["messages"][1]["tool_calls"]
    assert (called["function"], called["arguments"]) == ("lookup", {"row": "wool"})
    assert sample["messages"][2]["tool_call_id"] == called["id"] and sample["messages"][2]["function"] == "lookup"
    # a reward that could not be computed is no score, and named
    assert {k: s["value"] for k, s in sample["scores"].items()} == {"correct": 1.0, "reward": 1.0, "success": 1.0}
    metadata = sample["metadata"]
    assert metadata["advantage"] == 0.75 and metadata["unscored"] == ["judge"] and metadata["info"]["note"] == [1]
    assert [t["reward"] for t in metadata["turns"]] == [0.5, None]
    assert metadata["turns"][1]["agent"] == "solver" == sample["messages"][3]["metadata"]["agent"]
    assert sample["limit"] == {"type": "token", "limit": 2.0}
    assert sample["output"]["choices"][0]["stop_reason"] == "max_tokens"


def test_a_group_is_a_sample_and_its_rollouts_are_epochs(tmp_path: Path) -> None:
    rows = [record(0, 1.0), record(1, 0.0), record(2, None, group="g1")]
    log = written(tmp_path, *rows)
    assert [(s["id"], s["epoch"]) for s in log["samples"]] == [("g0", 1), ("g0", 2), ("g1", 1)]
    assert log["version"] == 2 and log["status"] == "success" and log["eval"]["config"] == {"epochs": 2}
    (score,) = [s for s in log["results"]["scores"] if s["name"] == "reward"]
    assert score["metrics"]["mean"]["value"] == 0.5 and (score["scored_samples"], score["unscored_samples"]) == (2, 1)
    assert log["samples"][2]["metadata"]["advantage"] is None


def test_a_log_for_each_step_named_as_inspect_lists_them(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path / "run" / "rollouts" / f"step-00000{step}.jsonl", [record(0, 1.0)])
    files = export(tmp_path / "run", tmp_path / "logs")
    assert [f.name[10] for f in files] == ["T", "T"] and all(f.name.count("_") == 2 for f in files)
    ids = [json.loads(f.read_text())["eval"]["task_id"] for f in files]
    assert len(set(ids)) == 2 and sorted(p.name for p in (tmp_path / "logs").iterdir()) == sorted(f.name for f in files)
    (one,) = export(tmp_path / "run", tmp_path / "one", step=2)
    assert json.loads(one.read_text())["eval"]["task_id"] == ids[1]
    with pytest.raises(GxpoError, match="not empty"):
        export(tmp_path / "run", tmp_path / "logs")


def test_texts_of_tables_without_ids(tmp_path: Path) -> None:
    rows = [
        {"input": "2+2", "output": f"it is  {i}", "gts": "4", "score": s, "step": 7} for i, s in ((4, 1.0), (5, 0.0))
    ]
    path = tmp_path / "7.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    (file,) = export(path, tmp_path / "logs")
    first, second = json.loads(file.read_text())["samples"]
    assert [m["content"] for m in first["messages"]] == ["2+2", "it is  4"] and second["epoch"] == 2


def test_a_fork_has_the_turns_that_it_inherits(tmp_path: Path) -> None:
    base = record(0, 1.0, turns=[turn("one"), turn("two", observation=[8], observation_text="go on")])
    fork = record(1, 0.0, turns=[turn("three", observation=[9], observation_text="or")], fork={"of": "t0", "turn": 0})
    del fork["prompt"], fork["prompt_text"]
    second = written(tmp_path, base, fork)["samples"][1]
    assert [m["content"] for m in second["messages"]] == ["what?", "one", "or", "three"]
