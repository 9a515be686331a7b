"""`gxpo serve`: serve a policy at an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gxpo.cli.options import AllowKey, Json, Sets, app, quiet, say


@app.command()
def serve(
    source: Annotated[
        str, typer.Argument(metavar="CONFIG|RUN|MODEL", help="A YAML file, a run directory, or a model.")
    ],
    sets: Sets = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0: a free one.", min=0, max=65535)] = 0,
    temperature: Annotated[float | None, typer.Option(help="Default: the configuration's.", min=0.0)] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Append each episode as a record (.jsonl) when it ends; with --play: at the end.",
        ),
    ] = None,
    play: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Play N tasks with the configuration's agent, show the transcripts, and exit.", min=1
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Exit after this many seconds; default: on Ctrl-C.", min=0.0)
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Host name, besides localhost, under which it answers; repeatable."),
    ] = None,
    allow_key: AllowKey = None,
    as_json: Json = False,
) -> None:
    """Serve a policy at an OpenAI-compatible endpoint on loopback, to try out an agent; nothing is trained.

    Example: gxpo serve smollm2-135m --port 8000

    Example: gxpo serve examples/agent_openai.yaml --play 1
    """
    from gxpo.training import serving

    # The model's progress bars would get between the lines that clients read.
    quiet()

    def notify(line: str) -> None:
        say(line, err=True)

    with serving.stages_of(source, sets or [], notify) as stages:
        # The agent of the configuration plays, as in a training step, and the server ends with it.
        if play is not None:
            forest, decoded = serving.play(stages, play, out)
            for row in range(forest.n_trajectories):
                say(json.dumps(forest.to_records()[row]) if as_json else serving.transcript(forest, row, decoded))
            return

        # Printed when the port is bound: with --port 0 it is not known before.
        def ready(base_url: str) -> None:
            if as_json:
                say(json.dumps({"base_url": base_url, "model": "policy"}))
                return
            say(f"base_url  {base_url}\nmodel     policy\napi_key   any; each names an episode of its own")
            say(f"takes     {serving.parameters(stages)}")
            say(f"export OPENAI_BASE_URL={base_url} OPENAI_API_KEY=sk-gxpo-1    # Ctrl-C ends it")

        n = serving.serve(
            stages,
            port=port,
            temperature=temperature,
            out=out,
            on_ready=ready,
            notify=notify,
            hosts=allow_host or (),
            seconds=seconds,
        )
        # To the error stream: standard output holds what a client needs.
        if out is not None:
            say(f"{n} episodes: {out}", err=True)
