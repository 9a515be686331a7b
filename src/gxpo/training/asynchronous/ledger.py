"""Ledger of an asynchronous run: an append-only file of the groups that were dispatched, finished, dropped, consumed.

`rollouts/ledger.jsonl` holds a JSON object a line, flushed to the disk before the run goes on:

    {"event": "dispatch", "place": 6, "step": 4, "task": "arithmetic/37", "draws": 1, "seed": 0, "version": 2}
    {"event": "finish", "place": 6, "version": 2, "generated_tokens": 812, ...}
    {"event": "fail", "place": 6, "why": "TaskError: ...", ...}    its rollout raised; nothing is trained
    {"event": "drop", "place": 6, "step": 9, ...}                  over age at step 9
    {"event": "consume", "step": 5, "places": [6, 7, 8, 9]}        the update of step 5 is of these groups
    {"event": "rewrite", "continues": ["0c5f...", ...]}            first line after a resume: see `Ledger.rewind`

A *place* is a task's number in the order of drawing. The records of a finished place are beside the ledger, in
`rollouts/.groups/step-000004/000006.jsonl`, written before its line.

Every line ends with a digest of itself and of all lines before it; a `finish` line has the digests of the files of its
group and of their lines; a checkpoint has the digest of the newest line (`Ledger.state`). So records that were edited,
moved or lost are never trained: the run stops and names the line.
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

# ---------------------------------------------------------------- chain of digests
# The digest of a JSON line covers the line and all before it, so that a changed, moved or removed line is detected.
_LINE = re.compile(rb'(\{.*), "digest": "([0-9a-f]{32})"\}')


class BrokenChain(Exception):
    """Digest of a line that does not match the line and those before it; the message names the line."""


def digest_after(digest: str, body: bytes) -> str:
    """Digest of a line whose JSON is `body`, after a line whose digest is `digest`; "" before the first line."""
    return hashlib.sha256(digest.encode() + b"\n" + body).hexdigest()[:32]


def write_chain(lines: Iterable[Mapping[str, Any]], digest: str = "") -> tuple[bytes, str]:
    """Return the lines with their digests as the bytes of a file, and the digest of the last line."""
    text = b""
    for line in lines:
        body = json.dumps(line).encode()
        digest = digest_after(digest, body)
        text += body[:-1] + f', "digest": "{digest}"}}\n'.encode()
    return text, digest


def read_chain(text: bytes) -> Iterator[tuple[int, bytes, str | None]]:
    """Yield number from 1, JSON and digest of each complete line; a last line that a kill cut short is left out.

    The digest is None for the first lines of a file that was begun without digests. Raises `BrokenChain` at the first
    line whose digest does not match.
    """
    digest: str | None = None
    for number, line in enumerate(text.split(b"\n")[:-1], 1):
        match = _LINE.fullmatch(line)
        if match is None:
            if digest is not None:
                raise BrokenChain(f"{number}: has no digest, and the lines before it have")
            yield number, line, None
            continue
        body, recorded_digest = match[1] + b"}", match[2].decode()
        if recorded_digest != digest_after(digest or "", body):
            raise BrokenChain(f"{number}: was changed, or a line before it was added, moved or lost")
        digest = recorded_digest
        yield number, body, recorded_digest


# ---------------------------------------------------------------- ledger
LEDGER, GROUPS = "rollouts/ledger.jsonl", "rollouts/.groups"
MARKS = 256  # checkpoints whose digests are remembered
_REMEDY = "restore it from a copy, or begin a run from its parameters: gxpo train --from"


@dataclass
class Cost:
    """Tokens, rollouts and seconds that groups used; `scoring` counts failures of rewards by kind."""

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
    """State of one place, as its lines in the ledger give it."""

    place: int
    step: int
    task: str
    draws: int
    seed: int
    version: int
    state: str = "dispatched"  # finished | failed | dropped | consumed
    cost: Cost = field(default_factory=Cost)
    reason: str = ""
    consumed_step: int | None = None  # step that consumed or dropped it
    files: dict[str, list[str]] = field(default_factory=dict)  # digests of lines by name of the record file


class Ledger:
    """Ledger of a run directory, for its one writer; `entries` has the state of each place."""

    def __init__(self, run: Path) -> None:
        self.path, self.folder = run / LEDGER, run / GROUPS
        self.entries: dict[int, Entry] = {}
        self._digest = ""  # of the newest line
        self._marks: list[str] = []  # digests that checkpoints have

    # ------------------------------------------------------------ events
    def dispatch(self, entry: Entry) -> None:
        """Note that a place begins to be sampled."""
        columns = {name: getattr(entry, name) for name in ("place", "step", "task", "draws", "seed", "version")}
        self._append({"event": "dispatch", **columns})
        self.entries[entry.place] = entry

    def finish(self, place: int, forest: Forest, version: int, cost: Cost) -> None:
        """Write the scored rollouts of a place, then note it as finished. version  of the oldest token."""
        # Flushed before the line that names them: after a power cut a finished place has its records.
        path = self.records_path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        dump(forest, path)
        for saved_path in (path, path.with_suffix(".safetensors"), path.parent):
            if saved_path.exists():
                _flush_to_disk(saved_path)
        files = {
            saved_path.name: _file_digests(saved_path)
            for saved_path in self._record_files(place)
            if saved_path.exists()
        }
        self._append({"event": "finish", "place": place, "version": version, "files": files, **asdict(cost)})
        entry = self.entries[place]
        entry.state, entry.version, entry.cost, entry.files = "finished", version, cost, files

    def fail(self, place: int, reason: str, cost: Cost) -> None:
        """Note a place whose rollout raised; its tokens are charged, nothing is trained."""
        self._append({"event": "fail", "place": place, "why": reason, **asdict(cost)})
        entry = self.entries[place]
        entry.state, entry.reason, entry.cost = "failed", reason, cost

    def drop(self, place: int, step: int, cost: Cost) -> None:
        """Note a place that was over age at `step`."""
        self._append({"event": "drop", "place": place, "step": step, **asdict(cost)})
        entry = self.entries[place]
        entry.state, entry.consumed_step, entry.cost = "dropped", step, cost

    def consume(self, step: int, places: Iterable[int]) -> None:
        """Note the places that the update of `step` trains; failed ones are used up by it too."""
        places = list(places)
        self._append({"event": "consume", "step": step, "places": places})
        for place in places:
            entry = self.entries[place]
            entry.consumed_step = step
            entry.state = "consumed" if entry.state == "finished" else entry.state

    def rollouts(self, place: int) -> Forest:
        """Load the rollouts of a finished place; raise `CheckpointError` if their files were changed."""
        self._check_files(place)
        return load(self.records_path(place))

    def records_path(self, place: int) -> Path:
        """Return the path of a place's records."""
        return self.folder / f"step-{self.entries[place].step:06d}" / f"{place:06d}.jsonl"

    def _record_files(self, place: int) -> tuple[Path, Path]:
        path = self.records_path(place)
        return path, path.with_suffix(".safetensors")

    def _check_files(self, place: int) -> None:
        """Raise `CheckpointError` if files of a finished place differ from their digests; without digests they pass."""
        remedy = "restore it from a copy, or delete it, and gxpo resume samples its group again"
        for path in self._record_files(place):
            expected = self.entries[place].files.get(path.name)
            if expected is None:
                if self.entries[place].files and path.exists():
                    raise CheckpointError(f"{path}: is none of the files that the run wrote by {LEDGER}: delete it")
                continue
            if not path.is_file():
                raise CheckpointError(f"{path}: is lost: {remedy.replace('delete it', f'delete {path.stem}.*')}")
            digests = _file_digests(path)
            if digests != expected:
                location = f"{path}" if path.suffix != ".jsonl" else f"{path}:{_first_difference(digests, expected)}"
                counts = "" if len(digests) == len(expected) else f" ({len(digests)} lines instead of {len(expected)})"
                raise CheckpointError(f"{location}: was changed since it was written{counts}: {remedy}")

    # ------------------------------------------------------------ after a checkpoint
    def state(self) -> dict[str, Any]:
        """Return the ledger's newest digests for a checkpoint; `rewind` checks by them that no line is lost."""
        if self._digest:
            earlier = [mark for mark in self._marks if mark != self._digest]
            self._marks = [*earlier[1 - MARKS :], self._digest]
        return {"marks": list(self._marks)}

    def rewind(self, step: int, state: Mapping[str, Any] | None = None) -> None:
        """Go back to the checkpoint of `step` and rewrite the file: later uses are undone, unfinished places forgotten,
        so that they are dispatched again.

        The new file begins with the digests of `state`, so that earlier checkpoints accept it as they did the old one.

        state  the checkpoint's ledger state; None if it was written without digests
        """
        # The newest digest of the checkpoint must be in the file: otherwise lines that it relies on were removed.
        self.entries, digests = _read(self.path) if self.path.is_file() else ({}, set())
        self._marks = list(state["marks"]) if state else []
        if self._marks and self._marks[-1] not in digests:
            loss = "lines that it had at the checkpoint are lost" if self.path.is_file() else "is lost"
            raise CheckpointError(f"{self.path}: {loss}, as of step {step}: {_REMEDY} {self.path.parent.parent}")
        # A place used after `step` is finished or failed again; one without records can only be sampled again. Records
        # that were complete and are missing are counted, for the user may have deleted them on purpose.
        n_lost = 0
        for place, entry in list(self.entries.items()):
            had_records = entry.consumed_step is None or entry.consumed_step > step
            had_records &= entry.state in ("finished", "consumed") and not entry.reason
            if entry.consumed_step is not None and entry.consumed_step > step:
                entry.consumed_step = None
                entry.state = (
                    "failed" if entry.reason else "finished" if self.records_path(place).is_file() else "dispatched"
                )
            if entry.consumed_step is None and not self._is_usable(entry):
                del self.entries[place]
                n_lost += had_records
        if n_lost:
            warnings.warn(
                f"{self.folder}: the records of {n_lost} finished groups are missing: they are sampled again",
                stacklevel=4,
            )
        # Checked before the file is replaced: an error leaves the ledger as it was.
        self._check_unconsumed()
        # One dispatch and one outcome a place, then the steps that used them, in order.
        lines: list[dict[str, Any]] = [{"event": "rewrite", "continues": self._marks}]
        lines += [line for entry in self.entries.values() for line in _entry_lines(entry)]
        places_by_step: dict[int, list[int]] = {}
        for entry in self.entries.values():
            if entry.consumed_step is not None and entry.state != "dropped":
                places_by_step.setdefault(entry.consumed_step, []).append(entry.place)
        lines += [
            {"event": "consume", "step": used_step, "places": places}
            for used_step, places in sorted(places_by_step.items())
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text, self._digest = write_chain(lines)
        write_atomic(self.path, text)

    def _check_unconsumed(self) -> None:
        """Check the files of all finished places that no step has used; warn of those without digests."""
        unconsumed_entries = [e for e in self.entries.values() if e.consumed_step is None and e.state == "finished"]
        for entry in unconsumed_entries:
            self._check_files(entry.place)
        if without_digests := [e for e in unconsumed_entries if not e.files]:
            warnings.warn(
                f"{self.path}: {len(without_digests)} finished groups have no digests, as in runs of earlier versions: "
                "changes of their records can't be detected",
                stacklevel=5,
            )

    def _is_usable(self, entry: Entry) -> bool:
        return entry.state == "failed" or (entry.state == "finished" and self.records_path(entry.place).is_file())

    def remove_consumed(self, step: int) -> None:
        """Delete the records of draws whose places were all used up to `step`, the oldest checkpoint's."""
        entries_by_step: dict[int, list[Entry]] = {}
        for entry in self.entries.values():
            entries_by_step.setdefault(entry.step, []).append(entry)
        for drawn_step, entries in entries_by_step.items():
            folder = self.folder / f"step-{drawn_step:06d}"
            if all(e.consumed_step is not None and e.consumed_step <= step for e in entries) and folder.is_dir():
                shutil.rmtree(folder)

    def _append(self, line: Mapping[str, Any]) -> None:
        """Append a line and flush it to the disk before the run goes on."""
        is_new_file = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text, digest = write_chain([line], self._digest)
        try:
            with open(self.path, "ab") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            self._digest = digest
        except OSError as error:
            raise CheckpointError(f"{self.path} not written: {error.strerror}: free space, then gxpo resume") from error
        # A new file's name is in its folder, which has its own buffer.
        if is_new_file:
            _flush_to_disk(self.path.parent)


def read(path: Path) -> dict[int, Entry]:
    """Read a ledger's entries by place; a last line that a kill cut short is left out."""
    return _read(path)[0]


def _read(path: Path) -> tuple[dict[int, Entry], set[str]]:
    """Read entries by place, and all digests that a checkpoint of this ledger may have."""
    entries: dict[int, Entry] = {}
    digests: set[str] = set()
    try:
        for number, text, digest in read_chain(path.read_bytes()):
            try:
                line = json.loads(text)
                digests |= {*line["continues"]} if line["event"] == "rewrite" else set()
                _apply_event(line, entries)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                excerpt = text[:60].decode("utf-8", "backslashreplace")
                raise CheckpointError(f"{path}:{number}: not a line of a ledger: {excerpt!r}") from error
            if digest is not None:
                digests.add(digest)
    except BrokenChain as error:
        raise CheckpointError(f"{path}:{error}: {_REMEDY} {path.parent.parent}") from None
    return entries, digests


def _file_digests(path: Path) -> list[str]:
    """Return digests of the lines of a JSONL file; one digest of the whole for other files."""
    lines = path.read_bytes().splitlines(keepends=True) if path.suffix == ".jsonl" else [path.read_bytes()]
    return [hashlib.sha256(line).hexdigest()[:32] for line in lines]


def _first_difference(one: list[str], other: list[str]) -> int:
    """Return the number from 1 of the first line in which two lists of digests differ."""
    same = (a == b for a, b in zip(one, other, strict=False))
    return next((n for n, is_same in enumerate(same, 1) if not is_same), min(len(one), len(other)) + 1)


def _apply_event(line: dict[str, Any], entries: dict[int, Entry]) -> None:
    """Update entries by one line of a ledger; the keys of `line` are used up."""
    event = line.pop("event")
    if event == "rewrite":
        return
    if event == "dispatch":
        entries[line["place"]] = Entry(**line)
    elif event == "consume":
        for place in line["places"]:
            entry = entries[place]
            entry.consumed_step = line["step"]
            entry.state = "consumed" if entry.state == "finished" else entry.state
    elif event == "drop":
        entry, step = entries[line.pop("place")], line.pop("step")
        entry.state, entry.consumed_step, entry.cost = "dropped", step, Cost(**line)
    elif event in ("finish", "fail"):
        entry = entries[line.pop("place")]
        entry.version, entry.reason = line.pop("version", entry.version), line.pop("why", "")
        entry.files = line.pop("files", {})
        entry.state, entry.cost = "failed" if event == "fail" else "finished", Cost(**line)
    else:
        raise ValueError(event)


def _entry_lines(entry: Entry) -> Iterable[dict[str, Any]]:
    """Yield the lines that give an entry: its dispatch and its outcome. Which step used it is no part of them."""
    yield {
        "event": "dispatch",
        **{name: getattr(entry, name) for name in ("place", "step", "task", "draws", "seed", "version")},
    }
    if entry.state == "failed":
        yield {"event": "fail", "place": entry.place, "why": entry.reason, **asdict(entry.cost)}
    elif entry.state == "dropped":
        yield {"event": "drop", "place": entry.place, "step": entry.consumed_step, **asdict(entry.cost)}
    else:
        cost = asdict(entry.cost)
        yield {"event": "finish", "place": entry.place, "version": entry.version, "files": entry.files, **cost}


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
