"""Screens of the shop: actions that are read, and what each screen offers."""

import random
import string

import pytest
from hypothesis import strategies as st

from gxpo.parts.protocols import TimeStep
from gxpo_worlds.shop import Shop
from gxpo_worlds.shop_screens import read_chat


def walk(shop: Shop, seed: int, chance: random.Random) -> list[TimeStep]:
    """An episode of possible actions at random."""
    steps = [shop.reset(seed)]
    while not steps[-1].done:
        steps.append(shop.step(chance.choice(shop.legal())))
    return steps


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("<action>search[ red\nshoes ]</action>", ("search", "red shoes")),
        ("<action>search[a]</action> no: <action>Click [P001]</action>", ("click", "p001")),
        ("filter[below $30]", ("filter", "under 30")),
        ("filter[under 030]", ("filter", "under 30")),
        ("BUY.", ("buy", "")),
        ("back[]", ("back", "")),
        ("search red shoes", None),
        ("I buy", None),
        ("buy now", None),
        ("click[P001", None),
        ("open[P001]", None),
        ("", None),
    ],
)
def test_reading_actions(text: str, read: tuple[str, str] | None):
    assert read_chat(text) == read


@pytest.mark.slow
def test_in_bare_style_exactly_the_legal_characters_are_possible():
    shop, chance = Shop(style="bare"), random.Random(3)
    for seed in range(2):
        step = shop.reset(seed)
        while not step.done:
            local_snapshot, possible = shop.snapshot(), set()
            for character in string.printable:
                shop.restore(local_snapshot)
                result = shop.step(character)
                if result.action_error is None:
                    possible.add(character)
                else:
                    assert (result.state, result.observation) == (step.state, step.observation)
            shop.restore(local_snapshot)
            assert possible == set(shop.legal())
            step = shop.step(chance.choice(shop.legal()))


def test_in_bare_style_the_screen_depends_on_the_state_alone():
    shop, chance = Shop(style="bare"), random.Random(4)
    for seed in range(20):
        screens: dict[str, str] = {}
        met = 0
        for _ in range(10):
            for step in walk(shop, seed, chance):
                if not step.done or step.truncated:
                    met += step.state in screens
                    assert screens.setdefault(step.state, step.observation) == step.observation
        assert met > 10  # states repeat


def test_every_chat_screen_says_what_is_possible():
    shop, chance = Shop(), random.Random(6)
    for seed in range(20):
        for step in walk(shop, seed, chance)[:-1]:
            verbs = {action.partition("[")[0] for action in step.observation.rpartition("Possible: ")[2].split(", ")}
            assert verbs <= {"search", "click", "filter", "next", "prev", "choose", "back", "buy"} and verbs


verbs = st.sampled_from(["search", "click", "filter", "choose", "buy", "next"])
