"""What was sampled: completions without an end, cut ones, prompts in the wrong form."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.case import Case
from gxpo.doctor.finding import Finding
from gxpo.doctor.sickness import found, sickness

ALL = 0.97  # share of completions at the limit that counts as all of them


def all_cut(case: Case) -> bool:
    """Whether nearly every completion of every step ran into the limit, from the first step on."""
    if case.in_parts:
        return False
    if case.has("truncated"):
        return case.first("truncated") >= ALL and float(np.median(case.values("truncated"))) >= ALL
    if case.has("length_min", "length_max"):
        low, high = case.values("length_min"), case.values("length_max")
        same = len(low) == len(high) and bool((low == high).all())
        return same and case.constant("length_max") and len(low) >= 5 and high[0] > 1
    return False


@sickness(
    "no_eos",
    0,
    "the end of an answer is never sampled or never recognised",
    "all completions cut from step 1, shortest = longest = limit, and text goes on after a complete answer",
    needs=("truncated", "length_min", "rollouts"),
    follows=("wrong_template",),
)
def no_eos(case: Case) -> Finding | None:
    if not all_cut(case):
        return None
    evidence = [case.quote(n) for n in ("truncated", "terminated_length", "length_min", "length_max") if case.has(n)]
    facts = case.facts
    ends = None if facts is None else facts.goes_on
    goes_on = None if ends is None else ends[0]
    examples = facts.examples(ends[1]) if facts is not None and ends is not None else ()
    masked = bool(case.setting("mask_truncated")) or nothing_trained(case)
    ids = ["no_eos"]
    scored = case.first(case.correctness or "reward")
    bare = facts is not None and case.has("length") and facts.characters < 0.8 * case.mean("length")
    if bare and facts is not None:
        evidence.append(
            f"completions of {case.mean('length'):.3g} tokens hold {facts.characters:.3g} characters: special tokens, "
            "the end among them, were sampled and not obeyed"
        )
        examples = facts.examples(range(2))
    elif scored > 0.1 * max(case.top, 1e-9) and scored > 0.05:
        evidence.append(f"cut answers are complete ones: {case.quote(case.correctness or 'reward')}")
    elif goes_on is None:
        ids.append("truncation")
        evidence.append("the completions would tell them apart: does text go on after an answer, or is it unfinished?")
    else:
        evidence.append(f"{goes_on:.0%} of the completions go on after a complete answer")
        if goes_on < 0.3:
            broken_off = facts.unfinished if facts is not None else 0.0
            evidence.append(f"{broken_off:.0%} of them break off")
            ids = ["truncation", "no_eos"]
    if ids[0] == "truncation" and len(ids) == 1 and not masked:
        return None  # `truncation` says it
    if masked:
        ids.append("all_masked")
        evidence.append("cut completions are masked out of the loss: nothing is trained on")
        evidence += [case.quote(n) for n in ("grad_norm", "reward_std") if case.has(n)]
    return found(
        ids,
        "critical",
        "proved" if bare or (goes_on is not None and goes_on > 0.6) else "likely",
        "no completion ends by itself: the end-of-sequence token is not sampled or not recognised"
        if ids[0] == "no_eos"
        else "every completion is cut at the limit",
        *evidence,
        examples=examples,
    )


def nothing_trained(case: Case) -> bool:
    """Gradient exactly 0 in steps whose rewards differ within groups."""
    if not case.has("grad_norm"):
        return False
    late = slice(len(case.values("grad_norm")) // 2, None)  # completions may have become too long on the way
    still = case.values("grad_norm")[late] == 0
    zero = set(case.log.steps("grad_norm")[late][still].tolist())
    least = min(3, len(still))  # a pasted row or two of a longer run will do
    if len(zero) < max(least, 0.6 * len(still)) or case.log.last_step < 3:
        return False
    for name, silent in (("zero_signal", lambda v: v < 1.0), ("reward_std", lambda v: v > 1e-6)):
        if case.has(name):
            steps, values = case.log.steps(name), case.values(name)
            return sum(s in zero and silent(v) for s, v in zip(steps.tolist(), values.tolist(), strict=True)) >= least
    if case.has("advantage_max"):
        steps, values = case.log.steps("advantage_max"), case.values("advantage_max")
        return sum(s in zero and v > 0 for s, v in zip(steps.tolist(), values.tolist(), strict=True)) >= least
    return False


@sickness(
    "all_masked",
    0,
    "every completion is masked: no gradient although rewards differ",
    "gradient norm 0 in steps whose groups have spread",
    needs=("grad_norm",),
    follows=("no_eos",),
)
def all_masked(case: Case) -> Finding | None:
    if not nothing_trained(case):
        return None
    evidence = [case.quote(n) for n in ("grad_norm", "reward_std", "zero_signal", "truncated") if case.has(n)]
    rate = case.values("lr")
    if case.has("truncated") and case.last("truncated") < 0.5:
        return found(
            ["all_masked", "weights_do_not_move"],
            "critical",
            "likely",
            "there is no gradient although rewards differ: every token is masked, or no parameter is trained",
            *evidence,
        )
    return found(
        "all_masked",
        "critical",
        "proved" if case.setting("mask_truncated") else "likely",
        "there is no gradient although rewards differ: every completion is masked out of the loss",
        *evidence,
        case.quote("lr") if len(rate) else "",
    )


@sickness(
    "truncation",
    0,
    "the length limit is shorter than the answers",
    "more than 20% cut, and cut answers earn about nothing while finished ones earn something; or all cut",
    needs=("truncated", "rollouts"),
    follows=("no_eos", "length_hack", "lr_too_high"),
)
def truncation(case: Case) -> Finding | None:
    if not case.has("truncated") or case.in_parts:
        return None
    facts = case.facts
    if all_cut(case):
        told = no_eos(case)
        if told is not None:
            return None
        goes_on = facts.goes_on[0] if facts is not None and facts.goes_on is not None else None
        if goes_on is not None and goes_on >= 0.3:
            return None
        if goes_on is None:
            return None  # no_eos names both
        return found(
            "truncation",
            "critical",
            "likely",
            "every completion is cut at the length limit",
            case.quote("truncated"),
            case.quote("length_max"),
            case.quote("reward"),
            f"{goes_on:.0%} of the completions go on after a complete answer: the others are unfinished",
            examples=facts.examples(range(2)) if facts is not None else (),
        )
    share, late = float(case.values("truncated")[0]), case.last("truncated")
    if max(share, late) < 0.2 or 2 <= len(case.values("truncated")) < 5:
        return None  # a few first steps of a policy that has not been trained yet
    shares = dict(zip(case.log.steps("truncated").astype(int).tolist(), case.values("truncated").tolist(), strict=True))
    split = None if facts is None else facts.cut_scores(shares)
    evidence = [case.quote("truncated"), case.quote("length"), case.quote("reward")]
    if split is not None:
        cut, whole, count = split
        evidence.append(f"mean reward of cut completions {cut:.3g}, of finished ones {whole:.3g} ({count} rollouts)")
        if cut > 0.5 * whole:
            return None
    unpaid = split is not None and split[0] < 0.25 * split[1] and min(share, late) > 0.2
    if case.gains and late < 0.5 and not late > share + 0.1 and not unpaid:
        return found("truncation", "note", "possible", f"{late:.0%} of the completions are cut", *evidence)
    grows = late > share + 0.2
    return found(
        "truncation",
        "warning" if case.gains or grows else "critical",
        "likely" if split is not None or min(share, late) > 0.5 else "possible",
        f"{max(share, late):.0%} of the completions are cut at the length limit",
        *evidence,
    )


@sickness(
    "wrong_template",
    0,
    "prompts are rendered with another chat template, twice, or not at all",
    "roles or template tokens inside completions, or in prompts twice, or without the assistant's turn at the end",
    needs=("rollouts",),
    follows=(),
)
def wrong_template(case: Case) -> Finding | None:
    facts = case.facts
    if facts is None or facts.template is None:
        return None
    share, what, rows = facts.template
    if share < 0.2:
        return None
    low = case.first("reward") if case.has("reward") else float("nan")
    healthy = case.gains and share < 0.9 and "completion" in what
    return found(
        "wrong_template",
        "note" if healthy else "critical",
        "likely" if share > 0.5 else "possible",
        f"{what} in {share:.0%} of the rollouts: another chat template than the model's",
        f"mean reward in the first steps: {low:.3g}",
        examples=facts.examples(rows),
    )
