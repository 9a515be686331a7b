"""Catalogue of the shop: generated products, customers' goals, and the score of a purchase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gxpo_worlds.grid import stream
from gxpo_worlds.retrieval import Retriever

BRANDS = ("Alder", "Bexley", "Corvin", "Dunmore", "Elkin", "Farrow", "Garnet", "Hollis", "Kestrel", "Lomond")
CATALOGUE = 3  # first word of the key of its stream
COLOURS = ("black", "white", "red", "blue", "green", "grey", "brown", "yellow")


class Department(NamedTuple):
    """Kinds of products of a department, with the attributes and sizes that they may have."""

    kinds: tuple[str, ...]
    attributes: tuple[str, ...]
    sizes: tuple[str, ...]


DEPARTMENTS = {
    "clothing": Department(
        ("jacket", "shirt", "sweater", "trousers"),
        ("waterproof", "windproof", "organic", "stretchy", "hooded", "breathable", "lined", "quick drying"),
        ("XS", "S", "M", "L", "XL"),
    ),
    "shoes": Department(
        ("hiking boots", "running shoes", "sandals", "sneakers"),
        ("non slip", "vegan", "wide fit", "cushioned", "waterproof", "lightweight", "ankle high", "reflective"),
        ("38", "40", "42", "44", "46"),
    ),
    "bedding": Department(
        ("duvet cover", "pillow", "blanket", "mattress pad"),
        ("hypoallergenic", "machine washable", "cooling", "quilted", "organic", "wrinkle free", "plush", "handmade"),
        ("single", "double", "queen", "king"),
    ),
    "kitchen": Department(
        ("frying pan", "saucepan", "water bottle", "cutting board"),
        ("dishwasher safe", "nonstick", "insulated", "heavy duty", "stackable", "scratch proof", "leak proof", "light"),
        ("small", "medium", "large", "family"),
    ),
    "luggage": Department(
        ("backpack", "suitcase", "duffel bag", "laptop sleeve"),
        ("carry on", "padded", "waterproof", "expandable", "lockable", "lightweight", "recycled", "foldable"),
        ("20 litres", "30 litres", "40 litres", "60 litres"),
    ),
}


@dataclass(frozen=True)
class Product:
    """Product of the shop; `options` are the values that a buyer chooses from, by name; `price` in dollars."""

    name: str
    title: str
    department: str
    kind: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: int


@dataclass(frozen=True)
class Goal:
    """Goal of a customer; `price` is the highest in dollars."""

    department: str
    kind: str
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    price: int


@dataclass(frozen=True)
class Verdict:
    """Score of a purchase: how many of the `wanted` things it has, and the share of its type."""

    type: float
    attributes: int
    options: int
    price: int
    wanted: int

    @property
    def success(self) -> bool:
        return self.type == 1 and self.attributes + self.options + self.price == self.wanted

    @property
    def reward(self) -> float:
        return self.type * (self.attributes + self.options + self.price) / self.wanted


def judge(goal: Goal, product: Product, choice_by_option: Mapping[str, str]) -> Verdict:
    """Score a purchase by type, attributes, chosen options and price.

    The type is 1 for the goal's kind, 0.5 for another kind of its department, else 0.

    The reward is type * (attributes + options + price) / (wanted attributes + wanted options + 1), the price counting
    1 where it is not above the goal's. The form is WebShop's (arXiv:2207.01206, equation 1); the type is read from the
    catalogue's categories instead of from the words of the titles.
    """
    return Verdict(
        type=1.0 if product.kind == goal.kind else 0.5 if product.department == goal.department else 0.0,
        attributes=sum(attribute in product.attributes for attribute in goal.attributes),
        options=sum(choice_by_option.get(name) == value for name, value in goal.options.items()),
        price=int(product.price <= goal.price),
        wanted=len(goal.attributes) + len(goal.options) + 1,
    )


def fits(goal: Goal, product: Product) -> bool:
    """Return True if a product, with the right options chosen, meets the whole goal."""
    # an option that the product lacks stays unchosen, and its point is lost
    offered = {name: value for name, value in goal.options.items() if value in product.options.get(name, ())}
    return judge(goal, product, offered).success


def some(random: np.random.Generator, things: Sequence[str], count: int) -> tuple[str, ...]:
    """Draw `count` distinct things, in the order of `things`."""
    return tuple(things[int(i)] for i in sorted(random.choice(len(things), size=count, replace=False)))


class Catalogue:
    """A few hundred products shared by all instances, with a search engine."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.products = {product.name: product for product in products}
        self._names = list(self.products)
        self._retriever = Retriever([_searched(product) for product in products])
        # every turn lists the products of its query again
        self.search = lru_cache(maxsize=1024)(self._search)  # a page is looked at many times

    def _search(self, query: str, k: int) -> tuple[str, ...]:
        """Names of at most `k` products, best match first."""
        return tuple(self._names[i] for i in self._retriever.search(query, k))


def _searched(product: Product) -> str:
    colours = product.options["colour"]
    return " ".join((product.title, product.kind, product.department, *product.attributes, *colours))


@lru_cache(maxsize=8)
def catalogue(seed: int, count: int) -> Catalogue:
    """Catalogue of a seed, made once per process, with equal shares of all kinds."""
    random = stream(CATALOGUE, seed, count)
    # kinds take turns, so that each has its share whatever `count` is
    kinds = [(name, kind) for name, department in DEPARTMENTS.items() for kind in department.kinds]
    return Catalogue([_product(random, f"P{i:03d}", *kinds[i % len(kinds)]) for i in range(count)])


def _product(random: np.random.Generator, name: str, department: str, kind: str) -> Product:
    makers, sold = BRANDS[int(random.integers(len(BRANDS)))], DEPARTMENTS[department]
    attributes = some(random, sold.attributes, int(random.integers(3, 5)))
    options = {
        "colour": some(random, COLOURS, int(random.integers(2, 5))),
        "size": some(random, sold.sizes, int(random.integers(2, 4))),
    }
    title = f"{makers} {attributes[int(random.integers(len(attributes)))]} {kind}"
    return Product(name, title, department, kind, attributes, options, int(random.integers(10, 120)))


def goal_of(random: np.random.Generator, products: Sequence[Product]) -> Goal:
    """Draw a customer's goal that one of the products meets: two of its attributes, one value of each of its options,
    and its price rounded up to the next ten."""
    product = products[int(random.integers(len(products)))]
    options = {name: values[int(random.integers(len(values)))] for name, values in product.options.items()}
    attributes = some(random, product.attributes, 2)
    return Goal(product.department, product.kind, attributes, options, -(-product.price // 10) * 10)


def little_shop(random: np.random.Generator, count: int) -> tuple[list[Product], Goal]:
    """Draw a small shop: `count` products of single letters and digits, and a goal that one of them meets: a kind
    (k, l, m), an attribute (r, g, b), a size (1, 2, 3) and the highest price (a digit)."""
    products = [
        Product(
            name=chr(ord("A") + i),
            title="",
            department="",
            kind="klm"[int(random.integers(3))],
            attributes=("rgb"[int(random.integers(3))],),
            options={"size": some(random, ("1", "2", "3"), 2)},
            price=int(random.integers(1, 10)),
        )
        for i in range(count)
    ]
    # the goal is read off one product, which then pays in full
    best = products[int(random.integers(count))]
    size = best.options["size"][int(random.integers(2))]
    price = int(random.integers(best.price, 10))
    return products, Goal(best.department, best.kind, best.attributes, {"size": size}, price)
