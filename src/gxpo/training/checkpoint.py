"""Checkpoints that a kill at any instant, a full disk or a damaged file can't turn into a wrong run.

`checkpoints/step-000040/` holds `tensors.safetensors`, `state.json` and `manifest.json` (size and SHA-256 of the other
files), and, where processes hold the parameters in shards, their files under `engine/`. It is written under a hidden
name, every file and directory is flushed to the disk, and one rename makes it visible; whatever else stands hidden in
`checkpoints/` is a leftover that the next `save` removes. Nothing is unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import Tensor

from gxpo.base import media, runtime
from gxpo.base.errors import CheckpointError, need
from gxpo.base.media import PICTURES, REF
from gxpo.learning.parameter_checks import first_not_finite

T = TypeVar("T")
FOLDER = "checkpoints"
ENGINE = "engine"  # below a checkpoint: what a learner writes by itself
FORMAT = "gxpo.checkpoint/1"
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
_NAME = re.compile(r"step-(\d{6,})")
_ENGINE_FILE = re.compile(rf"{ENGINE}(/[\w][\w.-]*)+")
_PARTIAL, _REMOVED, _REPLACED = ".partial-", ".removed-", ".replaced-"
_REMEDY = {
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "free space or raise the disk quota",
    errno.EFBIG: "raise the limit on file size (ulimit -f)",
    errno.EACCES: "give write permission to that directory",
    errno.EPERM: "give write permission to that directory",
    errno.ENOENT: "make sure that its directory stays",
    errno.EROFS: "choose an out directory that can be written",
}


def save(
    run: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: int,
    also_keep: Collection[int] = (),
    engine: Callable[[Path], None] | None = None,
) -> Path:
    """Write the checkpoint of `step` and return its directory; the newest `keep` up to `step` stay, and those of the
    steps in `also`; others go after it.

    engine  writes further files below the directory that it is given. With it all processes call `save`, and go on
            when the checkpoint is there; without it one of them does

    `state` is JSON: strings as keys; tuples come back as lists; floats come back exactly. Tensors that share memory are
    stored as copies. Checkpoints of later steps are of a line that the run has left, and go too. `CheckpointError` when
    anything can't be written; the checkpoints that were there stay.
    """
    if keep < 1:
        raise CheckpointError(f"keep is {keep}: at least one checkpoint must be kept")
    final = at_step(run, step)
    folder = final.parent
    # Everything is written under a hidden name; one rename at the end makes the checkpoint visible.
    partial = folder / f"{_PARTIAL}{final.name}"
    writes_files = engine is None or runtime.rank() == 0
    files = {TENSORS: _tensor_bytes(tensors), STATE: _state_bytes(state)} if writes_files else {}
    # Stored rollouts in the state name their pictures, which have to outlive memory: beside the rollouts.
    if pictures := REF.findall(files.get(STATE, b"").decode()):
        with _saving(run, step, partial):
            PICTURES.save((f"sha256:{digest}.{kind}" for digest, kind in pictures), pictures_of(run))
    if engine is None:
        with _saving(run, step, partial):
            _prepare(run, partial)
            _complete(final, partial, step, files, {})
    else:
        # Every process takes part in each action, and all fail where one fails: none is left waiting at a barrier.
        with _saving(run, step, partial):
            _in_all_processes(lambda: _prepare(run, partial) if writes_files else None)
            _in_all_processes(lambda: engine(partial / ENGINE))
            shards = _in_all_processes(lambda: _shard_entries(partial))
            _in_all_processes(lambda: _complete(final, partial, step, files, shards) if writes_files else None)
    # Only now: a kill before this line leaves one checkpoint too many, never one too few.
    if writes_files:
        _prune(folder, step, keep, also_keep)
    return final


@contextmanager
def _saving(run: Path, step: int, partial: Path) -> Iterator[None]:
    """Context of writing a checkpoint: a failure removes the partial files, and its message says what to do."""
    try:
        yield
    except BaseException as error:
        # The size tells how much of the disk was needed before it failed.
        size = sum(f.stat().st_size for f in partial.rglob("*") if f.is_file()) / 1e6
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise CheckpointError(
                f"checkpoint of step {step} not saved in {partial.parent} ({size:.1f} MB written): {_reason(error)}; "
                f"earlier checkpoints are kept: {_remedy(error)}, then gxpo resume {run}"
            ) from error
        raise


def _prepare(run: Path, partial: Path) -> None:
    _make_folder(partial.parent)
    clean(run)
    os.mkdir(partial)


def _complete(
    final: Path, partial: Path, step: int, files: Mapping[str, bytes], shards: Mapping[str, dict[str, Any]]
) -> None:
    """Write the files of one process, then the manifest; then make the checkpoint visible by one rename."""
    entries = {**{name: _entry(data) for name, data in files.items()}, **shards}
    manifest = json.dumps({"format": FORMAT, "step": step, "files": entries}, indent=1).encode()
    for name, data in {**files, MANIFEST: manifest}.items():
        _write(partial / name, data)
    _sync_directory(partial)
    old = final.with_name(f"{_REPLACED}{final.name}")
    if final.exists():  # a directory can't be replaced in one step; `_checkpoints` still finds it under the other name
        os.rename(final, old)
    os.rename(partial, final)
    _sync_directory(final.parent)


# ---------------------------------------------------------------- files that several processes write
def _in_all_processes(action: Callable[[], T]) -> T:
    """Run an action in every process and return its result here; if it fails in one, it fails in all."""
    result, error = None, None
    try:
        result = action()
    except Exception as caught:
        error = caught
    # A collective, reached by all processes: one that failed alone would leave the others waiting at the next.
    failure = runtime.first_of("" if error is None else str(error) or type(error).__name__)
    if error is not None:
        raise error
    if failure:
        raise CheckpointError(f"checkpoint not saved: another process reports {failure}")
    return cast("T", result)


def _shard_entries(partial: Path) -> dict[str, Any]:
    """Entries of the files under `engine/`; each process reads its share of them."""
    files = sorted(f.relative_to(partial).as_posix() for f in (partial / ENGINE).rglob("*") if f.is_file())
    entries = {name: _file_entry(partial / name) for name in files[runtime.rank() :: runtime.world()]}
    for folder in [partial / ENGINE, *(f for f in (partial / ENGINE).rglob("*") if f.is_dir())]:
        _sync_directory(folder)
    shares = [json.loads(blob) for blob in runtime.gather(json.dumps(entries).encode())]
    return {name: entry for share in shares for name, entry in sorted(share.items())}


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the tensors (on the CPU, all finite) and the state of the directory `path`, checked against its manifest.

    Files under `engine/` are read by the engine that wrote them, or by `gxpo.training.shards`.
    """
    path = Path(path)
    PICTURES.look_in(pictures_of(path.parent.parent))
    entries = _manifest(path)
    data = {name: _read(path / name) for name in (TENSORS, STATE)}
    # The checksum first: the parser of a damaged file may fail in any way, or not at all.
    for name, content in data.items():
        _compare(path / name, _entry(content), entries[name])
    safetensors: Any = need("safetensors.torch", "train")
    try:
        tensors = safetensors.load(data[TENSORS])
    except Exception as error:  # the library's own type; the checksum held, so the file was never one
        raise CheckpointError(f"damaged checkpoint: {path / TENSORS} is not a safetensors file") from error
    # A checkpoint with a nan would resume into a run that learns nothing.
    if bad_name := first_not_finite(tensors):
        raise CheckpointError(f"damaged checkpoint: {bad_name!r} in {path / TENSORS} has values that are not finite")
    return tensors, json.loads(data[STATE])


