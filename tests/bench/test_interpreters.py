"""What environments have."""

import sys
from importlib import metadata

import pytest

from gxpo.base.errors import MissingExtra
from gxpo.bench import suites


def test_versions_of_this_environment():
    actual = suites.installed_versions(None, ("torch", "no-such-distribution"))
    assert actual == {"torch": metadata.version("torch"), "no-such-distribution": None}
    assert suites.installed_versions(sys.executable, ("torch",)) == {"torch": metadata.version("torch")}


def test_what_is_needed_names_the_extra_and_the_interpreter():
    assert suites.need_installed(None, "torch", "train") == {"python": sys.executable}
    with pytest.raises(MissingExtra, match=r"no-such-distribution is not installed for .*gxpo\[some\].*--python"):
        suites.need_installed(None, "no-such-distribution", "some")


def test_what_is_no_interpreter(tmp_path):
    with pytest.raises(MissingExtra, match="no interpreter that runs"):
        suites.installed_versions(str(tmp_path / "python"), ("torch",))
