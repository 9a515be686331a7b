"""Checks of the samples: missing end tokens, truncation, masked completions, wrong chat templates."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.checks.update import MEANS
from gxpo.doctor.finding import Finding
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.sickness import finding, sickness

FLOOR = 0.1  # of rewards that are never negative: below it hardly any answer earns something
NEAR_LIMIT = 0.75  # mean length as a share of the limit, which only many answers at the limit bring about
FEW = 12  # logged points up to which a low reward does not tell complete answers from cut ones
ALL = 0.97  # share of completions at the limit that counts as all of them


def all_cut(log: RunLog) -> bool:
    """True if nearly all completions ran into the length limit, from the first step on."""
    if log.has_partial_rollouts:
        return False
    # a mean at the limit in every step leaves no answer below it, whatever share is recorded
    limit = log.number("max_tokens")
    lengths = log.values("length")
    if limit is not None and limit > 1 and len(lengths) >= 5 and float(np.abs(lengths - limit).max()) < 0.01 * limit:
        return True
    if log.has("truncated"):
        return log.first("truncated") >= ALL and float(np.median(log.values("truncated"))) >= ALL
    if log.has("length_min", "length_max"):
        # without a recorded share: shortest = longest in every step
        low, high = log.values("length_min"), log.values("length_max")
        same = len(low) == len(high) and bool((low == high).all())
        return same and log.is_constant("length_max") and len(low) >= 5 and high[0] > 1
    return False


@sickness(
    "no_eos",
    0,
    "the end of an answer is never sampled or never recognised",
    "all completions cut from step 1, shortest = longest = limit, and text goes on after a complete answer",
    needs=("truncated", "length_min", "rollouts"),
    follows=("wrong_template",),
)
def no_eos(log: RunLog) -> Finding | None:
    if not all_cut(log):
        return None
    evidence = [log.quote(n) for n in ("truncated", "terminated_length", "length_min", "length_max") if log.has(n)]
    facts = log.facts
    # text after a complete answer means that the end is not sampled; unfinished text, that the limit is short
    ends = None if facts is None else facts.goes_on
    goes_on = None if ends is None else ends[0]
    examples = facts.examples(ends[1]) if facts is not None and ends is not None else ()
    # TRL's and DAPO's mask takes all cut completions out of the loss: then nothing is trained
    is_masked = bool(log.setting("mask_truncated")) or nothing_trained(log)
    ids = ["no_eos"]
    score = log.first(log.correctness or "reward")
    # decoding drops special tokens, so that what a policy samples after its end leaves no characters
    is_bare = facts is not None and log.has("length") and facts.characters < 0.8 * log.mean("length")
    if is_bare and facts is not None:
        evidence.append(
            f"completions of {log.mean('length'):.3g} tokens hold {facts.characters:.3g} characters: special tokens, "
            "the end among them, were sampled and not obeyed"
        )
        examples = facts.examples(range(2))
    elif score > 0.1 * max(log.top_reward, 1e-9) and score > (0.05 if log.n_steps > FEW else 0.5):
        evidence.append(f"cut answers are complete ones: {log.quote(log.correctness or 'reward')}")
    elif goes_on is None:
        ids.append("truncation")
        evidence.append(
            "the completions would tell: text goes on after a complete answer (no_eos) or breaks off (truncation)"
        )
    else:
        evidence.append(f"{goes_on:.0%} of the completions go on after a complete answer")
        if goes_on < 0.3:
            broken_off = facts.unfinished if facts is not None else 0.0
            evidence.append(f"{broken_off:.0%} of them break off")
            ids = ["truncation", "no_eos"]
    if ids[0] == "truncation" and len(ids) == 1 and not is_masked:
        return None  # `truncation` says it
    if is_masked:
        ids.append("all_masked")
        evidence.append("cut completions are masked out of the loss: nothing is trained on")
        evidence += [log.quote(n) for n in ("grad_norm", "reward_std") if log.has(n)]
    return finding(
        ids,
        "critical",
        "proved" if is_bare or (goes_on is not None and goes_on > 0.6) else "likely",
        "no completion ends by itself: the end-of-sequence token is not sampled or not recognised"
        if ids[0] == "no_eos"
        else "every completion is cut at the limit",
        *evidence,
        examples=examples,
    )


def nothing_trained(log: RunLog) -> bool:
    """True if the gradient is exactly 0 in steps whose rewards differ within groups."""
    if not log.has("grad_norm"):
        return False
    # completions may have become too long on the way
    late_half = slice(len(log.values("grad_norm")) // 2 if len(log.values("grad_norm")) > 3 else 0, None)
    is_zero = log.values("grad_norm")[late_half] == 0
    zero_steps = set(log.steps("grad_norm")[late_half][is_zero].tolist())
    least = min(3, len(is_zero))  # a pasted row or two of a longer run will do
    if len(zero_steps) < max(least, 0.6 * len(is_zero)) or (
        log.last_step < 3 and not (log.last_step == 2 == len(zero_steps))
    ):
        return False
    # rows that are means over many steps have the gradient of the last of them, which may have been without a signal
    if log.source in MEANS and log.last_step >= 5 * log.n_steps and is_zero.mean() < 0.95:
        return False
    # a spread over the whole step may lie between groups: single steps without a gradient are then chance
    if not log.has("zero_signal") and not log.has("advantage_max") and (is_zero.mean() < 0.95 or log.is_solved):
        return False
    # steps without a gradient count only if their rewards asked for one
    for name, silent in (("zero_signal", lambda v: v < 1.0), ("reward_std", lambda v: v > 1e-6)):
        if log.has(name):
            steps, values = log.steps(name), log.values(name)
            return (
                sum(s in zero_steps and silent(v) for s, v in zip(steps.tolist(), values.tolist(), strict=True))
                >= least
            )
    if log.has("advantage_max"):
        steps, values = log.steps("advantage_max"), log.values("advantage_max")
        return sum(s in zero_steps and v > 0 for s, v in zip(steps.tolist(), values.tolist(), strict=True)) >= least
    return False


@sickness(
    "all_masked",
    0,
    "every completion is masked: no gradient although rewards differ",
    "gradient norm 0 in steps whose groups have spread; or the loss keeps no rollout",
    needs=("grad_norm", "kept"),
    follows=("no_eos", "lr_too_high", "entropy_collapse", "missing_scores"),
    of_training=True,
)
def all_masked(log: RunLog) -> Finding | None:
    if log.is_zero("kept") and len(log.values("kept")) >= 3:
        return finding(
            "all_masked",
            "critical",
            "proved",
            "the loss keeps no rollout: all are masked out",
            *(log.quote(n) for n in ("kept", "truncated", "reward", "grad_norm") if log.has(n)),
        )
    if not nothing_trained(log):
        return None
    # a collapsed policy gives one answer, whose gradient is 0: that came later than the collapse
    zero_steps = log.steps("grad_norm")[log.values("grad_norm") == 0]
    if log.collapse is not None and zero_steps[0] >= log.collapse and not log.last("truncated") > 0.5:
        return None
    # a reward that has come near its top leaves few groups with a signal, and steps without any
    if log.first("grad_norm") > 0 and not log.has("zero_signal") and log.last("reward") > 0.95 * log.top_reward > 0:
        return None
    evidence = [log.quote(n) for n in ("grad_norm", "reward_std", "zero_signal", "truncated") if log.has(n)]
    rate = log.values("lr")
    # where some completions are whole, a mask of cut ones can't be the reason
    if log.has("truncated") and log.last("truncated") < ALL - 0.1:
        is_known = log.has("zero_signal") or log.has("advantage_max")
        return finding(
            ["all_masked", "weights_do_not_move", *([] if is_known else ["no_diversity"])],
            "critical",
            "likely",
            "there is no gradient although rewards differ: every token is masked, or no parameter is trained",
            *evidence,
        )
    return finding(
        "all_masked",
        "critical",
        "proved" if log.setting("mask_truncated") else "likely",
        "there is no gradient although rewards differ: every completion is masked out of the loss",
        *evidence,
        log.quote("lr") if len(rate) else "",
    )


@sickness(
    "truncation",
    0,
    "the length limit is shorter than the answers",
    "more than 20% cut, and cut answers earn about nothing while finished ones earn something; or all cut",
    needs=("truncated", "rollouts", "length_max"),
    follows=("no_eos", "length_hack", "lr_too_high", "entropy_collapse", "reward_sign", "non_finite"),
)
def truncation(log: RunLog) -> Finding | None:
    if not log.has("truncated"):
        return _against_the_limit(log)
    if log.has_partial_rollouts:
        return None
    facts = log.facts
    if all_cut(log):
        endless = no_eos(log)
        if endless is not None:
            return None
        goes_on = facts.goes_on[0] if facts is not None and facts.goes_on is not None else None
        if goes_on is not None and goes_on >= 0.3:
            return None
        if goes_on is None:
            return None  # no_eos names both
        return finding(
            "truncation",
            "critical",
            "likely",
            "every completion is cut at the length limit",
            log.quote("truncated"),
            log.quote("length_max"),
            log.quote("reward"),
            f"{goes_on:.0%} of the completions go on after a complete answer: the others are unfinished",
            examples=facts.examples(range(2)) if facts is not None else (),
        )
    # a policy that writes more and more runs into the limit late: a consequence, no cause
    share, last_share = log.first("truncated"), log.last("truncated")
    if max(share, last_share) < 0.2 or (2 <= len(log.values("truncated")) < 5 and log.last_step < 20):
        return None  # a few first steps of a policy that has not been trained yet
    shares = dict(zip(log.steps("truncated").astype(int).tolist(), log.values("truncated").tolist(), strict=True))
    if log.mean("truncated") < 0.15 and last_share < 0.25:
        return None  # the last steps alone, of a share that comes and goes
    if last_share < 0.5 * share and last_share < 0.15 and not log.falls("reward"):
        return None  # training cures it
    # answers that earn as much when cut lose nothing by it
    cut_scores = None if facts is None else facts.cut_scores(shares)
    evidence = [log.quote("truncated"), log.quote("length"), log.quote("reward")]
    if cut_scores is not None:
        score_cut, score_ended, count = cut_scores
        evidence.append(
            f"mean reward of cut completions {score_cut:.3g}, of finished ones {score_ended:.3g} ({count} rollouts)"
        )
    # cut answers that earn as much are no loss, unless most are cut and the run does not gain
    is_lossless = cut_scores is not None and cut_scores[0] > 0.5 * cut_scores[1] > 0
    if is_lossless and (log.gains or last_share < 0.5):
        return None
    is_unpaid = cut_scores is not None and cut_scores[0] < 0.25 * cut_scores[1] and min(share, last_share) > 0.2
    # a gain that leaves nearly all answers wrong is none that the limit permits
    is_starved = last_share > 1 / 3 and float(log.values("reward").min(initial=1.0)) >= 0 and log.last("reward") < FLOOR
    if log.gains and last_share < 0.5 and not last_share > max(share + 0.1, 0.3) and not is_unpaid and not is_starved:
        return finding("truncation", "note", "possible", f"{last_share:.0%} of the completions are cut", *evidence)
    grows = last_share > share + 0.2
    is_some = log.mean("truncated") < 0.2  # of a batch whose other answers still teach
    return finding(
        "truncation",
        "warning" if log.gains or grows or is_lossless or is_some else "critical",
        "likely" if not is_lossless and (cut_scores is not None or min(share, last_share) > 0.5) else "possible",
        f"{last_share:.0%} of the completions are cut at the length limit in the last steps"
        if grows
        else f"{log.mean('truncated'):.0%} of the completions are cut at the length limit",
        *evidence,
        _disagreement(log, shares),
    )


def _against_the_limit(log: RunLog) -> Finding | None:
    """Report answers whose mean length is near the limit, where the share of cut ones was not logged: the longest of
    nearly every step has one and the same length."""
    longest, limit = log.values("length_max"), log.number("max_tokens")
    if limit is None and len(longest) >= 5 and float((longest >= longest.max()).mean()) > 0.8:
        limit = float(longest.max())
    if not limit or limit <= 1 or len(log.values("length")) < 5 or log.gains or all_cut(log):
        return None
    share = log.last("length") / limit
    if not NEAR_LIMIT < share < 1.01:
        return None
    return finding(
        ["truncation", "no_eos"],
        "warning",
        "possible",
        f"the mean answer has {share:.0%} of the longest possible one's length: many are cut",
        log.quote("length"),
        log.quote("length_max") if log.has("length_max") else f"limit {limit:g} tokens",
        log.quote("reward"),
    )


def _disagreement(log: RunLog, shares: dict[int, float]) -> str:
    """Evidence where the rollouts that were read contradict the metrics, which count as they are of all rollouts."""
    rollouts = log.training_rollouts
    if rollouts is None:
        return ""
    is_known = np.isfinite(rollouts.truncated) & np.isin(rollouts.step, list(shares))
    if not is_known.any():
        return ""
    metric_share = float(np.mean([shares[s] for s in rollouts.step[is_known].tolist()]))
    rollout_share = float(rollouts.truncated[is_known].mean())
    if abs(metric_share - rollout_share) < 0.1:
        return ""
    return (
        f"of the rollouts that were read {rollout_share:.0%} are cut, by {log.key('truncated')} {metric_share:.0%}: "
        "the latter counts"
    )


@sickness(
    "wrong_template",
    0,
    "prompts are rendered with another chat template, twice, or not at all",
    "roles or template tokens inside completions, or in prompts twice, or without the assistant's turn at the end",
    needs=("rollouts",),
    follows=(),
)
def wrong_template(log: RunLog) -> Finding | None:
    facts = log.facts
    if facts is None or facts.template is None:
        return None
    share, symptom, rows = facts.template
    if share < 0.2:
        return None
    # base models learn to print roles and yet to answer: a note while the run gains
    is_healthy = log.gains and share < 0.9 and "completion" in symptom
    return finding(
        "wrong_template",
        "note" if is_healthy else "critical",
        "likely" if share > 0.5 else "possible",
        f"{symptom} in {share:.0%} of the rollouts: another chat template than the model's",
        log.quote("reward"),
        examples=facts.examples(rows),
    )
