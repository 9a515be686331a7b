"""Rollouts from run directories, files of records and dumps of other trainers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from tests.explain.rollout_pages import numbers, page_of, record, write

from gxpo.base.errors import GxpoError
from gxpo.explain.rollout_source import pseudo_tokens, read
from gxpo.forest.forest import Forest
from gxpo.forest.records import dump


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
    assert page.data["methods"][0]["missing"] == f"{tmp_path / 'mine.py'}:credit is not run here"
    assert "--trust runs them" in page.text


def test_a_reward_in_a_file_is_no_reason_to_show_another_method(tmp_path: Path) -> None:
    write(tmp_path / "rollouts" / "step-000001.jsonl", [record(i, r) for i, r in enumerate([1.0, 0.0])])
    # files that are gone, or that nobody may run: of the run, not of its method
    (tmp_path / "config.yaml").write_text(
        "method: dr_grpo\nreward: gone.py:mine\ntask: gone.py:tasks\ntrainer: {callbacks: ['gone.py:C']}\n"
        "credit: {shift: 0.25}\nsampling: {max_new_tokens: 7}\n"
    )
    source = read(tmp_path)
    assert source.method is not None and source.method.name == "dr_grpo" and source.method.credit.shift == 0.25
    assert source.horizon == 7.0 and not [x for x in source.lacks if "run" in x]


def test_a_weight_in_a_file_leaves_the_advantage(tmp_path: Path) -> None:
    write(tmp_path / "rollouts" / "step-000001.jsonl", [record(i, r) for i, r in enumerate([1.0, 0.0])])
    (tmp_path / "mine.py").write_text("def weight(forest, credit, signals, step): return credit * 0 + 1\n")
    config = (
        f"method: dr_grpo\nreward.add.bonus: {tmp_path / 'mine.py'}:weight\nweight.w: {tmp_path / 'mine.py'}:weight\n"
    )
    (tmp_path / "config.yaml").write_text(config)
    (output,) = page_of(tmp_path).data["methods"]
    assert numbers(output["credit"], 2) == [0.5, -0.5] and "is not run here" in output["without"]["weight"]
    assert read(tmp_path, trust=True).lacks == [
        "log-probs of an updated policy (every ratio is 1)",
        "recorded advantages",
    ]


def test_a_run_with_phases_shows_the_method_of_the_step(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path / "rollouts" / f"step-00000{step}.jsonl", [record(i, r) for i, r in enumerate([1.0, 0.0])])
    (tmp_path / "config.yaml").write_text("phases: [{method: rloo, steps: 1}, {method: dr_grpo, steps: 1}]\n")
    assert read(tmp_path).method is None and any("phase of the step" in x for x in read(tmp_path).lacks)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "phase": 1}\n{"step": 2, "phase": 2}\n')
    assert [read(tmp_path, step).method.name for step in (1, 2)] == ["rloo", "dr_grpo"]


def test_the_horizon_of_many_turns_is_not_guessed(tmp_path: Path) -> None:
    rows = [record(i, r) for i, r in enumerate([1.0, 0.0])]
    for row in rows:
        row["turns"] = row["turns"] * 2
    write(tmp_path / "rollouts" / "step-000001.jsonl", rows)
    (tmp_path / "config.yaml").write_text("method: dr_grpo\nsampling: {max_new_tokens: 7}\n")
    assert read(tmp_path).horizon is None


def test_a_pipe_instead_of_a_file_is_an_error_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rollouts.jsonl")
    with pytest.raises(GxpoError, match=r"rollouts\.jsonl: is a pipe, not a regular file"):
        read(tmp_path / "rollouts.jsonl")


def test_tensors_beside_the_records_are_read(tmp_path: Path) -> None:
    rows = [record(i, float(i)) for i in range(2)]
    rows[0]["turns"][0]["extras"] = {"noise": torch.tensor([0.25, 0.5])}
    rows[1]["turns"][0]["extras"] = {"noise": torch.tensor([0.75, 1.0])}
    dump(Forest.from_records(rows), tmp_path / "step-000001.jsonl")
    assert "step-000001.safetensors#" in (tmp_path / "step-000001.jsonl").read_text()
    assert read(tmp_path / "step-000001.jsonl").forest.extras["noise"].tolist()[-2:] == [0.75, 1.0]
