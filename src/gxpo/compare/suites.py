"""Suites: settings in which the claimed differences of methods can appear on a laptop, with measured results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml.error import YAMLError

from gxpo.base import yamltext
from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.compare.results import Budget, Unit


def _budget(value: object) -> object:
    """Parse `{tokens: 60000}` to a `Budget`; anything else is left to the type check."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    unit, amount = next(iter(value.items()))
    if unit not in get_args(Unit):
        raise ValueError(f"a budget is of {', '.join(get_args(Unit))}, not of {unit!r}")
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not amount > 0:
        raise ValueError(f"a budget is above 0, not {amount!r}")
    return Budget(unit, float(amount))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Setting(_Strict):
    """Task, model, budget and measure of a comparison: everything of a run but its method and seed.

    keys      of a configuration, dotted
    budget    what every run may spend
    measure   name of the figure compared: eval_accuracy, or another of the evaluation's figures
    better    whether more or less of it is better
    """

    name: str
    keys: Annotated[dict[str, Any], Field(min_length=1)]
    budget: Annotated[Budget, BeforeValidator(_budget)]
    measure: str = "eval_accuracy"
    better: Literal["more", "less"] = "more"

    @model_validator(mode="after")
    def _states_no_arm(self) -> Setting:
        for key in ("method", "seed", "out"):
            if key in self.keys:
                raise ValueError(f"setting {self.name}: {key} is an arm's or a run's, not a setting's")
        return self


class MeasuredDifference(_Strict):
    """Measured difference from the base: mean over paired seeds with its 95% interval.

    setting, method   where, and of which arm: the label it has there; `shuffled` is the control
    difference        arm less base, in the setting's measure; positive is in the arm's favour
    commit            of the code that ran
    """

    setting: str
    method: str
    difference: float
    low: float
    high: float
    seeds: Annotated[int, Field(ge=2)]
    commit: str


class Suite(_Strict):
    """Settings of one kind and their default arms.

    idea        what the settings can show, in a line
    arms        compositions with their keys: `dapo`, `grpo:rollout.group_size=16`; the base and the control are added
    validated   measured differences; empty until then
    """

    name: str
    idea: str
    settings: Annotated[list[Setting], Field(min_length=1, max_length=3)]
    arms: Annotated[list[str], Field(min_length=1)]
    validated: list[MeasuredDifference] = []


def names() -> list[str]:
    """Names of the suites, in alphabetical order."""
    return sorted(f.name.removesuffix(".yaml") for f in _folder().iterdir() if f.name.endswith(".yaml"))


@cache
def suite(name: str) -> Suite:
    """Load the suite `name`; raises ConfigError if there is none, or its file is wrong."""
    if name not in names():
        raise ConfigError(f"no suite {name!r}{did_you_mean(name, names())}; there are {', '.join(names())}")
    return parse(name, (_folder() / f"{name}.yaml").read_text(encoding="utf-8"))


def setting(name: str) -> Setting:
    """Find the setting `name` in any suite; raises ConfigError if none has it."""
    every_setting = settings()
    if name not in every_setting:
        raise ConfigError(
            f"no setting {name!r}{did_you_mean(name, every_setting)}; there are {', '.join(every_setting)}"
        )
    return every_setting[name]


def settings() -> dict[str, Setting]:
    """All settings by name; raises ConfigError if two suites define one name differently."""
    setting_by_name: dict[str, Setting] = {}
    for name in names():
        for setting in suite(name).settings:
            if setting_by_name.setdefault(setting.name, setting) != setting:
                raise ConfigError(f"suite {name}: setting {setting.name!r} is another one in another suite: rename it")
    return setting_by_name


def parse(name: str, text: str) -> Suite:
    """Parse the YAML text of a suite; raises ConfigError with the place of an error.

    >>> parse("mine", "{idea: x, arms: [rloo], settings: [{name: a, keys: {task: code}, budget: {updates: 5}}]}").arms
    ['rloo']
    """
    source = f"suite {name}"
    try:
        # Plain values before validation: those of the loader carry their lines along.
        document = yamltext.plain(yamltext.load(text, source), source)
    except YAMLError as error:
        problem, line = yamltext.problem_of(error)
        raise ConfigError(f"{source}{line}: not YAML: {problem}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: a suite is a mapping with idea, settings and arms")
    try:
        return Suite.model_validate({**document, "name": name})
    except ValidationError as error:
        # The first error only: others often follow from it.
        first = error.errors()[0]
        place = ".".join(str(x) for x in first["loc"])
        raise ConfigError(f"{source}: {place}: {first['msg']}") from None


def _folder() -> Any:
    return resources.files("gxpo.compare") / "suites"
