"""The forest of rollouts: its token tree, columns, grouped statistics and records."""

from typing import TYPE_CHECKING

from gxpo.base.imports import lazy_names

if TYPE_CHECKING:
    from gxpo.forest.forest import OBSERVATION, Forest

__all__ = ["OBSERVATION", "Forest"]

__getattr__ = lazy_names(__name__, Forest="forest", OBSERVATION="forest")
