"""Attempts under codes in the prompt: one policy that holds a population (COMPASS, MRA)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gxpo.base.errors import ConfigError
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw
from gxpo.sampling.rollouts.base import Count, Rollout
from gxpo.sampling.rollouts.build import Text, random_for
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.wording import Wording, check_template


@part("coded", stage="rollout")
@dataclass(frozen=True)
class Coded(Rollout):
    """`group_size` attempts at each task, each under a code that its prompt shows, and trained under it.

    codes     the codes, texts
    assignment  "turns": attempt i has code i, in turns; "each": every attempt draws its own; "group": one for the group
    template  of the prompt: {prompt} and {code}

    info["code"] is an attempt's code. Held-out tasks go through the codes in turns: with `eval.samples` as many as
    there are codes, the best of a task's samples (pass@k) is a search over them.

    Source: COMPASS, arXiv 2311.13569, whose codes are vectors, searched by CMA-ES.
    """

    group_size: Count = 8
    codes: list[Text] = field(default_factory=lambda: list("ABCDEFGH"))
    assignment: Literal["turns", "each", "group"] = "turns"
    template: str = "Style {code}.\n{prompt}"

    def __post_init__(self) -> None:
        check_template("rollout.template", self.template, ("prompt", "code"))
        if len({*self.codes}) != len(self.codes) or not self.codes:
            raise ConfigError(f"rollout.codes={self.codes}: name one code or more, each once")

    @property
    def evaluation(self) -> Callable[[int], Any]:
        """The rollout for held-out tasks."""
        return lambda samples: dataclasses.replace(self, group_size=samples, assignment="turns")

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        out = []
        for draw in draws:
            random = random_for(play.session, draw.name, "code")
            group_code = random.choice(self.codes)
            for i in range(self.group_size):
                code_by_draw = {
                    "turns": self.codes[i % len(self.codes)],
                    "each": random.choice(self.codes),
                    "group": group_code,
                }
                code = code_by_draw[self.assignment]
                wording = Wording(self.template, {"code": code})
                out.append(draw.attempts(1, first=i, wording=wording, info={"code": code}))
        return out
