"""Learner for flow models: log-densities of denoising steps, computed from the stored latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import ModelError
from gxpo.forest.columns import last_before
from gxpo.forest.forest import ACTION, Forest
from gxpo.learning.base import outputs_of
from gxpo.learning.module import ModuleLearner
from gxpo.parts.protocols import Output

OUTPUTS = ("logprob", "entropy", "prediction", "gap", "mixed_error")
EXTRAS = ("latent", "time", "noise_scale", "noise_kept")


@dataclass(frozen=True, eq=False)
class Steps:
    """A micro-batch of denoising steps.

    entries [E]  the action tokens (of P) that are read, and reading [E] which of the Q steps is each one's
    latent, next_latent [Q, D]; time, next_time, scale, carry [Q]; condition [Q]; inner [Q] bool: its mean is the
    network's; renoised [Q] bool: `next_latent` is the sample `data` with noise added; data [Q, D], without such rows
    [0, D]
    """

    entries: Tensor
    reading: Tensor
    latent: Tensor
    next_latent: Tensor
    time: Tensor
    next_time: Tensor
    scale: Tensor
    carry: Tensor
    condition: Tensor
    inner: Tensor
    renoised: Tensor
    data: Tensor

    @property
    def n_stored(self) -> int:
        """Number of steps for which the network runs."""
        return int((self.inner | self.renoised).sum())


class FlowPacking:
    """Stored tokens of a forest, each with the previous latent and the condition."""

    def __init__(self, forest: Forest, limit: int, conditions: int) -> None:
        self.forest, self.limit = forest, limit
        for name in EXTRAS:
            if name not in forest.extras:
                raise ModelError(
                    f"a flow learns from rollouts with extras {', '.join(EXTRAS)}, and these have no {name!r}: sample "
                    "them with rollout denoise or denoise_tree"
                )
        # a step starts at the latent before it, and initial noise was drawn by nobody
        self.before = forest.pack().predecessor
        root = last_before(forest.parent, torch.ones_like(forest.parent, dtype=torch.bool))
        self.condition = forest.token[forest.first_token[root][forest.token_node]]
        action_tokens = torch.unique(forest.path_token)
        acted_conditions = self.condition[action_tokens]
        # a prompt of text would be read as ids of conditions
        if action_tokens.numel() and not bool(((acted_conditions >= 0) & (acted_conditions < conditions)).all()):
            raise ModelError(
                f"conditions {int(acted_conditions.min())}..{int(acted_conditions.max())} of {conditions}: each prompt "
                "is one condition's id"
            )
        if not bool(forest.extras["noise_scale"][action_tokens].isfinite().all()):
            raise ModelError("some actions have no noise_scale: a flow can't learn from actions that are not latents")
        is_latent = (forest.kind == ACTION)[forest.token_node]
        self.follows = (self.before >= 0) & is_latent[self.before.clamp_min(0)]  # the others are initial noise
        # a step without noise has no density: it adds nothing to the log-prob
        renoised = forest.extras.get("renoised")
        self.renoised = torch.zeros_like(is_latent) if renoised is None else renoised.nan_to_num(0.0) > 0
        self.inner = self.follows & (forest.extras["noise_scale"] > 0) & ~self.renoised

    def microbatches(self, entries: Tensor, cuts: Sequence[Tensor] | None = None, at_least: int = 1) -> list[Steps]:
        """Micro-batches of these action tokens, at most `limit` stored tokens each; rows of one token stay together."""
        entry_sets = [entries] if cuts is None else [part[torch.isin(part, entries)] for part in cuts]
        out: list[Steps] = []
        for part in entry_sets:
            tokens = torch.unique(self.forest.path_token[part])
            n = max(-(-tokens.numel() // self.limit), min(at_least, tokens.numel()), 1)
            for chunk in tokens.tensor_split(n) if tokens.numel() else ():
                out.append(self._steps(chunk, part))
        return out

    def _steps(self, tokens: Tensor, entries: Tensor) -> Steps:
        token = self.forest.path_token[entries]
        # a latent that several trajectories share is computed once, and read by each of them
        chunk_entries = entries[torch.isin(token, tokens)]
        before, extras = self.before[tokens].clamp_min(0), self.forest.extras
        # the sample that was noised again is the last latent of its action
        renoised = self.renoised[tokens]
        last = self.forest.first_token[self.forest.token_node[tokens] + 1] - 1 if bool(renoised.any()) else tokens[:0]
        return Steps(
            entries=chunk_entries,
            reading=torch.searchsorted(tokens, self.forest.path_token[chunk_entries]),
            latent=extras["latent"][before],
            next_latent=extras["latent"][tokens].to(torch.float64),
            time=extras["time"][before].to(torch.float64),
            next_time=extras["time"][tokens].to(torch.float64),
            scale=extras["noise_scale"][tokens].to(torch.float64),
            carry=extras["noise_kept"][tokens].to(torch.float64),
            condition=self.condition[tokens],
            inner=self.inner[tokens],
            renoised=renoised,
            data=extras["latent"][last].to(torch.float64),
        )

    def flat_tokens(self, entries: Tensor) -> int:
        """Number of network evaluations for these action tokens without sharing."""
        return int((self.inner | self.renoised)[self.forest.path_token[entries]].sum())


class FlowLearner(ModuleLearner):
    """Holds and optimises a flow's parameters; settings as those of `ModuleLearner`.

    model  a `gxpo.models.denoising.Denoiser`; of one with adapters, only these are trained

    Outputs: "logprob", the log-density of the stored latent under the step's Gaussian, mean over the dimensions;
    "entropy", of that Gaussian, which depends on the noise level alone. Initial noise has those of N(0, I); steps of
    the ODE have 0, and no gradient. Of a sample that was noised again: "logprob" is minus the mean squared error of the
    network's "prediction", "gap" its mean squared difference from `anchor_prediction`, "mixed_error@b" the error of
    their mixture. `sampling` settings are not read: each token stores its noise. No value head or hidden states.
    """

    family = "a flow"

    def outputs(
        self,
        forest: Forest,
        names: Sequence[str] = ("logprob",),
        *,
        policy: str = "current",
        constants: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Detached float64 outputs of the "current" or the "reference" policy for every action token, [P]; "prediction"
        [P, D]. `constants` has "anchor_prediction" where one compares with it."""
        model = self.module_of(policy)
        batches = self._microbatches(self._packing(forest), torch.arange(forest.n_entries), None)
        nothing = torch.full((forest.n_entries,), torch.nan, dtype=torch.float64)
        vectors = nothing[:, None].expand(-1, self.model.dimension)

        def read(batch: Any) -> Mapping[str, Tensor]:
            return self._read(batch, names, model, constants)

        with self._short_memory("computing log-densities"):
            return outputs_of(read, batches, {n: vectors.clone() if n == "prediction" else nothing for n in names})

    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        """Not supported: raises an error."""
        raise ModelError("a flow has no hidden states to read: choose a method without them")

    def logits(self, states: Tensor) -> Tensor:
        """Not supported: raises an error."""
        raise ModelError("a flow has no vocabulary: choose a method that reads no logits")

    def _packing(self, forest: Forest) -> FlowPacking:
        return FlowPacking(forest, self.tokens_per_microbatch, self.model.conditions)

    def _live(self, batch: Steps, names: Sequence[str], *constants: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self._read(batch, names, self.model, *constants)

    def _read(
        self, steps: Steps, names: Sequence[str], model: Any, constants: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        requests = [Output(name) for name in names]
        if unknown := [x for x in requests if x.kind not in OUTPUTS]:
            raise ModelError(f"a flow has no output {unknown[0]!r}, only {', '.join(OUTPUTS)}: choose another method")
        # deterministic steps keep a mean of 0, which their density does not read
        mean = prediction = target = torch.zeros_like(steps.next_latent)
        inner_rows, noised_rows = (x.nonzero().squeeze(1) for x in (steps.inner, steps.renoised))
        if inner_rows.numel():
            network_inputs = (steps.latent, steps.condition, steps.time, steps.next_time, steps.carry)
            network_mean = model.mean(*(x[inner_rows].to(self.device) for x in network_inputs))
            mean = mean.index_copy(0, inner_rows, network_mean.to("cpu", torch.float64))
        if noised_rows.numel():
            network_inputs = (steps.next_latent, steps.condition, steps.next_time, steps.data)
            output, wanted = model.errors(*(x[noised_rows].to(self.device) for x in network_inputs))
            prediction = prediction.index_copy(0, noised_rows, output.to("cpu", torch.float64))
            target = target.index_copy(0, noised_rows, wanted.to("cpu", torch.float64))

        def logprob() -> Tensor:
            density = model.log_density(steps.next_latent, mean, steps.scale)
            if not noised_rows.numel():
                return density
            # minus the squared error stands for the log-probability of a sample that was noised again
            return torch.where(steps.renoised, -(prediction - target).square().mean(1), density)

        readers = {
            "logprob": lambda x: logprob(),
            "entropy": lambda x: model.entropy(steps.scale),
            "prediction": lambda x: prediction,
            "gap": lambda x: (prediction - self._anchor(steps, constants)).square().mean(1),
            "mixed_error": lambda x: self._mixed_error(steps, model, prediction, target, constants, float(x.at)),
        }
        return {x: readers[x.kind](x)[steps.reading] for x in requests}

    @staticmethod
    def _anchor(steps: Steps, constants: Mapping[str, Tensor] | None) -> Tensor:
        """Another policy's predictions of the micro-batch's steps, [Q, D]."""
        if constants is None or "anchor_prediction" not in constants:
            raise ModelError("this output compares predictions with another policy's: add signal.anchor")
        rows = constants["anchor_prediction"][steps.entries].to(torch.float64)
        return torch.zeros_like(steps.next_latent).index_copy(0, steps.reading, rows)

    def _mixed_error(
        self,
        steps: Steps,
        model: Any,
        prediction: Tensor,
        target: Tensor,
        constants: Mapping[str, Tensor] | None,
        share: float,
    ) -> Tensor:
        """Normalised squared error [Q], in the data, of anchor + share (prediction - anchor): DiffusionNFT's."""
        anchor = self._anchor(steps, constants)
        mixed = anchor + share * (prediction - anchor)
        scale = model.error_scale(steps.next_time.to(self.device)).cpu()
        error = scale[:, None] * (mixed - target)
        return error.square().mean(1) / error.detach().abs().mean(1).clamp_min(1e-5)
