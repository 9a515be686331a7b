"""Check that gxpo works where it is installed: clean environments with a built wheel, the core, then each extra.

    python scripts/checks/check_install.py                           # all of them, half an hour
    python scripts/checks/check_install.py core train                # these
    python scripts/checks/check_install.py core --python python3.12  # with another interpreter
    python scripts/checks/check_install.py core --without-torch      # pip may offer CUDA builds alone
    python scripts/checks/check_install.py --beside ENV/bin/python   # would it move a version in that environment?

torch comes first and stays, as the installation page says; gxpo comes by its name from an index on the loopback, which
has the wheel, and the extra by the line that an error of gxpo prints, `pip install 'gxpo[EXTRA]'`, with the extras that
it is used with. Everything else is the newest that pip finds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Left out unless named: what they bring is for another kind of machine.
ELSEWHERE = {"vllm": "takes a torch of its own with CUDA; see docs/engines.md for a processor without"}

# The top-level modules of each distribution that an extra asks for are imported, whatever they are called.
IMPORTS = """
import importlib, importlib.metadata as metadata, sys
from packaging.requirements import Requirement
modules = {}
for module, owners in metadata.packages_distributions().items():
    for owner in owners:
        modules.setdefault(owner.lower().replace("_", "-"), []).append(module)
requirements = [Requirement(r) for r in metadata.requires("gxpo")]
names = [r.name for r in requirements if r.marker and r.marker.evaluate({"extra": sys.argv[1]}) and r.name != "gxpo"]
assert names, sys.argv[1]
imported = []
for name in names:
    for module in modules[name.lower().replace("_", "-")]:
        if module.isidentifier() and not module.startswith("_") and module not in ("tests", "test", "docs"):
            importlib.import_module(module)
            imported.append(module)
