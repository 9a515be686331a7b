"""Settings that are `auto`, as what is fastest here: measured once, alike in all processes, fixed in config.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gxpo.base import runtime
from gxpo.learning.measure import tokens_per_microbatch
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.measure import Trial
from gxpo.parts.definition import Stated
from gxpo.parts.protocols import Message, TaskSource
from gxpo.parts.settings import RunSettings
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.config import Resolved
from gxpo.training.setup import Notify, Policy

OBSERVATION = 256  # tokens taken as the length of a prompt where tasks are instances of an environment
MICROBATCH, UPDATING, SAMPLING = "learner.tokens_per_microbatch", "learner.products", "sampling.products"


def measured(resolved: Resolved, policy: Policy, source: TaskSource, notify: Notify) -> Resolved:
    """The settings with numbers and dtypes in the place of `auto`; learner and engine work by them from now on.

    `auto` stays where there is nothing to choose, such as the dtype of a float32 model's products.
    """
    return _with_microbatch(_with_products(resolved, policy, notify), policy, source, notify)


def _with_products(resolved: Resolved, policy: Policy, notify: Notify) -> Resolved:
    """The dtype in which matrices are multiplied, in updates and while sampling."""
    s, learner, engine = resolved.settings, policy.learner, policy.engine
    trials: dict[str, Trial | None] = {}
    if s.learner.products == "auto" and isinstance(learner, TorchLearner):
        trials[UPDATING] = learner.products_trial()
    if (s.sampling.products or s.learner.products) == "auto" and isinstance(engine, TorchEngine):
        samples = s.tasks.per_step * getattr(resolved.method.rollout, "group_size", 1)
        trials[SAMPLING] = engine.products_trial(max(1, samples // runtime.world()))
    said = {key: [trial.choice, str(trial)] for key, trial in trials.items() if trial is not None}
    said = json.loads(runtime.gather(json.dumps(said).encode())[0])
    if UPDATING in said and isinstance(learner, TorchLearner):
        learner.use_products(said[UPDATING][0])
    if SAMPLING in said and isinstance(engine, TorchEngine):
        engine.use_products(said[SAMPLING][0])
    if said:
        lines = ", ".join(f"{key}: {line}" for key, (_, line) in said.items())
        notify(f"matrix products, measured once and fixed in config.yaml: {lines}")
    return _fixed(resolved, {key: choice for key, (choice, _) in said.items()})


def _with_microbatch(resolved: Resolved, policy: Policy, source: TaskSource, notify: Notify) -> Resolved:
    """How many tokens go through the model together in an update."""
    s = resolved.settings
    if s.learner.tokens_per_microbatch != "auto":
        return resolved
    notify("trying out learner.tokens_per_microbatch (once; the number then stands in config.yaml)")
    longest = max((_length(task.prompt, policy.tokenizer) for task in source.held_out(8)), default=0) or OBSERVATION
    size = tokens_per_microbatch(
        policy.learner, longest, s.sampling.max_new_tokens, getattr(resolved.method.rollout, "group_size", 1)
    )
    size = int(runtime.gather(str(size).encode())[0])
    policy.learner.tokens_per_microbatch = size
    return _fixed(resolved, {MICROBATCH: size})


def _fixed(resolved: Resolved, values: Mapping[str, Any]) -> Resolved:
    """With these values of settings, whose origins say that they were measured."""
    s: RunSettings = resolved.settings
    for key, value in values.items():
        section, _, name = key.partition(".")
        s = s.model_copy(update={section: getattr(s, section).model_copy(update={name: value})})
    keys = {k: Stated(v, f"measured ({resolved.keys[k].origin})") for k, v in values.items()}
    phases = tuple(_fixed(one, values) for one in resolved.phases)
    return replace(resolved, settings=s, keys=resolved.keys | keys, phases=phases)


def _length(prompt: str | tuple[int, ...] | tuple[Message, ...], tokenizer: Any) -> int:
    """Tokens of a prompt, but for what a chat template adds."""
    if isinstance(prompt, str):
        return len(tokenizer.encode(prompt)) if prompt else 0
    return sum(1 if isinstance(x, int) else len(tokenizer.encode(str(x.get("content") or ""))) for x in prompt)
