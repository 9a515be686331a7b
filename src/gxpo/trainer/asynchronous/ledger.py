"""The ledger of an asynchronous run: which groups were dispatched, finished, dropped and consumed, in an append-only
file.

`rollouts/ledger.jsonl` holds a JSON object a line, flushed to the disk before the run goes on:

    {"event": "dispatch", "place": 6, "step": 4, "task": "arithmetic/37", "draws": 1, "seed": 0, "version": 2}
    {"event": "finish", "place": 6, "version": 2, "generated_tokens": 812, ...}
    {"event": "fail", "place": 6, "why": "TaskError: ...", ...}    its rollout raised; nothing is trained
    {"event": "drop", "place": 6, "step": 9, ...}                  over age at step 9
    {"event": "consume", "step": 5, "places": [6, 7, 8, 9]}        the update of step 5 is of these groups

A *place* numbers the tasks in the order in which they were drawn. The records of a finished one are beside the ledger,
in `rollouts/.groups/step-000004/000006.jsonl`, and are there before its line is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gxpo.errors import CheckpointError
from gxpo.forest import Forest
from gxpo.records import dump, load
from gxpo.trainer.checkpoint import write_atomic

LEDGER, GROUPS = "rollouts/ledger.jsonl", "rollouts/.groups"


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


class Ledger:
    """The ledger of a run directory, for its one writer; `entries` by place is what its lines say together."""

    def __init__(self, run: Path) -> None:
        self.path, self.folder = run / LEDGER, run / GROUPS
        self.entries: dict[int, Entry] = {}

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
        self._append({"event": "finish", "place": place, "version": version, **asdict(cost)})
        entry = self.entries[place]
        entry.state, entry.version, entry.cost = "finished", version, cost

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
        """The rollouts of a finished place as they were written."""
        return load(self.file(place))

    def file(self, place: int) -> Path:
        """Where the records of a place are."""
        return self.folder / f"step-{self.entries[place].step:06d}" / f"{place:06d}.jsonl"

    # ------------------------------------------------------------ after a checkpoint
    def go_back(self, step: int) -> None:
        """What the run knew at `step`: places used later are as they were before; what was not finished is forgotten,
        to be dispatched again. The file is replaced by one that says that."""
        self.entries = read(self.path) if self.path.is_file() else {}
        for place, entry in list(self.entries.items()):
            if entry.used is not None and entry.used > step:
                entry.used = None
                entry.state = "failed" if entry.why else "finished" if self.file(place).is_file() else "dispatched"
            if entry.used is None and not self._whole(entry):
                del self.entries[place]
        lines = [line for entry in self.entries.values() for line in _lines(entry)]
        used: dict[int, list[int]] = {}
        for entry in self.entries.values():
            if entry.used is not None and entry.state != "dropped":
                used.setdefault(entry.used, []).append(entry.place)
        lines += [{"event": "consume", "step": at, "places": places} for at, places in sorted(used.items())]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, "".join(json.dumps(line) + "\n" for line in lines))

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
        try:
            with open(self.path, "ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(f"{self.path} not written: {error.strerror}: free space, then gxpo resume") from error
        if fresh:
            _flush(self.path.parent)


def read(path: Path) -> dict[int, Entry]:
    """Entries by place, of the lines of a ledger; a last line that a kill has cut short is left out."""
    entries: dict[int, Entry] = {}
    lines = path.read_bytes().split(b"\n")
    for number, text in enumerate(lines[:-1], 1):
        try:
            _apply(json.loads(text), entries)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}:{number}: not a line of a ledger: {text.decode()[:60]!r}") from error
    return entries


def _apply(line: dict[str, Any], entries: dict[int, Entry]) -> None:
    event = line.pop("event")
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
        yield {"event": "finish", "place": entry.place, "version": entry.version, **asdict(entry.cost)}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
