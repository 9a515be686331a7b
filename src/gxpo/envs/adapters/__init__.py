"""Worlds of other libraries behind `gxpo.protocols.Env`; each library is imported when its world is made."""

from __future__ import annotations

import hashlib

from gxpo.errors import GxpoError

__all__ = ["AdapterError", "digest"]


class AdapterError(GxpoError):
    """A world of another library can't be made, or did what its adapter can't present."""


def digest(*parts: object) -> str:
    """A short name for what `parts` say; equal for equal `repr`s, in every process.

    >>> digest("kitchen", 1) == digest("kitchen", 1) != digest("kitchen", 2)
    True
    """
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
