"""Runs that exist, found under the paths that were given, and the arms that they are runs of."""

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
from gxpo.training.directory import CONFIG

DEPTH = 2  # of run directories below a path that was given
TUNING = "tuning"  # directory of runs that `gxpo compare` never reports
_LABELLED = re.compile(r"(?P<label>[^=/]+)=(?P<path>.+)", re.DOTALL)
_INNER = re.compile(r"\((?P<origin>[^()]*)\)$")
# What a run's result does not depend on, or depends on but is read from its lines: no arm differs by it.
UNTELLING = (
    "seed", "out", "init_from", "trainer", "doctor", "versions", "eval.every", "eval.points", "env.workers",
    "env.timeout", "env.concurrency", "scoring.workers", "scoring.timeout", "sampling.batch_rows", "sampling.engine",
    "sampling.engine_python", "sampling.engine_options", "sampling.servers", "sampling.products", "learner.device",
    "learner.kernels", "learner.tokens_per_microbatch", "learner.images_per_microbatch",
    "learner.products", "learner.recompute", "learner.layout", "learner.attention", "cluster.train",
    "cluster.sample", "cluster.sync.timeout",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """One run.

    folder  the label that the user or its directory gives; "" where its configuration names it
    keys    gxpo: its configuration, key -> value; empty for other trainers
    stated  gxpo: the keys that somebody stated, neither default nor brought by the method
    log     other trainers: what the doctor reads
    seed    None where nothing tells
    given   whether the user wrote the label
    """

    path: Path
    folder: str
    keys: Mapping[str, Any]
    stated: frozenset[str]
    log: RunLog | None
    seed: int | None
    given: bool = False

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """The configuration that runs of one arm share."""
        return tuple(sorted((k, repr(v)) for k, v in self.keys.items() if tells(k)))


@dataclass(frozen=True)
class Group:
    """Runs of one arm, and its label."""

    label: str
    runs: tuple[Found, ...]

    @property
    def keys(self) -> Mapping[str, Any]:
        return self.runs[0].keys

    @property
    def shuffled(self) -> bool:
        return self.keys.get("scoring.shuffle") is True


def tells(key: str) -> bool:
    """Whether arms may differ by a key."""
    return not any(key == name or key.startswith(f"{name}.") for name in UNTELLING)


def find(texts: Sequence[str | Path], labels: Mapping[str, str]) -> list[Found]:
    """The runs at paths, each PATH or LABEL=PATH; `labels`: path -> label. `RecordError` where there are none."""
    out: dict[Path, Found] = {}
    for text in map(str, texts):
        label, path = labels.get(text, ""), Path(text)
        if not path.exists() and (named := _LABELLED.fullmatch(text)):
            label, path = named["label"].strip(), Path(named["path"].strip())
        if not path.exists():
            raise RecordError(f"{path}: no such file or directory")
        for one in _at(path):
            one = replace(one, folder=label, given=True) if label else one
            if out.setdefault(one.path.resolve(), one) is not one:
                raise ConfigError(f"{one.path} is given twice")
    return list(out.values())


def _at(path: Path) -> list[Found]:
    if (own := gxpo_run(path)) is not None:
        return [own]
    below = sorted(p.parent for depth in range(1, DEPTH + 1) for p in path.glob("*/" * depth + CONFIG))
    below = [p for p in below if TUNING not in p.relative_to(path).parts]
    runs = [replace(one, folder=p.parent.name) for p in below if (one := gxpo_run(p)) is not None]
    return runs or _foreign(path)


def gxpo_run(path: Path) -> Found | None:
    """The run directory; None where it is none of gxpo's."""
    if not (path / CONFIG).is_file():
        return None
    try:
        keys = config.read(path / CONFIG)
    except ConfigError:
        return None
    if not {"method", "task", "model", "seed"} <= keys.keys():
        return None
    lines = (path / CONFIG).read_text(encoding="utf-8").splitlines()
    words = str(keys["method"].value).split("+")
    unstated = {"default", *words, *(w.split("@")[0] for w in words)}
    stated = frozenset(k for k, s in keys.items() if _origin(lines, s.origin) not in unstated)
    values = {k: s.value for k, s in keys.items()}
    return Found(path, "", values, stated, None, int(values["seed"]))


def _origin(lines: Sequence[str], at: str) -> str:
    """Who stated a key, from the comment that the run wrote behind it; `at`: FILE:LINE."""
    number = at.rpartition(":")[2]
    comment = lines[int(number) - 1].rpartition("# ")[2].strip() if number.isdigit() else ""
    inner = _INNER.search(comment)
    return inner["origin"] if inner else comment


def _foreign(path: Path) -> list[Found]:
    """One run of another trainer, or those in the directories or files of a directory."""
    try:
        log = read(path)
    except RecordError:
        inside = sorted(p for p in path.iterdir() if not p.name.startswith(".")) if path.is_dir() else []
        logs = [(p, read(p)) for p in inside]
        if not (several := [(p, log) for p, log in logs if log.series]):
            raise
        return [Found(p, path.name, {}, frozenset(), log, seed_of(p)) for p, log in several]
    if not log.series:
        raise RecordError(f"{path}: no figures of a training run were found in it")
    return [Found(path, "", {}, frozenset(), log, seed_of(path))]


# ---------------------------------------------------------------- arms
def grouped(runs: Sequence[Found]) -> list[Group]:
    """Runs by arm: those of one label that the user gave, of one directory, or of one configuration."""
    mixed = {
        f for f in {r.folder for r in runs} if len({r.identity for r in runs if r.folder == f and not r.given}) > 1
    }
    groups: dict[Any, list[Found]] = {}
    for run in runs:
        named = run.folder and (run.given or run.folder not in mixed)
        key = run.folder if named else run.identity if run.log is None else ("path", run.path)
        groups.setdefault(key, []).append(run)
    derived = _labels([found[0] for key, found in groups.items() if not isinstance(key, str)])
    out = []
    for key, found in groups.items():
        label = key if isinstance(key, str) else derived[found[0].path]
        out.append(Group(label, tuple(_numbered(label, found))))
    return out


def _numbered(label: str, runs: Sequence[Found]) -> Iterable[Found]:
    """The runs with seeds; those that have none take the next ones that are free, in order."""
    taken: dict[int, Path] = {}
    for run in runs:
        if run.seed is not None and taken.setdefault(run.seed, run.path) != run.path:
            raise ConfigError(
                f"two runs of arm {label} have seed {run.seed}: {taken[run.seed]} and {run.path}: give one a label of "
                "its own, LABEL=PATH"
            )
    free = (n for n in range(len(runs) + len(taken)) if n not in taken)
    return [run if run.seed is not None else replace(run, seed=next(free)) for run in runs]


def _labels(runs: Sequence[Found]) -> dict[Path, str]:
    """Labels from configurations: the method and what was stated and differs; other trainers': from the path."""
    own, other = [r for r in runs if r.log is None], [r for r in runs if r.log is not None]
    differ = differing([r.keys for r in own])
    short = {k: k.rsplit(".", 1)[-1] for k in differ}
    short = {k: s if list(short.values()).count(s) == 1 else k for k, s in short.items()}
    methods = [r.keys["method"] for r in own]
    out: dict[Path, str] = {}
    for stated_only in (True, False):
        for run in own:
            held = [k for k in differ if k != "method" and k in run.keys and (k in run.stated or not stated_only)]
            if methods.count(run.keys["method"]) == 1 and run.keys.get("scoring.shuffle") is not True:
                held = []  # the method's name tells it apart
            out[run.path] = " ".join([str(run.keys["method"]), *(f"{short[k]}={said(run.keys[k])}" for k in held)])
        if len(set(out.values())) == len(own):
            break
    names = {r.path: _name(r.path) for r in other}
    for path, name in names.items():
        unique = list(names.values()).count(name) == 1 and name not in out.values()
        out[path] = name if unique else str(path)
    return out


def _name(path: Path) -> str:
    """Name of a run's directory, or of its file where that tells more than `metrics.jsonl`."""
    path = path.resolve()
    told = path.is_dir() or not re.match(r"(trainer_state|metrics|train|stdout|log|console|output)\b", path.stem)
    return (path.stem if path.is_file() else path.name) if told else path.parent.name


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that tell and whose values are not equal in all configurations."""
    keys = dict.fromkeys(k for c in configs for k in c if tells(k))
    return [k for k in keys if len({repr(c[k]) if k in c else None for c in configs}) > 1]


def said(value: Any) -> str:
    """A value as it is typed, small numbers as powers of ten.

    >>> said(0.0001), said(0.2), said(None)
    ('1e-4', '0.2', 'null')
    """
    if isinstance(value, float) and 0 < abs(value) < 1e-2:
        digits, _, power = f"{value:e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return show(value)
