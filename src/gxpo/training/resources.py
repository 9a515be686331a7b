"""Loading of a run's tasks, rewards, policy and engine; anew for each phase. Also settings measured once (`auto`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gxpo.algorithms.signals import SignalTools
from gxpo.base import runtime
from gxpo.base.runtime import give_back
from gxpo.environments.envs.checked import check_step, from_fields
from gxpo.environments.rewards import RewardSet
from gxpo.environments.tasks.epochs import FIRST_STEP, count_from
from gxpo.environments.tasks.prompt_search import PromptSearch
from gxpo.environments.tasks.sampled import SampledTasks
from gxpo.learning.measure import tokens_per_microbatch
from gxpo.learning.remote import RemoteLearner
from gxpo.learning.torch import TorchLearner
from gxpo.methods.method import Method
from gxpo.models.chat.plain import decoder, raw_decoder
from gxpo.models.decoder.choices import KEYS, Sizes
from gxpo.models.decoder.vision import picture_grid_of
from gxpo.parts.definition import SettingValue
from gxpo.parts.protocols import EnvFailure, Envs, Message, Reply, TaskSource, TimeStep
from gxpo.parts.settings import RunSettings
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.rollouts.build import RolloutPart
from gxpo.sampling.rollouts.logged import OF_PHASES
from gxpo.training import checkpoint, kernel_store, preflight, setup
from gxpo.training.config import RunConfig
from gxpo.training.external import Externals
from gxpo.training.phases import PhaseTracker, collect, folder_of
from gxpo.training.players import players_of
from gxpo.training.setup import Notify, Policy
from gxpo.training.start import load_learner, parameters_of, start_from

# ---------------------------------------------------------------- measured
# Settings that are `auto` become what is fastest here: measured once, equal in all processes, fixed in config.yaml.
OBSERVATION = 256  # tokens taken as the length of a prompt where tasks are instances of an environment
MICROBATCH, CHOICES = "learner.tokens_per_microbatch", "learner.choices"


def measure_auto(resolved: RunConfig, policy: Policy, source: TaskSource, notify: Notify) -> RunConfig:
    """Replace `auto` in the settings by measured numbers, choose kernels, and set learner and engine accordingly.

    `auto` stays where there is nothing to choose, such as the dtype of a float32 model's products.
    """
    s, group = resolved.settings, getattr(resolved.method.rollout, "group_size", 1)
    # A few held-out tasks stand for all; episodes have no prompt that could be measured.
    longest = max((_length(task.prompt, policy.tokenizer) for task in source.held_out(8)), default=0) or OBSERVATION
    # A process samples its share alone.
    samples = max(1, s.tasks.per_step * group // runtime.world())
    sizes = Sizes(longest, s.sampling.max_new_tokens, group, samples)
    return _with_microbatch(_with_choices(resolved, policy, sizes, notify), policy, sizes, notify)


def chosen_of(s: RunSettings) -> dict[str, str]:
    """Choices between kernels that stand in the settings."""
    products = {"products": s.learner.products, "sampling products": s.sampling.products or s.learner.products}
    return dict(s.learner.choices) | {purpose: name for purpose, name in products.items() if name != "auto"}


def _with_choices(resolved: RunConfig, policy: Policy, sizes: Sizes, notify: Notify) -> RunConfig:
    """Measure the kernels that the settings leave open, all purposes of `models.decoder.choices`."""
    s, parts = resolved.settings, [policy.learner, policy.engine]
    in_process = [part for part in parts if isinstance(part, (TorchLearner, TorchEngine))]
    if not in_process:
        return resolved

    def measure() -> kernel_store.Lines:
        trials = [pair for part in in_process for pair in part.trials(sizes, chosen_of(s))]
        return {purpose: [trial.choice, str(trial)] for purpose, trial in trials}

    # Equal runs on one machine choose alike, and so have equal bits; of several processes the first one's choice holds.
    model, device = in_process[0].model, next(in_process[0].model.parameters())
    case = kernel_store.case_of(
        model.config, device.dtype, sizes, device=device.device.type, chosen=chosen_of(s), products=s.learner.products,
        parts=[type(part).__name__ for part in in_process], passes=s.learner.kernels, lora=bool(s.learner.lora_rank),
        rows=[s.learner.tokens_per_microbatch, s.sampling.batch_rows],
    )  # fmt: skip
    own_lines, path = kernel_store.recall(case, measure) if runtime.rank() == 0 else ({}, None)
    lines = json.loads(runtime.gather(json.dumps(own_lines).encode())[0])
    if not lines:
        return resolved
    choices = {purpose: name for purpose, (name, _) in lines.items()}
    for part in parts:
        if isinstance(part, (TorchLearner, TorchEngine)):
            part.use(choices)
    text = ", ".join(f"{p}: {x}" for p, (_, x) in lines.items())
    notify(f"kernels, measured once{f' ({path})' if path else ''} and fixed in config.yaml: {text}")
    # Products have keys of their own.
    values: dict[str, Any] = {key: choices.pop(purpose) for purpose, key in KEYS.items() if purpose in choices}
    return _with_values(resolved, values | ({CHOICES: s.learner.choices | choices} if choices else {}))


def _with_microbatch(resolved: RunConfig, policy: Policy, sizes: Sizes, notify: Notify) -> RunConfig:
    """Measure how many tokens go through the model together in an update."""
    s = resolved.settings
    if s.learner.tokens_per_microbatch != "auto":
        return resolved
    notify("measuring learner.tokens_per_microbatch (once; the number is then in config.yaml)")
    size = tokens_per_microbatch(policy.learner, sizes.prompt, sizes.action, sizes.group)
    # Measured by the clock: the first process's number holds for all.
    size = int(runtime.gather(str(size).encode())[0])
    policy.learner.tokens_per_microbatch = size
    return _with_values(resolved, {MICROBATCH: size})


def _with_values(resolved: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Set these settings, in each phase too, with an origin that says that they were measured."""
    s: RunSettings = resolved.settings
    for key, value in values.items():
        section, _, name = key.partition(".")
        s = s.model_copy(update={section: getattr(s, section).model_copy(update={name: value})})
    keys = {k: SettingValue(v, f"measured ({resolved.keys[k].origin})") for k, v in values.items()}
    phases = tuple(_with_values(one, values) for one in resolved.phases)
    return replace(resolved, settings=s, keys=resolved.keys | keys, phases=phases)


