"""Screens and actions of the shop: in words for instruction-tuned models, in single characters for character models."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gxpo.environments.envs.actions import action_text
from gxpo_worlds.shop_catalogue import Goal, Product, Verdict


class Action(NamedTuple):
    """A shop action: `search`, `click`, `choose`, `filter` take an argument; `next`, `prev`, `back`, `buy` don't."""

    verb: str
    argument: str = ""


@dataclass(frozen=True)
class Place:
    """Place of the customer. `query` None: the start page, nothing is listed yet; `item` None: the list."""

    query: str | None = None
    filters: tuple[str, ...] = ()
    page: int = 0
    item: str | None = None
    chosen: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        choices = ",".join(f"{name}={value}" for name, value in self.chosen)
        query = "" if self.query is None else f"?{self.query}"
        return "|".join((query, ",".join(self.filters), str(self.page), self.item or "", choices))


class View(NamedTuple):
    """Contents of a screen: `page_products` of the page, all `results` on `pages` pages."""

    goal: Goal
    place: Place
    item: Product | None
    page_products: Sequence[Product]
    results: Sequence[Product]
    pages: int


PRICE = re.compile(r"under (\d{1,6})")
PRICE_SAID = re.compile(r"(?:under|below|at most) \$?(\d{1,6})(?: dollars)?", re.IGNORECASE)
WITH_ARGUMENT = re.compile(r"(search|click|choose|filter)\s*\[([^\[\]]*)\]", re.IGNORECASE)
WITHOUT_ARGUMENT = re.compile(r"(next|prev|back|buy)(?:\s*\[\s*\])?[.!]?", re.IGNORECASE)
BARE = {"+": "next", "-": "prev", "<": "back", "!": "buy"}
FILTERS_NAMED = 8

INSTRUCTIONS = """You are in an online shop. Buy what the goal asks for. The actions are:
search[words]: list the products that match best
click[P000]: open a listed product
filter[waterproof] or filter[under 50]: keep the listed products with this feature, or at most this price
next, prev: turn pages
choose[blue]: choose an option of the open product; each of its options must be chosen before it can be bought
back: leave the page
buy: buy the open product; this ends the visit
The score is 1 if type, features, options and price are as wanted, and less if only some of them are.
Each turn, you may think first; then end your answer with one action, such as <action>search[blue shirt]</action>."""


def read_chat(text: str) -> Action | None:
    """Parse the action in the last `<action>...</action>`, or in the whole text; None if there is none.

    >>> read_chat("Let me look. <action>search[red  Shoes]</action>"), read_chat("Buy"), read_chat("I buy it")
    (Action(verb='search', argument='red shoes'), Action(verb='buy', argument=''), None)
    """
    action = action_text(text)
    if match := WITH_ARGUMENT.fullmatch(action):
        # several wordings of a price limit become one filter
        argument = " ".join(match[2].lower().split())
        price = PRICE_SAID.fullmatch(argument)
        return Action(match[1].lower(), f"under {int(price[1])}" if price else argument)
    match = WITHOUT_ARGUMENT.fullmatch(action)
    return Action(match[1].lower()) if match else None


def write_chat(action: Action) -> str:
    """Text of an action, for `read_chat`."""
    return f"{action.verb}[{action.argument}]" if action.argument else action.verb


def chat_screen(view: View) -> str:
    """Screen in words: the goal, the page and its actions."""
    goal, place = view.goal, view.place
    if view.item is not None:
        lines, possible = _chat_item(view.item, dict(place.chosen))
    elif place.query is None:
        lines, possible = ["Start page."], ["search[words]"]
    else:
        lines, possible = _chat_list(view)
    options = ", ".join(f"{name} {value}" for name, value in goal.options.items())
    goal_text = f"{goal.kind}, {' and '.join(goal.attributes)}, {options}, for at most {goal.price} dollars"
    return "\n".join((f"Goal: {goal_text}.", *lines, f"Possible: {', '.join(possible)}"))


