"""The documentation as a site with search: the pages of docs/, of each method, and the reference of the Python API.

    make docs                                # or: python scripts/make_site.py, in an environment with gxpo[train,docs,plot]
    python -m http.server -d build/site/html # then open http://localhost:8000

Strict: a link or an anchor that leads nowhere fails. Nothing of it is committed.
"""

from __future__ import annotations

import argparse
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import gxpo

ROOT = Path(__file__).parents[1]
HERE = ROOT / "scripts" / "site"
sys.path[:0] = [str(HERE), str(ROOT / "scripts")]

import make_docs
from check_links import broken
from stage import OUTSIDE, Site, sections, short, toctree

# What the API reference has beside the names of `gxpo` itself: module -> what it is for
FURTHER = {
    "gxpo.protocols": "Types that parts exchange, and the protocols of stages",
    "gxpo.functions": "Functions as parts",
    "gxpo.conformance": "Golden vectors for any trainer's advantages",
    "gxpo.adapters.trl": "Methods in TRL",
    "gxpo.adapters.verl": "Methods in verl",
}


def api(site: Site) -> list[str]:
    """Stage the reference of the Python API; its pages."""
    named, modules = [], dict(FURTHER)
    for name in gxpo.__all__:
        value = getattr(gxpo, name)
        if not inspect.ismodule(value):
            named.append((name, value))
        elif name != "levels":  # `grouped` under its other name
            modules[value.__name__] = (inspect.getdoc(value) or "").splitlines()[0].rstrip(".")
    rows = [f"- [`{name}`](api/{name}.md): {about}" for name, about in sorted(modules.items())]
    body = ["# Python API", "", "```python\nimport gxpo\n```", "", "Names of `gxpo` itself; modules:", "", *rows, ""]
    for name, value in named:
        kind = "autoclass" if inspect.isclass(value) else "autofunction"
        options = "\n:members:\n:inherited-members: object, Protocol, dict, list, tuple" if kind == "autoclass" else ""
        body += [f"## {name}", "", f"```{{eval-rst}}\n.. {kind}:: gxpo.{name}{_indented(options)}\n```", ""]
    site.write("api", "\n".join(body))
    for module in modules:
        text = f"# {module}\n\n```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n   :imported-members: False\n```\n"
        site.write(f"api/{module}", text.replace("   :imported-members: False\n", ""))
    return [f"api/{module}" for module in sorted(modules)]


def _indented(options: str) -> str:
    return options.replace("\n", "\n   ")


def staged(out: Path) -> None:
    """All pages of the site."""
    site = Site(ROOT, out)
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {heading: names for heading, names in sections(index)}
    pages = [path for path in ROOT.glob("docs/**/*.md") if path != ROOT / "docs" / "index.md"]
    for path in [*pages, *(ROOT / name for name in OUTSIDE if name != "README.md")]:
        site.put(path.relative_to(ROOT).as_posix())
    modules = api(site)
    titles = {str(p.relative_to(out).with_suffix("")): short(p.read_text(encoding="utf-8")) for p in out.rglob("*.md")}
    below = {name: sorted(t for t in titles if t.startswith(f"{name}/")) for name in ("errata", "methods", "api")}
    known = {name for names in listed.values() for name in names} | {"index", "api", *sum(below.values(), [])}
    listed["Reference"] = ["api", "methods/index", *(n for n in listed.get("Reference", []) if n != "methods/index")]
    listed["More"] = sorted(set(titles) - known)
    front = index[index.index("\n## ") :]
    trees = [toctree(heading, [(titles[n], n) for n in names]) for heading, names in listed.items() if names]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = site.linked(readme, "README.md", "index") + site.linked(front, "docs/index.md", "index") + "".join(trees)
    site.write("index", text)
    own = {n for names in listed.values() for n in names}
    for parent, children in {"errata": below["errata"], "methods/index": below["methods"], "api": modules}.items():
        page = out / f"{parent}.md"
        rows = [(titles[n], n) for n in children if n not in own]
        page.write_text(page.read_text(encoding="utf-8") + toctree("", rows), encoding="utf-8")
    site.code()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder (default: %(default)s)")
    parser.add_argument("--no-methods", action="store_true", help="leave docs/methods as it is")
    given = parser.parse_args()
    if not given.no_methods:
        make_docs.write(ROOT / "docs" / "methods")
    source, html = given.out / "source", given.out / "html"
    for folder in (source, html):
        shutil.rmtree(folder, ignore_errors=True)
    staged(source)
    command = ["sphinx-build", "-b", "html", "-c", HERE, "-W", "--keep-going", "-q", "-j", "2", source, html]
    subprocess.run([sys.executable, "-m", "sphinx.cmd.build", *map(str, command[1:])], check=True)
    if wrong := broken(html):
        raise SystemExit("\n".join(wrong))
    print(f"{sum(1 for _ in html.rglob('*.html'))} pages: python -m http.server -d {html}")


if __name__ == "__main__":
    main()
