"""The command `explain`: a page of rollouts with the arithmetic of their advantages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gxpo.cli.options import Json, app, fail, say

PAGE = Path("explain.html")  # page_text where neither --out nor --json is given


@app.command()
def explain(
    path: Annotated[
        Path,
        typer.Argument(metavar="RUN|FILE", help="A run directory, or a file of records, TRL's table, verl's dump."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="The page to write; default: explain.html.")
    ] = None,
    methods: Annotated[
        str,
        typer.Option("--methods", metavar="NAMES", help="Side by side, with commas between; default: the run's own."),
    ] = "",
    step: Annotated[int | None, typer.Option(help="A step of the run; default: the last.")] = None,
    as_json: Json = False,
) -> None:
    """Show the rollouts of a step: as trees, each token by advantage, weight and gradient, with the arithmetic.

    The page fetches nothing and needs no server. No file that a run's configuration names is run. --json prints the
    rewards and advantages of every group instead.

    Example: gxpo explain runs/arithmetic --methods grpo,dr_grpo --out step.html

    Example: gxpo explain runs/arithmetic --json
    """
    from gxpo.explain.rollout_page import as_data, looks_of, page_text
    from gxpo.explain.rollout_source import read

    source = read(path, step)
    looks = looks_of(source, [name.strip() for name in methods.split(",") if name.strip()])
    if out is not None or not as_json:
        page, to = page_text(source, looks), out or PAGE
        try:
            to.write_text(page, encoding="utf-8", errors="replace")
        except OSError as error:
            fail(f"--out {to}: {error.strerror}; give a file in a directory that exists and can be page_text")
        if not as_json:
            say(f"{to}: {len(page.encode('utf-8', 'replace')) / 1e6:.1f} MB; open it in a browser")
    if as_json:
        say(json.dumps(as_data(source, looks) | ({} if out is None else {"page": str(out)}), indent=1))
