"""Pure functions as settings and as parts: positional parameters name input columns, keyword-only ones are options.

Of `def noise_aware(rate, *, flip=0.1)`, `flip` is an option; `Annotated[float, Interval(ge=0)]` states its range.
`Formula` is a part with slots for functions; `function_part` makes a part of one function.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields, make_dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar, get_type_hints

from gxpo.base.errors import ConfigError, GxpoError, did_you_mean
from gxpo.base.usercode import Unusable, is_users, object_at
from gxpo.parts.ranges import Part, key_of, refusal, rule_of

F = TypeVar("F", bound=Callable[..., Any])
UNBOUNDED = "unbounded"  # in an option's annotation: it may be infinite, `Annotated[float, Gt(1), UNBOUNDED]`


class Signature(NamedTuple):
    """Signature of a formula. columns: its positional parameters; options: (type, default) of the keyword-only ones;
    passes_on: it has a parameter `**NAME`."""

    columns: tuple[str, ...]
    options: Mapping[str, tuple[Any, Any]]
    passes_on: bool = False


@cache
def signature(function: Callable[..., Any]) -> Signature:
    """Columns and options of a function, from its signature."""
    parameters = inspect.signature(function).parameters.values()
    options = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    # annotations are texts under `from __future__`: only those of options are resolved, since types of columns may be
    # imported for type checkers alone
    holder = SimpleNamespace(
        __annotations__={k: p.annotation for k, p in options.items() if p.annotation is not p.empty}
    )
    hints = get_type_hints(holder, getattr(inspect.unwrap(function), "__globals__", None), include_extras=True)
    return Signature(
        tuple(p.name for p in parameters if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)),
        {k: (hints.get(k, Any), p.default) for k, p in options.items()},
        any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


@cache
def functions_in(module: str) -> dict[str, Callable[..., Any]]:
    """Public functions defined in a module, by name."""
    members = vars(importlib.import_module(module))
    return {k: f for k, f in members.items() if inspect.isfunction(f) and f.__module__ == module and k[:1] != "_"}


def checked_by(check: Callable[..., str | None]) -> Callable[[F], F]:
    """Decorator: validate the options of a function together; `check(**options)` says what does not fit, or None.

    Of a part that is the function, the text begins with the name of an option.
    """

    def mark(function: F) -> F:
        function.check = check  # type: ignore[attr-defined]
        return function

    return mark


def look_up(value: Any, module: str, key: str, *, free: bool | Collection[str] = False) -> Any:
    """Look up the function that a setting names.

    module  whose functions have names, imported where one is asked for
    free    other names are left as they are: those of columns; some may be given, which are then never functions
    """
    # a column may have the name of a function: where columns are listed, they win
    if callable(value) or (not isinstance(free, bool) and value in free):
        return value
    # names come from the module, which is imported only now: its functions may need torch
    names = functions_in(module)
    if value in names:
        return names[value]
    if isinstance(value, str) and ":" in value:
        return user_function(value, key)
    # last, so that the name of a function is never read as that of a column
    if free and isinstance(value, str) and value:
        return value
    raise ConfigError(f"{key}: unknown function {value!r}{did_you_mean(value, names)}; there is {', '.join(names)}")


def user_function(value: Any, key: str) -> Callable[..., Any]:
    """Load the function that a setting names as FILE.py:NAME; ConfigError without one."""
    if callable(value):
        return value
    if not isinstance(value, str) or ":" not in value:
        raise ConfigError(f"{key} is {value!r}; it must be FILE.py:NAME, a function of yours")
    try:
        return object_at(value)
    except Unusable as error:
        raise ConfigError(f"{key}={value}: {error}") from None


class Formula(Part):
    """Mixin for frozen parts that apply functions; their options are in the field `options`, a mapping.

    An option with the name of one of the part's fields is that field.

    functions  field -> (module whose functions it takes by name, whether other names are those of columns)
    """

    functions: Mapping[str, tuple[str, bool | Collection[str]]] = {}
    options: Mapping[str, Any]

    # frozen parts are settled here once: the names in fields become functions
    def __post_init__(self) -> None:
        for name, (module, free) in self.functions.items():
            object.__setattr__(
                self, name, look_up(getattr(self, name), module, f"{key_of(type(self))}.{name}", free=free)
            )
        # options of all functions together: one name that two of them have is one option
        functions = [getattr(self, name) for name in self.functions]
        options = {k: v for f in functions if callable(f) for k, v in signature(f).options.items()}
        title = self.slot.replace("NAME", getattr(functions[-1], "__name__", functions[-1]))
        # an option that no function has would be ignored in silence
        for name in self.options:
            if name not in options:
                raise ConfigError(f"{title} has no option {name!r}{did_you_mean(name, options)}")
        # an option that is also a field of the part lives there alone, so that it can't have two values
        field_names = {f.name for f in fields(self)}  # type: ignore[arg-type]  # a dataclass
        values = {
            k: getattr(self, k) if k in field_names else self.options.get(k, default)
            for k, (_, default) in options.items()
        }
        # ranges of options are checked when the part is made and not in the first step of a run
        for name, value in values.items():
            rule = rule_of(options[name][0], options[name][1] == math.inf)
            if rule is not None and not rule.holds(value):
                raise ConfigError(refusal(f"{title}.{name}", value, rule))
        # options that exclude each other: each function checks its own
        for function in functions:
            checked_options = {k: values[k] for k in signature(function).options} if hasattr(function, "check") else {}
            if checked_options and (wrong := function.check(**checked_options)):
                raise ConfigError(f"{title}: {wrong}")
        object.__setattr__(self, "options", {k: value for k, value in values.items() if k not in field_names})

    def apply(self, function: Callable[..., Any], columns: list[Any]) -> Any:
        """Call a function with the part's options that it accepts."""
        return function(*columns, **{k: self.options[k] for k in signature(function).options})


