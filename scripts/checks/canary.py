"""Check the adapters with the newest TRL, verl and transformers that install: what broke, since which version.

    python scripts/checks/canary.py                 # all three, about half an hour
    python scripts/checks/canary.py trl             # one
    python scripts/checks/canary.py trl --at 1.17.0 # this version of it

Each library gets a fresh environment: torch as `constraints.txt` has it, gxpo from this tree, then the newest release
of the library. Its checks are those of scripts/checks and the tests that import it. Exit status 1 where one fails.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from check_install import Environment, wheel_of

ROOT = Path(__file__).parents[2]
PINNED_TORCH = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
TESTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not thorough", "--rootdir", str(ROOT))


@dataclass(frozen=True)
class Library:
    """A library under watch: extras of gxpo that it is used with, and the commands that hold it to its behaviour.

    undeclared   packages that it imports and does not require
    """

    extras: str
    commands: tuple[tuple[str, ...], ...]
    undeclared: tuple[str, ...] = ()


def script(name: str) -> tuple[str, ...]:
    return (str(ROOT / "scripts" / "checks" / name),)


LIBRARIES = {
    "trl": Library("trl,train", (script("check_trl.py"), script("check_trl_preferences.py"))),
    "verl": Library(
        "verl,train", (script("check_verl.py"),), undeclared=("uvicorn", "fastapi", "pillow", "cachetools")
    ),
    "transformers": Library(
        "train,dev", ((*TESTS, str(ROOT / "tests" / "models"), str(ROOT / "tests" / "sampling" / "engines")),)
    ),
}


def watch(name: str, version: str, folder: Path, wheel: Path) -> list[str]:
    """Install a library in a new environment and run its commands; return a line for each that fails."""
    library, environment = LIBRARIES[name], Environment(folder / name, sys.executable)
    environment.pip(f"torch=={PINNED_TORCH[1]}" if PINNED_TORCH else "torch")
    # gxpo first, so that its own bounds are known; then the newest release, whether these bounds allow it or not
    environment.pip(f"{wheel}[{library.extras}]", *library.undeclared)
    environment.pip("--upgrade", f"{name}=={version}" if version else name)
    _, version_text = environment.run("-c", f"import importlib.metadata as m; print(m.version({name!r}))")
    label = f"{name} {version_text.strip().splitlines()[-1]}"
    failures = []
    for words in library.commands:
        code, output = environment.run(*words)
        print(f"{label}: {Path(words[-1]).name}: {'works' if code == 0 else f'exit code {code}'}", flush=True)
        if code:
            print(output[-3000:], flush=True)
            last_line = next((line for line in reversed(output.splitlines()) if line.strip()), "")
            failures.append(f"{label}: {Path(words[-1]).name}: {last_line[:200]}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(LIBRARIES)}; default: all")
    parser.add_argument("--at", default="", metavar="VERSION", help="this version, of one library")
    arguments = parser.parse_args()
    names = arguments.names or list(LIBRARIES)
    if unknown := set(names) - set(LIBRARIES):
        parser.error(f"no check of {', '.join(sorted(unknown))}; there are {', '.join(LIBRARIES)}")
    if arguments.at and len(names) != 1:
        parser.error("--at takes one library: name it")
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheel = wheel_of(folder)
        for name in names:
            try:
                failures += watch(name, arguments.at, folder, wheel)
            except SystemExit as error:  # pip's
                failures.append(f"{name}: does not install: {str(error).strip().splitlines()[-1][:200]}")
            shutil.rmtree(folder / name, ignore_errors=True)
    for line in failures:
        print(f"broke: {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
