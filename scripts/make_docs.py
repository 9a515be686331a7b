"""Generated documentation in docs/methods/: an index, a page and pictures for each method, and a reference of all parts
and settings.

    python scripts/make_docs.py        # or: make docs

Not committed: methods, parts and settings are the source.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gxpo.explain.method_page import pages
from gxpo.explain.reference_pages import reference

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DOCS / "methods", help="folder of the pages (default: %(default)s)")
    parser.add_argument("--no-pictures", action="store_true", help="the pages alone, in seconds")
    given = parser.parse_args()
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    drawn = pages(lambda figure: "") if given.no_pictures else pages()
    written = {name: text for name, text in drawn.items() if text} | reference()
    for path in sorted(out.iterdir()):
        if path.suffix in (".md", ".svg") and path.name not in written:  # of a method that is no more
            path.unlink()
    for name, text in written.items():
        (out / name).write_text(text, encoding="utf-8")
    print(f"{len(written)} files in {out}: start at {out / 'index.md'}")


if __name__ == "__main__":
    main()
