"""Processes that learn together: who can reach them, and what they agree on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests import started

import gxpo

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
        said = [p.read_text() for p in (tmp_path / "logs").rglob("stdout.log")]
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
        said = [rank.communicate()[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0]
    words = sorted(text.split() for text in said)
    assert [w[:4] for w in words] == [["0", "of", "0", "True"], ["1", "of", "0", "True"]]
    heard = {address for w in words for address in w[4:]}
    assert heard and heard <= LOOPBACK


def test_one_process_asks_nobody():
    from gxpo.base import runtime

    assert runtime.first("mine") == "mine" and runtime.any_of(True) and not runtime.any_of(False)
