"""`gxpo convert`: turn the configuration of TRL or verl into gxpo's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from gxpo.cli.options import Json, app, say


@app.command()
def convert(
    trainer: Annotated[str, typer.Argument(metavar="trl|verl", help="Trainer of the configuration.")],
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="trl: a YAML file, script, notebook, launch script or command line, also of ms-swift. verl: "
            "[NAME=VALUE ...] a launch script [ARGUMENT ...], a YAML file of Hydra, or overrides.",
        ),
    ],
    processes: Annotated[
        int, typer.Option(min=1, help="Number of processes that TRL is launched with; its batch sizes are per process.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Print the gxpo configuration that computes the same, and what can't be carried over, with its lines.

    A script is read, never run. What is printed is a YAML file for `gxpo plan` and `gxpo train`, which ask for the
    values of its open lines (`???`): what only the script's caller or its run knows.

    Example: gxpo convert trl train_grpo.py > run.yaml

    Example: gxpo convert verl MODEL_PATH=Qwen/Qwen3-8B run_grpo.sh data.train_batch_size=256 > run.yaml

    Example: gxpo convert verl "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8"
    """
    from gxpo.base.errors import one_of

    # TRL's is one file or one command line; verl's comes in pieces, a script or many overrides.
    one_of("trainer", trainer, ("trl", "verl"))
    if trainer == "trl":
        from gxpo.adapters.convert import convert_trl

        text = " ".join(source)
        conversion = convert_trl(text, processes=processes)
        name = Path(text).name if os.path.isfile(text) else "it"
    else:
        from gxpo.adapters.convert_verl import convert_verl

        files = [word for word in source if word.endswith((".sh", ".bash", ".yaml", ".yml"))]
        conversion, name = convert_verl(source), Path(files[0]).name if files else "it"
    if as_json:
        notes = [{"where": place, "what": loss} for place, loss in conversion.notes]
        keys = {"config": dict(conversion.keys), "open": conversion.open, "origins": dict(conversion.origins)}
        say(json.dumps({**keys, "not_carried_over": notes}, indent=1))
        return
    say(conversion.text(name).rstrip("\n"))
