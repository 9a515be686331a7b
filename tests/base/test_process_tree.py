"""gxpo.base.process_tree: nothing that a process has started outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gxpo.base.process_tree import descendants, end_descendants, is_running
from gxpo.base.processes import Ended, Process

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nobody tells who started whom")
TREE = """
import subprocess, sys, time
deeper = int(sys.argv[1]) - 1
child = [subprocess.Popen([sys.executable, "-c", sys.argv[2], str(deeper), sys.argv[2]])] if deeper else []
print("started", flush=True)
time.sleep(1000)
"""

DAEMON = """
import json, os, subprocess, sys

def serve(line):
    for path in line.receive():
        subprocess.run([sys.executable, "-c", f'''
import os, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open({path!r} + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename({path!r} + ".new", {path!r})
time.sleep(1000)
'''])
        while not os.path.exists(path):
            pass
        line.answer("null")
    for code in line.receive():
        os._exit(code)
"""


def gone(pid: int) -> bool:
    """Whether a process that has been sent a signal is gone before long; it is killed if not."""
    for _ in range(200):
        if not is_running(pid):
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False


@LINUX
def test_descendants_are_ended_and_their_root_is_not() -> None:
    root = subprocess.Popen([sys.executable, "-c", TREE, "4", TREE], stdout=subprocess.PIPE)
    try:
        assert root.stdout is not None
        assert [root.stdout.readline() for _ in range(4)] == [b"started\n"] * 4
        below = descendants(root.pid)
        assert len(below) == 3 and all(map(is_running, below)) and set(below) <= set(descendants(os.getpid()))
        end_descendants(root.pid)
        assert all([gone(pid) for pid in below]) and is_running(root.pid)
    finally:
        end_descendants(root.pid)
        root.kill()
        root.communicate()
    assert not is_running(root.pid) and descendants(root.pid) == []


@LINUX
@pytest.mark.parametrize("how", ["closed", "died", "killed"])
def test_a_daemon_in_a_session_of_its_own_does_not_outlive_it(tmp_path: Path, how: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(DAEMON)
    process = Process(str(path))
    process.send([str(tmp_path / "daemon")])
    process.receive(60, lambda value: value)
    daemon = int((tmp_path / "daemon").read_text())
    assert os.getsid(daemon) != process.process.pid and is_running(daemon)
    if how == "died":
        process.send([7])
        with pytest.raises(Ended, match="exit code 7"):
            process.receive(60, lambda value: value)
    elif how == "killed":
        assert process.worker is not None
        os.kill(process.worker, signal.SIGKILL)
    else:
        process.close()
    assert gone(daemon)
    process.close()
    assert not Path(f"/proc/{daemon}").exists()  # not even as a zombie: somebody has waited for it


def test_a_forked_copy_of_the_parent_that_ends_leaves_it_alone(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from gxpo.base.processes import Process
        program = Path(__file__).with_name("program.py")
        program.write_text("def serve(line):\\n    while True:\\n        for item in line.receive(): line.answer(item)")
        process = Process(str(program))
        if os.fork() == 0:
            sys.exit()
        os.wait()
        process.send(["3"])
        print(process.receive(60, int))
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


def test_none_outlives_its_parent(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(DAEMON)
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
        import time
        from gxpo.base.processes import Process
        process = Process({str(program)!r})
        process.send([{str(tmp_path / "daemon")!r}])
        process.receive(60, lambda value: value)
        print(process.worker, process.process.pid, flush=True)
        time.sleep(1000)
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    with parent.stdout:
        children = [int(pid) for pid in parent.stdout.readline().split()]
    if sys.platform.startswith("linux"):
        children.append(int((tmp_path / "daemon").read_text()))
    assert all(map(is_running, children))
    parent.kill()
    parent.wait()
    assert all([gone(child) for child in children])
