"""`rollouts`: find the files of a run that hold single rollouts and read a sample of them.

Formats: TRL's tables, verl's dumps, gxpo's records and plain tables (JSON Lines, a JSON array, CSV, Parquet).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path

from gxpo.base.errors import MissingExtra
from gxpo.doctor.rollout_json import PROMPTS, Sample, columns, kind, read_json
from gxpo.doctor.rollout_sample import KEPT, Dump, dump
from gxpo.doctor.rollout_tables import LARGE, first_rows, form, parse_object, table_names
from gxpo.doctor.rollout_trl import REQUIRED, Hints, Tables, read_trl
from gxpo.doctor.rollouts import Rollouts, Row, assemble, first_reference, reference, text

_USER = "user: "  # before the user's message in a rendered prompt
_ORDER = ("gxpo", "trl", "verl", "plain")  # the first kind that a run has is read: the others repeat its rollouts


def rollouts(
    files: Sequence[Path],
    root: Path,
    *,
    group_size: int | None = None,
    reward_weights: Sequence[float] | None = None,
    components: Collection[str] | None = None,
    evaluated: Collection[int] | None = None,
    begin: int | None = None,
    keep: int = KEPT,
) -> tuple[Rollouts | None, list[Path], list[str]]:
    """Read a sample of the rollouts in `files`; also the files they were found in, and notes.

    root            names of files are shown relative to it
    group_size      rows of a group in TRL's tables, where a configuration says so
    reward_weights  weights of the reward functions, in the order of their columns
    components      names of the reward functions, where the metrics say so
    evaluated       steps at which the metrics have an evaluation
    begin           step from which on rollouts are read, and the evaluation before it: those of earlier phases have the
                    credit of those
    keep            rollouts to keep: whole groups spread evenly over the steps, the first and the last step included
    """
    notes: list[str] = []
    kinds = _sorted_by_kind(files, root, notes)
    for name in _ORDER:
        dumps = [d for d in kinds.get(name, []) if begin is None or d.step < 0 or d.step >= begin - d.held_out]
        if not dumps:
            continue
        # what is left out is told, since its rollouts may be of another run
        for other_kind in _ORDER[_ORDER.index(name) + 1 :]:
            if kinds.get(other_kind):
                notes.append(f"{len(kinds[other_kind])} more files with rollouts ({other_kind}) were left out")
        if name == "trl":
            tables = read_trl(dumps, Hints(group_size, reward_weights, components, evaluated), keep)
            rows, total, is_exact, grouped_by = tables.rows, tables.total, tables.exact, "blocks"
            notes += _about_tables(tables)
        else:
            dumps = _held_out_apart(dumps) if name != "gxpo" else dumps
            lines = read_json(dumps, name, keep)
            rows, total, is_exact = lines.rows, lines.total, lines.exact
            grouped_by = "recorded" if name == "gxpo" else _grouped_by(dumps)
            notes += _about_lines(lines)
        sample = assemble(rows, round(total), grouped_by)
        if sample is None:
            notes.append(f"{len(dumps)} files look like rollouts ({name}) but no row could be read")
            return None, [], notes
        sample, tasks = _with_references(sample, kinds.get("tasks", []))
        if sample.total > len(sample):
            about = "" if is_exact else "about "
            notes.append(f"a sample of {len(sample):,} of {about}{sample.total:,} rollouts was read")
        return sample, [d.path for d in (*dumps, *tasks)], notes
    return None, [], notes


def _sorted_by_kind(files: Sequence[Path], root: Path, notes: list[str]) -> dict[str, list[Dump]]:
    """Group files by the kind of rollouts that they hold; an unreadable file is a note."""
    kinds: dict[str, list[Dump]] = {}
    kind_of_folder: dict[Path, str] = {}
    for path in files:
        try:
            name = _kind(path, kind_of_folder, notes)
            if name is not None:
                kinds.setdefault(name, []).append(dump(path, root))
        except OSError as error:
            notes.append(f"{path.name} could not be read: {error.strerror or error}")
    return kinds


def _kind(path: Path, kind_of_folder: dict[Path, str], notes: list[str]) -> str | None:
    """Kind of rollouts of a file: trl, verl, gxpo, plain, or tasks; None if it holds none."""
    file_form = form(path)
    if file_form is None:
        return None
    if file_form == "lines":
        return kind(first_rows(path, 4))
    # a run may have thousands of Parquet files: one of a folder is opened and the others are taken to be alike
    if file_form == "parquet" and path.parent in kind_of_folder:
        return kind_of_folder[path.parent]
    try:
        names = table_names(path) or []
    except MissingExtra as error:
        if str(error) not in notes:
            notes.append(str(error))
        return None
    name = "trl" if file_form == "parquet" and set(names) >= REQUIRED else kind([dict.fromkeys(names)])
    if file_form == "parquet" and name:
        kind_of_folder[path.parent] = name
    return name


def _held_out_apart(dumps: Sequence[Dump]) -> list[Dump]:
    """Mark the files of an evaluation that no file name identifies.

    Of two folders that share no prompt, the evaluation is the one whose files repeat the same prompts.
    """
    folders: dict[Path, list[Dump]] = {}
    for d in dumps:
        folders.setdefault(d.path.parent, []).append(d)
    if len(folders) != 2 or any(d.held_out for d in dumps):
        return list(dumps)
    # an evaluation writes fewer files than training; with equally many nothing tells them apart
    rare, often = sorted(folders.values(), key=len)
    if len(rare) < 2 or len(rare) == len(often):
        return list(dumps)
    first_prompts, last_prompts = _prompts(rare[0]), _prompts(rare[-1])
    training_prompts = _prompts(often[0]) | _prompts(often[-1])
    if (
        first_prompts
        and len(first_prompts & last_prompts) >= 0.5 * len(first_prompts)
        and not first_prompts & training_prompts
    ):
        return [*often, *(Dump(d.path, d.name, d.step, d.size, True) for d in rare)]
    return list(dumps)


def _prompts(d: Dump) -> set[str]:
    """Prompts of the first rows of a file."""
    return {str(r.get("input", r.get("prompt"))) for r in first_rows(d.path, 64)}


def _grouped_by(dumps: Sequence[Dump]) -> str:
    """Return "recorded" if the files have a column of groups, else "prompt"."""
    table_columns = columns(table_names(dumps[0].path) or ())
    return "recorded" if table_columns is not None and table_columns.group is not None else "prompt"


def _with_references(sample: Rollouts, files: Sequence[Dump]) -> tuple[Rollouts, list[Dump]]:
    """Add reference answers from files of tasks; also return the files used. A prompt with two answers gets none."""
    if not files or any(reference is not None for reference in sample.reference):
        return sample, []
    questions = {_question(p) for p in sample.prompt}
    answers: dict[str, set[str]] = {}
    files_used = []
    for file in files:
        pairs = _answers(file, questions)
        files_used += [file] if pairs else []
        for prompt, answer in pairs:
            answers.setdefault(prompt, set()).add(answer)
    # two answers to one prompt would make every check of references wrong for it
    answer_of = {prompt: next(iter(texts)) for prompt, texts in answers.items() if len(texts) == 1}
    return dataclasses.replace(sample, reference=[answer_of.get(_question(p)) for p in sample.prompt]), files_used


def _question(prompt: str) -> str:
    """Strip from a prompt what the run may have put around it: messages before the user's, outer blanks."""
    return prompt.rsplit(_USER, 1)[-1].strip()


