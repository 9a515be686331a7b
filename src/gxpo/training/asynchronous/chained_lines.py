"""JSON lines with digests: each line's covers the line and all before it, so that no line can change, move or go."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_LINE = re.compile(rb'(\{.*), "digest": "([0-9a-f]{32})"\}')


class BrokenChain(Exception):
    """A line has another digest than it and the lines before it give; the message says how."""


def digest_after(digest: str, body: bytes) -> str:
    """Digest of a line whose JSON is `body` after lines that end with `digest`; "" before the first."""
    return hashlib.sha256(digest.encode() + b"\n" + body).hexdigest()[:32]


def chained(lines: Iterable[Mapping[str, Any]], digest: str = "") -> tuple[bytes, str]:
    """The lines as the bytes of a file, and the digest of the last of them."""
    text = b""
    for line in lines:
        body = json.dumps(line).encode()
        digest = digest_after(digest, body)
        text += body[:-1] + f', "digest": "{digest}"}}\n'.encode()
    return text, digest


def unchained(text: bytes) -> Iterator[tuple[int, bytes, str | None]]:
    """Number from 1, JSON and digest of each whole line; a last line that a kill has cut short is left out.

    Lines of a file that was begun without digests have None. `BrokenChain` at the first line that does not follow.
    """
    digest: str | None = None
    for number, line in enumerate(text.split(b"\n")[:-1], 1):
        match = _LINE.fullmatch(line)
        if match is None:
            if digest is not None:
                raise BrokenChain(f"{number}: has no digest, and the lines before it have")
            yield number, line, None
            continue
        body, own = match[1] + b"}", match[2].decode()
        if own != digest_after(digest or "", body):
            raise BrokenChain(f"{number}: was changed, or a line before it was added, moved or lost")
        digest = own
        yield number, body, own
