"""`gxpo tasks`: what is in a task source, before a run; `gxpo filter-tasks`: the tasks that a model can learn from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gxpo.cli.options import Json, Sets, app, quiet, resolved_of, say


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
    from gxpo.explain.task_page import text
    from gxpo.explain.task_report import report
    from gxpo.training import config

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


@app.command("filter-tasks")
def filter_tasks(
    config_file: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the run.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.jsonl", help="The tasks that are kept, a line each.")],
    rollouts: Annotated[int, typer.Option(help="Attempts at each task.", min=1)] = 8,
    low: Annotated[float, typer.Option(help="Lowest success rate that is kept.", min=0, max=1)] = 0.1,
    high: Annotated[float, typer.Option(help="Highest success rate that is kept.", min=0, max=1)] = 0.9,
    n: Annotated[int, typer.Option("--n", help="Tasks, where a source generates them.", min=1)] = 512,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Attempt every training task with the model and keep those of middling success rate; nothing is trained.

    Held-out tasks are written beside the file, to FILE_held_out.jsonl. `tasks.sampler=band` does the same in a run.

    Example: gxpo filter-tasks examples/arithmetic.yaml --n 64 --out middling.jsonl
    """
    from gxpo.training.filter_tasks import filter_tasks as measure

    resolved = resolved_of(config_file, sets)
    quiet()
    found = measure(
        resolved,
        out,
        rollouts=rollouts,
        low=low,
        high=high,
        n=n,
        notify=lambda line: say(line, err=True),
    )
    if as_json:
        say(json.dumps(found, indent=1))
        return
    say(
        f"{found['kept']} of {found['tasks']} tasks kept, of success rate {low:g} to {high:g} in {rollouts} attempts: "
        f"{found['below']} were below ({found['all_wrong']} all wrong), {found['above']} above "
        f"({found['all_right']} all right); {found['generated_tokens']} tokens\n"
        f"train on them: task={found['out']} tasks.options.held_out={found['held_out']}, and the reward by name"
    )
