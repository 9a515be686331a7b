"""docs/add-a-method.md, followed to the letter: its file is found, composes and trains; a resumed run finds it."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.cli import app as cli
from gxpo.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/add-a-method.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S) for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the reader is: the file is saved, the examples are there."""
    monkeypatch.chdir(tmp_path)
    os.symlink(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "my_method.py").write_text(CODE)
    return tmp_path


def typed(line: str, monkeypatch: Any, capsys: Any) -> str:
    """What a line of the shell prints: assignments for it alone, then gxpo."""
    words = shlex.split(line)
    with monkeypatch.context() as patch:
        while "=" in words[0]:
            patch.setenv(*words.pop(0).split("=", 1))
        patch.setattr(sys, "argv", words)
        try:
            cli.main()
        except SystemExit as stopped:
            assert not stopped.code, capsys.readouterr().err
    return capsys.readouterr().out


def test_one_file_of_at_most_forty_lines():
    assert len(CODE.splitlines()) <= 40 and "```" in "".join(PAGE.splitlines()[:4])


@pytest.mark.slow
def test_every_command_of_the_page(folder, monkeypatch, capsys):
    printed = [typed(line, monkeypatch, capsys) for line in COMMANDS]
    output = dict(zip(COMMANDS, printed, strict=True))
    listed = output["GXPO_METHODS=my_method.py gxpo methods --family yours"]
    assert re.search(r"^\s*my_method\s.*authors' code", listed, re.M)
    assert "1 methods: 1 with a formula read at source" in listed
    both = output["GXPO_METHODS=my_method.py gxpo methods my_method+gspo"]
    assert "A_i = width tanh(A / width)" in both and "sequence" in both
    assert "[my_method]" in both and "[gspo]" in both
    rows = [json.loads(line) for line in (folder / "runs/my_method/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [1, 2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_it_trains_and_a_resumed_run_finds_it_again(folder, monkeypatch, capsys):
    monkeypatch.setenv("GXPO_METHODS", "my_method.py")
    keys = {"tasks.per_step": 2, "rollout.group_size": 4, "sampling.max_new_tokens": 6, "eval.tasks": 4}
    keys |= {"credit.width": 0.5}
    (folder / "parity.py").write_text("def parity(completion): return float(sum(map(ord, completion)) % 2)\n")
    run = gxpo.train("tiny:cold", "arithmetic", "my_method+dr_grpo", 2, "parity.py:parity", out="runs/it", set=keys)
    assert (
        run.metrics[0]["weights_fingerprint"] != run.metrics[1]["weights_fingerprint"]
        and run.metrics[1]["empty_steps"] == 0
    )
    typed("gxpo resume runs/it --steps 3", monkeypatch, capsys)
    rows = [json.loads(line) for line in (folder / "runs/it/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [1, 2, 3]
    monkeypatch.delenv("GXPO_METHODS")
    with pytest.raises(ConfigError, match="unknown method 'my_method'"):
        gxpo.method("my_method")


def test_it_computes_what_it_says(folder, monkeypatch):
    """1, 0, 0 in a group: A = 1.154699 and twice -.577349; .5 tanh(2 A) = .490252, -.409563."""
    monkeypatch.setenv("GXPO_METHODS", str(folder / "my_method.py"))
    forest = gxpo.Forest.from_completions([[1]], [[[2], [3], [4]]], [[1.0, 0.0, 0.0]])
    actual = gxpo.method("my_method", {"credit.width": 0.5}).advantages(forest).tolist()
    a = torch.tensor([1.154699, -0.577349, -0.577349], dtype=torch.float64)
    assert actual == pytest.approx((0.5 * (2 * a).tanh()).tolist(), abs=1e-5)
    assert gxpo.method("my_method@paper").credit.width == 2.0
    assert "my_method" in METHODS and METHODS["my_method"].name == "my_method" and list(METHODS).count("my_method") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere.py", "GXPO_METHODS: there is no file nowhere.py"),
        ("notes.txt", "GXPO_METHODS: notes.txt is no .py file"),
        ("grpo.py", "GXPO_METHODS: grpo.py has the name of a method of gxpo's own"),
        ("broken.py", "can't import .*broken.py line 1"),
        ("empty.py", "has no 'empty'"),
        ("other.py", "other.py: 'other' is no Definition named 'other'"),
    ],
)
def test_a_faulty_file_is_a_clear_error(folder, monkeypatch, given, message):
    files = {"notes.txt": "", "grpo.py": "", "broken.py": "def", "empty.py": "", "other.py": "other = 3"}
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("GXPO_METHODS", given)
    with pytest.raises(ConfigError, match=message):
        gxpo.method(given.split(".")[0])


def test_several_files(folder, monkeypatch):
    (folder / "second.py").write_text(CODE.replace("my_method", "second"))
    monkeypatch.setenv("GXPO_METHODS", os.pathsep.join(["my_method.py", "second.py"]))
    assert {"my_method", "second"} <= set(METHODS)
    assert gxpo.method("my_method").credit.width == gxpo.method("second").credit.width == 1.0
