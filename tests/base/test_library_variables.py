"""gxpo.base.library_variables: programs of gxpo ask MKL for products that do not depend on alignment, and OpenMP for
threads that do not wait actively for long; importing gxpo does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gxpo
from gxpo.base.library_variables import library_variables
from gxpo.base.processes import Process
from gxpo.sampling.engines.vllm_process import environment

REPORT = "import os, sys; print(os.environ.get('MKL_CBWR'), 'torch' in sys.modules)"
COMMAND_LINE = f"import sys; from gxpo.cli import app as cli; cli.app = lambda: exec({REPORT!r}); cli.main()"


def told(program: str, given: str | None) -> str:
    """What a new process prints, the variable being as `given` when it starts."""
    surroundings = {k: v for k, v in os.environ.items() if k != "MKL_CBWR"}
    surroundings["PYTHONPATH"] = str(Path(gxpo.__file__).parents[1])
    if given is not None:
        surroundings["MKL_CBWR"] = given
    done = subprocess.run([sys.executable, "-c", program], env=surroundings, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(("given", "found"), [(None, "AUTO"), ("COMPATIBLE", "COMPATIBLE")])
def test_command_line_sets_mkl_before_torch_unless_the_user_did(given: str | None, found: str):
    assert told(COMMAND_LINE, given) == f"{found} False"


def test_the_functions_that_train_set_the_variables_before_torch():
    assert told(f"import gxpo; gxpo.train; {REPORT}", None) == "AUTO True"
    assert told(f"from gxpo import resume; {REPORT}", "COMPATIBLE") == "COMPATIBLE True"


@pytest.mark.parametrize(
    ("environment", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "5"}, None), ({"OMP_WAIT_POLICY": "ACTIVE"}, None), ({"MKL_CBWR": "A"}, "1000")],
)
def test_waiting_threads_sleep_soon_unless_the_user_has_said_how_they_wait(environment, spins):
    assert library_variables(environment).get("GOMP_SPINCOUNT") == spins


def test_importing_the_package_changes_no_environment():
    assert told(f"import gxpo; {REPORT}", None) == "None False"


def test_worker_and_engine_processes_ask_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MKL_CBWR")
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os\n"
        "def serve(line):\n"
        "    for item in line.receive():\n"
        "        line.answer(json.dumps(os.environ['MKL_CBWR']))\n"
    )
    worker = Process(str(program))
    worker.send(["what is it?"])
    assert worker.receive(60.0, str) == "AUTO"
    worker.close()
    assert environment()["MKL_CBWR"] == "AUTO"
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    assert environment()["MKL_CBWR"] == "AVX2"


def at(x: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy that begins `offset` elements after a multiple of 64 bytes."""
    room = torch.empty(x.numel() + 64, dtype=x.dtype)
    start = -room.data_ptr() // x.element_size() % (64 // x.element_size()) + offset
    return room[start : start + x.numel()].view(x.shape).copy_(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(7, 33, 19), (61, 96, 96), (5, 128, 1), (3, 96, 64)])
def test_product_has_the_same_bits_at_every_memory_offset(shape: tuple[int, int, int], dtype: torch.dtype):
    rows, width, columns = shape
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(rows, width, dtype=dtype, generator=generator)
    b = torch.randn(columns, width, dtype=dtype, generator=generator)
    first = torch.nn.functional.linear(at(a, 0), at(b, 0))
    for i in range(8):
        for j in range(8):
            assert torch.equal(torch.nn.functional.linear(at(a, i), at(b, j)), first)
