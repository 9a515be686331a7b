"""`gxpo methods`: sections of the list, one method in full, counts."""

import re

import pytest

import gxpo
from gxpo.explain import methods
from gxpo.explain.catalogue import entries, select
from gxpo.methods import METHODS
from gxpo.parts.definition import EVIDENCE, STAGES


@pytest.fixture(scope="module")
def rows():
    return entries()


def test_every_method_has_a_section(rows):
    rows_by_section = methods.sections(rows)
    assert sum(map(len, rows_by_section.values())) == len(METHODS)
    assert next(iter(rows_by_section)) == "base" and [*rows_by_section][-1] == "reconstruction"
    assert {r["evidence"] for section in [*rows_by_section][:-1] for r in rows_by_section[section]} == set(
        EVIDENCE[:-1]
    )
    assert set(methods.SECTIONS) == {"base", *STAGES, "reconstruction"}


def test_reconstructions_are_never_called_verified(rows):
    for row in rows:
        if row["evidence"] == "reconstruction":
            text = methods.method_text(row["name"])
            assert "not verified" in text and not re.search(r"(?<!not )verified", text)


def test_one_method_has_all_that_is_known_of_it():
    text = methods.method_text("gspo")
    for word in ("formula", "formula read in the paper", "measured       +.08 (95 % +.04 to",
                 "objective.ratio=sequence", "gspo@paper", "cost", "equal groups",
                 "merges with", "refuses", "try it", "gxpo train CONFIG --set method=gspo", "method gspo"):  # fmt: skip
        assert word in text, word
    assert all(len(line) <= 120 for line in text.split("\nmethod gspo")[0].splitlines())
    assert "grpo@trl" in methods.method_text("grpo")
    assert methods.method_text("dr_grpo+gspo") == repr(gxpo.method("dr_grpo+gspo"))


def test_conditions_on_the_table_show_in_its_count(rows):
    text = methods.methods_table(select(rows, stage="update"))
    assert "sfpo" in text and "gspo" not in text.split("methods: ")[0]
    assert re.search(r"^\d+ methods: .*authors' code", text, re.M)
