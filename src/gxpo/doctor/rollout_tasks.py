"""Reference answers of rollouts that have none, from files of tasks beside the run, by equal prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gxpo.doctor.rollout_json import PROMPTS
from gxpo.doctor.rollout_lines import LARGE, parsed
from gxpo.doctor.rollout_rows import first_reference, reference, text
from gxpo.doctor.rollout_sample import Dump
from gxpo.doctor.rollouts import Rollouts

_USER = "user: "


def with_references(r: Rollouts, files: Sequence[Dump]) -> tuple[Rollouts, list[Dump]]:
    """The rollouts with references, and the files that these are from; a prompt that has two answers gets none."""
    if not files or any(known is not None for known in r.reference):
        return r, []
    wanted = {_question(p) for p in r.prompt}
    answers: dict[str, set[str]] = {}
    used = []
    for dump in files:
        found = _answers(dump, wanted)
        used += [dump] if found else []
        for prompt, answer in found:
            answers.setdefault(prompt, set()).add(answer)
    one = {p: next(iter(a)) for p, a in answers.items() if len(a) == 1}
    return dataclasses.replace(r, reference=[one.get(_question(p)) for p in r.prompt]), used


def _question(prompt: str) -> str:
    """A prompt without what the run may have put around it: messages before the user's, outer blanks."""
    return prompt.rsplit(_USER, 1)[-1].strip()


def _answers(dump: Dump, wanted: set[str]) -> list[tuple[str, str]]:
    found = []
    if dump.size > LARGE:
        return []
    try:
        lines = dump.path.read_bytes().split(b"\n")
    except OSError:
        return []
    for line in lines:
        row = parsed(line)
        prompt = next((row[n] for n in PROMPTS if n in row), None) if row else None
        column = first_reference(list(row)) if row else None
        if row and prompt is not None and column and (question := _question(text(prompt))) in wanted:
            answer = reference(row[column])
            found += [] if answer is None else [(question, answer)]
    return found
