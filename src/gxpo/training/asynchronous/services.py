"""What rollouts call for, answered for many groups at once: samples, environments, rewards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gxpo.base.errors import GxpoError
from gxpo.base.judges import meter
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Envs, Request, Sampling
from gxpo.training.asynchronous.group import Group
from gxpo.training.asynchronous.routines import Call
from gxpo.training.asynchronous.weights import PublishedPolicy


# ---------------------------------------------------------------- interrupted
# Samples that are interrupted where new weights arrive, and go on under them from the same token (`async.partial`).
@dataclass(frozen=True)
class Remaining:
    """Requests for the rest of interrupted samples: one for each, with `places` (request, stream) in the first call."""

    version: int
    places: list[tuple[int, int]]
    requests: list[Request]
    sampling: Sampling


def remaining(
    requests: Sequence[Request], found: Sequence[Sequence[Completion]], sampling: Sampling, version: int
) -> Remaining | None:
    """What is left of the interrupted samples, to be sampled under `version`; None where there are none.

    The rest of a sample has a stream of its own: that of the sample with -version added to its path.
    """
    places = [(i, j) for i, group in enumerate(found) for j, c in enumerate(group) if c.finish == "interrupted"]
    if not places:
        return None
    rest = []
    for i, j in places:
        request, begun = requests[i], found[i][j].tokens
        key = request.streams[j]
        key = replace(key, path=(*key.path, -version))
        keep = (request.keep[j],) if request.keep else ()
        rest.append(replace(request, prompt=(*request.prompt, *begun), streams=(key,), keep=keep))
    room = sampling.max_new_tokens - min(len(found[i][j].tokens) for i, j in places)
    return Remaining(version, places, rest, replace(sampling, max_new_tokens=room))


def joined(
    found: Sequence[Sequence[Completion]],
    rest: Remaining,
    more: Sequence[Sequence[Completion]],
    sampling: Sampling,
) -> list[list[Completion]]:
    """The samples with what came of their rests."""
    out = [list(group) for group in found]
    for (i, j), (piece,) in zip(rest.places, more, strict=True):
        begun = out[i][j]
        out[i][j] = _one(begun, piece.within(sampling.max_new_tokens - len(begun.tokens)))
    return out


def _one(first: Completion, then: Completion) -> Completion:
    size = len(first.tokens)
    newest = first.versions[-1][1] if first.versions else first.policy_version
    changes = () if then.policy_version == newest else ((size, then.policy_version),)
    return replace(
        first,
        tokens=[*first.tokens, *then.tokens],
        logprobs=[*first.logprobs, *then.logprobs],
        finish=then.finish,
        support=_stacked(first.support, then.support),
        versions=(*first.versions, *changes),
    )


def _stacked(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Supports one below the other, padded with -1 to the wider."""
    if a is None or b is None:
        return a if b is None else b
    widest = max(a.shape[1], b.shape[1])
    return np.concatenate([np.pad(x, ((0, 0), (0, widest - x.shape[1])), constant_values=-1) for x in (a, b)])


