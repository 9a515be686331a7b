"""Lines of a text file of any size: decoded leniently, progress bars split, colours removed."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

LARGEST = 500_000_000  # bytes read of one file; of a larger one its two ends
LONGEST = 4_000_000  # characters of a line; the rest of a longer one is left out
_CHUNK = 1 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b\n]*\x07")


def encoding(head: bytes) -> str:
    """Encoding by the mark at the start; PowerShell's `>` writes UTF-16."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    return "utf-8-sig"


def plain(line: str) -> str:
    return _COLOUR.sub("", line) if "\x1b" in line else line


def whole(path: Path) -> str:
    """The text of a file, at most `LARGEST` bytes of it."""
    with path.open("rb") as stream:
        data = stream.read(LARGEST)
    return data.decode(encoding(data[:2]), errors="replace")


def chunks(path: Path, notes: list[str]) -> Iterator[str]:
    """The text in pieces of whole lines that end in a line feed; carriage returns of progress bars end lines, too."""
    with path.open("rb") as raw:
        head = raw.read(2)
        size = raw.seek(0, 2)
        raw.seek(0)
        if size <= LARGEST:
            yield from _pieces(raw, encoding(head), None)
            return
        half = LARGEST // 2
        notes.append(f"larger than {LARGEST:,} bytes: only the first and the last {half:,} were read")
        yield from _pieces(raw, encoding(head), half)
        raw.seek(size - half - half % 2)
        yield from _pieces(raw, encoding(head).replace("utf-16", "utf-16-le"), None)


def lines(path: Path, notes: list[str]) -> Iterator[str]:
    """Lines without their ends."""
    for chunk in chunks(path, notes):
        yield from chunk.split("\n")[:-1]


def _pieces(raw: IO[bytes], code: str, limit: int | None) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(code)(errors="replace")
    rest, read = "", 0
    while limit is None or read < limit:
        data = raw.read(_CHUNK if limit is None else min(_CHUNK, limit - read))
        read += len(data)
        text = rest + decoder.decode(data, final=not data)
        if "\r" in text:
            # at the end of a piece it may be half of a line's end
            held = "\r" if text[-1] == "\r" and data else ""
            text = text[: len(text) - len(held)].replace("\r\n", "\n").replace("\r", "\n") + held
        end = text.rfind("\n") + 1
        rest = text[end:]
        if end:
            yield text[:end]
        if len(rest) > LONGEST:
            rest = rest[:LONGEST]
        if not data:
            break
    if rest:
        yield rest + "\n"
