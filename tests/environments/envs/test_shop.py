import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.parts.protocols import TimeStep
from gxpo_worlds import shop as shop_module
from gxpo_worlds.shop import Shop
from gxpo_worlds.shop_catalogue import DEPARTMENTS, Catalogue, Goal, Product, fits

STYLES = ("chat", "bare")


def product(
    name: str, kind: str, attributes: str, price: int, colours: str = "red blue", sizes: str = "S M"
) -> Product:
    options = {"colour": tuple(colours.split()), "size": tuple(sizes.split())}
    return Product(name, f"Acme {kind}", "clothing", kind, tuple(attributes.split()), options, price)


def walk(shop: Shop, seed: int, chance: random.Random) -> list[TimeStep]:
    """An episode of possible actions at random."""
    steps = [shop.reset(seed)]
    while not steps[-1].done:
        steps.append(shop.step(chance.choice(shop.legal())))
    return steps


GOAL = Goal("clothing", "shirt", ("soft", "warm"), {"colour": "red", "size": "M"}, 50)


def score_read_from_chat(screen: str) -> float:
    """The score of buying what an item page shows, from its text alone."""
    pattern = r"Goal: (.+?), (.+?) and (.+?), colour (.+?), size (.+?), for at most (\d+) dollars"
    kind, *features, colour, size, limit = re.search(pattern, screen).groups()
    title, price = re.search(r"\] (.+), (\d+) dollars", screen).groups()
    has = re.search(r"Features: (.+)", screen)[1].split(", ")
    chosen = re.findall(r"\(chosen: (.+?)\)", screen)
    points = int(int(price) <= int(limit))
    for expected in features:
        if expected in has:
            points += 1
    for expected, choice in zip((colour, size), chosen, strict=True):
        if expected == choice:
            points += 1
    type_share = 0.0
    for department in DEPARTMENTS.values():
        if kind in department.kinds and any(title.endswith(other) for other in department.kinds):
            type_share = 1.0 if title.endswith(kind) else 0.5
    return type_share * points / 5


def score_read_from_bare(screen: str) -> float:
    (kind, attribute, size, limit), (has_kind, has_attribute, price, chosen) = (
        re.search(r"^(.)(.)(.) (.)", screen).groups(),
        re.search(r"^[A-L] (.)(.)\d\d (.) =(.)$", screen, re.MULTILINE).groups(),
    )
    points = (attribute == has_attribute) + (size == chosen) + (int(price) <= int(limit))
    return (1.0 if kind == has_kind else 0.5) * points / 3


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_the_reward_is_what_the_last_screen_says(style: str):
    shop, chance, read = (
        Shop(style=style),
        random.Random(0),
        {"chat": score_read_from_chat, "bare": score_read_from_bare},
    )
    sold = 0
    for seed in range(150):
        steps = walk(shop, seed, chance)
        if steps[-1].truncated:
            assert steps[-1].success is False
            continue
        sold += 1
        assert steps[-1].reward == pytest.approx(read[style](steps[-2].observation), abs=1e-12)
        assert steps[-1].success == (steps[-1].reward == 1)
        assert [step.reward for step in steps[:-1]] == [None] + [0.0] * (len(steps) - 2)
    assert sold > 30


def test_a_little_shop_worked_by_hand(monkeypatch: pytest.MonkeyPatch):
    sold = [
        Product("A", "", "", "l", ("r",), {"size": ("1", "2")}, 3),
        Product("B", "", "", "k", ("g",), {"size": ("1", "2")}, 3),
        Product("C", "", "", "k", ("r",), {"size": ("2", "3")}, 6),
        Product("D", "", "", "k", ("r",), {"size": ("1", "3")}, 2),
        Product("E", "", "", "k", ("r",), {"size": ("2", "3")}, 5),
    ]
    monkeypatch.setattr(shop_module, "little_shop", lambda *_: (sold, Goal("", "k", ("r",), {"size": "2"}, 5)))
    shop = Shop(style="bare", products=5)
    first = shop.reset(0)
    assert first.observation == "kr2 5\nA lr12 3\nB kg12 3\nC kr23 6\nD kr13 2\n+\n>"
    assert set(shop.legal()) == set("ABCDklrg$+")  # no m, no b; nothing to go back to
    assert shop.step("+").observation == "kr2 5\nE kr23 5\n-\n>"
    assert shop.step("r").observation == "kr2 5 r\nA lr12 3\nC kr23 6\nD kr13 2\nE kr23 5\n>"  # its first page
    assert shop.step("<").state == first.state
    shop.step("+")
    assert shop.step("-").state == first.state
    assert shop.expert() == "k"
    assert shop.step("k").observation == "kr2 5 k\nB kg12 3\nC kr23 6\nD kr13 2\nE kr23 5\n>"
    assert shop.step("$").observation == "kr2 5 k$\nB kg12 3\nD kr13 2\nE kr23 5\n>"
    assert shop.step("l").action_error == "illegal"  # no l is left
    opened = shop.step("E")
    assert opened.observation == "kr2 5\nE kr23 5 =.\n>"
    assert set(shop.legal()) == set("23<")
    assert shop.step("!").action_error == "illegal"  # no size chosen yet
    assert shop.step("3").observation == "kr2 5\nE kr23 5 =3\n>"
    assert shop.step("<").observation == "kr2 5 k$\nB kg12 3\nD kr13 2\nE kr23 5\n>"
    assert shop.step("E").state == opened.state
    shop.step("2")
    end = shop.step("!")
    assert (end.reward, end.done, end.success, end.truncated) == (1.0, True, True, False)
    assert end.info == {"bought": "E", "type": 1.0, "attributes": 1, "options": 1, "price": 1, "wanted": 3}


