#!/usr/bin/env python3
"""Golden vectors of outcome advantages, worked out from the published formulas with fractions and 60-digit decimals.

    python scripts/make_golden_vectors.py            # writes src/gxpo/conformance/data/*.json
    python scripts/make_golden_vectors.py --check    # exit 1 where a file is not what would be written

The standard library alone, and nothing of gxpo: rational arithmetic where the formula is rational, decimals where it
takes a root, an exponential or a logarithm. What a group of one, a group of equal rewards and an unscored row are given
is gxpo's rule (exactly 0), which other systems need not share: those vectors have "rule" in their name.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, getcontext
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any

getcontext().prec = 60
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
FOLDER = Path(__file__).resolve().parents[1] / "src/gxpo/conformance/data"

Number = Fraction | Decimal
Rewards = Sequence[Fraction | None]
Groups = Sequence[int]
METHODS: dict[str, dict[str, Any]] = {}


# Arithmetic.
def exact(text: Any) -> Fraction:
    """What was written down, exactly: 0.7 is 7/10."""
    return Fraction(str(text))


def dec(x: Number | int) -> Decimal:
    return Decimal(x.numerator) / Decimal(x.denominator) if isinstance(x, Fraction) else Decimal(x)


def mean(xs: Sequence[Fraction]) -> Fraction:
    return sum(xs, Fraction(0)) / len(xs)


def variance(xs: Sequence[Fraction], ddof: int) -> Fraction:
    middle = mean(xs)
    return sum(((x - middle) ** 2 for x in xs), Fraction(0)) / (len(xs) - ddof)


def root(x: Number) -> Decimal:
    return dec(x).sqrt()


def spread(xs: Sequence[Decimal], ddof: int) -> tuple[Decimal, Decimal]:
    """Mean and standard deviation of decimals."""
    middle = sum(xs, Decimal(0)) / len(xs)
    return middle, (sum(((x - middle) ** 2 for x in xs), Decimal(0)) / (len(xs) - ddof)).sqrt()


def log_gamma(z: Decimal) -> Decimal:
    """Stirling's series at z + 60, stepped back."""
    shift = Decimal(0)
    for _ in range(60):
        shift += z.ln()
        z += 1
    bernoulli = [
        Fraction(1, 6),
        Fraction(-1, 30),
        Fraction(1, 42),
        Fraction(-1, 30),
        Fraction(5, 66),
        Fraction(-691, 2730),
        Fraction(7, 6),
        Fraction(-3617, 510),
    ]
    series = (z - Decimal("0.5")) * z.ln() - z + (2 * PI).ln() / 2
    for k, b in enumerate(bernoulli, 1):
        series += dec(b) / (2 * k * (2 * k - 1)) / z ** (2 * k - 1)
    return series - shift


def members(rewards: Rewards, groups: Groups) -> Iterator[list[int]]:
    """The scored rows of each group."""
    for group in dict.fromkeys(groups):
        rows = [i for i, g in enumerate(groups) if g == group and rewards[i] is not None]
        if rows:
            yield rows


def nothing(groups: Groups) -> list[Number]:
    return [Fraction(0)] * len(groups)


def scaled(xs: Sequence[Number], ddof: int, eps: Fraction) -> list[Decimal] | None:
    """(x - mean) / (std + eps); None where all are equal or there is only one."""
    decimals = [dec(x) for x in xs]
    if len(xs) < 2 or max(decimals) - min(decimals) <= Decimal("1e-40"):
        return None
    middle, std = spread(decimals, ddof)
    return [(x - middle) / (std + dec(eps)) for x in decimals]


