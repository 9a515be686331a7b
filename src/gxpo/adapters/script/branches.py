"""Join of the states that branches of a script leave: a name has the same value, a default, or is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.adapters.script.values import ABSENT, Noted, Thing, Unknown, with_notes

NO_JOIN = object()


def containers(value: Any, objects: dict[int, Any] | None = None) -> dict[int, Any]:
    """Return all objects, lists and mappings that a value holds, by identity."""
    objects = {} if objects is None else objects
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Noted):
            item = item.value
        if not isinstance(item, (Thing, dict, list, tuple)) or id(item) in objects:
            continue
        objects[id(item)] = item
        stack += [*_children(item)]
    return objects


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, Thing):
        yield value.fields
        yield value.of
    else:
        yield from value.values() if isinstance(value, dict) else value


@dataclass
class Join:
    """Join of the states that branches leave, into the state before them.

    reason     of a value that differs between branches
    preferred  number of the branch that is taken by default, and notes of what changes that; None: none is
    back       copy -> object before the branches
    """

    reason: Unknown
    preferred: tuple[int, tuple[str, ...]] | None = None
    back: dict[int, Any] = field(default_factory=dict)
    joins: dict[tuple[int, ...], Any] = field(default_factory=dict)
    keep: list[Any] = field(default_factory=list)

    def into(self, originals: Mapping[int, Any], memos: Sequence[dict[int, Any]], names: set[int]) -> None:
        """Change the objects before the branches to what the branches leave.

        originals  objects before the branches;   memos: of `copy.deepcopy`, one per branch
        names      identities of mappings of which a missing key stands for a name that is not set
        """
        for number, original in originals.items():
            for memo in memos:
                if number in memo:
                    self.back[id(memo[number])] = original
        # computed for all before any is changed, since objects refer to one another
        changes = []
        for number, original in originals.items():
            versions = [memo[number] for memo in memos if number in memo]
            if isinstance(original, dict):
                changes.append((original, self._mapping(versions, number in names)))
            elif isinstance(original, list):
                alike = len({len(v) for v in versions}) == 1
                items = [self.value(list(x)) for x in zip(*versions, strict=True)] if alike else None
                changes.append((original, self._list(versions) if items is None else items))
            elif isinstance(original, Thing):
                original.places = {k: p for v in versions for k, p in v.places.items()}
                original.extra_fields = next((v.extra_fields for v in versions if v.extra_fields), None)
                original.notes = list(dict.fromkeys(n for v in versions for n in v.notes))
        for original, content in changes:
            original.clear()
            original.update(content) if isinstance(original, dict) else original.extend(content)

    def _list(self, versions: Sequence[Any]) -> list[Any]:
        if self.preferred is not None:
            return list(with_notes([self.value([x]) for x in versions[self.preferred[0]]], self.preferred[1]))
        return [self.reason]

    def _mapping(self, versions: Sequence[Mapping[Any, Any]], names: bool) -> dict[Any, Any]:
        out = {}
        for key in dict.fromkeys(k for v in versions for k in v):
            have = [v[key] for v in versions if key in v]
            if len(have) == len(versions) or names:
                out[key] = self.value(have, len(have) == len(versions))
            elif self.preferred is None:
                out[key] = self.reason
            elif key in versions[self.preferred[0]]:
                out[key] = with_notes(self.value([versions[self.preferred[0]][key]]), self.preferred[1])
            else:
                out[key] = Noted(ABSENT, self.preferred[1])
        return out

    def value(self, versions: Sequence[Any], complete: bool = True) -> Any:
        """Return what one value is after the branches."""
        ids = tuple(map(id, versions))
        if ids in self.joins:
            return self.joins[ids]
        originals = [self.back.get(i) for i in ids]
        if originals[0] is not None and all(o is originals[0] for o in originals):
            return originals[0]
        if len(versions) == 1:
            return self._restored(versions[0])
        first = versions[0]
        # a data set is never changed, so that one of a branch can be joined to the one before
        is_fixed = isinstance(first, Thing) and first.kind == "dataset"
        if all(type(v) is type(first) for v in versions) and (is_fixed or not any(o is not None for o in originals)):
            join = self._alike(versions, ids)
            if join is not NO_JOIN:
                return join
        if self.preferred is not None and complete:
            return with_notes(self._restored(versions[self.preferred[0]]), self.preferred[1])
        return next((v for v in versions if isinstance(v, Unknown)), self.reason)

    def _alike(self, versions: Sequence[Any], ids: tuple[int, ...]) -> Any:
        """Return the join of values of one type that were made in the branches, which may be None; or `NO_JOIN`."""
        first = versions[0]
        if isinstance(first, Thing) and all((v.kind, v.name) == (first.kind, first.name) for v in versions):
            thing = Thing(first.kind, first.name, first.where, of=self.value([v.of for v in versions]))
            self.joins[ids] = thing
            self.keep += versions
            thing.fields = self._mapping([v.fields for v in versions], False)
            thing.places = {k: p for v in versions for k, p in v.places.items()}
            thing.extra_fields = next((v.extra_fields for v in versions if v.extra_fields), None)
            thing.notes = list(dict.fromkeys(n for v in versions for n in v.notes))
            return thing
        if isinstance(first, dict):
            return self._mapping(versions, False)
        if isinstance(first, (list, tuple)) and len({len(v) for v in versions}) == 1:
            return type(first)(self.value(list(x)) for x in zip(*versions, strict=True))
        if isinstance(first, Noted):
            if all(v.value == first.value for v in versions):
                return with_notes(first.value, [n for v in versions for n in v.notes])
            return NO_JOIN
        if isinstance(first, (Thing, list, tuple)):
            return NO_JOIN
        try:
            return first if all(v == first for v in versions) else NO_JOIN
        except RecursionError:
            return NO_JOIN

    def _restored(self, value: Any) -> Any:
        """Return a value of one branch, with the objects before the branches in place of their copies."""
        if id(value) in self.back:
            return self.back[id(value)]
        if (id(value),) in self.joins:
            return self.joins[(id(value),)]
        if isinstance(value, Thing):
            self.joins[(id(value),)] = value
            self.keep.append(value)
            value.fields = {k: self._restored(v) for k, v in value.fields.items()}
            value.of = self._restored(value.of)
        elif isinstance(value, dict):
            return {k: self._restored(v) for k, v in value.items()}
        elif isinstance(value, (list, tuple)):
            return type(value)(self._restored(v) for v in value)
        return value
