"""Warm-up of the tiny masked language model: the loss of hidden tokens, and the accuracy of decoded answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gxpo.algorithms.likelihoods.base import Answer, Likelihood
from gxpo.algorithms.likelihoods.estimators import TrajectoryLikelihood
from gxpo.models.masked import MaskedPolicy, Row, estimate
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.masked import MaskedEngine, Unmasking
from gxpo.training.models.demonstrations import prompt_ids

if TYPE_CHECKING:
    from gxpo.environments.tasks import GeneratedTasks
    from gxpo.parts.protocols import Task

BLOCK = 4  # tokens of a block in which the warm-up's answers are decoded


@dataclass(frozen=True)
class States(Likelihood):
    """States that a warm-up reads: a random set of an answer's tokens is hidden, or what a decoder in blocks meets.

    block  in every second example the set is of one block of so many tokens, all of them visible before it and hidden
           behind it: a random state of an answer that is unmasked block by block, in which its next tokens are read

    One pass. The mean over states is the mean of two evidence bounds: over all orders, and over those that go block by
    block. Hidden sets have 1 to all tokens of their range, each number with equal probability.
    """

    block: int = BLOCK

    def views(self, answer: Answer) -> tuple[torch.Tensor, torch.Tensor]:
        random, n = answer.random(), answer.length
        begin, end, parts = 0, n, 1
        if random.random() < 0.5:
            parts = -(-n // self.block)
            begin = self.block * int(random.integers(parts))
            end = min(n, begin + self.block)
        count = int(random.integers(1, end - begin + 1))
        read = np.zeros(n, dtype=bool)
        read[begin + random.permutation(end - begin)[:count]] = True
        hidden = np.concatenate([np.zeros(answer.prompt, dtype=bool), read | (np.arange(n) >= end)])
        return torch.from_numpy(hidden[None]), torch.from_numpy(read[None] * (parts * (end - begin) / count))


def masked_loss(
    model: Any, tokenizer: Any, examples: Sequence[tuple[Any, str]], room: int, random: np.random.Generator
) -> torch.Tensor:
    """Mean negative evidence bound of the answers' tokens, their ends included, from one random mask of each."""
    policy, rows = MaskedPolicy.of(model, tokenizer), []
    for prompt, text in examples:
        answer = [*tokenizer(text, add_special_tokens=False).input_ids, policy.end]
        seed = int(random.integers(1 << 62))
        rows.append(Row(prompt_ids(model, tokenizer, prompt), answer, room, torch.zeros(len(answer)), seed))
    bound = estimate(policy, rows, States())["logprob"]
    return -bound.mean().to(torch.float32)


def masked_accuracy(
    model: Any, tokenizer: Any, source: GeneratedTasks, tasks: Sequence[Task], room: int
) -> tuple[float, float]:
    """Shares of `tasks` whose greedy answer, decoded in blocks, is correct, and well-formed."""
    engine = MaskedEngine(MaskedPolicy.of(model, tokenizer), TrajectoryLikelihood(), Unmasking(block=BLOCK))
    requests = [
        Request(tuple(prompt_ids(model, tokenizer, task.prompt)), (StreamKey(0, 0, task.id, 0),)) for task in tasks
    ]
    correct = well_formed = 0.0
    answers = engine.sample(requests, Sampling(temperature=0.0, max_new_tokens=room))
    for task, (answer,) in zip(tasks, answers, strict=True):
        if answer.finish == "stop":
            scores = source.scorer(str(tokenizer.decode(answer.tokens[:-1])), task)
            correct, well_formed = correct + scores["correct"], well_formed + scores["format"]
    return correct / len(tasks), well_formed / len(tasks)
