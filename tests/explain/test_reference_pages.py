"""Generated reference pages: every part and every setting is named, with type, range, default and meaning."""

import re
from pathlib import Path

import pytest

from gxpo.explain.reference_pages import reference
from gxpo.methods import METHODS
from gxpo.parts.registry import PLACES
from gxpo.parts.settings import FIELDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages():
    return reference()


def test_every_part_is_named_once_under_its_key(pages):
    sections = re.split(r"^## ", pages["parts.md"], flags=re.M)[1:]
    names_by_key = {text.split("\n")[0]: re.findall(r"^### (\w+)$", text, re.M) for text in sections}
    assert names_by_key == {slot: sorted(table) for _, slot, table in PLACES}


def test_a_part_has_its_options_ranges_and_users(pages):
    text = pages["parts.md"]
    bonus_section = text[text.index("### bonus\n") :].split("\n### ")[0]
    assert "| `credit.share` | number | above 0, up to 1 | `0.2` |" in bonus_section
    assert "| `credit.position` | word | `all`, `last`, `labelled` | `all` |" in bonus_section
    assert "Used by: [aapo](aapo.md)" in bonus_section and "all others" not in bonus_section
    assert "all others." in text[text.index("### relative\n") :].split("\n### ")[0]


def test_every_setting_is_named_once_with_a_meaning(pages):
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \| `(.*?)` \| (.*) \|$", pages["settings.md"], re.M)
    assert [row[0] for row in rows] and sorted(row[0] for row in rows) == sorted(FIELDS)
    assert all(kind and meaning for _, kind, _, _, meaning in rows)


@pytest.mark.parametrize(
    "row",
    [
        "| `sampling.top_p` | number | above 0, up to 1 | `1.0` | nucleus (top-p) sampling; 1 is off |",
        "| `seed` | integer | 0 or more | `0` | seed of all random numbers of the run |",
        "| `sampling.engine` | word | `auto`, `torch`, `vllm`, `openai` | `auto` |",
        "| `env.max_turns` | integer or null | 1 or more, or null | `null` |",
    ],
)
def test_settings_have_type_range_and_default(pages, row):
    assert row in pages["settings.md"]


def test_links_lead_somewhere_and_pages_begin_with_a_command(pages):
    for name, text in pages.items():
        assert text.split("\n")[2] == "```bash"
        for link in set(re.findall(r"\]\(([^)#][^)]*)\)", text)):
            page = ROOT / "docs" / "methods" / link
            assert link in pages or link.removesuffix(".md") in METHODS or page.resolve().is_file(), f"{name}: {link}"
