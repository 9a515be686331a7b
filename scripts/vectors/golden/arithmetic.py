"""Numbers without rounding: fractions, and decimals of 60 digits where a formula takes a root or a logarithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal, getcontext
from fractions import Fraction
from typing import Any

getcontext().prec = 60
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")

Number = Fraction | Decimal
Rewards = Sequence[Fraction | None]
Groups = Sequence[int]


def exact(text: Any) -> Fraction:
    """Return what was written down, exactly: 0.7 is 7/10."""
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
    """Return mean and standard deviation of decimals."""
    middle = sum(xs, Decimal(0)) / len(xs)
    return middle, (sum(((x - middle) ** 2 for x in xs), Decimal(0)) / (len(xs) - ddof)).sqrt()


def log_gamma(z: Decimal) -> Decimal:
    """Compute log Gamma by Stirling's series at z + 60, stepped back."""
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
    """Yield the scored rows of each group."""
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
