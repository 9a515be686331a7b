"""Imports of a user's file: it finds the files beside it, and two of one name in different folders are two modules.

A folder is a package of its own, whose name is made from its path. A file of it is loaded as a module of that package,
with an `import` statement that looks there, too, for what no installed library or standard module is called. Relative
imports work as in any package. On the standard library alone: worker processes import it.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any

PREFIX = "gxpo_user_"
_PACKAGES = ("site-packages", "dist-packages")


def load(path: str) -> types.ModuleType:
    """Run a Python file as a module of its folder, anew in each call."""
    # an absolute path, so that a change of directory makes no second module of one file
    path = os.path.abspath(path)
    folder, name = os.path.split(path)
    full = f"{_package(folder)}.{os.path.splitext(name)[0]}"
    spec = importlib.util.spec_from_file_location(full, path, loader=_Loader(full, path))
    assert spec is not None and spec.loader is not None
    # a file that fails leaves what was there before: the next call sees no half-made module
    before = sys.modules.get(full)
    module = sys.modules[full] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[full]
        else:
            sys.modules[full] = before
        raise
    return module


def prepare(module: types.ModuleType, folder: str) -> None:
    """Let the imports of a module, before it is run, find the files of a folder."""
    folder = os.path.abspath(folder)
    module.__package__ = _package(folder)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _Import(folder)}


def _package(folder: str) -> str:
    """The name of a folder's package, which is made where it is missing."""
    # by the folder's real path: two files utils.py of different folders are two modules, and a link makes no third
    name = (
        PREFIX + hashlib.blake2b(os.path.realpath(folder).encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    )
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
    return name


class _Import:
    """The `import` statement of a folder's files."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
    ) -> types.ModuleType:
        top = name.partition(".")[0]
        # libraries win over files beside the user's: one called random.py must not replace Python's
        if level or not self._is_beside(top) or self._is_elsewhere(top):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        package = _package(self.folder)
        module = importlib.import_module(f"{package}.{name}")
        # `from package import module` imports the submodule, which plain attribute access would not find
        for part in fromlist or () if hasattr(module, "__path__") else ():
            if part != "*" and not hasattr(module, part):
                importlib.import_module(f"{package}.{name}.{part}")
        return module if fromlist else sys.modules[f"{package}.{top}"]

    def _is_beside(self, top: str) -> bool:
        path = os.path.join(self.folder, top)
        return os.path.isfile(f"{path}.py") or os.path.isdir(path)

    def _is_elsewhere(self, top: str) -> bool:
        """True of a library, and of a module that was imported from this folder in the usual way."""
        if top in sys.builtin_module_names or top in sys.stdlib_module_names:
            return True
        if (module := sys.modules.get(top)) is not None:
            places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        else:
            spec = PathFinder.find_spec(top)
            places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        paths = [os.path.abspath(place) for place in places if isinstance(place, str)]
        if any(f"{os.sep}{name}{os.sep}" in place for place in paths for name in _PACKAGES):
            return True
        return module is not None and any(os.path.dirname(place) == self.folder for place in paths)


class _Loader(SourceFileLoader):
    """Loads a file of a folder's package; its imports find the folder's files."""

    def exec_module(self, module: types.ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        folder = sys.modules[package].__path__[0]
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _Import(folder)}
        super().exec_module(module)


class _Finder:
    """Finds modules of folders' packages."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(PREFIX) or path is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(name, spec.loader.path)
        return spec
