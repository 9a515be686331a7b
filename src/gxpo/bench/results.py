"""Results of a suite, saved after each row so that an interrupted suite keeps them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError


@dataclass
class Results:
    """Results of `gxpo bench SUITE`.

    machine  what the figures depend on: see `machine.describe`
    path     file that `add` writes; None: nowhere
    """

    suite: str
    machine: Mapping[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    path: Path | None = None

    @classmethod
    def at(cls, path: Path | None, suite: str, machine: Mapping[str, Any]) -> Results:
        """Continue the results of a file, or begin new ones; `ConfigError` if the file belongs to other work."""
        if path is None or not path.exists():
            return cls(suite, _plain(machine), path=path)
        results = cls.load(path)
        if results.suite != suite:
            raise ConfigError(f"{path} holds rows of suite {results.suite}, not {suite}: give another --out")
        now = _plain(machine)
        # Only what both know is compared: newer versions describe more.
        for name in sorted(now.keys() & results.machine.keys()):
            if results.machine[name] != now[name]:
                raise ConfigError(
                    f"{path} was measured with {name} {results.machine[name]}, which is {now[name]} now: give another "
                    "--out"
                )
        results.machine = {**results.machine, **now}  # what only the rows to come depend on
        return results

    @classmethod
    def load(cls, path: Path) -> Results:
        """Load results from a file; `ConfigError` if it holds none."""
        try:
            document = json.loads(path.read_text())
            return cls(document["suite"], document["machine"], list(document["rows"]), path)
        except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} holds no results of gxpo bench ({type(error).__name__}: {error})") from None

    def has(self, name: str) -> bool:
        """Return True if there is a row of this name or below it ("" is above all)."""
        return any(row["name"] == name or row["name"].startswith(f"{name}/" if name else "") for row in self.rows)

    def only(self, names: Sequence[str]) -> Results:
        """Rows whose names begin with one of `names` (none: all), for display."""
        rows = [row for row in self.rows if not names or row["name"].startswith(tuple(names))]
        return Results(self.suite, self.machine, rows)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows and save atomically."""
        self.rows += [_plain(row) for row in rows]
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Written beside and moved: an interruption leaves the old file whole.
            unfinished = self.path.with_name(f".{self.path.name}-{os.getpid()}")
            unfinished.write_text(self.to_json() + "\n")
            unfinished.replace(self.path)

    def to_json(self) -> str:
        """{"suite", "machine", "rows"}."""
        document = {"suite": self.suite, "machine": self.machine, "rows": self.rows}
        return json.dumps(document, indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    """Convert a value to what JSON gives back; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