def test_a_chat_shop_worked_by_hand(monkeypatch: pytest.MonkeyPatch):
    sold = Catalogue(
        [
            product("P1", "shirt", "soft dry", 40),
            product("P2", "shirt", "soft warm", 45),
            product("P3", "dress", "soft warm", 45),
        ]
    )
    monkeypatch.setattr(shop_module, "catalogue", lambda *_: sold)
    monkeypatch.setattr(shop_module, "goal_of", lambda *_: GOAL)
    goal = "Goal: shirt, soft and warm, colour red, size M, for at most 50 dollars.\n"
    shop = Shop()
    assert shop.reset(0).observation == f"{goal}Start page.\nPossible: search[words]"
    assert shop.step("<action>next</action>").observation.startswith("next is not possible here.\nGoal: ")
    assert shop.step("I am lost").observation == (
        f"No action could be read.\n{goal}Start page.\nPossible: search[words]"
    )
    # each word is in two of the three texts; "shirt" is in title and kind, so P2 has it twice and "warm" once,
    # P1 has "shirt" twice and P3 "warm" once; the texts are equally long
    listed = shop.step("A warm one. <action>search[warm Shirt]</action>")
    assert listed.observation == (
        f'{goal}Results for "warm shirt": 3 products, page 1 of 1.\n'
        "[P2] Acme shirt, 45 dollars\n[P1] Acme shirt, 40 dollars\n[P3] Acme dress, 45 dollars\n"
        "Features: warm, dry\n"
        "Possible: click[product], filter[feature], filter[under price], search[words], back"
    )
    assert shop.step("<action>filter[under $44]</action>").state == "?warm shirt|under 44|0||"
    assert shop.step("<action>filter[under 5]</action>").action_error == "illegal"
    assert shop.step("<action>filter[at most 45 dollars]</action>").state == "?warm shirt|under 45|0||"  # replaced
    opened = shop.step("<action>click[p2]</action>")
    assert opened.observation == (
        f"{goal}[P2] Acme shirt, 45 dollars\nFeatures: soft, warm\n"
        "colour: red, blue (chosen: none)\nsize: S, M (chosen: none)\nPossible: choose[option], back"
    )
    assert shop.step("choose[m]").observation.endswith("size: S, M (chosen: M)\nPossible: choose[option], back")
    assert shop.step("buy").action_error == "illegal"
    assert shop.expert() == "<action>choose[red]</action>"
    assert shop.step("choose[blue]").observation.endswith("Possible: choose[option], buy, back")
    end = shop.step("<action>buy</action>")
    assert (end.reward, end.success, end.observation) == (0.8, False, "You bought P2, Acme shirt. Score: 0.80")


@pytest.mark.parametrize(("style", "options"), [("chat", {}), ("chat", {"catalogue": 3}), ("bare", {"products": 12})])
def test_the_expert_buys_what_is_wanted_from_wherever_it_starts(style: str, options: dict):
    shop, chance = Shop(style=style, max_turns=30, **options), random.Random(1)
    for seed in range(60):
        step = shop.reset(seed)
        for _ in range(seed % 6):
            wander = [action for action in shop.legal() if action not in ("buy", "!")]
            step = shop.step(chance.choice(wander))
        turns = 0
        while not step.done:
            step, turns = shop.step(shop.expert()), turns + 1
            assert step.action_error is None
        assert step.success and step.reward == 1
        assert seed % 6 or turns <= 10
        assert shop.expert() is None and shop.legal() == []


