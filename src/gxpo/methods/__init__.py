"""Catalogue of published methods: one file each with idea, mathematics, citation and keys."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator, Mapping

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import Unusable, object_at
from gxpo.parts.definition import Definition


class Catalogue(Mapping[str, Definition]):
    """Mapping of method names to definitions: `methods/NAME.py` holds a Definition called NAME, imported on first use.

    User methods: files NAME.py listed in the environment variable GXPO_METHODS, separated as in PATH.
    """

    def __init__(self) -> None:
        self._names = sorted({m.name for m in pkgutil.iter_modules(__path__)} - {"compat", "compose", "method"})
        self._found: dict[str, Definition] = {}
        self._given: dict[str, Definition] = {}  # by the file's whole path

    def _files(self) -> dict[str, str]:
        """NAME -> path of each user file. ConfigError for a file that can't be a method."""
        found: dict[str, str] = {}
        for path in filter(None, os.environ.get("GXPO_METHODS", "").split(os.pathsep)):
            name, kind = os.path.splitext(os.path.basename(path))
            if kind != ".py":
                raise ConfigError(f"GXPO_METHODS: {path} is no .py file")
            if not os.path.isfile(path):
                raise ConfigError(f"GXPO_METHODS: there is no file {path} (looked in {os.getcwd()})")
            if name in self._names or name in found:
                of = "of gxpo's own" if name in self._names else "of another file"
                raise ConfigError(f"GXPO_METHODS: {path} has the name of a method {of}: rename file and method")
            found[name] = os.path.abspath(path)
        return found

    def _of_user(self, name: str, path: str) -> Definition:
        if path not in self._given:
            try:
                definition = object_at(f"{path}:{name}", always=True)
            except Unusable as error:
                raise ConfigError(f"GXPO_METHODS: {error}") from None
            if not isinstance(definition, Definition) or definition.name != name:
                raise ConfigError(f"GXPO_METHODS: {path}: {name!r} is no Definition named {name!r}")
            self._given[path] = definition
        return self._given[path]

    def __getitem__(self, name: str) -> Definition:
        files = self._files()
        if name in files:
            return self._of_user(name, files[name])
        if name not in self._found:
            if name not in self._names:
                raise KeyError(name)
            definition = getattr(importlib.import_module(f"{__name__}.{name}"), name)
            if definition.name != name:
                raise ValueError(f"methods/{name}.py defines {definition.name!r}: file and method share one name")
            self._found[name] = definition
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._files() or name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter([*self._names, *self._files()])

    def __len__(self) -> int:
        return len(self._names) + len(self._files())


METHODS = Catalogue()
