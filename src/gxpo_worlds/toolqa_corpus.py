"""Encyclopaedia of ToolQA: made-up people, cities, rivers, companies and books."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from gxpo_worlds.grid import stream
from gxpo_worlds.retrieval import Retriever

CORPUS = 5  # first word of the key of its stream
COUNTS = {"river": 20, "city": 45, "person": 120, "company": 70, "book": 70}

FIRST_NAMES = (
    "Adela Bruno Carla Darius Elin Felix Greta Hanno Irma Jonas Katrin Levin Mira Niklas Olga Piet Runa Stellan"
)
LAST_NAMES = (
    "Abendroth Brinkmoor Castellan Dahlwig Ekstrand Fennimore Grauman Halvard Isbrand Jarnefelt Kessling Lorrimer"
)
PLACES = ("Varn", "Ost", "Kel", "Brun", "Tor", "Mar", "Hal", "Esk", "Lind", "Rav", "Sol", "Wend")
ENDINGS = ("holm", "dorf", "wick", "haven", "gard", "minster")
RIVERS = ("Tess", "Aur", "Nim", "Orl", "Ves", "Dray", "Ilm", "Sorn")
TRADES = ("Instruments", "Foundry", "Textiles", "Brewery", "Shipyard", "Optics", "Chocolate", "Clockworks")
MOODS = ("Silent", "Crimson", "Forgotten", "Hollow", "Golden", "Winter", "Broken", "Distant", "Paper", "Salt")
SUBJECTS = ("Harbour", "Orchard", "Letters", "Staircase", "Garden", "Lantern", "Bridge", "Mirror", "Island", "Clock")
COUNTRIES = ("Orvania", "Kastovia", "Lurmark", "Belland", "Tirrenia", "Vossia")
SEAS = ("the Grey Sea", "the Amber Gulf", "the Northern Sea", "the Sea of Marl")
OCCUPATIONS = ("an engineer", "a botanist", "a novelist", "a physician", "a merchant", "an architect", "a chemist")
PRODUCTS = {
    "Instruments": "thermometers",
    "Foundry": "church bells",
    "Textiles": "sailcloth",
    "Brewery": "dark beer",
    "Shipyard": "ferries",
    "Optics": "telescopes",
    "Chocolate": "pralines",
    "Clockworks": "tower clocks",
}


@dataclass(frozen=True)
class Thing:
    """Entry of the encyclopaedia: `facts` by name; the value of a relation is the name of another entry."""

    kind: str
    name: str
    facts: dict[str, str | int]


class Encyclopaedia:
    """Entries, one passage for each (title and text, in the same order), and a search engine over the passages."""

    def __init__(self, things: Sequence[Thing], texts: Sequence[str]) -> None:
        self.things = {thing.name: thing for thing in things}
        self.titles = tuple(self.things)
        self.texts = tuple(texts)
        self._retriever = Retriever([f"{title} {text}" for title, text in zip(self.titles, self.texts, strict=True)])

    def of_kind(self, kind: str) -> list[Thing]:
        return [thing for thing in self.things.values() if thing.kind == kind]

    def search(self, query: str, k: int) -> tuple[int, ...]:
        """Indices of at most `k` passages, best match first."""
        return tuple(self._retriever.search(query, k))


@lru_cache(maxsize=8)
def encyclopaedia(seed: int) -> Encyclopaedia:
    """Encyclopaedia of a seed, made once per process.

    Every fact that a question needs is in exactly one passage, among other people, places and years.
    """
    writer = _Writer(stream(CORPUS, seed))
    things: list[Thing] = []
    texts: list[str] = []
    for kind in COUNTS:
        for name in writer.names[kind]:
            facts, sentences = getattr(writer, kind)(name)
            things.append(Thing(kind, name, facts))
            texts.append(" ".join(sentences))
    return Encyclopaedia(things, texts)


Entry = tuple[dict[str, str | int], list[str]]  # facts, and the sentences that state them


class _Writer:
    """Writer of entries and their texts, with consistent years: people act between the ages of 18 and 90."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        parts = {
            "river": ("{}{}", RIVERS, ("el", "ach", "ina")),
            "city": ("{}{}", PLACES, ENDINGS),
            "person": ("{} {}", FIRST_NAMES.split(), LAST_NAMES.split()),
            "company": ("{} {}", LAST_NAMES.split(), TRADES),
            "book": ("The {} {}", MOODS, SUBJECTS),
        }
        self.names = {kind: self._pairs(count, *parts[kind]) for kind, count in COUNTS.items()}
        # years of birth first: books and companies are dated by their authors and founders
        self.born = {name: self._number(1800, 1950) for name in self.names["person"]}

    def _pairs(self, count: int, form: str, first_parts: Sequence[str], last_parts: Sequence[str]) -> list[str]:
        pairs = list(product(first_parts, last_parts))
        return [form.format(*pairs[int(i)]) for i in self.random.choice(len(pairs), size=count, replace=False)]

    def _number(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high))

    def _pick(self, values: Sequence[str]) -> str:
        return values[self._number(0, len(values))]

    def _two_cities(self) -> tuple[str, str]:
        # different ones: the second city of a passage is there to mislead
        first, second = self.random.choice(len(self.names["city"]), size=2, replace=False)
        return self.names["city"][int(first)], self.names["city"][int(second)]

    def _peer(self, year: int, person: str) -> str:
        """Draw one of the ten people born closest to a year, other than `person`."""
        people = sorted((abs(born - year), name) for name, born in self.born.items() if name != person)
        return people[self._number(0, 10)][1]

    def river(self, name: str) -> Entry:
        length, sea = self._number(40, 900), self._pick(SEAS)
        return {"length": length, "sea": sea}, [
            f"The {name} is a river with a length of {length} kilometres.",
            f"It rises at a height of {self._number(300, 2400)} metres and flows into {sea}.",
            f"A flood in {self._number(1700, 1990)} destroyed {self._number(2, 9)} of its bridges.",
        ]

    def city(self, name: str) -> Entry:
        facts: dict[str, str | int] = {
            "country": self._pick(COUNTRIES),
            "river": self._pick(self.names["river"]),
            "founded": self._number(900, 1750),
            "population": self._number(8_000, 900_000),
        }
        return facts, [
            f"{name} is a city in {facts['country']} with a population of {facts['population']}.",
            f"The {facts['river']} flows through it.",
            f"The city was founded in {facts['founded']}; its town hall dates from {self._number(1760, 1900)}.",
        ]

    def person(self, name: str) -> Entry:
        birthplace, home = self._two_cities()
        born, occupation = self.born[name], self._pick(OCCUPATIONS)
        return {"born": born, "birthplace": birthplace, "occupation": occupation}, [
            f"{name} was born in {birthplace} in {born} and became {occupation}.",
            f"In {born + self._number(18, 30)} {name.split()[1]} moved to {home}"
            f" and exchanged letters with {self._peer(born, name)} from then on.",
        ]

    def company(self, name: str) -> Entry:
        seat, branch = self._two_cities()
        # the director, about 40 at the founding, takes over at 26 or later
        founder = self._pick(self.names["person"])
        founded = self.born[founder] + self._number(22, 45)
        director = self._peer(founded - 40, founder)
        directed = max(founded, self.born[director] + 25) + self._number(1, 10)
        facts: dict[str, str | int] = {
            "founder": founder,
            "director": director,
            "headquarters": seat,
            "founded": founded,
            "employees": self._number(20, 9000),
            "product": PRODUCTS[name.split()[1]],
        }
        return facts, [
            f"{name} is a company that makes {facts['product']} and has {facts['employees']} employees.",
            f"It was founded in {founded} by {founder}, and {director} became its director in {directed}.",
            f"The head office is in {seat}; a branch in {branch} was opened in {founded + self._number(2, 25)}.",
        ]

    def book(self, name: str) -> Entry:
        author = self._pick(self.names["person"])
        published = self.born[author] + self._number(20, 45)
        translator = self._peer(published - 40, author)
        # a translation comes after the book, and after its translator has grown up
        translated = max(published, self.born[translator] + 20) + self._number(1, 10)
        facts: dict[str, str | int] = {
            "author": author,
            "setting": self._pick(self.names["city"]),
            "published": published,
            "pages": self._number(90, 900),
        }
        return facts, [
            f"{name} is a novel of {facts['pages']} pages by {author}, published in {published}.",
            f"It is set in {facts['setting']}.",
            f"A translation by {translator} came out in {translated}.",
        ]
