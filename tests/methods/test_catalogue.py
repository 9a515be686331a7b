"""The catalogue's files: every method is in its family's module, in the index, and in the row of docs/methods.md."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import gxpo
from gxpo.explain.methods import labelled, method_text
from gxpo.methods import _MODULES, METHODS, PAPERS
from gxpo.methods.bibliography import FILE, parse
from gxpo.parts.definition import Definition, Paper, show
from gxpo.parts.registry import part_at, table_at

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src/gxpo/methods"
MODULES = sorted(
    f"{package}.{path.stem}"
    for package in ("catalogue", "reconstructed")
    for path in (FOLDER / package).glob("*.py")
    if path.stem != "__init__"
)


def source(module: str) -> str:
    return (FOLDER / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


def rows_of_page() -> list[set[str]]:
    page = (ROOT / "docs/methods.md").read_text(encoding="utf-8").split("## Papers that give no method")[0]
    return [set(re.findall(r"`(\w+)`", line)) for line in page.splitlines() if re.match(r"\| .*`", line)]


# ---------------------------------------------------------------- files and index
def test_the_index_lists_every_modules_methods_in_order():
    listed = {module: names.split() for module, names in _MODULES.items()}
    actual = {
        module: [name for name, x in vars(importlib.import_module(f"gxpo.methods.{module}")).items()
                 if isinstance(x, Definition)]
        for module in MODULES
    }  # fmt: skip
    assert listed == actual


def test_families_are_the_rows_of_the_page():
    """A row without its reconstructions is one module, and a module one row."""
    actual = {frozenset(row) - {n for n in row if METHODS[n].evidence == "reconstruction"} for row in rows_of_page()}
    assert actual == {frozenset(names.split()) for m, names in _MODULES.items() if m.startswith("catalogue.")}


def test_reconstructions_have_a_folder_of_their_own():
    for name, definition in METHODS.items():
        of_their_own = METHODS.module_of(name).startswith("reconstructed.")
        assert of_their_own == (definition.evidence == "reconstruction"), name


def test_the_page_marks_reconstructions():
    page = (ROOT / "docs/methods.md").read_text(encoding="utf-8").split("## Papers that give no method")[0]
    table = "\n".join(line for line in page.splitlines() if line.startswith("| "))
    marked = set(re.findall(r"`(\w+)`\\\*", table))
    assert marked == {name for name, d in METHODS.items() if d.evidence == "reconstruction"}


def test_a_family_fits_on_a_few_screens():
    assert {m: n for m in MODULES if (n := len(source(m).splitlines())) >= 600} == {}


def test_a_family_has_only_definitions_and_small_functions():
    """Beside them one import, of a list of phrases that is no part."""
    imports = set()
    for module in MODULES:
        for node in ast.parse(source(module)).body[1:]:
            if isinstance(node, ast.ImportFrom):
                imports.add(node.module)
            elif isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 15, (module, node.name)
            else:
                assert isinstance(node, ast.Assign), (module, ast.unparse(node)[:60])
    assert len(imports) == 2 and {name.rpartition(".")[2] for name in imports} == {"definition", "phrases"}


# ---------------------------------------------------------------- definitions
def test_every_part_that_a_method_names_is_registered():
    wrong = []
    for name, definition in METHODS.items():
        for key, value in {**definition.keys, **definition.paper_defaults}.items():
            if table_at(key) is not None and not isinstance(part_at(key, value), type):
                wrong.append((name, key, value))
            if not isinstance(value, str) and callable(value):
                wrong.append((name, key, value))
    assert wrong == []


def test_names_are_those_of_the_attributes():
    for name, definition in METHODS.items():
        module = importlib.import_module(f"gxpo.methods.{METHODS.module_of(name)}")
        assert definition.name == name and getattr(module, name).name == "", name


def test_a_formula_is_said_once():
    """By the docstring's second paragraph: no other text stands beside it."""
    assert [m for m in MODULES if re.search(r"^    (formula|idea|choices|title|arxiv)=", source(m), re.M)] == []
    assert [name for name, d in METHODS.items() if not d.formula or not d.idea] == []


