"""Bibliography of the catalogue: methods.bib, as `Paper` by key.

The file is BibTeX, in a subset that needs no parser of its own: entries `@misc{KEY,` with a field on each line,
`NAME = {VALUE},`, and `}` on a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from gxpo.parts.definition import Paper

FILE = Path(__file__).with_name("methods.bib")
_BEGIN = re.compile(r"@misc\{([a-z0-9]+),")
_FIELD = re.compile(r"  (title|author|year|eprint|archivePrefix) = \{(.*)\},")


@cache
def papers() -> Mapping[str, Paper]:
    """Read all entries of methods.bib, once."""
    return parse(FILE.read_text(encoding="utf-8"))


def parse(text: str) -> dict[str, Paper]:
    """Parse BibTeX into papers by key. ValueError, with the line, for any other syntax and for a key or field twice.

    >>> parse("@misc{liu2025,\\n  title = {Critical},\\n  author = {Liu, Zichen},\\n  year = {2025},\\n}")
    {'liu2025': Paper(title='Critical', authors='Liu, Zichen', year=2025, arxiv='')}
    """
    entries: dict[str, Paper] = {}
    key, fields = "", dict[str, str]()
    # a machine of two states, outside of an entry (key "") and inside; a line that fits neither is an error, so that no
    # entry is lost to a misprint
    for number, line in enumerate(text.splitlines(), 1):
        if not key and (not line.strip() or line.startswith("%")):
            continue
        begin, field = _BEGIN.fullmatch(line), _FIELD.fullmatch(line)
        if not key and begin and begin[1] not in entries:
            key, fields = begin[1], {}
        elif key and field and field[1] not in fields and field[2].count("{") == field[2].count("}"):
            fields[field[1]] = field[2]
        elif key and line == "}" and {"title", "author", "year"} <= fields.keys() and fields["year"].isdigit():
            year, arxiv = int(fields["year"]), fields.get("eprint", "")
            entries[key], key = Paper(fields["title"], fields["author"], year, arxiv), ""
        else:
            raise ValueError(f"line {number} of the bibliography: {line!r}" + (f" (in {key})" if key else ""))
    if key:
        raise ValueError(f"the bibliography ends inside {key}")
    return entries
