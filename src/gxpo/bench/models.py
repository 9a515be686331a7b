"""Speed by architecture: gxpo against transformers' own sampling, and against updates on rows that share nothing.

Seconds are of processor time, which other processes disturb less than the clock's; with one thread they are the same.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from gxpo.bench.random_models import KINDS, Sizes
from gxpo.bench.runner import Case, Side

Round = Callable[[], dict[str, Any]]
HERE = "gxpo.bench.models:"
SIZES = Sizes(vocabulary=8192, hidden=256, inner=512, layers=4, heads=4, kv=2, head=80, window=64)
PROMPTS, GROUP, LENGTH, NEW = 2, 8, 128, 32
SAME_SPEED = ("llama-yarn", "llama-linear", "llama-dynamic", "llama-biased", "ministral", "qwen2-moe")


def _prompts() -> Any:
    import torch

    draw = torch.Generator().manual_seed(0)
    return torch.randint(3, SIZES.vocabulary, (PROMPTS, LENGTH), generator=draw)


def gxpo_sampling(kind: str) -> Round:
    """Groups of samples by gxpo's engine."""
    from gxpo.parts.protocols import Request, Sampling, StreamKey
    from gxpo.sampling.engines.torch import TorchEngine

    # No stop tokens: both sides have to generate equally many.
    engine = TorchEngine(KINDS[kind].model(SIZES), stop_ids=[])
    requests = [
        Request(tuple(p), tuple(StreamKey(0, 0, str(i), j) for j in range(GROUP)))
        for i, p in enumerate(_prompts().tolist())
    ]

    # Seconds of the processor and not of the clock, which another process could stretch.
    def once() -> dict[str, Any]:
        start = time.process_time()
        engine.sample(requests, Sampling(max_new_tokens=NEW))
        return {"seconds": time.process_time() - start}

    return once


def transformers_generate(kind: str) -> Round:
    """The same number of samples by transformers' `generate`."""
    import torch

    model, rows = KINDS[kind].model(SIZES), _prompts().repeat_interleave(GROUP, 0)
    sampling = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0}

    @torch.inference_mode()
    def once() -> dict[str, Any]:
        start = time.process_time()
        model.generate(rows, attention_mask=torch.ones_like(rows), max_new_tokens=NEW, min_new_tokens=NEW, **sampling)
        return {"seconds": time.process_time() - start}

    return once


def learner_gradient(kind: str, as_it_is: bool) -> Round:
    """GRPO's gradient of those groups by gxpo's learner, as it runs the model or with a row for each rollout in
    transformers' forward pass."""
    from gxpo.bench.update import forest_of
    from gxpo.learning.torch import TorchLearner

    settings: dict[str, Any] = {} if as_it_is else {"kernels": "transformers", "layout": "flat"}
    learner = TorchLearner(KINDS[kind].model(SIZES), lr=1e-6, tokens_per_microbatch=2048, **settings)
    forest = forest_of(SIZES.vocabulary, LENGTH, PROMPTS, GROUP, NEW)
    credit = forest.outcome[forest.path_trajectory] - 1

    def once() -> dict[str, Any]:
        # Garbage of the round before would be collected in this one.
        gc.collect()
        start = time.process_time()
        learner.gradient(forest, lambda x: -(credit * x["logprob"]).mean())
        return {"seconds": time.process_time() - start}

    return once


def cases(quick: bool = False) -> list[Case]:
    """Rows of suite `models`."""
    run = [name for name, kind in KINDS.items() if kind.expected != "refused" and name not in SAME_SPEED]
    rows = []
    for name in run[:2] if quick else run:
        kind, note = {"kind": name}, {"note": KINDS[name].expected}
        sides = Side("gxpo", f"{HERE}gxpo_sampling", kind), Side("generate", f"{HERE}transformers_generate", kind)
        rows.append(Case(f"sample/{name}", *sides, rounds=3, figures=note))
        sides = (
            Side("gxpo", f"{HERE}learner_gradient", kind | {"as_it_is": True}),
            Side("flat", f"{HERE}learner_gradient", kind | {"as_it_is": False}),
        )
        rows.append(Case(f"update/{name}", *sides, rounds=3, figures=note))
    return rows
