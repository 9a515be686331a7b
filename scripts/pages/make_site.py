"""The documentation as a site with search: the pages of docs/, of each method, and the reference of the Python API.

    make docs                                 # or this script, in an environment with gxpo[train,plot,docs]
    python -m http.server -d build/site/html  # then open http://localhost:8000

Strict: a link or an anchor that leads nowhere fails. Nothing of it is committed.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import shutil
from pathlib import Path

from sphinx.cmd.build import build_main

import gxpo
import lesson
import make_docs
from docs_site.check_links import broken_links
from docs_site.stage import LINK, OUTSIDE, Site, sections, short, toctree

ROOT = Path(__file__).parents[2]
HERE = ROOT / "scripts" / "pages" / "docs_site"

# What the API reference has beside the names of `gxpo` itself: module -> what it is for
FURTHER = {
    "gxpo.parts.protocols": "Types that parts exchange, and the protocols of stages",
    "gxpo.parts.functions": "Functions as parts",
    "gxpo.conformance": "Golden vectors for any trainer's advantages",
    "gxpo.adapters.trl": "Methods in TRL",
    "gxpo.adapters.verl": "Methods in verl",
}


def api(site: Site) -> list[str]:
    """Stage the reference of the Python API; return its pages."""
    members, modules = [], dict(FURTHER)
    for name in gxpo.__all__:
        value = getattr(gxpo, name)
        if not inspect.ismodule(value):
            members.append((name, value))
        elif name != "levels":  # `grouped` under its other name
            modules[value.__name__] = (inspect.getdoc(value) or "").splitlines()[0].rstrip(".")
    rows = [f"- [`{name}`](api/{name}.md): {about}" for name, about in sorted(modules.items())]
    body = ["# Python API", "", "```python\nimport gxpo\n```", "", "Names of `gxpo` itself; modules:", "", *rows, ""]
    for name, value in members:
        kind = "autoclass" if inspect.isclass(value) else "autofunction"
        options = "\n   :members:\n   :inherited-members: object, Protocol, dict, list, tuple" * (kind == "autoclass")
        text = f".. {kind}:: gxpo.{name}{options}"
        if value.__module__ in modules:  # its page has it: described twice it would have two addresses
            text = f"See :py:obj:`{value.__module__}.{name}`."
        body += [f"## {name}", "", f"```{{eval-rst}}\n{text}\n```", ""]
    site.write("api", "\n".join(body))
    for module in modules:
        site.write(f"api/{module}", f"# {module}\n\n```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```\n")
    return [f"api/{module}" for module in sorted(modules)]


def stage_pages(out: Path) -> None:
    """Stage all pages of the site, with its navigation: the sections of docs/index.md, and what lies below some
    pages."""
    site = Site(ROOT, out)
    for path in sorted(ROOT.glob("docs/**/*.md")):
        if path != ROOT / "docs" / "index.md":
            site.put(path.relative_to(ROOT).as_posix())
    for name in OUTSIDE:
        if name != "README.md":  # begins the index
            site.put(name)
    modules = api(site)
    titles = {
        p.relative_to(out).with_suffix("").as_posix(): short(p.read_text(encoding="utf-8")) for p in out.rglob("*.md")
    }
    titles |= {module: module.removeprefix("api/") for module in modules}

    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    navigation = dict(sections(index))
    navigation["Reference"] = {
        "api": "Python API",
        **navigation.get("Reference", {}),
        "methods/index": "Pages of methods",
    }
    listed_pages = set().union(*navigation.values())
    # Sphinx draws the whole navigation on every page: hundreds of pages of methods in it would cost minutes, and no
    # reader scrolls through them; their index lists them, and search finds them
    outside = [n for n in titles if n.startswith("methods/") and n not in listed_pages]
    for name in outside:
        page = out / f"{name}.md"
        page.write_text("---\norphan: true\n---\n\n" + page.read_text(encoding="utf-8"), encoding="utf-8")
    below = {"errata": [n for n in titles if n.startswith("errata/")], "api": modules}
    rest = sorted(set(titles) - listed_pages - set(outside) - set(itertools.chain(*below.values())))
    navigation["More"] = {name: titles[name] for name in rest}
    for parent, children in below.items():
        page = out / f"{parent}.md"
        tree = toctree("", [(titles[name], name) for name in sorted(children)])
        page.write_text(page.read_text(encoding="utf-8") + tree, encoding="utf-8")

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    contents = index[index.index("\n## ") :]
    trees = [toctree(heading, [(t, n) for n, t in pages.items()]) for heading, pages in navigation.items() if pages]
    front = site.with_links(readme, "README.md", "index") + site.with_links(contents, "docs/index.md", "index")
    site.write("index", front + "".join(trees))
    site.code()


def llms(site: Site) -> str:
    """Return llms.txt for the root of the site, its links to pages there."""
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    return LINK.sub(lambda m: m[1] + (f"{page}.html" if (page := site.page_of(m[2])) else m[2]) + m[3], text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder (default: %(default)s)")
    parser.add_argument("--no-methods", action="store_true", help="leave docs/methods as it is")
    arguments = parser.parse_args()
    if not arguments.no_methods:
        make_docs.write(ROOT / "docs" / "methods")
    source, html = arguments.out / "source", arguments.out / "html"
    for folder in (source, html):
        shutil.rmtree(folder, ignore_errors=True)
    stage_pages(source)
    strict = ["-W", "--keep-going", "-q", "-j", "auto"]
    if code := build_main(["-b", "html", "-c", str(HERE), *strict, str(source), str(html)]):
        raise SystemExit(code)
    (html / "lesson.html").write_text(lesson.page(), encoding="utf-8")
    (html / "llms.txt").write_text(llms(Site(ROOT, source)), encoding="utf-8")
    if problems := broken_links(html):
        raise SystemExit("\n".join(problems))
    print(f"{sum(1 for _ in html.rglob('*.html'))} pages: python -m http.server -d {html}")


if __name__ == "__main__":
    main()
