"""What a sandbox lets a program do, and what it does not. Every program here ends by itself within seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.sandbox import Limits, Local, descendants

LOCAL = Local()
pytestmark = pytest.mark.skipif(os.name != "posix", reason="the local sandbox needs Linux or macOS")
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux holds them")


def run(program, stdin="", **limits):
    return LOCAL.run({"main.py": program}, stdin, Limits(**{"wall": 10.0, "cpu": 10, **limits}))


def test_program_reads_its_input_and_files_and_leaves_nothing():
    files = {"main.py": "import beside, os\nprint(input()[::-1], beside.X, sorted(os.listdir('.')), os.getcwd())",
             "beside.py": "X = 7"}  # fmt: skip
    result = LOCAL.run(files, "abc\n")
    assert (result.status, result.stderr) == ("ok", "")
    message, place = result.stdout.rsplit(" ", 1)
    assert message == "cba 7 ['beside.py', 'main.py']"
    assert Path(place.strip()).name.startswith("gxpo-sandbox-") and not Path(place.strip()).exists()


def test_how_a_program_ends_is_told():
    wrong = run("import sys\nprint('half')\nsys.exit(3)")
    assert (wrong.status, wrong.stdout) == ("failed", "half\n")
    assert "ZeroDivisionError" in run("1/0").stderr
    assert run("import os\nos.abort()").status == "failed"
    with pytest.raises(ValueError, match="lie in one folder"):
        LOCAL.run({"../main.py": ""})


def test_nothing_of_the_callers_environment_and_files(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with open(tmp_path / "open", "w") as file:
        os.set_inheritable(file.fileno(), True)
        seen_process = run(
            "import os\nprint(sorted(os.environ), len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc') else 4)"
        )
    assert (
        seen_process.stdout == "['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED', 'TMPDIR'] 4\n"
    )  # 0 1 2 and the listing's own


@pytest.mark.slow
def test_an_endless_loop_and_an_endless_sleep_are_ended():
    begun = time.monotonic()
    assert run("while True: pass", wall=0.4).status == "timeout"
    assert run("import time\ntime.sleep(60)", wall=0.4).status == "timeout"
    assert time.monotonic() - begun < 8
    slow = run("print('before', flush=True)\nwhile True: pass", wall=9.0, cpu=1)
    assert (slow.status, slow.stdout) == ("timeout", "before\n") and slow.seconds < 8


@LINUX
def test_a_gigabyte_is_refused_inside_the_program():
    result = run("try:\n    x = bytearray(1 << 30)\n    print(len(x))\nexcept MemoryError:\n    print('no')")
    assert (result.status, result.stdout) == ("ok", "no\n")


def test_huge_output_is_cut_off():
    for stream in ("stdout", "stderr"):
        result = run(f"import sys\nfor _ in range(10**5): sys.{stream}.write('x' * 1000)", output=5000)
        assert result.status == "output" and len(getattr(result, stream)) == 5000
    assert run("print('x' * 4000)", output=5000).status == "ok"


@LINUX
def test_a_file_can_not_grow_beyond_its_limit():
    result = run("with open('big', 'wb') as f: f.write(bytes(1 << 21))")
    assert result.status == "failed" and "File too large" in result.stderr


@LINUX
def test_where_the_kernel_does_not_count_the_watcher_does():
    # eight sleepers, started one after the other; the kernel is given a higher limit than the watcher
    program = "import subprocess, sys, time\nfor _ in range(8): subprocess.Popen(['sleep', '3'])\ntime.sleep(3)"
    begun = time.monotonic()

    class Patient(int):
        """What is written down for the kernel is larger."""

        def __int__(self):
            return 64

    result = LOCAL.run({"main.py": program}, "", Limits(wall=8.0, processes=Patient(3)))
    assert result.status == "processes" and time.monotonic() - begun < 2.9


def test_many_run_at_a_time_from_threads():
    out = {}

    def one(i):
        out[i] = run(f"print({i})").stdout

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out == {i: f"{i}\n" for i in range(6)}


@pytest.mark.slow
def test_no_file_stays_open_and_no_process_alive():
    run("print(1)")
    others = set(descendants(os.getpid()))  # of whatever ran in this process before
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        run("print(1)")
        run("while True: pass", wall=0.2)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before and set(descendants(os.getpid())) <= others


def test_a_sandbox_that_can_not_start_is_broken_not_failed():
    result = Local(python="/nowhere/python").run({"main.py": ""})
    assert result.status == "broken" and "No such file" in result.stderr
    with pytest.raises(ConfigError, match=r"can't run Python here \(broken"):
        Local(python="/nowhere/python").check()
    LOCAL.check()


def test_limits_that_allow_nothing_are_refused():
    for wrong in ({"wall": 0.0}, {"cpu": 0}, {"memory": 10}, {"processes": 0}, {"output": 0}, {"wall": True},
                  {"disk": 0}, {"entries": 1}):  # fmt: skip
        with pytest.raises(ConfigError, match=f"sandbox: {next(iter(wrong))}="):
            Limits(**wrong)
