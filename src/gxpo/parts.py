"""Former name of `gxpo.registry`."""

from gxpo.registry import *  # noqa: F403