def pictures_of(run: Path) -> Path:
    """Folder of a run's pictures, beside its rollouts."""
    return run / "rollouts" / media.FOLDER


def pictures_kept(run: Path) -> AbstractContextManager[None]:
    """Context in which pictures of stored rollouts may leave memory for the run's folder of pictures."""
    return PICTURES.kept_in(pictures_of(run))


def newest_state(run: Path) -> dict[str, Any]:
    """Load the state of the newest checkpoint of `run` whose state is whole; no tensors are read."""
    damage: list[CheckpointError] = []
    for _, path in sorted(_checkpoints(Path(run) / FOLDER).items(), reverse=True):
        try:
            return state_of(path)
        except CheckpointError as error:
            if path.exists():
                damage.append(error)
    raise _no_checkpoint(run, damage)


def state_of(path: Path) -> dict[str, Any]:
    """Load the state of the checkpoint directory `path`; no tensors are read."""
    path = Path(path)
    entries, content = _manifest(path), _read(path / STATE)
    _compare(path / STATE, _entry(content), entries[STATE])
    return json.loads(content)


def at_step(run: Path, step: int) -> Path:
    """The directory of the checkpoint of a step."""
    return Path(run) / FOLDER / f"step-{step:06d}"


def steps(run: Path) -> list[int]:
    """Steps of the checkpoints of `run`, damaged ones included."""
    return sorted(_checkpoints(Path(run) / FOLDER))


def verify(path: Path) -> None:
    """Raise `CheckpointError` naming the damaged file unless the checkpoint directory `path` is whole."""
    path = Path(path)
    entries = _manifest(path)
    for name in entries:
        try:
            entry = _file_entry(path / name)
        except OSError as error:
            raise CheckpointError(f"damaged checkpoint: {path / name}: {_reason(error)}") from error
        _compare(path / name, entry, entries[name])


def latest(run: Path) -> Path:
    """The newest whole checkpoint of `run`; a newer damaged one is reported by a warning, and raises if it is all."""
    damage: list[CheckpointError] = []
    for _, path in sorted(_checkpoints(Path(run) / FOLDER).items(), reverse=True):
        try:
            # Newest first, each verified as a whole: a kill while writing damages only the newest.
            verify(path)
        except CheckpointError as error:
            if path.exists():  # else a running trainer has just removed it
                damage.append(error)
            continue
        for error in damage:
            warnings.warn(f"{error}; using the older {path.name} instead", stacklevel=2)
        return path
    raise _no_checkpoint(run, damage)


