"""Process of vLLM: its environment, its interpreter, messages in order, and its end."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from gxpo.base.errors import ModelError
from gxpo.sampling.engines.vllm_process import PROGRAM, VllmEnded, VllmProcess, can_import, environment, interpreter

ECHO = """
import os, runpy, sys
from multiprocessing.connection import Connection
codes = runpy.run_path({program!r}, run_name="worker")
line, number = Connection(int(sys.argv[-2])), 0
while True:
    message = line.recv_bytes()
    number, _ = codes["NUMBER"].unpack_from(message)
    header, arrays = codes["decode"](message[codes["NUMBER"].size :])
    if header["do"] == "leave":
        print("out of memory", flush=True)
        sys.exit(3)
    number += header.get("ahead", 0)
    raw = {{name: ("int32", x.tobytes()) for name, x in arrays.items()}}
    answer = {{"error": "ValueError: no"}} if header["do"] == "fail" else {{"did": header["do"]}}
    line.send_bytes(codes["NUMBER"].pack(number, os.getpid()) + codes["encode"](answer, raw))
"""


@pytest.fixture
def process(tmp_path):
    """A process that answers with what it was sent."""
    program = tmp_path / "echo.py"
    program.write_text(ECHO.format(program=PROGRAM))
    echo = VllmProcess(sys.executable, program=(str(program),))
    yield echo
    echo.close()


def test_replies_carry_header_and_arrays(process):
    reply, arrays = process.ask({"do": "sample"}, {"tokens": np.array([1, -2], dtype=np.int32)})
    assert reply["did"] == "sample" and arrays["tokens"].tolist() == [1, -2]
    assert process.ask({"do": "load"})[0]["did"] == "load"


def test_an_error_of_the_program_leaves_the_process_running(process):
    with pytest.raises(ModelError, match="failed to fail: ValueError: no"):
        process.ask({"do": "fail"})
    assert process.ask({"do": "load"})[0]["did"] == "load"


def test_a_reply_to_another_message_ends_the_process(process):
    with pytest.raises(ModelError, match="it is of another number or process"):
        process.ask({"do": "load", "ahead": 1})
    with pytest.raises(ModelError, match="was closed"):
        process.ask({"do": "load"})


def test_an_ended_process_is_described_by_status_and_last_line(process):
    with pytest.raises(VllmEnded, match=r"while asked to leave: exit code 3; out of memory"):
        process.ask({"do": "leave"})


def test_a_launchers_variables_are_not_inherited(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("HF_HOME", "/models")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "9")
    variables = environment()
    assert "RANK" not in variables and "MASTER_PORT" not in variables and variables["HF_HOME"] == "/models"
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "9"  # the user's, over gxpo's default of 4
    assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_the_interpreter_is_the_configured_one_or_this_one():
    assert interpreter(None) == sys.executable
    assert interpreter("~/vllm/bin/python") == str(Path(os.path.expanduser("~")) / "vllm/bin/python")


def test_an_interpreter_that_cannot_run_is_an_error():
    with pytest.raises(ModelError, match="vLLM's interpreter /no/such/python can't be run"):
        VllmProcess("/no/such/python")


def test_packages_are_found_without_importing_them():
    assert can_import(sys.executable, "json") and not can_import(sys.executable, "no_such_package")
    assert not can_import("/no/such/python", "json")
