"""SHA-256 of the data and code files that a run's configuration names.

Every checkpoint holds them, so that a run is not resumed with other data or code unnoticed. Files that a named file
imports or reads are not among them.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gxpo.base.errors import CheckpointError
from gxpo.base.usercode import split
from gxpo.parts.definition import SettingValue, show, stage_of
from gxpo.training.config import HERE

# Names of models, directories and programs, not of data or code.
_OTHER = ("model", "out", "init_from", "sampling.engine_python", "sampling.engine_options", "versions")
MODELS = "rollout.models"  # whose weights are data: checkpoints that play roles
_INSTALLED = tuple(sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib"))


def hashes(keys: Mapping[str, SettingValue], source: Any = None, home: Path | None = None) -> dict[str, str]:
    """Path as written -> SHA-256 for every file that a value names; "dataset:ID" -> SHA-256 of its rows. Files in
    `home`, the run directory, are named as config.yaml names them.

    A value may be PATH or PATH:NAME; in a method's keys also package.module:NAME, for modules outside site-packages.
    Files in GXPO_METHODS count if the method is one of theirs.
    """
    begin = None if home is None else f"{home}/"
    digest_by_path = {
        HERE + path[len(begin) :] if begin is not None and path.startswith(begin) else path: of_file(path)
        for path in _paths(keys)
    }
    if hasattr(source, "fingerprint"):
        digest_by_path[source.name] = source.fingerprint()
    return {path: digest for path, digest in digest_by_path.items() if digest is not None}


def of_file(path: str, home: Path | None = None) -> str | None:
    """SHA-256 of a file's content, None if there is no such file; `home`: the run that `run:` names files of."""
    location = Path(path).expanduser()
    if home is not None and path.startswith(HERE):
        location = home / path.removeprefix(HERE)
    try:
        # In blocks: data files may be larger than memory.
        with open(location, "rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return None
    return digest.hexdigest()


def refuse_changes(run: Path, recorded_digests: Mapping[str, str], digests: Mapping[str, str | None]) -> None:
    """`CheckpointError` that names every file which differs from what the checkpoint of `run` recorded."""
    changed_names = [
        f"{name}{'' if digests[name] else ' (missing)'}" for name in digests if digests[name] != recorded_digests[name]
    ]
    if changed_names:
        raise CheckpointError(
            f"changed since the checkpoint of {run}: {', '.join(changed_names)}; restore, or resume with "
            "--allow-changed-data (in Python allow_changed_data=True)"
        )


def _paths(keys: Mapping[str, SettingValue]) -> list[str]:
    """Existing files that the values of these keys name, each once."""
    paths = list(_method_files(str(keys["method"].value) if "method" in keys else ""))
    for key, setting in keys.items():
        if key in _OTHER or key.split(".")[0] == "versions":
            continue
        if key.startswith(MODELS):
            from gxpo.training.models.load import weight_files  # loads transformers

            paths += [file for text in _texts(setting.value) for file in weight_files(text)]
        for text in _texts(setting.value):
            path_text, name = split(text)
            paths += [path for path in (text, path_text) if _is_file(path)]
            if name and stage_of(key) is not None:
                paths += _module_file(path_text)
    return list(dict.fromkeys(paths))


def _texts(value: Any) -> Iterator[str]:
    """Strings within a value; a part or a function as config.yaml writes it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (*_texts(key), *_texts(inner))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)
    elif not isinstance(value, (int, float, type(None))):
        yield show(value)


def _is_file(text: str) -> bool:
    """Return True if a text is the path of an existing file; a bare word such as `grpo` is not taken as one."""
    if "." not in text and "/" not in text:
        return False
    try:
        return Path(text).expanduser().is_file()
    except (OSError, ValueError):  # longer than a path may be, or with a null in it
        return False


def _module_file(name: str) -> list[str]:
    file = getattr(sys.modules.get(name), "__file__", None)
    return [file] if file is not None and not file.startswith(_INSTALLED) else []


def _method_files(spec: str) -> Iterator[str]:
    names = re.split(r"[+@\s]+", spec)
    for path in filter(None, os.environ.get("GXPO_METHODS", "").split(os.pathsep)):
        if Path(path).stem in names:
            yield path
