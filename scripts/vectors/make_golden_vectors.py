#!/usr/bin/env python3
"""Golden vectors of outcome advantages and of losses, from the published formulas with fractions and 60-digit decimals.

    python scripts/vectors/make_golden_vectors.py            # writes src/gxpo/conformance/data*/*.json
    python scripts/vectors/make_golden_vectors.py --check    # exit 1 where a file is not what would be written

The standard library alone, and nothing of gxpo: rational arithmetic where the formula is rational, decimals where it
takes a root, an exponential or a logarithm. What a group of one, a group of equal rewards and an unscored row are given
is gxpo's rule (exactly 0), which other systems need not share: those vectors have "rule" in their name.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from golden import answers, groups, scales  # noqa: F401 - each fills the table
from golden.losses import OBJECTIVES
from golden.table import METHODS

FOLDER = Path(__file__).resolve().parents[2] / "src/gxpo/conformance"


def text(entry: dict[str, Any]) -> str:
    """Return the text of a file: one line for each vector."""
    entry = {k: v for k, v in entry.items() if k not in ("f", "aggregates")}
    vectors = entry.pop("vectors")
    head = json.dumps(entry, indent=1)[:-2]
    lines = [json.dumps(v, indent=None) for v in vectors]
    return head + ',\n "vectors": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file would change")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="that has data/ and data_losses/ (the package's)")
    arguments = parser.parse_args()
    tables = {"data": METHODS, "data_losses": OBJECTIVES}
    files = {f"{folder}/{name}.json": text(entry) for folder, table in tables.items() for name, entry in table.items()}
    existing = {f"{folder}/{p.name}" for folder in tables for p in (arguments.folder / folder).glob("*.json")}
    if arguments.check:
        stale = sorted(existing - set(files))
        stale += [
            n for n, t in files.items() if n not in existing or (arguments.folder / n).read_text(encoding="utf-8") != t
        ]
        if stale:
            sys.exit(f"not as this script writes them: {', '.join(stale)}; run it without --check")
        return
    for name, content in files.items():
        path = arguments.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    count = sum(len(entry["vectors"]) for table in tables.values() for entry in table.values())
    print(f"{count} vectors in {len(files)} files of {arguments.folder}")


if __name__ == "__main__":
    main()
