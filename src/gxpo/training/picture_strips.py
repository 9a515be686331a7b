"""Strips of pictures for `report.html`: what a policy made of each prompt in the first and in the last rollouts."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gxpo.base.errors import GxpoError
from gxpo.base.media import FOLDER, PICTURE, PICTURES
from gxpo.base.page import Html, paragraph, table
from gxpo.base.picture_files import png

SHOWN_TASKS, SHOWN_PICTURES = 10, 8
HEIGHT = 48  # pixels, the least that a strip is shown with


def strips(folder: Path) -> list[Html]:
    """Table of strips, a row for each prompt, or nothing where rollouts made no pictures.

    folder  a run's rollouts/: step-*.jsonl and media/
    """
    files = sorted(folder.glob("step-*.jsonl"))
    if not files:
        return []
    PICTURES.look_in(folder / FOLDER)
    before, after = (_by_task(file) for file in (files[0], files[-1]))
    if not before:
        return []
    # prompts of both first, so that before and after can be compared
    tasks = sorted(before, key=lambda task: (task not in after, len(task), task))[:SHOWN_TASKS]
    rows = [(task, strip(before[task]), strip(after.get(task, []))) for task in tasks]
    names = [file.stem.replace("-", " ") for file in (files[0], files[-1])]
    return [table(("task", *names), rows, caption="Pictures by prompt, before and after")]


def _by_task(file: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Records of rollouts that made a picture, by task; lines that can't be read are left out."""
    out: dict[str, list[Mapping[str, Any]]] = {}
    for line in file.read_bytes().splitlines():
        try:
            record = json.loads(line)
            if isinstance(record["info"][PICTURE], str):
                out.setdefault(str(record["task"]), []).append(record)
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    return out


def strip(records: list[Mapping[str, Any]]) -> Html:
    """One image of the first pictures side by side, with their mean reward; a word where there is none."""
    pictures = []
    for record in records[:SHOWN_PICTURES]:
        try:
            pictures.append(PICTURES.pixels(record["info"][PICTURE]))
        except GxpoError:  # a file that was moved or changed
            continue
    if not pictures:
        return paragraph("no picture")
    tallest = max(x.shape[0] for x in pictures)
    tiles = [np.pad(x, ((0, tallest - x.shape[0]), (0, 1), (0, 0)), constant_values=255) for x in pictures]
    factor = max(1, HEIGHT // tallest)
    pixels = np.concatenate(tiles, axis=1).repeat(factor, 0).repeat(factor, 1)
    rewards = [r["reward"] for r in records if isinstance(r.get("reward"), (int, float))]
    words = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "unscored"
    data = base64.b64encode(png(np.ascontiguousarray(pixels))).decode()
    return Html(
        f'<img alt="{len(pictures)} pictures" style="max-width:100%" src="data:image/png;base64,{data}"><br>{words}'
    )
