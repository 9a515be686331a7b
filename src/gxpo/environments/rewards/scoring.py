"""Weighted sum of rewards (`RewardSet`): in process, in worker processes, or on all rollouts at once."""

from __future__ import annotations

import dataclasses
import math
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError, GxpoError, did_you_mean
from gxpo.base.usercode import one_line
from gxpo.environments.rewards.base import set_up
from gxpo.environments.rewards.batch import (
    AsyncEach,
    Batch,
    DecodeRaw,
    action_tokens,
    evaluate_group_reward,
    finish_reasons,
    keyword_arguments,
    pictures_made,
    raw_texts,
)
from gxpo.environments.rewards.functions import Function
from gxpo.environments.rewards.pool import Workers
from gxpo.environments.rewards.spec import BUILT_IN, Entry, Spec, example_of, resolve
from gxpo.environments.rewards.worker import Reply, call_each
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task, TaskSource

FAILURES = ("raised", "timeout", "died", "nonsense")  # unscored
LIMIT = "limit"  # scored as wrong


class RewardSet:
    """Weighted set of rewards: outcome = sum over components of weight x value, in float64.

    A reward returns a number (a component with the reward's own name) or named numbers (components). A component has
    the weight given to its name, else the weight of the reward that computes it, else 0: recorded, not counted. The
    task's own scorer always runs; a component of the same name from another reward replaces it. A group-level
    reward (`base.GroupReward`: built in, a function of (forest, texts, tasks), or `rate` of the task source)
    sees all rollouts of the step at once, and runs in process.

    A reward that raises, takes longer than `timeout`, kills its process or returns anything but finite numbers under
    the usual names costs that trajectory alone: its components and, if they have weight, its outcome are nan
    (unscored), never 0. `counts` says how often each happened, `messages` holds the first message of each.

    A check by math-verify that would take more than it may (`rewards.math`) is no failure: the answer is wrong, 0,
    and `counts["limit"]` says how many. It computes and waits for nothing, so its `timeout` is of processor time, which
    a loaded machine does not change. Other rewards may wait for something: their `timeout` is of the clock, without
    the time in which their process was ready to run and had no processor (Linux).

    math-verify, functions of files, importable callables and scorers that are not trusted run in worker processes.
    gxpo's own fast ones run in process. So does a callable that no other process can import (a lambda, a closure, a
    function of the running script), without a time limit and with a warning. A worker imports no torch unless a
    function does, or asks for `task`.

    `success` is the verifier's verdict: component "correct" >= 1. Without that component it is unknown (nan), except
    that a single function that returns plain numbers is the verifier of tasks that have no scorer of their own.
    """

    def __init__(
        self,
        rewards: Sequence[Entry],
        component_weights: Mapping[str, float],
        *,
        rollout_components: Sequence[str] = (),
        timeout: float,
        workers: int,
    ) -> None:
        """Start the worker processes of the rewards that need them; `make` builds a set from the configuration.

        component_weights   weights of components by name
        rollout_components  names of components that rollouts bring with them: what an environment paid
        """
        self._decode_raw: DecodeRaw | None = None
        self.counts: dict[str, int] = dict.fromkeys((*FAILURES, LIMIT), 0)
        self.messages: dict[str, str] = {}
        self._rewards, self._component_weights = list(rewards), dict(component_weights)
        self._rollout_components = tuple(rollout_components)
        self._per_rollout = [r for r in rewards if not r.function.grouped]
        self._has_label_free = any(r.function.label_free and not r.from_task for r in rewards)
        self._workers: Workers | None = None
        worker_rewards = [(r, r.function.source) for r in self._per_rollout if r.function.source is not None]
        if worker_rewards:
            self._workers = Workers([source for _, source in worker_rewards], timeout=timeout, count=workers)
            # the parameters of a function are known only where it has been loaded: the first worker reports them
            for index, ((reward, _), names) in enumerate(zip(worker_rewards, self._workers.declared, strict=True)):
                reward.worker_index, reward.argument_names = index, names

    @classmethod
    def make(
        cls,
        spec: Spec,
        *,
        source: TaskSource,
        timeout: float = 5.0,
        workers: int = 1,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        rollout_components: Sequence[str] = (),
    ) -> RewardSet:
        """Build from the configuration; any mistake that can be found before sampling is a ConfigError here.

        spec     None: the task's own verdict. A name: "math", "format", "numeric", "majority_vote", "code",
                 "judge", "my_rewards.py:exact" or a component of the task's scorer. A callable with parameters as in
                 `rewards.worker.ARGUMENTS`, as in `batch.Batch`, or (forest, texts, tasks); a rubric of verifiers.
                 {any of these: weight}, or a list of any of these, some as (it, weight).
        source   has `scorer(text, task)`, `rate(forest, texts, tasks)`, or `reward_default` that names its verifier;
                 `scorer_trusted` says that the scorer can't hang
        timeout  seconds for one item
        workers  processes that share the items
        options  of "numeric", "majority_vote", "code" and "judge", by name
        rollout_components  components that rollouts bring with them, beside those of the source
        """
        if not timeout > 0 or workers < 1:
            raise ConfigError(
                f"reward: timeout must be above 0 and workers at least 1, not {timeout!r} and {workers!r}"
            )
        rewards, component_weights = resolve(spec, source, options or {})
        for reward in rewards:
            call = reward.function.call
            if isinstance(call, AsyncEach):
                call.timeout = timeout
            if reward.function.grouped:
                set_up(call, source, timeout, workers)
            if isinstance(call, Batch):
                call.check([*source.held_out(1), *getattr(source, "training", ())[:1]])
            if reward.function.endless:
                warnings.warn(
                    f"reward {reward.function.label} can't be sent to a worker process: it runs in process and nothing "
                    "ends it if it hangs; put it into a file, as my_rewards.py:FUNCTION, to give it a time limit",
                    stacklevel=2,
                )
        all_components = (*getattr(source, "components", ()), *rollout_components)
        reward_set = cls(
            rewards, component_weights, rollout_components=all_components, timeout=timeout, workers=workers
        )
        # Both checks call verifiers, so they come after the workers have started, and end them where they refuse.
        try:
            for reward in rewards:
                if reward.function.label_free and not reward.from_task:
                    reward_set._check_verifier(source, reward.function.label)
                    reward.function.call.bind(reward_set._verify)  # type: ignore[union-attr]  # label_free has looked
            reward_set._check_names(source)
        except BaseException:
            reward_set.close()
            raise
        return reward_set

    def score(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Forest:
        """Score: `forest` with `components`, `outcome` and `success`; `texts` and `tasks` [R] of its trajectories."""
        n = forest.n_trajectories
        if not len(texts) == len(tasks) == n:
            raise ValueError(f"{len(texts)} texts and {len(tasks)} tasks for {n} trajectories")
        component_R = {
            name: forest.components[:, i]
            for i, name in enumerate(forest.component_names)
            if name in self._rollout_components
        }
        skipped_R: dict[str, Tensor] = {}  # by component: True where its reward has left a rollout out
        weights = {name: self._component_weights.get(name, 0.0) for name in component_R}
        # Functions of one rollout go to the workers in one batch, so that they run at the same time.
        replies = self._call_per_rollout(forest, texts, tasks, self._per_rollout)
        # Rewards that read `success` come last: they are given the verdicts of the others.
        for reward in sorted(self._rewards, key=_reads_success):
            function = reward.function
            if function.grouped:
                reads_success = _reads_success(reward)
                verdict_forest = self._with_verdicts(forest, component_R, function.label) if reads_success else forest
                values_by_name = self._group_columns(reward, verdict_forest, texts, tasks)
            else:
                values_by_name = self._rollout_columns(reward, replies[reward], tasks)
            for name, value_R in values_by_name.items():
                if name not in component_R:
                    component_R[name] = value_R
                    weights[name] = self._weight_of(name, reward)
                    # After a call that failed as a whole nan is a failure, not something left out.
                    if getattr(function.call, "skips", False) and not reward.failed:
                        skipped_R[name] = value_R.isnan()
                elif not reward.from_task:  # the task's own gives way to another reward of that name
                    raise ConfigError(f"reward {function.label} computes {name!r}, as another reward does; rename one")
        outcome_R = _weighted_sum(component_R, weights, skipped_R, n)
        missing_names = [name for name in self._component_weights if name not in component_R]
        if missing_names and self._names_are_known:
            self._raise_unknown_component(missing_names[0], component_R)
        if missing_names:  # the reward that computes it has not succeeded once yet
            outcome_R.fill_(math.nan)
        success_R = self._success(component_R, n)
        if self._rollout_components:  # an environment paid, so its verdict goes before ours
            success_R = torch.where(forest.success.isfinite(), forest.success, success_R)
        return forest.with_rewards(outcome_R, components=component_R, success=success_R)

    def _weight_of(self, component: str, reward: Entry) -> float:
        """Weight of a component: by its own name, else 0 if it is only reported, else its reward's."""
        return self._component_weights.get(component, 0.0 if component in reward.function.reports else reward.weight)

    @property
    def weighted_names(self) -> tuple[str, ...]:
        """Names of the components that have a weight by their own name."""
        return tuple(self._component_weights)

    def read_with(self, decode: DecodeRaw) -> None:
        """Set the decoder that writes special tokens out, for rewards that read `completion_raw`."""
        self._decode_raw = decode
        for call in self._group_rewards_with("decode_raw"):
            call.decode_raw = decode

    def at(self, step: int, steps: int) -> None:
        """Announce the step that is scored next, and how many the run has, to rewards that follow them."""
        for reward in self._rewards:
            if isinstance(reward.function.call, Batch):
                reward.function.call.step, reward.function.call.steps = step, steps
            elif reward.function.grouped and hasattr(reward.function.call, "at"):
                reward.function.call.at(step)  # type: ignore[union-attr]  # hasattr has looked

    def observe(self, step: int, forest: Forest, texts: Callable[[], Sequence[str]], tasks: Mapping[str, Task]) -> None:
        """Show a step's scored rollouts to the rewards that learn from them."""
        for call in self._group_rewards_with("observe"):
            call.observe(step, forest, texts(), [tasks[name] for name in forest.task])

    def state_dict(self) -> dict[str, Any]:
        """State of stateful rewards, by name, as JSON."""
        stateful = [(r.function.name, r.function.call) for r in self._rewards if r.function.grouped]
        return {name: call.state_dict() for name, call in stateful if call is not None and hasattr(call, "state_dict")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        for reward in self._rewards:
            call = reward.function.call
            if reward.function.name in state and call is not None and hasattr(call, "load_state_dict"):
                call.load_state_dict(state[reward.function.name])  # type: ignore[attr-defined]  # hasattr has looked

    def _group_rewards_with(self, name: str) -> list[Any]:
        """Group-level rewards that have the optional method or attribute `name`."""
        return [r.function.call for r in self._rewards if r.function.grouped and hasattr(r.function.call, name)]

    def close(self) -> None:
        """End the worker processes; scoring again starts new ones."""
        if self._workers is not None:
            self._workers.close()
        for call in self._group_rewards_with("close"):
            call.close()

    def __enter__(self) -> RewardSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ running
    def _call_per_rollout(
        self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task], rewards: Sequence[Entry]
    ) -> dict[Entry, list[Reply]]:
        """Call functions of one rollout on every trajectory: replies [R] by reward."""
        n = forest.n_trajectories
        # Token ids and raw texts are made only where a function declares them.
        argument_names = {name for reward in rewards for name in reward.argument_names or ()}
        tokens_R = action_tokens(forest) if "tokens" in argument_names else [[] for _ in range(n)]
        raw_texts_R = raw_texts(forest, texts, self._decode_raw) if "completion_raw" in argument_names else texts
        replies: dict[Entry, list[Reply]] = {reward: [("died", "never run")] * n for reward in rewards}
        pictures_R = pictures_made(forest) if "picture" in argument_names else [None] * n
        rows = list(zip(tasks, texts, tokens_R, finish_reasons(forest), raw_texts_R, pictures_R, strict=True))
        worker_calls, call_origins = [], []
        for reward in rewards:
            calls = [_arguments(reward.argument_names, *row) for row in rows]
            if reward.function.call is not None:
                replies[reward] = call_each(reward.function.call, calls)
                continue
            # Arguments that can't be pickled cost their rollout alone, as an exception of the function would.
            for r, call in enumerate(calls):
                try:
                    worker_calls.append((reward.worker_index, pickle.dumps(call)))
                    call_origins.append((reward, r))
                except Exception as error:
                    replies[reward][r] = ("raised", one_line(f"its arguments can't be sent to a worker: {error}"))
        if self._workers is not None:
            for (reward, r), reply in zip(call_origins, self._workers.run(worker_calls), strict=True):
                replies[reward][r] = reply
        return replies

    def _rollout_columns(self, reward: Entry, replies: Sequence[Reply], tasks: Sequence[Task]) -> dict[str, Tensor]:
        """Components [R] by name from the replies of a function of one rollout."""
        self._learn_names(reward, replies)
        names = reward.names or (reward.function.name,)
        rows = [self._component_values(reward, names, reply, task) for reply, task in zip(replies, tasks, strict=True)]
        values = torch.tensor(rows, dtype=torch.float64).reshape(len(tasks), len(names))
        return dict(zip(names, values.unbind(1), strict=True))

    def _group_columns(
        self, reward: Entry, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]
    ) -> dict[str, Tensor]:
        """Components [R] by name of a group-level reward; failures are counted."""
        function, known_names = reward.function, reward.names
        assert function.call is not None, "it runs in process"

        def has_weight(name: str) -> bool:
            return self._weight_of(name, reward) != 0

        extra_arguments = {"texts_raw": raw_texts(forest, texts, self._decode_raw)} if function.raw else {}
        component_R, failures = evaluate_group_reward(
            function.name, function.call, known_names, forest, texts, tasks, has_weight, extra_arguments
        )
        reward.failed = component_R is None
        if component_R is not None:
            reward.names = tuple(component_R)
        for kind, message in failures:
            self.counts[kind] += 1
            self.messages.setdefault(kind, f"reward {function.label}: {message}")
        unscored_R = torch.full((forest.n_trajectories,), math.nan, dtype=torch.float64)
        if component_R is None:
            return dict.fromkeys(known_names or (function.name,), unscored_R)
        return component_R

    @property
    def _verifier(self) -> Entry | None:
        """Verifier, the function that gives "correct": the task's own, else the first that is known to."""
        for reward in sorted(self._per_rollout, key=lambda r: not r.from_task):
            function = reward.function
            if function.name != "format" and (function.is_scorer or "correct" in (function.gives or ())):
                return reward
        return None

    def _verify(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Tensor:
        """Verdicts [R] of the tasks' verifier, nan where it fails: for label-free rewards, which set the answers."""
        verifier = self._verifier
        assert verifier is not None, "_check_verifier has seen to it"
        replies = self._call_per_rollout(forest, texts, tasks, [verifier])[verifier]
        verdict_R = self._rollout_columns(verifier, replies, tasks).get("correct")
        return verdict_R if verdict_R is not None else torch.full((len(texts),), math.nan, dtype=torch.float64)

    def _check_verifier(self, source: TaskSource, label: str) -> None:
        """ConfigError unless there is a verifier that judges by `answer` alone; another could read the true label."""
        verifier, example = self._verifier, example_of(source)
        if verifier is None:
            raise ConfigError(
                f"reward: {label} needs a verifier that compares with an answer, and these tasks have none of "
                "their own: add one with weight 0, as {majority_vote: 1.0, math: 0}"
            )
        write_answer = getattr(source, "worked_example", None)
        if example is None:
            return
        # A right answer must be wrong once the task's answer is another one and its `info` is gone: a verifier that
        # still accepts it, or fails, has read the truth elsewhere.
        blind_task = dataclasses.replace(example, answer="no such answer", info={})
        text = (write_answer and write_answer(example)) or ""
        status, value = self._try_text(blind_task, verifier, text)
        works_with_answer = self._try_text(example, verifier, text)[0] == "ok"
        if works_with_answer and (
            status != "ok" or value == 1 or (isinstance(value, dict) and value.get("correct") == 1)
        ):
            problem = f"can't do without the rest ({value})" if status != "ok" else "does not look at it"
            raise ConfigError(
                f"reward: {label} needs a verifier that judges by a task's answer alone, and this one {problem}: "
                "choose another task, or name another verifier beside it with weight 0"
            )

    @property
    def _names_are_known(self) -> bool:
        """True if every reward's component names are known."""
        return all(reward.names is not None for reward in self._rewards)

    def _learn_names(self, reward: Entry, replies: Sequence[Reply]) -> None:
        """Fix a function's component names: those of most of its first successes; later replies must have the same."""
        if reward.names is None:
            shapes = Counter(_component_names(reward.function, value) for status, value in replies if status == "ok")
            if shapes:
                reward.names = shapes.most_common(1)[0][0]

    def _component_values(self, reward: Entry, names: tuple[str, ...], reply: Reply, task: Task) -> list[float]:
        """Component values of one trajectory from a reply, nan where it failed; failures are counted."""
        function, (status, value) = reward.function, reply
        if self._has_label_free and task.answer is None:  # nothing to compare with: not a failure
            values_by_name = value if status == "ok" and isinstance(value, dict) else {}
            return [math.nan if name == "correct" else values_by_name.get(name, math.nan) for name in names]
        if status == "ok":
            if set(_component_names(function, value)) == set(names):
                return [value[name] for name in names] if isinstance(value, dict) else [value]
            status = "nonsense"
            value = (
                f"returned {', '.join(_component_names(function, value))} where it usually returns {', '.join(names)}"
            )
        self.counts[status] += 1
        self.messages.setdefault(status, f"reward {function.label}: {value} (task {task.id})")
        return [0.0 if status == LIMIT else math.nan] * len(names)

    def _with_verdicts(self, forest: Forest, component_R: Mapping[str, Tensor], label: str) -> Forest:
        """Fill `success` with the verdicts so far, for a reward that reads it; GxpoError where there are none."""
        has_verdict_R = forest.success.isfinite()
        if "correct" not in component_R and forest.n_trajectories and not bool(has_verdict_R.any()):
            raise GxpoError(
                f"reward {label} scores right attempts alone, and no reward gives a verdict: add one, as "
                f"scoring.weights {{math: 1, {label}: 0}}"
            )
        success_R = self._success(
            {name: x for name, x in component_R.items() if name == "correct"}, forest.n_trajectories
        )
        return forest.replace(success=torch.where(has_verdict_R, forest.success, success_R))

    def _success(self, component_R: Mapping[str, Tensor], n: int) -> Tensor:
        """Verdicts [R] of 0 and 1 from the component "correct", or from the only reward; nan unknown."""
        verdict_R = component_R.get("correct")
        # A single reward that gives one plain number is its tasks' verifier: there is nothing else to judge by.
        if verdict_R is None and len(self._rewards) == 1:
            (function,) = (reward.function for reward in self._rewards)
            counted_names = [name for name in component_R if name not in function.reports]
            if (function.verdict or not function.grouped) and counted_names == [function.name]:
                verdict_R = component_R[function.name]
        if verdict_R is None:
            return torch.full((n,), math.nan, dtype=torch.float64)
        return torch.where(verdict_R.isnan(), verdict_R, (verdict_R >= 1).to(torch.float64))

    # ------------------------------------------------------------ names
    def _check_names(self, source: TaskSource) -> None:
        """Refuse weights for components that no reward computes, where that can be known before sampling.

        What a scorer returns is learnt from a held-out task and an empty text; what a user's function returns is known
        only when it has scored, so a name that could be its is checked then.
        """
        if {"correct", "format", *self._rollout_components}.issuperset(self._component_weights):
            return
        example = example_of(source)
        for reward in self._per_rollout:
            if reward.names is None and reward.function.is_scorer and example is not None:
                self._learn_names(reward, [self._try_text(example, reward)])
        if self._names_are_known:
            ordered_rewards = sorted(self._rewards, key=lambda r: r.function.grouped)
            known_names = [
                *self._rollout_components,
                *(name for reward in ordered_rewards for name in reward.names or ()),
            ]
            for name in self._component_weights:
                if name not in known_names:
                    self._raise_unknown_component(name, known_names)

    def _try_text(self, task: Task, reward: Entry, text: str = "") -> Reply:
        """Reply of a function to one text, outside of a step."""
        args, keywords = _arguments(reward.argument_names, task, text, [], "stop", text)
        if reward.function.call is not None:
            return call_each(reward.function.call, [(args, keywords)])[0]
        assert self._workers is not None and reward.worker_index is not None
        return self._workers.run([(reward.worker_index, pickle.dumps((args, keywords)))])[0]

    def _raise_unknown_component(self, name: str, known_names: Iterable[str]) -> NoReturn:
        """Raise the ConfigError of a weighted component that no reward computes."""
        candidates = [*dict.fromkeys([*known_names, *BUILT_IN])]
        raise ConfigError(
            f"reward: {name!r} has a weight, but no reward computes it{did_you_mean(name, candidates) or '.'} "
            f"There are {', '.join(candidates)} and functions of files, as my_rewards.py:exact"
        )


def _reads_success(reward: Entry) -> bool:
    """True if a reward reads the verdicts of the others, so that it runs after them."""
    return reward.function.grouped and bool(getattr(reward.function.call, "reads_success", False))


def _weighted_sum(
    component_R: Mapping[str, Tensor], weights: Mapping[str, float], skipped_R: Mapping[str, Tensor], n: int
) -> Tensor:
    """Sum of weight x value, [R] float64.

    nan where a component is nan; one that a reward skipped counts for nothing, and nan where all skipped the rollout.
    """
    outcome_R, skipped_by_all_R = torch.zeros(n, dtype=torch.float64), torch.ones(n, dtype=torch.bool)
    for name, value_R in component_R.items():
        if weights[name] == 0:
            continue
        value_skipped_R = skipped_R.get(name)
        if value_skipped_R is None:
            outcome_R += weights[name] * value_R
            skipped_by_all_R &= False
        else:
            outcome_R += weights[name] * value_R.masked_fill(value_skipped_R, 0.0)
            skipped_by_all_R &= value_skipped_R
    return outcome_R.masked_fill(skipped_by_all_R, math.nan) if skipped_R else outcome_R


def _arguments(
    argument_names: Sequence[str] | None, task: Task, text: str, *context: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a function with these parameters; None: of a task's scorer."""
    if argument_names is None:
        return (text, task), {}
    arguments = keyword_arguments(task, text, *context)
    return (), {name: arguments[name] for name in argument_names}


def _component_names(function: Function, value: float | dict[str, float]) -> tuple[str, ...]:
    """Names of the components that a return value has."""
    return tuple(value) if isinstance(value, dict) else (function.name,)