print("imported " + ", ".join(imported))
"""
ADVANTAGES = """
import gxpo, torch
forest = gxpo.Forest.from_completions([[1, 2]], [[[3, 4], [5]]], [1.0, 0.0])
m = gxpo.method("dr_grpo+gspo", {"objective.horizon": 2.0})
x = torch.zeros(3, requires_grad=True)
m.loss(forest, gxpo.PolicyTokens(x, x.detach())).value.backward()
assert m.advantages(forest).tolist() == [0.5, 0.5, -0.5] and bool(x.grad.any())
print(m.advantages(forest).tolist())
"""
INCIDENT = str(ROOT / "tests/doctor/incidents/trl-3857")
EXAMPLE = str(ROOT / "examples/arithmetic.yaml")
SHORT = [
    *("--set", "model=tiny:cold", "--set", "trainer.steps=3"),
    *("--set", "tasks.per_step=4", "--set", "eval.tasks=8"),
]


@dataclass(frozen=True)
class Try:
    """A command of gxpo's, or with "-c" of Python's; what it has to print and, where it has to fail, with what code."""

    words: tuple[str, ...]
    says: str = ""
    code: int = 0


def gxpo(*words: str, says: str = "", code: int = 0) -> Try:
    return Try(("-m", "gxpo", *words), says, code)


WITHOUT_TORCH = [
    gxpo("--version", says="transformers not installed"),
    gxpo("--help", says="Commands"),
    gxpo("doctor", INCIDENT, says="critical", code=1),  # sick
    Try(("-c", "import gxpo; print(gxpo.__version__)"), PROJECT["version"]),
]
CORE = [
    *WITHOUT_TORCH,
    Try(("-c", ADVANTAGES), "[0.5, 0.5, -0.5]"),
    gxpo("methods", says="baseline_and_scale"),
    gxpo("methods", "ngrpo", says="formula"),
    gxpo("methods", "--for", "all-wrong groups", says="evidence"),
    gxpo("parts", says="credit"),
    gxpo("schema", says="$defs"),
    gxpo("train", EXAMPLE, "--dry-run", says="arithmetic.yaml"),
    gxpo("check-env", "frozenlake", "--episodes", "2", says="episodes"),
    *(
        gxpo(*words, says="pip install 'gxpo[train]'", code=2)
        for words in (
            ("demo",),
            ("train", EXAMPLE),
            ("plan", EXAMPLE),
            ("compare", "dr_grpo", "rloo", "--task", "arithmetic", "--plan"),
            ("signal", "tiny", "arithmetic", "--tasks", "4"),
            ("check-reward", "math", "--task", "arithmetic"),
            ("check-template", "tiny"),
        )
    ),
    Try(("-c", "from gxpo.adapters.trl import GRPOTrainer"), "pip install 'gxpo[trl]'", 1),
    Try(("-m", "gxpo.conformance"), "pip install 'gxpo[dev]'", 2),
]
TRAIN = [
    gxpo("--version", says="transformers 5"),
    gxpo("train", EXAMPLE, *SHORT, "--out", "run", says="run"),
    gxpo("doctor", "run", says="no group has had a signal", code=1),  # an untrained model, three steps
    gxpo("explain", "run", "--out", "step.html", says="step.html"),
    gxpo("export", "run", "model", says="model"),
    gxpo("check-reward", "math", "--task", "arithmetic", "--n", "4", says="reference"),
]
SCRIPTS = ROOT / "scripts"
JAVA = shutil.which("java") is not None
# What an extra is used with, as the pages say: these are installed beside it.
BESIDE = {"serve": ("train",), "vision": ("train",), "docs": ("train", "plot"), "ray": ("train", "compare")}
TRIES = {
    "train": TRAIN,
    "rewards": [
        Try(
            (
                "-c",
                "from gxpo.environments.rewards import metrics as m; [m.metric_of(name, name) for name in m.METRICS]",
            ),
        ),
        Try(
            (
                "-c",
                "from gxpo.environments.rewards.metrics.text import bleu; print(bleu('dog', 'cat', smooth='none'))",
            ),
            "0.0",
        ),
    ],
    "serve": [gxpo("serve", "tiny:cold", "--seconds", "1", says="base_url")],
    "textworld": [
        gxpo(
            "check-env", "textworld:coin", "--episodes", "1", says="episodes" if JAVA else "Java", code=0 if JAVA else 2
        )
    ],
    "verifiers": [
        gxpo("check-env", "verifiers:no-such-module", says="no_such_module", code=2),
    ],
    "docs": [Try((str(SCRIPTS / "pages" / "make_site.py"), "--help"), "usage")],
    "dist": [
        Try(("-m", "build", "--outdir", "dist", str(ROOT)), "Successfully built"),
        Try(
            ("-c", "import glob, twine.cli; twine.cli.dispatch(['check', '--strict', *glob.glob('dist/*')])"), "PASSED"
        ),
    ],
    "mutation": [Try((str(SCRIPTS / "mutation.py"), "--help"), "usage")],
    "ray": [Try((str(SCRIPTS / "checks" / "check_ray.py"),), "equal")],
    "trl": [Try(("-c", "from gxpo.adapters.trl import GRPOTrainer; print(GRPOTrainer)"), "gxpo")],
    "verl": [Try(("-c", "import gxpo.adapters.verl as v; print(v.__name__)"), "verl")],
    "dev": [Try(("-m", "gxpo.conformance", "--collect-only", "-q"), "grpo")],
}


class Environment:
    """A fresh virtual environment in a directory, or a copy of one; `attempt` prints what a command does."""

    def __init__(self, directory: Path, python: str, like: Environment | None = None) -> None:
        self.directory, self.place = directory, directory / "work"
        if like is None:
            subprocess.run([python, "-m", "venv", str(directory)], check=True)
            self.place.mkdir()
        else:  # by links, in seconds; only scripts in bin/ know where they were, and `python -m` starts none of them
            shutil.copytree(like.directory, directory, symlinks=True, copy_function=os.link)
        self.python = str(directory / ("Scripts" if os.name == "nt" else "bin") / "python")
        variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.variables = {**variables, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def run(self, *words: str) -> tuple[int, str]:
        process = subprocess.run(
            [self.python, *words], cwd=self.place, env=self.variables, capture_output=True, text=True, timeout=1200
        )
        return process.returncode, process.stdout + process.stderr

    def pip(self, *words: str) -> None:
        code, message = self.run("-m", "pip", "install", "-q", "--disable-pip-version-check", *words)
        if code:
            raise SystemExit(f"pip install {' '.join(words)}:\n{message}")

    def attempt(self, one: Try) -> bool:
        """Run a command and print how it went, and its output where it is not as it should be."""
        start = time.perf_counter()
        code, message = self.run(*one.words)
        output = " ".join(one.words).replace("\n", "; ")[:70]
        good = code == one.code and one.says in message
        print(f"  {'ok ' if good else 'BAD'} {output:<70} {time.perf_counter() - start:5.1f} s", flush=True)
        if not good:
            print(f"exit code {code}, not {one.code}, or no {one.says!r} in\n{message[-2000:]}", flush=True)
        return good


def wheel_of(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


class QuietHandler(SimpleHTTPRequestHandler):
    """A folder's listing and files, without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def loopback_index(folder: Path) -> Iterator[list[str]]:
    """Serve the wheel as a package index does, on the loopback; yields pip's arguments that install gxpo from it."""
    directory = folder / "index" / "gxpo"
    directory.mkdir(parents=True)
    wheel = wheel_of(directory)
    handler = partial(QuietHandler, directory=str(directory.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        yield ["--extra-index-url", url, f"gxpo=={wheel.name.split('-')[1]}"]
        server.shutdown()


def moved_pins(python: str, gxpo_from: Sequence[str], folder: Path) -> list[str]:
    """List the packages of an environment that installing gxpo there would change: "name old -> new".

    pip resolves and reports; nothing is installed.
    """
    report = folder / "report.json"
    command = [python, "-m", "pip", "install", "-q", "--dry-run", "--report", str(report), *gxpo_from]
    subprocess.run(command, check=True)
    process = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json"], capture_output=True, text=True, check=True
    )
    version_by_name = {row["name"].lower().replace("_", "-"): row["version"] for row in json.loads(process.stdout)}
    new = {row["metadata"]["name"]: row["metadata"]["version"] for row in json.loads(report.read_text())["install"]}
    new.pop("gxpo", None)
    print(f"{python}: gxpo would add {', '.join(new) or 'nothing else'}")
    names = {name: name.lower().replace("_", "-") for name in new}
    return [f"{n} {version_by_name[k]} -> {new[n]}" for n, k in names.items() if k in version_by_name]


def make_core(directory: Path, gxpo_from: Sequence[str], python: str, torch: str | None) -> Environment:
    """Make an environment with the core, and with torch if it is given."""
    environment = Environment(directory, python)
    if torch is None:
        environment.pip(*(line for line in PROJECT["dependencies"] if not line.startswith("torch")))
        environment.pip("--no-deps", *gxpo_from)
    else:
        environment.pip(f"torch=={torch}")
        environment.pip(*gxpo_from)
    return environment


def check(name: str, environment: Environment, torch: str | None) -> int:
    """Count the commands that fail in a copy of the core's environment, with an extra unless `name` is "core"."""
    if name == "core":
        tries = CORE if torch else WITHOUT_TORCH
    else:
        limit = environment.place / "torch.txt"  # an extra that wants another torch says so before it brings gigabytes
        limit.write_text(f"torch=={torch}\n", encoding="utf-8")
        environment.pip("packaging", "-c", str(limit), f"gxpo[{','.join((name, *BESIDE.get(name, ())))}]")
        tries = [Try(("-c", IMPORTS, name), "imported"), *TRIES.get(name, [])]
    if torch is not None:
        tries = [Try(("-m", "pip", "check"), "No broken requirements"), *tries]
    _, listed = environment.run("-m", "pip", "list", "--format", "json", "--disable-pip-version-check")
    _, version = environment.run("--version")
    version_by_package = {row["name"]: row["version"] for row in json.loads(listed[: listed.rindex("]") + 1])}
    size = sum(f.stat().st_size for f in environment.directory.rglob("*") if f.is_file() and not f.is_symlink())
    about = (
        version.strip(),
        f"torch {version_by_package.get('torch')}",
        f"{len(version_by_package)} packages",
        f"{size >> 20} MB",
    )
    print(f"{name}: {', '.join(about)}", flush=True)
    return sum(not environment.attempt(one) for one in tries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pinned = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    parser.add_argument("names", nargs="*", metavar="NAME", help="core, or an extra; default: all")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environments")
    parser.add_argument("--torch", default=pinned and pinned[1], help="version to install; default: %(default)s")
    parser.add_argument("--without-torch", action="store_true", help="what runs without it; core only")
    parser.add_argument("--beside", metavar="PYTHON", help="interpreter of an environment with another trainer")
    arguments = parser.parse_args()
    if arguments.beside:
        with tempfile.TemporaryDirectory() as folder, loopback_index(Path(folder)) as gxpo_from:
            if moves := moved_pins(arguments.beside, gxpo_from, Path(folder)):
                raise SystemExit(f"{arguments.beside}: installing gxpo moves {'; '.join(moves)}")
        return
    names = arguments.names or [name for name in ("core", *EXTRAS) if name not in ELSEWHERE]
    if unknown := set(names) - {"core", *EXTRAS}:
        parser.error(f"no extra {', '.join(sorted(unknown))}; there are core, {', '.join(EXTRAS)}")
    if arguments.without_torch and names != ["core"]:
        parser.error("--without-torch is for core alone")
    if not arguments.names:
        for name, why in ELSEWHERE.items():
            print(f"{name}: left out: {why}")
    problems: dict[str, str] = {}
    torch = None if arguments.without_torch else arguments.torch
    with tempfile.TemporaryDirectory() as folder, loopback_index(Path(folder)) as gxpo_from:
        first = make_core(Path(folder, "first"), gxpo_from, arguments.python, torch)
        for name in names:
            try:
                if n_failed := check(name, Environment(Path(folder, name), arguments.python, first), torch):
                    problems[name] = f"{n_failed} commands fail"
            except SystemExit as error:
                print(f"{name}: {error}"[:3000], flush=True)
                problems[name] = "does not install"
            shutil.rmtree(Path(folder, name), ignore_errors=True)
    if problems:
        raise SystemExit("; ".join(f"{name}: {what}" for name, what in problems.items()))
    print(f"{len(names)} environments work")


if __name__ == "__main__":
    main()
