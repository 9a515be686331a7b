"""Bonus for a feature of an attempt: fixed, or signed by whether the feature helps in the group."""

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
    """Describe what is wrong with a regular expression; None for a valid one."""
    try:
        re.compile(pattern)
    except re.error as error:
        return f"pattern {pattern!r} is no regular expression: {error}"
    return None


@checked_by(_regular)
def matches(texts: Sequence[str], *, pattern: Annotated[str, MinLen(1)] = r"<aux>.*</aux>") -> Tensor:
    """1 where the text matches the regular expression anywhere ("." is also a line break), else 0."""
    has_match_R = [re.search(pattern, text, re.DOTALL) is not None for text in texts]
    return torch.tensor(has_match_R, dtype=torch.float64)


def component(read: Callable[[str], Tensor], *, component: Annotated[str, MinLen(1)] = "flaw") -> Tensor:
    """Component from 0 to 1 of another reward with weight 0, such as a judge's finding; nan unknown."""
    return read(component)


def several_tools(tools: Sequence[Sequence[str]], *, min_tools: Annotated[int, Ge(1)] = 2) -> Tensor:
    """1 for an attempt that called at least `min_tools` different tools, else 0."""
    return torch.tensor([float(len(set(names)) >= min_tools) for names in tools], dtype=torch.float64)


def malformed(errors: Sequence[Sequence[str]]) -> Tensor:
    """1 for an attempt with an action that the environment could not read, else 0."""
    return torch.tensor([float("malformed" in codes) for codes in errors], dtype=torch.float64)


# ---------------------------------------------------------------- the bonus
@part("feature", stage="reward")
@dataclass(frozen=True)
class Feature(Formula, RewardPart):
    """Bonus for a feature (`reward.add`): coef * sign * x, x from 0 to 1 the feature of an attempt.

    feature  feature in `rewards.feature` or `file.py:function`, with its options beside it: matches(pattern),
           component(component), several_tools(min_tools), malformed
    coef   below 0: a penalty
    sign   "fixed": 1; "contrast": 1 in a group in which attempts with the feature are right more often than those
           without, by more than `eps`; -1 where they are so less often; 0 between, and where either kind is missing
    answers  "correct": wrong attempts have 0
    max_success  share of right attempts: groups above it have 0

    "contrast" compares shares of few attempts: of 4 with and 4 without, one verdict moves the gap by 0.25. A feature
    that is unknown (nan) where it would be paid leaves the attempt unscored.

    With these settings this is
      FAPO         of component, coef -1, only correct                         arXiv 2510.22543
      GCPO         of matches, sign contrast                                   arXiv 2506.07160
      Tool-Star    of several_tools, coef 0.1, only correct                    arXiv 2505.16410
    """

    feature: Any = "matches"
    coef: float = 1.0
    sign: Literal["fixed", "contrast"] = "fixed"
    eps: Annotated[float, Ge(0)] = 0.0
    answers: Literal["any", "correct"] = "any"
    max_success: Annotated[float, Interval(gt=0, le=1)] = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {"feature": ("gxpo.environments.rewards.feature", False)}

    @property
    def reads_texts(self) -> bool:
        """True if the feature declares `texts`, so that the trainer decodes the actions."""
        return "texts" in signature(self.feature).columns

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the components that the feature's options name."""
        return (self.options["component"],) if "component" in self.options else ()

    @torch.no_grad()
    def __call__(self, forest: Forest) -> Tensor:
        feature_R = self.apply(self.feature, columns_for(self.feature, forest, "reward.add.feature")).to(torch.float64)
        is_paid_R = torch.ones_like(forest.scored)
        # Verdicts are read only where a setting needs them: a plain bonus also works on tasks without a verifier.
        if self.answers == "correct" or self.sign == "contrast" or self.max_success < 1:
            correct_R, group = verdicts(forest, "feature"), forest.ids("group", axis="R")
            counts_R = forest.compared & forest.scored
            success_share_R = grouped.mean(correct_R, group, counts_R)
            is_paid_R = (success_share_R <= self.max_success + 1e-9) & (
                correct_R if self.answers == "correct" else is_paid_R
            )
            if self.sign == "contrast":
                # The sign depends on whether those with the feature are right more often than those without.
                feature_R = feature_R * _gap_sign(feature_R > 0, correct_R, group, counts_R, self.eps)
        return torch.where(forest.scored, torch.where(is_paid_R, self.coef * feature_R, 0.0), torch.nan)


@torch.no_grad()
def _gap_sign(having: Tensor, right: Tensor, group: Tensor, where: Tensor, eps: float = 0.0) -> Tensor:
    """Sign of the gap in success between a group's attempts with and without a feature, [R] float64: 1, -1 or 0.

    having, right  [R] bool;   group [R] int64 dense ids;   where [R] bool: attempts that enter the shares
    eps            largest gap that counts as none

    >>> having = torch.tensor([True, False, False, True])
    >>> _gap_sign(having, torch.tensor([True, True, True, False]), torch.zeros(4).long(), having | ~having).tolist()
    [-1.0, -1.0, -1.0, -1.0]
    """
    kinds = [where & having, where & ~having]
    with_it, without = (grouped.mean(right, group, kind) for kind in kinds)
    both = (grouped.count(group, kinds[0]) > 0) & (grouped.count(group, kinds[1]) > 0)
    gap = with_it - without
    return torch.where(both & (gap.abs() > eps + 1e-9), gap.sign(), 0.0)
