"""Rollouts with a fault that training runs suffer from: verdicts turned round, length paid, a sampler of its own.

Only training has the fault: held-out tasks are attempted by `independent`, sampled with the learner's weights and
judged by the task. What the verifier says in training is what filters and group statistics see, as it would be.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Sampling, Task
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.rollouts.dynamic_sampling import DynamicSampling
from gxpo.sampling.rollouts.rounds import Independent

COPIES: WeakKeyDictionary[Any, tuple[int, TorchEngine]] = WeakKeyDictionary()  # learner's engine -> (step, its copy)


def chance(*what: object) -> float:
    """Return a number in [0, 1) that depends on its arguments alone."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=7).digest(), "big") / 2**56


@dataclass(frozen=True)
class Faults:
    """What is wrong.

    flip         probability with which one verdict of a rollout is turned round, 0 to 1, and the outcome with it
    votes        odd number of such verdicts, of which the majority counts
    pay          added to the outcome at the token limit, in proportion below it; verdicts stay
    temperature  of the sampler; the learner goes on with that of the configuration. Log-probs are those of the sampler
    lag          the sampler receives the learner's weights every so many steps; 1: always
    bits         of the sampler's weights: matrices are rounded to so many bits, by row; 0: they are the learner's
    """

    flip: float = 0.0
    votes: int = 1
    pay: float = 0.0
    temperature: float = 0.0  # 0: that of the configuration
    lag: int = 1
    bits: int = 0

    def grow(self, tasks: Sequence[Task], session: Any) -> Forest:
        faulty = FaultySession(session, self)
        return faulty.score(super().grow(tasks, faulty))  # type: ignore[misc]  # of the rollout it is combined with


@dataclass(frozen=True)
class FaultyIndependent(Faults, Independent):
    """`independent`, with faults."""


@dataclass(frozen=True)
class FaultyDynamicSampling(Faults, DynamicSampling):
    """`dynamic_sampling`, with faults."""


class FaultySession:
    """A session whose sampler and verifier have faults; everything else is the session's own."""

    def __init__(self, session: Any, faults: Faults) -> None:
        self._session, self._faults = session, faults
        self._done: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def sample(self, requests: Sequence[Request], sampling: Sampling | None = None) -> list[list[Completion]]:
        session, faults = self._session, self._faults
        settings = session.sampling if sampling is None else sampling
        if faults.temperature:
            settings = replace(settings, temperature=faults.temperature)
        if faults.lag <= 1 and not faults.bits:
            return session.sample(requests, settings)
        learner_engine = session.engine
        session.engine = sampling_copy(learner_engine, session.step, faults.lag, faults.bits)
        try:
            return session.sample(requests, settings)
        finally:
            session.engine = learner_engine

    def score(self, forest: Forest, texts: Sequence[str] | None = None) -> Forest:
        """Score rollouts, with the faults of each trajectory once."""
        scored_forest, faults = self._session.score(forest, texts), self._faults
        is_new = torch.tensor([i not in self._done for i in scored_forest.id], dtype=torch.bool)
        self._done |= set(scored_forest.id)
        outcome, success = scored_forest.outcome.clone(), scored_forest.success.clone()
        if faults.flip:
            wrong = torch.tensor([self._is_misjudged(i) for i in scored_forest.id], dtype=torch.bool) & is_new
            outcome[wrong], success[wrong] = 1 - outcome[wrong], 1 - success[wrong]
        if faults.pay:
            limit = self._session.sampling.max_new_tokens * (self._session.episode.max_turns or 1)
            outcome[is_new] += faults.pay * (scored_forest.lengths()[is_new].to(outcome.dtype) / limit).clamp_max(1.0)
        return scored_forest.replace(outcome=outcome, success=success)

    def _is_misjudged(self, name: str) -> bool:
        wrong_votes = sum(
            chance(self._session.seed, name, vote) < self._faults.flip for vote in range(self._faults.votes)
        )
        return 2 * wrong_votes > self._faults.votes


def sampling_copy(engine: TorchEngine, step: int, lag: int, bits: int) -> TorchEngine:
    """Return a sampler with the weights that the learner had at the last step that is a multiple of `lag`, rounded."""
    first = step - step % lag
    copied_step, sampler = COPIES.get(engine, (-1, None))
    if sampler is None or copied_step != first:
        sampler = TorchEngine(copy.deepcopy(engine.model), engine.tokenizer, device=engine.device)
        sampler.policy_version, sampler.likeliest = engine.policy_version, engine.likeliest
        if bits:
            round_weights(sampler.model, bits)
        COPIES[engine] = first, sampler
    return sampler


@torch.no_grad()
def round_weights(model: torch.nn.Module, bits: int) -> None:
    """Round each matrix to whole multiples of its rows' largest magnitude over 2^(bits - 1) - 1, in place."""
    for weight in model.parameters():
        if weight.dim() == 2:
            scale = weight.abs().amax(1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
            weight.copy_((weight / scale).round() * scale)
