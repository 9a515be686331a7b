"""Services of asynchronous rollouts: sampling, environments and rewards for many groups in one call, and the published
weights that groups are sampled under."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gxpo.base.errors import GxpoError
from gxpo.base.judges import meter
from gxpo.forest.forest import Forest
from gxpo.learning.sampling_copy import SamplingCopy
from gxpo.parts.protocols import Completion, Envs, Request, Sampling
from gxpo.training.asynchronous.group import Group
from gxpo.training.asynchronous.routines import Call

if TYPE_CHECKING:
    from gxpo.learning.torch import TorchLearner


# ---------------------------------------------------------------- interrupted samples
# With `async.partial` new weights interrupt samples, which go on under them from the same token.
@dataclass(frozen=True)
class Remaining:
    """Requests that continue interrupted samples, one each; `sources` are their (request, stream) in the first call."""

    version: int
    sources: list[tuple[int, int]]
    requests: list[Request]
    sampling: Sampling


def remaining_requests(
    requests: Sequence[Request], completions: Sequence[Sequence[Completion]], sampling: Sampling, version: int
) -> Remaining | None:
    """Build the requests that continue interrupted samples under `version`; None if no sample was interrupted.

    The continuation has its own random stream: that of the sample with -version added to its path.
    """
    sources = [(i, j) for i, group in enumerate(completions) for j, c in enumerate(group) if c.finish == "interrupted"]
    if not sources:
        return None
    rest_requests = []
    for i, j in sources:
        request, prefix = requests[i], completions[i][j].tokens
        key = request.streams[j]
        key = replace(key, path=(*key.path, -version))
        cache_names = (request.keep[j],) if request.keep else ()
        rest_requests.append(replace(request, prompt=(*request.prompt, *prefix), streams=(key,), keep=cache_names))
    # One limit for all: what the shortest prefix leaves. `join_samples` cuts the others to their own.
    longest = sampling.max_new_tokens - min(len(completions[i][j].tokens) for i, j in sources)
    return Remaining(version, sources, rest_requests, replace(sampling, max_new_tokens=longest))


def join_samples(
    completions: Sequence[Sequence[Completion]],
    rest: Remaining,
    continuations: Sequence[Sequence[Completion]],
    sampling: Sampling,
) -> list[list[Completion]]:
    """Append the continuations to the interrupted samples, each cut to `max_new_tokens` in all."""
    joined_completions = [list(group) for group in completions]
    for (i, j), (piece,) in zip(rest.sources, continuations, strict=True):
        prefix = joined_completions[i][j]
        joined_completions[i][j] = _join_completion(
            prefix, piece.truncate(sampling.max_new_tokens - len(prefix.tokens))
        )
    return joined_completions


def _join_completion(first: Completion, continuation: Completion) -> Completion:
    """Join two pieces of a sample; `versions` notes the token at which the policy's version changes."""
    size = len(first.tokens)
    last_version = first.versions[-1][1] if first.versions else first.policy_version
    version_changes = () if continuation.policy_version == last_version else ((size, continuation.policy_version),)
    return replace(
        first,
        tokens=[*first.tokens, *continuation.tokens],
        logprobs=[*first.logprobs, *continuation.logprobs],
        finish=continuation.finish,
        support=_stack_supports(first.support, continuation.support),
        extras={
            name: np.concatenate([x, continuation.extras[name]])
            for name, x in first.extras.items()
            if name in continuation.extras
        },
        versions=(*first.versions, *version_changes),
    )