def _no_checkpoint(run: Path, damage: list[CheckpointError]) -> CheckpointError:
    """Build the error for a run without a usable checkpoint."""
    if damage:
        return CheckpointError(f"{damage[0]}; no older checkpoint of {run} is whole: start the run again")
    return CheckpointError(
        f"no checkpoint in {Path(run) / FOLDER}: is {run} a run directory, and did it reach its first?"
    )


def clean(run: Path) -> None:
    """Remove partial files of a killed `save`. For the run's writer only: a save in progress looks like one."""
    folder = Path(run) / FOLDER
    for path in folder.glob(f"{_REPLACED}step-*"):
        original = folder / path.name.removeprefix(_REPLACED)
        if not original.exists():
            os.rename(path, original)
    for prefix in (_PARTIAL, _REMOVED, _REPLACED):
        for path in folder.glob(f"{prefix}step-*"):
            shutil.rmtree(path)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that at every instant it is either the old one or the whole new one."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        # Written beside and renamed: a reader, or a kill, never meets half a file.
        _write(partial, content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
        # The name has to be on the disk too, or a power cut brings the old file back.
        _sync_directory(path.parent)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CheckpointError(f"{path} not written: {_reason(error)}; {_remedy(error)}") from error
        raise


def _checkpoints(folder: Path) -> dict[int, Path]:
    """Step -> directory. A checkpoint moved aside by a save that was killed before its rename still counts."""
    out = {}
    for prefix in (_REPLACED, ""):
        for path in folder.glob(f"{prefix}step-*"):
            match = _NAME.fullmatch(path.name.removeprefix(prefix))
            if match:
                out[int(match[1])] = path
    return out


def _prune(folder: Path, step: int, keep: int, also: Collection[int]) -> None:
    path_by_step = _checkpoints(folder)
    steps_kept = {*sorted((s for s in path_by_step if s <= step), reverse=True)[:keep], *also}
    try:
        for path in (path for s, path in path_by_step.items() if s not in steps_kept):
            # Hidden before it is taken apart: a half removed checkpoint would look damaged.
            os.rename(path, folder / f"{_REMOVED}{path.name}")
        clean(folder.parent)
    except OSError as error:
        warnings.warn(f"old checkpoints not removed from {folder}: {_reason(error)}", stacklevel=3)


def _tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    # Bytes first, then our own write: the library's writer reports a full disk by errors of its own.
    safetensors: Any = need("safetensors.torch", "train")
    storages: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().to("cpu", copy=False).contiguous()
        storage = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return safetensors.save(plain)


def _state_bytes(state: Mapping[str, Any]) -> bytes:
    def check(value: Any, where: str) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise CheckpointError(
                        f"state{where} has the key {key!r}: keys must be strings to come back as saved"
                    )
                check(inner, f"{where}.{key}")
        elif isinstance(value, list | tuple):
            for i, inner in enumerate(value):
                check(inner, f"{where}[{i}]")
        elif not isinstance(value, str | int | float | None):
            raise CheckpointError(f"state{where} is a {type(value).__name__}: only JSON values can be saved there")

    check(state, "")
    return json.dumps(state).encode()


def _entry(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _file_entry(path: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest's entries by file name."""
    try:
        manifest = json.loads(_read(path / MANIFEST))
        files = manifest["files"]
        shards = [name for name in files if _ENGINE_FILE.fullmatch(name)]
        entries = {name: dict(files[name]) for name in (TENSORS, STATE, *shards)}
        is_known_format = manifest["format"] == FORMAT
        step = int(manifest["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"damaged checkpoint: {path / MANIFEST} is not a manifest") from error
    if not is_known_format:
        raise CheckpointError(f"{path} has format {manifest['format']!r}, this gxpo reads {FORMAT!r}")
    # A directory that was renamed by hand would resume at the wrong step.
    match = _NAME.fullmatch(path.name.removeprefix(_REPLACED))
    if match and int(match[1]) != step:
        raise CheckpointError(f"damaged checkpoint: {path / MANIFEST} says step {step}, its directory {path.name}")
    return entries


def _compare(path: Path, entry: dict[str, Any], expected: dict[str, Any]) -> None:
    if entry["size"] != expected.get("size"):
        raise CheckpointError(f"damaged checkpoint: {path} has {entry['size']} bytes, not {expected.get('size')}")
    if entry["sha256"] != expected.get("sha256"):
        raise CheckpointError(f"damaged checkpoint: the checksum of {path} differs")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"damaged checkpoint: {path}: {_reason(error)}") from error


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _sync_directory(folder.parent)


def _sync_directory(path: Path) -> None:
    if os.name == "nt":  # no such thing there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _remedy(error: OSError) -> str:
    return _REMEDY.get(error.errno or 0, "see to that")
