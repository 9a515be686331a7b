"""Tasks within a band of measured success rates, written to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gxpo.base.errors import ConfigError
from gxpo.training import config
from gxpo.training.filter_tasks import filter_tasks

REWARD = """
def by_prompt(completion, task):
    return float({"a": True, "b": False}.get(task.id, sum(map(ord, completion)) % 2 == 0))
"""


def resolved(folder: Path, **keys: Any) -> config.RunConfig:
    (folder / "mine.py").write_text(REWARD)
    rows = [{"id": x, "prompt": f"{x}?", "answer": "1", "level": i} for i, x in enumerate("abcdef")]
    (folder / "pool.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "held.jsonl").write_text(json.dumps({"id": "h", "prompt": "h?", "answer": "1"}))
    settings = {
        "model": "tiny:cold",
        "task": str(folder / "pool.jsonl"),
        "tasks.options": {"held_out": str(folder / "held.jsonl")},
        "reward": f"{folder}/mine.py:by_prompt",
        "tasks.per_step": 4,
        "sampling.max_new_tokens": 4,
        **keys,
    }
    return config.resolve({k: config.SettingValue(v, "test") for k, v in settings.items()})


def test_what_is_always_or_never_solved_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "kept.jsonl"
    actual = filter_tasks(resolved(tmp_path), out, rollouts=16)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows] == list("cdef") and all(0.1 <= row["success_rate"] <= 0.9 for row in rows)
    assert [row["level"] for row in rows] == [2, 3, 4, 5] and rows[0]["prompt"] == "c?"
    assert {actual[k] for k in ("all_right", "all_wrong", "below", "above")} == {1} and actual["kept"] == 4
    assert actual["generated_tokens"] > 0 and actual["measured"] == actual["tasks"] == 6
    assert [json.loads(x)["id"] for x in (tmp_path / "kept_held_out.jsonl").read_text().splitlines()] == ["h"]
    with pytest.raises(ConfigError, match="is there already"):
        filter_tasks(resolved(tmp_path), out)


def test_generated_tasks_become_a_list_and_worlds_are_refused(tmp_path: Path) -> None:
    keys = {"task": "arithmetic", "tasks.options": {}, "reward": None, "eval.tasks": 3}
    actual = filter_tasks(resolved(tmp_path, **keys), tmp_path / "all.jsonl", rollouts=2, low=0, high=1, n=5)
    assert actual["kept"] == 5 and len((tmp_path / "all_held_out.jsonl").read_text().splitlines()) == 3
    world = resolved(tmp_path, **{"task": "frozenlake", "tasks.options": {"style": "bare"}, "reward": None})
    with pytest.raises(ConfigError, match="is an environment"):
        filter_tasks(world, tmp_path / "lakes.jsonl")
    for wrong, message in (({"low": 0.9, "high": 0.1}, "band of success rates"), ({"rollouts": 0}, "band")):
        with pytest.raises(ConfigError, match=message):
            filter_tasks(resolved(tmp_path), tmp_path / "no.jsonl", **wrong)
    with pytest.raises(ConfigError, match=r"written as \.jsonl"):
        filter_tasks(resolved(tmp_path), tmp_path / "no.csv")
    assert not list(tmp_path.glob("no*"))
