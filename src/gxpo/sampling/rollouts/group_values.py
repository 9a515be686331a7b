"""Values of n attempts at a task of success rate p to the learner: pure functions of (n, p).

`rollout.value` of adaptive group sizes names one. A step's attempts are allotted so that the sum over its tasks is
large; a constant factor or summand changes nothing.
"""

from __future__ import annotations


def failures(n: int, rate: float) -> float:
    """Expected number of failures in a group with a success: n (1 - p) (1 - (1 - p)^(n - 1)).

    With GRPO's advantages (population std) the sum of a group's |A| times half of a success's A is its number of
    failures. Source: V0 (arXiv 2602.03584), eqs. 9-11.

    >>> [round(failures(n, 0.5), 5) for n in (2, 4, 8)]
    [0.5, 1.75, 3.96875]
    """
    wrong = 1.0 - rate
    return n * wrong * (1.0 - wrong ** (n - 1))


def mixed(n: int, rate: float) -> float:
    """Probability that some attempts are right and some wrong: 1 - p^n - (1 - p)^n.

    >>> [round(mixed(n, 0.1), 6) for n in (2, 4, 8, 16)]
    [0.18, 0.3438, 0.569533, 0.814698]
    """
    return 1.0 - rate**n - (1.0 - rate) ** n


def mixed_gain(n: int, rate: float) -> float:
    """Probability of a mixed group times its gain in success rate: (1 - p^n - (1 - p)^n) p (1 - p)^2.

    p (1 - p)^2 is largest at p = 1/3, so hard tasks are preferred. Source: Knapsack RL (arXiv 2509.25849).

    >>> round(mixed_gain(5, 0.1) + mixed_gain(5, 0.5) + mixed_gain(2, 0.9), 6)
    0.151977
    """
    return mixed(n, rate) * rate * (1.0 - rate) ** 2


def mean_error(n: int, rate: float) -> float:
    """Negated squared error of the mean of n verdicts, -p (1 - p) / n: allots in proportion to sqrt(p (1 - p)).

    Neyman's allocation, up to whole attempts and their bounds. Source: CurES (arXiv 2510.01037), equal gradient norms.

    >>> mean_error(2, 0.5)
    -0.125
    """
    return -rate * (1.0 - rate) / n


def mean_error_by_variance(n: int, rate: float) -> float:
    """Negated squared variance over n, -(p (1 - p))^2 / n: as `mean_error`, but allots in proportion to p (1 - p).

    >>> mean_error_by_variance(2, 0.5)
    -0.03125
    """
    return -((rate * (1.0 - rate)) ** 2) / n
