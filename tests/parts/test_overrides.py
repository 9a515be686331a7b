"""What the caller's keys leave of a method."""

from __future__ import annotations

from typing import Any

from gxpo.parts.definition import Definition, SettingValue
from gxpo.parts.overrides import Remains, remains


def left_of(keys: dict[str, Any], resolved: dict[str, tuple[Any, str]]) -> Remains:
    method = Definition("mine: An idea.", name="mine", evidence="paper", keys=keys)
    return remains(method, {key: SettingValue(*value) for key, value in resolved.items()})


def test_a_method_as_published_is_whole():
    keys = {"credit.scale": "none", "segment.patterns": ("a", "b")}
    full_left = left_of(keys, {"credit.scale": ("none", "mine"), "segment.patterns": (["a", "b"], "run.yaml:3")})
    assert full_left == Remains(("credit.scale", "segment.patterns"), (), (), False) and full_left.text == ""


def test_another_number_leaves_the_formula():
    keys = {"credit.center": "mean", "credit.scale": "none"}
    actual = left_of(keys, {"credit.center": ("mean", "mine"), "credit.scale": ("std", "--set")})
    assert actual == Remains(("credit.center",), ("credit.scale",), ("credit.scale=std [--set]",), False)
    assert actual.text == ""


def test_a_method_of_which_every_key_is_replaced_has_nothing_left():
    actual = left_of({"credit.scale": "none"}, {"credit.scale": ("std", "--set")})
    assert actual.text == "nothing of it is left: credit.scale gave way to credit.scale=std [--set]"


def test_another_part_takes_its_numbers_with_it():
    keys = {"credit.scale": "none", "objective.aggregate": "sequence_sum"}
    actual = left_of(
        keys,
        {
            "credit": ("other", "--set"),
            "credit.scale": ("none", "mine"),
            "objective.aggregate": ("sequence_sum", "mine"),
        },
    )
    assert actual == Remains(("objective.aggregate",), ("credit.scale",), ("credit=other [--set]",), True)
    assert actual.text == "credit.scale gave way to credit=other [--set]; left of it: objective.aggregate"


def test_a_part_by_the_name_that_the_base_has_is_no_replacement():
    actual = left_of({"credit.scale": "none"}, {"credit": ("relative", "--set"), "credit.scale": ("none", "mine")})
    assert actual.intact == ("credit.scale",) and not actual.is_replaced


def test_the_base_itself_loses_its_advantage():
    actual = left_of({}, {"credit": ("other", "--set")})
    assert actual == Remains((), (), ("credit=other [--set]",), True)
    assert actual.text == "its advantage gave way to credit=other [--set]; the rest of the base is left"
    assert left_of({}, {"credit": ("relative", "default")}).text == ""


def test_a_key_that_is_gone_names_what_there_is_in_its_place():
    gone = left_of({"weight.mismatch": "token_weight"}, {})
    assert gone.is_replaced and gone.replacements == ("the base's weight",)
    other = left_of({"weight.mismatch": "token_weight"}, {"weight.other": ("group_weight", "--set")})
    assert other.replacements == ("weight [--set]",)


def test_a_systems_version_of_the_method_is_the_method():
    actual = left_of({"credit.eps": 1e-6}, {"credit.eps": (1e-4, "mine@trl")})
    assert actual == Remains(("credit.eps",), (), (), False)
