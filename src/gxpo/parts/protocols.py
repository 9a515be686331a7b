"""Protocols of the stages (task source, rollout, reward, advantage, weight, objective, learner): inputs and outputs.

Suffixes name axes: `_R` trajectories, `_S` steps, `_P` action tokens, `_T` stored tokens, `_N` nodes.
All inputs of advantages and weights are detached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from gxpo.parts.learning import (
    Credit as Credit,
)
from gxpo.parts.learning import (
    Learner as Learner,
)
from gxpo.parts.learning import (
    LossFunction as LossFunction,
)
from gxpo.parts.learning import (
    Output as Output,
)
from gxpo.parts.learning import (
    PolicyTokens as PolicyTokens,
)
from gxpo.parts.learning import (
    Signals as Signals,
)
from gxpo.parts.learning import (
    StepInfo as StepInfo,
)
from gxpo.parts.learning import (
    StepRunner as StepRunner,
)
from gxpo.parts.learning import (
    Term as Term,
)
from gxpo.parts.learning import (
    TokenRow as TokenRow,
)
from gxpo.parts.learning import (
    TrainEngine as TrainEngine,
)
from gxpo.parts.learning import (
    Update as Update,
)
from gxpo.parts.learning import (
    Weight as Weight,
)
from gxpo.parts.learning import (
    WritesFiles as WritesFiles,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from gxpo.forest.forest import Forest
    from gxpo.forest.token_bias import TokenBias


Message = Mapping[str, Any]  # {"role": ..., "content": ...} and what else chat templates know


# ---------------------------------------------------------------- tasks
SAME_AS = "same_as"  # in the info of tasks that are one task in several wordings: what they have in common


@dataclass(frozen=True)
class Task:
    """Task: the prompt, and the data needed to score answers to it.

    prompt  a text, messages of a chat, or token ids; of an environment: a name for its instance
    """

    id: str  # the same string in every step; groups of different steps share it
    prompt: str | tuple[int, ...] | tuple[Message, ...]
    answer: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)


class TaskSource(Protocol):
    """A source of tasks. `draw` depends on (`n`, `step`, the source's own state) and on nothing else."""

    def draw(self, n: int, step: int) -> list[Task]: ...
    def observe(self, forest: Forest) -> None:
        """See the rollouts that a step has trained, after its update, as advantages read them: `forest.outcome` has
        the method's own rewards in it (`reward.shape`, `reward.add`), `forest.task_outcome` is what the task's rewards
        gave (of steps: `step_reward`, `task_step_reward`), and `success` is the verdict, which nothing shapes. Parts
        of a method that have an `observe`, rollouts and task samplers among them, are shown the same."""
        ...

    def held_out(self, n: int) -> list[Task]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


# ---------------------------------------------------------------- sampling
@dataclass(frozen=True)
class Sampling:
    """Sampling settings. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()

    @property
    def truncated_support(self) -> bool:
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1.0)


@dataclass(frozen=True)
class SoftSampling(Sampling):
    """Soft-thinking sampling: steps are mixtures of tokens until `end_text`; see `gxpo.sampling.engines.torch`.

    soft_top_k, soft_top_p  support of a soft step; `top_k` and `top_p` are of the tokens after it
    """

    soft_top_k: int = 5
    soft_top_p: float = 0.95
    mixing_temperature: float = 0.1
    end_text: str = "</think>"


@dataclass(frozen=True)
class DenoisingSampling(Sampling):
    """Sampling of denoising models: `temperature` is the level of the noise; see `gxpo.models.denoising`.

    noise     "auto" (the model's own) | "flow_sde" | "dance" | "ddim_eta" | "ddpm"
    window    steps with noise, from step `begin` modulo the places that a window can have; the others are the ODE's;
              0: all
    end       factor of the level at the clean end, to which it falls by a cosine from 1 at the noisy end
    ahead     one step of the ODE from where the prompt is to the end of the schedule (a look-ahead)
    renoised  None, or the step of the schedule to whose time the prompt's last latent, a sample, is noised again
    """

    noise: str = "auto"
    window: int = 0
    begin: int = 0
    end: float = 1.0
    ahead: bool = False
    renoised: int | None = None


@dataclass(frozen=True)
class StreamKey:
    """Key of a stream of random numbers: equal keys give equal numbers, whatever else is in the batch."""

    seed: int
    step: int
    task: str
    attempt: int
    path: tuple[int, ...] = ()
    turn: int = 0


@dataclass(frozen=True)
class TokenOptions:
    """Options of one request that change its tokens' distribution beyond the run's `Sampling`, as vLLM names them.

    In vLLM's order: grammar, forbidden end ids and `logit_bias`, penalties, temperature, `min_p`, top-k, top-p.

    logit_bias           (id, number added to its logit)
    presence_penalty     subtracted from the logit of each id that the reply has already
    frequency_penalty    the same times its count in the reply
    repetition_penalty   a positive logit of an id of prompt or reply is divided by it, a negative one multiplied
    min_p                ids below this share of the likeliest id's probability are left out
    min_tokens           tokens before which no end id is sampled
    ignore_eos           no end id is sampled at all
    grammar              (kind, source) that the reply's text follows; kinds: `gxpo.sampling.engines.grammar`
    top_logprobs         number of likeliest ids that the completion lists for each token; changes no distribution
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    min_tokens: int = 0
    ignore_eos: bool = False
    grammar: tuple[str, str] | None = None
    top_logprobs: int = 0

    @property
    def penalises(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)


@dataclass(frozen=True)
class Request:
    """A sampling request: one context, and a random stream for each sample."""

    prompt: tuple[int, ...]
    streams: tuple[StreamKey, ...]
    keep: tuple[str, ...] = ()  # a name for each sample: what the engine may keep for a later, longer prompt of it
    policy: str = "main"  # which of the policies samples
    extras: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False)  # payload of the prompt's tokens
    options: TokenOptions | None = None  # None: the run's settings alone


# Extras of a completion whose engine records the distribution that each token was drawn from: its K likeliest ids
# [tokens, K], padded with -1, and [tokens, K + 1] their log-probs and that of all other ids together (-inf: none)
LIKELIEST = ("sampler_ids", "sampler_logprob")
BROKEN = "broken"  # `finish` of a sample whose grammar the engine could not follow to its end
MISREAD = "misread"  # `finish` of what was sampled under another prompt than its request: no rollout with it is scored
# Arrays of a completion with a row for each token
PER_TOKEN = ("support", "bias", "penalty", "top_ids", "top_logprobs")


@dataclass
class Completion:
    """A sampled completion. `logprobs` are of the processed distribution (temperature, support), natural log."""

    tokens: list[int]
    logprobs: list[float]
    finish: str  # "stop" | "length" | "interrupted" (see `TorchEngine.should_interrupt`) | MISREAD
    support: np.ndarray | None = None  # [len(tokens), K] int64 allowed ids, padded with -1; None = the whole vocabulary
    policy_version: int = 0  # of the first token
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)  # payload, leading dimension len(tokens)
    versions: tuple[tuple[int, int], ...] = ()  # (token, policy version from there on) where it changes within
    picture: str | None = None  # reference of the picture that it made
    bias: np.ndarray | None = None  # [len(tokens)] int64 hash of the bias of each token's logits, -1 none
    biases: Mapping[int, TokenBias] = field(default_factory=dict)  # those that `bias` names
    penalty: np.ndarray | None = None  # [len(tokens), 4] `gxpo.forest.token_bias.PENALTIES`
    top_ids: np.ndarray | None = None  # [len(tokens), K] int64 likeliest ids in order, padded with -1
    top_logprobs: np.ndarray | None = None  # [len(tokens), K] their log-probs

    def truncate(self, room: int) -> Completion:
        """The first `room` tokens of a completion that had more room."""
        if len(self.tokens) <= room:
            return self
        return replace(
            self,
            tokens=self.tokens[:room],
            logprobs=self.logprobs[:room],
            **{name: x[:room] for name in PER_TOKEN if (x := getattr(self, name)) is not None},
            extras={name: x[:room] for name, x in self.extras.items()},
            # a completion that could not be read back stays marked as such, whatever its length
            finish=MISREAD if self.finish == MISREAD else "length",
            versions=tuple((token, version) for token, version in self.versions if token < room),
        )


