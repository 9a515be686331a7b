"""Losses of objectives and their slopes: values in decimals, slopes by differences of 1e-20 in 60 digits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from golden.arithmetic import exact

Column = Sequence[Decimal]
OBJECTIVES: dict[str, dict[str, Any]] = {}
STEP = Decimal("1e-20")
TOKENS, ROWS, SUMS = "token_mean", "sequence_mean", "sequence_sum"


class Tokens:
    """Tokens of several rows: `live` log-probs carry the slope, `detached` are the same and do not."""

    def __init__(self, live: Column, detached: Column, old: Column, credit: Column, rows: Sequence[int]) -> None:
        self.live, self.detached, self.old, self.credit, self.rows = live, detached, old, credit, rows

    def ratios(self, of: Column | None = None) -> list[Decimal]:
        return [(x - o).exp() for x, o in zip(self.live if of is None else of, self.old, strict=True)]

    def per_row(self, values: Column, mean: bool = True) -> list[Decimal]:
        """Return for each token the mean (or sum) over its row."""
        total = {r: sum((v for v, s in zip(values, self.rows, strict=True) if s == r), Decimal(0)) for r in self.rows}
        return [total[r] / (self.rows.count(r) if mean else 1) for r in self.rows]


def objective(
    name: str,
    arxiv: str,
    formula: str,
    aggregates: Sequence[str] = (TOKENS, ROWS, SUMS),
    notes: str = "",
    **constants: Any,
) -> Callable[[Callable[..., list[Decimal]]], Callable[..., list[Decimal]]]:
    """Register a formula: f(tokens, *, constants) -> the loss of each token, before the aggregation."""

    def register(f: Callable[..., list[Decimal]]) -> Callable[..., list[Decimal]]:
        entry = {"schema": "gxpo.losses/1", "objective": name, "arxiv": arxiv, "formula": formula, "notes": notes}
        OBJECTIVES[name] = {**entry, "constants": constants, "vectors": [], "aggregates": aggregates, "f": f}
        return f

    return register


def total(losses: Column, rows: Sequence[int], how: str, horizon: Decimal) -> Decimal:
    if how == TOKENS:
        return sum(losses, Decimal(0)) / len(losses)
    names = list(dict.fromkeys(rows))
    parts = [[x for x, r in zip(losses, rows, strict=True) if r == name] for name in names]
    divisors = [Decimal(len(p)) if how == ROWS else horizon for p in parts]
    return sum((sum(p, Decimal(0)) / d for p, d in zip(parts, divisors, strict=True)), Decimal(0)) / len(names)


def vector(name: str, case: str, old: str, change: str, credit: str, rows: str, **more: Any) -> None:
    """Add a vector for each aggregation of the objective; all columns are numbers in a row, one for each token."""
    entry = OBJECTIVES[name]
    old_logprobs, changes, credits = ([dec(w) for w in text.split()] for text in (old, change, credit))
    ids = [int(w) for w in rows.split()]
    live = [o + d for o, d in zip(old_logprobs, changes, strict=True)]
    constants = {**entry["constants"], **{k: v for k, v in more.items() if k != "note"}}
    arguments = {k: dec(v) if isinstance(v, (int, float)) else v for k, v in constants.items()}
    for how in entry["aggregates"]:
        horizon = 8

        def value(x: Column, how: str = how, horizon: int = horizon) -> Decimal:
            losses = entry["f"](Tokens(x, live, old_logprobs, credits, ids), **arguments)
            return total(losses, ids, how, Decimal(horizon))

        slopes = []
        for i in range(len(live)):
            up, down = ([x + s if j == i else x for j, x in enumerate(live)] for s in (STEP, -STEP))
            slopes.append((value(up) - value(down)) / (2 * STEP))
        entry["vectors"].append(
            {
                "name": f"{case}, {how}",
                "logprobs": [float(x) for x in live],
                "old": [float(x) for x in old_logprobs],
                "advantages": [float(x) for x in credits],
                "rows": ids,
                "aggregate": how,
                "constants": {**constants, **({"horizon": horizon} if how == SUMS else {})},
                "value": float(value(live)),
                "gradient": [float(x) for x in slopes],
                "tolerance": 1e-9,
                **({"note": more["note"]} if "note" in more else {}),
            }
        )


def dec(value: Any) -> Decimal:
    number = exact(value)
    return Decimal(number.numerator) / Decimal(number.denominator)


def clamp(x: Decimal, low: Decimal, high: Decimal) -> Decimal:
    return min(max(x, low), high)


def pessimistic(ratios: Column, credit: Column, low: Decimal, high: Decimal) -> list[Decimal]:
    return [max(-a * r, -a * clamp(r, 1 - low, 1 + high)) for r, a in zip(ratios, credit, strict=True)]


@objective("grpo", "1707.06347", "max(-A rho, -A clip(rho, 1 - low, 1 + high))", clip_low=0.2, clip_high=0.2)
def clip(x: Tokens, clip_low: Decimal, clip_high: Decimal) -> list[Decimal]:
    return pessimistic(x.ratios(), x.credit, clip_low, clip_high)


@objective("ppo", "1912.09729", "the clip, and for A < 0 no more than -A c", clip_low=0.2, clip_high=0.2, ratio_max=3.0)
def dual(x: Tokens, clip_low: Decimal, clip_high: Decimal, ratio_max: Decimal) -> list[Decimal]:
    plain = pessimistic(x.ratios(), x.credit, clip_low, clip_high)
    return [min(loss, -a * ratio_max) if a < 0 else loss for loss, a in zip(plain, x.credit, strict=True)]


@objective(
    "gspo",
    "2507.18071",
    "the clip of s = exp(mean of the row's log rho)",
    (ROWS,),
    notes="advantages are constant over a row",
    clip_low=3e-4,
    clip_high=4e-4,
)
def sequence(x: Tokens, clip_low: Decimal, clip_high: Decimal) -> list[Decimal]:
    means = x.per_row([n - o for n, o in zip(x.live, x.old, strict=True)])
    return pessimistic([m.exp() for m in means], x.credit, clip_low, clip_high)


@objective(
    "gmpo",
    "2507.20673",
    "-A exp(mean over the row of log rho, each held on the improving side)",
    (ROWS,),
    notes="bounds of the log-ratio; advantages are constant over a row",
    log_clip_low=0.4,
    log_clip_high=0.4,
)
def geometric(x: Tokens, log_clip_low: Decimal, log_clip_high: Decimal) -> list[Decimal]:
    logs = [n - o for n, o in zip(x.live, x.old, strict=True)]
    bounded_logs = [
        min(d, log_clip_high) if a >= 0 else max(d, -log_clip_low) for d, a in zip(logs, x.credit, strict=True)
    ]
    return [-a * m.exp() for a, m in zip(x.credit, x.per_row(bounded_logs), strict=True)]


@objective(
    "cispo",
    "2506.13585",
    "-stop(min(rho, ratio_max)) A log pi",
    notes="ratio_max is absolute; no lower bound",
    ratio_max=1.28,
)
def bounded_weight(x: Tokens, ratio_max: Decimal) -> list[Decimal]:
    weights = [min(r, ratio_max) for r in x.ratios(x.detached)]
    return [-w * a * lp for w, a, lp in zip(weights, x.credit, x.live, strict=True)]


@objective("gpg", "2504.02546", "-A log pi", notes="REINFORCE: its advantages are not part of this")
def likelihood(x: Tokens) -> list[Decimal]:
    return [-a * lp for a, lp in zip(x.credit, x.live, strict=True)]


@objective("spo_simple", "2401.16025", "-A rho + |A| (rho - 1)^2 / (2 width)", width=0.2)
def quadratic(x: Tokens, width: Decimal) -> list[Decimal]:
    return [-a * r + abs(a) * (r - 1) ** 2 / (2 * width) for r, a in zip(x.ratios(), x.credit, strict=True)]


@objective(
    "sapo_gate",
    "2511.20347",
    "-A (4 / tau) sigmoid(tau (rho - 1)), tau by the sign of A",
    tau_positive=1.0,
    tau_negative=1.05,
)
def sigmoid(x: Tokens, tau_positive: Decimal, tau_negative: Decimal) -> list[Decimal]:
    taus = [tau_positive if a > 0 else tau_negative for a in x.credit]
    return [-a * 4 / t / (1 + (-t * (r - 1)).exp()) for r, a, t in zip(x.ratios(), x.credit, taus, strict=True)]


TOY = ("-0.5 -1.0 -2.0 -0.3 -0.7", "0.3 -0.1 -0.4 0.2 0.5", "1 1 -1 -1 -1", "0 0 1 1 1")
for name in OBJECTIVES:
    if name == "gmpo":
        vector(name, "five tokens", *TOY, log_clip_low=0.2, log_clip_high=0.2)
    else:
        vector(name, "five tokens", *TOY)
    vector(name, "on policy", "-0.5 -1.0 -2.0 -0.3", "0 0 0 0", "1 1 -0.5 -0.5", "7 7 3 3", note="every slope is -c A")
    vector(name, "zero credit", "-0.5 -1.0 -2.0 -0.3", "0.4 -0.7 0.1 -0.05", "0 0 2 2", "0 0 1 1")
    vector(name, "rows of one token", "-0.4 -1.3 -2.2 -0.9", "0.15 -0.25 0.3 -0.02", "1 -1 0.5 -2", "4 2 9 1")
FAR = ("-14.5 -0.2 -15.1 -0.1", "13.8 -13.8 13.8 -13.8", "1 1 -1 -1", "0 0 1 1")
for name in ("grpo", "ppo", "cispo", "gpg", "sapo_gate"):
    vector(name, "ratios of a million and a millionth", *FAR)
vector("grpo", "clip higher", *TOY, clip_high=0.28, note="DAPO's bounds")
vector("ppo", "a low bound on worsening tokens", *TOY, ratio_max=1.3)
vector("cispo", "a wide bound", *TOY, ratio_max=5.0)
vector("cispo", "TRL where epsilon_high is not set", *TOY, ratio_max=0.2, note="every slope is a fifth on policy")
vector("gspo", "PPO's bounds", *TOY, clip_low=0.2, clip_high=0.2, note="nothing is clipped")
