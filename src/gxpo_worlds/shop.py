"""Shop: find a product that meets a goal, choose its options and buy it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.parts.protocols import TimeStep
from gxpo_worlds.grid import stream
from gxpo_worlds.retrieval import words
from gxpo_worlds.shop_catalogue import Catalogue, Goal, Product, catalogue, fits, goal_of, judge, little_shop
from gxpo_worlds.shop_screens import (
    INSTRUCTIONS,
    PRICE,
    Action,
    Place,
    View,
    bare_screen,
    chat_receipt,
    chat_screen,
    common_features,
    read_bare,
    read_chat,
    write_bare,
    write_chat,
)

GOAL = 4  # first word of the key of an instance's stream
RESULTS = 30  # products that a search lists at most
USUAL = {"chat": 300, "bare": 8}
POSSIBLE = {"chat": (20, 1000), "bare": (4, 12)}
PER_PAGE = {"chat": 5, "bare": 4}


@dataclass(kw_only=True)
class Shop:
    """Search, filter, open, choose, buy; in the spirit of WebShop (arXiv:2207.01206), with a generated catalogue.

    The reward comes with `buy`: the share of wanted attributes, options and price that the purchase has, times how well
    its type matches (`shop_catalogue.judge`); success is a reward of 1. At least one product of the shop can give it.
    Every screen shows the goal. A state is a place: query, filters, page, open product, chosen options. A filter that
    would leave nothing is illegal; so is buying before every option is chosen.

    style      "chat": screens and actions in words, a search engine, pages of 5 products (needs the extra `envs`).
               "bare": single characters, no instructions, pages of 4; each instance has a little shop of its own,
               all of it listed at once, so nothing is searched
    products   how many there are: from 20 to 1000, in bare style from 4 to 12; 0: 300, in bare style 8
    catalogue  seed of the products in chat style; all instances share them
    partial    false: a purchase that does not match in everything pays 0
    """

    style: str = "chat"
    max_turns: int = 15
    products: int = 0
    catalogue: int = 0
    partial: bool = True
    instructions: str = field(init=False, repr=False)

    name: ClassVar[str] = "shop"

    def __post_init__(self) -> None:
        if self.style not in USUAL:
            raise ConfigError(f"shop: style must be 'chat' or 'bare', not {self.style!r}")
        if not isinstance(self.partial, bool):
            raise ConfigError(f"shop: partial must be true or false, not {self.partial!r}")
        _check_whole("products", self.products, *POSSIBLE[self.style], otherwise=0)
        _check_whole("catalogue", self.catalogue, 0, 2**32)
        _check_whole("max_turns", self.max_turns, 1, 10_000)
        self.instructions = INSTRUCTIONS if self.style == "chat" else ""
        self._bare = self.style == "bare"
        self._home = Place(query="") if self._bare else Place()
        self._shared: Catalogue | None = None if self._bare else catalogue(self.catalogue, self._count)
        self._seed: int | None = None
        self._turn, self._sold, self._place = 0, False, self._home

    # the protocol
    def reset(self, seed: int) -> TimeStep:
        self._enter(seed)
        return TimeStep(self._screen(), self._place.id)

    def step(self, action: str) -> TimeStep:
        if self._seed is None or self._over:
            raise GxpoError(
                f"shop: the episode {'has not begun' if self._seed is None else 'is over'}: call reset(seed)"
            )
        view = self._view()
        command = read_bare(action, view) if self._bare else read_chat(action)
        self._turn += 1
        if command is None:
            return self._time_step("malformed", "No action could be read.")
        if not self._possible(command, view):
            return self._time_step("illegal", f"{write_chat(command)} is not possible here.")
        if command.verb == "buy":
            return self._buy(view)
        self._place = self._after(command)
        return self._time_step()

    def content(self, seed: int) -> str:
        """Goal of a seed as JSON; in bare style with the products, sorted, as their order does not matter."""
        goal, products = self._instance(seed)
        if self._shared:
            return json.dumps(asdict(goal))
        sold = sorted([p.kind, *p.attributes, *p.options["size"], p.price] for p in products.values())
        return json.dumps([asdict(goal), sold])

    def legal(self) -> list[str]:
        """Legal actions. In chat style searches and price limits are unlimited: those of the goal represent them, and
        the features on the screen represent all features."""
        if self._seed is None or self._over:
            return []
        view = self._view()
        write = write_bare if self._bare else write_chat
        return [write(action) for action in self._candidates(view) if self._possible(action, view)]

    def expert(self) -> str | None:
        """Action of an expert that knows which products fit: searches for the goal, opens the first listed product that
        fits; if none is on the page, filters, then turns pages. None once the episode is over."""
        if self._seed is None or self._over:
            return None
        action = self._best(self._view())
        return write_bare(action) if self._bare else f"<action>{write_chat(action)}</action>"

    def snapshot(self) -> str:
        """Complete state of the episode, without the options."""
        return json.dumps({"seed": self._seed, "turn": self._turn, "sold": self._sold, "place": asdict(self._place)})

    def restore(self, text: str) -> None:
        """Continue from a `snapshot`, in a shop with the same options."""
        try:
            snapshot = json.loads(text)
            seed, turn, sold, place = snapshot["seed"], snapshot["turn"], snapshot["sold"], snapshot["place"]
            filters, choices = tuple(place["filters"]), tuple((name, value) for name, value in place["chosen"])
            position = Place(**{**place, "filters": filters, "chosen": choices})
            self._enter(seed)
            if (position.item is not None and position.item not in self._products) or type(turn) is not int:
                raise KeyError(position.item)
            self._turn, self._sold, self._place = turn, bool(sold), position
            self._screen()
        except (ValueError, KeyError, TypeError) as error:
            self._seed = None
            raise GxpoError(f"shop: this is no snapshot of it: {text[:80]!r}") from error

    # what is where
    @property
    def _count(self) -> int:
        return self.products or USUAL[self.style]

    @property
    def _over(self) -> bool:
        return self._sold or self._turn >= self.max_turns

    def _instance(self, seed: int) -> tuple[Goal, Mapping[str, Product]]:
        random = stream(GOAL, seed)
        if self._shared is None:
            products, goal = little_shop(random, self._count)
            return goal, {product.name: product for product in products}
        return goal_of(random, list(self._shared.products.values())), self._shared.products

    def _enter(self, seed: int) -> None:
        self._goal, self._products = self._instance(seed)
        self._seed, self._turn, self._sold, self._place = seed, 0, False, self._home

    def _results(self, query: str | None, filters: tuple[str, ...]) -> list[Product]:
        if query is None:
            return []
        names = self._products if self._shared is None else self._shared.search(query, RESULTS)
        return [self._products[n] for n in names if all(_passes(self._products[n], name) for name in filters)]

    def _view(self) -> View:
        place, per_page = self._place, PER_PAGE[self.style]
        results = self._results(place.query, place.filters)
        page_products = results[place.page * per_page : (place.page + 1) * per_page]
        item = None if place.item is None else self._products[place.item]
        return View(self._goal, place, item, page_products, results, pages=-(-len(results) // per_page))

    def _screen(self) -> str:
        return bare_screen(self._view()) if self._bare else chat_screen(self._view())

    # ------------------------------------------------------------ actions
    def _candidates(self, view: View) -> list[Action]:
        if view.item is not None:
            options = [Action("choose", value) for values in view.item.options.values() for value in values]
            return [*options, Action("buy"), Action("back")]
        features = common_features(view) if self._shared else list("klmrgb")
        opened = [Action("click", product.name) for product in view.page_products]
        narrowed = [Action("filter", name) for name in (*features, f"under {view.goal.price}")]
        return [*opened, *narrowed, Action("next"), Action("prev"), Action("back"), _search(view.goal)]

    def _possible(self, action: Action, view: View) -> bool:
        verb, argument, place = action.verb, action.argument.lower(), view.place
        if view.item is not None:
            if verb == "choose":
                return argument in (value.lower() for values in view.item.options.values() for value in values)
            return verb == "back" or (verb == "buy" and dict(place.chosen).keys() == view.item.options.keys())
        if verb == "search":
            return not self._bare and bool(words(argument))
        if verb == "click":
            return argument in (product.name.lower() for product in view.page_products)
        if verb == "filter":
            return argument not in place.filters and bool(
                self._results(place.query, _with_filter(place.filters, argument))
            )
        if verb == "back":
            return place != self._home
        return (verb == "next" and place.page + 1 < view.pages) or (verb == "prev" and place.page > 0)

    def _after(self, action: Action) -> Place:
        """Place after a possible action."""
        place, argument = self._place, action.argument
        if action.verb == "search":
            return Place(query=" ".join(words(argument)))
        if action.verb == "click":
            return replace(place, item=argument.upper())
        if action.verb == "choose":
            options = self._products[place.item or ""].options.items()
            new = {name: value for name, values in options for value in values if value.lower() == argument}
            return replace(place, chosen=tuple(sorted((dict(place.chosen) | new).items())))
        if action.verb == "filter":
            return replace(place, filters=_with_filter(place.filters, argument), page=0)
        if action.verb == "back":
            return self._home if place.item is None else replace(place, item=None, chosen=())
        return replace(place, page=place.page + (1 if action.verb == "next" else -1))

    def _time_step(self, error: str | None = None, note: str = "") -> TimeStep:
        """Time step after an action other than a purchase. In bare style the screen depends on the place alone."""
        screen = f"{note}\n{self._screen()}" if note and not self._bare else self._screen()
        success = False if self._over else None
        return TimeStep(screen, self._place.id, 0.0, self._over, success, error, truncated=self._over)

    def _buy(self, view: View) -> TimeStep:
        self._sold = True
        item = self._products[view.place.item or ""]
        verdict = judge(self._goal, item, dict(view.place.chosen))
        parts: dict[str, Any] = {"bought": item.name, **asdict(verdict)}
        receipt = "" if self._bare else chat_receipt(item, verdict)
        reward = verdict.reward if self.partial else float(verdict.success)
        return TimeStep(receipt, f"{view.place.id}|sold", reward, True, verdict.success, info=parts)

    def _best(self, view: View) -> Action:
        goal, place = view.goal, view.place
        # an open product: choose what the goal wants and buy, or leave it if it does not fit
        if view.item is not None:
            choice_by_option = dict(place.chosen)
            missing = [value for name, value in goal.options.items() if choice_by_option.get(name) != value]
            purchase = Action("choose", missing[0]) if missing else Action("buy")
            return purchase if fits(goal, view.item) else Action("back")
        if not any(fits(goal, product) for product in view.results):
            return _search(goal) if place.query is None else Action("back")
        for product in view.page_products:
            if fits(goal, product):
                return Action("click", product.name)
        # no fitting product on this page: a filter that shortens the list is better than turning pages
        for name in (goal.kind, *goal.attributes, f"under {goal.price}"):
            if len(self._results(place.query, _with_filter(place.filters, name))) < len(view.results):
                return Action("filter", name)
        first = next(i for i, product in enumerate(view.results) if fits(goal, product))
        return Action("next" if first >= (place.page + 1) * PER_PAGE[self.style] else "prev")


def _passes(product: Product, name: str) -> bool:
    if price := PRICE.fullmatch(name):
        return product.price <= int(price[1])
    return name == product.kind or name in product.attributes


def _with_filter(filters: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Add a filter; a new price limit replaces an earlier one."""
    kept_filters = {current for current in filters if not (PRICE.fullmatch(current) and PRICE.fullmatch(name))}
    return tuple(sorted(kept_filters | {name}))


def _search(goal: Goal) -> Action:
    return Action("search", " ".join((*goal.attributes, goal.kind, *goal.options.values())).lower())


def _check_whole(option: str, value: object, low: int, high: int, otherwise: int | None = None) -> None:
    """Raise ConfigError for an option that is neither a whole number from `low` to `high` nor `otherwise`."""
    if type(value) is not int or not (low <= value <= high or value == otherwise):
        raise ConfigError(f"shop: {option} must be a whole number from {low} to {high}, not {value!r}")
