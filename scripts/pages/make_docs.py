"""Generated documentation in docs/methods/: an index, a page and pictures for each method, and a reference of all parts
and settings.

    python scripts/pages/make_docs.py        # `make docs` makes a site of them

Not committed: methods, parts and settings are the source.
"""

from __future__ import annotations

import argparse
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from gxpo.explain.method_page import pages, svg
from gxpo.explain.reference_pages import reference

DOCS = Path(__file__).parents[2] / "docs"


def write(out: Path, pictures: bool = True) -> int:
    """Write all pages to `out`, and remove those of methods that are no more; return how many there are."""
    out.mkdir(parents=True, exist_ok=True)
    if pictures:
        # half of the time is matplotlib's, which draws one figure at a time: processes of their own draw meanwhile
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            pending = pages(lambda figure: pool.submit(svg, figure))
            text_by_name = {name: x.result() if isinstance(x, Future) else x for name, x in pending.items()}
    else:
        text_by_name = pages(lambda figure: "")
    files = {name: text for name, text in text_by_name.items() if text} | reference()
    for path in sorted(out.iterdir()):
        if path.suffix in (".md", ".svg") and path.name not in files:
            path.unlink()
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
    return len(files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DOCS / "methods", help="folder of the pages (default: %(default)s)")
    parser.add_argument("--no-pictures", action="store_true", help="the pages alone, in seconds")
    arguments = parser.parse_args()
    count = write(arguments.out, not arguments.no_pictures)
    print(f"{count} files in {arguments.out}: start at {arguments.out / 'index.md'}")


if __name__ == "__main__":
    main()
