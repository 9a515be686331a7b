"""Docstrings and signatures for Sphinx: the former are plain text with `code` in single backticks and columns aligned
by hand, the latter, of dataclasses, are long."""

from __future__ import annotations

import inspect
import re
from typing import Any

CODE = re.compile(r"(`[^`\n]+`)")
COLUMNS = re.compile(r"^\S+.*\S {2,}\S|^ +\S")  # a gap inside a line, or an indented line
SPECIAL = re.compile(r"([\\*|])|(\b\w*_)(?=\W|$)")


def as_rst(lines: list[str]) -> None:
    """Change the lines of a docstring, in place, as `autodoc-process-docstring` wants it."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    lines[:] = [line for block in blocks if block for line in (*_block(block), "")]


def _block(block: list[str]) -> list[str]:
    first = block[0].lstrip()
    if first.startswith(">>>"):
        return block
    if any(COLUMNS.search(line) for line in block) and not first.startswith(("- ", "* ")):
        return ["::", "", *(f"    {line}" for line in block)]
    # code may go over the end of a line, so lines are joined before it is marked
    return [_inline(" ".join(line.strip() for line in block))] if not first.startswith("- ") else _bullets(block)


def _bullets(block: list[str]) -> list[str]:
    items: list[str] = []
    for line in block:
        if line.lstrip().startswith("- "):
            items.append(line.strip())
        else:
            items[-1] += " " + line.strip()
    return [f"- {_inline(item[2:])}" for item in items]


def _inline(text: str) -> str:
    return "".join(
        f"``{part[1:-1]}``"
        if CODE.fullmatch(part)
        else SPECIAL.sub(lambda m: "\\" + m[1] if m[1] else m[2][:-1] + r"\_", part)
        for part in CODE.split(text)
    )


def without_types(of: Any) -> tuple[str, str] | None:
    """Return the signature of a class by names and defaults; its fields' types carry their ranges, which the page of
    parts has."""
    try:
        signature = inspect.signature(of)
    except (TypeError, ValueError):
        return None
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return re.sub(r"<[^<>]*>", "...", str(signature.replace(parameters=plain, return_annotation=signature.empty))), ""
