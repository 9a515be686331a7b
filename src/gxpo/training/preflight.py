"""Checks of a run before anything is sampled.

`check_settings` looks at what is stated alone; a trainer calls it first, then `check_world` and `check_model` when it
has the tasks, and loads the model after that. `rehearse` is all of it for a run that is only shown (`--dry-run`): it
makes gxpo's own tasks and rewards, and neither runs a user's code nor fetches weights or data; of a file it reads
whether it defines the name.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gxpo.algorithms.weighting.base import WeightPart
from gxpo.base.devices import need_float64
from gxpo.base.errors import ConfigError, GxpoError, ModelError
from gxpo.base.usercode import NotRun, Unusable, check_defined, one_line, split
from gxpo.environments import worlds
from gxpo.environments.mcp.settings import servers_of
from gxpo.environments.rewards import functions
from gxpo.environments.rewards.scoring import RewardSet
from gxpo.environments.rewards.spec import Spec
from gxpo.environments.tasks.source import solution_of
from gxpo.environments.worlds import World
from gxpo.forest.forest import Forest
from gxpo.learning.block_mask import NO_FLEX_BACKWARD
from gxpo.learning.optimiser_kinds import Rule
from gxpo.methods.method import Method
from gxpo.models import smollm2
from gxpo.models.chat.rendered import RENDERED, prompt_warnings
from gxpo.models.decoder import choices
from gxpo.models.tiny import built_in
from gxpo.parts.definition import show
from gxpo.parts.learning import learns_from_equal_groups
from gxpo.parts.protocols import TaskSource
from gxpo.parts.settings import RunSettings
from gxpo.sampling.engines.masked import Unmasking
from gxpo.sampling.rollouts import Independent
from gxpo.sampling.rollouts.build import RolloutPart
from gxpo.training.asynchronous.checks import check_asynchronous
from gxpo.training.best import rules_of
from gxpo.training.callbacks.dispatch import check as check_callbacks
from gxpo.training.cluster import check_cluster
from gxpo.training.config import RunConfig
from gxpo.training.external import Externals, check_externals
from gxpo.training.models import flow, picture_tokens, pipelines, prompt_lengths
from gxpo.training.models.load import check_name, is_masked, is_path
from gxpo.training.phases import check_phases
from gxpo.training.players import check_players
from gxpo.training.setup import device_of, prompt_search_of, sampled_of, sampling_of, unfit_for_masked

LOOKED_AT = 2000  # prompts in which markers of templates are looked for


def check_settings(s: RunSettings, method: Method) -> None:
    """Refuse a device that does not exist, a model of another kind, groups that can teach the method nothing, and
    sampling that the rollout can't work with."""
    # Checks of single settings; what depends on tasks or on the model comes later.
    device = device_of(s.learner.device)
    check_device(device)
    if s.learner.attention == "flex" and device in NO_FLEX_BACKWARD:
        raise ConfigError(f"learner.attention=flex: FlexAttention has no backward pass on {device}; leave it at auto")
    if s.learner.dtype == "float64":
        need_float64(device, "learner.dtype=float64")
    samples_latents = "latents" in RolloutPart.hook(method.rollout, "provides")
    if pipelines.denoises(s.model) != samples_latents:
        rollout = show(method.rollout)
        raise ConfigError(
            f"model {s.model} has no tokens, and rollout {rollout} samples them: use a method that samples latents"
            if pipelines.denoises(s.model)
            else f"rollout {rollout} samples latents, and model {s.model} has none: take flow or diffusers:DIRECTORY"
        )
    check_likelihood(s, method)
    check_guidance(s)
    # Advantages within a group of one are 0, so that nothing would be learned.
    if isinstance(method.rollout, Independent) and method.rollout.group_size == 1 and not learns_from_one(method):
        raise ConfigError(
            f"rollout.group_size=1: {show(method.credit)} compares the rollouts of a group, and one alone is given a "
            "credit of 0: raise it to 2 or more, or take a credit over the batch (credit=batch_whiten)"
        )
    for part in getattr(method.credit, "parts", (method.credit,)):
        if hasattr(part, "check_options"):
            part.check_options()
    choices.check(s.learner.choices)
    check_ratios(method)
    check_rendered(s)
    check_optimiser(s, method)
    check_base(s)
    check_cluster(s, method)
    check_externals(s, method)
    check_players(s, method)
    check_changing_rubric(s, method)
    check_asynchronous(s, method)
    # where a configuration is only looked at, a rollout's functions of the user's stay unloaded
    with suppress(NotRun):
        RolloutPart.hook(method.rollout, "check_sampling")(sampling_of(s))


