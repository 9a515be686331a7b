"""Construction of a run's world, policy (learner, engine, chat format) and episode rules from its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gxpo.algorithms.signals.base import SignalPart
from gxpo.base import runtime
from gxpo.base.devices import need_float64, untried_line
from gxpo.base.errors import ConfigError, ModelError, TaskError
from gxpo.environments import worlds
from gxpo.environments.envs.corrupted import Corruption
from gxpo.environments.mcp.settings import servers_of
from gxpo.environments.tasks.prompt_search import PromptSearch
from gxpo.environments.tasks.sampled import SampledTasks, sample_by_rates
from gxpo.environments.worlds import World
from gxpo.learning.base import steps_of
from gxpo.learning.flow import FlowLearner
from gxpo.learning.masked import MaskedLearner
from gxpo.learning.optimiser_kinds import Rule, betas_of
from gxpo.learning.remote import RemoteLearner
from gxpo.learning.sharded import ShardedLearner
from gxpo.learning.torch import TorchLearner
from gxpo.methods.method import Method
from gxpo.models import chat
from gxpo.models.decoder.architecture import positions
from gxpo.models.decoder.vision import vision_of
from gxpo.models.denoising import Denoiser
from gxpo.models.guidance import guide
from gxpo.models.masked import SUFFIX, MaskedPolicy
from gxpo.models.picture_tokens import Codebook
from gxpo.parts.protocols import Chat, EpisodeRules, Sampling, TaskSource
from gxpo.parts.settings import RunSettings
from gxpo.sampling.engines.choose import Run, choose, is_builtin_model
from gxpo.sampling.engines.flow import FlowEngine
from gxpo.sampling.engines.masked import MaskedEngine, Unmasking
from gxpo.sampling.engines.openai import OpenAIEngine
from gxpo.sampling.engines.tinker import TinkerSampler
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.engines.vllm import VllmEngine
from gxpo.sampling.engines.vllm_pictures import custom_processor
from gxpo.sampling.rollouts.build import RolloutPart
from gxpo.training import cluster, models
from gxpo.training.config import RunConfig
from gxpo.training.export import lora_settings
from gxpo.training.models import flow, pipelines, prompt_lengths

# ---------------------------------------------------------------- engine
LanguageEngine = TorchEngine | VllmEngine | OpenAIEngine


def engine_of(
    s: RunSettings,
    learner: TorchLearner,
    tokenizer: Any,
    device: str,
    sampling: Sampling,
    notify: Callable[[str], None],
) -> LanguageEngine:
    """Build the engine that samples the learner's policy; `notify` is told which one was chosen, and why."""
    engine_name, rows, options = s.sampling.engine, s.sampling.batch_rows, s.sampling.engine_options
    # A learner may have a copy of the weights for sampling.
    model = learner.model if learner.samples is None else learner.samples
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    vision = vision_of(causal)
    run = Run(
        model=s.model,
        architecture=type(causal).__name__,
        dtype=s.learner.dtype,
        base=s.learner.base,
        device=device,
        policies=len(learner.policies),
        processes=runtime.world(),
        sampling=sampling,
        has_vision=vision is not None,
        own_pictures=None if vision is None else custom_processor(vision),
    )
    choice = choose(engine_name, run, python=s.sampling.engine_python, servers=s.sampling.servers)
    if engine_name == "auto" and not is_builtin_model(s.model):
        notify(f"sampling with {choice.engine}: {choice.reason}")
    # Engines outside of this process sample one policy, the first; the engine here samples all of them.
    (policy, *_) = learner.policies
    if choice.engine == "openai":
        return _servers(s, model, tokenizer, policy, causal.get_input_embeddings().weight.shape[0], notify)
    if choice.engine == "torch":
        if options and engine_name == "torch":
            raise ConfigError("sampling.engine_options are for sampling.engine=vllm or openai, and it is torch")
        return TorchEngine(
            model,
            tokenizer,
            device=device,
            batch_rows=rows,
            acting=learner.sampling_as,
            kernels=s.learner.kernels,
            products=s.sampling.products or s.learner.products,
            choices=s.learner.choices,
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


def record_likeliest(engine: Any, method: Method) -> None:
    """Make the engine record the distributions that the method's signals read; `ConfigError` if it can't."""
    likeliest = max((SignalPart.hook(part, "likeliest") for part in method.signals.values()), default=0)
    if likeliest and not isinstance(engine, TorchEngine):
        raise ConfigError(
            f"{method.name} reads the sampler's log-probs of {likeliest} ids at each token, which the engine in this "
            "process alone records: set sampling.engine=torch"
        )
    if likeliest:
        engine.likeliest = likeliest


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
    """Build the engine of OpenAI-compatible servers; weights are published to them if a folder for that is named."""
    # Refused here, before the engine waits for servers.
    options = s.sampling.engine_options
    if unknown := [name for name in options if name not in OPTIONS]:
        option_names = f"{', '.join(OPTIONS[:-1])} and {OPTIONS[-1]}"
        raise ConfigError(f"sampling.engine_options of openai are {option_names}, not {', '.join(unknown)}")
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


# ---------------------------------------------------------------- setup
Notify = Callable[[str], None]


def device_of(name: str) -> str:
    """The device that "auto" means here: cuda, else mps, else cpu."""
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def world_of(s: RunSettings, source: Any = None) -> World:
    """Build the task source and its environments; `source`: a task source of the user's, as an object."""
    return worlds.make(
        s.task,
        seed=s.seed,
        options=s.tasks.options,
        per_step=s.tasks.per_step,
        workers=s.env.workers,
        timeout=s.env.timeout,
        concurrency=s.env.concurrency,
        source_object=source,
        corruption=Corruption(s.env.corrupt, s.env.corrupt_by) if s.env.corrupt else None,
        mcp=servers_of(s.env.mcp, s.env.mcp_timeout, s.env.mcp_chars),
        max_turns=s.env.max_turns,
    )


def sampled_of(s: RunSettings, sampler: Any, world: World) -> SampledTasks:
    """The world's tasks under the method's sampler; TaskError where it has none that are met twice."""

    def at_level(level: Any) -> TaskSource:
        options = {**s.tasks.options, sampler.key: level}
        return worlds.make(s.task, seed=s.seed, options=options, per_step=s.tasks.per_step).source

    has_listed_tasks = world.envs is None or getattr(world.envs, "of_tasks", False)
    return sample_by_rates(world.source, sampler, s.seed, s.task, at_level if has_listed_tasks else None)


def prompt_search_of(s: RunSettings, source: TaskSource, world: World) -> PromptSearch | None:
    """The source under a search over `tasks.prompts`; None without any. TaskError where prompts can't be changed."""
    if not s.tasks.prompts:
        return None
    if world.envs is not None:
        raise TaskError("tasks.prompts: prompts of episodes are their observations: leave it out")
    if s.async_.max_staleness:
        raise TaskError("tasks.prompts: rollouts sampled ahead have earlier prompts: set async.max_staleness=0")
    return PromptSearch(source, s.tasks.prompts, s.tasks.prompt_tasks)


def sampling_of(s: RunSettings) -> Sampling:
    """Sampling settings of training."""
    names = {"temperature", "top_k", "top_p", "max_new_tokens"}
    return Sampling(**s.sampling.model_dump(include=names), stop=tuple(s.sampling.stop))


@dataclass
class Policy:
    """The model that is trained, with tokenizer, learner, engine and chat format."""

    tokenizer: Any
    learner: TorchLearner | FlowLearner | MaskedLearner | RemoteLearner
    engine: LanguageEngine | FlowEngine | MaskedEngine | TinkerSampler
    chat: Chat
    device: str
    longest: int | None = None  # tokens that a context may have, where `learner` has no model to ask

    @property
    def positions(self) -> int:
        """Tokens that a context may have."""
        if isinstance(self.learner, RemoteLearner):
            return self.longest or 1 << 30
        config = getattr(self.learner.model, "config", None)  # a flow has none, and no limit
        n_positions = None if config is None else positions(config.get_text_config())[0]
        return n_positions or 1 << 30


def policy_of(resolved: RunConfig, notify: Notify) -> Policy:
    """Load the model into learner and engine; errors that its name alone does not show (`preflight`) come up here."""
    if (line := untried_line(device_of(resolved.settings.learner.device))) is not None:
        notify(line)
    if pipelines.denoises(resolved.settings.model):
        return _flow_policy(resolved, notify)
    return _text_policy(resolved, notify) if resolved.method.likelihood is None else _masked_policy(resolved, notify)


def _load(s: RunSettings, device: str, notify: Notify) -> models.LoadedModel:
    """Load a language model, with notices of a warm-up."""

    def warming(check: models.Check) -> None:
        accuracy_text = "" if check.accuracy is None else f", accuracy {check.accuracy:.2f}"
        notify(
            f"warm-up of the tiny model (once, then cached): step {check.step}, loss {check.loss:.2f}{accuracy_text}"
        )

    return models.load(
        s.model,
        task=s.task,
        device=device,
        dtype=s.learner.dtype,
        base=s.learner.base,
        progress=warming,
        notify=notify,
    )


def _text_policy(resolved: RunConfig, notify: Notify) -> Policy:
    """Load a causal language model."""
    s, method = resolved.settings, resolved.method
    device = device_of(s.learner.device)
    if s.cluster.backend in cluster.ENGINES:
        return _remote_policy(resolved, device, notify)
    loaded = _load(s, device, notify)
    if type(loaded.model).__name__.endswith(SUFFIX):
        raise ConfigError(f"model {s.model} fills in hidden tokens: set likelihood, or take a method of masked models")
    # A model that was warmed up on one style of prompts can't read another.
    if s.task and (unread := models.unread_style(s.model, s.task, s.tasks.options)):
        notify(unread)
    _check_tower(s, loaded.model)
    _guide(s, loaded)
    chat_format = _chat(s, loaded.tokenizer, loaded.model)
    shard_options: dict[str, Any] = {"is_sampled": s.sampling.engine != "openai"} if s.cluster.backend == "fsdp" else {}
    learner = (ShardedLearner if shard_options else TorchLearner)(
        loaded.model,
        **shard_options,
        **_learning(resolved, device),
        images_per_microbatch=s.learner.images_per_microbatch,
        layout="packed" if s.learner.layout == "auto" else "flat",
        lora=lora_settings(s),
        value_heads=method.value_heads,
        value_lr=s.learner.value_lr,
        attention=s.learner.attention,
        kernels=s.learner.kernels,
        products=s.learner.products,
        choices=s.learner.choices,
        recompute=s.learner.recompute,
        states=s.learner.states,
        policies=getattr(method.rollout, "policies", None),
    )
    engine = engine_of(s, learner, loaded.tokenizer, device, sampling_of(s), notify)
    return Policy(loaded.tokenizer, learner, engine, chat_format, device)


def _guide(s: RunSettings, loaded: models.LoadedModel) -> None:
    """Give a generator of pictures its guidance; ConfigError for a model of texts."""
    x, codebook = s.sampling, Codebook.of(loaded.tokenizer)
    if x.guidance == 1:
        return
    if codebook is None:
        raise ConfigError(
            f"sampling.guidance={x.guidance:g} mixes logits with and without a condition, and prompts of model "
            f"{s.model} have none that could be left out: set it to 1, or take a pipeline, or tokens:digits"
        )
    guide(loaded.model, codebook, x.guidance)


def _check_tower(s: RunSettings, model: Any) -> None:
    """Freeze the vision tower if that is asked for; `ConfigError` for settings of one where there is none."""
    vision, freeze = vision_of(model), s.learner.freeze_vision_tower
    for name, is_set in (("freeze_vision_tower", freeze), ("images_per_microbatch", s.learner.images_per_microbatch)):
        if is_set and vision is None:
            raise ConfigError(f"learner.{name}: {s.model} has no tower: leave it out")
    if freeze and s.learner.lora_rank > 0:
        raise ConfigError("learner.freeze_vision_tower: adapters train what learner.lora_targets names: name it there")
    if freeze and vision is not None:
        vision.freeze()


def _remote_policy(resolved: RunConfig, device: str, notify: Notify) -> Policy:
    """Load a language model whose weights a training engine holds."""
    s, learning = resolved.settings, _learning(resolved, device)
    if s.cluster.backend == "tinker":
        tokenizer, learner, engine, longest = cluster.tinker_policy(s, learning, notify)
    else:
        tokenizer, learner, engine, longest = cluster.verl_policy(s, learning, device, notify)
    return Policy(tokenizer, learner, engine, _chat(s, tokenizer), device, longest)


def _chat(s: RunSettings, tokenizer: Any, model: Any = None) -> Chat:
    c, vision = s.chat, None if model is None else vision_of(model)
    return chat.make(
        tokenizer,
        template=c.template,
        kwargs=c.kwargs,
        tools_format=c.tools,
        rewrites=c.rewrites,
        rows_of=None if vision is None else vision.ids,
        picture=None if vision is None else tokenizer.convert_ids_to_tokens(vision.placeholder),
    )


def _flow_policy(resolved: RunConfig, notify: Notify) -> Policy:
    """Load a flow or a pipeline, which denoises instead of writing tokens."""
    s, method = resolved.settings, resolved.method
    has_adapters = pipelines.is_pipeline(s.model)
    # A flow has neither tokens nor heads: refused before it is loaded.
    unfit = {
        "learner.dtype=bfloat16": s.learner.dtype == "bfloat16",
        "learner.tokens_per_microbatch=auto": s.learner.tokens_per_microbatch == "auto",
        "learner.lora_rank": s.learner.lora_rank > 0 and not has_adapters,
        "sampling.guidance": s.sampling.guidance != 1 and not has_adapters,
        "sampling.denoising_steps": s.sampling.denoising_steps is not None and not has_adapters,
        "chat.system": s.chat.system is not None,
        f"sampling.engine={s.sampling.engine}": s.sampling.engine in ("vllm", "openai"),
    }
    _refuse(s, method, unfit)
    device = device_of(s.learner.device)
    need_float64(device, "a denoising model")
    model = denoiser_of(s, notify)
    learner = FlowLearner(model, **_learning(resolved, device))
    conditions = flow.Conditions(model.conditions)
    return Policy(conditions, learner, FlowEngine(learner.model, device=device), flow.ConditionChat(conditions), device)


def _masked_policy(resolved: RunConfig, notify: Notify) -> Policy:
    """Load a masked language model, which unmasks answers in the place of writing them."""
    s, method = resolved.settings, resolved.method
    _refuse(s, method, unfit_for_masked(s))
    unmasking = Unmasking.of(s.sampling.engine_options, s.sampling.max_new_tokens)
    device = device_of(s.learner.device)
    loaded = _load(s, device, notify)
    policy = MaskedPolicy.of(loaded.model, loaded.tokenizer, s.sampling.guidance)
    learner = MaskedLearner(policy, method.likelihood, **_learning(resolved, device))
    engine = MaskedEngine(policy, method.likelihood, unmasking, device=device, batch_rows=s.sampling.batch_rows)
    return Policy(loaded.tokenizer, learner, engine, _chat(s, loaded.tokenizer), device)


def unfit_for_masked(s: RunSettings) -> dict[str, bool]:
    """Settings that a masked language model can't have."""
    return {
        f"learner.lora_rank={s.learner.lora_rank}": s.learner.lora_rank > 0,
        "learner.tokens_per_microbatch=auto": s.learner.tokens_per_microbatch == "auto",
        "learner.states=bfloat16": s.learner.states == "bfloat16",
        f"sampling.engine={s.sampling.engine}": s.sampling.engine in ("vllm", "openai"),
        f"sampling.top_k={s.sampling.top_k}": s.sampling.top_k > 0,
        f"sampling.top_p={s.sampling.top_p:g}": s.sampling.top_p < 1,
        "sampling.stop": bool(s.sampling.stop),
        f"cluster.backend={s.cluster.backend}": s.cluster.backend != "local",
        f"async.max_staleness={s.async_.max_staleness}": s.async_.max_staleness > 0,
    }


def _refuse(s: RunSettings, method: Method, unfit: dict[str, bool]) -> None:
    """Raise ConfigError for the first of these settings that is set, and for a value head."""
    for obstacle in (name for name, is_set in {**unfit, "a value head": bool(method.value_heads)}.items() if is_set):
        raise ConfigError(f"model {s.model} can't have {obstacle}: leave it out")


def denoiser_of(s: RunSettings, notify: Notify) -> Denoiser:
    """Load a denoising model, with its adapters."""
    if not pipelines.is_pipeline(s.model):
        return flow.load(s.model, dtype=s.learner.dtype, notify=notify)
    x = s.sampling
    model = pipelines.load(
        s.model, steps=x.denoising_steps, guidance=x.guidance, null=x.null_condition, dtype=s.learner.dtype,
        notify=notify,
    )  # fmt: skip
    if x.max_new_tokens <= model.steps:
        raise ConfigError(
            f"sampling.max_new_tokens={x.max_new_tokens} is below noise and {model.steps} steps: raise it"
        )
    if (lora := lora_settings(s)) is not None:
        pipelines.with_adapters(model, lora.rank, lora.alpha, lora.targets, lora.seed)
    return model


def _learning(resolved: RunConfig, device: str) -> dict[str, Any]:
    """Options that every learner takes."""
    s, method = resolved.settings, resolved.method
    size = s.learner.tokens_per_microbatch
    return {
        "lr": s.optim.lr,
        "optimiser": s.learner.optimiser,
        "betas": betas_of(s.learner.optimiser, s.optim.betas),
        "rule": Rule(s.optim.direction, s.optim.threshold, s.optim.caution),
        "weight_decay": s.optim.weight_decay,
        "max_grad_norm": s.optim.max_grad_norm,
        "schedule": s.optim.schedule,
        "warmup_steps": s.optim.warmup_steps,
        # A schedule counts optimiser steps, of which an update may take several.
        "total_steps": resolved.steps * steps_of(method.update, s.tasks.per_step),
        # `auto` is measured once the learner is there.
        "tokens_per_microbatch": 8192 if size == "auto" else size,
        "device": device,
        # A reference takes memory: only for methods that read it.
        "reference": "reference_logprob" in method.needs,
    }


def fit_source(s: RunSettings, method: Method, source: Any, policy: Policy, *, refuses: bool) -> tuple[Any, list[str]]:
    """The source with tasks whose prompts leave room for an answer (`tasks.too_long`), and lines that say what changed.

    refuses  whether one that is too long raises TaskError under tasks.too_long=error, or is only told
    """
    context_limits = [x for x in (policy.positions, getattr(policy.engine, "positions", None)) if x]
    samples = RolloutPart.hook(method.rollout, "samples_prompts")  # else the task's prompt is not what is sampled under
    if min(context_limits) >= 1 << 30 or not (samples or getattr(method.rollout, "evaluation", None) is None):
        return source, []
    lengths = prompt_lengths.PromptLengths(
        policy.chat, s.chat.system, min(context_limits), s.sampling.max_new_tokens, s.tasks.too_long
    )
    return prompt_lengths.fit(source, lengths, s.eval.tasks, s.task, training=samples, refuses=refuses)


def episode_of(s: RunSettings, world: World, policy: Policy) -> EpisodeRules:
    """The rules of an episode: the environment's, the run's, and the positions that the model has."""
    limit = min(s.env.max_context or policy.positions, policy.positions)
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
