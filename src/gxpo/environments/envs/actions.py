"""Parse actions from a policy's text: pure functions shared by all text environments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

DECORATION = "\"'`*.!,;: "  # what surrounds a word without changing what it says


def action_text(text: str, tag: str = "action") -> str:
    """Text of the last `<action>...</action>` in `text`, or all of it without one; stripped of white space.

    Tags are case-insensitive; a tag that is never closed is plain text.

    >>> action_text("I go <action> up </action> or rather <action>left</action>!"), action_text(" left ")
    ('left', 'left')
    """
    matches = _tag_pattern(tag).findall(text)
    return (matches[-1] if matches else text).strip()


def find_action(text: str, actions: Sequence[str] | Mapping[str, str], tag: str = "action") -> str | None:
    """Find the action that `text` names; None if there is none: the action is invalid.

    text     what the policy wrote, without its reasoning
    actions  names of the known actions; the first letter of a name is an alias for it if no other name begins with it.
             Or a mapping alias -> name, in place of the first letters; names are aliases of themselves
    tag      the action is in the last `<tag>...</tag>` if there is one, else it is the whole text

    Case, runs of white space and surrounding quotes or punctuation do not matter. Nothing else is guessed: a name in
    the middle of a sentence is not an action.

    >>> find_action("The hole is below. <action>Left</action>", ["left", "right"])
    'left'
    >>> find_action("R", ["left", "right"]), find_action("I go left", ["left", "right"])
    ('right', None)
    >>> find_action("<action>north</action>", {"north": "up", "south": "down"})
    'up'
    """
    name_by_spelling = _aliases(actions) if isinstance(actions, Mapping) else _initials(tuple(actions))
    spelling = _plain(action_text(text, tag))
    # as it is first: a name may itself begin or end with a character of DECORATION
    return name_by_spelling.get(spelling, name_by_spelling.get(spelling.strip(DECORATION)))


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


@lru_cache(maxsize=64)
def _tag_pattern(tag: str) -> re.Pattern[str]:
    name = re.escape(tag)
    # an inner opening tag begins anew: of "<action>a <action>b</action>" the action is b
    return re.compile(f"<{name}>((?:(?!<{name}>).)*?)</{name}>", re.DOTALL | re.IGNORECASE)


@lru_cache(maxsize=256)
def _initials(names: tuple[str, ...]) -> dict[str, str]:
    """Spelling -> name: the names, and the first letters that belong to one name alone."""
    name_by_spelling = {_plain(name): name for name in names}
    initials = [plain[:1] for plain in name_by_spelling]
    letters = {plain[:1]: name for plain, name in name_by_spelling.items() if initials.count(plain[:1]) == 1}
    return letters | name_by_spelling


def _aliases(actions: Mapping[str, str]) -> dict[str, str]:
    return {_plain(name): name for name in actions.values()} | {_plain(alias): name for alias, name in actions.items()}
