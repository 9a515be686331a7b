"""Per-token view of rollouts under one method: advantage, weight, share of the loss, gradient that the clip keeps."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import gxpo
from gxpo.algorithms.objectives import PolicyGradient
from gxpo.algorithms.objectives.base import coefficients
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import GxpoError
from gxpo.explain.derivation import RecordedCredit, Summand
from gxpo.explain.effect import gradient_weights
from gxpo.explain.user_calls import Call, recorded_calls
from gxpo.forest.forest import Forest
from gxpo.methods.method import Method, zero_signal_groups
from gxpo.parts.definition import show, stage_of
from gxpo.parts.options import Unexecuted
from gxpo.parts.protocols import PolicyTokens

CURVE_RATIOS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)  # ratios at which the surrogate is shown
GUESSED_LOGPROB = math.log(0.5)  # in place of unknown log-probs, on which nothing may depend
MISSING_SIGNAL = re.compile(r"signal ('.+') is missing \((.+)\)")


@dataclass
class Outlook:
    """Columns of one method on the rollouts of one step; they are [P], and 0 where a rollout has no score.

    missing    what the rollouts lack for the method, in words; if it is not empty there are no columns
    notes      remarks on what the figures leave out or assume
    outcome    [R] the rewards that are compared, the method's own rewards included
    is_scored  [R] True for rollouts with a score
    weight, share, pull, gradient_share   None where the rollouts do not determine them; `without` has the reasons
      share            c_p: what the aggregation multiplies the token's loss by
      pull             -dL/dlogprob of the policy term, times the number of trained tokens
      gradient_share   the surrogate's gradient over the unclipped one: 1 all of it, 0 cut
    zero_signal  [G] no token of the group has an advantage
    curve      (ratio, gradient over the unclipped one at A > 0, at A < 0)
    settings   what decides the numbers: statistic, eps, clip, aggregation, by key
    calls      of the user's functions in the "weight" and the "loss"; those of the credit are its summands'
    """

    name: str
    formula: str = ""
    missing: str = ""
    notes: list[str] = field(default_factory=list)
    outcome: Tensor | None = None
    credit: Tensor | None = None
    summands: list[Summand] = field(default_factory=list)
    is_scored: Tensor | None = None
    weight: Tensor | None = None
    share: Tensor | None = None
    pull: Tensor | None = None
    gradient_share: Tensor | None = None
    without: dict[str, str] = field(default_factory=dict)
    zero_signal: Tensor | None = None
    surrogate: str = ""
    aggregate: str = ""
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    calls: dict[str, list[Call]] = field(default_factory=dict)


def look(
    spec: str | Method,
    forest: Forest,
    *,
    name: str = "",
    horizon: float | None = None,
    is_own_run: bool = False,
    logprob: Tensor | None = None,
) -> Outlook:
    """Apply a method to rollouts, token by token.

    name        heading of its columns; "": the method's own
    horizon     longest trainable length of a rollout in tokens; None: that of the longest in the file
    is_own_run  the rollouts are of a run of this method, so that its own rewards are in them already
    logprob     [P] of an updated policy; None: it has not moved, so that every ratio is 1

    Raises ConfigError for an unknown method; requirements that the rollouts do not meet are in `missing` instead.
    """
    method = gxpo.method(spec)
    formula, settings = _formula_and_settings(method)
    out = Outlook(name or method.name, formula, settings=settings)
    # rollouts that a method can't be applied to are a line on the page, beside the methods that can
    try:
        _credit(out, method, forest, horizon, is_own_run)
    except GxpoError as error:
        out.missing = _short_error(str(error))
        return out
    if out.missing or out.credit is None:
        return out
    _loss(out, method.fill(**_sizes(forest, horizon)), forest, logprob)
    return out


SETTING_KEYS = (
    "credit", "credit.center", "credit.scale", "credit.ddof", "credit.eps", "objective", "objective.surrogate",
    "objective.ratio", "objective.clip_low", "objective.clip_high", "objective.aggregate", "objective.horizon",
)  # fmt: skip
SHOWN_STAGES = ("credit", "weight", "objective", "reward", "signal")
AGGREGATES = {
    "token_mean": "mean over all trained tokens",
    "sequence_mean": "mean over rollouts of each one's mean over its tokens",
    "sequence_sum": "mean over rollouts of each one's sum over its tokens, divided by the horizon",
}


def _formula_and_settings(method: Method) -> tuple[str, dict[str, str]]:
    """Return the published formula with what the method changes of it, and the keys that decide advantage and loss."""

    def text(value: Any) -> str:  # a run's config.yaml has lists for tuples
        return show(tuple(value) if isinstance(value, list) else value)

    try:
        published_keys = gxpo.method("+".join(d.name for d in method.definitions)).keys
    except GxpoError:  # methods that can't be composed without a key that decides between them
        published_keys = {}
    part_settings = {k: s for k, s in method.keys.items() if stage_of(k) in SHOWN_STAGES and s.value is not None}
    changed_keys = [
        k for k, s in part_settings.items() if k not in published_keys or text(s.value) != text(published_keys[k].value)
    ]
    settings = {
        k: text(part_settings[k].value) for k in dict.fromkeys([*SETTING_KEYS, *changed_keys]) if k in part_settings
    }
    formula = next((method.remains[d.name] or d.formula for d in method.definitions), "")
    words = [f"{k}={settings[k]}{f' ({w})' if (w := AGGREGATES.get(settings[k])) else ''}" for k in changed_keys]
    return (f"{formula}\nhere with {', '.join(words)}" if words else formula), settings


def _reads_horizon(method: Method) -> bool:
    """Return True if the policy term divides by a horizon that no key states."""
    term = method.terms["policy"]
    return getattr(term, "aggregate", "") == "sequence_sum" and getattr(term, "horizon", 0.0) is None


def _sizes(forest: Forest, horizon: float | None) -> dict[str, Any]:
    """Return the run's lengths and steps that a method's parts are filled with."""
    longest = max(float(torch.bincount(forest.path_trajectory, minlength=1).max()), 1.0) if horizon is None else horizon
    return {"horizon": longest, "max_length": int(longest), "total_steps": 1}


def _credit(out: Outlook, method: Method, forest: Forest, horizon: float | None, is_own_run: bool) -> None:
    """Fill in the advantages, their summands, and the notes on what they were computed without."""
    if missing_text := _missing_requirements(method, forest):
        out.missing = missing_text
        return
    # asked before `fill`, whose copies of parts remember nothing and have a horizon
    has_state, reads_horizon = bool(method.state_dict()), _reads_horizon(method)
    method = method.fill(**_sizes(forest, horizon))
    if not method.reads_credit:
        out.notes.append("its objective reads rewards, not advantages: what is shown as advantage moves nothing")
    if method.signals:
        signal_names = ", ".join(method.signals)
        out.notes.append(f"signal {signal_names} is made from the policy, which is not in the file")
    if has_state:
        out.notes.append("remembers earlier steps: computed as at a first step")
    has_own_rewards = method.shapes or method.rewards or method.step_rewards
    # a run has added its method's rewards before it wrote the records; adding them again would count them twice
    if has_own_rewards and not is_own_run:
        forest = method.shaped(forest)
        out.notes.append(f"its own rewards are added to the file's: {', '.join(forest.shaped_by)}")
    out.outcome = forest.outcome
    # the method calls the credit itself, with the filtered forest: the wrapper sees exactly what it was given
    recorded_credit = RecordedCredit(method.credit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # own rewards that the file holds already
        out.credit = dataclasses.replace(method, credit=recorded_credit).advantages(forest)
    out.summands, out.is_scored = recorded_credit.summands, forest.scored
    out.zero_signal = zero_signal_groups(forest, out.credit)
    if horizon is None and reads_horizon:
        longest = _sizes(forest, None)["horizon"]
        out.notes.append(
            f"its horizon is not known: the longest rollout of the file, {longest:g} tokens, stands for it, which "
            "multiplies the whole loss by a constant"
        )


def _missing_requirements(method: Method, forest: Forest) -> str:
    """Describe the requirements of advantages and rewards that the rollouts do not meet; "" if there are none."""
    parts = [method.credit, *method.shapes.values(), *method.step_rewards.values(), *method.rewards.values()]
    required = dict.fromkeys(x for part in parts for x in getattr(part, "requires", ()))
    availability = {
        "states": (bool((forest.step_state >= 0).any()), "states: no turn says in which state it was taken"),
        "step_rewards": (bool(forest.step_reward.isfinite().any()), "step rewards: only outcomes are recorded"),
        "segments": (bool((forest.segment >= 0).any()), "segments: no action is cut into any"),
        "forks": (_has_forks(forest), "forks: no two rollouts share an action"),
        "state_values": (False, "values of states, which the file does not hold"),
    }
    missing = [
        explanation
        for name, (is_available, explanation) in availability.items()
        if name in required and not is_available
    ]
    return "it needs " + "; ".join(missing) if missing else ""


def _has_forks(forest: Forest) -> bool:
    return bool((torch.bincount(forest.path_token, minlength=1) > 1).any())


def _loss(out: Outlook, method: Method, forest: Forest, logprob: Tensor | None) -> None:
    """Fill in weights, and the policy term's gradient by each token's log-prob."""
    assert out.credit is not None and out.outcome is not None
    forest = forest.replace(outcome=out.outcome)
    behaviour = forest.path_behaviour_logprob
    has_unknown_logprobs = bool((behaviour.isnan() & forest.path_trainable).any())
    if method.weights:
        out.notes.append(f"weights: {', '.join(method.weights)}; the learner's own log-probs are not in the file")
    # user functions are given the scored rollouts alone; a policy gradient calls those of its ratio and its surrogate
    term = method.terms["policy"]
    functions = [part for part in (term, getattr(term, "ratio", None), getattr(term, "surrogate", None)) if part]
    scored_forest, scored_credit = forest.select(forest.scored), out.credit[forest.entries_of(forest.scored)]
    try:
        with recorded_calls(scored_forest, *method.weights.values()) as out.calls["weight"]:
            out.weight = method.token_weights(forest, out.credit)
    except GxpoError as error:
        out.without["weight"] = _short_error(str(error))
        out.without["surrogate"] = "its weights are not known"
        return
    # the policy term alone: a KL penalty or further terms would add slopes that the page does not explain
    if isinstance(term, Unexecuted):
        out.without["surrogate"] = f"{term.path} is not run here"
        return
    policy_term_method = dataclasses.replace(method, terms={"policy": term}, kl_reward=None)
    weight = out.weight
    # Log-probs that the file lacks are guessed, twice and differently: where both guesses give one gradient, it does
    # not depend on them and can be shown. The second guess differs from token to token.
    try:
        slopes = []
        varied_guess = GUESSED_LOGPROB * (0.5 + torch.arange(len(behaviour)).to(torch.float64).mul(0.618034).frac())
        for guess in (
            (torch.full_like(behaviour, GUESSED_LOGPROB), varied_guess) if has_unknown_logprobs else (varied_guess,)
        ):
            old_logprob = torch.where(behaviour.isnan(), guess, behaviour)
            new_logprob = old_logprob.clone() if logprob is None else logprob.to(torch.float64)
            with recorded_calls(scored_forest, *functions, credit=scored_credit) as out.calls["loss"]:
                slopes.append(_policy_slope(policy_term_method, forest, new_logprob, old_logprob, out.credit, weight))
    except GxpoError as error:
        out.without["surrogate"] = _short_error(str(error))
        return
    except KeyError as error:
        if error.args[0] not in method.outputs:
            raise
        out.without["surrogate"] = f"it reads the policy's {error.args[0]}, which the file does not have"
        return
    if any(not torch.allclose(slopes[0], x, rtol=1e-9, atol=1e-12) for x in slopes[1:]):
        out.without["surrogate"] = "its gradient depends on log-probs, which the file does not hold"
        out.calls["loss"] = []  # computed with guessed log-probs
        return
    ratio = (
        torch.ones_like(behaviour) if logprob is None else (logprob - behaviour.nan_to_num(nan=GUESSED_LOGPROB)).exp()
    )
    out.pull = slopes[0] * forest.path_trainable.sum()
    if isinstance(term, PolicyGradient):
        _clip_figures(out, method, term, forest, slopes[0], weight, ratio)


def _policy_slope(
    method: Method, forest: Forest, new_logprob: Tensor, old_logprob: Tensor, credit: Tensor, weight: Tensor
) -> Tensor:
    """Return -dL/dlogprob [P] of the method's loss at the log-probs `new_logprob`."""
    logprob_P = new_logprob.detach().clone().requires_grad_()
    log_probs = {"behaviour_logprob": old_logprob, "proximal_logprob": old_logprob}
    policy = PolicyTokens(logprob_P, old_logprob, proximal_logprob=old_logprob)
    value = method.evaluate(forest, policy, credit, weight, Signals.of(forest, log_probs, method.axes)).value
    if not value.requires_grad:
        return torch.zeros_like(logprob_P)
    return -torch.autograd.grad(value, logprob_P)[0]