class FunctionPart(Part):
    """Mixin of a stage's parts that are one pure function each; its options are the fields of the part.

    A stage has one subclass, in `registry.OF_FUNCTIONS`, whose methods call `self.function` with what the stage gives
    and `self.options`.
    """

    function: ClassVar[Callable[..., Any]]

    @classmethod
    def facts(cls, function: Callable[..., Any]) -> dict[str, Any]:
        """Attributes that follow from the function's signature, such as the signals that it needs."""
        return {}

    @classmethod
    def options_of(cls, function: Callable[..., Any]) -> Mapping[str, tuple[Any, Any]]:
        """Options of the part: (type, default) by name."""
        return signature(function).options

    @classmethod
    def bases(cls, function: Callable[..., Any]) -> tuple[type, ...]:
        """Base classes of the part, by which it has further options: those that a function passes on as `**NAME`."""
        return (cls,)

    @classmethod
    def accepts(cls, function: Callable[..., Any]) -> bool:
        """Return True if an unnamed function is such a pure function, False if it has the stage's own protocol."""
        return False

    @property
    def options(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]  # a dataclass

    def __post_init__(self) -> None:
        super().__post_init__()
        check = getattr(self.function, "check", None)
        if check is not None and (wrong := check(**self.options)):
            raise ConfigError(f"{key_of(type(self))}.{wrong}")
        for name in self._option_facts:
            object.__setattr__(self, name, getattr(type(self), f"_{name}")(**self.options))

    _option_facts: ClassVar[tuple[str, ...]] = ()  # facts that depend on the options


def function_part(function: Callable[..., Any], base: type[FunctionPart], **facts: Any) -> type[FunctionPart]:
    """The part that a function is: a frozen dataclass with its name and docstring, and a field for each option.

    facts  attributes of the part such as `requires`, in addition to those that follow from the signature; a function
           gives them by the options: `learns_from_equal_groups=lambda center, **_: center == "none"`
    """
    options = [
        (name, hint, field(default=default, kw_only=True, metadata=_marks(hint)))
        # options are keyword-only, so that a new one never changes the meaning of positional arguments
        for name, (hint, default) in base.options_of(function).items()
    ]
    attributes = {**base.facts(function), **facts}
    # a fact may depend on options (`learns_from_equal_groups` on the centre): it is computed for each instance
    by_options = {name: value for name, value in attributes.items() if inspect.isfunction(value)}
    # the docstring and module are the function's: help, sources and pickling go by them
    space = {
        **{name: value for name, value in attributes.items() if name not in by_options},
        **{f"_{name}": staticmethod(value) for name, value in by_options.items()},
        "_option_facts": tuple(by_options),
        "function": staticmethod(function),
        "__doc__": function.__doc__,
        "__module__": function.__module__,
    }
    return make_dataclass(function.__name__, options, bases=base.bases(function), namespace=space, frozen=True)


