"""Rollouts of denoising models without a trajectory's ratio: candidates of every step, and samples noised again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Sampling, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count, Limit, RolloutPart, group_of, name_draws, random_for, requests, stream
from gxpo.sampling.rollouts.denoise import (
    Denoise,
    Noise,
    concatenate,
    continue_request,
    cut,
    denoising,
    latent_record,
    need_noise,
)


@part("denoise_steps", stage="rollout")
@dataclass(frozen=True)
class DenoiseSteps(RolloutPart):
    """Each denoising step of `group_size` samples is a trajectory whose outcome is that of its one-step look-ahead.

    From the latent before step k, `candidates` next latents are drawn; a random one goes on. A trajectory is the latent
    before, the candidate, its only trained token, and the sample to which one step of the ODE leads from there: that
    is what the reward sees, so a scorer of samples scores steps. The last step, the ODE's, has none.

    candidates  1: steps of a sample alone; more are compared with one another
    first_step  first step with trajectories; the ones before are sampled alone
    by_sample   a group is the candidates of one sample's step ("s{step}/{task}/{sample}/{k}"), not of the step of all
                samples of a task ("s{step}/{task}/{k}")
    noise       see `denoise`

    Under `info` of a trajectory: `sample`, its name, and `denoising_step`.

    Sources: SPO, arXiv 2406.04314 (4 candidates, a random one goes on), and its code, whose scorer is a model of noisy
    latents; VGPO, arXiv 2512.12387 (look-ahead by one step).
    """

    group_size: Count = 8
    candidates: Count = 1
    first_step: Limit = 0
    by_sample: bool = False
    noise: Noise = field(default="auto", kw_only=True)

    provides = ("latents",)

    def evaluation(self, samples: int) -> Denoise:
        """Return the rollout for held-out tasks: whole samples."""
        return Denoise(samples, noise=self.noise)

    @staticmethod
    def check_sampling(sampling: Sampling) -> None:
        """Refuse a noise level of 0."""
        need_noise(sampling)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        self.check_sampling(session.sampling)
        draws, prompts = name_draws(tasks), [session.encode(task) for task in tasks]
        one = denoising(session.sampling, noise=self.noise, max_new_tokens=1)
        ahead = dataclasses.replace(one, ahead=True)
        heads = session.sample(requests(prompts, draws, self.group_size, session), one)
        # a sample: its task, draw and number, the prompt, and all of its latents so far
        paths = [(g, i, head) for g, group in enumerate(heads) for i, head in enumerate(group)]
        records, k = list[dict[str, Any]](), 0
        while True:
            n = self.candidates if k >= self.first_step else 1
            streams = [tuple(stream(session, draws[g], i, (k, b)) for b in range(n)) for g, i, _ in paths]
            nexts = session.sample(
                [
                    continue_request(prompts[g], path.extras["latent"], keys)
                    for (g, _, path), keys in zip(paths, streams, strict=True)
                ],
                one,
            )
            # the step without noise is the last: every sample has arrived
            if not nexts or nexts[0][0].extras["noise_scale"][0] == 0:
                break
            grown = [
                (g, i, concatenate(path, y), path, y) for (g, i, path), ys in zip(paths, nexts, strict=True) for y in ys
            ]
            if k >= self.first_step:
                requests_ahead = [
                    continue_request(prompts[g], x.extras["latent"], streams[0][:1]) for g, _, x, _, _ in grown
                ]
                ends = session.sample(requests_ahead, ahead)
                for b, ((g, i, _, path, y), (end,)) in enumerate(zip(grown, ends, strict=True)):
                    sample = f"{group_of(session, draws[g])}/{i}"
                    group = f"{sample if self.by_sample else group_of(session, draws[g])}/{k}"
                    records.append(
                        latent_record(
                            session,
                            tasks[g],
                            group,
                            f"{sample}.{k}.{b % n}",
                            [_fixed_latent(cut(path, len(path.tokens) - 1, len(path.tokens))), y, end],
                            prompt=list(prompts[g]),
                            info={"sample": sample, "denoising_step": k},
                        )
                    )
            picks = [random_for(session, "pick", draws[g], i, k).randrange(n) for g, i, _ in paths]
            paths = [grown[p * n + pick][:3] for p, pick in enumerate(picks)]
            k += 1
        if not records:
            raise ConfigError(f"rollout.first_step={self.first_step}: {k} steps have noise, so it is below that")
        return Forest.from_records(records)


def _fixed_latent(latent: Completion) -> Completion:
    """Return a latent as context, without a log-prob or noise of its own: nothing of it is trained."""
    zero = np.zeros(1)
    return dataclasses.replace(latent, logprobs=[0.0], extras={**latent.extras, "noise_scale": zero})


@part("renoise", stage="rollout")
@dataclass(frozen=True)
class Renoise(RolloutPart):
    """Samples of the ODE, each noised again to `levels` times of the schedule: for losses that match, without ratios
    of a path.

    The action of a trajectory is its re-noised latents, the trained tokens, and then the sample itself. The times are
    stratified: one from each of `levels` equal parts of the steps from `first_step` up to `end_step`, where noise is
    step 0.

    end_step      0: all steps
    shared_noise  re-noised latents of one group have the same times and the same noise

    `sampling.temperature` is not read. Sources: AWM, arXiv 2509.25050 (6 levels of the sampler's own steps but the
    first); DGPO, arXiv 2510.08425 (4 of the noisiest, shared within a group), and their code.
    """

    group_size: Count = 8
    levels: Count = 4
    first_step: Limit = 0
    end_step: Limit = 0
    shared_noise: bool = False

    provides = ("latents", "renoised")
    has_behaviour = False

    def evaluation(self, samples: int) -> Denoise:
        """Return the rollout for held-out tasks."""
        return Denoise(samples)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        draws, prompts = name_draws(tasks), [session.encode(task) for task in tasks]
        ode = denoising(session.sampling, temperature=0.0)
        samples = session.sample(requests(prompts, draws, self.group_size, session), ode)
        rows = [(g, i, sample) for g, group in enumerate(samples) for i, sample in enumerate(group)]
        steps = min((len(sample.tokens) - 1 for _, _, sample in rows), default=0)
        first, last = self.first_step, min(self.end_step or steps, steps)
        if rows and not 0 <= first < last:
            raise ConfigError(
                f"rollout.first_step={first} and rollout.end_step={self.end_step}: the sampler has {steps} steps"
            )
        renoised_latents: dict[tuple[int, int], list[Completion]] = {(g, i): [] for g, i, _ in rows}
        for j in range(self.levels):
            # rows of one time are noised together; the random numbers are the group's, or the sample's own
            by_step: dict[int, list[tuple[int, int, Completion, int]]] = {}
            for g, i, sample in rows:
                owner = 0 if self.shared_noise else i
                u = random_for(session, "time", draws[g], owner, j).random()
                k = first + int((last - first) * (j + u) / self.levels)
                by_step.setdefault(k, []).append((g, i, sample, owner))
            for k, members in by_step.items():
                renoise_requests = [
                    continue_request(prompts[g], x.extras["latent"][-1:], (stream(session, draws[g], owner, (j,), 2),))
                    for g, _, x, owner in members
                ]
                noised_rows = session.sample(renoise_requests, dataclasses.replace(ode, renoised=k))
                for (g, i, _, _), (y,) in zip(members, noised_rows, strict=True):
                    renoised_latents[g, i].append(y)
        return Forest.from_records(
            [self._record(session, tasks[g], draws[g], i, renoised_latents[g, i], x, prompts[g]) for g, i, x in rows]
        )

    @staticmethod
    def _record(
        session: Session,
        task: Task,
        draw: str,
        i: int,
        renoised_latents: Sequence[Completion],
        sample: Completion,
        prompt: tuple[int, ...],
    ) -> dict[str, Any]:
        """Build the record of a sample and of its re-noised latents."""
        group, n = group_of(session, draw), len(renoised_latents)
        end = cut(sample, len(sample.tokens) - 1, len(sample.tokens))
        row = latent_record(session, task, group, f"{group}/{i}", [*renoised_latents, end], prompt=list(prompt))
        turn = row["turns"][0]
        turn["trainable"] = [True] * n + [False]
        turn["extras"]["renoised"] = (torch.arange(n + 1) < n).to(torch.float64)
        return row
