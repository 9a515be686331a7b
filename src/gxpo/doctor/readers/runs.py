"""Which files are of one run, and their figures merged."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from gxpo.base.errors import RecordError
from gxpo.doctor.readers.found import Found
from gxpo.doctor.readers.keys import own

Columns = dict[str, tuple[list[float], list[float]]]

# Where two files have a figure of one step: first those that keep all digits.
_ORDER = ("state", "rows", "table", "events", "console")
# Figures that agree between different runs (schedules) or differ between logs of one (clocks).
_UNTELLING = re.compile(
    r"lr$|learning_rate|epoch|step|time|timing|perf/|memory|num_tokens|runtime|per_second|_timestamp|eval_tasks",
    re.I,
)


def one_run(files: Mapping[str, Found], path: str) -> dict[str, Found]:
    """The files, if they are of one run; `RecordError` with the names of the runs if they are of several."""
    clusters: list[dict[str, Found]] = []
    for name, found in sorted(files.items(), key=lambda item: (-len(item[1].rows), item[0])):
        homes: list[tuple[bool, int, dict[str, Found]]] = []
        for cluster in clusters:
            verdicts = [_same(name, found, other, one) for other, one in cluster.items()]
            near = max(_shared(name, other) for other in cluster)
            # nothing to compare: then it goes with what is nearest, but not to one of several runs far from it
            if True in verdicts or (False not in verdicts and (near or "/" not in name or len(clusters) == 1)):
                homes.append((True in verdicts, near, cluster))
        if homes:
            max(homes, key=lambda home: home[:2])[2][name] = found
        else:
            clusters.append({name: found})
    if len(clusters) > 1:
        titles = sorted(_title(cluster) for cluster in clusters)
        shown = ", ".join(titles[:8]) + (", ..." if len(titles) > 8 else "")
        raise RecordError(f"{path} holds {len(clusters)} runs: {shown}: give one of them")
    return clusters[0] if clusters else {}


def _shared(a: str, b: str) -> int:
    """Directories that two files share."""
    count = 0
    for x, y in zip(PurePosixPath(a).parent.parts, PurePosixPath(b).parent.parts, strict=False):
        if x != y:
            break
        count += 1
    return count


def _title(cluster: Mapping[str, Found]) -> str:
    """The directory that the files of a run share, or the first file."""
    parents = [PurePosixPath(name).parent.parts for name in cluster]
    shared = []
    for parts in zip(*parents, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared) or min(cluster)


def _same(name: str, found: Found, other: str, one: Found) -> bool | None:
    """Whether two files are of one run by the figures of the steps that both have; None: nothing to compare."""
    ours, theirs = _columns(found), _columns(one)
    agree = differ = 0
    if found.numbered != one.numbered:
        return None  # the steps of one are only counted
    for key in ours.keys() & theirs.keys():
        if _UNTELLING.search(key):
            continue
        known = dict(zip(*theirs[key], strict=True))
        here = ours[key]
        if len(set(here[1])) < 2 and len(set(theirs[key][1])) < 2 and here[1][:1] == theirs[key][1][:1]:
            continue  # a constant tells nothing
        for step, value in zip(*here, strict=True):
            if step in known:
                if close(value, known[step]):
                    agree += 1
                else:
                    differ += 1
    if agree + differ == 0:
        apart = PurePosixPath(name).parent != PurePosixPath(other).parent
        twins = PurePosixPath(name).name == PurePosixPath(other).name and found.kind == one.kind == "rows"
        return False if apart and twins else None
    if agree < differ and PurePosixPath(name).parent == PurePosixPath(other).parent:
        first, second = sorted([_span(found), _span(one)])
        if first[0] < second[0] and first[1] < second[1]:
            return None  # after a resume the last steps were made again
    return agree >= differ


def _span(found: Found) -> tuple[float, float]:
    steps = [step for step, _ in found.rows]
    return min(steps), max(steps)


def close(a: float, b: float) -> bool:
    """Equal but for the digits that a console leaves away: four of a dict line, three decimals of verl's."""
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= max(6e-4 * max(abs(a), abs(b)), 6e-4)


def _columns(found: Found) -> Columns:
    out: Columns = {}
    own_keys: dict[str, str] = {}
    for step, row in found.rows:
        for key, value in row.items():
            name = own_keys.get(key)
            if name is None:
                name = own_keys[key] = own(key)
            column = out.get(name)
            if column is None:
                column = out[name] = ([], [])
            column[0].append(step)
            column[1].append(value)
    return out


def merged(members: Mapping[str, Found]) -> Columns:
    """Figures of all files of a run: of a key that several have, those of the first kind of `_ORDER`, of two files of a
    kind the longer; the others add the steps that it has not."""
    ranked = sorted(members.items(), key=lambda m: (_ORDER.index(m[1].kind), -len(m[1].rows), m[0]))
    out: Columns = {}
    columns = {name: _columns(found) for name, found in ranked}
    numbered = {key for name, found in ranked if found.numbered for key in columns[name]}
    for name, found in ranked:
        for key, (steps, values) in columns[name].items():
            if not found.numbered and key in numbered:
                continue  # its steps are only counted
            if key not in out:
                out[key] = (steps, values)
                continue
            known = set(out[key][0])
            more = [(s, v) for s, v in zip(steps, values, strict=True) if s not in known]
            if more:
                joined = [*zip(*out[key], strict=True), *more]
                joined.sort(key=lambda pair: pair[0])
                out[key] = ([s for s, _ in joined], [v for _, v in joined])
    return out
