"""Former names of parts, options and slots: each resolves to what it has become, and says so in one line."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import pytest
import torch

import gxpo
from gxpo import former
from gxpo.credit.base import CreditSum
from gxpo.definition import Stated
from gxpo.errors import ConfigError
from gxpo.former import Former

CREDITS = {
    "per_step": Former(
        "relative",
        options={"center": "leave_one_out", "credit.add.whole": "relative", "credit.add.whole.eps": 0.5},
        keys={"gamma": "discount", "factor": "credit.weight", "both": ("eps", "credit.add.whole.eps"), "gone": ()},
        values={"scale": {"sd": "std"}},
    )
}
WEIGHTS = {"peaked": Former("truncated", keys={"top": "weight.truncated.cap"})}


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    found = {"credit": CREDITS, "weighting": WEIGHTS}
    monkeypatch.setattr(former, "table", lambda folder: found.get(folder, {}))


def composed(method="grpo", **keys):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = gxpo.method(method, {k.replace("__", "."): v for k, v in keys.items()})
    assert {w.category for w in caught} <= {FutureWarning}
    return made, [str(w.message) for w in caught]


def test_a_former_part_is_a_composition_now():
    made, said = composed(credit="per_step", credit__gamma=0.5, credit__factor=2.0, credit__scale="sd")
    assert isinstance(made.credit, CreditSum)
    step, whole = made.credit.parts
    assert (step.discount, step.weight, step.scale, step.center) == (0.5, 2.0, "std", "leave_one_out")
    assert whole.eps == 0.5
    assert said == [
        "credit=per_step is now credit=relative, credit.center=leave_one_out, credit.add.whole=relative, "
        "credit.add.whole.eps=0.5",
        "credit.gamma is now credit.discount",
        "credit.factor is now credit.weight",
    ]


def test_what_is_stated_goes_before_what_the_former_part_had():
    made, _ = composed(credit="per_step", credit__both=0.25, credit__center="median")
    step, whole = made.credit.parts
    assert (step.eps, whole.eps, step.center) == (0.25, 0.25, "median")


def test_an_option_that_is_no_more():
    assert composed(credit="per_step", credit__gone=3)[1][-1] == "credit.gone has no effect any more"


def test_a_former_part_in_a_slot_of_its_own():
    made, said = composed(weight__mine="peaked", weight__mine__top=0.3)
    assert (list(made.weights), made.weights["mine"].cap) == (["mine"], 0.3)
    assert said == [
        "weight.mine=peaked is now weight.mine=truncated",
        "weight.mine.top is now weight.mine.cap",
    ]
    made, _ = composed(weight__peaked="peaked", weight__peaked__top=0.3)
    assert made.weights["peaked"].cap == 0.3


def test_old_and_new_name_with_different_values():
    with (
        pytest.raises(ConfigError, match=r"credit.discount is set twice: 0.5, and 0.7 under its former name"),
        pytest.warns(FutureWarning),
    ):
        gxpo.method("grpo", {"credit": "per_step", "credit.discount": 0.5, "credit.gamma": 0.7})
    composed(credit="per_step", credit__discount=0.5, credit__gamma=0.5)


def test_a_former_class_composes_and_names():
    find = former.classes("credit")
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        find("Other")
    per_step = find("PerStep")
    with pytest.warns(FutureWarning):
        made = per_step(gamma=0.5)
        assert gxpo.method("grpo", {"credit": per_step, "credit.gamma": 0.5}).credit == made
    assert made.parts[0].discount == 0.5
    with pytest.raises(ConfigError, match=r"unknown key 'credit.gama'"), pytest.warns(FutureWarning):
        per_step(gama=0.5)
    with pytest.warns(FutureWarning):
        assert former.classes("weighting")("Peaked")(top=0.1).cap == 0.1


@pytest.fixture
def renamed(monkeypatch):
    from gxpo.methods import METHODS

    new = replace(METHODS["gigpo"], renamed={"credit.gamma": "credit.discount", "weight.sharp": "weight.mine",
                                             "weight.sharp.top": "weight.mine.cap"},
                  keys={**METHODS["gigpo"].keys, "weight.mine": "truncated"})  # fmt: skip
    monkeypatch.setitem(METHODS._loaded, "gigpo", new)


def test_options_that_a_methods_definition_has_renamed(renamed):
    made, said = composed("gigpo", credit__gamma=0.25, weight__sharp__top=0.3)
    assert (made.credit.parts[0].discount, made.weights["mine"].cap) == (0.25, 0.3)
    assert said == [
        "credit.gamma of gigpo is now credit.discount",
        "weight.sharp.top of gigpo is now weight.mine.cap",
    ]


def test_renamed_options_are_of_the_methods_own_part(renamed):
    with pytest.raises(ConfigError, match=r"unknown key 'credit.gamma'"):
        gxpo.method("gigpo", {"credit": "gae", "credit.gamma": 0.25})


def test_a_renamed_slot_takes_what_is_in_it_along(renamed):
    """As a saved configuration states it: the slot's part, by its former name, and its options."""
    made, _ = composed("gigpo", weight__sharp="peaked", weight__sharp__top=0.3)
    assert (list(made.weights), made.weights["mine"].cap) == (["mine"], 0.3)


