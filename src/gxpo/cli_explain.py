"""The command `explain`: a page of rollouts with the arithmetic of their advantages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gxpo.cli_options import app, say


@app.command()
def explain(
    path: Annotated[
        Path,
        typer.Argument(metavar="RUN|FILE", help="A run directory, or a file of records, TRL's table, verl's dump."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="The page to write.")],
    methods: Annotated[
        str,
        typer.Option("--methods", metavar="NAMES", help="Side by side, with commas between; default: the run's own."),
    ] = "",
    step: Annotated[int | None, typer.Option(help="A step of the run; default: the last.")] = None,
) -> None:
    """Show the rollouts of a step: as trees, each token by advantage, weight and gradient, with the arithmetic.

    The page fetches nothing and needs no server. No file that a run's configuration names is run.

    Example: gxpo explain runs/arithmetic --methods grpo,dr_grpo --out step.html
    """
    from gxpo.explain.rollout_page import explain as written

    names = [name.strip() for name in methods.split(",") if name.strip()]
    page = written(path, names, step)
    out.write_text(page, encoding="utf-8", errors="replace")
    say(f"{out}: {len(page.encode('utf-8', 'replace')) / 1e6:.1f} MB")
