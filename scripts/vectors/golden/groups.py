"""One reward and its group; batches that are normalised; baselines from outside the group."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from golden.arithmetic import Groups, Number, Rewards, dec, mean, members, nothing, root, variance
from golden.table import LOCAL, MINGLED, ONE_OF_8, RAGGED, REAL, method, rules, vector


# One reward and its group.
@method(
    "grpo",
    "2402.03300",
    "A = (r - mean_g) / (std_g + eps)",
    f"{LOCAL} equal one zero_sum shift scale",
    notes="ddof and eps are not in the paper; 1 and 1e-6 are verl's",
    ddof=1,
    eps=1e-6,
)
def grpo(rewards: Rewards, groups: Groups, ddof: int, eps: Fraction) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):
        xs = [rewards[i] for i in rows]
        if len(set(xs)) > 1:
            bottom, middle = root(variance(xs, ddof)) + dec(eps), mean(xs)
            for i in rows:
                out[i] = dec(rewards[i] - middle) / bottom
    return out


for ddof, eps, who in (
    (1, 0, "no eps"),
    (1, 1e-9, "OpenRLHF group_norm"),
    (1, 1e-6, "verl, SkyRL, slime"),
    (1, 1e-5, "AReaL"),
    (1, 1e-4, "TRL"),
    (0, 1e-6, "rLLM, ART"),
    (0, 0, "population std, no eps"),
):
    for case, words in (("one of four", "1 0 0 0"), ("one of eight", ONE_OF_8)):
        vector("grpo", f"{case}, ddof {ddof}, eps {eps:g}", words, ddof=ddof, eps=eps, note=who)
vector("grpo", "groups of two and three", *RAGGED, note="by ids: one row of five would give .6 -.4 .6 -.4 -.4 centred")
vector("grpo", "groups mingled", *MINGLED)
vector("grpo", "real rewards", *REAL)
vector("grpo", "small differences at a large offset", "1000000 1000000.25 1000000.5 1000001", eps=0)
vector(
    "grpo",
    "seven equal and one",
    "0.35 0.35 0.35 0.35 0.35 0.35 0.35 0",
    eps=0,
    note="a variance by E[x^2] - E[x]^2 in float32 loses this one",
)
rules("grpo")


@method("dr_grpo", "2503.20783", "A = r - mean_g", f"{LOCAL} equal one zero_sum shift homogeneous")
def dr_grpo(rewards: Rewards, groups: Groups) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):
        middle = mean([rewards[i] for i in rows])
        for i in rows if len(rows) > 1 else []:
            out[i] = rewards[i] - middle
    return out


vector("dr_grpo", "one of four", "1 0 0 0")
vector("dr_grpo", "one of eight", ONE_OF_8, note="tinker-cookbook, prime-rl")
vector("dr_grpo", "groups of two and three", *RAGGED)
vector("dr_grpo", "groups mingled", *MINGLED)
vector("dr_grpo", "real rewards", *REAL)
rules("dr_grpo")


@method(
    "rloo",
    "2402.14740",
    "A_i = r_i - mean of r_j, j != i in the group",
    f"{LOCAL} equal one zero_sum shift homogeneous",
)
def rloo(rewards: Rewards, groups: Groups) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):
        for i in rows if len(rows) > 1 else []:
            out[i] = rewards[i] - mean([rewards[j] for j in rows if j != i])
    return out


vector("rloo", "one of four", "1 0 0 0")
vector("rloo", "one of eight", ONE_OF_8)
vector("rloo", "groups of two and three", *RAGGED)
vector("rloo", "groups mingled", *MINGLED)
vector("rloo", "real rewards", *REAL)
rules("rloo")


@method(
    "two_grpo",
    "2510.00977",
    "A = (r - mean_g) / std_g, population std, groups of two: sign of r_1 - r_2",
    "order relabel separate unscored equal one zero_sum shift scale",
    ddof=0,
    eps=0,
)
def two_grpo(rewards: Rewards, groups: Groups, ddof: int, eps: Fraction) -> list[Number]:
    return grpo(rewards, groups, ddof, eps)


vector("two_grpo", "a winner and a loser", "1 0", note="with ddof 1 this would be +-0.7071")
vector("two_grpo", "only the sign counts", "0.2 0.9 5 -5 0.1 0.1", "0 0 1 1 2 2")


@method("opo", "2505.23585", "A = r - sum_j L_j r_j / sum_j L_j over the group", f"{LOCAL} equal one shift homogeneous")
def opo(rewards: Rewards, groups: Groups, lengths: Sequence[int]) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):
        baseline = sum((lengths[i] * rewards[i] for i in rows), Fraction(0)) / sum(lengths[i] for i in rows)
        for i in rows if len(rows) > 1 else []:
            out[i] = rewards[i] - baseline
    return out


vector("opo", "one of four", "1 0 0 0", lengths=[10, 20, 30, 40])
vector("opo", "equal lengths are Dr. GRPO", "1 0 0 0", lengths=[7, 7, 7, 7])
vector("opo", "groups mingled", *MINGLED, lengths=[3, 1, 4, 1, 5, 9, 2, 6, 5])
vector("opo", "real rewards", *REAL, lengths=[12, 3, 4, 8, 1, 1, 20])
rules("opo", lengths=lambda n: [3 + 2 * i for i in range(n)])


# Batch normalisation.
def whitened(values: Sequence[Fraction], counts: Sequence[int], eps: Fraction) -> list[Decimal]:
    """(x - mean) / sqrt(var + eps), each value counted `counts` times, var unbiased."""
    n = sum(counts)
    middle = sum((c * x for c, x in zip(counts, values, strict=True)), Fraction(0)) / n
    var = sum((c * (x - middle) ** 2 for c, x in zip(counts, values, strict=True)), Fraction(0)) / (n - 1)
    return [dec(x - middle) / root(var + eps) for x in values]


@method(
    "reinforce_pp",
    "2501.03262",
    "A = (r - m) / sqrt(var + eps), mean and unbiased variance over all tokens",
    "order relabel unscored shift",
    notes="verl's whitening; every token has its trajectory's reward",
    eps=1e-8,
)
def reinforce_pp(rewards: Rewards, groups: Groups, eps: Fraction, lengths: Sequence[int]) -> list[Number]:
    out, rows = nothing(groups), [i for i, r in enumerate(rewards) if r is not None]
    for i, a in zip(rows, whitened([rewards[i] for i in rows], [lengths[i] for i in rows], eps), strict=True):
        out[i] = a
    return out


vector("reinforce_pp", "four responses of unequal length", "1 0 0 1", lengths=[1, 3, 2, 2])
vector("reinforce_pp", "groups equal within learn from each other", "1 1 0 0", "0 0 1 1", lengths=[2, 2, 2, 2])
vector("reinforce_pp", "real rewards", *REAL, lengths=[12, 3, 4, 8, 1, 1, 20])
vector("reinforce_pp", "rule: unscored rows are in no statistic", "1 - 0 0", lengths=[1, 9, 2, 3])


@method(
    "reinforce_pp_baseline",
    "2501.03262",
    "a = r - mean_g; A = (a - m) / sqrt(var + eps) over all tokens",
    "order relabel unscored shift",
    notes="a group of one has a = 0; verl keeps its raw reward",
    eps=1e-8,
)
def reinforce_pp_baseline(rewards: Rewards, groups: Groups, eps: Fraction, lengths: Sequence[int]) -> list[Number]:
    centred = [a if r is not None else None for a, r in zip(dr_grpo(rewards, groups), rewards, strict=True)]
    return reinforce_pp(centred, groups, eps, lengths)


vector("reinforce_pp_baseline", "two groups, one token each", "1 0 0 0 1 1 1 0", "0 0 0 0 1 1 1 1", lengths=[1] * 8)
vector("reinforce_pp_baseline", "groups mingled", *MINGLED, lengths=[3, 1, 4, 1, 5, 9, 2, 6, 5])
vector("reinforce_pp_baseline", "rule: a group of one has a = 0", "1 1 0", "0 1 1", lengths=[2, 2, 3])


@method(
    "gdpo_multi",
    "2601.05242",
    "z_k = (r_k - mean_g) / (std_g + eps); s = sum_k w_k z_k; A = s normalised over "
    "the batch: (s - mean) / (std + eps) over trajectories, (s - mean) / sqrt(var + 1e-8) over tokens",
    "order relabel",
    notes="batch_unit='trajectories' is TRL's and NeMo's, batch_unit='tokens' verl's; ddof 1 throughout",
    batch_unit="trajectories",
    ddof=1,
    eps=1e-4,
)
def gdpo_multi(
    rewards: Rewards,
    groups: Groups,
    batch_unit: str,
    ddof: int,
    eps: Fraction,
    components: Sequence[Sequence[Any]],
    weights: Sequence[Any],
    lengths: Sequence[int] | None = None,
) -> list[Number]:
    total = [Decimal(0)] * len(groups)
    for column, weight in zip(components, weights, strict=True):
        for i, z in enumerate(grpo([Fraction(x) for x in column], groups, ddof, eps)):
            total[i] += dec(Fraction(weight)) * dec(z)
    counts = [1] * len(groups) if batch_unit == "trajectories" else lengths
    n = sum(counts)
    middle = sum((c * s for c, s in zip(counts, total, strict=True)), Decimal(0)) / n
    var = sum((c * (s - middle) ** 2 for c, s in zip(counts, total, strict=True)), Decimal(0)) / (n - 1)
    bottom = var.sqrt() + dec(eps) if batch_unit == "trajectories" else (var + Decimal("1e-8")).sqrt()
    return [(s - middle) / bottom for s in total]


TWO = [[1, 1, 0, 0], [1, 0, 0, 0]]
vector("gdpo_multi", "two rewards, one group", "2 1 0 0", components=TWO, weights=[1, 1])
vector("gdpo_multi", "weights", "2.5 0.5 0 0", components=TWO, weights=[0.5, 2])
vector(
    "gdpo_multi",
    "a reward without spread adds nothing",
    "2 1 1 1",
    components=[[1, 1, 1, 1], [1, 0, 0, 0]],
    weights=[5, 1],
)
vector(
    "gdpo_multi",
    "two groups",
    "2 1 0 1 1 2 0 0",
    "0 0 0 0 1 1 1 1",
    components=[[1, 1, 0, 0, 0, 1, 0, 0], [1, 0, 0, 1, 1, 1, 0, 0]],
    weights=[1, 1],
)
vector(
    "gdpo_multi",
    "over tokens long answers weigh more",
    "2 1 0 0",
    components=TWO,
    weights=[1, 1],
    batch_unit="tokens",
    lengths=[1, 2, 3, 10],
)


# Baselines from outside the group.
@method("remax", "2310.10505", "A = r - reward of the greedy answer to the same prompt", LOCAL)
def remax(rewards: Rewards, groups: Groups, baseline: Sequence[Any]) -> list[Number]:
    return [Fraction(0) if r is None else r - Fraction(b) for r, b in zip(rewards, baseline, strict=True)]


vector("remax", "one of four, the greedy answer right", "1 0 0 0", baseline=[1, 1, 1, 1])
vector("remax", "two prompts", "1 0 0.5 2", "0 0 1 1", baseline=[0, 0, 1.5, 1.5])


@method("pvpo", "2508.21104", "A = r - V, V the reference policy's mean reward on the prompt", LOCAL)
def pvpo(rewards: Rewards, groups: Groups, baseline: Sequence[Any]) -> list[Number]:
    return remax(rewards, groups, baseline)


vector("pvpo", "one of four", "1 0 0 0", baseline=[0.5] * 4)
vector("pvpo", "all wrong", "0 0 0 0", baseline=[0.25] * 4)
vector("pvpo", "all right", "1 1 1 1", baseline=[0.25] * 4)


@method(
    "aapo",
    "2505.14264",
    "A = (r - mean_g) / (std_g + eps) + clip(r - r_ref, low, high)",
    LOCAL,
    notes="r_ref: reward of the reference policy's answer with the same index",
    ddof=1,
    eps=1e-4,
    low=-0.2,
    high=0.28,
)
def aapo(
    rewards: Rewards,
    groups: Groups,
    ddof: int,
    eps: Fraction,
    low: Fraction,
    high: Fraction,
    reference_rewards: Sequence[Any],
) -> list[Number]:
    out = grpo(rewards, groups, ddof, eps)
    for i, r in enumerate(rewards):
        if r is not None:
            out[i] = dec(out[i]) + dec(min(max(r - Fraction(reference_rewards[i]), low), high))
    return out


vector("aapo", "three of four", "1 0 1 1", reference_rewards=[0, 0, 1, 0])
vector("aapo", "all right", "1 1 1 1", reference_rewards=[0, 0, 1, 0])
vector("aapo", "a gap inside the bounds", "0.5 0.2", reference_rewards=[0.4, 0.3])
