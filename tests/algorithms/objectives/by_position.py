"""Surrogates and ratios that are functions, as parts whose options may be given by position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.objectives import Entries, control, surrogate
from gxpo.algorithms.objectives import ratio_trajectory as ratios
from gxpo.algorithms.objectives import surrogate_clips as clips
from gxpo.algorithms.objectives import surrogate_penalties as penalties
from gxpo.algorithms.objectives import surrogate_weights as weights
from gxpo.parts.definition import kind_of
from gxpo.parts.functions import signature


def part_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The part that a function is, made with options in the order of its signature."""
    names, kind = list(signature(function).options), kind_of(function)
    return lambda *values, **options: kind(**dict(zip(names, values, strict=False)), **options)


def slopes(part: Any, x: Entries) -> Tensor:
    """-dL/dlogprob / A of each token: a detached weight, or what a clip leaves of the ratio."""
    logprob = x.logprob.detach().clone().requires_grad_()
    log_ratio = logprob - x.below
    entropy, standing = x.entropy, x.standing
    entries = Entries(
        logprob, x.below, log_ratio, log_ratio.exp(), x.credit, x.trajectory, x.turn, entropy, log_ratio, standing
    )
    (slope,) = torch.autograd.grad(part.loss(entries).sum(), logprob)
    return -slope / x.credit


Unclipped, Truncate = part_of(surrogate.unclipped), part_of(surrogate.truncate)
LogLikelihood = part_of(surrogate.log_likelihood)
Filtered, Prefix, SequenceSum = map(part_of, (ratios.filtered, ratios.prefix_level, ratios.sequence_sum))
CovarianceClip, ElasticClip = part_of(clips.covariance_clip), part_of(clips.elastic_clip)
EntropyAdaptiveClip, HybridClip = part_of(clips.entropy_adaptive_clip), part_of(clips.hybrid_clip)
NestedClip, PreservingClip = part_of(clips.nested_clip), part_of(clips.preserving_clip)
CovariancePenalty, Drift = part_of(penalties.covariance_penalty), part_of(penalties.drift)
QuadraticPenalty, RatioTarget = part_of(penalties.quadratic_penalty), part_of(penalties.ratio_target)
Sigmoid = part_of(penalties.sigmoid)
DivergenceMask, Gamma = part_of(weights.divergence_mask), part_of(weights.gamma)
RatioMask, Tapered = part_of(weights.ratio_mask), part_of(weights.tapered)
Annealed, Schedule, TwoPhaseDecay = map(part_of, (control.annealed, control.schedule, control.two_phase_decay))
