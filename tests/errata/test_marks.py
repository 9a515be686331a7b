"""Entries of docs/errata say how they are known; what is marked as run is run by scripts/checks/check_errata.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "errata").glob("*.md"))
MARK = re.compile(r"Test: `(\w+)`\.\s(?:Run: ([^`]+)|(?:Read only|Reported|Worked out))\.$")
SYSTEMS = {"trl": "TRL 1.16.0", "verl": "verl 0.9.1"}


def entries(page: Path) -> dict[str, str]:
    """Heading -> text on one line, without the links at the end of the page."""
    text = re.split(r"^\[[\w-]+\]: ", page.read_text(), maxsplit=1, flags=re.M)[0]
    sections = [section.split("\n", 1) for section in re.split(r"^##+ ", text, flags=re.M)[1:]]
    on_one_line = {heading.replace("`", ""): " ".join(body.split()) for heading, body in sections}
    return {heading: body for heading, body in on_one_line.items() if "Test: " in body}


def named_in(page: Path) -> set[str]:
    source = (ROOT / "tests" / "errata" / f"test_{page.stem}.py").read_text()
    return set(re.findall(r"^def (test_\w+)", source, re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_each_entry_names_its_test_and_says_how_it_is_known(page: Path) -> None:
    texts, tests_of_page = entries(page), named_in(page)
    assert texts
    for heading, text in texts.items():
        mark = MARK.search(text)
        assert mark, f"{page.stem}: {heading!r} ends in 'Test: `name`.' and Run: SYSTEM VERSION., Read only., ..."
        assert mark[1] in tests_of_page, f"{page.stem}: {heading!r}: no {mark[1]} in tests/errata/test_{page.stem}.py"


def test_what_is_marked_as_run_is_what_the_script_runs() -> None:
    tree = ast.parse((ROOT / "scripts" / "checks" / "check_errata.py").read_text())
    functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
    run: dict[str, set[str]] = {}
    for name, of in (("trl", ("trl",)), ("verl", ("verl", "_verl_losses"))):
        for node in (n for f in of for n in ast.walk(functions[f])):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Row":
                assert isinstance(node.args[0], ast.Constant)
                run.setdefault(str(node.args[0].value), set()).add(SYSTEMS[name])
    marked = {}
    for page in PAGES:
        for heading, text in entries(page).items():
            mark = MARK.search(text)
            if mark and mark[2]:
                marked[f"{page.stem}: {heading}"] = set(mark[2].split(", "))
    assert marked == run
