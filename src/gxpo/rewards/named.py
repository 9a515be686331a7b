"""Early checks of a reward by its name, without running user code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gxpo.errors import ConfigError
from gxpo.protocols import TaskSource
from gxpo.rewards import user
from gxpo.rewards.scoring import RewardSet
from gxpo.usercode import Unusable, check_defined


def check_named(
    spec: str | Callable[..., Any] | Mapping[str, float] | None,
    source: TaskSource | None,
    options: Mapping[str, Mapping[str, Any]],
) -> None:
    """ConfigError where a file does not define what is named, or, without files, where the tasks can't be scored so.

    source  None where the tasks are not known: then only files are looked at
    """
    names = [spec] if spec is None or isinstance(spec, str) or callable(spec) else list(spec)
    files = [name for name in names if isinstance(name, str) and user.names_file(name)]
    for name in files:
        user.from_file(name)
        path, _, function = name.rpartition(":")
        try:
            check_defined(f"{Path(path).expanduser()}:{function}")
        except Unusable as error:
            raise ConfigError(f"reward {name!r}: {error}") from error
    if source is not None and not files and not callable(spec):
        RewardSet.make(spec, source=source, options=options).close()
