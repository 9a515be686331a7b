"""`gxpo compare`: which method, on equal budget, with an interval."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gxpo.cli.options import Json, Sets, app, fail, say


@app.command()
def compare(
    arms: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD...",
            help="Methods, METHOD:KEY=VALUE, FILE.yaml, NAME=...; or runs that exist.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="A suite's setting, a YAML file of keys, or a task's name.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model than the setting's.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each arm, paired by seed.", min=1)] = 5,
    budget: Annotated[str | None, typer.Option(help="Of every run: 60k (generated tokens), 10min, 200updates.")] = None,
    resolve: Annotated[
        float | None, typer.Option(metavar="DIFFERENCE", help="Choose the seeds so that this difference is found.")
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="Values chosen for each arm on seeds that are not reported."),
    ] = None,
    tuning_seeds: Annotated[int, typer.Option(help="Runs of each value of --tune.", min=1)] = 2,
    suite: Annotated[str | None, typer.Option(help="All settings and arms of a suite; `list` names them.")] = None,
    base: Annotated[str | None, typer.Option(help="What the others are compared with.")] = None,
    controls: Annotated[bool, typer.Option(help="Also train on shuffled rewards, which must not gain.")] = True,
    measure: Annotated[str | None, typer.Option(help="Figure compared, e.g. eval_length or eval_pass_at_8.")] = None,
    less: Annotated[bool, typer.Option("--less", help="Less of the measure is better.")] = False,
    out: Annotated[Path | None, typer.Option(help="Directory; the same command continues there.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; default: the cores.", min=1)] = None,
    threads: Annotated[int, typer.Option(help="Threads of each run.", min=1)] = 1,
    on: Annotated[str, typer.Option(help="Where runs are made: local or ray.")] = "local",
    plan: Annotated[bool, typer.Option("--plan", help="Say what it takes and can tell; train nothing.")] = False,
    row: Annotated[bool, typer.Option("--row", help="Print rows for docs/results.csv.")] = False,
    study: Annotated[str | None, typer.Option(help="Name of the study in those rows.")] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Compare methods on equal budget: paired seeds, equal tasks, start and evaluation, differences with 95% intervals.

    Says first what it will cost and what so many seeds can tell apart. The same command continues after Ctrl-C or a
    kill, to the bit. Writes compare.html, compare.json and compare.csv.

    Example: gxpo compare grpo dr_grpo rloo --task arithmetic

    Example: gxpo compare dapo grpo:credit.scale=none --task sums --resolve 0.05 --tune optim.lr=1e-4,3e-4

    Example: gxpo compare --suite stalled --seeds 10

    Example: gxpo compare runs/a runs/b
    """
    from gxpo.compare import session

    said = f"gxpo {shlex.join(sys.argv[1:])}"

    def notify(line: str) -> None:
        say(line, err=as_json or not plan)

    given = arms or []
    if suite == "list":
        say(json.dumps(session.suites_as_data(), indent=1) if as_json else session.suites_as_text())
        return
    if suite is None and task is None and not given:
        fail("give METHODS and --task, a --suite, or directories of runs; gxpo compare --suite list names the suites")
    options: dict[str, Any] = {
        "seeds": seeds, "budget": budget, "resolve": resolve, "tune": tune or [], "tuning_seeds": tuning_seeds,
        "base": base, "controls": controls, "measure": measure, "better": "less" if less else None, "sets": sets or [],
        "model": model, "out": out, "plan_only": plan, "study": study,
    }  # fmt: skip
    made = session.Session(given, task, suite, options, commands=[said], notify=notify)
    with session.runner_on(on, jobs, threads) as runner:
        try:
            made.go(runner)
        except KeyboardInterrupt:
            made.show(as_json=as_json, row=row)
            fail(f"interrupted; the same command goes on in {made.out}", 130)
    if plan:
        if as_json:
            say(json.dumps({"plans": made.plans}, indent=1))
        return
    made.show(as_json=as_json, row=row)