def _clip_figures(
    out: Outlook, method: Method, term: PolicyGradient, forest: Forest, slope: Tensor, weight: Tensor, ratio: Tensor
) -> None:
    """Fill in the share of the loss, the gradient that the clip keeps, and the surrogate's curve."""
    assert out.credit is not None
    counted_P = forest.path_trainable & forest.to_path(forest.scored, "R")
    shared_token_ids = forest.path_token if term.dedup_shared_tokens else None
    out.share = coefficients(forest.path_trajectory, counted_P, term.aggregate, term.horizon, shared_token_ids)
    # the slope of ratio * advantage without a clip; where it is 0 nothing can be cut, so that the quotient is nan
    unclipped_slope = out.share * weight * out.credit * ratio
    out.gradient_share = torch.where(
        unclipped_slope != 0, slope / torch.where(unclipped_slope != 0, unclipped_slope, 1.0), torch.nan
    )
    out.surrogate, out.aggregate = _surrogate_text(term), term.aggregate
    # a surrogate that can't be evaluated on single made-up tokens has no curve; the columns above stand without it
    try:
        weights_by_sign = [gradient_weights(method, CURVE_RATIOS, credit) for credit in (1.0, -1.0)]
    except (GxpoError, ValueError):
        return
    out.curve = [(r, up / r, down / r) for r, up, down in zip(CURVE_RATIOS, *weights_by_sign, strict=True)]


def _surrogate_text(term: PolicyGradient) -> str:
    """Format the surrogate with its numbers: "clip, clip_low 0.2, clip_high 0.2, ratio token"."""
    fields = dataclasses.fields(term.surrogate)  # type: ignore[arg-type]  # every surrogate is a dataclass
    settings = [f"{f.name} {show(getattr(term.surrogate, f.name))}" for f in fields if f.init]
    return ", ".join([show(term.surrogate), *settings, f"ratio {show(term.ratio)}"])


def _short_error(message: str) -> str:
    """Cut an error to what a page can show: no advice on Python calls, at most 300 characters."""
    message = message.partition(": pass it as")[0]  # advice for callers in Python
    if match := MISSING_SIGNAL.fullmatch(message):
        is_computed_by_run = match[2] == "no part of this method provides it"
        message = f"it needs the signal {match[1]}{', which a run computes' if is_computed_by_run else f': {match[2]}'}"
    return message if len(message) <= 300 else f"{message[:297]}..."
