"""Former name of `gxpo.grouped`."""

from gxpo.grouped import *  # noqa: F403
