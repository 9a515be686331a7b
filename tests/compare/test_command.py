"""`gxpo compare` as typed: plan, runs, table and files; killed and continued it says the same."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from gxpo.cli.app import app
from gxpo.compare import worker
from gxpo.compare.jobs import Local

REWARD = "def parity(completion):\n    return float(sum(map(ord, completion)) % 2)\n"
SETTING = """
model: tiny:cold
task: arithmetic
reward: REWARD:parity
tasks: {per_step: 2}
rollout: {group_size: 4}
sampling: {max_new_tokens: 5}
eval: {tasks: 8, points: 2}
trainer: {checkpoint_every: 1}
"""


@pytest.fixture
def task(tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    path = tmp_path / "small.yaml"
    path.write_text(SETTING.replace("REWARD", str(tmp_path / "reward.py")))
    return path


def arguments(task, out, *more):
    return ["compare", "dr_grpo", "--task", str(task), "--seeds", "3", "--budget", "400", "--out", str(out), *more]


def said(path):
    """compare.json without what depends on the clock, the place or the words of the command."""
    document = json.loads((path / "compare.json").read_text())
    clock = ("seconds", "time", "path", "commands", "versions")

    def kept(value):
        if isinstance(value, dict):
            return {k: kept(v) for k, v in value.items() if not any(word in k for word in clock)}
        return [kept(v) for v in value] if isinstance(value, list) else value

    return kept(document)


@pytest.mark.thorough
def test_a_killed_comparison_goes_on_to_the_same_tables(task, tmp_path):
    full_path, killed = tmp_path / "whole", tmp_path / "killed"
    command = [sys.executable, "-m", "gxpo.cli.app"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = lambda out: subprocess.run(  # noqa: E731
        [*command, *arguments(task, out)], capture_output=True, text=True, env=environment, check=True
    )
    first = run(full_path)
    process = subprocess.Popen(
        [*command, *arguments(task, killed)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 120
    while not list(killed.glob("*/seed-*/done.json")) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(list(killed.glob("*/seed-*/done.json")))
    assert 0 < done < 9
    run(killed)
    assert said(killed) == said(full_path)
    assert "9 of 9 runs to make" in first.stderr
    assert "dr_grpo" in first.stdout and "shuffled" in first.stdout
    assert (full_path / "compare.html").read_text().startswith("<!doctype html>")
    lines = (full_path / "compare.csv").read_text().splitlines()
    assert len(lines) == 10


def test_the_plan_trains_nothing(task, tmp_path, monkeypatch):
    monkeypatch.setattr(Local, "probe", lambda self, keys: [worker.probe(k) for k in keys])  # in this process
    actual = CliRunner().invoke(app, arguments(task, tmp_path / "out", "--plan"), catch_exceptions=False)
    assert actual.exit_code == 0
    assert not list((tmp_path / "out").glob("*/seed-*"))