def _marks(hint: Any) -> dict[str, bool]:
    """Metadata of the field for an option with this annotation."""
    return {UNBOUNDED: True} if UNBOUNDED in getattr(hint, "__metadata__", ()) else {}


# ---------------------------------------------------------------- what functions of users give
_ENTRIES = ("__call__", "loss", "level", "compute", "grow", "run", "weights", "begins", "coefficient", "merge",
            "then", "first")  # fmt: skip


def users_code(part: Any) -> Any:
    """The code object of the user's function that a part is, applies or has as a method; None: it is gxpo's own."""
    part_functions = [getattr(part, name, None) for name in getattr(part, "functions", ())]
    methods = [getattr(type(part), name, None) for name in _ENTRIES]
    for function in (part, getattr(type(part), "function", None), *part_functions, *methods):
        code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
        if code is not None and is_users(code.co_filename):
            return code
    return None


def place_of(part: Any) -> str:
    """`" (my_parts.py line 12, in fading)"` for a part of the user's, `""` for one of gxpo's own."""
    code = users_code(part)
    return (
        "" if code is None else f" ({os.path.basename(code.co_filename)} line {code.co_firstlineno}, in {code.co_name})"
    )


def in_words(value: Any) -> str:
    """A value that a function has given, in words: a tensor by its shape and, unless it holds numbers, its type."""
    if not hasattr(value, "is_complex"):
        size = f" of {len(value)}" if isinstance(value, (list, tuple, dict)) else ""
        shape = getattr(value, "shape", None)
        size = size if shape is None else f" of shape {tuple(shape)}"
        return "None" if value is None else f"{type(value).__name__}{size}, not a tensor"
    return f"shape {tuple(value.shape)}{f' of {value.dtype}' if value.is_complex() else ''}"


Name = Callable[[Any], str]


def title_of(role: str, part: Any, name: Name | None) -> str:
    """Name a part as errors do: its role, its `name` where one is asked for, and its file where it is a user's."""
    return f"{role}{'' if name is None else f' {name(part)}'}{place_of(part)}"


def expect(value: Any, shape: Sequence[int], role: str, part: Any, unit: str, *, name: Name | None = None) -> Any:
    """The tensor that a part has given, of this shape. GxpoError that names the part's file otherwise.

    unit  what has one value: "path token (use forest.to_path)"
    name  gives the part's name, which is told after `role`
    """
    fits = hasattr(value, "is_complex") and not value.is_complex() and tuple(value.shape) == tuple(shape)
    if fits:
        return value
    size = f"shape {tuple(shape)}, one value for each {unit}" if len(shape) else "a tensor of shape (), one number"
    raise GxpoError(f"{title_of(role, part, name)} gave {in_words(value)}; it has to give {size}")


@contextmanager
def naming(role: str, part: Any, *, name: Name | None = None) -> Iterator[None]:
    """Context manager: an exception that a user's part causes outside of its own code names its file.

    name  gives the part's name, which is told after `role`
    """
    try:
        yield
    except GxpoError:
        raise
    except Exception as error:
        # an error within the user's own file already shows its lines; one that numpy or torch raises later names gxpo's
        code = users_code(part)
        if code is None or any(f.filename == code.co_filename for f in traceback.extract_tb(error.__traceback__)):
            raise
        message = " ".join(str(error).split())
        raise GxpoError(
            f"{title_of(role, part, name)} gave what can't be used: {type(error).__name__}: {message[:300]}"
        ) from error
