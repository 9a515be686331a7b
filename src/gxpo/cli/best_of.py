"""`gxpo best-of`: choose among answers by a value head that was trained offline, and show how often it is right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gxpo.cli.options import AllowKey, Json, RunArgument, app, fail, found_run, quiet, say


@app.command("best-of")
def best_of(
    run: RunArgument,
    logs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RECORDS]...", help="Files or folders of rollouts, as RUN/rollouts; none: sample."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Sample with this run's policy instead of the value's own.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Answers to each held-out task.", min=2)] = 8,
    tasks: Annotated[int | None, typer.Option(help="Number of held-out tasks.")] = None,
    head: Annotated[str | None, typer.Option(help="Name of the value head, of several.")] = None,
    allow_key: AllowKey = None,
    as_json: Json = False,
) -> None:
    """Choose the best of n answers by a run's value head; compare with a draw by lot, by likelihood, and the best.

    The answers are recorded ones, or new ones to held-out tasks. Nothing is trained.

    Example: gxpo best-of runs/values runs/grpo/rollouts/step-000020.jsonl

    Example: gxpo best-of runs/values --policy runs/grpo --samples 16
    """
    from gxpo.training import value_choice as choice

    if logs and policy:
        fail("--policy samples answers, and records have theirs: leave one of them out")
    quiet()
    trainer = _trainer_of(found_run(run))
    try:
        output = choice.head_of(trainer.method.value_heads, head)
        if logs:
            forests = choice.logged_forests(trainer, [str(path) for path in logs])
        elif policy is None:
            forests = [choice.sampled_forest(trainer, tasks, samples)]
        else:
            sampler = _trainer_of(found_run(policy))
            try:
                forests = [choice.sampled_forest(sampler, tasks, samples)]
            finally:
                sampler.close()
        figures = choice.figures_of(choice.values_of(trainer, forests, output))
        fitted_file = str(getattr(trainer.method.rollout, "file", "") or "")
        figures["fitted_to_these"] = any(fitted_file and _is_within(path, Path(fitted_file)) for path in logs or [])
    finally:
        trainer.close()
    say(json.dumps(figures) if as_json else _text(figures))


def _trainer_of(run: Path) -> Any:
    """Load the newest checkpoint of a run, without its callbacks."""
    from gxpo.training import checkpoint, config
    from gxpo.training.loop import Trainer
    from gxpo.training.start import read_verified_config

    run_keys, _ = read_verified_config(run)
    silent = {"trainer.callbacks": [], "logging.options": {}}
    run_keys |= {k: config.SettingValue(v, "argument") for k, v in silent.items()}
    trainer = Trainer(config.resolve(run_keys), out=run, resume=True)
    trainer.load(checkpoint.latest(run))
    return trainer


def _is_within(path: Path, directory: Path) -> bool:
    return path.resolve() == directory.resolve() or directory.resolve() in path.resolve().parents


def _text(figures: Mapping[str, Any]) -> str:
    """The table of sizes, the gain at the largest, and how many pairs are in order."""
    lines = [f"{'of n':>6} {'by lot':>8} {'by value':>9} {'by likelihood':>14} {'best there is':>14}   groups"]
    for row in figures["table"]:
        likelihood, best = (f"{row[name]:.3f}" if name in row else "-" for name in ("by_likelihood", "best"))
        choices = f"{row['by_lot']:>8.3f} {row['by_value']:>9.3f} {likelihood:>14} {best:>14}"
        lines.append(f"{row['n']:>6} {choices}   {row['groups']}")
    low, high = figures["gain_low"], figures["gain_high"]
    interval = f" ({low:+.3f} to {high:+.3f})" if low == low else ""
    lines.append(f"by value less by lot, of {figures['table'][-1]['n']}: {figures['gain']:+.3f}{interval}")
    if figures["pairs"]:
        share = figures["ordered_pairs"]
        lines.append(
            f"the better of two answers has the higher value in {share:.3f} of {figures['pairs']} pairs (lot: .5)"
        )
    if figures["fitted_to_these"]:
        lines.append("the value was fitted to these answers: take others to judge it")
    return "\n".join(lines)
