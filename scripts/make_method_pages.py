"""Writes docs/methods.md and docs/methods/: a page and a picture for each method, from the methods themselves.

python scripts/make_method_pages.py
"""

from __future__ import annotations

from pathlib import Path

from gxpo.explain.method_page import pages

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    (DOCS / "methods").mkdir(exist_ok=True)
    written = pages()
    for path in sorted((DOCS / "methods").iterdir()):
        if f"methods/{path.name}" not in written:  # of a method that is no more
            path.unlink()
    changed = 0
    for name, text in written.items():
        path = DOCS / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed += 1
    print(f"{len(written)} files, {changed} changed")


if __name__ == "__main__":
    main()
