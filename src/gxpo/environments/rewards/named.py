"""Early check of a reward's name: the file defines it, and the tasks can be scored by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import Unusable, check_defined, split
from gxpo.environments.rewards import functions
from gxpo.environments.rewards.scoring import RewardSet
from gxpo.environments.rewards.spec import Spec
from gxpo.parts.protocols import TaskSource


def check_named(
    spec: Spec,
    source: TaskSource | None,
    options: Mapping[str, Mapping[str, Any]],
    rollout_components: Sequence[str] = (),
) -> None:
    """Check a reward by its name before a run, without running user code.

    source  None where the tasks are not known: then only files are looked at

    ConfigError where a file does not define the name or, for rewards without files, where they can't score the tasks.
    """
    names = list(spec) if isinstance(spec, (Mapping, list, tuple)) else [spec]
    files = [name for name in names if isinstance(name, str) and functions.names_file(name)]
    for name in files:
        functions.source_of(name)
        path, function = split(name)
        try:
            check_defined(f"{Path(path).expanduser()}:{function}")
        except Unusable as error:
            raise ConfigError(f"reward {name!r}: {error}") from error
    # Rewards of files are built only in the run: that would execute them.
    if source is not None and not files and not callable(spec):
        RewardSet.make(spec, source=source, options=options, given=rollout_components).close()