def _length(prompt: str | tuple[int, ...] | tuple[Message, ...], tokenizer: Any) -> int:
    """Count the tokens of a prompt, without those that a chat template adds."""
    if isinstance(prompt, str):
        return len(tokenizer.encode(prompt)) if prompt else 0
    return sum(1 if isinstance(x, int) else len(tokenizer.encode(str(x.get("content") or ""))) for x in prompt)


# ---------------------------------------------------------------- shared envs
# Environments under several processes: the first one acts, all see the results.
Steps = dict[str, "TimeStep | EnvFailure"]


class SharedEnvs:
    """Environments of the first process, shared by all processes, which play the same episodes in step."""

    def __init__(self, envs: Envs) -> None:
        self.envs = envs
        self.name, self.instructions, self.max_turns = envs.name, envs.instructions, envs.max_turns
        self.tools, self.provides = envs.tools, envs.provides
        self.of_tasks = getattr(envs, "of_tasks", False)

    def reset(self, seeds: Mapping[str, int]) -> Steps:
        return self._in_first_process(lambda: self.envs.reset(seeds))

    def step(self, actions: Mapping[str, Reply]) -> Steps:
        return self._in_first_process(lambda: self.envs.step(actions))

    def finish(self, names: Sequence[str]) -> None:
        if runtime.rank() == 0:
            self.envs.finish(names)

    def snapshot(self, names: Sequence[str]) -> dict[str, str | EnvFailure]:
        return self._in_first_process(lambda: self.envs.snapshot(names))

    def restore(self, snapshots: Mapping[str, str]) -> dict[str, EnvFailure | None]:
        return self._in_first_process(lambda: self.envs.restore(snapshots))

    def expert(self, names: Sequence[str]) -> dict[str, str | EnvFailure | None]:
        return self._in_first_process(lambda: self.envs.expert(names))

    def legal(self, names: Sequence[str]) -> dict[str, list[str] | EnvFailure]:
        return self._in_first_process(lambda: self.envs.legal(names))

    def _in_first_process(self, act: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        if runtime.rank() == 0:
            answers = {name: _pack(answer) for name, answer in act().items()}
        answer_by_name = json.loads(runtime.gather(json.dumps(answers).encode())[0])
        return {name: _unpack(*answer) for name, answer in answer_by_name.items()}


def _pack(answer: Any) -> tuple[str, Any]:
    if isinstance(answer, TimeStep):
        return "TimeStep", check_step(answer)
    if isinstance(answer, EnvFailure):
        return "EnvFailure", asdict(answer)
    return "plain", answer


def _unpack(kind: str, value: Any) -> Any:
    if kind == "plain":
        return value
    return EnvFailure(**value) if kind == "EnvFailure" else from_fields(value)


# ---------------------------------------------------------------- resources
class Resources:
    """Tasks, rewards, policy, engine and method of a run, or of its current phase."""

    settings: RunSettings
    method: Method
    envs: Envs | None
    sampled_tasks: SampledTasks | None
    prompt_search: PromptSearch | None

    def __init__(self, resolved: RunConfig, reward: Any, source: Any, notify: Callable[[str], None]) -> None:
        self.resolved, self._objects_given, self._notify = resolved, (reward, source), notify
        self.tracker = PhaseTracker(resolved) if resolved.phases else None
        self._exit_stack = ExitStack()
        self.directory = Path()  # of the run whose checkpoint it begins with
        self._refuses_long_prompts = True  # prompts; not where a run goes on whose config.yaml does not say so
        self.first_step = FIRST_STEP  # of the first epoch of its tasks; a resumed run's is its checkpoint's

    def close(self) -> None:
        """End the processes of rewards, environments and sampling."""
        self._exit_stack.close()

    @property
    def current(self) -> RunConfig:
        """The configuration of the run, or of its current phase."""
        return self.resolved if self.tracker is None else self.resolved.phases[self.tracker.number]

    def set_up(
        self,
        start: str | Path | None,
        *,
        measure: bool,
        keep: bool = False,
        reference: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Load everything that steps need; `close` ends it.

        start      a run or checkpoint whose parameters it begins with; `keep`: and whose optimiser's state
        measure    whether what `auto` means has to be found out
        reference  parameters of its reference policy where that is `previous`; None: those that it begins with
        """
        current = self.current
        s, method = current.settings, self._with_rollout_folder(current.method)
        # From cheap to dear: what the settings alone contradict, then the tasks, then rewards, and the model last.
        preflight.check_settings(s, method)
        self.sampling = setup.sampling_of(s)
        reward, source = self._objects(current)
        self.world = setup.world_of(s, source)
        with ExitStack() as exit_stack:
            exit_stack.callback(self.world.close)
            preflight.check_world(method, self.world, s.task, s.eval.tasks, s.chat.template)
            self._set_source(s, method)
            preflight.check_model(s)
            external = Externals(s, setup.device_of(s.learner.device), self._notify)
            self.rewards = RewardSet.make(
                reward if reward is not None else s.rewards,
                source=self.world.source,
                timeout=s.scoring.timeout,
                workers=s.scoring.workers,
                options=external.options(),
                rollout_components=RolloutPart.hook(method.rollout, "components"),
            )
            exit_stack.callback(self.rewards.close)
            # The policy, and the parameters that it begins with: its own, another run's, or the phase before's.
            policy = setup.policy_of(current, self._notify)
            exit_stack.callback(getattr(policy.engine, "close", lambda: None))
            setup.record_likeliest(policy.engine, method)
            if keep:
                load_learner(policy.learner, Path(str(start)))
            elif start is not None:
                start_from(policy.learner, start)
            previous = current.phase is not None and current.phase.reference == "previous"
            if previous and not isinstance(policy.learner, RemoteLearner):
                policy.learner.refer(policy.learner.snapshot() if reference is None else reference)
            self.tokenizer, self.learner, self.engine = policy.tokenizer, policy.learner, policy.engine
            self.chat, self.device = policy.chat, policy.device
            vocabulary = getattr(policy.learner, "vocabulary", 0)
            self.players = players_of(s, method, self.tokenizer, vocabulary, self.device, self._notify)
            self.rewards.read_with(raw_decoder(self.tokenizer))
            # Only with tokenizer and chat format can prompts be looked at, and long ones be refused or left out.
            if runtime.rank() == 0:
                preflight.warn_of_prompts(self.world, s.chat.template, self.chat)
            self.episode = setup.episode_of(s, self.world, policy)
            # The prompt of an episode is its first observation, which nobody knows before.
            if self.world.envs is None:
                self._fit_prompts(s, method, policy)
            if measure:
                self.resolved = measure_auto(self.resolved, policy, self.source, self._notify)
            # From here on `close` ends them; until here a failure does.
            self._exit_stack = exit_stack.pop_all()
        # Settings and method come after the measurements, which may have replaced `auto` in them.
        self.settings = s = self.current.settings
        envs = self.world.envs
        self.envs = envs if envs is None or runtime.world() == 1 else SharedEnvs(envs)
        longest = s.sampling.max_new_tokens * max(self.episode.max_turns, getattr(method.rollout, "max_turns", 1))
        self.method = method.fill(horizon=float(longest), max_length=longest, total_steps=current.steps)
        # What signal parts are lent in every step; a step adds what is its own, `bind` the frozen models.
        self.signal_tools = SignalTools(
            self.learner,
            decoder(self.tokenizer, self.chat),
            self.tokenizer.pad_token_id,
            seed=s.seed,
            picture_grid=picture_grid_of(getattr(self.learner, "model", None)),
        )
        lent = replace(self.signal_tools, external=lambda name: external.teacher(name, self.learner, self.tokenizer))
        for part in self.method.signals.values():
            part.bind(lent)

    def _set_source(self, s: RunSettings, method: Method) -> None:
        """Put the world's tasks under the method's sampler and the search over `tasks.prompts`, where there are any."""
        self.sampled_tasks = None if method.sampler is None else setup.sampled_of(s, method.sampler, self.world)
        source = self.world.source if self.sampled_tasks is None else self.sampled_tasks
        self.prompt_search = setup.prompt_search_of(s, source, self.world)
        self.source = source if self.prompt_search is None else self.prompt_search
        count_from(self.source, self.first_step)

    def _fit_prompts(self, s: RunSettings, method: Method, policy: setup.Policy) -> None:
        """Refuse or leave out tasks whose prompts are too long (`tasks.too_long`), before the first step."""
        whole_source = self.source
        self.source, lines = setup.fit_source(s, method, whole_source, policy, refuses=self._refuses_long_prompts)
        for line in lines:
            self._notify(line)
        if lines and self.sampled_tasks is not None and self.source is whole_source:  # its tasks are others now
            self._set_source(s, method)

    @property
    def choices(self) -> dict[str, str]:
        """Kernels by purpose (`models.decoder.choices`)."""
        return chosen_of(self.settings)

    @property
    def exhausted(self) -> str | None:
        """Reason why no further step has a task, if the sampler has dropped all of them; else None."""
        return None if self.sampled_tasks is None else self.sampled_tasks.exhausted

    def keep_order(self, state: Mapping[str, Any]) -> None:
        """Draw tasks in the order of the run of this checkpoint's state; one without `first_step` counted from 0."""
        self.first_step = int(state.get("first_step", 0))
        count_from(self.source, self.first_step)

    def _with_rollout_folder(self, method: Method) -> Method:
        """Point a rollout that reads earlier phases to the folder of their files."""
        if self.tracker is None or getattr(method.rollout, "file", None) not in OF_PHASES:
            return method
        folder = folder_of(self.directory, self.tracker.number)
        return replace(method, rollout=replace(method.rollout, file=str(folder)))

    def _objects(self, resolved: RunConfig) -> tuple[Any, Any]:
        """Reward and task source given as Python objects; None where the phase states its own."""
        phase_keys = () if resolved.phase is None else resolved.phase.keys
        reward, source = self._objects_given
        return (
            None if "reward" in phase_keys or "scoring.weights" in phase_keys else reward,
            None if "task" in phase_keys else source,
        )

    def set_up_as(self, run: Path) -> None:
        """Load everything for the phase of a run's newest checkpoint, so that this can be loaded."""
        reference, self.directory = None, run
        self._refuses_long_prompts = self.resolved.keys["tasks.too_long"].origin != "default"
        if self.tracker is not None:
            path = Path(runtime.first(str(checkpoint.latest(run)) if runtime.rank() == 0 else ""))
            self.tracker.load_state_dict(checkpoint.state_of(path)["phases"])
            if self.tracker.phase.reference == "previous":
                reference = parameters_of(run, self.tracker.start_step)
        self.set_up(None, measure=False, reference=reference)

    def next_phase(self, tracker: PhaseTracker, step: int, budget_share: float, path: Path) -> None:
        """Begin the next phase from the checkpoint of the last step of this one.

        budget_share  share of the run's budget
        """
        before, updates = self.current, self.learner.optimiser.steps
        source, rewards, counts = self.source.state_dict(), self.rewards.state_dict(), dict(self.rewards.counts)
        self.directory = path.parents[1]
        if (
            runtime.rank() == 0
            and getattr(self.resolved.phases[tracker.number + 1].method.rollout, "file", "") in OF_PHASES
        ):
            collect(self.directory, self.resolved.phases, tracker.begins, step)
        runtime.first("")  # the files are there for all processes
        # Two policies would not fit into memory: the old one goes before the new one is loaded.
        self._exit_stack.close()
        del self.learner, self.engine, self.method, self.signal_tools
        give_back()
        tracker.enter(step, budget_share, updates)
        start = self.settings.init_from if tracker.phase.weights == "reset" else path
        self.set_up(start, measure=False, keep=tracker.phase.optimiser == "keep")
        self.rewards.counts.update(counts)
        # Counts are the run's; a memory is of use only to the same rewards or tasks.
        if _reward_settings(before) == _reward_settings(self.current):
            self.rewards.load_state_dict(rewards)
        if _task_settings(before) == _task_settings(self.current):
            self.source.load_state_dict(source)


def _task_settings(one: RunConfig) -> tuple[Any, ...]:
    """Settings that decide which tasks are drawn; where they are equal, the next phase goes on with the source."""
    s = one.settings
    return s.task, s.tasks, s.env, one.method.sampler


def _reward_settings(one: RunConfig) -> tuple[Any, ...]:
    s = one.settings
    return s.reward, s.scoring, s.task
