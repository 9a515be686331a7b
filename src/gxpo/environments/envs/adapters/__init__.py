"""Adapters of other libraries' environments to the protocol `Env`; a library is imported on first use."""

from __future__ import annotations

import hashlib

from gxpo.base.errors import GxpoError

__all__ = ["AdapterError", "digest"]


class AdapterError(GxpoError):
    """Error of another library's environment that can't be created, or does something its adapter can't represent."""


def digest(*parts: object) -> str:
    """Short hash of the `repr` of `parts`, equal in every process.

    >>> digest("kitchen", 1) == digest("kitchen", 1) != digest("kitchen", 2)
    True
    """
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
