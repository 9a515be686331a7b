"""Figures that a run and its loggers have stored, for comparison."""

import json

import numpy as np
from tests.training.callbacks.parity import SMALL

KEYS = SMALL | {"logging.prices": {"generated_tokens": 5.0}, "logging.project": "sums"}
OURS = ("_", "step", "timestamp", "samples/")  # keys that the loggers add


def lines(run):
    """Step -> figures that metrics.jsonl has of it; of step 0 evaluations.jsonl."""
    first = (run / "evaluations.jsonl").read_text().splitlines()[0]
    rows = [json.loads(line) for line in [first, *(run / "metrics.jsonl").read_text().splitlines()]]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4] and rows[-1]["cost"] > 0
    return {row["step"]: figures(row) for row in rows}


def figures(row):
    """Numbers without what depends on the clock or was added by the logger."""
    added = ("time_", "memory_", *OURS)
    return {k: v for k, v in row.items() if isinstance(v, (int, float)) and not k.startswith(added)}


def in_events(run):
    """Step -> figures, and the events; no step may have a figure twice."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    stored: dict = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            stored.setdefault(event.step, []).append((tag.split("/")[1], event.value))
    assert all(len(dict(pairs)) == len(pairs) for pairs in stored.values())
    return {step: figures(dict(pairs)) for step, pairs in stored.items()}, events


def single(table):
    return {step: {name: float(np.float32(value)) for name, value in row.items()} for step, row in table.items()}
