"""Warm-up of the tiny masked language model: the loss of hidden tokens, and the accuracy of decoded answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gxpo.algorithms.likelihoods.estimators import Elbo, TrajectoryLikelihood
from gxpo.models.masked import MaskedPolicy, Row, estimate
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.masked import MaskedEngine, Unmasking
from gxpo.training.models.demonstrations import prompt_ids

if TYPE_CHECKING:
    from gxpo.environments.tasks import GeneratedTasks
    from gxpo.parts.protocols import Task

BLOCK = 4  # tokens of a block in which the warm-up's answers are decoded


def masked_loss(
    model: Any, tokenizer: Any, examples: Sequence[tuple[Any, str]], room: int, random: np.random.Generator
) -> torch.Tensor:
    """Mean negative evidence bound of the answers' tokens, their ends included, from one random mask of each."""
    policy, rows = MaskedPolicy.of(model, tokenizer), []
    for prompt, text in examples:
        answer = [*tokenizer(text, add_special_tokens=False).input_ids, policy.end]
        seed = int(random.integers(1 << 62))
        rows.append(Row(prompt_ids(model, tokenizer, prompt), answer, room, torch.zeros(len(answer)), seed))
    bound = estimate(policy, rows, Elbo("uniform", points=1))["logprob"]
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
