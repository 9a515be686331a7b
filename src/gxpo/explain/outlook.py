"""What one method makes of rollouts, token by token: advantage, weight, share of the loss, what the surrogate keeps."""

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
from gxpo.explain import surrogate_effect
from gxpo.explain.derivation import Summand, Watched
from gxpo.forest.forest import Forest
from gxpo.methods.method import Method, zero_signal_groups
from gxpo.parts.definition import show
from gxpo.parts.protocols import PolicyTokens

TRIED = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)  # ratios at which the surrogate is shown
GUESS = math.log(0.5)  # in place of unknown log-probs, on which nothing may depend
MISSING = re.compile(r"signal ('.+') is missing \((.+)\)")


@dataclass
class Outlook:
    """A method on the rollouts of one step; columns are [P] and 0 where a rollout has no score.

    missing    what the rollouts lack for it, in words: then there are no columns
    notes      on what it was computed without
    outcome    [R] the rewards it compares: with the method's own, where they are not in the file yet
    weight, share, pull, kept   None where they can't be told from these rollouts; `without` says why
      share    c_p: what the aggregation multiplies the token's loss by
      pull     -dL/dlogprob of the policy term, times the number of trained tokens
      kept     the surrogate's gradient over the unclipped one: 1 all of it, 0 cut
    zero_signal  [groups] no token has an advantage
    curve      (ratio, share that is kept at A > 0, at A < 0)
    """

    name: str
    formula: str = ""
    missing: str = ""
    notes: list[str] = field(default_factory=list)
    outcome: Tensor | None = None
    credit: Tensor | None = None
    summands: list[Summand] = field(default_factory=list)
    scored: Tensor | None = None
    weight: Tensor | None = None
    share: Tensor | None = None
    pull: Tensor | None = None
    kept: Tensor | None = None
    without: dict[str, str] = field(default_factory=dict)
    zero_signal: Tensor | None = None
    surrogate: str = ""
    aggregate: str = ""
    curve: list[tuple[float, float, float]] = field(default_factory=list)


def look(
    given: str | Method,
    forest: Forest,
    *,
    horizon: float | None = None,
    own: bool = False,
    logprob: Tensor | None = None,
) -> Outlook:
    """A method's view of the rollouts.

    horizon  longest trainable length of a rollout in tokens; None: that of the longest in the file
    own      the rollouts are the method's own run's, so that its own rewards are in them already
    logprob  [P] of an updated policy; None: it has not moved, so that every ratio is 1
    Raises ConfigError for an unknown method; what the rollouts lack is in the outlook instead.
    """
    made = gxpo.method(given)
    out = Outlook(made.name, next((made.remains[d.name] or d.formula for d in made.definitions), ""))
    try:
        _credit(out, made, forest, horizon, own)
    except GxpoError as error:
        out.missing = _short(str(error))
        return out
    if out.missing or out.credit is None:
        return out
    _loss(out, made.fill(**_sizes(forest, horizon)), forest, logprob)
    return out


def _sizes(forest: Forest, horizon: float | None) -> dict[str, Any]:
    longest = max(float(torch.bincount(forest.path_trajectory, minlength=1).max()), 1.0) if horizon is None else horizon
    return {"horizon": longest, "max_length": int(longest), "total_steps": 1}


