"""Conditional bonus for a feature of an attempt: fixed, or signed by whether the feature helps in the group."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Interval, MinLen
from torch import Tensor

from gxpo.environments.rewards.base import RewardPart
from gxpo.environments.rewards.shape import columns_for, verdicts
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.functions import Formula, checked_by, signature
from gxpo.parts.registry import part


# ---------------------------------------------------------------- features
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


# ---------------------------------------------------------------- the bonus
@part("feature", stage="reward")
@dataclass(frozen=True)
class Feature(Formula, RewardPart):
    """Bonus for a feature (`reward.add`): coef * sign * x, x from 0 to 1 the feature of an attempt.

    of     feature in `rewards.feature` or `file.py:function`, with its options beside it: matches(pattern),
           component(component), several_tools(least), malformed
    coef   below 0: a penalty
    sign   "fixed": 1; "contrast": 1 in a group in which attempts with the feature are right more often than those
           without, by more than `eps`; -1 where they are so less often; 0 between, and where either kind is missing
    only   "correct": wrong attempts have 0
    until  share of right attempts: groups above it have 0

    "contrast" compares shares of few attempts: of 4 with and 4 without, one verdict moves the gap by 0.25. A feature
    that is unknown (nan) where it would be paid leaves the attempt unscored.

    With these settings this is
      FAPO         of component, coef -1, only correct                         arXiv 2510.22543
      GCPO         of matches, sign contrast                                   arXiv 2506.07160
      Tool-Star    of several_tools, coef 0.1, only correct                    arXiv 2505.16410
    """

    of: Any = "matches"
    coef: float = 1.0
    sign: Literal["fixed", "contrast"] = "fixed"
    eps: Annotated[float, Ge(0)] = 0.0
    only: Literal["any", "correct"] = "any"
    until: Annotated[float, Interval(gt=0, le=1)] = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {"of": ("gxpo.environments.rewards.feature", False)}

    @property
    def reads_texts(self) -> bool:
        """Whether it is given what was said: the trainer decodes it then."""
        return "texts" in signature(self.of).columns

    @property
    def reads(self) -> tuple[str, ...]:
        """Components that its options name."""
        return (self.options["component"],) if "component" in self.options else ()

    @torch.no_grad()
    def __call__(self, forest: Forest) -> Tensor:
        x = self.apply(self.of, columns_for(self.of, forest, "reward.add.feature")).to(torch.float64)
        pays = torch.ones_like(forest.scored)
        if self.only == "correct" or self.sign == "contrast" or self.until < 1:
            right, group = verdicts(forest, "feature"), forest.ids("group", axis="R")
            enters = forest.compared & forest.scored
            share = grouped.mean(right, group, enters)
            pays = (share <= self.until + 1e-9) & (right if self.only == "correct" else pays)
            if self.sign == "contrast":
                x = x * _gap_sign(x > 0, right, group, enters, self.eps)
        return torch.where(forest.scored, torch.where(pays, self.coef * x, 0.0), torch.nan)


@torch.no_grad()
def _gap_sign(having: Tensor, right: Tensor, group: Tensor, where: Tensor, eps: float = 0.0) -> Tensor:
    """Sign of the gap in success between a group's attempts with and without a feature, [R] float64: 1, -1 or 0.

    having, right  [R] bool;   group [R] int64 dense ids;   where [R] bool: which enter the shares
    eps            a gap of this size or less is none

    >>> having = torch.tensor([True, False, False, True])
    >>> _gap_sign(having, torch.tensor([True, True, True, False]), torch.zeros(4).long(), having | ~having).tolist()
    [-1.0, -1.0, -1.0, -1.0]
    """
    kinds = [where & having, where & ~having]
    with_it, without = (grouped.mean(right, group, kind) for kind in kinds)
    both = (grouped.count(group, kinds[0]) > 0) & (grouped.count(group, kinds[1]) > 0)
    gap = with_it - without
    return torch.where(both & (gap.abs() > eps + 1e-9), gap.sign(), 0.0)
