"""What an engine remembers of its samples, so that a longer prompt of one costs only what was added to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gxpo.engines.cache import Layers


@dataclass(frozen=True)
class Kept:
    """The first tokens of a sample's context and action, their keys and values [heads, tokens, size] by layer, and the
    policy that computed them."""

    tokens: tuple[int, ...]
    layers: Layers
    policy: str = "main"

    def begins(self, prompt: Sequence[int], policy: str = "main") -> bool:
        """Whether this policy's cache of the prompt begins with it."""
        return policy == self.policy and tuple(prompt[: len(self.tokens)]) == self.tokens


class KeptCaches:
    """Caches by name, at most `limit` tokens of them; what was not used for longest goes first.

    tokens      that are held now
    dropped     caches that were given up for want of room
    mismatched  caches whose name came back with a prompt that does not begin with them, or under another policy
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tokens = self.dropped = self.mismatched = 0
        self._by_name: dict[str, Kept] = {}  # the one that was not used for longest stands first

    def use(self, names: Iterable[str]) -> None:
        """Marks these names as used now."""
        for name in names:
            if name in self._by_name:
                self._by_name[name] = self._by_name.pop(name)

    def take(self, name: str, prompt: Sequence[int], policy: str = "main") -> Kept | None:
        """Removes what was kept under `name`; returns it if `prompt` begins with it and the policy is the same."""
        kept = self._pop(name)
        if kept is None or kept.begins(prompt, policy):
            return kept
        self.mismatched += 1
        return None

    def put(self, name: str, kept: Kept) -> None:
        """Keeps this under `name`; one that is longer than all may be is dropped itself and pushes nothing out."""
        self._pop(name)
        if len(kept.tokens) > self.limit:
            self.dropped += 1
            return
        self._by_name[name] = kept
        self.tokens += len(kept.tokens)
        while self.tokens > self.limit:
            self._pop(next(iter(self._by_name)))
            self.dropped += 1

    def release(self, names: Sequence[str] | None = None) -> None:
        """Forgets these names (unknown ones are passed over), or everything."""
        for name in list(self._by_name) if names is None else names:
            self._pop(name)

    def _pop(self, name: str) -> Kept | None:
        kept = self._by_name.pop(name, None)
        if kept is not None:
            self.tokens -= len(kept.tokens)
        return kept
