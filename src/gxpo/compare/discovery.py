"""Discovery of existing runs under the paths of a user, and their grouping into arms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, RecordError
from gxpo.compare.foreign import seed_of
from gxpo.doctor.reading import read
from gxpo.doctor.runlog import RunLog
from gxpo.parts.definition import show
from gxpo.training import config
from gxpo.training.directory import CONFIG, origin_of

DEPTH = 2  # levels of directories below a path that are searched for runs
TUNING = "tuning"  # directory of runs that `gxpo compare` never reports
_LABELLED = re.compile(r"(?P<label>[^=/]+)=(?P<path>.+)", re.DOTALL)
# Keys by which no arm differs: a run's result does not depend on them, or its metrics tell (as the trainer's budget).
KEYS_IGNORED = (
    "seed", "out", "init_from", "trainer", "doctor", "versions", "eval.every", "eval.points", "env.workers",
    "env.timeout", "env.concurrency", "scoring.workers", "scoring.timeout", "sampling.batch_rows", "sampling.engine",
    "sampling.engine_python", "sampling.engine_options", "sampling.servers", "sampling.products", "learner.device",
    "learner.kernels", "learner.choices", "learner.tokens_per_microbatch", "learner.images_per_microbatch",
    "learner.products", "learner.recompute", "learner.layout", "learner.attention", "cluster.train",
    "cluster.sample", "cluster.sync.timeout",
)  # fmt: skip


@dataclass(frozen=True)
class RunDirectory:
    """An existing run, of gxpo or of another trainer.

    folder  label from the user or the parent directory; "" if the configuration names the arm
    keys    gxpo: its configuration, key -> value; empty for other trainers
    stated_keys  gxpo: keys set by a person, neither default nor part of the method
    log     other trainers: the log as the doctor reads it
    seed    None if unknown
    is_labelled  True if the user wrote the label
    """

    path: Path
    folder: str
    keys: Mapping[str, Any]
    stated_keys: frozenset[str]
    log: RunLog | None
    seed: int | None
    is_labelled: bool = False

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """Configuration that runs of one arm share, as a hashable key."""
        return tuple(sorted((k, repr(v)) for k, v in self.keys.items() if distinguishes_arms(k)))


@dataclass(frozen=True)
class Group:
    """Label and runs of one arm."""

    label: str
    runs: tuple[RunDirectory, ...]

    @property
    def keys(self) -> Mapping[str, Any]:
        return self.runs[0].keys

    @property
    def shuffled(self) -> bool:
        return self.keys.get("scoring.shuffle") is True


def distinguishes_arms(key: str) -> bool:
    """Return True if two values of this key make two arms."""
    return not any(key == name or key.startswith(f"{name}.") for name in KEYS_IGNORED)


def find(texts: Sequence[str | Path], labels: Mapping[str, str]) -> list[RunDirectory]:
    """Find the runs at paths, each PATH or LABEL=PATH; `labels`: path -> label. `RecordError` if a path has none."""
    run_by_path: dict[Path, RunDirectory] = {}
    for text in map(str, texts):
        label, path = labels.get(text, ""), Path(text)
        # A path may hold "=": LABEL=PATH is tried only if the whole is no path.
        if not path.exists() and (labelled := _LABELLED.fullmatch(text)):
            label, path = labelled["label"].strip(), Path(labelled["path"].strip())
        if not path.exists():
            raise RecordError(f"{path}: no such file or directory")
        for run in _runs_at(path):
            run = replace(run, folder=label, is_labelled=True) if label else run
            # The same run by two paths would be two independent seeds.
            if run_by_path.setdefault(run.path.resolve(), run) is not run:
                raise ConfigError(f"{run.path} is given twice")
    return list(run_by_path.values())


def _runs_at(path: Path) -> list[RunDirectory]:
    if (single := gxpo_run(path)) is not None:
        return [single]
    directories = sorted(p.parent for depth in range(1, DEPTH + 1) for p in path.glob("*/" * depth + CONFIG))
    directories = [p for p in directories if TUNING not in p.relative_to(path).parts]
    runs = [replace(run, folder=p.parent.name) for p in directories if (run := gxpo_run(p)) is not None]
    return runs or _foreign(path)


def gxpo_run(path: Path) -> RunDirectory | None:
    """Read a run directory of gxpo; None if it is something else."""
    if not (path / CONFIG).is_file():
        return None
    try:
        keys = config.read(path / CONFIG)
    # Another YAML file called config.yaml.
    except ConfigError:
        return None
    if not {"method", "task", "model", "seed"} <= keys.keys():
        return None
    # config.yaml notes behind each key where it came from; a method's own keys are part of the method, not stated.
    lines = (path / CONFIG).read_text(encoding="utf-8").splitlines()
    method_names = str(keys["method"].value).split("+")
    unstated_origins = {"default", *method_names, *(w.split("@")[0] for w in method_names)}
    stated_keys = frozenset(k for k, s in keys.items() if origin_of(lines, s.origin) not in unstated_origins)
    values = {k: s.value for k, s in keys.items()}
    return RunDirectory(path, "", values, stated_keys, None, int(values["seed"]))


def _foreign(path: Path) -> list[RunDirectory]:
    """Read a run of another trainer, or all that lie in a directory."""
    try:
        log = read(path)
    # A directory that is no log itself may hold one for each seed.
    except RecordError:
        children = sorted(p for p in path.iterdir() if not p.name.startswith(".")) if path.is_dir() else []
        logs = [(p, read(p)) for p in children]
        if not (readable := [(p, log) for p, log in logs if log.series]):
            raise
        return [RunDirectory(p, path.name, {}, frozenset(), log, seed_of(p)) for p, log in readable]
    if not log.series:
        raise RecordError(f"{path}: no figures of a training run were found in it")
    return [RunDirectory(path, "", {}, frozenset(), log, seed_of(path))]


# ---------------------------------------------------------------- arms
def group_by_arm(runs: Sequence[RunDirectory]) -> list[Group]:
    """Group runs into arms: by the user's label, else by directory, else by configuration."""
    # A directory with several configurations is no arm but a folder of runs: these are told apart one by one.
    mixed_folders = {
        f
        for f in {r.folder for r in runs}
        if len({r.identity for r in runs if r.folder == f and not r.is_labelled}) > 1
    }
    groups: dict[Any, list[RunDirectory]] = {}
    for run in runs:
        # The user's own label always holds, mixed or not.
        uses_folder = run.folder and (run.is_labelled or run.folder not in mixed_folders)
        key = run.folder if uses_folder else run.identity if run.log is None else ("path", run.path)
        groups.setdefault(key, []).append(run)
    labels_by_path = _labels([members[0] for key, members in groups.items() if not isinstance(key, str)])
    out = []
    for key, members in groups.items():
        label = key if isinstance(key, str) else labels_by_path[members[0].path]
        out.append(Group(label, tuple(_with_seeds(label, members))))
    return out


