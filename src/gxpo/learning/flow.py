"""Learner for flow models: log-densities of denoising steps, computed from the stored latents."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gxpo.base import runtime
from gxpo.base.devices import need_float64
from gxpo.base.errors import ConfigError, ModelError
from gxpo.forest.columns import last_before
from gxpo.forest.forest import ACTION, Forest
from gxpo.learning.base import InProcess, outputs_of
from gxpo.learning.optimiser import Optimiser, Schedule
from gxpo.learning.optimiser_kinds import Rule
from gxpo.parts.protocols import Output

OUTPUTS = ("logprob", "entropy", "prediction", "gap", "mixed_error")
EXTRAS = ("latent", "time", "noise_scale", "noise_kept")


@dataclass(frozen=True, eq=False)
class Steps:
    """A micro-batch of denoising steps.

    entries [E]  the action tokens (of P) that are read, and reading [E] which of the Q steps is each one's
    latent, next_latent [Q, D]; time, next_time, scale, kept [Q]; condition [Q]; inner [Q] bool: its mean is the
    network's; renoised [Q] bool: `next_latent` is the sample `data` [Q, D] with noise added
    """

    entries: Tensor
    reading: Tensor
    latent: Tensor
    next_latent: Tensor
    time: Tensor
    next_time: Tensor
    scale: Tensor
    kept: Tensor
    condition: Tensor
    inner: Tensor
    renoised: Tensor
    data: Tensor

    @property
    def stored(self) -> int:
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
        last = self.forest.first_token[self.forest.token_node[tokens] + 1] - 1
        return Steps(
            entries=chunk_entries,
            reading=torch.searchsorted(tokens, self.forest.path_token[chunk_entries]),
            latent=extras["latent"][before],
            next_latent=extras["latent"][tokens].to(torch.float64),
            time=extras["time"][before].to(torch.float64),
            next_time=extras["time"][tokens].to(torch.float64),
            scale=extras["noise_scale"][tokens].to(torch.float64),
            kept=extras["noise_kept"][tokens].to(torch.float64),
            condition=self.condition[tokens],
            inner=self.inner[tokens],
            renoised=self.renoised[tokens],
            data=extras["latent"][last].to(torch.float64),
        )

    def flat_tokens(self, entries: Tensor) -> int:
        """Number of network evaluations for these action tokens without sharing."""
        return int((self.inner | self.renoised)[self.forest.path_token[entries]].sum())


class FlowLearner(InProcess):
    """Holds and optimises a flow's parameters; settings as those of `TorchLearner`.

    model  a `gxpo.models.denoising.Denoiser`; of one with adapters, only these are trained

    Outputs: "logprob", the log-density of the stored latent under the step's Gaussian, mean over the dimensions;
    "entropy", of that Gaussian, which depends on the noise level alone. Initial noise has those of N(0, I); steps of
    the ODE have 0, and no gradient. Of a sample that was noised again: "logprob" is minus the mean squared error of the
    network's "prediction", "gap" its mean squared difference from `anchor_prediction`, "mixed_error@b" the error of
    their mixture. `sampling` settings are not read: each token stores its noise. No value head or hidden states.
    """

    def __init__(
        self,
        model: Any,
        *,
        lr: float,
        optimiser: str = "adamw",
        betas: Sequence[float] | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = 1.0,
        schedule: Literal["constant", "cosine", "linear"] = "constant",
        warmup_steps: int = 0,
        total_steps: int | None = None,
        tokens_per_microbatch: int = 8192,
        device: str | torch.device = "cpu",
        reference: bool = False,
        rule: Rule | None = None,
    ) -> None:
        if tokens_per_microbatch < 1:
            raise ModelError(f"learner.tokens_per_microbatch is {tokens_per_microbatch}; it must be at least 1")
        need_float64(device, "a denoising model")
        self.device, self.tokens_per_microbatch = torch.device(device), tokens_per_microbatch
        self.model = model.to(self.device).eval()
        if optimiser == "muon":
            raise ConfigError("learner.optimiser=muon is for language models' hidden matrices: use another for a flow")
        # kept for `second_learner`, which makes a second learner of the same kind
        self._optimiser_settings: dict[str, Any] = {
            "kind": optimiser,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
            "rule": rule,
        }
        # copied now: the reference is what the policy begins with
        self._reference: Any = copy.deepcopy(self.model).requires_grad_(False) if reference else None
        self.optimiser = Optimiser(
            {name: p for name, p in self.model.named_parameters() if p.requires_grad},
            lr=lr,
            **self._optimiser_settings,
            schedule=Schedule(schedule, warmup_steps, total_steps),
        )

    def second_learner(self, *, lr: float) -> FlowLearner:
        """Create another learner of the same kind from a copy of the parameters, with its own optimiser."""
        size = self.tokens_per_microbatch
        return FlowLearner(
            copy.deepcopy(self.model),
            lr=lr,
            tokens_per_microbatch=size,
            device=self.device,
            optimiser=self._optimiser_settings["kind"],
            **{name: x for name, x in self._optimiser_settings.items() if name != "kind"},
        )

    def follow(self, policy: FlowLearner, rate: float) -> None:
        """Move every parameter by `rate` towards another learner's (exponential moving average)."""
        theirs = policy.snapshot()
        self.restore({name: torch.lerp(x, theirs[name].to(x), rate) for name, x in self.snapshot().items()})

    @torch.no_grad()
    def refer(self, parameters: Mapping[str, Tensor]) -> None:
        """Make the policy with these parameters the reference."""
        for name, p in self._policy("reference").named_parameters():
            if name in parameters:  # beside adapters nothing moves
                p.copy_(parameters[name])

    def outputs(
        self,
        forest: Forest,
        names: Sequence[str] = ("logprob",),
        *,
        policy: str = "current",
        given: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Detached float64 outputs of the "current" or the "reference" policy for every action token, [P]; "prediction"
        [P, D]. `given` has "anchor_prediction" where one compares with it."""
        model = self._policy(policy)
        batches = self._microbatches(self._packing(forest), torch.arange(forest.n_entries), None)
        nothing = torch.full((forest.n_entries,), torch.nan, dtype=torch.float64)
        vectors = nothing[:, None].expand(-1, self.model.dimension)

        def read(batch: Any) -> Mapping[str, Tensor]:
            return self._read(batch, names, model, given)

        with self._short_memory("computing log-densities"):
            return outputs_of(read, batches, {n: vectors.clone() if n == "prediction" else nothing for n in names})

    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        """Not supported: raises an error."""
        raise ModelError("a flow has no hidden states to read: choose a method without them")

    def logits(self, states: Tensor) -> Tensor:
        """Not supported: raises an error."""
        raise ModelError("a flow has no vocabulary: choose a method that reads no logits")

    def _policy(self, policy: str) -> Any:
        if policy == "current":
            return self.model
        if policy != "reference":
            raise ModelError(f"policy is 'current' or 'reference', not {policy!r}")
        if self._reference is None:
            raise ModelError("no reference policy is kept: make the learner with reference=True")
        return self._reference

    def _packing(self, forest: Forest) -> FlowPacking:
        return FlowPacking(forest, self.tokens_per_microbatch, self.model.conditions)

    def _microbatches(self, packing: FlowPacking, entries: Tensor, cuts: Sequence[Tensor] | None) -> list[Any]:
        return packing.microbatches(entries, cuts, at_least=runtime.world())

    def _live(self, batch: Steps, names: Sequence[str], *given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self._read(batch, names, self.model, *given)

    def _read(
        self, steps: Steps, names: Sequence[str], model: Any, given: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        requests = [Output(name) for name in names]
        if unknown := [x for x in requests if x.kind not in OUTPUTS]:
            raise ModelError(f"a flow has no output {unknown[0]!r}, only {', '.join(OUTPUTS)}: choose another method")
        # deterministic steps keep a mean of 0, which their density does not read
        mean, target = torch.zeros_like(steps.next_latent), torch.zeros_like(steps.next_latent)
        inner_rows, noised_rows = (x.nonzero().squeeze(1) for x in (steps.inner, steps.renoised))
        if inner_rows.numel():
            network_inputs = (steps.latent, steps.condition, steps.time, steps.next_time, steps.kept)
            network_mean = model.mean(*(x[inner_rows].to(self.device) for x in network_inputs))
            mean = mean.index_copy(0, inner_rows, network_mean.to("cpu", torch.float64))
        prediction = torch.zeros_like(mean)
        if noised_rows.numel():
            network_inputs = (steps.next_latent, steps.condition, steps.next_time, steps.data)
            output, wanted = model.errors(*(x[noised_rows].to(self.device) for x in network_inputs))
            prediction = prediction.index_copy(0, noised_rows, output.to("cpu", torch.float64))
            target = target.index_copy(0, noised_rows, wanted.to("cpu", torch.float64))
        readers = {
            # minus the squared error stands for the log-probability of a sample that was noised again
            "logprob": lambda x: torch.where(
                steps.renoised,
                -(prediction - target).square().mean(1),
                model.log_density(steps.next_latent, mean, steps.scale),
            ),
            "entropy": lambda x: model.entropy(steps.scale),
            "prediction": lambda x: prediction,
            "gap": lambda x: (prediction - self._anchor(steps, given)).square().mean(1),
            "mixed_error": lambda x: self._mixed_error(steps, model, prediction, target, given, float(x.at)),
        }
        return {x: readers[x.kind](x)[steps.reading] for x in requests}

    @staticmethod
    def _anchor(steps: Steps, given: Mapping[str, Tensor] | None) -> Tensor:
        """Another policy's predictions of the micro-batch's steps, [Q, D]."""
        if given is None or "anchor_prediction" not in given:
            raise ModelError("this output compares predictions with another policy's: add signal.anchor")
        rows = given["anchor_prediction"][steps.entries].to(torch.float64)
        return torch.zeros_like(steps.next_latent).index_copy(0, steps.reading, rows)

    def _mixed_error(
        self,
        steps: Steps,
        model: Any,
        prediction: Tensor,
        target: Tensor,
        given: Mapping[str, Tensor] | None,
        share: float,
    ) -> Tensor:
        """Normalised squared error [Q], in the data, of anchor + share (prediction - anchor): DiffusionNFT's."""
        anchor = self._anchor(steps, given)
        mixed = anchor + share * (prediction - anchor)
        scale = model.error_scale(steps.next_time.to(self.device)).cpu()
        error = scale[:, None] * (mixed - target)
        return error.square().mean(1) / error.detach().abs().mean(1).clamp_min(1e-5)