def check_likelihood(s: RunSettings, method: Method) -> None:
    """Refuse a masked model without an estimator of its likelihood, and an estimator on a causal model."""
    masked_model = is_masked(s.model)
    if masked_model and method.likelihood is None:
        raise ConfigError(
            f"model {s.model} fills in hidden tokens, and {method.name} reads log-probs from left to right: take a "
            "method of masked models (gxpo methods --family masked_models), or set likelihood to one_step, elbo, "
            "coupled or trajectory"
        )
    if method.likelihood is None:
        return
    # a name that only the hub knows is left to loading
    is_known = pipelines.denoises(s.model) or built_in(s.model) or s.model == smollm2.NAME or is_path(s.model)
    if (is_known or picture_tokens.is_own(s.model)) and not masked_model:
        raise ConfigError(
            f"likelihood={show(method.likelihood)} is of masked language models, and model {s.model} is none: leave it "
            "out, or set model=tiny-masked"
        )
    for obstacle in (name for name, is_set in unfit_for_masked(s).items() if is_set):
        raise ConfigError(f"model {s.model} can't have {obstacle}: leave it out")
    Unmasking.of(s.sampling.engine_options, s.sampling.max_new_tokens)


def check_guidance(s: RunSettings) -> None:
    """Refuse guidance where somebody else samples or trains, who would read other logits."""
    if s.sampling.guidance == 1 or pipelines.denoises(s.model):
        return
    unfit = {
        f"sampling.engine={s.sampling.engine}": s.sampling.engine in ("vllm", "openai"),
        f"cluster.backend={s.cluster.backend}": s.cluster.backend != "local",
        "sampling.null_condition": s.sampling.null_condition is not None,  # the tokenizer says which
    }
    for obstacle in (name for name, is_set in unfit.items() if is_set):
        raise ConfigError(
            f"sampling.guidance={s.sampling.guidance:g} of model {s.model} can't have {obstacle}: leave it out"
        )


def check_optimiser(s: RunSettings, method: Method) -> None:
    """Refuse an optimiser that can't train the run's parameters."""
    kind = s.learner.optimiser
    Rule(s.optim.direction, s.optim.threshold, s.optim.caution).check(kind, is_rounded=s.learner.states != "float32")
    if kind == "igt" and getattr(method.update, "sets_parameters", False):
        raise ConfigError(
            f"learner.optimiser=igt has a point behind the parameters, and update {show(method.update)} sets these: "
            "use another of the two"
        )
    unfit = {f"model {s.model}": pipelines.denoises(s.model), "LoRA's factors": s.learner.lora_rank > 0}
    for obstacle in (name for name, is_set in unfit.items() if is_set and kind == "muon"):
        raise ConfigError(f"learner.optimiser=muon moves whole hidden matrices, and not {obstacle}: use another")
    if kind != "adamw" and s.learner.states != "float32":
        raise ConfigError(f"learner.optimiser={kind} holds float32 states: leave out learner.states={s.learner.states}")


def check_base(s: RunSettings) -> None:
    """Refuse 4-bit weights where they would be trained, sharded or sent to another program."""
    if s.learner.base is None:
        return
    unfit = {
        "learner.lora_rank=0, which trains every weight: set learner.lora_rank=16": not s.learner.lora_rank,
        f"learner.dtype={s.learner.dtype}: set bfloat16 or float32": s.learner.dtype == "float64",
        f"model {s.model}, which denoises: leave it out": pipelines.denoises(s.model),
        f"cluster.backend={s.cluster.backend}: set cluster.backend=local": s.cluster.backend != "local",
        f"sampling.engine={s.sampling.engine}, which is sent merged weights: set sampling.engine=torch": (
            s.sampling.engine in ("vllm", "openai")
        ),
    }
    for obstacle in (name for name, is_set in unfit.items() if is_set):
        raise ConfigError(f"learner.base={s.learner.base} can't have {obstacle}")


def check_rendered(s: RunSettings) -> None:
    """Refuse settings that would change prompts that are already rendered."""
    if s.chat.template != RENDERED:
        return
    for setting, is_set in (("chat.system", s.chat.system is not None), ("chat.kwargs", bool(s.chat.kwargs))):
        if is_set:
            raise ConfigError(f"{setting}: prompts of chat.template=rendered are whole conversations: leave it out")


def warn_of_prompts(world: World, template: str, chat: Any = None) -> None:
    """Warn of prompts that hold a rendered template, or of those that should and do not; see `prompt_warnings`."""
    if world.envs is not None:
        return
    tasks = getattr(world.source, "training", None) or world.source.draw(1, 1)
    for line in prompt_warnings(itertools.islice(tasks, LOOKED_AT), chat, template):
        warnings.warn(line, stacklevel=2)


