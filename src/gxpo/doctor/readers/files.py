"""Files of a run below a directory, and which reader each is for, by content."""

from __future__ import annotations

import os
from pathlib import Path

from gxpo.doctor.readers import json_files
from gxpo.doctor.readers.found import Found

MOST_FILES = 20_000
SKIPPED_DIRS = {"node_modules", "__pycache__", "site-packages", "venv", ".git"}
HIDDEN_DIRS_READ = {".hydra"}
# Weights, archives, pictures, programs: not opened at all. What is pickled could run code.
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".distcp")
SKIPPED = (
    *PICKLED,
    *(".safetensors", ".gguf", ".onnx", ".npz", ".npy", ".h5", ".msgpack", ".model"),
    *(".zip", ".tar", ".gz", ".bz2", ".xz", ".zst", ".whl"),
    *(".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".pdf", ".html", ".htm", ".ipynb", ".css", ".js", ".woff2"),
    *(".py", ".pyc", ".so", ".sh", ".c", ".h", ".cpp", ".cu", ".lock"),
)


def candidates(root: Path) -> tuple[list[Path], list[str]]:
    """Files to try, in the order of their names, and notes on those that were left out."""
    if not root.is_dir():
        return [root], []
    files: list[Path] = []
    pickled: list[str] = []
    for where, dirs, names in os.walk(root):
        dirs[:] = sorted(d for d in dirs if d not in SKIPPED_DIRS and (not d.startswith(".") or d in HIDDEN_DIRS_READ))
        for name in sorted(names):
            path = Path(where, name)
            if name.lower().endswith(PICKLED):
                pickled.append(path.relative_to(root).as_posix())
            elif not name.lower().endswith(SKIPPED) and not name.startswith(".") and path.is_file():
                files.append(path)
    notes = []
    if pickled:
        notes.append(
            f"not opened, as unpickling could run code: {', '.join(pickled[:5])}" + ", ..." * (len(pickled) > 5)
        )
    if len(files) > MOST_FILES:
        notes.append(f"{len(files):,} files: only the first {MOST_FILES:,} were tried")
    return files[:MOST_FILES], notes


def recognised(path: Path) -> Found | None:
    """What the file holds, or None: a dump of rollouts, or nothing that is known."""
    try:
        with path.open("rb") as stream:
            head = stream.read(65536)
    except OSError:
        return None
    if b"\0" in head[:4096] or not head.strip():
        return None
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if text[:1] not in "{[":
        return None
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            first = text.split("\n", 1)[0]
            if _is_line(first):
                found = json_files.from_lines(stream)
                if found is not None:
                    return found
        return json_files.from_text(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def _is_line(line: str) -> bool:
    return line.startswith("{") and line.rstrip().endswith("}") and len(line) > 2
