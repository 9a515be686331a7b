"""Two processes take the steps of one (T37), under torchrun, too."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests import command_line, started
from tests.thorough import some

import gxpo
from gxpo.base import runtime
from gxpo.base.process_tree import is_running

CONFIG = """model: tiny:cold
task: arithmetic
tasks: {per_step: 4}
rollout: {group_size: 4}
sampling: {max_new_tokens: 5, temperature: 1.2, top_k: 20}
learner: {dtype: float64, tokens_per_microbatch: 64}
eval: {tasks: 6}
trainer: {steps: 3, checkpoint_every: 0, rollouts_every: 1}
"""
REWARD = "def parity(completion):\n    return {'correct': float(sum(map(ord, completion)) % 2)}\n"


SAMPLER = """tasks.sampler: variance
tasks.sampler.by: digits
tasks.sampler.levels: [1, 2, 3]
"""
EPISODES = """task: frozenlake
tasks: {per_step: 4, options: {style: bare}}
env: {max_turns: 4, context: full}
"""


@pytest.mark.parametrize(
    ("kind", "launcher"),
    some(
        [("prompts", "forked"), ("prompts", "torchrun"), ("sampled", "forked"), ("episodes", "torchrun")],
        [("prompts", "forked")],
    ),
)
def test_two_processes_equal_one(tmp_path, kind, launcher):
    (tmp_path / "mine.py").write_text(REWARD)
    reward = f"{tmp_path}/mine.py:parity"
    if kind != "episodes":
        text = CONFIG + f"reward: {reward}\n"
        text += SAMPLER if kind == "sampled" else ""
    else:
        text = CONFIG.replace("task: arithmetic\ntasks: {per_step: 4}\n", EPISODES)
        text += f"reward:\n  env: 1.0\n  {reward}: 1.0\n"
    (tmp_path / "run.yaml").write_text(text)

    def words(name):
        return ["train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / name)]

    code, _, error = command_line.run(words("one"))
    assert code == 0, error
    if launcher == "forked":
        done = started.ranks(2, ["-m", "gxpo.cli.app", *words("two")])
    else:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(gxpo.__file__).parents[1])}
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*torchrun, "-m", "gxpo.cli.app", *words("two")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {
        name: [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    }
    assert [r["step"] for r in rows["two"]] == [1, 2, 3]
    for one, two in zip(rows["one"], rows["two"], strict=True):
        assert one["grad_norm"] > 0
        for key in ("reward_mean", "success_rate", "generated_tokens", "loss", "grad_norm", "entropy", "length_mean"):
            assert two[key] == pytest.approx(one[key], rel=1e-9, abs=1e-12), key
    texts = [
        [
            json.loads(line)["turns"][0]["action_text"]
            for line in (tmp_path / n / "rollouts" / "step-000003.jsonl").read_text().splitlines()
        ]
        for n in ("one", "two")
    ]
    assert texts[0] == texts[1]


# ---------------------------------------------------------------- a launcher that is gone
LAUNCHED = """
import os, socket, sys, time
import gxpo.base.runtime as runtime
runtime._join = lambda size: (print(os.getpid(), flush=True), time.sleep(60))
runtime.start()
"""
LAUNCHER = """
import os, socket, subprocess, sys
with socket.create_server(("127.0.0.1", 0)) as store:
    port = str(store.getsockname()[1])
    subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, "MASTER_PORT": port}).wait()
"""


def as_torchrun(**more):
    return {
        **os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
        "PYTHONPATH": str(Path(gxpo.__file__).parents[1]), **more,
    }  # fmt: skip


def test_a_process_ends_with_its_launcher():
    command = [sys.executable, "-c", LAUNCHER, LAUNCHED]
    with subprocess.Popen(command, env=as_torchrun(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stderr is not None
        rank = int(run.stdout.readline())
        assert is_running(rank)
        run.kill()
        assert run.stderr.read() == TOLD  # until the rank has closed it, too
    for _ in range(200):
        if not is_running(rank):
            return
        time.sleep(0.05)
    os.kill(rank, signal.SIGKILL)
    pytest.fail("the process outlived its launcher")


TOLD = "gxpo: torchrun has ended, and its processes end, too: gxpo resume goes on, under torchrun\n"


def test_process_without_its_launcher_does_not_wait():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED], env=as_torchrun(MASTER_PORT=str(port)), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (1, "", TOLD)


def test_the_end_of_another_process_is_told_as_such(monkeypatch):
    broken = RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:23467: Connection reset by peer")
    assert runtime.lost_peer(broken) is None
    monkeypatch.setattr(runtime, "world", lambda: 2)
    assert "another process of the run has ended" in str(runtime.lost_peer(broken))
    assert "another process of the run has ended" in str(runtime.lost_peer(torch.distributed.DistBackendError("NCCL")))
    assert runtime.lost_peer(RuntimeError("shapes differ")) is runtime.lost_peer(ValueError("gloo")) is None
