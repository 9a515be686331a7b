"""Lines of metrics: what is refused, what is cut, what survives a kill or a full disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import gxpo
from gxpo.base.errors import CheckpointError, RecordError
from gxpo.training import metrics
from gxpo.training.metrics import MetricsFile


def filled(path: Path, n: int = 3) -> MetricsFile:
    file = MetricsFile(path / "metrics.jsonl")
    for step in range(1, n + 1):
        file.append({"step": step, "reward_mean": step / 10})
    return file


def test_values_come_back_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    assert file.read() == []
    file.append({"step": 1, "z": 0.1 + 0.2, "a": float("nan"), "b": float("-inf"), "c": None, "d": "text", "e": True})
    file.append({"step": 2, "f": torch.tensor(3), "g": np.float64("nan"), "h": np.int64(4), "i": torch.tensor(0.5)})
    first, second = file.path.read_text().splitlines()
    assert first == '{"step": 1, "z": 0.30000000000000004, "a": null, "b": null, "c": null, "d": "text", "e": true}'
    assert json.loads(second) == {"step": 2, "f": 3, "g": None, "h": 4, "i": 0.5}
    assert [row["step"] for row in metrics.read(file.path)] == [1, 2]


@pytest.mark.parametrize("value", [[1.0], {"a": 1}, torch.ones(2), object()])
def test_nested_values_are_refused_and_leave_no_line(tmp_path: Path, value: object) -> None:
    file = filled(tmp_path, 1)
    with pytest.raises(RecordError, match="metric 'kl' is a "):
        file.append({"step": 2, "kl": value})
    assert len(file.read()) == 1


def test_cut_drops_later_steps_and_a_torn_line(tmp_path: Path) -> None:
    file = filled(tmp_path, 5)
    before = file.path.read_bytes()
    assert file.truncate(5) == 0 and file.path.read_bytes() == before
    with open(file.path, "ab") as stream:
        stream.write(b'{"step": 6, "rew')
    assert [r["step"] for r in file.read()] == [1, 2, 3, 4, 5]
    assert file.truncate(5) == 1 and file.path.read_bytes() == before
    assert file.truncate(3) == 2 and [r["step"] for r in file.read()] == [1, 2, 3]
    assert file.truncate(0) == 3 and file.path.read_bytes() == b""
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert MetricsFile(tmp_path / "none.jsonl").truncate(3) == 0


def test_a_damaged_line_is_named_and_the_file_left(tmp_path: Path) -> None:
    file = filled(tmp_path)
    lines = file.path.read_text().splitlines()
    file.path.write_text("\n".join([lines[0], "{oops", lines[2]]) + "\n")
    before = file.path.read_bytes()
    for act in (file.read, lambda: file.truncate(1)):
        with pytest.raises(RecordError, match=r"metrics.jsonl line 2 is not a JSON object"):
            act()
    assert file.path.read_bytes() == before


@pytest.mark.parametrize("written", [0, 5])
def test_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    file = filled(tmp_path)
    before = file.path.read_bytes()
    real, calls = os.write, []

    def full(descriptor: int, data: memoryview) -> int:
        calls.append(1)
        if len(calls) == 1 and written:
            return real(descriptor, data[:written])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            file.append({"step": 4})
    assert file.path.read_bytes() == before


def test_names() -> None:
    for name, entry in metrics.NAMES.items():
        assert name == name.strip()
        for text in (entry.meaning, entry.unit, entry.over):
            assert text and "\n" not in text and "|" not in text
        clocked = entry.unit in ("seconds", "tokens/second", "MiB")
        assert clocked == name.startswith(("time_", "memory_")), name
    assert metrics.meaning("eval_pass_at_8") == (
        "probability that one of 8 samples of a task is right, unbiased (share, over held-out tasks)"
    )
    assert "component format (reward, over rollouts" in (metrics.meaning("reward_format") or "")
    assert metrics.metric("reward_mean") is metrics.NAMES["reward_mean"]
    assert metrics.meaning("unheard_of") is None and metrics.metric("unheard_of") is None
    assert metrics.comparable({"step": 1, "time_step_s": 2.0, "memory_peak_mb": 3.0, "kl": 4.0}) == {
        "step": 1,
        "kl": 4.0,
    }


def test_the_page_says_what_the_names_say() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    messages: list[tuple[str, ...]] = []
    for line in page.splitlines():
        if line.startswith("| `"):  # a row may hold several names; what is common to them stands once
            cells = [cell.strip().split("<br>") for cell in line.strip("|").split("|")]
            messages += zip(*(cell * (len(cells[0]) if len(cell) == 1 else 1) for cell in cells), strict=True)
    assert messages == [(f"`{name}`", m.meaning, m.unit, m.over) for name, m in metrics.NAMES.items()]


def test_a_run_writes_documented_names_only(tmp_path: Path) -> None:
    small = {
        "tasks.per_step": 1,
        "sampling.max_new_tokens": 3,
        "eval.tasks": 2,
        "eval.samples": 2,
        "objective.kl.coef": 0.1,
    }
    run = gxpo.train("tiny:cold", "arithmetic", "reinforce_pp_baseline", 1, out=tmp_path / "run", set=small)
    for row in (*run.metrics, *run.evaluations):
        assert [name for name in row if metrics.metric(name) is None] == []
    assert "eval_pass_at_2" in run.evaluations[0]
