"""What a run needs before its first step: the world, the policy in its learner and engine, the chat format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gxpo import chat, models, worlds
from gxpo.config import Resolved
from gxpo.engines.torch import TorchEngine
from gxpo.errors import ConfigError
from gxpo.keys import Stated
from gxpo.learners import parallel
from gxpo.learners.measure import tokens_per_microbatch
from gxpo.learners.torch import TorchLearner
from gxpo.pipeline import Method
from gxpo.protocols import Chat, EpisodeRules, Message, Sampling, TaskSource
from gxpo.settings import RunSettings
from gxpo.trainer.export import lora_settings
from gxpo.worlds import World

Notify = Callable[[str], None]


def device_of(name: str) -> str:
    """The device that "auto" means here: cuda, else mps, else cpu."""
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def world_of(s: RunSettings) -> World:
    """Where tasks come from, and their environment."""
    return worlds.make(
        s.task,
        seed=s.seed,
        options=s.tasks.options,
        per_step=s.tasks.per_step,
        workers=s.env.workers,
        timeout=s.env.timeout,
    )


def sampling_of(s: RunSettings) -> Sampling:
    """How actions are drawn in training."""
    return Sampling(**{**s.sampling.model_dump(exclude={"batch_rows"}), "stop": tuple(s.sampling.stop)})


def check_requirements(method: Method, world: World, task: str) -> None:
    """Refuse a method whose needs nobody meets."""
    parts = [method.rollout, world.source, world.envs]
    provided = {x for part in parts for x in getattr(part, "provides", ())}
    for need in method.requires:
        if need not in provided:
            raise ConfigError(
                f"{method.name} requires {need}, which neither the rollout nor task {task!r} "
                "provides: choose a task that does"
            )


@dataclass
class Policy:
    """The model that is trained, and how it is sampled and spoken to."""

    tokenizer: Any
    learner: TorchLearner
    engine: TorchEngine
    chat: Chat
    device: str


def policy_of(s: RunSettings, method: Method, notify: Notify) -> Policy:
    """Loads the model; everything that can be wrong with it is found here."""
    device = device_of(s.learner.device)

    def warming(check: models.Check) -> None:
        seen = "" if check.accuracy is None else f", accuracy {check.accuracy:.2f}"
        notify(f"warm-up of the tiny model (once, then cached): step {check.step}, loss {check.loss:.2f}{seen}")

    loaded = models.load(s.model, task=s.task, device=device, dtype=s.learner.dtype, progress=warming, notify=notify)
    talk = chat.make(
        loaded.tokenizer,
        template=s.chat.template,
        kwargs=s.chat.kwargs,
        tools_format=s.chat.tools,
        rewrites=s.chat.rewrites,
    )
    size = s.learner.tokens_per_microbatch
    learner = TorchLearner(
        loaded.model,
        lr=s.update.lr,
        betas=(s.update.betas[0], s.update.betas[1]),
        weight_decay=s.update.weight_decay,
        max_grad_norm=s.update.max_grad_norm,
        schedule=s.update.schedule,
        warmup_steps=s.update.warmup_steps,
        total_steps=s.trainer.steps * method.update.optimiser_steps(s.tasks.per_step),
        tokens_per_microbatch=8192 if size == "auto" else size,
        device=device,
        layout="packed" if s.learner.layout == "auto" else "flat",
        lora=lora_settings(s),
        reference="reference_logprob" in method.needs,
    )
    engine = TorchEngine(learner.model, loaded.tokenizer, device=device, batch_rows=s.sampling.batch_rows)
    return Policy(loaded.tokenizer, learner, engine, talk, device)


def episode_of(s: RunSettings, world: World, policy: Policy) -> EpisodeRules:
    """The rules of an episode: the environment's, the run's, and the positions that the model has."""
    config = policy.learner.model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None) or 1 << 30
    limit = min(s.env.max_context or positions, positions)
    if limit <= s.sampling.max_new_tokens:
        raise ConfigError(
            f"env.max_context={limit} leaves no room for an observation beside sampling.max_new_tokens="
            f"{s.sampling.max_new_tokens}: raise the one or lower the other"
        )
    longest = world.envs.max_turns if world.envs is not None else 1
    return EpisodeRules(
        max_turns=min(s.env.max_turns or longest, longest) if world.envs is not None else 1,
        context=s.env.context,
        window=s.env.window,
        max_context=limit,
    )


OBSERVATION = 256  # tokens taken as the length of a prompt where tasks are instances of an environment


def measured(resolved: Resolved, policy: Policy, source: TaskSource, notify: Notify) -> Resolved:
    """`learner.tokens_per_microbatch: auto` as the number that is fastest here, the same for all processes."""
    s = resolved.settings
    if s.learner.tokens_per_microbatch != "auto":
        return resolved
    notify("trying out learner.tokens_per_microbatch (once; the number then stands in config.yaml)")
    longest = max((_length(task.prompt, policy.tokenizer) for task in source.held_out(8)), default=0) or OBSERVATION
    size = tokens_per_microbatch(
        policy.learner, longest, s.sampling.max_new_tokens, getattr(resolved.method.rollout, "group_size", 1)
    )
    size = int(parallel.gather(str(size).encode())[0]) if parallel.world() > 1 else size
    policy.learner.tokens_per_microbatch = size
    key = "learner.tokens_per_microbatch"
    learner = s.learner.model_copy(update={"tokens_per_microbatch": size})
    return Resolved(
        s.model_copy(update={"learner": learner}),
        resolved.method,
        resolved.keys | {key: Stated(size, f"measured ({resolved.keys[key].origin})")},
    )


def _length(prompt: str | tuple[int, ...] | tuple[Message, ...], tokenizer: Any) -> int:
    """Tokens of a prompt, but for what a chat template adds."""
    if isinstance(prompt, str):
        return len(tokenizer.encode(prompt)) if prompt else 0
    return sum(1 if isinstance(x, int) else len(tokenizer.encode(str(x.get("content") or ""))) for x in prompt)
