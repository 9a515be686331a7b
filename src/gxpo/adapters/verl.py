"""gxpo methods in verl, as advantage estimators and policy losses, both registered as gxpo/NAME.

    export VERL_USE_EXTERNAL_MODULES=gxpo.adapters.verl
    python -m verl.trainer.main_ppo algorithm.adv_estimator=gxpo/ngrpo \
        actor_rollout_ref.actor.policy_loss.loss_mode=gxpo/ngrpo actor_rollout_ref.actor.loss_agg_mode=token-mean ...

verl's trainer gives an estimator `token_level_rewards`, `response_mask`, `uid` and the algorithm's settings, whatever
else its batch holds (in the V1 trainer uid, response_mask, rm_scores, rollout_log_probs, old_log_probs, ref_log_prob,
values); a policy loss has log-probs, advantages and the mask of a micro-batch. `why_not` gives the reason where a
method needs more.

The estimator gives advantage times weight: every surrogate is linear in positive factors of the advantage.
`VERL_USE_EXTERNAL_MODULES` is read in every worker. Compositions: GXPO_VERL_METHODS="rloo+gspo,dr_grpo+gspo" registers
gxpo/rloo+gspo and gxpo/dr_grpo+gspo, `register` one with overrides from your own module.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gxpo.adapters.verl_asks import (
    AGGREGATES,
    NORMED,
    SUCCESS_AT,
    SUMMED,
    actor_against,
    algorithm_against,
    term_entries,
    why_not,
)
from gxpo.base.errors import ConfigError, GxpoError, need
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.methods import METHODS
from gxpo.methods.compat import COMPAT
from gxpo.methods.compose import method as compose

TESTED = "0.9.1"
PREFIX = "gxpo/"
MORE = "GXPO_VERL_METHODS"  # further compositions, separated by commas
Estimator = Callable[..., tuple[Tensor, Tensor]]
PolicyLoss = Callable[..., tuple[Tensor, dict[str, float]]]


# ---------------------------------------------------------------- advantages
def estimator(spec: str, overrides: Mapping[str, Any] | None = None) -> Estimator:
    """Make an advantage estimator with verl's signature; ConfigError if verl lacks something that the method needs."""
    if reasons := why_not(spec, "advantage", overrides):
        raise ConfigError(f"{spec} in verl: {reasons}")
    composed = compose(spec, overrides)

    def advantages(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Sequence[Any] | None = None,
        config: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Compute (advantages, returns), (bs, R) each; they are equal, and 0 outside the mask.

        token_level_rewards  (bs, R), whose sum over a row is its score;   response_mask (bs, R) of 0 and 1
        index                (bs,), the same for all rows of a group
        """
        if index is None:
            raise GxpoError(f"{PREFIX}{spec} compares the rollouts of a prompt: the batch has no `uid`")
        # statistics are taken in float64 on the CPU, as in gxpo's own trainer
        mask = response_mask.detach().bool().cpu()
        score = token_level_rewards.detach().double().sum(-1).cpu()
        if reasons := algorithm_against(composed, config):
            raise ConfigError(f"{PREFIX}{spec}: {'; '.join(reasons)}")
        success_at = None if config is None else config.get(SUCCESS_AT, None)
        # verl has one number per token: advantage times weight, which every surrogate is linear in
        filled = composed.fill(max_length=mask.shape[1])  # verl's rows are as long as a response may be
        forest = filled.shaped(rollouts(mask, score, index, None if success_at is None else float(success_at)))
        credit = filled.advantages(forest)
        credit = credit * filled.token_weights(forest, credit)
        out = torch.zeros(mask.shape, dtype=torch.float64)
        out[mask] = credit
        out = out.to(token_level_rewards)
        return out, out

    advantages.__name__ = f"gxpo_{spec}"
    return advantages


def rollouts(own_mask: Tensor, score: Tensor, group: Sequence[Any], success_at: float | None = None) -> Forest:
    """Make the forest of a batch without token ids, which verl does not give an estimator.

    own_mask    [bs, R] bool: the policy's tokens; a gap between them is a tool's output
    score       [bs], nan where unscored;   group [bs]: the same for all rows of a group
    success_at  score from which on an answer is right; None: no verdicts
    """
    names = [str(g) for g in group]
    # rows with tool outputs need their gaps as observations; others are one action of the row's length
    inside = own_mask.flip(1).cummax(1).values.flip(1) & own_mask.cummax(1).values
    if bool((inside & ~own_mask).any()):
        forest = Forest.from_padded(torch.zeros(own_mask.shape, dtype=torch.int64), own_mask, score, names)
    else:
        rows = [[[0] * n] for n in own_mask.sum(1).tolist()]
        forest = Forest.from_completions([()] * len(rows), rows, groups=names)
    verdict = None
    if success_at is not None:
        verdict = torch.where(score.isnan(), torch.nan, grouped.reaches(score, success_at).double())
    return forest.with_rewards(score, success=verdict)


# ---------------------------------------------------------------- policy losses
def policy_loss(spec: str, overrides: Mapping[str, Any] | None = None) -> PolicyLoss:
    """Make a policy loss with verl's signature: the method's ratio and surrogate, aggregated by verl.

    ConfigError if verl lacks something that the method needs.
    """
    if reasons := why_not(spec, "loss", overrides):
        raise ConfigError(f"{spec} in verl: {reasons}")
    term: Any = compose(spec, overrides).terms["policy"]
    horizon = term.horizon if term.aggregate == "sequence_sum" else None
    mode = SUMMED if horizon == 1 else AGGREGATES[term.aggregate]

    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """Compute (loss, figures) of a micro-batch from columns (b, R).

        rollout_is_weights  multiply the loss of each token, after the surrogate
        """
        # settings of verl's that would make it another loss are refused: verl reads its own bounds and aggregation from
        # the same configuration
        totals = {} if config is None else dict(config.global_batch_info)
        if loss_agg_mode != mode:
            raise ConfigError(
                f"{PREFIX}{spec}: set actor.loss_agg_mode={mode}, not {loss_agg_mode}: it is {term.aggregate}"
            )
        factor = totals.get("loss_scale_factor")
        if mode == NORMED and (factor is None or factor != (horizon or factor)):
            length = f"{horizon:g}" if horizon else "the longest response there can be"
            raise ConfigError(f"{PREFIX}{spec}: set actor.loss_scale_factor to {length}, not {factor}")
        if reasons := actor_against(term, config):
            raise ConfigError(f"{PREFIX}{spec}: {'; '.join(reasons)}")
        # the surrogate works on flat tokens [P]; each row is one trajectory of one turn
        mask = response_mask.bool()
        credit_P, logprob = advantages[mask], log_prob[mask]
        owner = mask.nonzero()[:, 0]
        entries = term_entries(term, logprob, old_log_prob[mask].detach(), credit_P, owner, owner)
        loss_P = term.surrogate.loss(entries)
        # a token without advantage has the loss 0 exactly: 0 times an infinite ratio would be nan
        loss_P = torch.where(credit_P == 0, torch.zeros_like(loss_P), loss_P)
        if rollout_is_weights is not None:
            is_weight_P = rollout_is_weights[mask]
            loss_P = torch.where(is_weight_P == 0, torch.zeros_like(loss_P), loss_P * is_weight_P)
        table = torch.zeros_like(log_prob).masked_scatter(mask, loss_P)
        value = need("verl.trainer.ppo.core_algos", "verl").agg_loss(table, response_mask, mode, **totals)
        with torch.no_grad():
            cut = term.surrogate.clipped(entries).double()
            figures = {
                "actor/pg_clipfrac": float(cut.sum() / max(cut.numel(), 1)),
                "actor/ppo_kl": float(-entries.log_ratio.double().sum() / max(cut.numel(), 1)),
            }
        return value, figures

    loss.__name__ = f"gxpo_{spec}"
    return loss


# ---------------------------------------------------------------- registration
_FUNCTIONS: dict[str, tuple[Estimator | None, PolicyLoss | None]] = {}


def register(spec: str, overrides: Mapping[str, Any] | None = None, *, name: str | None = None) -> list[str]:
    """Register a method or composition in verl as gxpo/NAME; return the registries, "advantage" and "loss".

    name  default: the spec
    ConfigError, with the reasons, if it can be neither.
    """
    core = need("verl.trainer.ppo.core_algos", "verl")
    name = f"{PREFIX}{name or spec}"
    reason_by_part = {part: why_not(spec, part, overrides) for part in ("advantage", "loss")}
    if all(reason_by_part.values()):
        raise ConfigError(f"{spec} in verl: {reason_by_part['advantage']}; {reason_by_part['loss']}")
    # verl refuses another function under a name that it has: registering again has to pass the same one
    if name not in _FUNCTIONS:
        _FUNCTIONS[name] = (
            None if reason_by_part["advantage"] else estimator(spec, overrides),
            None if reason_by_part["loss"] else policy_loss(spec, overrides),
        )
    registries = []
    for part, function, register_in in zip(
        reason_by_part, _FUNCTIONS[name], (core.register_adv_est, core.register_policy_loss), strict=True
    ):
        if function is not None:
            register_in(name)(function)
            registries.append(part)
    return registries


def register_all() -> dict[str, list[str]]:
    """Register every method that works in verl, those with verl's constants (gxpo/grpo@verl), and those of MORE.

    A composition of MORE that does not work is an error, since a user asked for it.
    """
    specs = [*METHODS, *(f"{n}@verl" for n in COMPAT.get("verl", {}))]
    extra_specs = [spec.strip() for spec in os.environ.get(MORE, "").split(",") if spec.strip()]
    registries_of = {}
    for spec in specs:
        try:
            registries_of[spec] = register(spec)
        except ConfigError:  # `why_not` gives the reason
            continue
    return registries_of | {spec: register(spec) for spec in extra_specs}


# verl has imported this module (VERL_USE_EXTERNAL_MODULES), or is about to be imported
if importlib.util.find_spec("verl") is not None:
    register_all()
