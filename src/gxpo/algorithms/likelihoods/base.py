"""Likelihood estimators of masked language models: which tokens of an answer are hidden, and how each is weighed.

A masked model gives the probability of a hidden token from those that are visible, and an answer has no factorisation
of its own. An estimator looks at the answer through some views, in each of which part of it is hidden:

    log p(y_i)  is estimated by  sum_v w_{v,i} log p(y_i | what view v shows),    w_{v,i} > 0 where y_i is hidden in v
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gxpo.parts.ranges import Part


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer to a prompt, as an estimator sees it.

    prompt       number of tokens before it
    unmasked_at  [n] int64 step of the decoder in which each of its tokens was unmasked; its end is the last of them
    seed         of the masks: equal seeds give equal masks, so that two policies are read through the same views
    """

    prompt: int
    unmasked_at: Tensor
    seed: int

    @property
    def length(self) -> int:
        """Number n of its tokens."""
        return len(self.unmasked_at)

    def random(self) -> np.random.Generator:
        """Random numbers of its masks."""
        return np.random.Generator(np.random.Philox(key=self.seed))


class Likelihood(Part, ABC):
    """Base class of likelihood estimators: frozen dataclasses, whose fields are options `likelihood.NAME`."""

    slot = "likelihood"

    @abstractmethod
    def views(self, answer: Answer) -> tuple[Tensor, Tensor]:
        """Views of an answer: `hidden` [V, prompt + n] bool, the tokens that each view masks, and `weight` [V, n]
        float64 of each log-probability that is read there, 0 where the token is visible."""
        raise NotImplementedError
