"""Source of an environment class: its module or file and its options, loaded identically in every process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError


@dataclass(frozen=True)
class EnvSource:
    """An environment class before loading: from an importable module, or a user's file, sent with its code.

    name     of the environment in messages and records
    kind     name of the class
    module   importable module that has it; or
    file     the file that has it, and `code`, its content when the run began
    options  for the constructor, by keyword
    trusted  gxpo's own code that can't hang: it may run in the trainer's process
    """

    name: str
    kind: str
    module: str | None = None
    file: str | None = None
    code: bytes = b""
    options: Mapping[str, Any] = field(default_factory=dict)
    trusted: bool = False

    @classmethod
    def of_module(
        cls, path: str, options: Mapping[str, Any] | None = None, *, name: str | None = None, trusted: bool = False
    ) -> EnvSource:
        """Make a source from "package.module:Class"."""
        module, colon, kind = path.partition(":")
        if not colon or not module or not kind:
            raise ConfigError(f"environment {path!r}: name a class of a module, as in package.module:Class")
        return cls(name or path, kind, module, options=dict(options or {}), trusted=trusted)

    @classmethod
    def of_file(cls, text: str, options: Mapping[str, Any] | None = None) -> EnvSource:
        """Make a source from "path/to/my_env.py:MyEnv", relative to the current directory; the file is read here."""
        path, colon, kind = text.rpartition(":")
        if not colon or not kind.isidentifier():
            raise ConfigError(f"environment {text!r}: name a class in the file, as in my_env.py:MyEnv")
        file = Path(path).expanduser()
        if not file.is_file():
            raise ConfigError(f"environment {text!r}: there is no file {path} (looked in {Path.cwd()})")
        file = file.resolve()
        # the code travels along: an edit of the file during a run changes nothing in it
        return cls(text, kind, file=str(file), code=file.read_bytes(), options=dict(options or {}))

    def for_host(self) -> dict[str, Any]:
        """Arguments of `gxpo.environments.envs.host.Host`."""
        common = {"name": self.kind, "options": dict(self.options)}
        if self.file is None:
            return {"module": self.module, **common}
        return {"file": self.file, "folder": str(Path(self.file).parent), "code": self.code, **common}
