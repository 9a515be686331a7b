"""Causes of recorded log-probs that are not the policy's: each is proposed only where its test fits the records.

Order of the tests, from what proves itself: weights by their fingerprint; records, where few rollouts differ and the
others fit; temperature, support and age, where the records fit under another value; rounding by the size of the
deviations; else unknown.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.training.verify_comparison import Comparison, Weights, with_sampling

Cause = tuple[str, str, str]  # name, finding, remedy

MOST_ROLLOUTS = 8  # that are recomputed under another value
NEAREST = 6  # other versions of the weights that are tried
FITS = 0.98  # share of tokens within the tolerance under another value, from which the records fit it
EDITED = 0.5  # share of rollouts that differ, up to which the records and not the policy are to blame
ROUNDING = (0.05, 1.0)  # mean and largest deviation, in nats, that 16-bit or 8-bit arithmetic makes
TEMPERATURES = (0.25, 4.0)  # range of the search


def explain(comparison: Comparison, weights: Weights) -> Cause:
    """Name the cause of a comparison that is not equal."""
    if comparison.trouble:
        return _weights(comparison)
    return (
        _future(comparison)
        or _edits(comparison)
        or _elsewhere(comparison, weights)
        or _changed_since(comparison, weights)
        or _rounding(comparison, weights)
        or _unknown(comparison, weights)
    )


def refused_support(forest: Forest, is_compared: Tensor) -> tuple[str, str] | None:
    """Finding and remedy where the records lack the support that their settings imply, or hold another; else None."""
    support = forest.extras.get("support")
    rows = forest.path_token if support is None else support[forest.path_token]
    has_support_P = torch.zeros_like(is_compared) if support is None else (rows >= 0).any(1)
    is_cut_R = torch.tensor(
        [bool(s.get("top_k")) or (s.get("top_p") or 1) < 1 or bool(s.get("min_p")) for s in forest.sampling]
    )
    lacks_P = forest.to_path(is_cut_R, "R") & ~has_support_P & is_compared
    remedy = "sample without top_k, top_p and min_p, or restore the records' .safetensors file, which holds `support`"
    if bool(lacks_P.any()):
        entry = int(lacks_P.nonzero()[0])
        name, sampling = _rollout(forest, entry)
        cuts = ", ".join(
            f"{k}={sampling[k]:g}" for k in ("top_k", "top_p", "min_p") if sampling.get(k) not in (None, 0, 1.0)
        )
        return f"rollout {name!r} was sampled with {cuts}, and the ids that this allowed are not in the records", remedy
    if support is None:
        return None
    outside_P = has_support_P & ~(rows == forest.token[forest.path_token][:, None]).any(1) & is_compared
    if not bool(outside_P.any()):
        return None
    entry = int(outside_P.nonzero()[0])
    token = int(forest.token[forest.path_token[entry]])
    return (
        f"rollout {_rollout(forest, entry)[0]!r} has the token {token} where its own `support` does not allow it: "
        "tokens or support were changed after sampling",
        "restore the records of this step",
    )


def _rollout(forest: Forest, entry: int) -> tuple[str, Any]:
    r = int(forest.path_trajectory[entry])
    return forest.id[r], forest.sampling[r]


# ---------------------------------------------------------------- weights
def _weights(comparison: Comparison) -> Cause:
    version, trouble = next(iter(comparison.trouble.items()))
    return (
        "weights",
        trouble,
        f"restore checkpoints/step-{version:06d} from a copy of this run, or delete it: `gxpo resume` would go on from "
        "an exchanged one",
    )


# ---------------------------------------------------------------- records
def _future(comparison: Comparison) -> Cause | None:
    """A version that the policy did not have yet when the step was sampled."""
    if not bool((late := comparison.is_compared & (comparison.version >= comparison.step)).any()):
        return None
    place = comparison.place(int(late.nonzero()[0]))
    return (
        "age",
        f"rollout {place.rollout!r} of step {comparison.step} says policy version {place.version}, and at most "
        f"{comparison.step - 1} had been made",
        "restore the records of this step",
    )


def _edits(comparison: Comparison) -> Cause | None:
    """Check for edited records: few rollouts differ, and all others are the policy's."""
    forest = comparison.forest
    is_different_R = torch.zeros(forest.n_trajectories, dtype=torch.bool)
    is_different_R[forest.path_trajectory[comparison.is_different]] = True
    n_compared = len(torch.unique(forest.path_trajectory[comparison.is_compared]))
    if int(is_different_R.sum()) > EDITED * n_compared:
        return None
    # The rollout with the largest deviation: is it one number, or everything from one token on?
    worst = int(comparison.deviation.argmax())
    entries = forest.path_of(int(forest.path_trajectory[worst]))
    flags = comparison.is_different[entries]
    first = int(flags.nonzero()[0])
    after = flags[first + 1 :]
    place = comparison.place(int(entries[first]))
    names = [forest.id[r] for r in is_different_R.nonzero().squeeze(1).tolist()]
    rollouts_text = (
        f"{len(names)} of {n_compared} rollouts differ ({', '.join(map(repr, names[:4]))}{', ...' * (len(names) > 4)})"
    )
    spot = f"turns[{place.turn}].action[{place.token}] of rollout {place.rollout!r}"
    if len(after) and float(after.double().mean()) < 0.5:
        break_text = f"at {spot} the log-prob alone does not fit, those after it do: a log-prob was changed"
    else:
        break_text = f"from {spot} on nothing fits: this token, or one before it in its context, was changed"
    return (
        "records",
        f"{rollouts_text}, and the others are the policy's; {break_text}",
        "restore the records of this step; what they train now is not what was sampled",
    )


