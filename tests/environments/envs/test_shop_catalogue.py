"""Catalogue of the shop: products of their departments, verdicts worked by hand."""

import pytest

from gxpo_worlds.shop_catalogue import DEPARTMENTS, Goal, Product, catalogue, judge


def product(
    name: str, kind: str, attributes: str, price: int, colours: str = "red blue", sizes: str = "S M"
) -> Product:
    options = {"colour": tuple(colours.split()), "size": tuple(sizes.split())}
    return Product(name, f"Acme {kind}", "clothing", kind, tuple(attributes.split()), options, price)


GOAL = Goal("clothing", "shirt", ("soft", "warm"), {"colour": "red", "size": "M"}, 50)


@pytest.mark.parametrize(
    ("bought", "chosen", "reward", "success"),
    [
        # 2 attributes + 2 options + 1 price = 5 things
        (product("A", "shirt", "soft warm", 50), {"colour": "red", "size": "M"}, 1.0, True),
        (product("A", "shirt", "soft warm dry", 10), {"colour": "red", "size": "M"}, 1.0, True),
        (product("A", "shirt", "soft warm", 51), {"colour": "red", "size": "M"}, 4 / 5, False),
        (product("A", "shirt", "soft dry", 51), {"colour": "blue", "size": "M"}, 2 / 5, False),
        (product("A", "shirt", "soft warm", 50), {}, 3 / 5, False),
        (product("A", "dress", "soft warm", 50), {"colour": "red", "size": "M"}, 0.5, False),  # another clothing
        (Product("A", "", "shoes", "boots", ("soft", "warm"), {}, 5), {"colour": "red", "size": "M"}, 0.0, False),
    ],
)
def test_verdicts_worked_by_hand(bought: Product, chosen: dict, reward: float, success: bool):
    verdict = judge(GOAL, bought, chosen)
    assert (verdict.reward, verdict.success) == (reward, success)


@pytest.mark.parametrize("seed", [0, 1])
def test_products_have_attributes_of_their_department(seed: int):
    products = catalogue(seed, 300).products
    assert len(products) == 300 and len({p.kind for p in products.values()}) == 20
    for p in products.values():
        department = DEPARTMENTS[p.department]
        assert p.kind in department.kinds and set(p.attributes) <= set(department.attributes)
        assert set(p.options["size"]) <= set(department.sizes) and len(set(p.options["size"])) >= 2
        assert any(attribute in p.title for attribute in p.attributes) and p.title.endswith(p.kind)