# ---------------------------------------------------------------- services
class Gate:
    """Lets many through, or one who waits until all others are out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside, self._shut = 0, False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Inside; waits while it is shut."""
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Alone."""
        with self._changed:
            self._shut = True
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._shut = False
                self._changed.notify_all()


class Sampler:
    """The service of samples: one call of the engine for all groups of a version and equal settings.

    newest  the newest published version, where groups go on under it (`async.partial`); None: each group has its own
    """

    def __init__(self, engine: Any, policy: PublishedPolicy | None, newest: Callable[[], int] | None) -> None:
        self.engine, self.policy, self.newest = engine, policy, newest

    def use(self, version: int) -> None:
        """Sample under the weights of a published version from now on."""
        if self.policy is not None:
            self.policy.use(version)
        self.engine.policy_version = version

    def _use_newest(self, newest: Callable[[], int]) -> int:
        """The newest version, which may be another one by the time that its weights are there."""
        while True:
            version = newest()
            try:
                self.use(version)
            except KeyError:
                continue
            return version

    def __call__(self, calls: Sequence[Call]) -> None:
        for call in calls:
            if call.what == "release":
                self.engine.release(*call.arguments)
        together: dict[tuple[int, Sampling], list[Call]] = {}
        for call in (c for c in calls if c.what == "sample"):
            group: Group = call.owner
            version = group.version if self.newest is None else 0  # the newest, whatever it is by then
            together.setdefault((version, call.arguments[1]), []).append(call)
        for (version, sampling), own in sorted(together.items(), key=lambda item: item[0][0]):
            began, engine = time.perf_counter(), self.engine
            before = engine.prefilled_tokens, engine.reused_tokens
            self._sample(version, sampling, own)
            cost = own[0].owner.cost
            cost.prefilled_tokens += engine.prefilled_tokens - before[0]
            cost.reused_tokens += engine.reused_tokens - before[1]
            cost.time_sample_s += time.perf_counter() - began

    def _sample(self, version: int, sampling: Sampling, calls: Sequence[Call]) -> None:
        """Answers calls, each with its own error where all of them together can't be answered."""
        requests = [request for call in calls for request in call.arguments[0]]
        try:
            found = iter(self._completions(version, requests, sampling))
        except GxpoError as error:
            if len(calls) == 1:
                calls[0].error = error
                return
            for call in calls:
                self._sample(version, sampling, [call])
            return
        for call in calls:
            call.answer = [next(found) for _ in call.arguments[0]]
            if self.newest is not None:
                versions = [c.policy_version for group in call.answer for c in group]
                call.owner.version = min([call.owner.version, *versions])

    def _completions(self, version: int, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        if self.newest is None:
            self.use(version)
            return self.engine.sample(requests, sampling)
        version = self._use_newest(self.newest)
        found = self.engine.sample(requests, sampling)
        while rest := remaining(requests, found, sampling, version := self._use_newest(self.newest)):
            more = self.engine.sample(rest.requests, rest.sampling)
            found = joined(found, rest, more, sampling)
        return found


class Environments:
    """The service of environments: one call for the episodes of all groups."""

    def __init__(self, envs: Envs) -> None:
        self.envs = envs

    def __call__(self, calls: Sequence[Call]) -> None:
        together: dict[str, list[Call]] = {}
        for call in calls:
            together.setdefault(call.what, []).append(call)
        for what, own in together.items():
            given = {name: x for call in own for name, x in call.arguments[0].items()}
            by_name = what in ("reset", "step", "restore")
            answer = getattr(self.envs, what)(given if by_name else list(given))
            for call in own:
                call.answer = answer and {name: answer[name] for name in call.arguments[0]}


class Scorer:
    """The service of rewards: rollouts that wait together are scored together, as those of a synchronous step are.

    Failures and judges' tokens are charged to the first of the groups.
    """

    def __init__(self, rewards: Any, steps: int) -> None:
        self.rewards, self.steps = rewards, steps

    def __call__(self, calls: Sequence[Call]) -> None:
        began, judged, counts = time.perf_counter(), meter.tokens, dict(self.rewards.counts)
        forests = [call.arguments[0] for call in calls]
        whole = Forest.concat(forests) if len(forests) > 1 else forests[0]
        texts, tasks = ([x for call in calls for x in call.arguments[i]] for i in (1, 2))
        self.rewards.at(calls[0].owner.step, self.steps)
        scored = self.rewards.score(whole, texts, tasks)
        start = 0
        for call, forest in zip(calls, forests, strict=True):
            rows = slice(start, start + forest.n_trajectories)
            start = rows.stop
            columns = {name: scored.components[rows, i] for i, name in enumerate(scored.component_names)}
            call.answer = forest.with_rewards(scored.outcome[rows], components=columns, success=scored.success[rows])
        cost = calls[0].owner.cost
        cost.judge_tokens += meter.tokens - judged
        for kind, n in self.rewards.counts.items():
            if n > counts.get(kind, 0):
                cost.scoring[kind] = cost.scoring.get(kind, 0) + n - counts.get(kind, 0)
        cost.time_sample_s += time.perf_counter() - began
