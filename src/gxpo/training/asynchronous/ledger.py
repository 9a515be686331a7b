"""The ledger of an asynchronous run: which groups were dispatched, finished, dropped and consumed, in an append-only
file.

`rollouts/ledger.jsonl` holds a JSON object a line, flushed to the disk before the run goes on:

    {"event": "dispatch", "place": 6, "step": 4, "task": "arithmetic/37", "draws": 1, "seed": 0, "version": 2}
    {"event": "finish", "place": 6, "version": 2, "generated_tokens": 812, ...}
    {"event": "fail", "place": 6, "why": "TaskError: ...", ...}    its rollout raised; nothing is trained
    {"event": "drop", "place": 6, "step": 9, ...}                  over age at step 9
    {"event": "consume", "step": 5, "places": [6, 7, 8, 9]}        the update of step 5 is of these groups
    {"event": "rewrite", "continues": ["0c5f...", ...]}            first line of a resumed run's: see `Ledger.go_back`

A *place* numbers the tasks in the order in which they were drawn. The records of a finished one are beside the ledger,
in `rollouts/.groups/step-000004/000006.jsonl`, and are there before its line is.

Every line ends with a digest of itself and of all lines before it; a `finish` line has the digests of the files of its
group and of their lines; a checkpoint has the digest of the newest line (`Ledger.state`). So nothing that was edited,
moved or lost is trained: the run says which line it was, and stops.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gxpo.base.errors import CheckpointError
from gxpo.forest.forest import Forest
from gxpo.forest.records import dump, load
from gxpo.training.checkpoint import write_atomic

# ---------------------------------------------------------------- chained lines
# JSON lines with digests: each line's covers the line and all before it, so that no line can change, move or go.
_LINE = re.compile(rb'(\{.*), "digest": "([0-9a-f]{32})"\}')


class BrokenChain(Exception):
    """A line has another digest than it and the lines before it give; the message says how."""


def digest_after(digest: str, body: bytes) -> str:
    """Digest of a line whose JSON is `body` after lines that end with `digest`; "" before the first."""
    return hashlib.sha256(digest.encode() + b"\n" + body).hexdigest()[:32]


def chained(lines: Iterable[Mapping[str, Any]], digest: str = "") -> tuple[bytes, str]:
    """The lines as the bytes of a file, and the digest of the last of them."""
    text = b""
    for line in lines:
        body = json.dumps(line).encode()
        digest = digest_after(digest, body)
        text += body[:-1] + f', "digest": "{digest}"}}\n'.encode()
    return text, digest


def unchained(text: bytes) -> Iterator[tuple[int, bytes, str | None]]:
    """Number from 1, JSON and digest of each whole line; a last line that a kill has cut short is left out.

    Lines of a file that was begun without digests have None. `BrokenChain` at the first line that does not follow.
    """
    digest: str | None = None
    for number, line in enumerate(text.split(b"\n")[:-1], 1):
        match = _LINE.fullmatch(line)
        if match is None:
            if digest is not None:
                raise BrokenChain(f"{number}: has no digest, and the lines before it have")
            yield number, line, None
            continue
        body, own = match[1] + b"}", match[2].decode()
        if own != digest_after(digest or "", body):
            raise BrokenChain(f"{number}: was changed, or a line before it was added, moved or lost")
        digest = own
        yield number, body, own


# ---------------------------------------------------------------- ledger
LEDGER, GROUPS = "rollouts/ledger.jsonl", "rollouts/.groups"
MARKS = 256  # checkpoints whose digests are remembered
_REMEDY = "restore it from a copy, or begin a run from its parameters: gxpo train --from"


@dataclass
class Cost:
    """What growing some groups took; `scoring`: failures of rewards by kind."""

    generated_tokens: int = 0
    rollouts: int = 0
    discarded: int = 0
    judge_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    scoring: dict[str, int] = field(default_factory=dict)
    time_sample_s: float = 0.0

    def add(self, other: Cost) -> None:
        """Add another cost to this one."""
        for entry in fields(self):
            if entry.name != "scoring":
                setattr(self, entry.name, getattr(self, entry.name) + getattr(other, entry.name))
        for kind, n in other.scoring.items():
            self.scoring[kind] = self.scoring.get(kind, 0) + n


@dataclass
class Entry:
    """What the ledger says of one place."""

    place: int
    step: int
    task: str
    draws: int
    seed: int
    version: int
    state: str = "dispatched"  # finished | failed | dropped | consumed
    cost: Cost = field(default_factory=Cost)
    why: str = ""
    used: int | None = None  # step that consumed or dropped it
    files: dict[str, list[str]] = field(default_factory=dict)  # of its records, by name: digests of their lines


class Ledger:
    """The ledger of a run directory, for its one writer; `entries` by place is what its lines say together."""

    def __init__(self, run: Path) -> None:
        self.path, self.folder = run / LEDGER, run / GROUPS
        self.entries: dict[int, Entry] = {}
        self._digest = ""  # of the newest line
        self._marks: list[str] = []  # digests that checkpoints have

    # ------------------------------------------------------------ events
    def dispatch(self, entry: Entry) -> None:
        """Places that begin to be sampled."""
        told = {name: getattr(entry, name) for name in ("place", "step", "task", "draws", "seed", "version")}
        self._append({"event": "dispatch", **told})
        self.entries[entry.place] = entry

    def finish(self, place: int, forest: Forest, version: int, cost: Cost) -> None:
        """A place whose rollouts are scored; they are written first. version  of the oldest token."""
        path = self.file(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        dump(forest, path)
        for written in (path, path.with_suffix(".safetensors"), path.parent):
            if written.exists():
                _flush(written)
        files = {written.name: _digests(written) for written in self._files(place) if written.exists()}
        self._append({"event": "finish", "place": place, "version": version, "files": files, **asdict(cost)})
        entry = self.entries[place]
        entry.state, entry.version, entry.cost, entry.files = "finished", version, cost, files

    def fail(self, place: int, why: str, cost: Cost) -> None:
        """A place whose rollout raised."""
        self._append({"event": "fail", "place": place, "why": why, **asdict(cost)})
        entry = self.entries[place]
        entry.state, entry.why, entry.cost = "failed", why, cost

    def drop(self, place: int, step: int, cost: Cost) -> None:
        """A place that was over age at `step`."""
        self._append({"event": "drop", "place": place, "step": step, **asdict(cost)})
        entry = self.entries[place]
        entry.state, entry.used, entry.cost = "dropped", step, cost

    def consume(self, step: int, places: Iterable[int]) -> None:
        """Places that the update of `step` is made of."""
        places = list(places)
        self._append({"event": "consume", "step": step, "places": places})
        for place in places:
            entry = self.entries[place]
            entry.used = step
            entry.state = "consumed" if entry.state == "finished" else entry.state

    def rollouts(self, place: int) -> Forest:
        """The rollouts of a finished place as they were written; `CheckpointError` where they were changed since."""
        self._check(place)
        return load(self.file(place))

    def file(self, place: int) -> Path:
        """Where the records of a place are."""
        return self.folder / f"step-{self.entries[place].step:06d}" / f"{place:06d}.jsonl"

    def _files(self, place: int) -> tuple[Path, Path]:
        path = self.file(place)
        return path, path.with_suffix(".safetensors")

    def _check(self, place: int) -> None:
        """`CheckpointError` unless the files of a finished place are those that were written; unknown ones pass."""
        remedy = "restore it from a copy, or delete it, and gxpo resume samples its group again"
        for path in self._files(place):
            expected = self.entries[place].files.get(path.name)
            if expected is None:
                if self.entries[place].files and path.exists():
                    raise CheckpointError(f"{path}: is none of the files that {LEDGER} says were written: delete it")
                continue
            if not path.is_file():
                raise CheckpointError(f"{path}: is lost: {remedy.replace('delete it', f'delete {path.stem}.*')}")
            digests = _digests(path)
            if digests != expected:
                where = f"{path}" if path.suffix != ".jsonl" else f"{path}:{_first_difference(digests, expected)}"
                count = (
                    "" if len(digests) == len(expected) else f" ({len(expected)} lines were, {len(digests)} are there)"
                )
                raise CheckpointError(f"{where}: was changed since it was written{count}: {remedy}")

    # ------------------------------------------------------------ after a checkpoint
    def state(self) -> dict[str, Any]:
        """The state of the ledger for a checkpoint, by which `go_back` sees that no line of it is lost."""
        if self._digest:
            earlier = [mark for mark in self._marks if mark != self._digest]
            self._marks = [*earlier[1 - MARKS :], self._digest]
        return {"marks": list(self._marks)}

    def go_back(self, step: int, state: Mapping[str, Any] | None = None) -> None:
        """What the run knew at `step`: places used later are as they were before; what was not finished is forgotten,
        to be dispatched again. The file is replaced by one that says that, and that begins with the digests of `state`:
        a checkpoint that has one of them may go back with the new file as with the old one.

        state  of the checkpoint; None: it was written without digests
        """
        self.entries, digests = _read(self.path) if self.path.is_file() else ({}, set())
        self._marks = list(state["marks"]) if state else []
        if self._marks and self._marks[-1] not in digests:
            lost = "lines that it had at the checkpoint are lost" if self.path.is_file() else "is lost"
            raise CheckpointError(f"{self.path}: {lost}, as of step {step}: {_REMEDY} {self.path.parent.parent}")
        lost = 0
        for place, entry in list(self.entries.items()):
            had_records = entry.used is None or entry.used > step
            had_records &= entry.state in ("finished", "consumed") and not entry.why
            if entry.used is not None and entry.used > step:
                entry.used = None
                entry.state = "failed" if entry.why else "finished" if self.file(place).is_file() else "dispatched"
            if entry.used is None and not self._whole(entry):
                del self.entries[place]
                lost += had_records
        if lost:
            warnings.warn(
                f"{self.folder}: the records of {lost} finished groups are gone: they are sampled again", stacklevel=4
            )
        self._check_all()
        lines: list[dict[str, Any]] = [{"event": "rewrite", "continues": self._marks}]
        lines += [line for entry in self.entries.values() for line in _lines(entry)]
        used: dict[int, list[int]] = {}
        for entry in self.entries.values():
            if entry.used is not None and entry.state != "dropped":
                used.setdefault(entry.used, []).append(entry.place)
        lines += [{"event": "consume", "step": at, "places": places} for at, places in sorted(used.items())]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text, self._digest = chained(lines)
        write_atomic(self.path, text)

    def _check_all(self) -> None:
        """The files of all finished places that are still to be trained."""
        waiting = [e for e in self.entries.values() if e.used is None and e.state == "finished"]
        for entry in waiting:
            self._check(entry.place)
        if unknown := [e for e in waiting if not e.files]:
            warnings.warn(
                f"{self.path}: {len(unknown)} finished groups have no digests, as runs of earlier versions: whether "
                "their records were changed is unknown",
                stacklevel=5,
            )

    def _whole(self, entry: Entry) -> bool:
        return entry.state == "failed" or (entry.state == "finished" and self.file(entry.place).is_file())

    def tidy(self, step: int) -> None:
        """Remove the records of draws all of whose places were used up to `step`, which no checkpoint goes back to."""
        of_step: dict[int, list[Entry]] = {}
        for entry in self.entries.values():
            of_step.setdefault(entry.step, []).append(entry)
        for drawn, entries in of_step.items():
            folder = self.folder / f"step-{drawn:06d}"
            if all(e.used is not None and e.used <= step for e in entries) and folder.is_dir():
                shutil.rmtree(folder)

    def _append(self, line: Mapping[str, Any]) -> None:
        fresh = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text, digest = chained([line], self._digest)
        try:
            with open(self.path, "ab") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            self._digest = digest
        except OSError as error:
            raise CheckpointError(f"{self.path} not written: {error.strerror}: free space, then gxpo resume") from error
        if fresh:
            _flush(self.path.parent)


def read(path: Path) -> dict[int, Entry]:
    """Entries by place, of the lines of a ledger; a last line that a kill has cut short is left out."""
    return _read(path)[0]


def _read(path: Path) -> tuple[dict[int, Entry], set[str]]:
    """Entries by place, and the digests of which a checkpoint may have one."""
    entries: dict[int, Entry] = {}
    digests: set[str] = set()
    try:
        for number, text, digest in unchained(path.read_bytes()):
            try:
                line = json.loads(text)
                digests |= {*line["continues"]} if line["event"] == "rewrite" else set()
                _apply(line, entries)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                excerpt = text[:60].decode("utf-8", "backslashreplace")
                raise CheckpointError(f"{path}:{number}: not a line of a ledger: {excerpt!r}") from error
            if digest is not None:
                digests.add(digest)
    except BrokenChain as error:
        raise CheckpointError(f"{path}:{error}: {_REMEDY} {path.parent.parent}") from None
    return entries, digests


def _digests(path: Path) -> list[str]:
    """Digests of the lines of a file of records; of another file one of the whole."""
    lines = path.read_bytes().splitlines(keepends=True) if path.suffix == ".jsonl" else [path.read_bytes()]
    return [hashlib.sha256(line).hexdigest()[:32] for line in lines]


def _first_difference(one: list[str], other: list[str]) -> int:
    """Number from 1 of the first line in which two lists of digests differ."""
    same = (a == b for a, b in zip(one, other, strict=False))
    return next((n for n, is_same in enumerate(same, 1) if not is_same), min(len(one), len(other)) + 1)


def _apply(line: dict[str, Any], entries: dict[int, Entry]) -> None:
    event = line.pop("event")
    if event == "rewrite":
        return
    if event == "dispatch":
        entries[line["place"]] = Entry(**line)
    elif event == "consume":
        for place in line["places"]:
            entry = entries[place]
            entry.used = line["step"]
            entry.state = "consumed" if entry.state == "finished" else entry.state
    elif event == "drop":
        entry, step = entries[line.pop("place")], line.pop("step")
        entry.state, entry.used, entry.cost = "dropped", step, Cost(**line)
    elif event in ("finish", "fail"):
        entry = entries[line.pop("place")]
        entry.version, entry.why = line.pop("version", entry.version), line.pop("why", "")
        entry.files = line.pop("files", {})
        entry.state, entry.cost = "failed" if event == "fail" else "finished", Cost(**line)
    else:
        raise ValueError(event)


def _lines(entry: Entry) -> Iterable[dict[str, Any]]:
    yield {
        "event": "dispatch",
        **{name: getattr(entry, name) for name in ("place", "step", "task", "draws", "seed", "version")},
    }
    if entry.state == "failed":
        yield {"event": "fail", "place": entry.place, "why": entry.why, **asdict(entry.cost)}
    elif entry.state == "dropped":
        yield {"event": "drop", "place": entry.place, "step": entry.used, **asdict(entry.cost)}
    else:
        cost = asdict(entry.cost)
        yield {"event": "finish", "place": entry.place, "version": entry.version, "files": entry.files, **cost}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
