"""`Rollouts`: a sample of a run's single rollouts, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gxpo.doctor.series import Floats


@dataclass
class Rollouts:
    """A sample of single rollouts, a row each; rows of one group are adjacent.

    step        [n] training step (-1: unknown)
    group       [n] dense id of the rollouts that were compared, unique over the whole sample; -1: unknown
    prompt      [n] texts
    completion  [n] texts (several turns joined by a blank line)
    score       [n] total reward; nan: unscored
    components  name -> [n]; nan: missing
    advantage   [n] mean advantage; nan: not recorded
    tokens      [n] completion length in tokens; nan: unknown
    truncated   [n] 1: cut at the limit, 0: ended by itself, nan: unknown
    success     [n] the verifier's verdict; nan: unknown
    reference   [n] reference answers; None: not recorded
    held_out    [n] whether the row is of an evaluation
    temperature [n] it was sampled at; nan: unknown
    where       [n] "file:row" of each, for evidence
    kept, of    rows in the sample, rows there are
    grouped_by  "recorded", "blocks" (consecutive rows) or "prompt" (equal prompts: two groups of one prompt merge)
    """

    step: NDArray[np.int64]
    group: NDArray[np.int64]
    prompt: list[str]
    completion: list[str]
    score: Floats
    components: dict[str, Floats]
    advantage: Floats
    tokens: Floats
    truncated: Floats
    success: Floats
    reference: list[str | None]
    held_out: NDArray[np.bool_]
    temperature: Floats
    where: list[str]
    of: int
    grouped_by: str = "recorded"

    def __len__(self) -> int:
        return len(self.score)

    @property
    def kept(self) -> int:
        return len(self)

    def select(self, rows: Any) -> Rollouts:
        """The rows of a boolean mask or index array, in order."""
        index = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)
        return Rollouts(
            step=self.step[index],
            group=self.group[index],
            prompt=[self.prompt[i] for i in index],
            completion=[self.completion[i] for i in index],
            score=self.score[index],
            components={name: values[index] for name, values in self.components.items()},
            advantage=self.advantage[index],
            tokens=self.tokens[index],
            truncated=self.truncated[index],
            success=self.success[index],
            reference=[self.reference[i] for i in index],
            held_out=self.held_out[index],
            temperature=self.temperature[index],
            where=[self.where[i] for i in index],
            of=self.of,
            grouped_by=self.grouped_by,
        )
