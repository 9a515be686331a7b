"""`read`: turn a run's directory, or one of its files, into a `RunLog`."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gxpo.base.errors import RecordError
from gxpo.doctor.derived import add_curves, complete
from gxpo.doctor.readers import configs, keys
from gxpo.doctor.readers.files import VERIFIED, candidates, dump_source, read_file
from gxpo.doctor.readers.keys import trainer
from gxpo.doctor.readers.messages import MOST_MESSAGES
from gxpo.doctor.readers.table import Columns, Table, flat
from gxpo.doctor.rollout_files import rollouts
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import NAMES, Series

LOOKED_FOR = (
    "trainer_state.json, metrics as JSON lines, CSV or TensorBoard events, stores of MLflow and trackio, consoles, "
    "dumps of rollouts"
)
# Kinds of files, the most exact first: of a figure that two files have, the first kind's counts.
_ORDER = ("state", "rows", "table", "events", "console")
# Figures that do not tell runs apart: equal in different runs (schedules) or different in logs of one (clocks).
_UNINFORMATIVE = re.compile(
    r"lr$|learning_rate|epoch|step|time|timing|perf/|memory|num_tokens|runtime|per_second|_timestamp|eval_tasks",
    re.I,
)


def read(path: str | Path, *, mapping: Mapping[str, str] | None = None, run: str | None = None) -> RunLog:
    """Read a file, or a directory and those below it.

    Raises `RecordError` where there is nothing at `path`, or several runs, or where `mapping` has an unknown name or a
    key that no file has. A path in which nothing can be read gives a log with an empty `read` and a note.

    mapping  name of `gxpo.doctor.series.NAMES` -> the trainer's key that has it, before what is known of its keys
    run      name of the run to read, of a store or table that holds several
    """
    mapping = dict(mapping or {})
    _check_names(mapping)
    root = Path(path)
    try:
        exists = root.is_dir() or root.is_file()
    except (OSError, ValueError):
        exists = False
    if not exists:
        raise RecordError(f"{path}: no such file or directory")
    files, notes = candidates(root)
    base = root if root.is_dir() else root.parent
    tables: dict[str, Table] = {}
    other_files: list[Path] = []
    unknown_tables: dict[str, Table] = {}
    for file in files:
        table = read_file(file, run)
        if table is None:
            other_files.append(file)
        elif not table.is_known:
            unknown_tables[file.relative_to(base).as_posix()] = table
            other_files.append(file)  # questions with answers that are numbers look like figures, too
        else:
            tables[file.relative_to(base).as_posix()] = table
    tables |= _unknown_to_use(unknown_tables, tables, mapping)
    log = RunLog(notes=notes, verified=_verified(base))
    # a table without rows is a configuration; a console text may be both
    configurations = {name: table for name, table in tables.items() if not table.rows}
    if not root.is_dir():
        configurations |= _configurations_beside(root, base)
    _number(tables, configurations)
    # runs are told apart by rows that have their steps, so that numbering comes first
    members = _one_run({name: table for name, table in tables.items() if table.rows}, str(path))
    log.source = keys.source(set().union(*(table.columns for table in members.values())))
    if trainer(log.source).has_prefixes:
        for table in members.values():
            table.keep_prefixes()
    # the form of a file may tell the trainer where its keys are those of others, too
    if log.source == "unknown" and "verl" in set().union(*(table.hints for table in members.values())):
        log.source = "verl"
    _add_settings(log, members, configurations)
    add_series(log, members, mapping)
    # after metrics and settings: these tell reward functions, weights and evaluations of the rollouts
    _add_rollouts(log, other_files, base)
    add_curves(log)
    # notes of files of other runs or of none would mislead
    tables_read = {n: t for n, t in {**members, **configurations}.items() if n in log.read or t.notes}
    for name, table in tables_read.items():
        if table.n_unreadable:
            log.notes.append(f"{name}: {table.n_unreadable:,} lines or rows could not be read")
        if table.is_torn:
            log.notes.append(f"{name}: the end is cut short and was left out")
        log.notes += [f"{name}: {note}" for note in table.notes]
    log.messages = list(dict.fromkeys(m for table in tables_read.values() for m in table.messages))[:MOST_MESSAGES]
    if not log.read:
        count_text = f"none of {len(files):,} files" if root.is_dir() else "nothing"
        log.notes.append(f"{path}: {count_text} could be read; looked for: {LOOKED_FOR}")
    return log


def _verified(folder: Path) -> dict[str, Any]:
    """Result of `gxpo verify` on the run of this folder; {} where there is none, or one that is no such result."""
    try:
        result = json.loads((folder / VERIFIED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    steps = result.get("steps") if isinstance(result, dict) else None
    return result if isinstance(steps, list) and all(isinstance(s, dict) and "cause" in s for s in steps) else {}


def _check_names(mapping: Mapping[str, str]) -> None:
    """Raise `RecordError` for a name that the doctor does not know."""
    for name in mapping:
        inner = name.removeprefix("eval/")
        if name not in NAMES and inner not in NAMES and not inner.startswith(("component/", "component_std/")):
            raise RecordError(f"--map {name}={mapping[name]}: no name {name!r}{_nearest(name, NAMES)}")


def _nearest(word: str, words: Collection[str]) -> str:
    """Ask for the most alike of several words; "" where none is."""
    from rapidfuzz import process

    match = process.extractOne(word, list(words), score_cutoff=50)
    return f"; did you mean {match[0]!r}?" if match is not None else ""


def _unknown_to_use(
    unknown_tables: Mapping[str, Table], tables: Mapping[str, Table], mapping: Mapping[str, str]
) -> dict[str, Table]:
    """Tables of figures that no trainer is known to write, as far as they are needed: those with a key that the user
    mapped; without any other figures the longest."""
    tables_with_key = {
        name: table
        for name, table in unknown_tables.items()
        if any(key in table.columns or key in table.spellings.values() for key in mapping.values())
    }
    if tables_with_key or any(table.rows for table in tables.values()) or not unknown_tables:
        return tables_with_key
    longest = max(unknown_tables, key=lambda name: len(unknown_tables[name].rows))
    return {longest: unknown_tables[longest]}


def _configurations_beside(file: Path, base: Path) -> dict[str, Table]:
    """Read the configurations beside a file that was given alone."""
    tables = {}
    for name in ("config.yaml", "config.yml", "config.json", "args.json", "args.yaml", ".hydra/config.yaml"):
        path = base / name
        if path != file and path.is_file():
            table = read_file(path)
            if table is not None and not table.rows and table.settings:
                tables[name] = table
    return tables


def _number(tables: Mapping[str, Table], configurations: Mapping[str, Table]) -> None:
    """Number the rows that carry no step, by `logging_steps` or progress bars."""
    unnumbered = [table for table in tables.values() if table.rows and not table.is_numbered]
    if not unnumbered:
        return
    # one value in all files, or none is believed
    values = {configs.value(t.settings, "logging_steps") for t in (*tables.values(), *configurations.values())}
    intervals = [v for v in values if isinstance(v, (int, float)) and v >= 1]
    for table in unnumbered:
        table.notes += _renumber(table, intervals[0] if len(intervals) == 1 else None)


def _add_settings(log: RunLog, members: Mapping[str, Table], configurations: Mapping[str, Table]) -> None:
    """Fill `config` and `source` from all files with settings, the nearest to the root first, then from consoles."""
    source = log.source
    by_depth = sorted(configurations.items(), key=lambda item: (item[0].count("/"), item[0]))
    for name, table in [*by_depth, *members.items()]:
        writer = configs.trainer(table.settings) if table.settings else None
        table.settings = settings_in_phase(table.settings, members)
        # a configuration tells the trainer of figures that it names, or of a run without any
        columns = set().union(*(member.columns for member in members.values()))
        if source == "unknown" and writer is not None and (not columns or any(map(trainer(writer).has, columns))):
            source = writer
        # transformers' arguments also lie beside runs of other trainers, whose keys they share
        has_settings = table.settings and writer in (source, None, "trl")
        settings = configs.translate(table.settings, source) if has_settings else {}
        max_steps = table.settings.get("trainer_state.max_steps")
        if isinstance(max_steps, (int, float)) and max_steps > 0:
            settings.setdefault("max_steps", max_steps)
        for key, value in settings.items():
            if key in log.config and log.config[key] != value:
                log.notes.append(f"{name}: {key} is {value!r} there, but {log.config[key]!r} elsewhere, which counts")
            log.config.setdefault(key, value)
        if settings or table.messages:
            log.read.append(name)
    log.source = source
    # unsloth patches TRL and writes its keys: only its banner on the console tells
    hints = set().union(*(table.hints for table in members.values()))
    if log.source == "trl" and "unsloth" in hints:
        log.source = "unsloth"
    elif log.source == "trl" and any(key.startswith("train_speed(") for m in members.values() for key in m.columns):
        log.source = "ms-swift"
    log.read = sorted({*log.read, *members})


def settings_in_phase(settings: Mapping[str, Any], members: Mapping[str, Table]) -> dict[str, Any]:
    """Settings of the phase that a gxpo run is in by its figures, of the last one without any (see `_last_phase`)."""
    phases = settings.get("phases")
    if not isinstance(phases, list) or not phases:
        return dict(settings)
    numbers = [n for member in members.values() for n in member.columns.get("phase", ([], []))[1]]
    return {**settings, **flat(phases[int(min(max(numbers, default=len(phases)), len(phases))) - 1])}


def add_series(log: RunLog, members: Mapping[str, Table], mapping: Mapping[str, str] | None = None) -> None:
    """Add the series of the files of one run; `mapping` of names to keys is before what is known of the keys."""
    columns, notes = _merge_tables(members)
    log.notes += notes
    begin = _last_phase(columns)
    if begin is not None:
        log.phase_begin = begin
        log.notes.append(f"phase {max(columns['phase'][1]):.0f}, from step {begin}, is looked at, not those before it")
    phase_columns = _from_step(columns, begin)
    spelling = {key: text for table in members.values() for key, text in table.spellings.items()}
    name_of_key = _mapped_keys(mapping or {}, phase_columns, spelling)
    if log.config.get("scale") == "batch" and "frac_reward_zero_std" in phase_columns:
        log.notes.append("frac_reward_zero_std is of the whole batch with this scaling, not of groups: not used")
        steps, values = phase_columns.pop("frac_reward_zero_std")
        log.raw["frac_reward_zero_std"] = Series(np.array(steps), np.array(values), "frac_reward_zero_std")
    name_of = keys.names(phase_columns, log.source, name_of_key)
    for key, (steps, values) in phase_columns.items():
        figures = np.array(steps, dtype=float), np.array(values, dtype=float)
        if key in name_of:
            # trackers rewrite TRL's keys, which is undone; of an unknown program the key stays as it is
            log.series[name_of[key]] = Series(*figures, spelling[key] if log.source == "unknown" else key)
        else:
            log.raw[key] = Series(*figures, spelling[key])
    for name, (steps, values, text) in keys.formula_figures(phase_columns, log.source, log.series).items():
        log.series[name] = Series(steps, values, text)
    evaluations, notes = keys.evaluations(phase_columns, log.source)
    for name, (steps, values, key) in evaluations.items():
        if name in log.series:
            continue
        log.series[name] = Series(np.array(steps, dtype=float), np.array(values, dtype=float), key)
        log.raw.pop(key, None)
    log.notes += notes
    complete(log)


def _mapped_keys(mapping: Mapping[str, str], columns: Columns, spelling: Mapping[str, str]) -> dict[str, str]:
    """Key of a column -> the name that the user gave it, by the key as it is written or as the trainer has it.

    `RecordError` for a key that no file has.
    """
    name_of_key: dict[str, str] = {}
    for name, wanted_key in mapping.items():
        key = next((k for k in columns if wanted_key in (k, spelling.get(k))), None)
        if key is None:
            everything = {*columns, *spelling.values()}
            raise RecordError(
                f"--map {name}={wanted_key}: no file has a column {wanted_key!r}{_nearest(wanted_key, everything)}"
            )
        name_of_key[key] = name
    return name_of_key


def _last_phase(columns: Columns) -> int | None:
    """First step of the last phase of a gxpo run with phases; None for a run without, or in its first one.

    The settings that were read are its, and a change from one phase to the next is no sickness.
    """
    steps, phases = columns.get("phase", ([], []))
    if not phases or max(phases) == 1:
        return None
    return int(min(s for s, phase in zip(steps, phases, strict=True) if phase == max(phases)))


def _from_step(columns: Columns, begin: int | None) -> Columns:
    """Keep the rows from a step on, and the evaluation before it."""
    if begin is None:
        return columns
    kept_columns = {}
    for key, (steps, values) in columns.items():
        first = begin - 1 if key.startswith("eval_") else begin
        rows = [(s, v) for s, v in zip(steps, values, strict=True) if s >= first]
        if rows:
            kept_columns[key] = ([s for s, _ in rows], [v for _, v in rows])
    return kept_columns


def _add_rollouts(log: RunLog, files: list[Path], base: Path) -> None:
    """Add a sample of the rollouts, from the files that hold no metrics."""
    if not files:
        return
    size, weights = log.config.get("group_size"), log.config.get("reward_weights")
    log.rollouts, dumps, notes = rollouts(
        files,
        base,
        group_size=size if isinstance(size, int) else None,
        reward_weights=weights if isinstance(weights, list) else None,
        components=log.components() or None,
        begin=log.phase_begin,
        evaluated={int(s) for n in log.series if n.startswith("eval/") for s in log.steps(n)} or None,
    )
    log.read = sorted({*log.read, *(f.relative_to(base).as_posix() for f in dumps)})
    log.notes += notes
    if log.source == "unknown" and dumps:
        log.source = dump_source(dumps[0])


def _renumber(table: Table, logging_steps: float | None) -> list[str]:
    """Give counted rows the trainer's steps, from progress bars or `logging_steps`; returns notes.

    every  `logging_steps`, if a configuration or a state has it
    """
    if not table.rows:
        return []
    count = int(max(step for step, _ in table.rows))
    bars = _first_after(table.bars)
    steps = [bars.get(row) for row in range(1, count + 1)]
    bar_steps = [s for s in steps if s is not None]
    if len(bar_steps) == count > 1 and bar_steps == sorted(set(bar_steps)):
        step_of_row = {0.0: 0.0} | {row: float(step) for row, step in enumerate(bar_steps, 1)}
        table.rows = [(step_of_row[step], row) for step, row in table.rows]
        table.is_numbered = True
        return []
    if logging_steps is not None:
        table.rows = [(step * logging_steps, row) for step, row in table.rows]
        table.is_numbered = True
        if logging_steps == 1:
            return []
        return [f"rows have no step number: they were numbered by logging_steps ({logging_steps:g})"]
    return ["rows have no step number: they were numbered in their order"]


def _first_after(bars: list[tuple[int, int, int]]) -> dict[int, int]:
    """Map each row to the step that the training's progress bar shows when it is next drawn.

    Bars of evaluations have another length and come later.
    """
    if not bars:
        return {}
    first: dict[int, tuple[int, int]] = {}
    for row, step, length in bars:
        first.setdefault(row, (step, length))
    usual = Counter(length for _, length in first.values()).most_common(1)[0][0]
    return {row: step for row, (step, length) in first.items() if length == usual}


def _one_run(files: Mapping[str, Table], path: str) -> dict[str, Table]:
    """Return the files if they are of one run; `RecordError` with the names of the runs if they are of several."""
    clusters: list[dict[str, Table]] = []
    # the longest files first: later ones have most to be compared with
    for name, table in sorted(files.items(), key=lambda item: (-len(item[1].rows), item[0])):
        homes: list[tuple[bool, int, dict[str, Table]]] = []
        for cluster in clusters:
            verdicts = [
                _are_of_one_run(name, table, other_name, other_table) for other_name, other_table in cluster.items()
            ]
            near = max(_shared_depth(name, other_name) for other_name in cluster)
            # without a common figure a file joins the nearest run, but not one of several that share no directory
            if True in verdicts or (False not in verdicts and (near or "/" not in name or len(clusters) == 1)):
                homes.append((True in verdicts, near, cluster))
        if homes:
            max(homes, key=lambda home: home[:2])[2][name] = table
        else:
            clusters.append({name: table})
    if len(clusters) > 1:
        titles = sorted(_title(cluster) for cluster in clusters)
        titles_text = ", ".join(titles[:8]) + (", ..." if len(titles) > 8 else "")
        raise RecordError(f"{path} holds {len(clusters)} runs: {titles_text}: give one of them")
    return clusters[0] if clusters else {}


def _shared_depth(a: str, b: str) -> int:
    """Number of directories that two files share."""
    count = 0
    for x, y in zip(PurePosixPath(a).parent.parts, PurePosixPath(b).parent.parts, strict=False):
        if x != y:
            break
        count += 1
    return count


def _title(cluster: Mapping[str, Table]) -> str:
    """Name a run: the directory that its files share, or the first file."""
    parents = [PurePosixPath(name).parent.parts for name in cluster]
    common_parts = []
    for parts in zip(*parents, strict=False):
        if len(set(parts)) > 1:
            break
        common_parts.append(parts[0])
    return "/".join(common_parts) or min(cluster)


def _are_of_one_run(name: str, table: Table, other_name: str, other_table: Table) -> bool | None:
    """Tell by the figures of their common steps if two files are of one run; None if there is nothing to compare."""
    if table.is_numbered != other_table.is_numbered:
        return None  # the steps of one are only counted
    ours, theirs = table.columns, other_table.columns
    n_agree = n_differ = 0
    for key in ours.keys() & theirs.keys():
        if _UNINFORMATIVE.search(key):
            continue
        value_by_step = dict(zip(*theirs[key], strict=True))
        values, other_values = ours[key][1], theirs[key][1]
        if len(set(values)) < 2 and len(set(other_values)) < 2 and values[:1] == other_values[:1]:
            continue  # a constant tells nothing
        # figures are rounded in some files, so that most must agree, not all
        for step, value in zip(*ours[key], strict=True):
            if step in value_by_step:
                if _close(value, value_by_step[step]):
                    n_agree += 1
                else:
                    n_differ += 1
    # two files of one name in two directories are two runs (seeds), if nothing says otherwise; seeds log the same keys,
    # the processes of one run, as Trinity-RFT's explorer and trainer, have no key in common
    if n_agree + n_differ == 0:
        is_elsewhere = PurePosixPath(name).parent != PurePosixPath(other_name).parent and bool(
            ours.keys() & theirs.keys()
        )
        twins = PurePosixPath(name).name == PurePosixPath(other_name).name and table.kind == other_table.kind == "rows"
        return False if is_elsewhere and twins else None
    if n_agree < n_differ and PurePosixPath(name).parent == PurePosixPath(other_name).parent:
        first, second = sorted([_span(table), _span(other_table)])
        if first[0] < second[0] and first[1] < second[1]:
            return None  # after a resume the last steps were made again
    return n_agree >= n_differ


def _span(table: Table) -> tuple[float, float]:
    """First and last step of a table."""
    steps = [step for step, _ in table.rows]
    return min(steps), max(steps)


def _close(a: float, b: float) -> bool:
    """True if equal up to the digits that a console drops: four are left in a dict line, three decimals in verl's."""
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= max(6e-4 * max(abs(a), abs(b)), 6e-4)


