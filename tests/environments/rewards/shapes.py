"""Shapes of outcomes by the names of their functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gxpo.environments.rewards.shape import Shape


def shape(function: str) -> Callable[..., Shape]:
    """Makes a shape of this function from its options."""

    def make(**options: Any) -> Shape:
        return Shape(function, options)

    return make
