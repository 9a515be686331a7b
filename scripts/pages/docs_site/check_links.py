"""Find links, anchors and pictures of a built site that lead nowhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value is None:
                continue
            if name in ("id", "name"):
                self.anchors.add(value)
            elif name in ("href", "src"):
                self.links.append(value)


def broken_links(site: Path) -> list[str]:
    """Return a line for each link within the site that leads nowhere, as page: link."""
    pages = {path.resolve(): _Page(path) for path in site.rglob("*.html")}
    problems = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("data:"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                problems.append(f"{path.relative_to(site.resolve())}: {link}: no such file")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                problems.append(f"{path.relative_to(site.resolve())}: {link}: no such anchor")
    return problems