class Engine(Protocol):
    """An inference engine: samples completions. One that takes `Request.options` says `takes_options = True`,
    and its `check_options(options, sampling)` raises ModelError for those that it can't sample under."""

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]: ...
    def release(self, names: Sequence[str] | None = None) -> None:
        """Drop the caches kept under these names (None: all)."""
        ...


# ---------------------------------------------------------------- conversations
@dataclass(frozen=True)
class ToolCall:
    """A tool call as the policy wrote it; `error` says why it can't be carried out."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Reply:
    """A parsed action: `content` is without reasoning, calls and special tokens."""

    content: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class ContextUpdate:
    """Context tokens before the next action: ids to append, or, if `rebuilt`, the whole new context."""

    ids: tuple[int, ...]
    rebuilt: bool = False


class Conversation(Protocol):
    """Context of one trajectory, token-in token-out: the policy's own tokens are never tokenised again."""

    context: tuple[int, ...]  # what the next action is sampled under
    messages: list[Message]

    def act(self, tokens: Sequence[int]) -> Reply:
        """Append the sampled action to the context, and return its parsed form."""
        ...

    def observe(self, messages: Sequence[Message]) -> ContextUpdate:
        """Append messages that the policy did not write; `context` then ends where its next action begins."""
        ...

    def copy(self) -> Conversation: ...


