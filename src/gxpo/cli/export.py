"""`gxpo export`: write a run's checkpoint as a model directory, or its rollouts as logs of another tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gxpo.cli.options import Best, Json, RunArgument, app, found_run, quiet, say


@app.command()
def export(
    run: RunArgument,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New directory.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="model|inspect",
            help="The checkpoint as a model, or the rollouts as logs of inspect_ai (of TRL, verl, too).",
        ),
    ] = "model",
    adapter: Annotated[bool, typer.Option("--adapter", help="Only the LoRA adapter, as peft loads it.")] = False,
    step: Annotated[
        int | None, typer.Option(help="Checkpoint of this step; default: the newest. Rollouts: default: every step.")
    ] = None,
    best: Best = False,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float64; default: the run's.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run's checkpoint as a model directory that transformers loads, with its model card; or its rollouts.

    Example: gxpo export runs/arithmetic models/arithmetic

    Example: gxpo export runs/arithmetic logs/arithmetic --to inspect
    """
    from gxpo.base.errors import ConfigError, one_of

    one_of("--to", to, ("model", "inspect"))
    if to == "inspect":
        from gxpo.explain.inspect_log import export as write_logs

        if adapter or best or dtype:
            raise ConfigError("--adapter, --best and --dtype are of a model: leave them out with --to inspect")
        files = write_logs(found_run(run), directory, step)
        if as_json:
            say(json.dumps({"directory": str(directory), "bytes": {p.name: p.stat().st_size for p in files}}))
        else:
            say(f"{directory}: {len(files)} logs, one a step; inspect view --log-dir {directory}")
        return
    from gxpo.training.best import best_of
    from gxpo.training.export import export as write

    if best and step is not None:
        raise ConfigError("--best and --step: give one of them")
    quiet()  # progress bars would get between the lines of --json
    run = found_run(run)
    step = best_of(run)["step"] if best else step
    model_directory = write(run, directory, adapter=adapter, step=step, dtype=dtype)
    if as_json:
        files = {p.name: p.stat().st_size for p in sorted(model_directory.iterdir())}
        say(json.dumps({"directory": str(model_directory), "bytes": files}))
        return
    say(f"{model_directory}: " + ", ".join(sorted(p.name for p in model_directory.iterdir())))
