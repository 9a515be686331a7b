"""Who samples a run's language model: the engine that was chosen, as the settings say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gxpo.base import runtime
from gxpo.base.errors import ConfigError, ModelError
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.vision import vision_of
from gxpo.parts.protocols import Sampling
from gxpo.parts.settings import RunSettings
from gxpo.sampling.engines.choose import Run, choose, of_the_house
from gxpo.sampling.engines.openai import OpenAIEngine
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.engines.vllm import VllmEngine
from gxpo.sampling.engines.vllm_pictures import own_processor

LanguageEngine = TorchEngine | VllmEngine | OpenAIEngine


def engine_of(
    s: RunSettings,
    learner: TorchLearner,
    tokenizer: Any,
    device: str,
    sampling: Sampling,
    notify: Callable[[str], None],
) -> LanguageEngine:
    """Who samples the learner's policy, drawing as `sampling` says; `notify` is told who was taken, and why."""
    asked, rows, options = s.sampling.engine, s.sampling.batch_rows, s.sampling.engine_options
    model = learner.model if learner.samples is None else learner.samples
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    vision = vision_of(causal)
    run = Run(
        model=s.model,
        architecture=type(causal).__name__,
        dtype=s.learner.dtype,
        device=device,
        policies=len(learner.policies),
        processes=runtime.world(),
        sampling=sampling,
        sees=vision is not None,
        own_pictures=None if vision is None else own_processor(vision),
    )
    choice = choose(asked, run, python=s.sampling.engine_python, servers=s.sampling.servers)
    if asked == "auto" and not of_the_house(s.model):
        notify(f"sampling with {choice.engine}: {choice.why}")
    (policy, *_) = learner.policies
    if choice.engine == "openai":
        return _servers(s, model, tokenizer, policy, causal.get_input_embeddings().weight.shape[0], notify)
    if choice.engine == "torch":
        if options and asked == "torch":
            raise ConfigError("sampling.engine_options are for sampling.engine=vllm or openai, and it is torch")
        return TorchEngine(
            model,
            tokenizer,
            device=device,
            batch_rows=rows,
            acting=learner.sampling_as,
            kernels=s.learner.kernels,
            products=s.sampling.products or s.learner.products,
        )
    try:
        return VllmEngine(
            model,
            tokenizer,
            python=s.sampling.engine_python,
            batch_rows=rows,
            policy=policy,
            arguments=options,
            notify=notify,
        )
    except ModelError as error:
        raise ModelError(f"{error} (sampling.engine=torch does without vLLM)") from error


OPTIONS = (  # of servers
    "model", "weights", "stale", "key_from", "timeout", "retries", "min_replicas", "patience", "publish_timeout",
)  # fmt: skip


def _servers(
    s: RunSettings,
    model: Any,
    tokenizer: Any,
    policy: str,
    vocabulary: int,
    notify: Callable[[str], None],
) -> OpenAIEngine:
    """OpenAI-compatible servers; weights are published to them where a folder for that is named."""
    options = s.sampling.engine_options
    if unknown := [name for name in options if name not in OPTIONS]:
        known = f"{', '.join(OPTIONS[:-1])} and {OPTIONS[-1]}"
        raise ConfigError(f"sampling.engine_options of openai are {known}, not {', '.join(unknown)}")
    if not s.sampling.servers:
        raise ConfigError("sampling.engine=openai needs sampling.servers")
    if "weights" in options and (runtime.world() > 1 or s.cluster.backend != "local"):
        raise ConfigError(
            "sampling.engine_options: weights are published by one process that has all of them: set "
            "cluster.backend=local and start it without torchrun, or leave weights out"
        )
    return OpenAIEngine(
        s.sampling.servers,
        tokenizer=tokenizer,
        learner=model,
        notify=notify,
        vocabulary=vocabulary,
        batch_rows=s.sampling.batch_rows,
        policy=policy,
        **options,
    )