def _merge_tables(members: Mapping[str, Table]) -> tuple[Columns, list[str]]:
    """Merge the figures of all files of a run; also notes of files that disagree.

    Of a key in several files, the first kind of `_ORDER` counts, of two files of a kind the longer; the others add the
    steps that are missing there.
    """
    ranked = sorted(members.items(), key=lambda m: (_ORDER.index(m[1].kind), -len(m[1].rows), m[0]))
    columns: Columns = {}
    file_of: dict[str, str] = {}  # the file whose figures of a key count
    differences: dict[tuple[str, str], list[tuple[int, str, tuple[float, float, float]]]] = {}
    numbered_keys = {key for _, table in ranked if table.is_numbered for key in table.columns}
    for name, table in ranked:
        for key, (steps, values) in table.columns.items():
            if not table.is_numbered and key in numbered_keys:
                continue  # its steps are only counted
            if key not in columns:
                columns[key], file_of[key] = (steps, values), name
                continue
            values_so_far = dict(zip(*columns[key], strict=True))
            pairs = [(s, values_so_far[s], v) for s, v in zip(steps, values, strict=True) if s in values_so_far]
            differing_pairs = [] if _UNINFORMATIVE.search(key) else [pair for pair in pairs if _differ(*pair[1:])]
            if differing_pairs:
                differences.setdefault((file_of[key], name), []).append((len(differing_pairs), key, differing_pairs[0]))
            further_points = [(s, v) for s, v in zip(steps, values, strict=True) if s not in values_so_far]
            if further_points:
                points = [*zip(*columns[key], strict=True), *further_points]
                points.sort(key=lambda pair: pair[0])
                columns[key] = ([s for s, _ in points], [v for _, v in points])
    notes = []
    for (first, second), apart_of_keys in differences.items():
        count, key, (step, a, b) = max(apart_of_keys, key=lambda entry: (entry[0], "reward" in entry[1], entry[1]))
        steps = f"{count} step{'s' * (count > 1)}"
        notes.append(
            f"{first} and {second} differ in {steps}: {key} is {a:.4g} and {b:.4g} at {step:.0f}; {first} counts"
        )
    return columns, notes


def _differ(a: float, b: float) -> bool:
    """True if two figures of a step differ by more than any rounding; a missing one does not."""
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) > max(0.01 * max(abs(a), abs(b)), 1e-3)