def check_ratios(method: Method) -> None:
    """Refuse importance ratios over rollouts whose sampling probabilities are unknown."""
    if RolloutPart.hook(method.rollout, "has_behaviour"):
        return
    reading = [show(term) for term in method.terms.values() if reads_ratio(term)]
    reading += [f"weight {name}" for name, part in method.weights.items() if WeightPart.hook(part, "corrects_mismatch")]
    if reading:
        raise ConfigError(
            f"{method.name}: {reading[0]} reads importance ratios, and rollout {show(method.rollout)} has no log-probs "
            "of who sampled: take an objective without (preference_pairs, positive_likelihood), records with them, "
            "or objective.on_unknown_behaviour=one"
        )


def reads_ratio(term: Any) -> bool:
    """Return True if a term divides by the probability of a token when sampled, and can't do without it."""
    surrogate = getattr(term, "surrogate", None)
    has_ratio = getattr(term, "ratio_over", None) in ("proximal", "behaviour")
    return (
        has_ratio
        and getattr(term, "on_unknown_behaviour", "") == "error"
        and getattr(term, "ratio_weighted", True)
        and not getattr(surrogate, "on_policy", False)
    )


def check_changing_rubric(s: RunSettings, method: Method) -> None:
    """Refuse a judge whose rubric changes where rewards of several steps are compared."""
    if not s.scoring.options.get("judge", {}).get("refresh"):
        return
    remembering = {"rollout": method.rollout, "credit": method.credit}
    for stage, part in remembering.items():
        # A memory mixes rewards of several steps.
        if hasattr(part, "state_dict") and bool(getattr(part, "remembers", True)):
            raise ConfigError(
                f"scoring.options.judge.refresh: {stage} {show(part)} keeps rollouts or rewards of earlier steps, and "
                "those of two rubrics are not comparable: leave refresh out, or take a part without a memory"
            )
    if s.async_.max_staleness:
        raise ConfigError(
            "scoring.options.judge.refresh: rollouts sampled ahead are of an older rubric: set async.max_staleness=0"
        )


def check_model(s: RunSettings) -> None:
    """Refuse a model that does not exist; nothing of it is loaded."""
    if pipelines.is_pipeline(s.model):
        pipelines.check(s.model)
    elif flow.is_flow(s.model):
        flow.steps_of(s.model)
    else:
        check_name(s.model, s.task)


def check_device(name: str) -> None:
    """`ModelError` unless tensors can be put there."""
    try:
        if torch.device(name).type == "meta":
            raise RuntimeError("it holds no numbers")
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {name!r} can't be used: {one_line(str(error))}") from error


def learns_from_one(method: Method) -> bool:
    """Return True if groups of one rollout, some right and some wrong, get any credit.

    Tried on made-up rollouts; also True where these can't tell, because a part reads more than outcomes or is not
    gxpo's own.
    """
    parts = [*method.terms.values(), *getattr(method.credit, "parts", [method.credit])]
    are_built_in = all(type(part).__module__.startswith("gxpo.") for part in parts)
    if not are_built_in or not method.reads_credit or any(map(learns_from_equal_groups, parts)):
        return True
    if method.kl_reward is not None or any(getattr(method.credit, name, ()) for name in ("needs", "requires")):
        return True
    forest = Forest.from_completions([[1], [2], [3], [4]], [[[5, 6]]] * 4, rewards=[[0.0], [1.0], [0.0], [1.0]])
    # A horizon and lengths as a run fills them in, for parts that scale by them.
    concrete = method.fill(horizon=2.0, max_length=2, total_steps=1)
    try:
        shaped_forest = concrete.shaped(forest.with_rewards(forest.outcome, success=forest.outcome))
        return bool(concrete.advantages(shaped_forest).any())
    except GxpoError:  # it reads what these rollouts lack
        return True


