"""Run directories: names for new ones, lookup of existing ones, what one must not hold, and its lock."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.parts.definition import SettingValue
from gxpo.training import checkpoint

if TYPE_CHECKING:
    from filelock import BaseFileLock

CONFIG, METRICS, EVALUATIONS = "config.yaml", "metrics.jsonl", "evaluations.jsonl"
LOCK = ".lock"
HOME = Path("runs")
PYTHON_INPUTS = (
    "model",
    "tasks.jsonl",
    "held_out.jsonl",
    "rewards.py",
    "tasks.py",
)  # of runs begun with Python objects
_RUN_FILES = (checkpoint.FOLDER, "rollouts", "evaluations", METRICS, EVALUATIONS, CONFIG, LOCK, *PYTHON_INPUTS)
_NOTE = re.compile(r"\((?P<origin>[^()]*)\)$")


def name_for(config_file: Path, sets: Mapping[str, SettingValue]) -> Path:
    """Default directory of `gxpo train CONFIG`: runs/STEM, then the method and seed that `--set` gives, then -2, -3...
    if it exists.

    >>> name_for(Path("examples/arithmetic.yaml"), {"seed": SettingValue(1, "--set")})
    PosixPath('runs/arithmetic-seed1')
    """
    words = [config_file.stem]
    if "method" in sets:
        words.append(str(sets["method"].value))
    if "seed" in sets:
        words.append(f"seed{sets['seed'].value}")
    return free(HOME / "-".join(words).replace("/", "-"))


def default(task: str, method: str, seed: int) -> Path:
    """Default directory of a run."""
    return HOME / f"{task}-{method}-seed{seed}".replace(":", "-").replace("/", "-")


def free(path: Path) -> Path:
    """`path`, or the first of path-2, path-3... that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def find(path: Path) -> Path:
    """`path` if it exists, else the only run directory whose name begins with its.

    Raises `CheckpointError` that lists the runs there are.
    """
    if path.exists() or path.parent.name == checkpoint.FOLDER:
        return path
    runs = _runs(path.parent)
    matches = [run for run in runs if run.name.startswith(path.name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise CheckpointError(f"{path} is ambiguous: it may be {_join_paths(matches)}")
    hint = f"there is {_join_paths(runs)}" if runs else f"{path.parent} holds no run (gxpo train CONFIG makes one)"
    raise CheckpointError(f"there is no run {path}; {hint}")


def run_of(path: Path) -> Path:
    """The run directory that `path` is or, for RUN/checkpoints/step-N, belongs to."""
    path = Path(path)
    run = path.parents[1] if path.parent.name == checkpoint.FOLDER and path.name.startswith("step-") else path
    config_of(run)
    return run


def config_of(run: Path) -> Path:
    """The config.yaml of a run directory; `CheckpointError` where it has none."""
    path = Path(run) / CONFIG
    if not path.is_file():
        inside = f"; in it are {_join_paths(runs_inside)}" if (runs_inside := _runs(Path(run))) else ""
        raise CheckpointError(f"{run} is not a run directory: it has no {CONFIG}{inside}")
    return path


def refuse_another(run: Path) -> None:
    """`ConfigError` if the directory holds a run, which a new one would destroy."""
    if any(run.glob(f"{checkpoint.FOLDER}/step-*")):
        raise ConfigError(f"{run} holds a run: `gxpo resume {run}` goes on with it, or give another --out")


def refuse_links(run: Path) -> None:
    """`ConfigError` if anything in the directory that a run writes, cuts or deletes is a symbolic link.

    The directory itself may be one.
    """
    for name in _RUN_FILES:
        if (run / name).is_symlink():
            raise ConfigError(
                f"{run / name} is a symbolic link, and a run deletes files only in its own directory: put what it "
                f"points to in its place, or link {run} as a whole"
            )


# ---------------------------------------------------------------- lock
class Lock:
    """Exclusive lock of a run directory; the system releases it when the process ends, however that happens."""

    def __init__(self, run: Path) -> None:
        self.run = Path(run)
        self._lock: BaseFileLock | None = None
        self._file: os.stat_result | None = None

    @property
    def is_held(self) -> bool:
        """True between `acquire` and `release`."""
        return self._lock is not None

    def acquire(self) -> None:
        """Take the lock; `ConfigError` if another process holds it."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.run / LOCK, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"{self.run} is being written by another process: wait for it, end it, or give another --out"
            ) from None
        self._lock, self._file = lock, os.stat(self.run / LOCK)

    def release(self) -> None:
        """Give the lock free; nothing happens if it is not held."""
        if self._lock is not None:
            self._lock.release()
        self._lock = self._file = None

    def is_in_place(self) -> bool:
        """True if the locked file is still the one in the directory; not if that was deleted or replaced."""
        try:
            return self._file is not None and os.path.samestat(self._file, os.stat(self.run / LOCK))
        except FileNotFoundError:
            return False


# ---------------------------------------------------------------- listing
def _runs(folder: Path) -> list[Path]:
    return sorted(config.parent for config in folder.glob(f"*/{CONFIG}"))


def _join_paths(runs: list[Path], max_paths: int = 20) -> str:
    remainder = f" and {len(runs) - max_paths} more" if len(runs) > max_paths else ""
    return ", ".join(map(str, runs[:max_paths])) + remainder


def origin_of(lines: Sequence[str], place: str) -> str:
    """Origin that a run noted behind a key; through inheritance, the first one. `place`: FILE:LINE of the key."""
    number = place.rpartition(":")[2]
    comment = lines[int(number) - 1].rpartition("# ")[2].strip() if number.isdigit() else ""
    note = _NOTE.search(comment)
    return note["origin"] if note else comment
