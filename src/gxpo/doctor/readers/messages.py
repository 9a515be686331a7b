"""Warnings and errors among the lines of a console."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MOST = 50
_SAYS = re.compile(
    r"\b\w*Warning: |^\s*(?:\[?\d{4}[-/].*)?\[?(?:WARNING|ERROR|CRITICAL)\b|All reward functions returned None"
    r"|CUDA out of memory|OutOfMemoryError|Killed$|NCCL (?:error|timeout)"
)
_MARKS = ("Warning: ", "WARN", "ERROR", "CRIT", "returned None", "memory", "Memory", "Killed", "NCCL")
_RAISED = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
_FIGURES = re.compile(r"0x[0-9a-f]+|\d[\d.,:/e+-]*")  # in which alike messages differ: times, steps, addresses
_OF_LIBRARIES = ("FutureWarning", "DeprecationWarning")  # of what a later version will change
_BAR_END = re.compile(r"\d{1,12}/\d{1,12} \[[^\[\]]{0,200}\]\s*")


@dataclass
class Messages:
    """The first `MOST` different ones, each once, as printed; a traceback is its last line."""

    texts: list[str] = field(default_factory=list)
    open: bool = False  # inside a traceback
    _seen: set[str] = field(default_factory=set)

    def add(self, line: str) -> None:
        text = line.strip()
        if text.startswith("Traceback (most recent call last)"):
            self.open = True
            return
        if self.open:
            if not _RAISED.match(text):
                if text and not line.startswith((" ", "\t")) and not text.startswith(("During", "The above")):
                    self.open = False
                return
            self.open = False
        elif (
            not any(mark in line for mark in _MARKS)
            or not _SAYS.search(line)
            or text.startswith(("{", "warnings.warn"))
        ):
            return
        if any(kind in text for kind in _OF_LIBRARIES):
            return
        text = _without_bars(text)[:300]
        alike = _FIGURES.sub("", text)
        if alike not in self._seen and len(self.texts) < MOST:
            self._seen.add(alike)
            self.texts.append(text)


def _without_bars(text: str) -> str:
    """The rest of a line after its last progress bar (`12%|...| 3/25 [...]`)."""
    bar = text.rfind("%|")
    end = _BAR_END.search(text, bar) if bar >= 0 else None
    return text if end is None else text[end.end() :]
