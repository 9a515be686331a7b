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
    """States that a warm-up reads: random sets of an answer's tokens are hidden, or what a decoder in blocks meets.

    block  in every second example the set is of one block of so many tokens, all of them visible before it and hidden
           behind it: a random state of an answer that is unmasked block by block, in which its next tokens are read

    One pass, with weight 1 for each token that is read. Of a block 1 to all tokens are hidden, each number with equal
    probability; of a whole answer a share u^2, u uniform: sets are small more often than not, because a digit is
    learned where the question that it answers is visible.
    """

    block: int = BLOCK

    def views(self, answer: Answer) -> tuple[torch.Tensor, torch.Tensor]:
        random, n = answer.random(), answer.length
        begin, end, share = 0, n, random.random() ** 2
        if random.random() < 0.5:
            begin = self.block * int(random.integers(-(-n // self.block)))
            end, share = min(n, begin + self.block), random.random()
        read = np.zeros(n, dtype=bool)
        read[begin + random.permutation(end - begin)[: 1 + int(share * (end - begin))]] = True
        is_hidden = np.concatenate([np.zeros(answer.prompt, dtype=bool), read | (np.arange(n) >= end)])
        return torch.from_numpy(is_hidden[None]), torch.from_numpy(read[None].astype(np.float64))


def masked_loss(
    model: Any, tokenizer: Any, examples: Sequence[tuple[Any, str]], room: int, random: np.random.Generator
) -> torch.Tensor:
    """Mean cross-entropy of hidden tokens, ends of answers included, from one random state of each answer."""
    policy, rows = MaskedPolicy.of(model, tokenizer), []
    for prompt, text in examples:
        answer = [*tokenizer(text, add_special_tokens=False).input_ids, policy.end]
        seed = int(random.integers(1 << 62))
        rows.append(Row(prompt_ids(model, tokenizer, prompt), answer, room, torch.zeros(len(answer)), seed))
    states = States()
    read = sum(int(row.with_views(policy, states)[1].sum()) for row in rows)
    return -(estimate(policy, rows, states)["logprob"].sum() / read).to(torch.float32)


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
