"""Other centres and scales, pass@k, parts of the reward."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from itertools import combinations
from math import comb

from golden.arithmetic import Groups, Number, Rewards, dec, log_gamma, mean, members, nothing, root, variance
from golden.groups import dr_grpo, grpo, rloo
from golden.table import LOCAL, MINGLED, ONE_OF_8, REAL, method, rules, vector


# Other centres and scales.
@method(
    "maxrl",
    "2602.02710",
    "A = (r - mean_g) / (mean_g + eps)",
    f"{LOCAL} equal zero_sum",
    "binary",
    "all-wrong groups have A = 0",
    eps=1e-6,
)
def maxrl(rewards: Rewards, groups: Groups, eps: Fraction) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):
        middle = mean([rewards[i] for i in rows])
        for i in rows if len(rows) > 1 else []:
            out[i] = (rewards[i] - middle) / (middle + eps)
    return out


vector("maxrl", "one of four", "1 0 0 0")
vector("maxrl", "one of eight", ONE_OF_8, eps=0)
vector("maxrl", "groups mingled", *MINGLED)
vector("maxrl", "all wrong", "0 0 0 0")


@method(
    "mapo",
    "2509.18849",
    "p = c / G, l = 1 - 4 p (1 - p); A = (1 - l) (r - mean) / std + l (r - mean) / mean",
    f"{LOCAL} equal one zero_sum",
    "binary",
    "sample std, as in the authors' code; 0 for all-wrong groups",
    ddof=1,
    eps=0,
)
def mapo(rewards: Rewards, groups: Groups, ddof: int, eps: Fraction) -> list[Number]:
    out, z = nothing(groups), grpo(rewards, groups, ddof, eps)
    for rows in members(rewards, groups):
        p = mean([rewards[i] for i in rows])
        certainty = 1 - 4 * p * (1 - p)
        for i in rows if 0 < p < 1 else []:
            out[i] = dec(1 - certainty) * dec(z[i]) + dec(certainty * (rewards[i] - p) / p)
    return out


vector("mapo", "one of four", "1 0 0 0")
vector("mapo", "three of four", "1 1 1 0")
vector("mapo", "at one half it is GRPO", "1 1 0 0")
vector("mapo", "one of four, population std", "1 0 0 0", ddof=0)
vector("mapo", "all wrong, all right, groups mingled", "0 1 0 1 0 1 1 0", "0 1 0 1 0 1 2 2")


@method(
    "ngrpo",
    "2509.18851",
    "mean and std over the group and k virtual members of reward r_max; A = (r - mean+) / (std+ + eps)",
    LOCAL,
    "binary",
    ddof=1,
    eps=1e-6,
    r_max=1,
    k=1,
)
def ngrpo(rewards: Rewards, groups: Groups, ddof: int, eps: Fraction, r_max: Fraction | int, k: int) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):
        xs = [rewards[i] for i in rows] + [Fraction(r_max)] * k
        if len(set(xs)) > 1:
            for i in rows:
                out[i] = dec(rewards[i] - mean(xs)) / (root(variance(xs, ddof)) + dec(eps))
    return out


vector("ngrpo", "four wrong", "0 0 0 0")
vector("ngrpo", "eight wrong", "0 0 0 0 0 0 0 0")
vector("ngrpo", "four right", "1 1 1 1")
vector("ngrpo", "one of four", "1 0 0 0")
vector("ngrpo", "four wrong: -1 / sqrt(G + 1) without eps", "0 0 0 0", eps=0)
vector("ngrpo", "two virtual members", "1 0 0 0", k=2)


@method(
    "mc_grpo",
    "2601.22582",
    "m = lower median, d = lower median of |r - m|; A = (r - m) / (d + eps)",
    f"{LOCAL} equal shift",
    notes="the member that the median came from is dropped from the loss (its A is 0)",
    eps=1e-3,
)
def mc_grpo(rewards: Rewards, groups: Groups, eps: Fraction) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):

        def lower(xs: list[Fraction]) -> Fraction:
            return sorted(xs)[(len(xs) - 1) // 2]

        middle = lower([rewards[i] for i in rows])
        deviation = lower([abs(rewards[i] - middle) for i in rows])
        for i in rows:
            out[i] = (rewards[i] - middle) / (deviation + eps)
    return out


vector("mc_grpo", "five values", "1 0.5 0 0.2 0.9")
vector("mc_grpo", "three of five: the deviation is 0", "1 1 1 0 0", note="binary rewards, odd group: always")
vector("mc_grpo", "one of five: the deviation is 0", "1 0 0 0 0")


@method(
    "dgpo_math",
    "2601.20614",
    "A = G (r - mean) / (sum_j |r_j - mean| + eps), times S softmax over groups of -mean / T",
    "order relabel unscored equal zero_sum",
    "binary",
    "S groups, all of them mixed in these vectors; the factor for equal groups' tokens is then 1",
    eps=1e-4,
    temperature=2,
)
def dgpo_math(rewards: Rewards, groups: Groups, eps: Fraction, temperature: Fraction | int) -> list[Number]:
    out, mixed = nothing(groups), []
    for rows in members(rewards, groups):
        xs = [rewards[i] for i in rows]
        if len(set(xs)) > 1:
            mixed.append((rows, mean(xs)))
    total = sum(((-dec(m) / dec(temperature)).exp() for _, m in mixed), Decimal(0))
    for rows, middle in mixed:
        weight = len(mixed) * (-dec(middle) / dec(temperature)).exp() / total
        deviation = sum(abs(rewards[i] - middle) for i in rows)
        for i in rows:
            out[i] = weight * dec(len(rows) * (rewards[i] - middle) / (deviation + eps))
    return out


vector("dgpo_math", "one of four", "1 0 0 0")
vector("dgpo_math", "two of four", "1 1 0 0")
vector("dgpo_math", "one, two, three of four", "1 0 0 0 1 1 0 0 1 1 1 0", "0 0 0 0 1 1 1 1 2 2 2 2")


@method(
    "s_grpo",
    "2508.05928",
    "t = clip((p - q) / (1 - 2 q), 0, 1); w = (1 - 2 q) t (1 - t) / (sqrt(p (1 - p) + eps) "
    "sqrt(t (1 - t) + eps)); A = w (r - mean) / (std + eps)",
    f"{LOCAL} equal one zero_sum",
    "binary",
    flip=0.1,
    ddof=1,
    eps=1e-8,
)
def s_grpo(rewards: Rewards, groups: Groups, flip: Fraction, ddof: int, eps: Fraction) -> list[Number]:
    out, z = nothing(groups), grpo(rewards, groups, ddof, eps)
    for rows in members(rewards, groups):
        p = mean([rewards[i] for i in rows])
        t = min(max((p - flip) / (1 - 2 * flip), Fraction(0)), Fraction(1))
        weight = dec((1 - 2 * flip) * t * (1 - t)) / (root(p * (1 - p) + eps) * root(t * (1 - t) + eps))
        for i in rows:
            out[i] = weight * dec(z[i])
    return out


vector("s_grpo", "two of eight", "1 1 0 0 0 0 0 0")
vector("s_grpo", "one of eight", ONE_OF_8)
vector("s_grpo", "four of eight", "1 1 1 1 0 0 0 0")
vector("s_grpo", "seven of eight", "1 1 1 1 1 1 1 0")
vector("s_grpo", "a lone success counts as noise", ONE_OF_8, flip=0.15)
vector("s_grpo", "all right", "1 1 1 1")


@method(
    "bnpo",
    "2506.02864",
    "p_q group means; m, v their mean and variance (ddof 1) over the batch; k = m (1 - m) / v "
    "- 1; alpha = max(1, 1 + k m / 3), beta = max(1, 1 + k (1 - m) / 3); A = (r - p_q) / BetaPDF(p_q; alpha, beta)",
    "order relabel unscored one zero_sum",
    "binary",
    "a batch of one prompt has weight 1",
)
def bnpo(rewards: Rewards, groups: Groups) -> list[Number]:
    out, every = nothing(groups), list(members(rewards, groups))
    means = [mean([rewards[i] for i in rows]) for rows in every]
    alpha = beta = Fraction(1)
    if len(means) > 1 and len(set(means)) > 1:
        m = mean(means)
        k = m * (1 - m) / variance(means, 1) - 1
        alpha, beta = max(alpha, 1 + k * m / 3), max(beta, 1 + k * (1 - m) / 3)
    norm = log_gamma(dec(alpha)) + log_gamma(dec(beta)) - log_gamma(dec(alpha + beta))
    for rows, p in zip(every, means, strict=True):
        if 0 < p < 1:
            inverse = (norm - dec(alpha - 1) * dec(p).ln() - dec(beta - 1) * dec(1 - p).ln()).exp()
            for i in rows:
                out[i] = inverse * dec(rewards[i] - p)
    return out


vector(
    "bnpo",
    "one, two, three of four",
    "1 0 0 0 1 1 0 0 1 1 1 0",
    "0 0 0 0 1 1 1 1 2 2 2 2",
    note="Beta(3/2, 3/2): pi / 8 times GRPO with the population std",
)
vector("bnpo", "one prompt: weight 1", "1 0 0 0")
vector("bnpo", "hard prompts", "1 0 0 0 0 0 0 0 1 1 0 0 0 0 0 0 1 1 1 0 0 0 0 0", "0 " * 8 + "1 " * 8 + "2 " * 8)


@method(
    "gpg",
    "2504.02546",
    "A = B / (B - M) (r - mean_g), B samples of the batch, M of them in groups of equal rewards",
    "order relabel unscored equal zero_sum shift homogeneous",
    notes="verl's gpg divides by the number of rewards that are not 0 instead of B - M",
)
def gpg(rewards: Rewards, groups: Groups) -> list[Number]:
    centred, every = dr_grpo(rewards, groups), list(members(rewards, groups))
    useful = sum(len(rows) for rows in every if len({rewards[i] for i in rows}) > 1)
    total = sum(len(rows) for rows in every)
    return [a * Fraction(total, useful) if useful else Fraction(0) for a in centred]


vector("gpg", "a useful group of three", "1 0 0 0 1 1 1 1 0 0 0 0", "0 0 0 0 1 1 1 1 2 2 2 2")
vector("gpg", "every group useful", "1 0 0 1 1 0", "0 0 0 1 1 1")
vector("gpg", "no group useful", "1 1 0 0", "0 0 1 1")


# Pass@k.
@method(
    "passk",
    "2508.10751",
    "R = 1 - C(n - c, k) / C(n, k), s = sqrt(R (1 - R)); A+ = (1 - R) / (s + eps), A- = (1 - R "
    "- C(n - c - 1, k - 1) / C(n - 1, k - 1)) / (s + eps)",
    f"{LOCAL} zero_sum",
    "binary",
    k=4,
    eps=1e-6,
)
def passk(rewards: Rewards, groups: Groups, k: int, eps: Fraction) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):
        n, c = len(rows), sum(int(rewards[i]) for i in rows)
        rate = 1 - Fraction(comb(n - c, k), comb(n, k)) if n >= k else Fraction(1)
        bottom = root(rate * (1 - rate)) + dec(eps)
        lost = Fraction(comb(n - c - 1, k - 1), comb(n - 1, k - 1)) if n > c and 0 < rate < 1 else Fraction(0)
        for i in rows if 0 < rate < 1 else []:
            out[i] = dec(1 - rate - (0 if rewards[i] else lost)) / bottom
    return out


vector("passk", "two of eight, k 4", "1 1 0 0 0 0 0 0")
vector("passk", "one of eight, k 4", ONE_OF_8)
vector("passk", "k 1 is GRPO with the population std", "1 0 0 0", k=1)
vector("passk", "five of eight, k 4: every subset has one", "1 1 1 1 1 0 0 0")
vector("passk", "all wrong", "0 0 0 0 0 0 0 0")


@method(
    "pkpo",
    "2505.15201",
    "A_i = k mean_J (max(r_i, max_J r) - max_J r), J of k - 1 others; of 0 and 1: k C(n - c, k - 1) / C(n - 1, k - 1)",
    f"{LOCAL} shift homogeneous",
    notes="eq. 33 of the paper times n; groups of fewer than k have A = 0",
    k=4,
)
def pkpo(rewards: Rewards, groups: Groups, k: int) -> list[Number]:
    if k == 1:
        return rloo(rewards, groups)
    out = nothing(groups)
    for rows in members(rewards, groups):
        for i in rows if len(rows) >= max(k, 2) else []:
            best = [max(rewards[j] for j in s) for s in combinations([j for j in rows if j != i], k - 1)]
            out[i] = k * mean([max(rewards[i] - b, Fraction(0)) for b in best])
    return out


vector("pkpo", "two of eight, k 4", "1 1 0 0 0 0 0 0")
vector("pkpo", "six of eight, k 4", "1 1 1 1 1 1 0 0")
vector("pkpo", "graded rewards, k 2", "0.5 0.9 0.2", k=2)
vector("pkpo", "graded rewards, two groups, k 3", *REAL, k=3)
vector("pkpo", "fewer than k", "1 0 0")
vector("pkpo", "k 1 is leave one out", "1 0 0 0", k=1)
rules("pkpo")


# Parts of the reward.
@method(
    "psr_nsr",
    "2506.01347",
    "A = positive for a right answer, -negative for a wrong one; no baseline",
    LOCAL,
    "binary",
    "W-REINFORCE: 0.1 and 1; positives only: 1 and 0; negatives only: 0 and 1",
    positive=0.1,
    negative=1,
)
def psr_nsr(rewards: Rewards, groups: Groups, positive: Fraction | int, negative: Fraction | int) -> list[Number]:
    return [Fraction(0) if r is None else Fraction(positive if r else -negative) for r in rewards]


vector("psr_nsr", "one of four", "1 0 0 0")
vector("psr_nsr", "positives only", "1 0 0 0", positive=1, negative=0)
vector("psr_nsr", "negatives only", "1 0 0 0", positive=0, negative=1)


@method("asymre", "2506.20520", "A = r - (mean_g + delta)", f"{LOCAL} shift", delta=-0.1)
def asymre(rewards: Rewards, groups: Groups, delta: Fraction) -> list[Number]:
    out = nothing(groups)
    for rows in members(rewards, groups):
        middle = mean([rewards[i] for i in rows])
        for i in rows:
            out[i] = rewards[i] - middle - delta
    return out


vector("asymre", "one of four", "1 0 0 0")
vector("asymre", "all wrong are pushed up by -delta", "0 0 0 0")
