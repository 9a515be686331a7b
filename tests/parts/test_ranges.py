"""Range checks from annotations: the words of a refusal, and every bound of every part's options."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from annotated_types import Ge, Gt, Interval, Le, Lt, MaxLen, MinLen, MultipleOf

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.parts import ranges, registry


@dataclass(frozen=True)
class Every(ranges.Part):
    ge: Annotated[int, Ge(1)] = 1
    gt: Annotated[float, Gt(0)] = 0.5
    le: Annotated[float, Le(2)] = 2.0
    lt: Annotated[float, Lt(2)] = 1.0
    share: Annotated[float, Interval(gt=0, le=1)] = 1.0
    chance: Annotated[float, Interval(ge=0, le=1)] = 0.0
    below: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    inside: Annotated[float, Interval(gt=0, lt=1)] = 0.5
    even: Annotated[int, Ge(0), MultipleOf(2)] = 2
    names: Annotated[tuple[str, ...], MinLen(1)] = ("a",)
    pair: Annotated[tuple[float, ...], MinLen(2), MaxLen(2)] = (0.0, 1.0)
    bounds: tuple[Annotated[float, Ge(0)], Annotated[float, Ge(1)]] = (0.0, 1.0)
    each: tuple[Annotated[float, Gt(0)], ...] = ()
    by_name: Mapping[str, Annotated[float, Ge(0)]] = field(default_factory=dict)
    maybe: Annotated[int, Ge(1)] | None = None
    maybe_word: Literal["a", "b"] | None = None
    or_auto: Annotated[int, Ge(1)] | Literal["auto"] = 1
    word: Literal["mean", "none"] = "mean"
    limit: Annotated[float, Gt(0)] = math.inf
    open_end: Annotated[float, Gt(0)] = field(default=1.0, metadata={"unbounded": True})
    plain: int = 0


@dataclass(frozen=True)
class Ordered(Every):
    def __post_init__(self) -> None:
        if self.ge > 5:
            raise ConfigError("ge is above 5")


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("ge", 0, "every.ge is 0; it is 1 or more"),
        ("gt", 0.0, "every.gt is 0.0; it is above 0"),
        ("gt", math.nan, "every.gt is nan; it is above 0"),
        ("gt", math.inf, "every.gt is inf; it is above 0"),
        ("gt", "x", "every.gt is 'x'; it is above 0"),
        ("le", 2.1, "every.le is 2.1; it is at most 2"),
        ("lt", 2.0, "every.lt is 2.0; it is below 2"),
        ("share", 0.0, "every.share is 0.0; it is above 0, up to 1"),
        ("share", 1.1, "every.share is 1.1; it is above 0, up to 1"),
        ("chance", -0.1, "every.chance is -0.1; it is from 0 to 1"),
        ("below", 1.0, "every.below is 1.0; it is from 0 to below 1"),
        ("inside", 1.0, "every.inside is 1.0; it is above 0 and below 1"),
        ("even", 3, "every.even is 3; it is 0 or more, a multiple of 2"),
        ("even", -2, "every.even is -2; it is 0 or more, a multiple of 2"),
        ("names", (), "every.names is (); it is of length 1 or more"),
        ("pair", (1.0,), "every.pair is (1.0,); it is of length 2"),
        ("bounds", (0.0, 0.5), "every.bounds is (0.0, 0.5); it is 2 values: 0 or more, then 1 or more"),
        ("bounds", (0.0,), "every.bounds is (0.0,); it is 2 values: 0 or more, then 1 or more"),
        ("each", (1.0, 0.0), "every.each is (1.0, 0.0); it is a list, of which each is above 0"),
        ("by_name", {"a": -1.0}, "every.by_name is {'a': -1.0}; it is by name: 0 or more"),
        ("maybe", 0, "every.maybe is 0; it is 1 or more, or null"),
        ("maybe_word", "c", "every.maybe_word is 'c'; it is one of a, b, or null"),
        ("or_auto", 0, "every.or_auto is 0; it is 1 or more, or one of auto"),
        ("or_auto", "atuo", "every.or_auto is 'atuo'; it is 1 or more, or one of auto; did you mean 'auto'?"),
        ("word", "meen", "every.word is 'meen'; it is one of mean, none; did you mean 'mean'?"),
        ("word", None, "every.word is null; it is one of mean, none"),
        ("limit", 0.0, "every.limit is 0.0; it is above 0"),
    ],
)
def test_words_of_a_refusal(name, wrong, said):
    for kind, prefix in ((Every, "every."), (Ordered, "ordered.")):  # a check of one's own takes nothing away
        with pytest.raises(ConfigError) as caught:
            kind(**{name: wrong})
        assert str(caught.value) == said.replace("every.", prefix)
    messages = ranges.refusal(f"weight.mine.{name}", wrong, ranges.rules(Every)[name], "run.yaml:3")
    assert messages == said.replace("every.", "weight.mine.").replace(";", " (run.yaml:3);", 1)


@pytest.mark.parametrize(
    "given",
    [{"share": 1}, {"maybe": None}, {"maybe": 3}, {"or_auto": "auto"}, {"limit": math.inf}, {"open_end": math.inf},
     {"pair": [1.0, 2.0]}, {"by_name": {"a": 0.0}}, {"plain": -3}, {"gt": 5e-324}, {"le": -1e300}],
)  # fmt: skip
def test_values_inside(given):
    ordered = Ordered(**given)
    assert {k: getattr(ordered, k) for k in given} == given


def test_a_check_of_ones_own_runs_after_the_ranges():
    with pytest.raises(ConfigError, match="ge is above 5"):
        Ordered(ge=6)


def test_keys_of_parts():
    assert [ranges.key_of(k) for k in (registry.CREDITS["relative"], registry.UPDATES["epochs"], Every)] == [
        "credit", "update", "every"]  # fmt: skip
    assert ranges.key_of(next(iter(registry.WEIGHTS.values()))) == f"weight.{next(iter(registry.WEIGHTS))}"


TABLES = {k: v for k, v in vars(registry).items() if isinstance(v, registry.Table)}
PARTS = [kind for table in TABLES.values() for kind in table.values()]


def bounds_of(hint: Any) -> list[tuple[Any, Any]]:
    """(a value outside, the nearest inside) for every bound that a hint has at its top."""
    if get_origin(hint) is Literal:
        return [("no such word", get_args(hint)[0])]
    if get_origin(hint) is not Annotated:
        return []
    base, *constraints = get_args(hint)
    down, up = (lambda x: x - 1, lambda x: x + 1) if base is int else (
        lambda x: math.nextafter(x, -math.inf), lambda x: math.nextafter(x, math.inf))  # fmt: skip
    actual: list[tuple[Any, Any]] = []
    for c in constraints:
        for name, outside, inside in (
            ("ge", down, lambda x: x), ("gt", lambda x: x, up), ("le", up, lambda x: x), ("lt", lambda x: x, down),
        ):  # fmt: skip
            if getattr(c, name, None) is not None:
                actual.append((outside(base(getattr(c, name))), inside(base(getattr(c, name)))))
    return actual


def test_what_lies_outside_a_bound_is_refused_with_its_key():
    tried, wrong = 0, []
    for kind in PARTS:
        hints = get_type_hints(kind, include_extras=True)  # every hint of a part can be read
        for entry in dataclasses.fields(kind):
            if not entry.init:
                continue
            alternatives = [h for h in get_args(hints[entry.name]) if h is not type(None)]
            hint = alternatives[0] if type(None) in get_args(hints[entry.name]) else hints[entry.name]
            key = f"{ranges.key_of(kind)}.{entry.name}"
            for outside, inside in bounds_of(hint):
                tried += 1
                outcomes = [refusal(kind, {entry.name: value}) for value in (outside, inside)]
                if not (outcomes[0] or "").startswith(f"{key} is ") or outcomes[1] is not None:
                    wrong.append((key, outside, inside, *outcomes))
    assert tried > 200 and wrong == []


def refusal(kind, values):
    """What `ranges.check` says against these values of a part, or None."""
    try:
        ranges.check(kind, values)
    except ConfigError as error:
        return str(error)
    return None


def test_a_composition_names_the_whole_key_and_where_the_value_comes_from():
    with pytest.raises(ConfigError, match=r"^update.epochs is 0 \(--set\); it is 1 or more$"):
        gxpo.training.config.load(None, ["update.epochs=0"])
    with pytest.raises(ConfigError, match=r"^update.epochs is 0; it is 1 or more$"):
        gxpo.method("grpo", {"update.epochs": 0})


@pytest.mark.slow
def test_the_shortest_way_imports_no_pydantic():
    import subprocess
    import sys

    code = "import sys, gxpo; gxpo.method('grpo'); assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_hook_is_the_part_s_own_or_what_its_base_declares():
    class Base(ranges.Part):
        near: bool = True

        def room(self, n: int) -> int:
            return n

    class Theirs:
        """A user's part, without the base."""

    theirs = Theirs()
    assert Base.hook(theirs, "near") is True and Base.hook(theirs, "room")(3) == 3
    theirs.near, theirs.room = False, lambda n: n + 1
    assert Base.hook(theirs, "near") is False and Base.hook(theirs, "room")(3) == 4