@pytest.mark.parametrize("style", STYLES)
def test_some_product_can_be_all_that_is_wanted(style: str):
    shop = Shop(style=style)
    for seed in range(100):
        shop.reset(seed)
        content = json.loads(shop.content(seed))
        goal, actual = content[0] if style == "bare" else content, 0
        for p in shop._products.values():
            good = p.kind == goal["kind"] and p.price <= goal["price"]
            good &= all(attribute in p.attributes for attribute in goal["attributes"])
            good &= all(value in p.options[name] for name, value in goal["options"].items())
            actual += good
            assert good == fits(shop._goal, p)
        assert actual >= 1


@pytest.mark.parametrize("style", STYLES)
def test_equal_seeds_and_actions_give_equal_episodes(style: str):
    one, other = Shop(style=style), Shop(style=style)
    for seed in (0, 7, 2**40):
        assert walk(one, seed, random.Random(5)) == walk(other, seed, random.Random(5))
        assert one.content(seed) == other.content(seed)
    assert len({one.content(seed) for seed in range(200)}) > 190


@pytest.mark.parametrize("style", STYLES)
def test_going_on_from_a_snapshot_is_going_on(style: str):
    shop, copy, chance = Shop(style=style), Shop(style=style), random.Random(2)
    for seed in range(15):
        step = shop.reset(seed)
        while not step.done:
            saved = shop.snapshot()
            copy.restore(saved)
            assert copy.snapshot() == saved and copy.legal() == shop.legal() and copy.expert() == shop.expert()
            action = chance.choice(shop.legal())
            step = shop.step(action)
            assert copy.step(action) == step
        copy.restore(shop.snapshot())
        with pytest.raises(GxpoError, match="is over"):
            copy.step("buy")


@pytest.mark.parametrize("style", STYLES)
def test_the_last_turn_ends_the_episode(style: str):
    shop = Shop(style=style, max_turns=3)
    shop.reset(0)
    steps = [shop.step("nothing") for _ in range(3)]
    assert [(s.action_error, s.done, s.truncated, s.success) for s in steps] == [
        ("malformed", False, False, None),
        ("malformed", False, False, None),
        ("malformed", True, True, False),
    ]
    with pytest.raises(GxpoError, match=r"call reset\(seed\)"):
        shop.step("nothing")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "html"}, "style must be"),
        ({"products": 5}, "products must be a whole number from 20 to 1000"),
        ({"style": "bare", "products": 13}, "products must be a whole number from 4 to 12"),
        ({"max_turns": 0}, "max_turns"),
        ({"catalogue": True}, "catalogue"),
    ],
)
def test_bad_options(options: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        Shop(**options)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seed": 0, "turn": 0, "sold": false, "place": {"item": "Z"}}'])
def test_what_is_no_snapshot(text: str):
    shop = Shop(style="bare")
    with pytest.raises(GxpoError, match="no snapshot"):
        shop.restore(text)
    with pytest.raises(GxpoError, match="has not begun"):
        shop.step("A")


verbs = st.sampled_from(["search", "click", "filter", "choose", "buy", "next"])


@given(st.text() | st.builds("<action>{}[{}]</action>".format, verbs, st.text(max_size=30)))
def test_whatever_is_said_is_answered(text: str):
    for shop in (Shop(), Shop(style="bare")):
        for seed in range(2):
            shop.reset(seed)
            shop.step(shop.expert())
            step = shop.step(text)
            assert step.observation and step.state and step.reward == 0.0


def test_without_partial_pay_only_a_full_match_pays():
    """The same purchases, at random: what pays a part with `partial` pays nothing without, a full match pays 1."""
    pays = []
    for seed in range(40):
        full_shop, strict = Shop(style="bare"), Shop(style="bare", partial=False)
        dice = random.Random(seed)
        full_shop.reset(seed), strict.reset(seed)
        done = False
        while not done:
            action = dice.choice(full_shop.legal())
            one, other = full_shop.step(action), strict.step(action)
            done = one.done
            assert (one.observation, one.state, one.success) == (other.observation, other.state, other.success)
        pays.append((one.reward, other.reward, one.success))
    assert all(strict == float(bool(success)) for _, strict, success in pays)
    assert any(0 < full_shop < 1 and strict == 0 for full_shop, strict, _ in pays)
    with pytest.raises(ConfigError, match="partial"):
        Shop(partial="no")  # type: ignore[arg-type]  # that is what is refused
