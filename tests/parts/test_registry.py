"""Parts by the names that they state."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from types import ModuleType

import pytest

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.credit.relative import Relative
from gxpo.parts import registry
from gxpo.parts.definition import kind_of, show
from gxpo.parts.registry import Table, part, part_at

SOURCE = '''
from dataclasses import dataclass

from gxpo.algorithms.credit.base import CreditPart
from gxpo.parts.registry import part


@part("mean_only", stage="credit")
@dataclass(frozen=True)
class Named(CreditPart):
    def __call__(self, forest, signals, step):
        raise NotImplementedError


@dataclass(frozen=True)
class Derived(Named):
    """Not in the table: a stated name is not inherited."""
'''


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A stage's folder with the parts above in one module."""
    home = ModuleType("gxpo.invented")
    home.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, home.__name__, home)
    (tmp_path / "both.py").write_text(SOURCE)
    registry._modules_of.cache_clear()
    yield tmp_path
    registry._modules_of.cache_clear()
    for name in [name for name in sys.modules if name.startswith("gxpo.invented.")]:
        del sys.modules[name]


def test_stated_names(folder):
    table = Table("credit", "invented")
    assert list(table) == ["mean_only"] and "gxpo.invented.both" not in sys.modules
    listed_mean_only = table["mean_only"]
    derived = sys.modules["gxpo.invented.both"].Derived
    assert listed_mean_only is sys.modules["gxpo.invented.both"].Named
    assert (show(listed_mean_only), show(listed_mean_only()), show(derived)) == ("mean_only", "mean_only", "derived")


def test_only_the_module_of_a_part_that_is_asked_for_is_imported(folder):
    (folder / "other.py").write_text(SOURCE.replace("mean_only", "other"))
    table = Table("credit", "invented")
    assert sorted(table) == ["mean_only", "other"] and table["other"].__module__ == "gxpo.invented.other"
    assert "gxpo.invented.both" not in sys.modules
    with pytest.raises(KeyError, match="neither"):
        table["neither"]


def test_a_stated_stage_decides(folder):
    assert dict(Table("weight", "invented")) == {}


def test_two_parts_of_one_name_are_refused(folder):
    (folder / "other.py").write_text(SOURCE)
    with pytest.raises(ValueError, match="two parts named 'mean_only'"):
        dict(Table("credit", "invented"))


def test_sources_state_every_part_that_importing_makes():
    """Tables read names from sources: no module has a part whose decorator they do not see."""
    for package in sorted({table.package for _, _, table in registry.PLACES}):
        home = importlib.import_module(package)
        part_classes = set()
        for info in pkgutil.iter_modules(home.__path__, f"{package}."):
            for x in vars(importlib.import_module(info.name)).values():
                kind = kind_of(x)
                if isinstance(kind, type) and kind.__module__ == info.name and "__part__" in vars(kind):
                    part_classes.add((vars(kind)["__part__"], info.name))
        assert part_classes == set(registry._modules_of(package).items()), package


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("credit", "relative", "Relative"),
        ("credit.add.state", "state_relative", "StateRelative"),
        ("weight.any", "group_weight", "GroupWeight"),
        ("objective", "preference_pairs", "PreferencePairs"),
        ("objective.surrogate", "dual_clip", "DualClip"),
        ("objective.add.value", "value_regression", "ValueRegression"),
        ("reward.step.matched_calls", "matched_calls", "MatchedCalls"),
        ("objective.kl.control", "by_accuracy", "ByAccuracy"),
    ],
)
def test_a_key_and_a_name_are_a_part(key, value, part):
    assert part_at(key, value).__name__ == part


def test_what_names_no_part_is_left_as_it_is():
    for key, value in (("credit.scale", "none"), ("credit", "mine.py:f"), ("credit", Relative), ("rollout.n", 3)):
        assert part_at(key, value) is value


def test_every_concrete_part_of_a_stage_states_its_name():
    """A subclass of a part in gxpo's own folders is one too, or is private."""
    for _, _, table in registry.PLACES:
        for kind in table.values():
            for below in kind.__subclasses__():
                is_own = below.__module__.startswith(f"{table.package}.") and not below.__name__.startswith("_")
                assert not is_own or "__part__" in vars(below) or inspect.isabstract(below), below


@pytest.mark.parametrize(("name", "stage"), [("Mean", "credit"), ("", "credit"), ("a-b", "credit"), ("mean", "gate")])
def test_names_and_stages_that_can_t_be(name, stage):
    with pytest.raises(ValueError, match="a lower-case name, and one of credit"):
        part(name, stage=stage)


def test_nothing_abstract_can_be_named():
    with pytest.raises(TypeError, match="CreditPart is no dataclass that can be made"):
        part("mean", stage="credit")(CreditPart)