def _stack_supports(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Stack two [tokens, ids] supports, padded with -1 to the wider."""
    if a is None or b is None:
        return a if b is None else b
    widest = max(a.shape[1], b.shape[1])
    return np.concatenate([np.pad(x, ((0, 0), (0, widest - x.shape[1])), constant_values=-1) for x in (a, b)])


# ---------------------------------------------------------------- published weights
class PublishedPolicy(SamplingCopy):
    """Copy of a learner's model that takes the weights of any published version.

    published  trained parameters by version

    Memory beyond the learner's: the trained parameters once for the copy and once for each published version, on the
    learner's device: at most `async.max_staleness` + 2 times in `async.order: dispatch`.
    """

    def __init__(self, learner: TorchLearner) -> None:
        super().__init__(learner.model, learner.policies, share="frozen")
        self._learner = learner
        self.tensors_by_version: dict[int, dict[str, Tensor]] = {}
        self._copy_version: int | None = None

    @torch.no_grad()
    def publish(self, version: int) -> None:
        """Store the learner's weights as those of `version`; called between two updates only."""
        parameters = dict(self._learner.model.named_parameters())
        self.tensors_by_version[version] = {name: parameters[name].detach().clone() for name in sorted(self.names)}

    def use(self, version: int) -> None:
        """Load the weights of a published version into the copy."""
        if version == self._copy_version:
            return
        self.set_weights(self.tensors_by_version[version].items())
        self._copy_version = version

    def retire(self, versions: set[int]) -> None:
        """Free all versions except these."""
        for version in set(self.tensors_by_version) - versions:
            del self.tensors_by_version[version]


# ---------------------------------------------------------------- services
class SharedLock:
    """Shared/exclusive lock: many threads hold it at a time, or one alone."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._n_holders, self._is_exclusive = 0, False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock with others; waits while it is held exclusively."""
        with self._condition:
            self._condition.wait_for(lambda: not self._is_exclusive)
            self._n_holders += 1
        try:
            yield
        finally:
            with self._condition:
                self._n_holders -= 1
                self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock alone; waits until the others have left."""
        with self._condition:
            self._is_exclusive = True  # set before waiting, so that no new holder delays this one
            self._condition.wait_for(lambda: not self._n_holders)
        try:
            yield
        finally:
            with self._condition:
                self._is_exclusive = False
                self._condition.notify_all()


class Sampler:
    """Sampling service: one engine call for all groups of one version and equal sampling settings.

    newest_version  returns the newest published version, which all groups follow with `async.partial`; None: each group
                    is sampled under its own version
    """

    def __init__(self, engine: Any, policy: PublishedPolicy | None, newest_version: Callable[[], int] | None) -> None:
        self.engine, self.policy, self.newest_version = engine, policy, newest_version

    def use_version(self, version: int) -> None:
        """Load a published version into the engine's policy."""
        if self.policy is not None:
            self.policy.use(version)
        self.engine.policy_version = version

    def _use_newest(self, newest_version: Callable[[], int]) -> int:
        """Load the newest version and return it."""
        while True:
            version = newest_version()
            try:
                self.use_version(version)
            except KeyError:  # the trainer published a newer one and retired this one in between
                continue
            return version

    def __call__(self, calls: Sequence[Call]) -> None:
        # Releases first: the memory of their caches is free before this batch is sampled.
        for call in calls:
            if call.operation == "release":
                self.engine.release(*call.arguments)
        calls_by_settings: dict[tuple[int, Sampling], list[Call]] = {}
        for call in (c for c in calls if c.operation == "sample"):
            group: Group = call.owner
            version = group.version if self.newest_version is None else 0  # one batch: all follow the newest
            calls_by_settings.setdefault((version, call.arguments[1]), []).append(call)
        for (version, sampling), batch in sorted(calls_by_settings.items(), key=lambda item: item[0][0]):
            start_time, engine = time.perf_counter(), self.engine
            tokens_before = engine.prefilled_tokens, engine.reused_tokens
            self._sample(version, sampling, batch)
            cost = batch[0].owner.cost
            cost.prefilled_tokens += engine.prefilled_tokens - tokens_before[0]
            cost.reused_tokens += engine.reused_tokens - tokens_before[1]
            cost.time_sample_s += time.perf_counter() - start_time

    def _sample(self, version: int, sampling: Sampling, calls: Sequence[Call]) -> None:
        """Answer calls in one engine call; if that fails, one by one, so that an error reaches its own call alone."""
        requests = [request for call in calls for request in call.arguments[0]]
        try:
            completions = iter(self._completions(version, requests, sampling))
        except GxpoError as error:
            if len(calls) == 1:
                calls[0].error = error
                return
            for call in calls:
                self._sample(version, sampling, [call])
            return
        for call in calls:
            call.answer = [next(completions) for _ in call.arguments[0]]
            if self.newest_version is not None:  # a group is as old as its oldest token
                versions = [c.policy_version for group in call.answer for c in group]
                call.owner.version = min([call.owner.version, *versions])

    def _completions(self, version: int, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        if self.newest_version is None:
            self.use_version(version)
            return self.engine.sample(requests, sampling)
        version = self._use_newest(self.newest_version)
        completions = self.engine.sample(requests, sampling)
        while rest := remaining_requests(
            requests, completions, sampling, version := self._use_newest(self.newest_version)
        ):
            continuations = self.engine.sample(rest.requests, rest.sampling)
            completions = join_samples(completions, rest, continuations, sampling)
        return completions


class Environments:
    """Environment service: one call for the episodes of all groups."""

    def __init__(self, envs: Envs) -> None:
        self.envs = envs

    def __call__(self, calls: Sequence[Call]) -> None:
        calls_by_operation: dict[str, list[Call]] = {}
        for call in calls:
            calls_by_operation.setdefault(call.operation, []).append(call)
        for operation, batch in calls_by_operation.items():
            values = {name: x for call in batch for name, x in call.arguments[0].items()}
            takes_values = operation in ("reset", "step", "restore")  # the others take names alone
            answer = getattr(self.envs, operation)(values if takes_values else list(values))
            for call in batch:
                call.answer = answer and {name: answer[name] for name in call.arguments[0]}


class Scorer:
    """Reward service: score the rollouts of all waiting groups together, as a synchronous step does.

    Failures and judge tokens are charged to the first group of the batch.
    """

    def __init__(self, rewards: Any, steps: int) -> None:
        self.rewards, self.steps = rewards, steps

    def __call__(self, calls: Sequence[Call]) -> None:
        start_time, judge_tokens_before, failures_before = time.perf_counter(), meter.tokens, dict(self.rewards.counts)
        forests = [call.arguments[0] for call in calls]
        batch_forest = Forest.concat(forests) if len(forests) > 1 else forests[0]
        texts, tasks = ([x for call in calls for x in call.arguments[i]] for i in (1, 2))
        self.rewards.at(calls[0].owner.step, self.steps)
        scored_forest = self.rewards.score(batch_forest, texts, tasks)
        start = 0
        # Rows of the joined forest go back to their groups, in order.
        for call, forest in zip(calls, forests, strict=True):
            rows = slice(start, start + forest.n_trajectories)
            start = rows.stop
            columns = {name: scored_forest.components[rows, i] for i, name in enumerate(scored_forest.component_names)}
            call.answer = forest.with_rewards(
                scored_forest.outcome[rows], components=columns, success=scored_forest.success[rows]
            )
        cost = calls[0].owner.cost
        cost.judge_tokens += meter.tokens - judge_tokens_before
        for kind, n in self.rewards.counts.items():
            if n > failures_before.get(kind, 0):  # counts of the rewards grow over the whole run
                cost.scoring[kind] = cost.scoring.get(kind, 0) + n - failures_before.get(kind, 0)
        cost.time_sample_s += time.perf_counter() - start_time