def _changed_since(comparison: Comparison, weights: Weights) -> Cause | None:
    """The run saw its sampler agree with these weights, so that the records or the program are others now."""
    if (
        comparison.gap_then is None
        or comparison.gap_then > comparison.tolerance
        or not weights.fingerprint_by_step.get(comparison.step - 1)
    ):
        return None
    return (
        "records",
        f"when the step was trained the largest deviation was {comparison.gap_then:.2g} nats (sampler_gap), with the "
        "same trained weights: the records, or what is not trained of the model, were changed since",
        f"restore the records of this step, and model {weights.settings.model}",
    )


# ---------------------------------------------------------------- another temperature, support or age
def _elsewhere(comparison: Comparison, weights: Weights) -> Cause | None:
    """A setting under which the records are the policy's."""
    forest, rows = (
        comparison.forest,
        torch.unique(comparison.forest.path_trajectory[comparison.is_different])[:MOST_ROLLOUTS],
    )
    entries = forest.entries_of(rows)
    some = forest.select(rows)
    version = int(torch.mode(comparison.version[entries][comparison.is_compared[entries]]).values)
    where = comparison.is_compared[entries] & (comparison.version[entries] == version)
    recorded_logprob = some.path_behaviour_logprob[where]

    def deviations(variant: Forest) -> Tensor:
        return (weights.logprobs(variant)[where] - recorded_logprob).abs()

    def fits(variant: Forest) -> bool:
        try:
            return float((deviations(variant) <= comparison.tolerance).double().mean()) >= FITS
        except GxpoError:  # another support that this learner can't read
            return False

    weights.use(version)
    if (cause := _temperature(comparison, some, deviations, fits)) is not None:
        return cause
    free = with_sampling(some, top_k=0, top_p=1.0, min_p=0.0).replace(
        extras={k: x for k, x in some.extras.items() if k != "support"}
    )
    if "support" in some.extras and fits(free):
        return (
            "support",
            "the recorded log-probs are of the whole vocabulary, and the records have a support (top_k, top_p)",
            "record log-probs after top-k and top-p (of vLLM: logprobs_mode=processed_logprobs)",
        )
    surplus = recorded_logprob - weights.logprobs(some)[where]
    if (
        "support" not in some.extras
        and float(surplus.min()) > -comparison.tolerance
        and float((surplus > comparison.tolerance).double().mean()) > 0.2
    ):
        return (
            "support",
            "every recorded log-prob is the policy's or higher: the sampler left ids out (top_k, top_p, min_p or a "
            "mask) that the records do not name",
            "record `support` and the sampler's top_k and top_p, or sample by temperature alone",
        )
    for other in sorted(weights.versions - {version}, key=lambda v: (abs(v - version), v))[:NEAREST]:
        if not weights.use(other) and fits(some):
            return (
                "age",
                f"tokens that are recorded as of policy version {version} are version {other}'s",
                "see that the sampler gets the weights of every step (`gxpo doctor` names a stale sampler), or correct "
                "policy_version in the records",
            )
    weights.use(version)
    return None


def _temperature(comparison: Comparison, some: Forest, deviations: Any, fits: Any) -> Cause | None:
    """The temperature at which the records fit best, by golden-section search in its logarithm."""
    recorded_temperature = some.sampling[0].get("temperature") or 1.0

    def mean(log_temperature: float) -> float:
        variant = with_sampling(some, temperature=float(torch.tensor(log_temperature).double().exp()))
        return float(deviations(variant).nan_to_num(nan=1e3, posinf=1e3).mean())

    low, high = (float(torch.tensor(t).double().log()) for t in TEMPERATURES)
    ratio = (5**0.5 - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = mean(a), mean(b)
    for _ in range(24):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = mean(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = mean(b)
    # People set temperatures of two digits.
    best = round(float(torch.tensor((low + high) / 2).double().exp()), 2)
    if abs(best - recorded_temperature) < 0.02 or not fits(with_sampling(some, temperature=best)):
        return None
    return (
        "temperature",
        f"the records say temperature {recorded_temperature:g}, and their log-probs are the policy's at temperature "
        f"{best:g}",
        "sample and train at one temperature: set sampling.temperature to what the sampler uses",
    )


# ---------------------------------------------------------------- rounding, or nothing that is known
def _rounding(comparison: Comparison, weights: Weights) -> Cause | None:
    deviation = comparison.deviation[comparison.is_compared]
    if float(deviation.mean()) > ROUNDING[0] or float(deviation.max()) > ROUNDING[1]:
        return None
    return (
        "dtype",
        f"deviations are of the size of rounding (mean {float(deviation.mean()):.2g} nats), spread over the rollouts, "
        f"on the recorded weights: the sampler computed in another precision than {weights.dtype}",
        "set sampling.products equal to learner.products and the engine's dtype to learner.dtype; or correct the "
        "mismatch by weights (docs/mismatch.md)",
    )


def _unknown(comparison: Comparison, weights: Weights) -> Cause:
    first = (
        " (of version 0 no fingerprint is recorded)" if 0 in comparison.version[comparison.is_compared].tolist() else ""
    )
    return (
        "unknown",
        f"most rollouts differ{first}; neither temperature, support nor age within the saved versions explains it, and "
        "deviations are larger than rounding",
        f"see that model {weights.settings.model} is what the run began with, and that sampler and learner read the "
        "same prompts (gxpo check-template)",
    )
