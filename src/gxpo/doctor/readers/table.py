"""`Table`: figures and settings of one file under the trainer's own keys, and how values are parsed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, pstdev
from typing import Any

from gxpo.doctor.readers.keys import STEP_KEYS, have_prefixes, restore_keys, trainer_key, written_key

NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|NaN|inf|Infinity)"
_LIST = re.compile(
    rf"([A-Za-z_][\w./@-]{{0,60}})\s{{0,3}}[:=]\s{{0,3}}\[({NUMBER}(?:\s{{0,3}},\s{{0,3}}{NUMBER}){{1,255}})\]"
)
_PIPE = re.compile(
    rf"\|\s{{0,40}}([A-Za-z][\w ./@()-]{{0,120}}?)[:=]?\s{{1,40}}({NUMBER})\s{{0,8}}(%|ms|s|m)?(?=[\s|(,]|$)"
)
_EQUALS = re.compile(
    r"(?<![=A-Za-z_])([A-Za-z_\u4e00-\u9fff][\w./@-]{0,120}(?: [A-Za-z][\w./@-]{0,120}){0,2}?)"
    rf"\s{{0,8}}[:=]\s{{0,8}}({NUMBER})(%?)(?=[\s,;|)\]\u00b1/]|$)(?:\s?\u00b1\s?({NUMBER}))?"
)
# Words and numbers without a sign between them: "reward 0.31, KL 0.02"; of "0.12 -> 0.31" the second counts.
_BARE = re.compile(
    rf"([A-Za-z][\w./@-]{{0,60}}(?: [A-Za-z][\w./@-]{{0,60}}){{0,2}}?)\s{{1,8}}(?:(?:is|was|of|at|about)\s)?"
    rf"({NUMBER})(%?)"
    rf"(?:\s?(?:->|\u2192|to)\s?({NUMBER})(%?))?(?=[\s,;|)\]]|\.?$)"
)

LARGEST_GROUP = 16  # rewards in a row that are taken for one group's

Row = tuple[float, dict[str, float]]  # step, figures
Columns = dict[str, tuple[list[float], list[float]]]  # key -> steps, values


@dataclass
class Table:
    """The content of one file.

    kind        state, rows, console, table, events, config
    rows        figures by step, in the order of the file
    is_numbered whether the steps are the trainer's; False: counted from 1, and `bars` may tell them
    bars        (rows so far, step, length) of progress bars, where rows carry no step
    settings    keys of a configuration, nested ones joined by dots
    hints       names of trainers that the text mentions
    n_unreadable  lines or rows that could not be read
    is_torn     whether the last line is incomplete, as in a run that is still going
    is_known    whether any of its keys is a metric of some trainer
    """

    kind: str
    rows: list[Row] = field(default_factory=list)
    is_numbered: bool = True
    bars: list[tuple[int, int, int]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    hints: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    n_unreadable: int = 0
    is_torn: bool = False
    is_known: bool = True

    @cached_property
    def columns(self) -> Columns:
        """Steps and values by the trainer's own key; read once, so rows are complete and numbered by then."""
        columns: Columns = {}
        trainers_own = self._trainers_own
        column_of: dict[str, tuple[list[float], list[float]]] = {}  # by the key as it is written
        for step, row in self.rows:
            for key, value in row.items():
                column = column_of.get(key)
                if column is None:
                    column = column_of[key] = columns.setdefault(trainers_own(key), ([], []))
                column[0].append(step)
                column[1].append(value)
        return columns

    @cached_property
    def spellings(self) -> dict[str, str]:
        """Key of `columns` -> the key as it is written in the file."""
        trainers_own = self._trainers_own
        return {trainers_own(key): written_key(key) for key in self._keys}

    def keep_prefixes(self) -> None:
        """Name columns as they are written: a file of few keys does not tell that `train/` is a part of them."""
        self.columns = {self.spellings[key]: column for key, column in self.columns.items()}
        self.spellings = {key: key for key in self.columns}

    @cached_property
    def _keys(self) -> set[str]:
        return {key for _, row in self.rows for key in row}

    @cached_property
    def _restored(self) -> dict[str, str]:
        return restore_keys(self._keys)

    @cached_property
    def _has_prefixes(self) -> bool:
        return have_prefixes({self._restored.get(key, key) for key in self._keys})

    def _trainers_own(self, key: str) -> str:
        """Key as its trainer writes it."""
        key = self._restored.get(key, key)
        return written_key(key) if self._has_prefixes else trainer_key(key)


