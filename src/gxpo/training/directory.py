"""Run directories: names for new ones, finding an existing one, and what one must not hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.parts.definition import Stated
from gxpo.training import checkpoint

CONFIG, METRICS, EVALUATIONS = "config.yaml", "metrics.jsonl", "evaluations.jsonl"
HOME = Path("runs")
GIVEN = ("model", "tasks.jsonl", "held_out.jsonl", "rewards.py", "tasks.py")  # of runs begun with Python objects
_WRITTEN = (checkpoint.FOLDER, "rollouts", "evaluations", METRICS, EVALUATIONS, CONFIG, ".lock", *GIVEN)


def name_for(config_file: Path, sets: Mapping[str, Stated]) -> Path:
    """Default directory of `gxpo train CONFIG`: runs/STEM, then the method and seed that `--set` gives, then -2, -3...
    if it exists.

    >>> name_for(Path("examples/arithmetic.yaml"), {"seed": Stated(1, "--set")})
    PosixPath('runs/arithmetic-seed1')
    """
    words = [config_file.stem]
    if "method" in sets:
        words.append(str(sets["method"].value))
    if "seed" in sets:
        words.append(f"seed{sets['seed'].value}")
    return free(HOME / "-".join(words).replace("/", "-"))


def default(task: str, method: str, seed: int) -> Path:
    """Directory of a run that nobody has named."""
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
    begun = [run for run in runs if run.name.startswith(path.name)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise CheckpointError(f"{path} is ambiguous: it may be {_listed(begun)}")
    there = f"there is {_listed(runs)}" if runs else f"{path.parent} holds no run (gxpo train CONFIG makes one)"
    raise CheckpointError(f"there is no run {path}; {there}")


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
        inside = f"; in it are {_listed(found)}" if (found := _runs(Path(run))) else ""
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
    for name in _WRITTEN:
        if (run / name).is_symlink():
            raise ConfigError(
                f"{run / name} is a symbolic link, and a run deletes files only in its own directory: put what it "
                f"points to in its place, or link {run} as a whole"
            )


def _runs(folder: Path) -> list[Path]:
    return sorted(config.parent for config in folder.glob(f"*/{CONFIG}"))


def _listed(runs: list[Path], most: int = 20) -> str:
    rest = f" and {len(runs) - most} more" if len(runs) > most else ""
    return ", ".join(map(str, runs[:most])) + rest