def _with_seeds(label: str, runs: Sequence[RunDirectory]) -> Iterable[RunDirectory]:
    """The runs, each with a seed: runs of unknown seed take the free numbers in order."""
    path_by_seed: dict[int, Path] = {}
    for run in runs:
        if run.seed is not None and path_by_seed.setdefault(run.seed, run.path) != run.path:
            raise ConfigError(
                f"two runs of arm {label} have seed {run.seed}: {path_by_seed[run.seed]} and {run.path}: give one a "
                "label of its own, LABEL=PATH"
            )
    free = (n for n in range(len(runs) + len(path_by_seed)) if n not in path_by_seed)
    return [run if run.seed is not None else replace(run, seed=next(free)) for run in runs]


def _labels(runs: Sequence[RunDirectory]) -> dict[Path, str]:
    """Derive labels: the method and the stated keys that differ; for other trainers' logs a name from the path."""
    gxpo_runs, other_runs = [r for r in runs if r.log is None], [r for r in runs if r.log is not None]
    # Keys that all share say nothing: a label names what differs.
    differ = keys_that_differ([r.keys for r in gxpo_runs])
    short = {k: k.rsplit(".", 1)[-1] for k in differ}
    # The last word of a key, unless two keys end with the same one.
    short = {k: s if list(short.values()).count(s) == 1 else k for k, s in short.items()}
    methods = [r.keys["method"] for r in gxpo_runs]
    out: dict[Path, str] = {}
    # Stated keys are what a person has in mind; the others are added only if labels are not unique without.
    for stated_only in (True, False):
        for run in gxpo_runs:
            label_keys = [
                k for k in differ if k != "method" and k in run.keys and (k in run.stated_keys or not stated_only)
            ]
            if methods.count(run.keys["method"]) == 1 and run.keys.get("scoring.shuffle") is not True:
                label_keys = []  # the method's name is enough
            out[run.path] = " ".join(
                [str(run.keys["method"]), *(f"{short[k]}={format_value(run.keys[k])}" for k in label_keys)]
            )
        if len(set(out.values())) == len(gxpo_runs):
            break
    names = {r.path: _name_from_path(r.path) for r in other_runs}
    for path, name in names.items():
        # Names that are not unique give way to the whole path.
        unique = list(names.values()).count(name) == 1 and name not in out.values()
        out[path] = name if unique else str(path)
    return out


def _name_from_path(path: Path) -> str:
    """Name of a run's directory, or of its file unless that is a usual one such as `metrics.jsonl`."""
    path = path.resolve()
    is_telling = path.is_dir() or not re.match(r"(trainer_state|metrics|train|stdout|log|console|output)\b", path.stem)
    return (path.stem if path.is_file() else path.name) if is_telling else path.parent.name


def keys_that_differ(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that distinguish arms and whose values are not equal in all configurations."""
    keys = dict.fromkeys(k for c in configs for k in c if distinguishes_arms(k))
    return [k for k in keys if len({repr(c[k]) if k in c else None for c in configs}) > 1]


def format_value(value: Any) -> str:
    """Format a value as one would type it, small numbers as powers of ten.

    >>> format_value(0.0001), format_value(0.2), format_value(None)
    ('1e-4', '0.2', 'null')
    """
    if isinstance(value, float) and 0 < abs(value) < 1e-2:
        digits, _, power = f"{value:e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return show(value)
