"""Pages of the site from those of the repository: links lead to where a page or file stands there, and each page to the
navigation, in the order of docs/index.md."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

FENCED = re.compile(r"(^```.*?^```$)", re.S | re.M)
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)(\))")
GENERATED = re.compile(r"`docs/(methods/\w+)\.md`")  # named in pages, and there in the site alone
TITLE = re.compile(r"^# (.+)$", re.M)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".js": "javascript", ".css": "css"}
OUTSIDE = {"README.md": "index", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog",
           "recipes/README.md": "recipes", "notebooks/README.md": "notebooks",
           "skills/gxpo/SKILL.md": "skill", "SECURITY.md": "security"}  # fmt: skip


@dataclass
class Site:
    """A staged site. `root`: the repository; `out`: the folder of staged pages."""

    root: Path
    out: Path
    sources: set[str] = field(default_factory=set)  # files of code that pages link to

    def page_of(self, path: str) -> str | None:
        """Return where a page of the repository stands in the site, without ending; None for what is no page."""
        if path in OUTSIDE:
            return OUTSIDE[path]
        if path == "docs/index.md":
            return "index"
        if path.startswith("docs/") and path.endswith(".md"):
            return path.removeprefix("docs/").removesuffix(".md")
        return None

    def put(self, path: str, change: Callable[[str], str] = lambda text: text) -> None:
        """Stage a page of the repository."""
        page = self.page_of(path)
        assert page is not None, path
        text = change((self.root / path).read_text(encoding="utf-8"))
        self.write(page, self.with_links(text, path, page))

    def write(self, page: str, text: str) -> None:
        target = self.out / f"{page}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def with_links(self, text: str, path: str, page: str) -> str:
        """Return the text with links as they are in the site."""
        parts = FENCED.split(text)
        for i in range(0, len(parts), 2):
            part = GENERATED.sub(lambda m: f"[{m[1].split('/')[1]}](/docs/{m[1]}.md)", parts[i])
            parts[i] = LINK.sub(lambda m: m[1] + self._target(m[2], path, page) + m[3], part)
        return "".join(parts)

    def _target(self, link: str, path: str, page: str) -> str:
        if re.match(r"[a-z]+:|#", link):
            return link
        name, _, anchor = link.partition("#")
        source = name[1:] if name.startswith("/") else os.path.normpath(PurePosixPath(path).parent / name)
        target = self.page_of(source)
        if target is None and PurePosixPath(source).suffix in LANGUAGES:
            self.sources.add(source)
            target = f"source/{source}"
        if target is None:
            target = source.removeprefix("docs/")
            if (self.root / source).is_file():  # a picture, a table
                (self.out / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.root / source, self.out / target)
        else:
            target += ".md"
        return os.path.relpath(target, PurePosixPath(page).parent) + (f"#{anchor}" if anchor else "")

    def code(self) -> None:
        """Write a page for each file of code that is linked to; search leaves them out."""
        for path in sorted(self.sources):
            fence = "`" * 6
            language = LANGUAGES[PurePosixPath(path).suffix]
            text = (self.root / path).read_text(encoding="utf-8")
            head = f"---\norphan: true\nnosearch: true\n---\n\n# {path}\n\n"
            self.write(f"source/{path}", f"{head}{fence}{language}\n{text.rstrip()}\n{fence}\n")


def sections(index: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield headings of docs/index.md with the pages that they list, page -> title, each at its first mention."""
    names = {"index"}
    for part in re.split(r"^## ", index, flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        titles = {}
        for title, page, generated in re.findall(r"\[([^\]]+)\]\(([^)#]+\.md)[^)]*\)|`docs/(methods/\w+)\.md`", body):
            name = os.path.normpath(PurePosixPath("docs", page)) if page else f"docs/{generated}"
            if (name := OUTSIDE.get(name, name.removeprefix("docs/").removesuffix(".md"))) not in names:
                names.add(name)
                titles[name] = (title or generated.partition("/")[2]).replace("`", "")
                titles[name] = titles[name][0].upper() + titles[name][1:]
        yield heading.strip(), titles


def short(text: str) -> str:
    """Return a page's title as the navigation has it: what stands before the colon or the parenthesis."""
    title = TITLE.search(text)
    assert title is not None, text[:100]
    return re.split(r":? \(|: ", title[1])[0].replace("`", "")


def toctree(caption: str, pages: list[tuple[str, str]], depth: int = 1) -> str:
    """Return a hidden table of contents, which is a part of the navigation."""
    rows = "\n".join(f"{title} </{page}>" for title, page in pages)
    head = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n:maxdepth: {depth}\n{head}\n{rows}\n```\n"
