"""Conformance of training engines: log-probs, gradients and loss scale against gxpo's learner, on rollouts with forks.

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
STEP_TOLERANCE = 1e-3  # least tolerance of a gradient that only an AdamW step shows, divided by |g| + eps
MOVE_RMS = 0.05  # nats, root mean square over tokens, of the step that is compared


@dataclass(frozen=True)
class EngineResult:
    """Result of one comparison: `error` is relative to the standard's norm, or in nats for log-probs."""

    name: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance

    def __str__(self) -> str:
        return f"{'ok ' if self.passed else 'NOT'} {self.name}: {self.error:.2e} (at most {self.tolerance:.0e})"


def forest(vocabulary: int, *, temperature: float = 1.0) -> Forest:
    """Make two groups of four rollouts with a fork inside an action, two turns with an observation, unequal lengths.

    vocabulary  number of token ids, at least 32; ids from 2 on are used
    """
    # a generator of its own: the rollouts are the same with every version of torch, in every process
    state = 12345

    def ids(n: int) -> list[int]:
        nonlocal state
        out = []
        for _ in range(n):
            state = (1103515245 * state + 12345) % 2**31
            out.append(2 + (state >> 8) % (vocabulary - 2))
        return out

    def turn(n: int, **fields: Any) -> dict[str, Any]:
        return {**fields, "action": ids(n), "logprob": [-1.0] * n}

    # per group three rollouts of two turns, and one that leaves the second of them after two tokens
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


def losses(rollouts: Forest, logprob_P: Tensor) -> dict[str, LossFunction]:
    """Make L(x) of each of `METHODS`, for a policy that has moved away from its proximal one.

    logprob_P  log-probs of the policy
    """
    # away from ratio 1, where no clip acts and the gradients of most methods are alike
    noise = torch.randn(logprob_P.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return {name: _loss(name, rollouts, logprob_P + 0.1 * noise) for name in METHODS}


def _loss(name: str, rollouts: Forest, proximal: Tensor) -> LossFunction:
    composed = method(name).fill(horizon=16.0, max_length=16, total_steps=1)
    credit = composed.advantages(rollouts)

    def loss(x: Mapping[str, Tensor]) -> Tensor:
        policy = PolicyTokens(
            x["logprob"],
            rollouts.path_behaviour_logprob,
            x.get("reference"),
            None,
            proximal_logprob=proximal,
            outputs=x,
        )
        return composed.loss(rollouts, policy, advantages=credit).value

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

    engine     the engine under test; it is put back as it was at the end (`save`, `load`)
    standard   `gxpo.learning.torch.TorchLearner` of the same model and adapters, with any learning rate
    tolerance  relative, of gradients; in nats, of log-probs
    move       nats by which the probe moves a token; 0.2 where log-probs are rounded to bfloat16
    names      name of a parameter of the standard in the engine's `gradients()`; an engine without that method is
               compared by the effect of a step of plain gradient descent (AdamW with eps 1000) on all log-probs
    """
    rollouts = forest(standard.vocabulary, temperature=temperature)
    learner = RemoteLearner(engine, lr=0.0, tokens_per_microbatch=24)  # several pulls
    standard_logprob, engine_logprob = standard.outputs(rollouts)["logprob"], learner.outputs(rollouts)["logprob"]
    out = [EngineResult("log-probs", float((standard_logprob - engine_logprob).abs().max()), tolerance)]
    rows = Rows.of(rollouts, torch.arange(rollouts.n_entries))
    probed = probe(engine, rows.rows[0], move=move)
    # the probe measures the engine's own scale of a loss: doubled or accumulated it must be 2, with its negative 0
    expected_by_figure = {"scale": 1.0, "twice": 2.0, "apart": 2.0, "cancelled": 0.0}
    out += [
        EngineResult(f"probe: {k}", abs(getattr(probed, k) - v), max(tolerance, 2e-2))
        for k, v in expected_by_figure.items()
    ]
    token = int((rows.reading == 0).nonzero()[0])
    norm = _norm(standard.gradient(rollouts, lambda x: x["logprob"][token]).values())
    out.append(EngineResult("probe: norm", abs(probed.norm / norm - 1), max(tolerance, 2e-2)))
    # gradients of real losses: one for each way in which a loss couples its tokens
    for name, loss in losses(rollouts, standard_logprob).items():
        error = _gradient_error(learner, standard, rollouts, loss, names, probed)
        exact = getattr(engine, "gradients", None) is not None
        out.append(EngineResult(f"gradient of {name}", error, tolerance if exact else max(tolerance, STEP_TOLERANCE)))
    return out


def _gradient_error(
    learner: RemoteLearner,
    standard: Any,
    rollouts: Forest,
    loss: LossFunction,
    names: Callable[[str], str],
    probed: Probe,
) -> float:
    expected_gradients = standard.gradient(rollouts, loss)
    gradients: Callable[[], Mapping[str, Tensor]] | None = getattr(learner.engine, "gradients", None)
    if gradients is None:
        return _moved_error(learner, standard, rollouts, loss, probed)
    learner.accumulate(rollouts, loss)
    engine_gradients = gradients()
    learner.engine.discard()
    pairs = [
        (engine_gradients[names(n)].to("cpu", torch.float64), g.to("cpu", torch.float64))
        for n, g in expected_gradients.items()
    ]
    return _norm(a - b for a, b in pairs) / _norm(b for _, b in pairs)


def _moved_error(learner: RemoteLearner, standard: Any, rollouts: Forest, loss: LossFunction, probed: Probe) -> float:
    """Return the relative difference of a plain descent step's effect on all log-probs, in the engine and here."""
    start_logprobs, start = standard.outputs(rollouts)["logprob"], standard.snapshot()
    gradient = standard.gradient(rollouts, loss)
    # the step's length is chosen for its effect: large enough to rise above rounding, small enough to be linear
    norm = _norm(gradient.values()) + 1e-15
    factor = MOVE_RMS / norm**2
    descent = Descent.by(factor, norm, probed.fixed_eps)
    standard.restore({n: x - factor * gradient[n].to(x) for n, x in start.items()})
    expected_change = standard.outputs(rollouts)["logprob"] - start_logprobs
    standard.restore(start)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine"
        learner.engine.save(path)
        engine_start_logprobs = learner.outputs(rollouts)["logprob"]
        learner.accumulate(rollouts, lambda x: descent.slope * loss(x))
        learner.engine.step(descent.lr, None, eps=descent.eps)
        actual_change = learner.outputs(rollouts)["logprob"] - engine_start_logprobs
        learner.engine.load(path)
    return float((actual_change - expected_change).norm() / expected_change.norm())


def _norm(tensors: Iterable[Tensor]) -> float:
    return sum(float(x.double().square().sum()) for x in tensors) ** 0.5
