"""Rollouts from run directories, files of records and dumps of other trainers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.explain.rollout_pages import numbers, page_of, record, write

from gxpo.base.errors import GxpoError
from gxpo.explain.rollout_source import pseudo_tokens, read


def test_errors_are_one_line(tmp_path: Path) -> None:
    cut = json.dumps(record(0, 1.0)) + "\n{"
    for name, text, message in (
        ("a.jsonl", "", "is empty"),
        ("b.txt", "hello\n", "no rollouts that can be read"),
        ("c.jsonl", cut, "line 2 is not JSON"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(GxpoError, match=message) as error:
            read(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(GxpoError, match="no such file"):
        read(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(GxpoError, match="holds no rollouts: give"):
        read(tmp_path / "empty")
    path = write(tmp_path / "d.jsonl", [record(0, 1.0)])
    with pytest.raises(GxpoError, match="did you mean 'grpo'"):
        page_of(path, ("grpoo",))


def test_a_verl_dump_is_grouped_by_prompt(tmp_path: Path) -> None:
    rows = [{"input": p, "output": f"so {i} it is", "gts": "4", "score": s, "step": 7}
            for i, (p, s) in enumerate([("2+2", 1.0), ("2+2", 0.0), ("3+3", 0.0), ("3+3", 0.0)])]  # fmt: skip
    path = tmp_path / "7.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    page = page_of(path, ("dr_grpo",))
    assert numbers(page.data["methods"][0]["credit"], 4) == [0.5, -0.5, 0.0, 0.0]
    assert numbers(page.data["groups"]["zero_signal"]["dr_grpo"], 2) == [0, 1]
    assert page.data["groups"]["task"] == ["2+2", "3+3"]
    assert {"so", " 0", " it", " is"} <= set(page.data["words"])
    assert "token ids (words stand for tokens)" in page.text and "rows with equal prompts are one group" in page.text


def test_text_actions_become_words(tmp_path: Path) -> None:
    rows = [record(0, 1.0), record(1, 0.0)]
    for r in rows:
        r["turns"] = [{"action_text": "The answer is 7"}]
    page = page_of(write(tmp_path / "some.jsonl", rows))
    assert [w for w in page.data["words"] if "an" in w] == [" answer"]
    assert "token ids of 2 actions" in page.text
    assert pseudo_tokens("a b" + "x" * 50 + "\n ") == ["a", " b" + "x" * 23, "x" * 24, "xxx", "\n "]


def test_files_that_a_configuration_names_are_not_run(tmp_path: Path) -> None:
    write(tmp_path / "rollouts" / "step-000001.jsonl", [record(i, r) for i, r in enumerate([1.0, 0.0])])
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef credit(forest, signals, step): ...\n")
    (tmp_path / "config.yaml").write_text(f"method: grpo\ncredit: {tmp_path / 'mine.py'}:credit\n")
    page = page_of(tmp_path)
    assert not (tmp_path / "ran").exists()
    assert page.data["methods"][0]["name"] == "grpo" and "is not run here" in page.text


def test_a_pipe_instead_of_a_file_is_an_error_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rollouts.jsonl")
    with pytest.raises(GxpoError, match=r"rollouts\.jsonl: is a pipe, not a regular file"):
        read(tmp_path / "rollouts.jsonl")
