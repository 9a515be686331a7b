"""`gxpo tasks`: what is in a task source, before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gxpo.cli_options import Json, Sets, app, quiet, say


@app.command()
def tasks(
    task: Annotated[
        str, typer.Argument(metavar="TASK|CONFIG", help="A data file, a task's name, or a configuration (.yaml).")
    ],
    model: Annotated[
        str | None, typer.Option(help="Show prompts in its chat template and count its tokens; CONFIG has its own.")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="my_rewards.py:function, or a reward's name.")] = None,
    n: Annotated[int, typer.Option("--n", help="Tasks of each side, where a source generates them.", min=2)] = 512,
    show: Annotated[int, typer.Option("--show", help="Prompts printed whole.", min=0, max=8)] = 1,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Show what a model is asked and how its answers are scored: prompts, lengths, duplicates, leakage, the reward.

    Nothing is trained and only a tokenizer is loaded. Exit code 0: warnings say what to change.

    Example: gxpo tasks data.jsonl --model smollm2-135m

    Example: gxpo tasks examples/arithmetic.yaml --json
    """
    from gxpo import config
    from gxpo.explain.task_page import text
    from gxpo.explain.task_report import report

    from_file = Path(task).suffix in (".yaml", ".yml")
    below = config.read(task) if from_file else {"task": config.Stated(task, "argument")}
    stated: dict[str, Any] = {"model": model, "reward": reward}
    above = {k: config.Stated(v, "argument") for k, v in stated.items() if v is not None}
    settings = config.resolve(config.over(config.over(below, config.parse_set(sets or [])), above)).settings
    named = settings.model if from_file or model is not None else None
    if named is not None:
        quiet()
    found = report(settings, model=named, n=n)
    say(json.dumps(found, indent=1) if as_json else text(found, show))
