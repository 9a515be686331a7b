"""Parts by the names that they state."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

from gxpo.algorithms.credit.base import CreditPart
from gxpo.parts import registry
from gxpo.parts.definition import show
from gxpo.parts.registry import Table, part


@part("mean_only", stage="credit")
@dataclass(frozen=True)
class Named(CreditPart):
    def __call__(self, forest, signals, step):
        raise NotImplementedError


@dataclass(frozen=True)
class Derived(Named):
    """Not in the table: a stated name is not inherited."""


@pytest.fixture
def folder(monkeypatch):
    """A stage's folder with the parts above in one module."""
    home, module = ModuleType("gxpo.invented"), ModuleType("gxpo.invented.both")
    home.__path__ = []
    for kind in (Named, Derived):
        monkeypatch.setattr(kind, "__module__", module.__name__)
        setattr(module, kind.__name__, kind)
    for loaded in (home, module):
        monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
    monkeypatch.setattr(registry.pkgutil, "iter_modules", lambda path: [type("M", (), {"name": "both"})])
    monkeypatch.setitem(sys.modules, "gxpo.invented.base", sys.modules["gxpo.algorithms.credit.base"])


def test_stated_names(folder):
    assert dict(Table("credit", "invented")) == {"mean_only": Named}
    assert (show(Named), show(Named()), show(Derived)) == ("mean_only", "mean_only", "derived")


def test_a_stated_stage_decides(folder):
    assert dict(Table("weight", "invented")) == {}


def test_two_parts_of_one_name_are_refused(folder, monkeypatch):
    monkeypatch.setattr(Derived, "__part__", ("credit", "mean_only"), raising=False)
    with pytest.raises(ValueError, match="two parts named 'mean_only'"):
        dict(Table("credit", "invented"))


def test_every_concrete_part_of_a_stage_states_its_name():
    """A subclass of a part in gxpo's own folders is one too, or is private."""
    for _, _, table in registry.PLACES:
        for kind in table.values():
            for below in kind.__subclasses__():
                own = below.__module__.startswith(f"{table.package}.") and not below.__name__.startswith("_")
                assert not own or "__part__" in vars(below) or inspect.isabstract(below), below


@pytest.mark.parametrize(("name", "stage"), [("Mean", "credit"), ("", "credit"), ("a-b", "credit"), ("mean", "gate")])
def test_names_and_stages_that_can_t_be(name, stage):
    with pytest.raises(ValueError, match="a lower-case name, and one of credit"):
        part(name, stage=stage)


def test_nothing_abstract_can_be_named():
    with pytest.raises(TypeError, match="CreditPart is no dataclass that can be made"):
        part("mean", stage="credit")(CreditPart)
