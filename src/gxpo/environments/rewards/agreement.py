"""Step reward by similarity to an expert's step."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.base import RewardPart
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part

_WORD = re.compile(r"\w+")


def words(text: str) -> Counter[str]:
    """Word counts of a text, case-insensitive."""
    return Counter(_WORD.findall(text.casefold()))


def cosine(a: str, b: str) -> float:
    """Cosine of the two texts' word counts, 0 to 1; 1 where neither has a word, 0 where one has none.

    >>> cosine("red shoes", "blue shoes"), cosine("", "!")
    (0.5, 1.0)
    """
    x, y = words(a), words(b)
    if not x or not y:
        return float(not x and not y)
    dot = sum(n * y[word] for word, n in x.items())
    # one root of an integer product, so that equal texts give exactly 1
    return dot / math.sqrt(sum(n * n for n in x.values()) * sum(n * n for n in y.values()))


def recall(answer: str, gold: str, max_exact_words: int = 1) -> float:
    """Recall of the gold text's words in an answer; of a gold text of up to `max_exact_words` words: all, or 0.

    >>> recall("it is in New York", "New York City", 1), recall("York", "New York", 2), recall("", "")
    (0.6666666666666666, 0.0, 1.0)
    """
    x, y = words(answer), words(gold)
    if not y:
        return float(not x)
    share = sum((x & y).values()) / y.total()
    return share if y.total() > max_exact_words else float(share == 1)


@part("agreement", stage="reward")
@dataclass(frozen=True)
class Agreement(RewardPart):
    """Agreement with an expert's step (`reward.shape`, rollouts of `ExpertSteps`), by the kind of step.

    any but the last  similarity * cosine(argument, the expert's) + (1 - similarity) * [the same name]
    the last          `recall` of the expert's argument, the answer, in the call

    similarity  weight of the argument. Where the expert's call has none, the same call earns 1, and the same name with
                an argument 1 - similarity
    max_exact_words  an answer of up to this many words counts only as a whole

    Other rollouts keep their outcome. Source: R1-Router, arXiv 2505.22095, and its code, where similarity is the cosine
    of sentence embeddings; here that of word counts, which needs no further model.
    """

    similarity: float = 0.5
    max_exact_words: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.similarity <= 1 and self.max_exact_words >= 0):
            raise ConfigError(
                "agreement: similarity is a share and max_exact_words at least 0, "
                f"not {self.similarity} and {self.max_exact_words}"
            )

    def __call__(self, forest: Forest) -> Tensor:
        outcome = forest.outcome.tolist()
        # Rollouts of other tasks carry no expert's step and keep their outcome.
        rows = [outcome[r] if "expert" not in info else self._step_reward(info) for r, info in enumerate(forest.info)]
        return torch.tensor(rows, dtype=torch.float64)

    def _step_reward(self, info: dict[str, object]) -> float:
        """Reward of the step that a rollout of `ExpertSteps` made, from its `call` and `expert` notes."""
        (name, argument), (gold_name, gold) = info["call"], info["expert"]  # type: ignore[misc]  # the rollout's pairs
        same = float(name == gold_name)
        # Without an argument to compare there is only the name, and an invented argument is an error.
        if not gold:
            return same if not argument else (1 - self.similarity) * same
        if info["last"]:
            return recall(f"{name} {argument}", str(gold), self.max_exact_words)
        return self.similarity * cosine(argument, gold) + (1 - self.similarity) * same
