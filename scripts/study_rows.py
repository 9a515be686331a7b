"""Rows of a study: one finished run a line of JSON, found again by its configuration, so that studies share runs."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.base.errors import RecordError
from gxpo.compare.results import Point, RunResult
from gxpo.compare.worker import job_keys, task_order
from gxpo.doctor import diagnose, read
from gxpo.environments.tasks.epochs import goes_by_epochs

SCHEMA = "gxpo.study/1"
CURVES = (  # metrics of training that a row keeps, each at `KEPT` points
    "reward_mean", "success_rate", "zero_signal_groups", "entropy", "length_mean", "truncated_rate", "clip_fraction",
    "approx_kl", "grad_norm", "ratio_max", "sampler_gap_mean",
)  # fmt: skip
LEFT_OUT = ("eval_tasks", "eval_low", "eval_high")  # known from the keys and the verdicts
KEPT = 8
DIGITS = 4


def digest(keys: Mapping[str, Any]) -> str:
    """Name a configuration: equal for equal keys in whatever order, the seed left out. The order in which a finite list
    of tasks is drawn counts: runs that counted steps from 0 have another name.

    >>> digest({"a": 1, "b": [2], "seed": 3}) == digest({"b": [2], "a": 1, "seed": 4})
    True
    """
    return _digest(job_keys(keys))


def _digest(keys: Mapping[str, Any]) -> str:
    message = json.dumps({k: v for k, v in keys.items() if k != "seed"}, sort_keys=True)
    return hashlib.sha256(message.encode()).hexdigest()[:16]


def row_of(run: Path, keys: Mapping[str, Any], *, trouble: str = "", commit: str = "") -> dict[str, Any]:
    """Make the row of a run directory.

    evaluations  step, tokens, updates and seconds spent before each, and its figures
    tasks        held-out tasks of the first and the last evaluation; `bits`: the verdict of each, in the order of the
                 task ids, 0 or 1; absent where verdicts are not 0 or 1
    curves       metric -> [KEPT, 2] steps and values
    doctor       what `gxpo doctor` finds in the run, notes left out: [severity, first sickness] of each
    """
    metrics = _lines(run / "metrics.jsonl")
    spent = {0: (0, 0, 0.0)}
    updates, seconds = 0, 0.0
    for m in metrics:
        updates += m["optimiser_steps"]
        seconds += m["time_step_s"]
        spent[m["step"]] = (m["generated_tokens"], updates, seconds)
    evaluations = [
        {
            "step": e["step"],
            "tokens": spent[e["step"]][0],
            "updates": spent[e["step"]][1],
            "seconds": round(spent[e["step"]][2], 2),
            **{k: _short(v) for k, v in e.items() if k.startswith("eval_") and k not in LEFT_OUT},
        }
        for e in _lines(run / "evaluations.jsonl")
        if e["step"] in spent
    ]
    last = metrics[-1] if metrics else {}
    verdicts = sorted((run / "evaluations").glob("step-*.json"))
    bits = {}
    if verdicts:
        bits = {"bits_before": bits_of(verdicts[0]), "bits": bits_of(verdicts[-1])}
    return {
        "schema": SCHEMA,
        "digest": digest(keys),
        **task_order(keys),
        "seed": keys["seed"],
        "keys": {k: v for k, v in keys.items() if k != "seed"},
        "evaluations": evaluations,
        **bits,
        "discarded_rollouts": last.get("discarded_rollouts", 0),
        "steps": last.get("step", 0),
        "curves": {name: points for name in CURVES if (points := _thinned(metrics, name))},
        "doctor": findings_of(run) if metrics else [],
        "trouble": trouble,
        "commit": commit,
    }


def findings_of(run: Path) -> list[list[str]]:
    """List [severity, first sickness] of each finding of `gxpo doctor` that is not a note."""
    return [[f.severity, f.ids[0]] for f in diagnose(read(run)).findings if f.severity != "note"]


def result_of(row: Mapping[str, Any], arm: str, measure: str = "eval_accuracy") -> RunResult:
    """Read the run of a row under an arm's name. `measure`: a figure of the evaluations.

    Raises `RecordError` where the run did not record it.
    """
    evaluations = row["evaluations"]
    if not evaluations or any(measure not in e for e in evaluations):
        measures = ", ".join(sorted(k for k in (evaluations[0] if evaluations else {}) if k.startswith("eval_")))
        raise RecordError(
            f"run {row['digest']} seed {row['seed']} has no {measure}; there is {measures or 'no evaluation'}"
        )
    paired = measure == "eval_accuracy" and "bits" in row
    return RunResult(
        arm=arm,
        seed=row["seed"],
        path=f"{row['digest']}/seed-{row['seed']}",
        points=[Point(e["step"], e["tokens"], e["updates"], e["seconds"], e[measure]) for e in evaluations],
        before=verdicts_of(row["bits_before"]) if paired else {},
        after=verdicts_of(row["bits"]) if paired else {},
        discarded_rollouts=row["discarded_rollouts"],
        figures={k: v for k, v in evaluations[-1].items() if k.startswith("eval_")},
        trouble=row["trouble"],
    )


def archive_of(path: Path) -> Path:
    """Name the compressed rows beside a store: `runs.jsonl.gz` of `runs.jsonl`."""
    return path.with_name(f"{path.name}.gz")


def read_lines(path: Path) -> list[str]:
    """Read the lines of a store: those of its archive, then those appended since."""
    archive = archive_of(path)
    text = gzip.decompress(archive.read_bytes()).decode() if archive.is_file() else ""
    return (text + (path.read_text(encoding="utf-8") if path.is_file() else "")).split("\n")


def read_store(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Map (digest, seed) to row. A last line that a kill cut off is left out; any other bad line is a `RecordError`."""
    out: dict[tuple[str, int], dict[str, Any]] = {}
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            out[row["digest"], row["seed"]] = row
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            if number == len(lines):  # without a line end: not whole
                continue
            raise RecordError(f"{path} line {number}: not a row of a study: {error}") from None
    return out