# The table that is filled below.
def method(
    name: str, arxiv: str, formula: str, properties: str, inputs: str = "real", notes: str = "", **constants: Any
) -> Callable[[Callable[..., list[Number]]], Callable[..., list[Number]]]:
    """Registers a formula: f(rewards, groups, *, constants, fields) -> advantages, 0 where the reward is None."""

    def registered(f: Callable[..., list[Number]]) -> Callable[..., list[Number]]:
        METHODS[name] = {
            "schema": "gxpo.vectors/1",
            "method": name,
            "arxiv": arxiv,
            "formula": formula,
            "notes": notes,
            "constants": constants,
            "inputs": inputs,
            "properties": properties.split(),
            "vectors": [],
            "f": f,
        }
        return f

    return registered


def given(value: Any) -> Any:
    """A constant or a field as the formulas want it: numbers exact, everything else as it is."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [given(x) for x in value]
    return value if isinstance(value, int) else exact(value)


def vector(name: str, case: str, rewards: str, groups: str | None = None, **more: Any) -> None:
    """One vector. `rewards`: numbers in a row, "-" = unscored; `groups` likewise (None: all are one group); of the
    rest, what the method lists among its constants overrides them, and the others are fields (a list for each row)."""
    entry = METHODS[name]
    words = rewards.split()
    column = [None if w == "-" else exact(w) for w in words]
    ids = [0] * len(words) if groups is None else [int(g) for g in groups.split()]
    own = {k: v for k, v in more.items() if k in entry["constants"]}
    fields = {k: v for k, v in more.items() if k not in own and k != "note"}
    constants = {**entry["constants"], **own}
    arguments = {k: given(v) for k, v in {**constants, **fields}.items()}
    expected = entry["f"](column, ids, **arguments)
    entry["vectors"].append(
        {
            "name": case,
            "rewards": [None if r is None else float(r) for r in column],
            "groups": ids,
            "constants": constants,
            "fields": fields,
            "expected": [0.0 if r is None else float(a) for a, r in zip(expected, column, strict=True)],
            "tolerance": 1e-9,
            **({"note": more["note"]} if "note" in more else {}),
        }
    )


def rules(name: str, one: bool = True, equal: bool = True, **fields: Callable[[int], list[Any]]) -> None:
    """gxpo's rules: a group of one, groups of equal rewards, unscored rows. `fields`: a function of the row count."""

    def more(n: int) -> dict[str, Any]:
        return {k: f(n) for k, f in fields.items()}

    if one:
        vector(name, "rule: a group of one is given 0", "1 1 0", "0 1 1", **more(3))
    if equal:
        vector(name, "rule: equal rewards are given 0", "0.7 0.7 0.7 0.7 0.7 0.7 0.7 0.7", **more(8))
        vector(name, "rule: equal rewards beside others", "0.1 1 0.1 0 0.1 1", "3 4 3 4 3 4", **more(6))
    vector(name, "rule: unscored rows are in no statistic", "1 - 0 0 - 1", "0 0 0 0 1 1", **more(6))


ONE_OF_8 = "1 0 0 0 0 0 0 0"
RAGGED = ("1 0 1 0 0", "0 0 1 1 1")
MINGLED = ("0 1 0 0 1 1 0 0 1", "9 4 9 4 9 4 4 9 4")
REAL = ("0.3 1.7 -0.4 0.3 2.5 0.1 0.9", "5 2 5 2 5 2 2")
LOCAL = "order relabel separate unscored"


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
    notes="over='trajectories' is TRL's and NeMo's, over='tokens' verl's; ddof 1 throughout",
    over="trajectories",
    ddof=1,
    eps=1e-4,
)
def gdpo_multi(
    rewards: Rewards,
    groups: Groups,
    over: str,
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
    counts = [1] * len(groups) if over == "trajectories" else lengths
    n = sum(counts)
    middle = sum((c * s for c, s in zip(counts, total, strict=True)), Decimal(0)) / n
    var = sum((c * (s - middle) ** 2 for c, s in zip(counts, total, strict=True)), Decimal(0)) / (n - 1)
    bottom = var.sqrt() + dec(eps) if over == "trajectories" else (var + Decimal("1e-8")).sqrt()
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
    over="tokens",
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
    "population std; 0 for all-wrong groups",
    ddof=0,
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
    "a = C(n - c, k - 1) / C(n - 1, k - 1) for a right answer, 0 for a wrong one; A_i = a_i - mean of a_j, j != i",
    f"{LOCAL} zero_sum",
    "binary",
    k=4,
)
def pkpo(rewards: Rewards, groups: Groups, k: int) -> list[Number]:
    values: list[Fraction | None] = [None] * len(groups)
    for rows in members(rewards, groups):
        n, c = len(rows), sum(int(rewards[i]) for i in rows)
        for i in rows:
            values[i] = Fraction(comb(n - c, k - 1), comb(n - 1, k - 1)) if rewards[i] else Fraction(0)
    return rloo(values, groups)