class Chat(Protocol):
    """A conversation format: a model's chat template, or plain text."""

    stop_ids: tuple[int, ...]  # tokens that end an action

    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Conversation: ...


# ---------------------------------------------------------------- environments
@dataclass(frozen=True)
class TimeStep:
    """Result of `reset` and of each action in an environment.

    observation   the policy's next input: a text, or messages of a chat (tools answer with role "tool"), whose
                  content may be a list of {"type": "image", "image": pixels [H, W, 3] uint8} and {"type": "text", ...}
    state         id of the state that the next action is taken in: equal states of a task have equal ids
    reward        of the action just taken (None: it pays nothing by the step)
    done          the episode is over
    success       the verdict, once it is over
    action_error  "malformed" (no action could be read) or "illegal" (it is not possible here); the observation says so
    truncated     over by a limit of the environment, not by itself
    """

    observation: str | tuple[Message, ...]
    state: str | None = None
    reward: float | None = None
    done: bool = False
    success: bool | None = None
    action_error: str | None = None
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class Env(Protocol):
    """A text environment: one episode at a time. Deterministic given seed and actions.

    instructions  text before the first observation
    max_turns     actions an episode may have
    tools         schemas (OpenAI's function format) of tools: with them the policy's calls go to `call`, not `step`

    Optional: `call(content, calls)`; `content(seed)`, a text that is equal for equal instances (it decides which are
    held out); `answer(seed)`, the right answer where there is one; `level(seed)`, a whole number, how hard the instance
    is; `snapshot()` and `restore(text)`; `expert()`, the action of an expert; `legal()`, all actions that are possible
    now; `close()`.
    """

    instructions: str
    max_turns: int

    def reset(self, seed: int) -> TimeStep: ...
    def step(self, action: str) -> TimeStep: ...


@dataclass(frozen=True)
class EnvFailure:
    """A failed environment: `kind` is "raised", "nonsense" (it returned no TimeStep), "timeout" or "died"."""

    kind: str
    message: str


class Envs(Protocol):
    """Batched episodes of one environment, by name. A failure costs only the episode in which it happens.

    One whose episodes act at the same time says `concurrent = True` and has `submit(actions)`, which begins steps, and
    `collect()`, which waits for at least one of them and gives those that are there. One that plays listed tasks says
    `of_tasks = True`: `reset` takes the tasks, and the run's reward scores the last action, where that ended the
    episode (`instance_of`).
    """

    name: str
    instructions: str
    max_turns: int
    tools: tuple[Mapping[str, Any], ...]
    provides: tuple[str, ...]  # of "states", "snapshots", "expert", "legal", "step_rewards"

    def reset(self, seeds: Mapping[str, int]) -> dict[str, TimeStep | EnvFailure]: ...
    def step(self, actions: Mapping[str, Reply]) -> dict[str, TimeStep | EnvFailure]: ...
    def finish(self, names: Sequence[str]) -> None: ...

    # where they provide it
    def snapshot(self, names: Sequence[str]) -> dict[str, str | EnvFailure]: ...
    def restore(self, snapshots: Mapping[str, str]) -> dict[str, EnvFailure | None]: ...
    def expert(self, names: Sequence[str]) -> dict[str, str | EnvFailure | None]: ...
    def legal(self, names: Sequence[str]) -> dict[str, list[str] | EnvFailure]: ...