def pack(path: Path) -> None:
    """Move the rows of a store into its archive. Equal rows give equal bytes; a kill leaves all rows in one of the two,
    or in both, which reads the same."""
    lines = [line for line in read_lines(path) if line]
    for line in lines:
        json.loads(line)  # a line that a kill cut off is not archived in silence
    archive = archive_of(path)
    partial = archive.with_name(f".{archive.name}.new")
    partial.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    partial.replace(archive)
    path.unlink(missing_ok=True)


def with_former(store: Mapping[tuple[str, int], dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows of a store for a report of what was measured: those made in the former order of tasks, too.

    Only for tasks of which no row was made in the present order, so that no report mixes the two.
    """
    tasks_in_new_order = {_tasks_of(row) for row in store.values() if "first_step" in row}
    out = dict(store)
    for (name, seed), row in store.items():
        keys = row.get("keys", {})
        if (
            "first_step" not in row
            and goes_by_epochs(keys)
            and _digest(keys) == name
            and _tasks_of(row) not in tasks_in_new_order
        ):
            out.setdefault((digest(keys), seed), row)
    return out


def _tasks_of(row: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in row["keys"].items() if k == "task" or k.startswith("tasks.")}, sort_keys=True)


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row in one write; a line that a kill cut off, whose run is made again, is taken away first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    message = json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n"
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(message.encode())


def bits_of(file: Path) -> str | None:
    """Encode verdicts of an evaluation's tasks in the order of their ids: hexadecimal, first task first, `n:` before
    it; None where some are neither 0 nor 1."""
    table: dict[str, float] = json.loads(file.read_text())
    values = [table[k] for k in sorted(table)]
    if not set(values) <= {0.0, 1.0}:
        return None
    message = "".join("1" if v else "0" for v in values)
    return f"{len(values)}:{int('1' + message, 2):x}"


def verdicts_of(bits: str | None) -> dict[str, float]:
    """Map the number of each task, in the order of ids, to its verdict.

    >>> verdicts_of("3:d")  # 1 before 101
    {'0': 1.0, '1': 0.0, '2': 1.0}
    """
    if bits is None:
        return {}
    n, _, hexadecimal = bits.partition(":")
    digits = f"{int(hexadecimal, 16):b}"[1:]
    if len(digits) != int(n):
        raise RecordError(f"{bits[:20]}: {len(digits)} verdicts where {n} are said")
    return {str(i): float(d) for i, d in enumerate(digits)}


def missing(
    runs: Iterable[tuple[Mapping[str, Any], int]], store: Mapping[tuple[str, int], Any]
) -> list[tuple[Mapping[str, Any], int]]:
    """List the (keys, seed) that the store lacks, each once, in order."""
    out: dict[tuple[str, int], tuple[Mapping[str, Any], int]] = {}
    for keys, seed in runs:
        name = (digest(keys), seed)
        if name not in store:
            out.setdefault(name, (keys, seed))
    return list(out.values())


def _lines(path: Path) -> list[dict[str, Any]]:
    """Read lines of JSON; a last one that is not whole is left out."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else None


def _thinned(metrics: Sequence[Mapping[str, Any]], name: str) -> list[list[float]]:
    """Average `KEPT` stretches of steps: [last step of the stretch, mean]."""
    points = [(m["step"], m[name]) for m in metrics if isinstance(m.get(name), (int, float)) and math.isfinite(m[name])]
    out = []
    for i in range(min(KEPT, len(points))):
        part = points[i * len(points) // min(KEPT, len(points)) : (i + 1) * len(points) // min(KEPT, len(points))]
        out.append([part[-1][0], _short(float(sum(v for _, v in part) / len(part)))])
    return out
