"""The runtime of a process: who can reach it, how it ends, its collectives alone, its memory and its clock."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests import started

import gxpo
from gxpo.base import runtime
from gxpo.base.errors import ConfigError, ModelError
from gxpo.base.process_tree import is_running

SCRIPT = """
import os
from gxpo.base import runtime

runtime.start()
own = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{n}")]
inodes = {name[8:-1] for name in own if name.startswith("socket:")}
heard = set()
for table in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:  # listens
            heard.add(words[1].split(":")[0])
print(runtime.rank(), runtime.first(f"of {runtime.rank()}"), runtime.any_of(runtime.rank() == 1), *sorted(heard))
"""
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}  # 127.0.0.1 and ::1, as Linux writes them


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="reads Linux's list of sockets")
@pytest.mark.parametrize("launcher", ["torchrun", "by hand"])
def test_processes_of_one_machine_listen_on_loopback_alone(tmp_path, launcher):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(gxpo.__file__).parents[1])}
    if launcher == "torchrun":
        options = ["--standalone", "--nproc-per-node=2", "--redirects=3", f"--log-dir={tmp_path / 'logs'}"]
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(script)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        output = [p.read_text() for p in (tmp_path / "logs").rglob("stdout.log")]
    else:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        ranks = [
            started.Started(
                [script],
                env=environment
                | {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)},
            )
            for r in range(2)
        ]
        output = [rank.communicate()[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0]
    words = sorted(text.split() for text in output)
    assert [w[:4] for w in words] == [["0", "of", "0", "True"], ["1", "of", "0", "True"]]
    received_address = {address for w in words for address in w[4:]}
    assert received_address and received_address <= LOOPBACK


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


@pytest.mark.slow
def test_process_without_its_launcher_does_not_wait():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED], env=as_torchrun(MASTER_PORT=str(port)), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (1, "", TOLD)


def test_lost_peer_tells_the_end_of_another_process(monkeypatch):
    broken = RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:23467: Connection reset by peer")
    assert runtime.lost_peer(broken) is None
    monkeypatch.setattr(runtime, "world", lambda: 2)
    assert "another process of the run has ended" in str(runtime.lost_peer(broken))
    assert "another process of the run has ended" in str(runtime.lost_peer(torch.distributed.DistBackendError("NCCL")))
    assert runtime.lost_peer(RuntimeError("shapes differ")) is runtime.lost_peer(ValueError("gloo")) is None


# ---------------------------------------------------------------- the heap of glibc
HEAP = """
import torch
from gxpo.base import runtime

runtime.reuse_freed()
library = runtime._glibc()
blocks = [torch.ones(1 << 20) for _ in range(100)]  # 4 MiB each, from the heap
last = torch.ones(1 << 20)
del blocks
before = library.mallinfo2().fordblks if library else None
resident = lambda: int(open("/proc/self/statm").read().split()[1]) if library else 0
held = resident()
runtime.give_back()
print(library is None, before is None or before > runtime.IDLE, held - resident())
"""


@pytest.mark.slow
def test_freed_blocks_are_kept_until_they_are_given_back():
    done = subprocess.run([sys.executable, "-c", HEAP], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    without, kept_value, returned = done.stdout.split()
    assert without == "True" or (kept_value == "True" and int(returned) * 4096 > 300 << 20)


# ---------------------------------------------------------------- one process
def test_collectives_of_one_process_are_the_identity():
    x = torch.tensor([1.0, 2.0])
    runtime.all_sum([x])
    assert x.tolist() == [1.0, 2.0] and (runtime.world(), runtime.rank()) == (1, 0)
    assert runtime.mean(0.25) == 0.25 and runtime.highest(3) == 3 and runtime.gather(b"own") == [b"own"]
    assert runtime.first("mine") == "mine" and runtime.first_of("") == "" and runtime.first_of("text") == "text"
    assert runtime.any_of(True) and not runtime.any_of(False)


def test_numbers_of_torchrun_are_whole_or_refused(monkeypatch):
    for value, number in ((None, 7), ("", 7), (" 3 ", 3)):
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        if value is not None:
            monkeypatch.setenv("WORLD_SIZE", value)
        assert runtime.environment("WORLD_SIZE", 7) == number
    for value in ("two", "-1", "1.5"):
        monkeypatch.setenv("WORLD_SIZE", value)
        with pytest.raises(ConfigError, match=f"WORLD_SIZE is '{value}', not a whole number"):
            runtime.environment("WORLD_SIZE", 7)


def test_a_rank_beyond_the_world_size_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE is 2 and RANK 2: unset both, or use torchrun"):
        runtime.start()


def test_buckets_hold_tensors_in_order_up_to_their_size(monkeypatch):
    monkeypatch.setattr(runtime, "BUCKET", 16)  # four float32
    tensors = [torch.zeros(n, dtype=torch.float32) for n in (2, 2, 1, 5, 1)]  # 8, 8, 4, 20 and 4 bytes
    assert [[x.numel() for x in bucket] for bucket in runtime._buckets(tensors)] == [[2, 2], [1], [5], [1]]


def test_failed_allocations_say_what_to_lower():
    failures = [
        MemoryError("no room"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        torch.OutOfMemoryError("CUDA of 8 GiB"),
    ]
    for failure in failures:
        with (
            pytest.raises(ModelError, match=r"out of memory while sampling: lower tasks\.per_step") as raised,
            runtime.memory_is_short("sampling", "tasks.per_step"),
        ):
            raise failure
        assert raised.value.__cause__ is failure
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), runtime.memory_is_short("sampling", "tasks.per_step"):
        raise RuntimeError("shapes differ")


def test_clock_gives_seconds_of_phases_and_tokens_per_second(monkeypatch):
    now = iter([10.0, 14.0, 15.0, 20.0])  # begin, after sampling, after the update, when figures are asked for
    monkeypatch.setattr(runtime.time, "perf_counter", lambda: next(now))
    clock = runtime.Clock()
    clock.lap("sample")
    clock.lap("update")
    clock.note("judge", 2.5)
    assert clock.figures(generated=800, forward=300) == {
        "time_sample_s": 4.0,
        "time_update_s": 1.0,
        "time_judge_s": 2.5,
        "time_step_s": 10.0,
        "time_sample_tokens_per_s": 200.0,
        "time_update_tokens_per_s": 300.0,
    }
