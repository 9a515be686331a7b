"""The demo on three seeds, and the same with rewards shuffled inside the batch: the figures and the README's picture.

    python scripts/curves.py            # goes on where it was stopped

Every run starts from the same warm start and is evaluated on the same held-out tasks.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gxpo.base.page.chart import svg_chart
from gxpo.parts.definition import SettingValue
from gxpo.training import config
from gxpo.training.config import demo_settings
from gxpo.training.progress import Progress
from gxpo.training.run import Run
from gxpo.training.statistics import mean_interval
from gxpo.training.train import resume, train

SEEDS = (0, 1, 2)


def train_or_resume(path: Path, settings: dict[str, SettingValue], steps: int) -> None:
    """Finish the run in `path`, from its checkpoint where it has one."""
    file = path / "evaluations.jsonl"
    is_done = file.is_file() and any(json.loads(line)["step"] == steps for line in file.read_text().splitlines())
    if is_done:
        return
    with Progress(every=10) as progress:
        options = {"callbacks": [progress], "watch": progress.interrupts, "progress": "none"}
        if (path / "checkpoints").is_dir() and any((path / "checkpoints").glob("step-*")):
            run: Run = resume(path, **options)
        else:
            run = train(resolved=config.resolve(settings), out=path, **options)
    progress.close(run)
    if run.trainer.step_number < steps:
        sys.exit("stopped; the same command goes on")


def verdicts(path: Path, step: int) -> list[float]:
    """Read each held-out task's verdict after a step."""
    table: dict[str, float] = json.loads((path / "evaluations" / f"step-{step:06d}.json").read_text())
    return [table[k] for k in sorted(table)]


def gains(paths: list[Path], steps: int) -> tuple[list[float], tuple[float, float]]:
    """Return the gain of each run, and the 95% interval of their mean over held-out tasks."""
    before, after = [verdicts(p, 0) for p in paths], [verdicts(p, steps) for p in paths]
    per_task = [
        sum(a[i] - b[i] for a, b in zip(after, before, strict=True)) / len(paths) for i in range(len(before[0]))
    ]
    return [sum(a) / len(a) - sum(b) / len(b) for a, b in zip(after, before, strict=True)], mean_interval(per_task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/curves"))
    parser.add_argument("--method", default="grpo")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--picture", type=Path, default=Path("docs/curves.svg"))
    arguments = parser.parse_args()
    series: dict[str, list[tuple[float, float]]] = {}
    summary: dict[str, Any] = {}
    for kind, shuffled in (("reward", False), ("shuffled", True)):
        paths = []
        for seed in SEEDS:
            path = arguments.out / f"{kind}-seed{seed}"
            settings = demo_settings(seed=seed, method=arguments.method, steps=arguments.steps)
            settings["scoring.shuffle"] = SettingValue(shuffled, "curves")
            steps = config.resolve(settings).settings.trainer.steps
            train_or_resume(path, settings, steps)
            rows = [json.loads(line) for line in (path / "evaluations.jsonl").read_text().splitlines()]
            series[f"{kind}, seed {seed}"] = [(r["step"], r["eval_accuracy"]) for r in rows]
            print(
                f"{kind} seed {seed}: {rows[0]['eval_accuracy']:.3f} -> {rows[-1]['eval_accuracy']:.3f} on "
                f"{rows[-1]['eval_tasks']:.0f} tasks (95% {rows[-1]['eval_low']:.3f} to {rows[-1]['eval_high']:.3f})"
            )
            paths.append(path)
        run_gains, (low, high) = gains(paths, steps)
        mean = sum(run_gains) / len(run_gains)
        print(
            f"{kind}: gains {', '.join(f'{g:+.3f}' for g in run_gains)}; mean {mean:+.3f} "
            f"(95% over tasks {low:+.3f} to {high:+.3f})"
        )
        seed_interval = mean_interval(run_gains)
        print(
            f"{kind}: 95% interval of the mean gain over seeds (t, n = 3) {seed_interval[0]:+.3f} "
            f"to {seed_interval[1]:+.3f}"
        )
        summary[kind] = {"gains": run_gains, "mean": mean, "low": low, "high": high, "over_seeds": seed_interval}
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    title = f"held-out accuracy, {arguments.method}, {len(SEEDS)} seeds"
    controls = [name for name in series if name.startswith("shuffled")]
    picture = svg_chart(
        series, title=title, y_label="greedy accuracy", dashed=controls, y_range=(0, 1), width=720, height=340
    )
    arguments.picture.write_text(picture)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
