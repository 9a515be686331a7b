"""Former name of `gxpo.definition`."""

from gxpo.definition import *  # noqa: F403