def test_a_definition_of_a_users_with_former_names(monkeypatch):
    from gxpo.methods import METHODS

    own = replace(METHODS["grpo"], name="mine", keys={"credit": "per_step", "credit.gamma": 0.5})
    monkeypatch.setitem(METHODS._loaded, "mine", own)
    monkeypatch.setitem(METHODS._module_of, "mine", "")
    made, _ = composed("mine")
    assert made.credit.parts[0].discount == 0.5


def test_added_credits_follow_the_main_one_where_they_may():
    from gxpo.credit.base import CreditPart

    @dataclass(frozen=True)
    class Added(CreditPart):
        scale: str | None = None
        eps: float = 1.0
        ddof: int = 0
        follows = ("eps",)

        def __call__(self, forest, signals, step):
            raise NotImplementedError

    keys = {"credit.add.mine": Added, "credit.scale": "none", "credit.eps": 0.25, "credit.ddof": 1}
    made = gxpo.method("grpo", keys)
    assert made.credit.parts[1] == Added("none", 0.25, 0)
    again = gxpo.method("grpo", {k: s for k, s in made.keys.items()} | {"credit.scale": Stated("std", "override")})
    assert again.credit.parts[1] == Added("std", 0.25, 0)  # as a saved configuration states it
    stated = gxpo.method("grpo", {**keys, "credit.add.mine.scale": "mean", "credit.add.mine.eps": 2.0})
    assert stated.credit.parts[1] == Added("mean", 2.0, 0)
    assert gxpo.method("gae", {"credit.add.mine": Added}).credit.parts[1] == Added()


def test_options_of_all_parts_by_their_former_names():
    made, told = composed("grpo", credit__single="raw")
    assert made.credit.singleton == "raw" and told == ["credit.single is now credit.singleton"]
    made, told = composed("gigpo", credit__add__state__single="raw", objective__once_per_token=True)
    assert made.credit.parts[1].singleton == "raw" and made.terms["policy"].dedup_shared_tokens and len(told) == 2
    with pytest.raises(ConfigError, match=r"credit\.singleton is set twice"):
        gxpo.method("grpo", {"credit.single": "raw", "credit.singleton": "zero"})


def test_a_keyword_by_its_former_name():
    from gxpo.credit import group_relative

    with pytest.warns(FutureWarning, match="single of group_relative is now singleton"):
        found = group_relative(torch.ones(1), torch.zeros(1, dtype=torch.int64), scale="none", single="raw")
    assert found.tolist() == [1.0]


def test_gtpos_weight_by_its_former_name(monkeypatch):
    monkeypatch.undo()
    for keys in ({"weight__conflict__gain": 3.0}, {"weight__conflict": "conflict", "weight__conflict__gain": 3.0}):
        made, _ = composed("gtpo", **keys)
        assert set(made.weights) == {"shared_affix_mask", "entropy_ceiling"}
        assert made.weights["shared_affix_mask"].options["gain"] == 3.0


def test_a_part_of_a_users_may_state_that_it_learns_from_equal_groups_as_before():
    class Mine:
        on_equal = "signal"

    assert former.learns_from_equal_groups(Mine()) and not former.learns_from_equal_groups(object())