def test_formulas_of_several_lines_are_shown_line_by_line():
    output = repr(gxpo.method("dr_grpo+gspo"))
    assert "  dr_grpo: A_i = r_i - mean_g r\n           L   = mean_i sum_t" in output and "\n  gspo: s_i" in output


def test_the_text_of_a_method_has_its_formula_line_by_line():
    assert "\nformula\n  A_i = r_i - mean_g r\n  L   = mean_i" in method_text("dr_grpo")
    for name in METHODS:
        assert max(map(len, labelled("formula", METHODS[name].formula).splitlines())) <= 120, name


def test_a_part_and_its_name_are_one_setting():
    """In Python a caller may give the class where the method states the name."""
    from gxpo.algorithms.credit.state_relative import StateRelative

    stated_method = gxpo.method("gigpo", {"credit.add.state": StateRelative})
    forest = gxpo.Forest.from_completions([[1, 2]], [[[3], [4]]], [1.0, 0.0])
    assert repr(stated_method.parts()) == repr(gxpo.method("gigpo").parts()) and stated_method.remains["gigpo"] == ""
    assert show(stated_method.keys["credit.add.state"].value) == gxpo.method("gigpo").keys["credit.add.state"].value
    assert forest.n_trajectories == 2


# ---------------------------------------------------------------- bibliography
def test_every_citation_resolves_and_every_entry_is_cited():
    assert {d.cite for d in METHODS.values()} == set(PAPERS)


def test_papers_are_told_apart_by_their_titles_and_preprints():
    entries = list(PAPERS.values())
    assert len({p.title for p in entries}) == len(entries)
    arxiv = [p.arxiv for p in entries if p.arxiv]
    assert len(set(arxiv)) == len(arxiv) and all(re.fullmatch(r"\d{4}\.\d{4,5}", x) for x in arxiv)


def test_entries_are_sorted_and_named_for_author_and_year():
    assert list(PAPERS) == sorted(PAPERS)
    assert [key for key, paper in PAPERS.items() if not re.match(rf"[a-z]+{paper.year}[a-z0-9]+$", key)] == []


def test_a_method_is_composed_without_reading_the_bibliography(monkeypatch):
    monkeypatch.setattr("gxpo.methods.bibliography.papers", lambda: pytest.fail("read"))
    assert gxpo.method("gigpo+gspo").definitions[0].cite == "feng2025gigpo"


def test_bibtex_is_read_as_it_is_written():
    for key, paper in PAPERS.items():
        head, *fields, tail = paper.bibtex(key).splitlines()
        assert parse("\n".join([head, *(f"{x.removesuffix(',')}," for x in fields), tail])) == {key: paper}


ENTRY = "@misc{me2026mine,\n  title = {A {B} C},\n  author = {Me, I.},\n  year = {2026},\n}\n"


def test_an_entry_may_have_no_preprint_and_braces_in_its_title():
    assert parse(f"% a remark\n\n{ENTRY}") == {"me2026mine": Paper("A {B} C", "Me, I.", 2026)}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (ENTRY + ENTRY, "line 6"),  # a key twice
        (ENTRY.replace("  year = {2026},\n", ""), "line 4"),
        (ENTRY.replace("2026}", "soon}"), "line 5"),
        (ENTRY.replace("title = {A {B} C}", "title = {A {B C}"), "line 2"),
        (ENTRY.replace("  author", "  editor"), "line 3"),
        (ENTRY.replace("},\n}", "}\n}"), "line 4"),  # a field without its comma
        (ENTRY.replace("@misc", "@article"), "line 1"),
        ("a remark\n", "line 1"),
        (ENTRY.removesuffix("}\n"), "ends inside me2026mine"),
    ],
)
def test_a_line_outside_an_entry_is_refused(text, line):
    with pytest.raises(ValueError, match=line):
        parse(text)


def test_the_bibliography_is_beside_the_catalogue():
    assert FILE == FOLDER / "methods.bib" and len(parse(FILE.read_text(encoding="utf-8"))) == len(PAPERS)