def _answers(file: Dump, questions: set[str]) -> list[tuple[str, str]]:
    """Pairs (prompt, reference answer) of the tasks of a file that are among the questions of the rollouts."""
    pairs: list[tuple[str, str]] = []
    if file.size > LARGE:
        return []
    try:
        lines = file.path.read_bytes().split(b"\n")
    except OSError:
        return []
    for line in lines:
        row = parse_object(line)
        prompt = next((row[n] for n in PROMPTS if n in row), None) if row else None
        column = first_reference(list(row)) if row else None
        if row and prompt is not None and column and (question := _question(text(prompt))) in questions:
            answer = reference(row[column])
            pairs += [] if answer is None else [(question, answer)]
    return pairs


def _about_tables(tables: Tables) -> list[str]:
    """Notes on TRL's tables that were not read or not used."""
    notes = list(tables.notes)
    if tables.unread:
        notes.append(f"{tables.unread} tables of completions could not be read")
    if tables.repeats:
        notes.append(f"{tables.repeats} tables hold the rollouts of the table before them and were left out")
    if tables.partial:
        notes.append(f"{tables.partial} rows of groups that an evaluation cut were left out")
    return notes


def _about_lines(sample: Sample) -> list[str]:
    """Notes on files and lines that could not be read."""
    notes = []
    if sample.unread:
        notes.append(f"{sample.unread} files of rollouts could not be read")
    if sample.bad:
        notes.append(f"{sample.bad} lines of rollouts could not be read")
    return notes


__all__ = ["Row", "rollouts"]
