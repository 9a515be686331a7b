"""Check the lower bounds of pyproject.toml: a part of the suite in a fresh environment that has exactly them.

    python scripts/checks/check_lowest.py                 # with the torch of constraints.txt
    python scripts/checks/check_lowest.py --torch 2.6.0   # torch's own bound; gigabytes where pip offers no CPU build

Dependencies of dependencies are the newest that pip finds, as they are for a user. Needs Python 3.11.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
TESTS = ("pytest", "hypothesis", "scipy")  # what the chosen tests import, in any version
CORE = [
    *(f"tests/forest/{name}.py" for name in ("test_forest", "test_columns", "test_reshape", "test_grouped")),
    "tests/methods/test_compose.py",
    "tests/methods/test_uncompared.py",
    "tests/algorithms/credit",
]
TRAIN = [
    *(f"tests/sampling/engines/{name}.py" for name in ("test_torch", "test_torch_caches")),
    *(f"tests/learning/{name}.py" for name in ("test_packing", "test_policies")),  # of peft too
    *(
        "tests/forest/test_records.py",
        "tests/forest/record_format",
        "tests/models/decoder",
        "tests/training/models/test_load.py",
        "tests/training/test_export.py",
        "tests/environments/tasks",
        "tests/cli/test_app.py",
    ),
]
RUN = [
    "train",
    "examples/arithmetic.yaml",
    *(f"--set={x}" for x in ("model=tiny:cold", "trainer.steps=2", "eval.tasks=8")),
]


def pin_lowest(requirements: list[str], torch: str) -> list[str]:
    """Pin the requirements, == for >=, but torch in this version."""
    return [f"torch=={torch}", *(line.replace(">=", "==") for line in requirements if not line.startswith("torch"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pinned = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    parser.add_argument("--torch", default=pinned and pinned[1], help="version to install; default: %(default)s")
    torch = parser.parse_args().torch
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core, train = project["dependencies"], project["optional-dependencies"]["train"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as home:
        python = str(Path(home, "bin", "python"))

        def run(*arguments: str) -> None:
            print("+", *arguments, flush=True)
            subprocess.run([python, "-m", *arguments], cwd=ROOT, env=environment, check=True)

        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        run("pip", "install", "-q", *TESTS, *pin_lowest(core, torch))
        run("gxpo.cli.app", "--help")
        run("pytest", "-q", "-p", "no:cacheprovider", *CORE)
        run("pip", "install", "-q", *TESTS, *pin_lowest(core + train, torch))
        run("gxpo.cli.app", *RUN, "--out", str(Path(home, "run")))
        run("pytest", "-q", "-p", "no:cacheprovider", *TRAIN)
        run("pip", "list")


if __name__ == "__main__":
    main()
