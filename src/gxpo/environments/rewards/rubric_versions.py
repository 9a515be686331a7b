"""Evolving rubric: a model rewrites the judge's rubric every k steps from scored answers; versions are kept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.base.judges import Judge, ask_all
from gxpo.base.usercode import one_line
from gxpo.base.verdicts import care, fenced, marker
from gxpo.environments.rewards.base import Failure
from gxpo.environments.rewards.judged import Rubric, prompt_of

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task

REQUEST = (
    "You maintain the rubric by which a judge scores answers. Below are the rubric and answers with the scores, from 0 "
    "to 1, that the judge gave by it. Say where the scores reward what is not better: answers that please the rubric "
    "and are wrong, empty or padded, and differences that the rubric does not see. Then write the rubric anew, so that "
    "better answers score higher. End with the whole new rubric between a line [begin rubric] and a line [end rubric]."
)


def read_rubric(reply: str) -> str:
    """Parse the last block between [begin rubric] and [end rubric]; ValueError where there is none.

    >>> read_rubric("Too kind.\\n[begin rubric]\\nIs it right?\\n[end rubric]")
    'Is it right?'
    """
    before, _, _ = reply.rpartition("[end rubric]")
    _, opening, rubric = before.rpartition("[begin rubric]")
    if not opening or not rubric.strip():
        raise ValueError(f"no rubric between [begin rubric] and [end rubric], but {reply[-80:]!r}")
    return rubric.strip()


@dataclass(eq=False)
class EvolvingRubric:
    """{"judge": [R], "rubric_version": [R]}: `Rubric` scores; after every `every`-th step `writer` rewrites the rubric.

    writer   model that rewrites the rubric, from the rubric and `samples` of the step's answers with their scores
    samples  number of answers that it is shown, evenly spread over the step

    A version holds from the next step on, for all answers of a step, and is in the checkpoint. A reply without a rubric
    costs that refresh: the version stays, and a warning says so. Rewards under two versions are not comparable:
    rollouts that are kept for later steps are refused with it, and curves of the reward are to be read between
    refreshes.
    """

    rubric: Rubric
    writer: Judge
    every: int = 10
    samples: int = 20
    versions: list[tuple[int, str]] = field(default_factory=list, init=False)  # (first step, rubric)

    name = "judge"
    gives = ("judge", "rubric_version")
    reports = ("rubric_version",)

    def __post_init__(self) -> None:
        for key, value in (("every", self.every), ("samples", self.samples)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"scoring.options.judge.refresh.{key} is {value!r}; it is a whole number from 1")
        self.versions.append((1, self.rubric.rubric))

    def failures(self) -> list[Failure]:
        """Return and clear the failures since the last call, one per trajectory."""
        return self.rubric.failures()

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        scores = self.rubric(forest, texts, tasks)
        return scores | {"rubric_version": torch.full((len(texts),), float(len(self.versions)), dtype=torch.float64)}

    def question(self, prompts: Sequence[str], texts: Sequence[str], scores: Sequence[float]) -> list[dict[str, str]]:
        """Messages that ask the writer for a new rubric."""
        mark = marker(*prompts, *texts)
        samples = "\n\n".join(
            f"# Task\n{prompt}\n\n# Answer, score {score:.2f}\n{fenced(text, mark)}"
            for prompt, text, score in zip(prompts, texts, scores, strict=True)
        )
        request = f"{REQUEST} {care('Each answer is', mark)}"
        return [{"role": "user", "content": f"{request}\n\n# Rubric\n{self.rubric.rubric}\n\n{samples}"}]

    def observe(self, step: int, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> None:
        """Rewrite the rubric from a step's rollouts if it is due; a warning where that fails."""
        rows = forest.scored.nonzero().squeeze(1).tolist()
        if step % self.every or not rows or "judge" not in forest.component_names:
            return
        score_R = forest.components[:, forest.component_names.index("judge")].tolist()
        sample_rows = _spread([r for r in rows if not math.isnan(score_R[r])], self.samples)
        if not sample_rows:
            warnings.warn(f"step {step}: the rubric stays as it is (the judge has scored no answer)", stacklevel=2)
            return
        question = self.question(
            [prompt_of(tasks[r]) for r in sample_rows],
            [texts[r] for r in sample_rows],
            [score_R[r] for r in sample_rows],
        )
        (reply,) = ask_all(self.writer, [question], 1)
        # A failed refresh keeps the rubric: a run must not end because a writer did.
        try:
            if isinstance(reply, tuple):
                raise ValueError(reply[1])
            self.rubric.rubric = read_rubric(reply)
            # From the next step on: rewards of one step are of one rubric.
            self.versions.append((step + 1, self.rubric.rubric))
        except ValueError as error:
            warnings.warn(f"step {step}: the rubric stays as it is ({one_line(str(error))})", stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        """State for checkpoints."""
        return {"versions": [list(v) for v in self.versions]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self.versions = [(int(step), str(text)) for step, text in state["versions"]]
        self.rubric.rubric = self.versions[-1][1]


def _spread(rows: Sequence[int], n: int) -> list[int]:
    """Sample n of the rows at even distances; all of fewer rows."""
    return [rows[i * len(rows) // n] for i in range(n)] if n < len(rows) else list(rows)
