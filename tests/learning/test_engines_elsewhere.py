"""Training engines on SkyRL and verl themselves, in interpreters named by GXPO_SKYRL_PYTHON and GXPO_VERL_PYTHON."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "checks"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("script", "variable"),
    [
        ("check_skyrl.py", "GXPO_SKYRL_PYTHON"),
        ("check_verl_engine.py", "GXPO_VERL_PYTHON"),
        ("check_verl_ray.py", "GXPO_VERL_PYTHON"),
    ],
)
def test_gradients_are_those_of_one_process(script: str, variable: str) -> None:
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no interpreter with it (see {script})")
    done = subprocess.run(
        [sys.executable, SCRIPTS / script, "--python", python], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert sum("gradient of" in line for line in done.stdout.splitlines()) >= 5