def _chat_item(item: Product, choice_by_option: dict[str, str]) -> tuple[list[str], list[str]]:
    options = [
        f"{name}: {', '.join(values)} (chosen: {choice_by_option.get(name, 'none')})"
        for name, values in item.options.items()
    ]
    lines = [f"[{item.name}] {item.title}, {item.price} dollars", f"Features: {', '.join(item.attributes)}", *options]
    return lines, ["choose[option]", *(["buy"] if choice_by_option.keys() == item.options.keys() else []), "back"]


def _chat_list(view: View) -> tuple[list[str], list[str]]:
    place = view.place
    narrowed = f", filtered by {', '.join(place.filters)}" if place.filters else ""
    page = f", page {place.page + 1} of {view.pages}" if view.pages else ""
    lines = [f'Results for "{place.query}"{narrowed}: {len(view.results)} products{page}.']
    lines += [f"[{product.name}] {product.title}, {product.price} dollars" for product in view.page_products]
    if features := common_features(view):
        lines.append(f"Features: {', '.join(features)}")
    possible = ["click[product]", "filter[feature]", "filter[under price]"] if view.page_products else []
    # turning a page is offered only where there is one
    if place.page + 1 < view.pages:
        possible.append("next")
    if place.page:
        possible.append("prev")
    return lines, [*possible, "search[words]", "back"]


def common_features(view: View) -> list[str]:
    """Most common attributes of the listed products, without those that all of them have."""
    count = Counter(attribute for product in view.results for attribute in product.attributes)
    # a filter that every product passes would change nothing
    telling = [attribute for attribute in count if count[attribute] < len(view.results)]
    return sorted(telling, key=lambda attribute: (-count[attribute], attribute))[:FILTERS_NAMED]


def chat_receipt(product: Product, verdict: Verdict) -> str:
    """Last screen, after the purchase."""
    return f"You bought {product.name}, {product.title}. Score: {verdict.reward:.2f}"


def read_bare(text: str, view: View) -> Action | None:
    """Parse a single-character action: a digit chooses, a capital opens, `$` filters by the goal's price."""
    character = text.strip()
    if len(character) != 1 or not character.isascii():
        return None
    if character in BARE:
        return Action(BARE[character])
    if character in "ABCDEFGHIJKL":
        return Action("click", character.lower())
    if character in "klmrgb":
        return Action("filter", character)
    if character == "$":
        return Action("filter", f"under {view.goal.price}")
    return Action("choose", character) if character in "123" else None


def write_bare(action: Action) -> str:
    """Character of an action, for `read_bare`; a price limit is the goal's."""
    characters = {verb: character for character, verb in BARE.items()}
    return "$" if action.argument.startswith("under ") else action.argument or characters[action.verb]


def bare_screen(view: View) -> str:
    """Screen in characters: goal and filters in the first line, then the list, or the open item with the chosen size.

    kr2 5 k        kind k, attribute r, size 2, price at most 5; only kind k is listed
    A kr12 7       item A: kind k, attribute r, sizes 1 and 2, price 7
    C kr23 4
    +              there is a next page (`-`: a page before)
    >
    """
    goal, place = view.goal, view.place
    # equal places have equal screens: filters are kept sorted
    filters = "".join(write_bare(Action("filter", name)) for name in place.filters)
    goal_text = f"{goal.kind}{''.join(goal.attributes)}{goal.options['size']} {goal.price}"
    if view.item is not None:
        return f"{goal_text}\n{_bare_item(view.item)} ={dict(place.chosen).get('size', '.')}\n>"
    turn = "+" * (place.page + 1 < view.pages) + "-" * (place.page > 0)
    lines = [f"{goal_text} {filters}".rstrip(), *map(_bare_item, view.page_products), turn, ">"]
    return "\n".join(line for line in lines if line)


def _bare_item(item: Product) -> str:
    return f"{item.name} {item.kind}{''.join(item.attributes)}{''.join(item.options['size'])} {item.price}"
