"""Collector of the warnings and errors that a console text holds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MOST_MESSAGES = 50
_WARNING = re.compile(
    r"\b\w*Warning: |^\s*(?:\[?\d{4}[-/].*)?\[?(?:WARNING|ERROR|CRITICAL)\b|All reward functions returned None"
    r"|CUDA out of memory|OutOfMemoryError|Killed$|NCCL (?:error|timeout)"
)
_MESSAGE_MARKS = ("Warning: ", "WARN", "ERROR", "CRIT", "returned None", "memory", "Memory", "Killed", "NCCL")
_RAISED = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
_FIGURES = re.compile(r"0x[0-9a-f]+|\d[\d.,:/e+-]*")  # in which alike messages differ: times, steps, addresses
_OF_LIBRARIES = ("FutureWarning", "DeprecationWarning")  # of what a later version will change
_BAR_END = re.compile(r"\d{1,12}/\d{1,12} \[[^\[\]]{0,200}\]\s*")


@dataclass
class Messages:
    """Collector of warnings and errors: the first `MOST_MESSAGES` different ones; of a traceback the last line."""

    texts: list[str] = field(default_factory=list)
    open: bool = False  # inside a traceback
    _known_texts: set[str] = field(default_factory=set)

    def add(self, line: str) -> None:
        """Keep a line if it is a warning, an error, or the end of a traceback, and unlike those so far."""
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
            not any(mark in line for mark in _MESSAGE_MARKS)
            or not _WARNING.search(line)
            or text.startswith(("{", "warnings.warn"))
        ):
            return
        if any(kind in text for kind in _OF_LIBRARIES):
            return
        text = _without_bars(text)[:300]
        alike = _FIGURES.sub("", text)
        if alike not in self._known_texts and len(self.texts) < MOST_MESSAGES:
            self._known_texts.add(alike)
            self.texts.append(text)


def _without_bars(text: str) -> str:
    """Strip a line's progress bars (`12%|...| 3/25 [...]`)."""
    bar = text.rfind("%|")
    end = _BAR_END.search(text, bar) if bar >= 0 else None
    return text if end is None else text[end.end() :]
