"""Cache directory for models that gxpo makes, filled atomically."""

from __future__ import annotations

import ast
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_directory(cache: str | os.PathLike[str] | None = None) -> Path:
    """The cache directory: `cache`, else $GXPO_CACHE, else $XDG_CACHE_HOME/gxpo, else ~/.cache/gxpo."""
    if cache is not None:
        return Path(cache)
    if environment_path := os.environ.get("GXPO_CACHE"):
        return Path(environment_path)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gxpo"


def code_of(source: Path) -> bytes:
    """Syntax tree of a Python file without docstrings and comments, for keys of caches: wording makes no model anew."""
    tree = ast.parse(source.read_bytes())
    for node in ast.walk(tree):
        has_body = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if has_body and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree).encode()


def put(target: Path, fill: Callable[[Path], None]) -> Path:
    """Create the directory `target` atomically with `fill`; safe for concurrent processes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # fill a sibling first and rename it: a process that is killed half-way leaves no directory that looks complete
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(partial)
        # mkdtemp makes a directory that only its owner may read, and a cache may be shared
        partial.chmod(0o755)
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster, with the same files
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target
