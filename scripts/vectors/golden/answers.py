"""What answers have beside their rewards: lengths, probabilities, entropies, clusters."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from golden.arithmetic import Groups, Number, Rewards, dec, mean, members, nothing, root, scaled
from golden.groups import grpo
from golden.table import LOCAL, method, vector


# Lengths, probabilities, entropies, clusters.
@method(
    "adora",
    "2602.10019",
    "GRPO's A, times factor for the whole group unless its longest right answer is longer than its wrong ones' mean",
    f"{LOCAL} one zero_sum",
    "binary",
    "wrong answers at max_length do not count; of two released versions this is the one for text",
    factor=0.1,
    ddof=1,
    eps=1e-6,
)
def adora(
    rewards: Rewards, groups: Groups, factor: Fraction, ddof: int, eps: Fraction, lengths: Sequence[int]
) -> list[Number]:
    out = grpo(rewards, groups, ddof, eps)
    for rows in members(rewards, groups):
        right = [lengths[i] for i in rows if rewards[i] == 1]
        wrong = [Fraction(lengths[i]) for i in rows if rewards[i] != 1]
        keep = bool(right) and (not wrong or max(right) > mean(wrong))
        for i in rows if not keep else []:
            out[i] = dec(factor) * dec(out[i])
    return out


vector("adora", "the right answer is the longest", "1 0 0 0", lengths=[500, 300, 350, 400])
vector("adora", "the right answer is the shortest", "1 0 0 0", lengths=[200, 300, 350, 400])
vector("adora", "without eps", "1 0 0 0", lengths=[200, 300, 350, 400], eps=0)


@method(
    "grpo_lead",
    "2504.09696",
    "R = exp(-alpha z) if right, -1 if wrong, z = (L - mean) / (std + eps) over right "
    "answers, one degree of freedom; A = (R - mean) / (std + eps); times w(c / G) where A > 0, w(1 - c / G) elsewhere; "
    "w(p) = low + (high - low) / (1 + exp(steepness (p - middle)))",
    LOCAL,
    "binary",
    alpha=0.05,
    low=0.4,
    high=1.5,
    steepness=10,
    middle=0.75,
    ddof=1,
    eps=1e-6,
)
def grpo_lead(
    rewards: Rewards,
    groups: Groups,
    alpha: Fraction,
    low: Fraction,
    high: Fraction,
    steepness: int,
    middle: Fraction,
    ddof: int,
    eps: Fraction,
    lengths: Sequence[int],
) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):
        right = [i for i in rows if rewards[i] == 1]
        z = scaled([Fraction(lengths[i]) for i in right], ddof, eps) or [Decimal(0)] * len(right)
        shaped = dict.fromkeys(rows, Decimal(-1)) | {i: (-dec(alpha) * x).exp() for i, x in zip(right, z, strict=True)}
        rate = Fraction(len(right), len(rows))
        up, down = (dec(low) + dec(high - low) / (1 + (steepness * dec(p - middle)).exp()) for p in (rate, 1 - rate))
        for i, a in zip(rows, scaled([shaped[i] for i in rows], ddof, eps) or [], strict=False):
            out[i] = a * (up if a > 0 else down)
    return out


vector("grpo_lead", "three of four", "1 1 1 0", lengths=[100, 200, 300, 150])
vector("grpo_lead", "one of four: z is 0", "1 0 0 0", lengths=[100, 200, 300, 150])
vector("grpo_lead", "all right: only lengths differ", "1 1 1", lengths=[10, 20, 60])


@method(
    "unlikeliness",
    "2506.02355",
    "rank 0 = least likely by mean log-prob; r' = r (1 - beta rank / G); A = (r' - mean) / (std + eps)",
    LOCAL,
    "binary",
    "all_correct: also where all are right; the released code drops such groups before",
    beta=0.25,
    all_correct=False,
    ddof=1,
    eps=1e-6,
)
def unlikeliness(
    rewards: Rewards,
    groups: Groups,
    beta: Fraction,
    all_correct: bool,
    ddof: int,
    eps: Fraction,
    mean_logprob: Sequence[Fraction],
) -> list[Number]:
    shaped = list(rewards)
    for rows in members(rewards, groups):
        keep = all(rewards[i] == 1 for i in rows) and not all_correct
        for rank, i in enumerate(sorted(rows, key=lambda i: mean_logprob[i])):
            shaped[i] = rewards[i] if keep else rewards[i] * (1 - beta * rank / len(rows))
    return grpo(shaped, groups, ddof, eps)


vector("unlikeliness", "three of four", "1 1 0 1", mean_logprob=[-0.1, -0.5, -0.3, -0.9])
vector(
    "unlikeliness", "all right learn if asked to", "1 1 1 1", mean_logprob=[-0.1, -0.5, -0.3, -0.9], all_correct=True
)
vector("unlikeliness", "all right do not", "1 1 1 1", mean_logprob=[-0.1, -0.5, -0.3, -0.9])
vector("unlikeliness", "all wrong do not", "0 0 0 0", mean_logprob=[-0.1, -0.5, -0.3, -0.9])


@method(
    "xrpo",
    "2510.06672",
    "eta = exp(s - mean_g s), s the mean log-prob; A + min(max(novelty (1 - eta), 0), cap A) "
    "for right answers, A for wrong ones",
    LOCAL,
    "binary",
    novelty=2.5,
    cap=0.5,
    ddof=0,
    eps=0,
)
def xrpo(
    rewards: Rewards,
    groups: Groups,
    novelty: Fraction,
    cap: Fraction,
    ddof: int,
    eps: Fraction,
    mean_logprob: Sequence[Fraction],
) -> list[Number]:
    out = grpo(rewards, groups, ddof, eps)
    for rows in members(rewards, groups):
        middle = mean([mean_logprob[i] for i in rows])
        for i in rows:
            if rewards[i] == 1:
                a = dec(out[i])
                bonus = dec(novelty) * (1 - dec(mean_logprob[i] - middle).exp())
                out[i] = a + min(max(bonus, Decimal(0)), dec(cap) * a)
    return out


vector("xrpo", "two of four", "1 1 0 0", mean_logprob=[-0.2, -0.6, -0.4, -0.5])
vector("xrpo", "the bonus is capped", "1 0 0 0", mean_logprob=[-3, -0.5, -0.25, -0.25])


@method(
    "capo_calibration",
    "2604.12632",
    "s(x) = sigmoid(-x / tau) / tau; A_i = sum over wrong j of s(l_i - l_j) if "
    "right, minus the sum over right j of s(l_j - l_i) if wrong; l the mean log-prob",
    f"{LOCAL} equal one zero_sum",
    "binary",
    tau=0.5,
)
def capo_calibration(rewards: Rewards, groups: Groups, tau: Fraction, mean_logprob: Sequence[Fraction]) -> list[Number]:
    def slope(x: Fraction) -> Decimal:
        return 1 / (1 + (dec(x) / dec(tau)).exp()) / dec(tau)

    out = nothing(groups)
    for rows in members(rewards, groups):
        for i in rows:
            others = [j for j in rows if rewards[j] != rewards[i]]
            gaps = [(mean_logprob[i] - mean_logprob[j]) * (1 if rewards[i] else -1) for j in others]
            total = sum((slope(x) for x in gaps), Decimal(0))
            out[i] = total if rewards[i] else -total
    return out


vector("capo_calibration", "two of three", "1 1 0", mean_logprob=[-0.2, -0.6, -0.4])
vector("capo_calibration", "all right", "1 1 1", mean_logprob=[-0.2, -0.6, -0.4])


@method(
    "lens",
    "2510.08696",
    "pi = exp(mean log-prob); D = max(G / sum_i (r_i / pi_i), 2 max pi), 2 max pi where all are "
    "wrong; r' = r - (1 - r) pi / (G (D - pi)); mixed groups: (r' - mean) / (std + eps); all wrong: "
    "negative_weight (r' - mean)",
    LOCAL,
    "binary",
    negative_weight=0.25,
    ddof=1,
    eps=1e-6,
)
def lens(
    rewards: Rewards,
    groups: Groups,
    negative_weight: Fraction,
    ddof: int,
    eps: Fraction,
    mean_logprob: Sequence[Fraction],
) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):
        pi = {i: dec(mean_logprob[i]).exp() for i in rows}
        right, size = [i for i in rows if rewards[i] == 1], len(rows)
        bound = 2 * max(pi.values())
        if right:
            bound = max(bound, size / sum((1 / pi[i] for i in right), Decimal(0)))
        shaped = [Decimal(1) if i in right else -pi[i] / (bound - pi[i]) / size for i in rows]
        if right:
            advantages = scaled(shaped, ddof, eps) or []
        else:
            middle = sum(shaped, Decimal(0)) / size
            advantages = [dec(negative_weight) * (x - middle) for x in shaped]
        for i, a in zip(rows, advantages, strict=False):
            out[i] = a
    return out


CONFIDENCE = [-0.5108256237659907, -0.6931471805599453, -0.916290731874155, -1.2039728043259361]  # ln .6 .5 .4 .3
vector("lens", "all wrong", "0 0 0 0", mean_logprob=CONFIDENCE)
vector("lens", "one of four", "1 0 0 0", mean_logprob=CONFIDENCE)
vector("lens", "all right", "1 1 1 1", mean_logprob=CONFIDENCE)


@method(
    "edge_grpo",
    "2507.21848",
    "A = (r - mean_g) / (std_g + eps) times mean_batch H / H_i, H_i the mean entropy of the answer's tokens",
    "order relabel",
    notes="the mean is over the answers of the batch; no gradient through H",
    ddof=1,
    eps=1e-4,
)
def edge_grpo(
    rewards: Rewards, groups: Groups, ddof: int, eps: Fraction, mean_entropy: Sequence[Fraction]
) -> list[Number]:
    middle = dec(mean(mean_entropy))
    return [dec(a) * middle / dec(h) for a, h in zip(grpo(rewards, groups, ddof, eps), mean_entropy, strict=True)]


vector("edge_grpo", "one of four", "1 0 0 0", mean_entropy=[0.2, 0.4, 0.6, 0.8])
vector("edge_grpo", "equal entropies are GRPO", "1 0 0 0", mean_entropy=[0.5] * 4)


@method(
    "seed_grpo",
    "2505.12346",
    "SE = -(1 / K) sum over the K clusters of log(share); A = (r - mean_g) (1 - alpha SE / log G)",
    f"{LOCAL} equal zero_sum shift homogeneous",
    notes="shares by count; cluster ids inside the group",
    alpha=1,
)
def seed_grpo(rewards: Rewards, groups: Groups, alpha: Fraction | int, clusters: Sequence[int]) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):
        ids = [clusters[i] for i in rows]
        names = sorted(set(ids))
        entropy = -sum((dec(Fraction(ids.count(k), len(ids))).ln() for k in names), Decimal(0)) / len(names)
        middle = mean([rewards[i] for i in rows])
        for i in rows if len(rows) > 1 else []:
            out[i] = dec(rewards[i] - middle) * (1 - dec(Fraction(alpha)) * entropy / Decimal(len(ids)).ln())
    return out


vector("seed_grpo", "two meanings, even", "1 0 0 0", clusters=[0, 0, 1, 1])
vector("seed_grpo", "two meanings, three to one", "1 0 0 0", clusters=[0, 1, 1, 1])
vector("seed_grpo", "one meaning", "1 0 0 0", clusters=[2, 2, 2, 2])


@method(
    "a_grae",
    "2602.05548",
    "M = mean of the group means; a = (r - mean_g) / (std_g + eps); A = (1 - M) a / (2 (e + "
    "eps)) + M a / (2 (sqrt(mean_g) + eps)); A > 0: times min(1, M / alpha); e = sqrt(1 - mean_g), or 1 - "
    "sqrt(mean_g)",
    "order relabel unscored one equal",
    "binary",
    "the released code has e = 1 - sqrt(mean_g)",
    easy="one_minus_root",
    alpha=1,
    ddof=1,
    eps=1e-6,
)
def a_grae(
    rewards: Rewards, groups: Groups, easy: str, alpha: Fraction | int, ddof: int, eps: Fraction
) -> list[Number]:
    out, a, row_groups = nothing(groups), grpo(rewards, groups, ddof, eps), list(members(rewards, groups))
    means = [mean([rewards[i] for i in rows]) for rows in row_groups]
    overall = dec(mean(means))
    for rows, middle in zip(row_groups, means, strict=True):
        rest = root(1 - middle) if easy == "root_of_rest" else 1 - root(middle)
        for i in rows if 0 < middle < 1 else []:
            x = dec(a[i])
            advantage = (1 - overall) * x / 2 / (rest + dec(eps)) + overall * x / 2 / (root(middle) + dec(eps))
            out[i] = advantage * min(Decimal(1), overall / dec(Fraction(alpha))) if advantage > 0 else advantage
    return out


PAIR = ("1 0 0 0 1 1 1 0", "0 0 0 0 1 1 1 1")
vector("a_grae", "one and three of four, as coded", *PAIR)
vector("a_grae", "one and three of four, the mirror image", *PAIR, easy="root_of_rest")


@method(
    "tempsamp_r1",
    "2509.18056",
    "r' = tau + a1 ln(r - tau + 1) if r >= tau, tau - (exp(a2 (tau - r)) - 1) / (exp(a2) "
    "- 1) below; A = (r' - mean) / (std + eps)",
    f"{LOCAL} equal one zero_sum",
    "real",
    tau=0.8,
    a1=0.01,
    a2=1,
    ddof=1,
    eps=1e-6,
)
def tempsamp_r1(
    rewards: Rewards, groups: Groups, tau: Fraction, a1: Fraction, a2: Fraction | int, ddof: int, eps: Fraction
) -> list[Number]:
    def shape(r: Fraction) -> Decimal:
        if r >= tau:
            return dec(tau) + dec(a1) * dec(r - tau + 1).ln()
        return dec(tau) - ((dec(a2 * (tau - r))).exp() - 1) / (dec(Fraction(a2)).exp() - 1)

    out = nothing(groups)
    for rows in members(rewards, groups):
        for i, a in zip(rows, scaled([shape(rewards[i]) for i in rows], ddof, eps) or [], strict=False):
            out[i] = a
    return out


vector("tempsamp_r1", "a ground truth among five", "1 0.9 0.8 0.5 0.2 0")


@method(
    "dra_grpo",
    "2505.09655",
    "r' = r / (sum_j cos(e_i, e_j) + 1e-6) over the group; A = (r' - mean) / (std + eps)",
    LOCAL,
    "binary",
    "e of unit length; the released code sums over the whole batch",
    ddof=1,
    eps=1e-4,
)
def dra_grpo(
    rewards: Rewards, groups: Groups, ddof: int, eps: Fraction, embeddings: Sequence[Sequence[Any]]
) -> list[Number]:
    shaped = list(rewards)
    for rows in members(rewards, groups):
        for i in rows:
            near = sum(
                (
                    sum(
                        (Fraction(x) * Fraction(y) for x, y in zip(embeddings[i], embeddings[j], strict=True)),
                        Fraction(0),
                    )
                    for j in rows
                ),
                Fraction(0),
            )
            shaped[i] = rewards[i] / (near + Fraction(1, 10**6))
    return grpo(shaped, groups, ddof, eps)


vector("dra_grpo", "two alike and one apart", "1 1 1 0", embeddings=[[1, 0], [1, 0], [0, 1], [0, 1]])
vector(
    "dra_grpo",
    "two prompts do not meet",
    "1 1 0 1 1 0",
    "0 0 0 1 1 1",
    embeddings=[[1, 0], [1, 0], [0, 1], [1, 0], [0, 1], [0, 1]],
)
