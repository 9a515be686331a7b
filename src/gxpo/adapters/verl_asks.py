"""Requirements of a method in verl, and settings of verl that contradict it; needs no verl."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gxpo.adapters import asks
from gxpo.algorithms.objectives import Entries, PolicyGradient
from gxpo.algorithms.objectives.surrogate import ratio_of
from gxpo.base.errors import ConfigError
from gxpo.methods.compose import method as compose
from gxpo.methods.method import Method, controls
from gxpo.parts.definition import show

SUCCESS_AT = "gxpo_success_at"  # under `algorithm`: a score of at least this is a right answer
# An objective's aggregation -> verl's name for it. verl adds KL and entropy to the loss with the same setting.
AGGREGATES = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean",
              "sequence_sum": "seq-mean-token-sum-norm"}  # fmt: skip
NORMED, SUMMED = AGGREGATES["sequence_sum"], "seq-mean-token-sum"  # divided by loss_scale_factor, by nothing


def why_not(name: str, what: str = "advantage", overrides: Mapping[str, Any] | None = None) -> str | None:
    """Explain why a method has no advantage estimator ("advantage") or policy loss ("loss") in verl; None if it has.

    >>> print(why_not("grpo"))
    None
    >>> why_not("dapo")
    'rollout=dynamic_sampling: verl samples the groups itself (rollout=independent takes the rest)'
    """
    if what not in ("advantage", "loss"):
        raise ConfigError(f"what is 'advantage' or 'loss', not {what!r}")
    composed = compose(name, overrides)
    keys = [s.key for s in composed.scheduled if s.key.startswith("objective") == (what == "loss")]
    reasons = [f"{key}: verl does not say which step it is, so a schedule can't move it" for key in keys]
    reasons += _no_estimator(composed) if what == "advantage" else _no_loss(composed)
    return "; ".join(dict.fromkeys(reasons)) or None


def _no_estimator(composed: Method) -> list[str]:
    """Return reasons why a method's advantages can't be computed in verl."""
    # declared reasons first: parts that fail them would fail the trial of `asks.refusals` with worse messages
    parts = dict(asks.parts_of(composed))
    reasons = [
        f"{key}={show(parts[key])}: it remembers earlier steps, which verl's checkpoints do not hold"
        for key in asks.stateful_keys(composed)
        if not key.startswith("objective")
    ]
    reasons += asks.update_refusals(composed, "verl", ("epochs", "minibatches", "first"))
    if not composed.reads_credit:
        reasons.append(
            f"objective={show(composed.terms['policy'])}: it reads outcomes, which verl's losses are not given"
        )
    return reasons or asks.refusals(composed, "verl", verdicts=True, components=("score",), objective=False)


def _no_loss(composed: Method) -> list[str]:
    """Return reasons why a method's objective can't be a policy loss of verl.

    A loss of verl sees log-probs, advantages and mask of one micro-batch, and nothing else.
    """
    term, reasons = composed.terms["policy"], []
    if type(term) is not PolicyGradient:
        return [f"objective={show(term)}: verl's losses are given log-probs and advantages of a micro-batch alone"]
    if composed.likelihood is not None:
        reasons.append(asks.causal_only(composed, "verl"))
    reasons += asks.without_guidance(composed, "verl")
    if term.ratio_over != "proximal":
        reasons.append(f"objective.ratio_over={term.ratio_over}: verl's losses are not given the sampler's log-probs")
    surrogate_text = f"objective.surrogate={show(term.surrogate)}"
    if term.surrogate.outputs:
        reasons.append(f"{surrogate_text}: verl's losses are not given the policy's {term.surrogate.outputs[0]}")
    if term.surrogate.couples == "group":
        reasons.append(f"{surrogate_text}: it compares the rollouts of a group, verl's losses see some")
    if term.surrogate.couples == "step":
        reasons.append(f"{surrogate_text}: it compares all tokens of the step, verl's losses see some")
    if _reads_turns(term):
        reasons.append(
            f"objective.ratio={show(term.ratio)}, {surrogate_text}: verl's losses do not say where a turn ends"
        )
    reasons += [f"{key}: it adapts to figures of the step, which verl does not show it" for key in controls(composed)]
    if term.dedup_shared_tokens:
        reasons.append("objective.dedup_shared_tokens=true: verl has no shared tokens")
    if term.on_unknown_behaviour == "shaped":
        reasons.append("objective.on_unknown_behaviour=shaped: verl's losses do not say which tokens were not sampled")
    # verl adds KL and entropy by settings of its own; a further term has no place
    for name in composed.terms:
        if name == "kl":
            reasons.append("objective.kl.coef: verl adds the KL itself; set actor.use_kl_loss and actor.kl_loss_coef")
        elif name == "entropy":
            reasons.append("objective.entropy.coef: verl adds the entropy itself; set actor.entropy_coeff")
        elif name != "policy":
            reasons.append(f"objective.add.{name}: verl's losses have one term")
    return reasons


# setting of verl's -> (its default, surrogate -> (the option that it is, its value in the option's unit))
BOUNDS: Mapping[str, tuple[float, Mapping[str, tuple[str, Callable[[float], float]]]]] = {
    "clip_ratio_low": (0.2, {
        "clip": ("clip_low", float), "dual_clip": ("clip_low", float), "log_clip": ("log_clip_low", float),
        "divergence_mask": ("divergence_low", float), "truncate": ("ratio_min", lambda x: 1 - x),
    }),
    "clip_ratio_high": (0.2, {
        "clip": ("clip_high", float), "dual_clip": ("clip_high", float), "log_clip": ("log_clip_high", float),
        "divergence_mask": ("divergence_high", float), "truncate": ("ratio_max", lambda x: 1 + x),
    }),
    "clip_ratio_c": (3.0, {"dual_clip": ("ratio_max", float), "divergence_mask": ("ratio_max", float)}),
    "tau_pos": (1.0, {"sigmoid": ("tau_positive", float)}),
    "tau_neg": (1.05, {"sigmoid": ("tau_negative", float)}),
}  # fmt: skip


def actor_against(term: PolicyGradient, config: Any) -> list[str]:
    """Return problems with settings of verl's actor that differ from its defaults and from the method's loss.

    A setting at its default is ignored, since nobody may have chosen it.

    config  verl's ActorConfig
    """
    clip_ratio = getattr(config, "clip_ratio", None)  # verl's bound for a side that has none of its own
    problems = []
    for setting, (default, options) in BOUNDS.items():
        value, name = getattr(config, setting, None), setting
        if value is None and setting in ("clip_ratio_low", "clip_ratio_high"):
            value, name = clip_ratio, "clip_ratio"
        if value is None or math.isclose(value, default):
            continue
        # a bound that the surrogate does not have would be ignored without a word
        option, in_unit = options.get(show(term.surrogate), ("", float))
        method_value = _option(term.surrogate, option)
        if method_value is None:
            problems.append(
                f"actor.{name}={value:g} is not read by objective.surrogate={show(term.surrogate)}; leave it out"
            )
        elif not math.isclose(method_value, in_unit(value), abs_tol=1e-12):
            problems.append(
                f"actor.{name}={value:g} is objective.{option}={in_unit(value):g} here, and the method has "
                f"{method_value:g}: leave it out, or register the method with "
                f"{{'objective.{option}': {in_unit(value):g}}}"
            )
    return list(dict.fromkeys(problems))


def algorithm_against(composed: Method, config: Any) -> list[str]:
    """Return problems with verl's `algorithm` settings, a mapping or None, that differ from the method's estimator."""
    if config is None or config.get("norm_adv_by_std_in_grpo", True):
        return []
    scale = composed.keys.get("credit.scale")
    if scale is None or show(scale.value) == "none":
        return []
    return [
        f"algorithm.norm_adv_by_std_in_grpo=False is credit.scale=none here, and the method has {show(scale.value)}: "
        "leave it out, or register the method with {'credit.scale': 'none'}"
    ]


def _option(surrogate: Any, name: str) -> float | None:
    """Return an option of a surrogate, be it a function's or a class's; None if it has no such option."""
    return getattr(surrogate, name, None) if name not in getattr(surrogate, "options", {}) else surrogate.options[name]


def term_entries(term: Any, logprob: Tensor, old: Tensor, credit: Tensor, owner: Tensor, turn: Tensor) -> Entries:
    """Make the inputs of a term's surrogate for the tokens [P] of whole rows.

    owner, turn  [P]: the row and the turn of each token
    """
    log_ratio = logprob - old
    level_ratio = term.ratio.level(term.surrogate.before(log_ratio, credit), owner, turn)
    return Entries(logprob, old, log_ratio, ratio_of(level_ratio), credit, owner, turn, level=level_ratio)


def _reads_turns(term: PolicyGradient) -> bool:
    """Return True if a term's loss changes when a trajectory is cut into turns, which verl's losses do not see.

    Found by evaluating it on two trajectories of made-up tokens, as one turn each and cut.
    """
    if term.surrogate.outputs:
        return False
    old = torch.tensor([-1.1, -0.7, -1.6, -0.9, -1.2, -0.8], dtype=torch.float64)
    logprob = old + torch.tensor([0.03, 0.01, -0.02, -0.04, 0.02, -0.01], dtype=torch.float64)  # inside every clip
    credit, owner = torch.tensor([1.0] * 4 + [-1.0] * 2).double(), torch.tensor([0, 0, 0, 0, 1, 1])
    cut = torch.tensor([0, 0, 1, 1, 2, 2])
    one_row, two_turns = (
        term.surrogate.loss(term_entries(term, logprob, old, credit, owner, turn)) for turn in (owner, cut)
    )
    return not torch.equal(one_row, two_turns)
