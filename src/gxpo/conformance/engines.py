"""Conformance of training engines: log-probs, gradients and scale against gxpo's own learner, on a forest with forks.

from gxpo.conformance.engines import check
for result in check(my_engine, TorchLearner(same_model, lr=0.0)): print(result)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.forest.forest import Forest
from gxpo.learning.remote import RemoteLearner, Rows
from gxpo.learning.remote.probe import MOVE, Descent, Probe, probe
from gxpo.methods.compose import method
from gxpo.parts.protocols import LossFunction, PolicyTokens, TrainEngine

METHODS = ("grpo", "gspo", "dr_grpo", "gvpo", "cispo")  # losses that couple tokens, trajectories and groups
BY_STEP = 1e-3  # least tolerance of a gradient that is known by its step alone: AdamW divides it by |g| + eps
MOVED = 0.05  # nats, root mean square, by which the tokens are to move in the step that is compared


@dataclass(frozen=True)
class EngineResult:
    """One comparison: `error` is relative to the standard's norm, or nats for log-probs."""

    name: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance

    def __str__(self) -> str:
        return f"{'ok ' if self.passed else 'NOT'} {self.name}: {self.error:.2e} (at most {self.tolerance:.0e})"


def forest(vocabulary: int, *, temperature: float = 1.0) -> Forest:
    """Two groups of four rollouts: a fork inside an action, two turns with an observation, unequal lengths.

    vocabulary  ids from 2 up to it are used; at least 32
    """
    state = 12345

    def ids(n: int) -> list[int]:
        nonlocal state
        out = []
        for _ in range(n):
            state = (1103515245 * state + 12345) % 2**31
            out.append(2 + (state >> 8) % (vocabulary - 2))
        return out

    def turn(n: int, **more: Any) -> dict[str, Any]:
        return {**more, "action": ids(n), "logprob": [-1.0] * n}

    rows = []
    for k in range(2):
        prompt, common = (
            ids(5 + k),
            {"group": f"g{k}", "schema": "gxpo.rollouts/1", "sampling": {"temperature": temperature}},
        )
        for i in range(3):
            turns = [turn(4 + i), turn(3, observation=ids(2))]
            rows.append(
                {**common, "id": f"g{k}t{i}", "prompt": prompt, "reward": (i + k) % 2 + 0.1 * i, "turns": turns}
            )
        fork = {"of": f"g{k}t1", "turn": 0, "token": 2}
        rows.append({**common, "id": f"g{k}f", "fork": fork, "reward": 1.7, "turns": [turn(4)]})
    return Forest.from_records(rows)


def losses(given: Forest, now: Tensor) -> dict[str, LossFunction]:
    """L(x) of each of `METHODS`, for a policy that has moved away from its proximal one.

    now [P]  the policy's log-probs
    """
    noise = torch.randn(now.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return {name: _loss(name, given, now + 0.1 * noise) for name in METHODS}


def _loss(name: str, given: Forest, proximal: Tensor) -> LossFunction:
    made = method(name).fill(horizon=16.0, max_length=16, total_steps=1)
    credit = made.advantages(given)

    def loss(x: Mapping[str, Tensor]) -> Tensor:
        policy = PolicyTokens(
            x["logprob"], given.path_behaviour_logprob, x.get("reference"), None, proximal_logprob=proximal, outputs=x
        )
        return made.loss(given, policy, advantages=credit).value

    return loss


def check(
    engine: TrainEngine,
    standard: Any,
    *,
    tolerance: float = 1e-5,
    temperature: float = 1.0,
    move: float = MOVE,
    names: Callable[[str], str] = lambda name: name,
) -> list[EngineResult]:
    """Compare an engine with a learner that holds the same weights.

    engine     put back as it was at the end (`save`, `load`)
    standard   `gxpo.learning.torch.TorchLearner` of the same model and adapters, with any learning rate
    tolerance  of gradients, relative; log-probs in nats
    move       nats by which the probe moves a token; 0.2 where log-probs are rounded to bfloat16
    names      of a parameter of the standard in the engine's gradients, if it has `gradients()`; an engine without it
               is compared by what a step of plain gradient descent (AdamW with eps 1000) does to all log-probs
    """
    given = forest(standard.vocabulary, temperature=temperature)
    learner = RemoteLearner(engine, lr=0.0, tokens_per_microbatch=24)  # several pulls
    own, theirs = standard.outputs(given)["logprob"], learner.outputs(given)["logprob"]
    out = [EngineResult("log-probs", float((own - theirs).abs().max()), tolerance)]
    rows = Rows.of(given, torch.arange(given.n_entries))
    found = probe(engine, rows.rows[0], move=move)
    wanted = {"scale": 1.0, "twice": 2.0, "apart": 2.0, "cancelled": 0.0}
    out += [EngineResult(f"probe: {k}", abs(getattr(found, k) - v), max(tolerance, 2e-2)) for k, v in wanted.items()]
    token = int((rows.reading == 0).nonzero()[0])
    norm = _norm(standard.gradient(given, lambda x: x["logprob"][token]).values())
    out.append(EngineResult("probe: norm", abs(found.norm / norm - 1), max(tolerance, 2e-2)))
    for name, loss in losses(given, own).items():
        error = _gradient_error(learner, standard, given, loss, names, found)
        exact = getattr(engine, "gradients", None) is not None
        out.append(EngineResult(f"gradient of {name}", error, tolerance if exact else max(tolerance, BY_STEP)))
    return out


def _gradient_error(
    learner: RemoteLearner,
    standard: Any,
    given: Forest,
    loss: LossFunction,
    names: Callable[[str], str],
    probed: Probe,
) -> float:
    expected = standard.gradient(given, loss)
    gradients: Callable[[], Mapping[str, Tensor]] | None = getattr(learner.engine, "gradients", None)
    if gradients is None:
        return _moved_error(learner, standard, given, loss, probed)
    learner.accumulate(given, loss)
    found = gradients()
    learner.engine.discard()
    pairs = [(found[names(n)].to("cpu", torch.float64), g.to("cpu", torch.float64)) for n, g in expected.items()]
    return _norm(a - b for a, b in pairs) / _norm(b for _, b in pairs)


def _moved_error(learner: RemoteLearner, standard: Any, given: Forest, loss: LossFunction, probed: Probe) -> float:
    """Relative difference of what a step of plain descent does to all log-probs, in the engine and here."""
    before, start = standard.outputs(given)["logprob"], standard.snapshot()
    gradient = standard.gradient(given, loss)
    norm = _norm(gradient.values()) + 1e-15
    factor = MOVED / norm**2
    how = Descent.by(factor, norm, probed.fixed_eps)
    standard.restore({n: x - factor * gradient[n].to(x) for n, x in start.items()})
    expected = standard.outputs(given)["logprob"] - before
    standard.restore(start)
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "engine"
        learner.engine.save(saved)
        old = learner.outputs(given)["logprob"]
        learner.accumulate(given, lambda x: how.slope * loss(x))
        learner.engine.step(how.lr, None, eps=how.eps)
        found = learner.outputs(given)["logprob"] - old
        learner.engine.load(saved)
    return float((found - expected).norm() / expected.norm())


def _norm(tensors: Iterable[Tensor]) -> float:
    return sum(float(x.double().square().sum()) for x in tensors) ** 0.5