def check_world(method: Method, world: World, task: str, held_out: int = 0, template: str = "auto") -> None:
    """Refuse a method whose requirements neither rollout nor task provides.

    held_out   number of tasks that evaluations sample
    template   of the chat
    """
    # Who provides what the method requires: rollout, segmenter, task source, environments.
    parts = [method.rollout, world.source, world.envs]
    provides = {x for part in (*parts, method.segmenter) for x in getattr(part, "provides", ())}
    advice = "choose a task that does"
    if world.envs is not None:
        provides.add("restarts")  # environments are deterministic: where there are no snapshots, actions are replayed
        if "agents" in provides and "agents" not in RolloutPart.hook(method.rollout, "requires"):
            raise ConfigError(
                f"{task} is a world of several agents, and rollout {show(method.rollout)} plays one: set rollout=seats"
            )
        if "states" not in world.envs.provides:  # what rollouts say of states is true where a prompt is the state
            provides.discard("states")
            advice = "give TimeStep.state, or tell states by what is read in them (credit.state=observation)"
        if RolloutPart.hook(method.rollout, "single_turn") or getattr(method.rollout, "team", ""):
            raise ConfigError(
                f"rollout {show(method.rollout)} is for tasks with one answer, and those of {task} are episodes: set "
                "rollout=independent"
            )
    for need in method.requires:
        if need not in provides:
            raise ConfigError(
                f"{method.name} requires {need}, which neither the rollout nor task {task!r} provides: {advice}"
            )
    if world.envs is not None and template == RENDERED:
        raise ConfigError(
            f"chat.template=rendered is for tasks whose prompts are texts, and those of {task} are episodes"
        )
    # Rollouts may need something of each task, such as a reference answer: better known now than at its step.
    if (check_held_out := getattr(method.rollout, "check_held_out", None)) is not None:
        check_held_out(world.source.held_out(held_out))
    check_task = getattr(method.rollout, "check_task", None)
    if check_task is not None:
        knows = "expert's way" if world.envs is not None and "expert" in world.envs.provides else None
        for task_to_check in getattr(world.source, "training", None) or world.source.draw(1, 1):
            check_task(task_to_check, lambda t: solution_of(world.source, t) or knows)


def check_lengths(s: RunSettings, method: Method, world: World) -> None:
    """Refuse or announce tasks whose prompts are too long (`tasks.too_long`), where the tokenizer is here."""
    if world.envs is not None or pipelines.denoises(s.model) or not RolloutPart.hook(method.rollout, "samples_prompts"):
        return
    check_model(s)
    if (lengths := prompt_lengths.lengths_of_model(s)) is not None:
        for line in prompt_lengths.fit(world.source, lengths, s.eval.tasks, s.task)[1]:
            warnings.warn(line, stacklevel=2)


def rehearse(resolved: RunConfig) -> None:
    """Run all checks of a run that is only shown (`--dry-run`)."""
    check_phases(resolved)
    rules_of(resolved.settings.trainer)
    check_callbacks(resolved.settings.trainer.callbacks, resolved.settings.logging.options)
    for one in resolved.phases or (resolved,):
        _rehearse(one)


def _rehearse(resolved: RunConfig) -> None:
    """Run the checks of one phase, or of a run without phases."""
    s, method = resolved.settings, resolved.method
    check_settings(s, method)
    # A world that would run users' code is left out: a rehearsal runs nothing that is not trusted yet.
    mcp = servers_of(s.env.mcp, s.env.mcp_timeout, s.env.mcp_chars)
    world = worlds.make_if_safe(s.task, seed=s.seed, options=s.tasks.options, per_step=s.tasks.per_step, mcp=mcp)
    try:
        if world is not None:
            check_world(method, world, s.task, s.eval.tasks, s.chat.template)
            check_lengths(s, method, world)
            warn_of_prompts(world, s.chat.template)
            if method.sampler is not None:
                sampled_of(s, method.sampler, world)
            prompt_search_of(s, world.source, world)
        check_model(s)
        components = RolloutPart.hook(method.rollout, "components")
        # Judges are built without loading anything, so that their names can be checked.
        options = Externals(s, device_of(s.learner.device)).options()
        check_named(s.rewards, None if world is None else world.source, options, components)
    finally:
        if world is not None:
            world.close()


def check_named(
    spec: Spec,
    source: TaskSource | None,
    options: Mapping[str, Mapping[str, Any]],
    rollout_components: Sequence[str] = (),
) -> None:
    """Check a reward by its name before a run, without running user code.

    source  None where the tasks are not known: then only files are looked at

    ConfigError where a file does not define the name or, for rewards without files, where they can't score the tasks.
    """
    names = list(spec) if isinstance(spec, (Mapping, list, tuple)) else [spec]
    files = [name for name in names if isinstance(name, str) and functions.names_file(name)]
    for name in files:
        functions.source_of(name)
        path, function = split(name)
        try:
            check_defined(f"{Path(path).expanduser()}:{function}")
        except Unusable as error:
            raise ConfigError(f"reward {name!r}: {error}") from error
    # Rewards of files are built only in the run: that would execute them.
    if source is not None and not files and not callable(spec):
        RewardSet.make(spec, source=source, options=options, rollout_components=rollout_components).close()
