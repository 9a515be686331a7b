"""`gxpo doctor`: what is wrong with a run, from what it left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gxpo.cli.options import Json, app, fail, say


@app.command()
def doctor(
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="A run's directory or one of its files.", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the diagnosis as a page.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print every sickness it knows, with its statistic.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with a training run, from what it left: TRL, verl, gxpo, OpenRLHF, prime-rl, unsloth.

    One cause first, its consequences under it, with evidence and remedies in that trainer's own keys. Exit code 0:
    healthy, 1: a warning or worse, 2: nothing could be read.

    Example: gxpo doctor runs/arithmetic

    Example: gxpo doctor outputs/checkpoint-500 --json
    """
    from gxpo.base.errors import GxpoError
    from gxpo.doctor import Diagnosis, diagnose, read
    from gxpo.doctor.text import sickness_list, text

    if listed:
        from gxpo.doctor.sickness import SICKNESSES, STAGES

        rows = [
            {"id": s.id, "stage": STAGES[s.stage], "title": s.title, "statistic": s.statistic, "needs": list(s.needs)}
            for s in sorted(SICKNESSES.values(), key=lambda s: s.stage)
        ]
        say(json.dumps(rows, indent=1) if as_json else sickness_list())
        return
    if path is None:
        fail("give a PATH: a run's directory or one of its files (or --list)")
    try:
        log = read(path)
    except GxpoError as error:
        if not as_json:
            raise
        say(json.dumps(Diagnosis("unknown", [], notes=[str(error)]).as_json(), indent=1))
        raise typer.Exit(2) from None
    diagnosis = diagnose(log, recompute=True)
    if html is not None:
        from gxpo.doctor.html import html as page

        try:
            html.write_text(page(diagnosis, log), encoding="utf-8", errors="replace")
        except OSError as error:
            fail(f"--html {html}: {error.strerror}; give a file in a directory that exists and can be written")
    say(json.dumps(diagnosis.as_json(), indent=1) if as_json else text(diagnosis))
    raise typer.Exit(diagnosis.exit_code)
