"""Files of a run below a directory, and which reader each is for, by content."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from gxpo.base.errors import MissingExtra
from gxpo.doctor.readers import configs, console, events, json_files, keys, table, text
from gxpo.doctor.readers.found import Found

MOST_FILES = 20_000
SKIPPED_DIRS = {"node_modules", "__pycache__", "site-packages", "venv"}
HIDDEN_DIRS_READ = {".hydra"}
# Weights, archives, pictures, programs: not opened at all. What is pickled could run code.
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".distcp")
SKIPPED = (
    *PICKLED,
    *(".safetensors", ".gguf", ".onnx", ".npz", ".npy", ".h5", ".msgpack", ".model"),
    *(".zip", ".tar", ".gz", ".bz2", ".xz", ".zst", ".whl"),
    *(".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".pdf", ".html", ".htm", ".ipynb", ".css", ".js", ".woff2"),
    *(".py", ".pyc", ".so", ".c", ".h", ".cpp", ".cu", ".lock"),
    *("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", ".index.json"),
    "ledger.jsonl",  # of gxpo's asynchronous runs: groups, no figures
)
_HEAD = 65_536


def candidates(root: Path) -> tuple[list[Path], list[str]]:
    """Files to try, in the order of their names, and notes on those that were left out."""
    if not root.is_dir():
        return [root], []
    files: list[Path] = []
    pickled: list[str] = []
    for where, dirs, names in os.walk(root):
        dirs[:] = sorted(d for d in dirs if d not in SKIPPED_DIRS and (d[:1] != "." or d in HIDDEN_DIRS_READ))
        for name in sorted(names):
            path = Path(where, name)
            if name.lower().endswith(PICKLED):
                pickled.append(path.relative_to(root).as_posix())
            elif not name.lower().endswith(SKIPPED) and name[:1] != "." and path.is_file():
                files.append(path)
    notes = []
    if pickled:
        shown = ", ".join(pickled[:5]) + ", ..." * (len(pickled) > 5)
        notes.append(f"not opened, as unpickling could run code: {shown}")
    if len(files) > MOST_FILES:
        notes.append(f"{len(files):,} files: only the first {MOST_FILES:,} were tried")
    return files[:MOST_FILES], notes


def recognised(path: Path) -> Found | None:
    """What the file holds, or None: a dump of rollouts, or nothing that is known."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
        if events.MARK in head[:64]:
            return _events(path)
        code = text.encoding(head)
        if (code != "utf-16" and b"\0" in head[:4096]) or not head.strip():
            return None
        start = head.decode(code, errors="replace").lstrip("\ufeff \t\r\n")
        return _text(path, start)
    except OSError as error:
        return Found("config", notes=[f"can't be read: {error.strerror}"])


def _events(path: Path) -> Found | None:
    try:
        return events.read(path)
    except MissingExtra as error:
        return Found("events", notes=[str(error)])


def _text(path: Path, start: str) -> Found | None:
    notes: list[str] = []
    size = path.stat().st_size
    found: Found | None = None
    if start[:1] in ("{", "["):
        first, more, _ = start.partition("\n")
        if not more:  # the line is longer than the head
            first = next((line for line in text.lines(path, []) if line.strip()), "").strip("\ufeff \t")
        if json_files.is_dump(first):
            return None
        if len(first) > 2 and first[0] == "{":
            found = json_files.from_lines(text.lines(path, notes))
        if found is None:
            found = json_files.from_text(text.whole(path))
        if found is not None and found.kind == "config":
            return configs.from_settings(found.settings)
        if found is not None and (not found.rows or _training(found)):
            found.notes += notes
            return found
    if size <= 50_000_000 and any(mark in start for mark in ("\t", ",", "|", ";")):
        found = table.read(text.whole(path), path.name)
        if found is not None and len(found.rows) > 0:
            return found
    notes = []
    found = console.read(text.chunks(path, notes))
    found.notes += notes
    if found.rows or found.messages or (found.settings and configs.trainer(found.settings)):
        return found
    return configs.from_text(text.whole(path)) if size <= configs.LARGEST else None


def _training(found: Found) -> bool:
    """Whether the rows have any figure of training."""
    return any(keys.known(key) for _, row in itertools.islice(found.rows, 200) for key in row)


def dump_source(path: Path) -> str:
    """The trainer that wrote a dump of rollouts, by its first row."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return "unknown"
    if head[:4] == b"PAR1":
        return "trl"
    if b"gxpo.sampling.rollouts" in head[:200]:
        return "gxpo"
    return "verl" if all(f'"{key}":'.encode() in head for key in ("input", "output", "gts", "score")) else "unknown"
