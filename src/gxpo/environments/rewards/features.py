"""Features of attempts for the reward `feature`: a pattern in the text, a component, several tools; [R] from 0 to 1.

Parameters are columns by name, as of `Shape`; keyword-only ones are options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from annotated_types import Ge, MinLen
from torch import Tensor

from gxpo.parts.functions import checked_by


def _regular(pattern: str, **_: object) -> str | None:
    try:
        re.compile(pattern)
    except re.error as error:
        return f"pattern {pattern!r} is no regular expression: {error}"
    return None


@checked_by(_regular)
def matches(texts: Sequence[str], *, pattern: Annotated[str, MinLen(1)] = r"<aux>.*</aux>") -> Tensor:
    """1 where the regular expression is found in what was said ("." is any character, line breaks too), else 0."""
    found = [re.search(pattern, text, re.DOTALL) is not None for text in texts]
    return torch.tensor(found, dtype=torch.float64)


def component(read: Callable[[str], Tensor], *, component: Annotated[str, MinLen(1)] = "flaw") -> Tensor:
    """A component from 0 to 1 that some reward computes, with weight 0: what a judge found; unknown: nan."""
    return read(component)


def several_tools(tools: Sequence[Sequence[str]], *, least: Annotated[int, Ge(1)] = 2) -> Tensor:
    """1 where calls of at least so many different tools were made, else 0."""
    return torch.tensor([float(len(set(names)) >= least) for names in tools], dtype=torch.float64)


def malformed(errors: Sequence[Sequence[str]]) -> Tensor:
    """1 where the environment could not read some action, else 0."""
    return torch.tensor([float("malformed" in own) for own in errors], dtype=torch.float64)