def _credit(out: Outlook, made: Method, forest: Forest, horizon: float | None, own: bool) -> None:
    if lacking := _lacking(made, forest):
        out.missing = lacking
        return
    remembers = bool(made.state_dict())
    made = made.fill(**_sizes(forest, horizon))
    if not made.reads_credit:
        out.notes.append("its objective reads rewards, not advantages: what is shown as advantage moves nothing")
    if made.signals:
        asked = ", ".join(made.signals)
        out.notes.append(f"signal {asked} is made from the policy, which is not in the file")
    if remembers:
        out.notes.append("remembers earlier steps: computed as at a first step")
    shaped = made.shapes or made.rewards or made.step_rewards
    if shaped and not own:
        forest = made.shaped(forest)
        out.notes.append(f"its own rewards are added to the file's: {', '.join(forest.shaped_by)}")
    out.outcome = forest.outcome
    watched = Watched(made.credit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # own rewards that the file holds already
        out.credit = dataclasses.replace(made, credit=watched).advantages(forest)
    out.summands, out.scored = watched.found, forest.scored
    out.zero_signal = zero_signal_groups(forest, out.credit)
    if horizon is None and "horizon" in out.formula:
        out.notes.append(f"horizon: the longest rollout of the file, {_sizes(forest, None)['horizon']:g} tokens")


def _lacking(made: Method, forest: Forest) -> str:
    """What advantages and rewards require of rollouts and these do not have, in words."""
    parts = [made.credit, *made.shapes.values(), *made.step_rewards.values(), *made.rewards.values()]
    asked = dict.fromkeys(x for part in parts for x in getattr(part, "requires", ()))
    held = {
        "states": (bool((forest.step_state >= 0).any()), "states: no turn says in which state it was taken"),
        "step_rewards": (bool(forest.step_reward.isfinite().any()), "step rewards: only outcomes are recorded"),
        "segments": (bool((forest.segment >= 0).any()), "segments: no action is cut into any"),
        "forks": (_forks(forest), "forks: no two rollouts share an action"),
        "state_values": (False, "values of states, which the file does not hold"),
    }
    missing = [said for name, (there, said) in held.items() if name in asked and not there]
    return "it needs " + "; ".join(missing) if missing else ""


def _forks(forest: Forest) -> bool:
    return bool((torch.bincount(forest.path_token, minlength=1) > 1).any())


def _loss(out: Outlook, made: Method, forest: Forest, logprob: Tensor | None) -> None:
    """Weights, and the policy term's gradient by each token's log-prob."""
    assert out.credit is not None and out.outcome is not None
    forest = forest.replace(outcome=out.outcome)
    behaviour = forest.path_behaviour_logprob
    unknown = bool((behaviour.isnan() & forest.path_trainable).any())
    if made.weights:
        out.notes.append(f"weights: {', '.join(made.weights)}; the learner's own log-probs are not in the file")
    try:
        out.weight = made.token_weights(forest, out.credit)
    except GxpoError as error:
        out.without["weight"] = _short(str(error))
        out.without["surrogate"] = "its weights are not known"
        return
    term = made.terms["policy"]
    alone = dataclasses.replace(made, terms={"policy": term}, kl_reward=None)
    weight = out.weight
    try:
        found = []
        other = GUESS * (0.5 + torch.arange(len(behaviour)).to(torch.float64).mul(0.618034).frac())  # each another one
        for guess in (torch.full_like(behaviour, GUESS), other) if unknown else (other,):
            old = torch.where(behaviour.isnan(), guess, behaviour)
            new = old.clone() if logprob is None else logprob.to(torch.float64)
            found.append(_pull(alone, forest, new, old, out.credit, weight))
    except GxpoError as error:
        out.without["surrogate"] = _short(str(error))
        return
    if any(not torch.allclose(found[0], x, rtol=1e-9, atol=1e-12) for x in found[1:]):
        out.without["surrogate"] = "its gradient depends on log-probs, which the file does not hold"
        return
    ratio = torch.ones_like(behaviour) if logprob is None else (logprob - behaviour.nan_to_num(nan=GUESS)).exp()
    out.pull = found[0] * forest.path_trainable.sum()
    if isinstance(term, PolicyGradient):
        _kept(out, made, term, forest, found[0], weight, ratio)


def _pull(made: Method, forest: Forest, new: Tensor, old: Tensor, credit: Tensor, weight: Tensor) -> Tensor:
    x = new.detach().clone().requires_grad_()
    held = {"behaviour_logprob": old, "proximal_logprob": old}
    policy = PolicyTokens(x, old, proximal_logprob=old)
    value = made.evaluate(forest, policy, credit, weight, Signals.of(forest, held, made.axes)).value
    if not value.requires_grad:
        return torch.zeros_like(x)
    return -torch.autograd.grad(value, x)[0]


def _kept(
    out: Outlook, made: Method, term: PolicyGradient, forest: Forest, slope: Tensor, weight: Tensor, ratio: Tensor
) -> None:
    assert out.credit is not None
    counted = forest.path_trainable & forest.to_path(forest.scored, "R")
    shared = forest.path_token if term.dedup_shared_tokens else None
    out.share = coefficients(forest.path_trajectory, counted, term.aggregate, term.horizon, shared)
    plain = out.share * weight * out.credit * ratio
    out.kept = torch.where(plain != 0, slope / torch.where(plain != 0, plain, 1.0), torch.nan)
    out.surrogate, out.aggregate = _named(term), term.aggregate
    try:
        both = [surrogate_effect.weights(made, TRIED, credit) for credit in (1.0, -1.0)]
    except (GxpoError, ValueError):
        return
    out.curve = [(r, up / r, down / r) for r, up, down in zip(TRIED, *both, strict=True)]


def _named(term: PolicyGradient) -> str:
    """The surrogate with its numbers: "clip, clip_low 0.2, clip_high 0.2, ratio token"."""
    inner = [f"{f.name} {show(getattr(term.surrogate, f.name))}" for f in dataclasses.fields(term.surrogate) if f.init]  # type: ignore[arg-type]  # every surrogate is one
    return ", ".join([show(term.surrogate), *inner, f"ratio {show(term.ratio)}"])


def _short(said: str) -> str:
    said = said.partition(": pass it as")[0]  # advice for callers in Python
    if found := MISSING.fullmatch(said):
        of_run = found[2] == "no part of this method provides it"
        said = f"it needs the signal {found[1]}{', which a run computes' if of_run else f': {found[2]}'}"
    return said if len(said) <= 300 else f"{said[:297]}..."
