"""Range checks from type annotations: `Annotated[float, Interval(gt=0, le=1)]` and `Literal` on a dataclass's fields.

    @dataclass(frozen=True)
    class TopEntropy(WeightPart):
        share: Annotated[float, Interval(gt=0, le=1)] = 0.2
        among: Literal["group", "batch"] = "group"

    TopEntropy(share=2.0)  # ConfigError: weight.top_entropy.share is 2.0; it is above 0, up to 1

The constraints are those of `annotated_types`. A number with bounds is also finite, unless its default is infinite or
its field has the metadata "unbounded". Hints are read once for each class.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, wraps
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from gxpo.base.errors import ConfigError, did_you_mean

_COMPARE = {"gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le}
_NAMES = {type(None): "null", str: "a text", int: "an integer", float: "a number", bool: "true or false"}
_LACKING = object()
_KNOWN = (*_COMPARE, "multiple_of", "min_length", "max_length")


class Rule(NamedTuple):
    """Range of a value: in words, as a test, and by name where there are few choices."""

    text: str
    holds: Callable[[Any], bool]
    choices: tuple[Any, ...] = ()


class Part:
    """Base of frozen dataclasses whose fields are checked against their annotations when one is made.

    A `__post_init__` of a subclass runs after the check, and needs no call of `super`.

    slot  the key that names such a part, its options below it; NAME: several have one each, by default the part's name
    """

    slot: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # a `__post_init__` computes with the fields, so their ranges are checked before it
        post_init = vars(cls).get("__post_init__")
        if post_init is None:
            return

        @wraps(post_init)
        def check_first(self: Any, *args: Any) -> None:
            check(type(self), vars(self))
            post_init(self, *args)

        cls.__post_init__ = check_first

    def __post_init__(self) -> None:
        check(type(self), vars(self))

    @classmethod
    def hook(cls, part: Any, name: str) -> Any:
        """An attribute or a method of a part of this kind, which may be a user's that has another base, or none: this
        class declares what holds where it lacks it."""
        value = getattr(part, name, _LACKING)
        if value is not _LACKING:
            return value
        default = getattr(cls, name)
        return default.__get__(part) if inspect.isfunction(default) else default


def snake(name: str) -> str:
    """The name of a class as configurations write it: `GroupRelative` is `group_relative`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def check(kind: type, values: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first field of the dataclass `kind` whose value is not what its annotation allows."""
    for name, rule in rules(kind).items():
        if name in values and not rule.holds(values[name]):
            raise ConfigError(refusal(f"{key_of(kind)}.{name}", values[name], rule))


def refusal(key: str, value: Any, rule: Rule, origin: str = "") -> str:
    """`weight.token.share is 2; it is above 0, up to 1`."""
    value_text = repr(value) if isinstance(value, str) else "null" if value is None else str(value)
    hint = did_you_mean(value, rule.choices) if isinstance(value, str) else ""
    return f"{key} is {value_text}{origin and f' ({origin})'}; it is {rule.text}{hint}"


def key_of(kind: type) -> str:
    """The key under which a part has its options, as far as its class tells."""
    slot = getattr(kind, "slot", "")
    return slot.replace("NAME", snake(kind.__name__)) or snake(kind.__name__)


@cache
def rules(kind: type) -> dict[str, Rule]:
    """Rules of a dataclass's fields from their annotations, by name; fields that may have any value are left out."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # names that are imported for type checkers alone: sums and products of parts
        return {}
    out: dict[str, Rule] = {}
    for field in dataclasses.fields(kind):
        unbounded = field.default in (math.inf, -math.inf) or "unbounded" in field.metadata
        rule = rule_of(hints[field.name], unbounded) if field.init else None
        if rule is not None:
            out[field.name] = rule
    return out


def rule_of(hint: Any, unbounded: bool = False) -> Rule | None:
    """Rule that a type hint states beyond its plain type."""
    origin, args = get_origin(hint), get_args(hint)
    # what the type itself allows (the values of a Literal) holds beside the bounds
    if origin is Annotated:
        return _bounds_rule(rule_of(args[0]), list(_constraints(args[1:])), unbounded)
    if origin is Literal:
        return Rule(f"one of {', '.join(map(str, args))}", lambda value: _is_in(value, args), args)
    if origin in (Union, types.UnionType):
        return _union_rule([(alternative, rule_of(alternative, unbounded)) for alternative in args])
    if isinstance(origin, type) and args and args[-1] is not None:
        inner = [a for a in args if a is not Ellipsis]
        # tuples of fixed length have a rule for each place; tuple[x, ...] is a list
        if issubclass(origin, tuple) and args[-1] is not Ellipsis:
            return _tuple_rule([rule_of(a, unbounded) for a in inner])
        item_rule = rule_of(inner[-1], unbounded)
        if item_rule is not None and issubclass(origin, Mapping):
            return Rule(f"by name: {item_rule.text}", lambda value: all(map(item_rule.holds, value.values())))
        if item_rule is not None and issubclass(origin, Collection):
            return Rule(f"a list, of which each is {item_rule.text}", lambda value: all(map(item_rule.holds, value)))
    return None


def _constraints(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for entry in metadata:
        yield from entry if hasattr(entry, "__is_annotated_types_grouped_metadata__") else (entry,)


def _bounds_rule(rule: Rule | None, constraints: list[Any], unbounded: bool) -> Rule | None:
    limits = {k: v for c in constraints for k in _KNOWN if (v := getattr(c, k, None)) is not None}
    bounds = {k: v for k, v in limits.items() if k in _COMPARE}
    lengths = {k: v for k, v in limits.items() if k in ("min_length", "max_length")}
    multiple = limits.get("multiple_of")
    texts = [*_bounds_texts(bounds), *([f"a multiple of {multiple}"] if multiple else []), *_length_texts(lengths)]
    if not texts:
        return rule
    if rule is not None:
        texts.insert(0, rule.text)

    # length before bounds: bounds of a text or list mean nothing
    def holds(value: Any) -> bool:
        if lengths and not lengths.get("min_length", 0) <= len(value) <= lengths.get("max_length", math.inf):
            return False
        if bounds or multiple:
            # nan compares false with everything: value == value refuses it even where inf is allowed
            number = isinstance(value, (int, float)) and (math.isfinite(value) or (unbounded and value == value))
            if not (number and all(_COMPARE[k](value, bound) for k, bound in bounds.items())):
                return False
            if multiple and value % multiple:
                return False
        return rule is None or rule.holds(value)

    return Rule(", ".join(texts), holds)


def _bounds_texts(bounds: Mapping[str, Any]) -> list[str]:
    """`from 0 to 1`, `above 0, up to 1`, `0 or more`."""
    low = f"from {bounds['ge']}" if "ge" in bounds else f"above {bounds['gt']}" if "gt" in bounds else ""
    if low and "le" in bounds:
        return [f"{low} to {bounds['le']}" if "ge" in bounds else f"{low}, up to {bounds['le']}"]
    if low and "lt" in bounds:
        return [f"{low} to below {bounds['lt']}" if "ge" in bounds else f"{low} and below {bounds['lt']}"]
    if "ge" in bounds:
        return [f"{bounds['ge']} or more"]
    high = f"at most {bounds['le']}" if "le" in bounds else f"below {bounds['lt']}" if "lt" in bounds else ""
    return [text for text in (low, high) if text]


def _length_texts(lengths: Mapping[str, int]) -> list[str]:
    shortest, longest = lengths.get("min_length", 0), lengths.get("max_length")
    if longest is None:
        return [f"of length {shortest} or more"] if shortest else []
    return [f"of length {shortest}" if shortest == longest else f"of length {shortest} to {longest}"]


def _is_in(value: Any, choices: tuple[Any, ...]) -> bool:
    return any(type(value) is type(choice) and value == choice for choice in choices)


def _union_rule(alternatives: list[tuple[Any, Rule | None]]) -> Rule | None:
    if all(rule is None for _, rule in alternatives):
        return None

    # an alternative without a rule accepts all values of its type
    def holds(value: Any) -> bool:
        return any(_is(value, hint) and (rule is None or rule.holds(value)) for hint, rule in alternatives)

    texts = [text for hint, rule in alternatives if (text := _NAMES.get(hint, "") if rule is None else rule.text)]
    choices = tuple(c for _, rule in alternatives if rule is not None for c in rule.choices)
    return Rule(", or ".join(texts), holds, choices)


def _tuple_rule(item_rules: list[Rule | None]) -> Rule | None:
    """Rules of a tuple's values, one for each."""
    if all(rule is None for rule in item_rules):
        return None

    def holds(value: Any) -> bool:
        return len(value) == len(item_rules) and all(
            r is None or r.holds(v) for r, v in zip(item_rules, value, strict=True)
        )

    texts = ", then ".join("any" if rule is None else rule.text for rule in item_rules)
    return Rule(f"{len(item_rules)} values: {texts}", holds)


def _is(value: Any, hint: Any) -> bool:
    """Return True if a value may be what one alternative of a union stands for."""
    kind = get_origin(hint)
    if kind is Annotated:
        return _is(value, get_args(hint)[0])
    if kind is Literal:
        return True  # its rule decides
    kind = kind or hint
    # bool is an int for Python, and `true` for a number is a mistake in a configuration
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    # YAML has lists only
    if kind is tuple:
        return isinstance(value, (tuple, list))
    return not isinstance(kind, type) or isinstance(value, kind)