vector("pkpo", "two of eight, k 4", "1 1 0 0 0 0 0 0")
vector("pkpo", "six of eight, k 4", "1 1 1 1 1 1 0 0")
vector("pkpo", "k 1 is leave one out", "1 0 0 0", k=1)


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
    "answers, population std; A = (R - mean) / (std + eps); times w(c / G) where A > 0, w(1 - c / G) elsewhere; "
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
        z = scaled([Fraction(lengths[i]) for i in right], 0, eps) or [Decimal(0)] * len(right)
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
            found = scaled(shaped, ddof, eps) or []
        else:
            middle = sum(shaped, Decimal(0)) / size
            found = [dec(negative_weight) * (x - middle) for x in shaped]
        for i, a in zip(rows, found, strict=False):
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
    out, a, every = nothing(groups), grpo(rewards, groups, ddof, eps), list(members(rewards, groups))
    means = [mean([rewards[i] for i in rows]) for rows in every]
    overall = dec(mean(means))
    for rows, middle in zip(every, means, strict=True):
        rest = root(1 - middle) if easy == "root_of_rest" else 1 - root(middle)
        for i in rows if 0 < middle < 1 else []:
            x = dec(a[i])
            both = (1 - overall) * x / 2 / (rest + dec(eps)) + overall * x / 2 / (root(middle) + dec(eps))
            out[i] = both * min(Decimal(1), overall / dec(Fraction(alpha))) if both > 0 else both
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
    def shaped(r: Fraction) -> Decimal:
        if r >= tau:
            return dec(tau) + dec(a1) * dec(r - tau + 1).ln()
        return dec(tau) - ((dec(a2 * (tau - r))).exp() - 1) / (dec(Fraction(a2)).exp() - 1)

    out = nothing(groups)
    for rows in members(rewards, groups):
        for i, a in zip(rows, scaled([shaped(rewards[i]) for i in rows], ddof, eps) or [], strict=False):
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


# Files.
def text(name: str) -> str:
    """The file of a method: one line for each vector's column."""
    entry = {k: v for k, v in METHODS[name].items() if k != "f"}
    vectors = entry.pop("vectors")
    head = json.dumps(entry, indent=1)[:-2]
    lines = [json.dumps(v, indent=None) for v in vectors]
    return head + ',\n "vectors": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file would change")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the files (default: the package's)")
    arguments = parser.parse_args()
    files = {f"{name}.json": text(name) for name in METHODS}
    there = {p.name for p in arguments.folder.glob("*.json")}
    if arguments.check:
        stale = sorted(there - set(files))
        stale += [
            n for n, t in files.items() if n not in there or (arguments.folder / n).read_text(encoding="utf-8") != t
        ]
        if stale:
            sys.exit(f"not as this script writes them: {', '.join(stale)}; run it without --check")
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (arguments.folder / name).write_text(content, encoding="utf-8")
    count = sum(len(entry["vectors"]) for entry in METHODS.values())
    print(f"{count} vectors of {len(files)} methods in {arguments.folder}")


if __name__ == "__main__":
    main()
