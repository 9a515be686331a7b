"""Products of weights: factors multiply, nested products are flat, needs are those of all factors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gxpo.algorithms.weighting.base import WeightPart, WeightProduct
from gxpo.forest.forest import Forest


@dataclass(frozen=True)
class Constant(WeightPart):
    value: float = 1.0

    needs = ("entropy", "values")

    def __call__(self, forest, credit, signals, step):
        return torch.full((forest.n_entries,), self.value, dtype=torch.float64)


@dataclass(frozen=True)
class ByCredit(WeightPart):
    needs = ("values", "reference_logprob")
    requires = ("segments",)

    def __call__(self, forest, credit, signals, step):
        return credit.abs()


class Plain:
    """A user's weight without a base class: its facts are the defaults."""

    def __call__(self, forest, credit, signals, step):
        return torch.full((forest.n_entries,), 10.0, dtype=torch.float64)


FOREST = Forest.from_completions([[1]], [[[2, 3]]], [1.0])
CREDIT = torch.tensor([0.5, -2.0], dtype=torch.float64)


def test_factors_multiply_and_get_the_same_advantage():
    assert (Constant(3.0) * ByCredit())(FOREST, CREDIT, {}, 0).tolist() == [1.5, 6.0]


def test_a_product_of_products_is_flat():
    product = Constant(2.0) * (ByCredit() * Constant(3.0)) * Constant(5.0)
    assert product.parts == (Constant(2.0), ByCredit(), Constant(3.0), Constant(5.0))
    assert product(FOREST, CREDIT, {}, 0).tolist() == [15.0, 60.0]


def test_needs_are_those_of_all_factors_each_once():
    product = Constant() * ByCredit()
    assert product.needs == ("entropy", "values", "reference_logprob") and product.requires == ("segments",)


def test_weight_without_a_base_class_is_a_factor_on_both_sides():
    left, right = Plain() * ByCredit(), ByCredit() * Plain()
    assert isinstance(left, WeightProduct) and left.needs == right.needs == ("values", "reference_logprob")
    assert left(FOREST, CREDIT, {}, 0).tolist() == right(FOREST, CREDIT, {}, 0).tolist() == [5.0, 20.0]
