"""What a release depends on: one version everywhere, and a licence stated for every package that an extra installs."""

import importlib.metadata as metadata
import re
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from gxpo.version import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "stability.md").read_text()
DEVELOPMENT = ("dev", "docs", "dist", "mutation")  # of those who change gxpo


def extra_rows():
    """Names of packages by extra, as the page's table has them."""
    table = PAGE.split("## Licences")[1]
    rows = re.findall(r"^\| \**([\w, ]+?)\** \| (.+) \|$", table, re.M)
    return {extra: cells for names, cells in rows if names != "extra" for extra in names.split(", ")}


def test_version_is_the_same_everywhere():
    assert PROJECT["version"] == __version__
    assert re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == __version__


def test_every_package_of_an_extra_has_a_licence_on_the_page():
    rows = extra_rows()
    requirements = {"none": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    assert rows.keys() == requirements.keys() - set(DEVELOPMENT)
    for extra, listed in requirements.items():
        if extra not in DEVELOPMENT:
            names = {Requirement(line).name for line in listed}
            assert not {n for n in names if not re.search(rf"\b{re.escape(n)} \(", rows[extra])}, extra


@pytest.mark.parametrize("name", ["torch", "pydantic", "transformers", "peft", "starlette", "pyarrow", "gymnasium"])
def test_stated_licence_is_the_one_in_the_metadata(name):
    fields = metadata.metadata(name)
    version_text = re.search(rf"\b{name} \(([\w-]+)", PAGE)[1].split("-")[0]
    text = " ".join(
        filter(None, [fields.get("License-Expression"), fields.get("License"), *fields.get_all("Classifier")])
    )
    assert version_text in text