def instance_of(envs: Envs, task: Task) -> Any:
    """Return the argument of `envs.reset` for a task: the seed of its instance, or the task itself if it is listed."""
    return task if getattr(envs, "of_tasks", False) else task.info["seed"]


@dataclass
class Budget:
    """Generation cost so far, discarded rollouts included."""

    generated_tokens: int = 0
    rollouts: int = 0
    discarded: int = 0
    judge_tokens: int = 0  # generated by judges, in training

    def cost(self, prices: Mapping[str, float]) -> float:
        """Cost of the tokens. prices: name of a count -> price of a million."""
        return sum(getattr(self, name) * price for name, price in prices.items()) / 1e6


@dataclass(frozen=True)
class EpisodeRules:
    """Maximum length of episodes, and which part of their history the policy sees.

    max_turns    actions an episode may have
    context      "full": everything; "window": the instructions, the last `window` exchanges and the newest observation;
                 "summary": after every `window` exchanges the policy writes a summary, which then replaces them
    max_context  tokens of a context; an episode that would exceed it is truncated
    """

    max_turns: int = 1
    context: str = "full"
    window: int = 0
    max_context: int = 1 << 30


class Session(Protocol):
    """Services for a rollout part: sampling, environments, scoring, tokenising."""

    step: int
    seed: int
    sampling: Sampling
    budget: Budget
    chat: Chat
    system: str | None  # a system message before every conversation
    envs: Envs | None  # what tasks are instances of; None: tasks are prompts
    episode: EpisodeRules

    @property
    def takes_options(self) -> bool:
        """True if the policy's engine samples under `Request.options`."""
        ...

    def check_options(self, options: TokenOptions) -> None:
        """Raise ModelError for options that such an engine can't sample under."""
        ...

    def draw(self, n: int) -> list[Task]: ...
    def know(self, tasks: Sequence[Task]) -> None:
        """Register tasks that were not drawn in this step, so that rollouts of them can be scored."""
        ...

    def encode(self, task: Task) -> tuple[int, ...]: ...
    def tokenize(self, text: str, *, markup: bool = False) -> tuple[int, ...]:
        """Token ids of a text, without a template. The names of special tokens in it stay text, unless `markup`: for
        texts of the configuration."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...
    def solution(self, task: Task) -> str | None:
        """A worked solution, where the task or its source has one."""
        ...

    def sample(self, requests: Sequence[Request], sampling: Sampling | None = None) -> list[list[Completion]]:
        """Sample completions. `sampling`: settings for these requests in place of the run's."""
        ...

    def release(self, names: Sequence[str]) -> None: ...
    def segment(self, forest: Forest) -> Forest:
        """Cut the forest into segments, if the method has a segmenter and it is not cut yet."""
        ...

    def score(self, forest: Forest, texts: Sequence[str] | None = None) -> Forest:
        """Score trajectories. `texts`: text to judge of each (default: all its actions); a known outcome is kept, and
        so is the score that a trajectory of that id and those actions got before in this step."""
        ...

    def recall(self, forest: Forest) -> Forest:
        """Give attempts, as they were played, the scores that `score` has given to them; nothing is scored."""
        ...


class Rollout(Protocol):
    """A rollout strategy: tasks in, a forest of trajectories out.

    A part may say how held-out tasks are attempted: `evaluation(samples) -> Rollout` (default: independent attempts),
    whose trajectories come task by task, `samples` of each. Before a run starts, `single_turn = True` refuses tasks
    that are episodes, `allows` states values of settings without which it can't work (see `check_allowed`),
    `check_sampling(sampling)` raises ConfigError for what the run samples with, and `check_task(task, solution)`
    TaskError for a task that the part can't work with. What a session scores within `grow` has the task's rewards
    alone; a part that remembers has `observe(forest)`, as `TaskSource` has, and `state_dict` and `load_state_dict`.
    """

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest: ...


class Reward(Protocol):
    """A reward part: named values, each [R] (float64, nan = could not be scored), added to the outcome; a part under
    `reward.shape` gives one tensor [R], the new outcome."""

    def __call__(self, forest: Forest) -> Mapping[str, Tensor] | Tensor: ...
