"""Rollouts of flow models: independent samples of a condition, or branches off a deterministic path at every step.

A trajectory is one action: the initial noise, then a token for every denoising step, each a segment of its own
(segment 0 is the initial noise, segment k the result of step k - 1) with its latent, time and noise scale under
`extras`. It is one action, not a turn per step, because nothing is observed between steps, and a fork inside an action
stores a shared path once. Only steps in which something was drawn are trained: not the initial noise, which no
parameter makes, and not steps of the ODE, such as the last one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Interval

from gxpo.base.errors import ConfigError
from gxpo.base.media import PICTURE, label
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, DenoisingSampling, Request, Sampling, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import (
    Count,
    Limit,
    RolloutPart,
    action,
    extra_of,
    group_of,
    name_draws,
    random_for,
    record,
    requests,
    stream,
)

Noise = Literal["auto", "flow_sde", "dance", "ddim_eta", "ddpm"]
Share = Annotated[float, Interval(gt=0, le=1)]


@part("denoise", stage="rollout")
@dataclass(frozen=True)
class Denoise(RolloutPart):
    """`group_size` samples of each condition, each from an initial noise of its own: group s{step}/{task}, ids GROUP/i.

    `sampling.temperature` is the noise level (eta) of every step but the last; at 0 nothing could be trained.

    chunks        numbers of consecutive trained steps that are one segment (`objective.ratio: segment`), from the first
                  on; they add up to all trained steps, which are all but the last; []: each step is one
    noise         kind of noise, see `gxpo.models.denoising`: "auto" is flow_sde of a flow, ddim_eta of a diffusion;
                  "ddpm" is ddim_eta at level 1
    window        steps with noise; the others are the ODE's, without an evaluation in training. 0: all
    window_shift  steps by which the window moves on every `window_every` training steps, from the noisiest; behind the
                  last place it begins again. MixGRPO, arXiv 2507.21802
    share         share of a sample's steps with noise that are trained, drawn anew for each, rounded down. DanceGRPO,
                  arXiv 2505.07818
    shared_noise  a group's samples begin at the same initial noise (DanceGRPO)
    noise_end     factor of the noise level at the clean end, to which it falls by a cosine (HiCoGen)
    """

    group_size: Count = 8
    chunks: Sequence[Count] = ()
    noise: Noise = field(default="auto", kw_only=True)
    window: Limit = field(default=0, kw_only=True)
    window_shift: Count = field(default=1, kw_only=True)
    window_every: Count = field(default=25, kw_only=True)
    share: Share = field(default=1.0, kw_only=True)
    shared_noise: bool = field(default=False, kw_only=True)
    noise_end: Annotated[float, Interval(ge=0, le=1)] = field(default=1.0, kw_only=True)

    provides = ("latents",)

    def evaluation(self, samples: int) -> Denoise:
        """Return the rollout for held-out tasks."""
        return Denoise(samples, noise=self.noise)

    @staticmethod
    def check_sampling(sampling: Sampling) -> None:
        """Refuse a noise level of 0."""
        need_noise(sampling)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        begin = (session.step - 1) // self.window_every * self.window_shift
        options = {"noise": self.noise, "window": self.window, "begin": begin, "end": self.noise_end}
        sampling = denoising(session.sampling, **options)
        draws, prompts = name_draws(tasks), [session.encode(task) for task in tasks]
        sample_requests, heads = requests(prompts, draws, self.group_size, session), None
        # A shared beginning is one initial noise, from which all samples of the group go on.
        if self.shared_noise:
            first = dataclasses.replace(sampling, max_new_tokens=1)
            heads = [group[0] for group in session.sample(requests(prompts, draws, 1, session), first)]
            sample_requests = [
                continue_request(
                    r.prompt, head.extras["latent"], tuple(dataclasses.replace(k, turn=1) for k in r.streams)
                )
                for r, head in zip(sample_requests, heads, strict=True)
            ]
        samples = session.sample(sample_requests, sampling)
        return Forest.from_records(
            [
                self._record(session, task, draw, i, c if heads is None else concatenate(heads[g], c), prompts[g])
                for g, (task, draw, group) in enumerate(zip(tasks, draws, samples, strict=True))
                for i, c in enumerate(group)
            ]
        )

    def _record(
        self, session: Session, task: Task, draw: str, i: int, sample: Completion, prompt: tuple[int, ...]
    ) -> dict[str, Any]:
        """Build the record of a sample: which of its steps are trained, and where its chunks begin."""
        # a sample is the initial noise, the trained steps and the last step, of the ODE
        trained_steps = len(sample.tokens) - 2
        if self.chunks and trained_steps != sum(self.chunks):
            raise ConfigError(
                f"rollout.chunks={list(self.chunks)} adds up to {sum(self.chunks)} denoising steps, and "
                f"{trained_steps} are trained, all but the last: change the numbers"
            )
        left_out: list[int] = []
        if self.share < 1:
            noisy = [k for k, s in enumerate(sample.extras["noise_scale"]) if k and s > 0]
            random_for(session, "share", draw, i).shuffle(noisy)
            left_out = noisy[int(len(noisy) * self.share + 1e-9) :]
        group = group_of(session, draw)
        return latent_record(session, task, group, f"{group}/{i}", [sample], self.chunks, left_out, prompt=list(prompt))


def need_noise(sampling: Sampling) -> None:
    """Refuse a noise level of 0: steps that draw nothing have no density, and a ratio of densities nothing to train."""
    if not sampling.temperature > 0:
        raise ConfigError(
            "sampling.temperature=0: steps without noise (eta 0, ODE) have variance 0 and no importance ratio: raise it"
        )


def denoising(sampling: Sampling, **options: Any) -> DenoisingSampling:
    """Return the sampling settings of a denoising model, with these options."""
    fields = {f.name: getattr(sampling, f.name) for f in dataclasses.fields(Sampling)}
    return DenoisingSampling(**{**fields, **options})


def continue_request(prompt: tuple[int, ...], latents: np.ndarray, streams: tuple[StreamKey, ...]) -> Request:
    """Build a request that goes on from the last of these latents, [n, D]."""
    blank = np.full((len(prompt), latents.shape[1]), np.nan, dtype=latents.dtype)
    return Request(prompt + (-1,) * len(latents), streams, extras={"latent": np.concatenate([blank, latents])})


def concatenate(head: Completion, tail: Completion) -> Completion:
    """Join the beginning of a sample and its continuation."""
    extras = {name: np.concatenate([x, tail.extras[name]]) for name, x in head.extras.items()}
    tokens, logprobs = head.tokens + tail.tokens, head.logprobs + tail.logprobs
    return dataclasses.replace(tail, tokens=tokens, logprobs=logprobs, extras=extras)


@part("denoise_tree", stage="rollout")
@dataclass(frozen=True)
class DenoiseTree(RolloutPart):
    """`branches` that leave each step of a deterministic path, from each of `seeds` initial noises.

    The path is the ODE's. A branch takes one step with noise (`sampling.temperature` is its level, above 0) and goes on
    by the ODE to the end, so that its outcome is about that step, the trajectory's only trained token. The path is
    stored once and branches are forks of it; the last step has none. With T steps a group has
    seeds * branches * (T - 1) trajectories, and a seed costs T steps of the path and branches * T (T - 1) / 2 of
    branches.

    by_seed   a group is the branches of one seed ("s{step}/{task}/{seed}"), not of the task: the comparison then leaves
              out the initial noise

    Under `info` of a trajectory: `seed` and `branched_at`, the step.

    Source: TempFlow-GRPO, arXiv 2508.04324 (4 seeds and 6 branches, as in its reference code; groups by seed in the
    paper's later versions only).
    """

    seeds: Count = 4
    branches: Count = 6
    by_seed: bool = False

    provides = ("latents", "forks")

    def evaluation(self, samples: int) -> Denoise:
        """Return the rollout for held-out tasks: samples without branches."""
        return Denoise(samples)

    @staticmethod
    def check_sampling(sampling: Sampling) -> None:
        """Refuse a noise level of 0."""
        need_noise(sampling)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        self.check_sampling(session.sampling)
        draws = name_draws(tasks)
        prompts = [session.encode(task) for task in tasks]
        ode = dataclasses.replace(session.sampling, temperature=0.0)
        # the path has no noise, so a seed's stream draws its initial noise alone
        paths = session.sample(requests(prompts, draws, self.seeds, session), ode)
        if any(path.finish != "stop" for group in paths for path in group):
            raise ConfigError(
                f"sampling.max_new_tokens={session.sampling.max_new_tokens} is too few for the initial noise and every "
                "denoising step: raise it"
            )
        # every step but the last may be left: a single step with noise, then the ODE from there to the end
        branches = [
            _Branch(task, draw, prompt, path, seed, at)
            for task, draw, prompt, group in zip(tasks, draws, prompts, paths, strict=True)
            for seed, path in enumerate(group)
            for at in range(len(path.tokens) - 2)
        ]
        one = dataclasses.replace(session.sampling, max_new_tokens=1)
        steps = session.sample([b.step(session, self.branches) for b in branches], one)
        ends = session.sample(
            [b.end(session, i, y) for b, ys in zip(branches, steps, strict=True) for i, y in enumerate(ys)], ode
        )
        end_of_branch = iter(group[0] for group in ends)
        records = []
        for branch, ys in zip(branches, steps, strict=True):
            for i, y in enumerate(ys):
                records.append(branch.record(session, i, y, next(end_of_branch), self.by_seed))
        return Forest.from_records(records)


@dataclass(frozen=True)
class _Branch:
    """Branching point on the path of a seed, before the step `at`."""

    task: Task
    draw: str
    prompt: tuple[int, ...]
    path: Completion
    seed: int
    at: int

    def step(self, session: Session, branches: int) -> Request:
        """Build the request of the step with noise, with a stream for each branch."""
        keys = [self._key(session, i, 0) for i in range(branches)]
        return continue_request(self.prompt, self.path.extras["latent"][: self.at + 1], tuple(keys))

    def end(self, session: Session, branch: int, y: Completion) -> Request:
        """Build the request of the ODE after the step with noise; nothing is drawn, so its stream is only a name."""
        latents = np.concatenate([self.path.extras["latent"][: self.at + 1], y.extras["latent"]])
        return continue_request(self.prompt, latents, (self._key(session, branch, 1),))

    def _key(self, session: Session, branch: int, turn: int) -> StreamKey:
        return stream(session, self.draw, self.seed, (self.at, branch), turn)

    def record(self, session: Session, branch: int, y: Completion, end: Completion, by_seed: bool) -> dict[str, Any]:
        """Build a branch's record, as a fork that stores the shared path once.

        The first branch of a seed is written in full, the first of each later step forks from the one before, and the
        other branches of a step from its first.
        """
        task = group_of(session, self.draw)
        start = f"{task}/{self.seed}"
        shared_tokens, of = (self.at + 1, self.at) if branch else (self.at, self.at - 1)
        columns: dict[str, Any] = {"prompt": list(self.prompt)}
        if shared_tokens:
            columns = {"fork": {"of": f"{start}.{of}.0", "turn": 0, "token": shared_tokens}}
        parts = [cut(self.path, shared_tokens, self.at + 1), y, end]
        info = {"seed": self.seed, "branched_at": self.at}
        name = f"{start}.{self.at}.{branch}"
        return latent_record(session, self.task, start if by_seed else task, name, parts, info=info, **columns)


def cut(sample: Completion, begin: int, end: int) -> Completion:
    """Return the tokens from `begin` to `end` of a completion."""
    extras = {name: x[begin:end] for name, x in sample.extras.items()}
    part = slice(begin, end)
    return dataclasses.replace(sample, tokens=sample.tokens[part], logprobs=sample.logprobs[part], extras=extras)


def segment_begins(tokens: int, chunks: Sequence[int]) -> list[int]:
    """Tokens at which segments begin: the initial noise, each chunk of steps, the rest; [] for each token.

    >>> segment_begins(7, [2, 3]), segment_begins(3, [])
    ([0, 1, 3, 6], [0, 1, 2])
    """
    return [0, *accumulate([1, *chunks])] if chunks else list(range(tokens))


def latent_record(
    session: Session,
    task: Task,
    group: str,
    name: str,
    parts: Sequence[Completion],
    chunks: Sequence[int] = (),
    left_out: Sequence[int] = (),
    **columns: Any,
) -> dict[str, Any]:
    """Build a record whose action is these parts, or the tokens that a fork adds to its base.

    left_out  steps with noise that are not trained
    """
    parts = [part for part in parts if part.tokens]
    turn = action(*parts)
    extras = turn["extras"]
    extras |= {key: extra_of(parts, key) for key in parts[0].extras if key not in extras}
    trainable = (extras["noise_scale"] > 0).tolist()
    trainable[0] &= "fork" in columns  # without a fork the first token is the initial noise
    for k in left_out:
        trainable[k] = False
    turn |= {
        "trainable": trainable,
        "segments": segment_begins(len(trainable), chunks),
        "action_text": _format_latent(parts[-1].extras["latent"][-1]),
    }
    # a model of pictures has made one: its text names it, and the record refers to it
    if (picture := parts[-1].picture) is not None:
        turn["action_text"] = label(picture)
        columns["info"] = {**columns.get("info", {}), PICTURE: picture}
    return record(task, group, name, session.sampling, turns=[turn], truncated=parts[-1].finish == "length", **columns)


def _format_latent(point: np.ndarray) -> str:
    """Format the first few numbers of a latent, for people."""
    numbers = ", ".join(f"{x:+.2f}" for x in point[:4])
    return f"({numbers}{', ...' if len(point) > 4 else ''})"
