"""A tiny random masked model whose answers can be enumerated, and what else its tests share."""

from __future__ import annotations

import functools
import itertools
import math

import torch

from gxpo.algorithms.likelihoods.estimators import TrajectoryLikelihood
from gxpo.models.masked import MaskedPolicy, Row, estimate

PAD, END, MASK = 0, 1, 6  # of a vocabulary of 7
PROMPT = (2, 3)
SETTINGS = {
    "vocab_size": 7, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 32, "pad_token_id": PAD,
    "initializer_range": 0.5,
}  # fmt: skip


def bert(seed: int = 0):
    """A random BERT with a masked-language head, in float64."""
    from transformers import BertConfig, BertForMaskedLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BertForMaskedLM(BertConfig(**SETTINGS)).double().eval()


@functools.cache
def toy(seed: int = 0) -> MaskedPolicy:
    return MaskedPolicy(bert(seed), MASK, END, PAD)


def row(answer, room=4, order=None, seed=0, temperature=1.0) -> Row:
    order = list(range(len(answer))) if order is None else order
    return Row(PROMPT, list(answer), room, torch.tensor(order), seed, temperature)


@torch.no_grad()
def along(answer, order, room=4, policy=None) -> float:
    """Log-likelihood of an answer whose tokens are unmasked one by one in this order (the step of each)."""
    values = estimate(policy or toy(), [row(answer, room, order)], TrajectoryLikelihood())
    return float(values["logprob"].sum())


def every_answer(room: int) -> list[tuple[int, ...]]:
    """All answers with so much room: tokens that are no end, then an end, or no room left for one."""
    inner = [token for token in range(7) if token not in (END, MASK)]
    ended = [(*body, END) for n in range(room) for body in itertools.product(inner, repeat=n)]
    return [*ended, *itertools.product(inner, repeat=room)]


def orders(n: int) -> list[tuple[int, ...]]:
    """All orders in which n tokens can be unmasked one by one."""
    return list(itertools.permutations(range(n)))


def mean_over_orders(answer, room=4) -> float:
    """The evidence bound: mean log-likelihood over all orders."""
    return math.fsum(along(answer, order, room) for order in orders(len(answer))) / math.factorial(len(answer))