def number(value: Any) -> float | None:
    """Convert numbers and texts of numbers to a float, null to nan; None for all else (flags, texts, lists)."""
    kind = type(value)
    if kind is float or kind is int:
        try:
            return float(value)
        except OverflowError:
            return None
    if value is None:
        return float("nan")
    if kind is str and len(value) < 40:
        try:
            return float(value) if "_" not in value else None
        except ValueError:
            return float("nan") if value.strip().lower() in ("null", "none") else None
    return None


def step_of(row: Mapping[Any, Any], keys: Sequence[str] = STEP_KEYS) -> tuple[float | None, str | None]:
    """Find a row's finite step ("5/100" is 5) and its key, the first of `keys` that has one."""
    for key in keys:
        if key in row:
            value = row[key]
            step = number(value.split("/", 1)[0] if type(value) is str and "/" in value else value)
            if step is not None and math.isfinite(step):
                return step, key
    return None, None


def figures(row: Mapping[Any, Any], leave: str | None = None) -> dict[str, float]:
    """Keep the figures of a row; flags, texts, nested values and the key `leave` are dropped."""
    figures_of_row = {}
    for key, value in row.items():
        figure = value if type(value) is float else number(value)
        if figure is not None and key != leave:
            figures_of_row[str(key)] = figure
    return figures_of_row


def of_group(row: Mapping[str, Any]) -> dict[str, float]:
    """Figures of a row that lists the rewards of one group."""
    rewards = row.get("rewards")
    if not isinstance(rewards, list) or not 2 <= len(rewards) <= LARGEST_GROUP:
        return {}
    numbers = [value for value in rewards if type(value) in (int, float)]
    if len(numbers) < len(rewards):
        return {}
    return {
        "mean_reward": mean(numbers),
        "reward_std": pstdev(numbers),
        "frac_zero_std": float(max(numbers) == min(numbers)),
        "num_rollouts": float(len(numbers)),
        "num_groups": 1.0,
    }


def split_rows(rows: Sequence[Mapping[Any, Any]]) -> list[tuple[float | None, str | None, dict[str, float]]]:
    """Split each row into its step, the step's key and all figures, the step's among them."""
    return [(*step_of(row), figures(row)) for row in rows]


def flat(value: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Flatten nested mappings, keys joined by dots; levels deeper than 12 are dropped."""
    flattened: dict[str, Any] = {}
    if isinstance(value, Mapping) and depth < 12:
        for key, inner in value.items():
            name = f"{prefix}.{key}" if prefix else str(key)
            if isinstance(inner, Mapping):
                flattened.update(flat(inner, name, depth + 1))
            else:
                flattened[name] = inner
    return flattened


def figures_of(text: str) -> dict[str, float]:
    """Figures of a line by the words before them; what stands behind a plus-minus sign is the deviation."""
    values: dict[str, float] = {}
    for key, inner in _LIST.findall(text) if "[" in text else ():
        numbers = [float(part) for part in inner.split(",")]
        values |= {key: mean(numbers), f"{key} std": pstdev(numbers)}
    if " | " in text and (pairs := _PIPE.findall(text)):
        for key, figure, unit in pairs:
            if (value := number(figure)) is not None:
                values.setdefault(key.strip(), value / 100 if unit == "%" else value)
        return values
    for key, figure, unit, deviation in _EQUALS.findall(text):
        if (value := number(figure)) is not None:
            values.setdefault(key.strip(), value / 100 if unit == "%" else value)
        if deviation:
            values.setdefault(f"{key.strip()} std", float(deviation))
    if values:
        return values
    for key, figure, unit, later, later_unit in _BARE.findall(text):
        if (value := number(later or figure)) is not None:
            values.setdefault(key.strip(), value / 100 if (later_unit if later else unit) == "%" else value)
    return values


def setting(text: str) -> Any:
    """Parse a number, flag, list or text as it is written on a command line."""
    text = text.strip().strip("'\"")
    low = text.lower()
    if low in ("true", "false"):
        return low == "true"
    if low in ("null", "none"):
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
