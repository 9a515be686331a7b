"""`gxpo try`: a paired trial of changes in the user's own trainer."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from gxpo.cli.options import Json, app, fail, say

SEEDS, MOST_SEEDS = 3, 12  # of an arm: by themselves, and where a limit or the rule ends a trial


@app.command(name="try")
def try_changes(
    script: Annotated[
        Path | None, typer.Argument(metavar="SCRIPT", help="Your TRL script, run as it is.", show_default=False)
    ] = None,
    argv: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments of the script.", show_default=False)
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A change, with commas several; *2 and /10 change the script's own; repeatable."
        ),
    ] = None,
    remedies: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Take the doctor's remedies of this run as arms, four at most.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each arm, paired by seed; default: 3, with a limit 12.", min=1)
    ] = None,
    first_seed: Annotated[int, typer.Option(help="First of the seeds: a second trial takes others.", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=2)] = 60,
    minutes: Annotated[float | None, typer.Option(help="Begin no seed that would end later.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Begin no seed that would generate more.")] = None,
    sequential: Annotated[
        bool | None,
        typer.Option(
            "--sequential/--fixed", help="Stop arms that are decided, or not; default: stop with a limit alone."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Figure compared, as the trainer logs it; default: reward, of gxpo eval_accuracy."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option("--from", metavar="CHECKPOINT", help="Begin with these weights; without SCRIPT: a run of gxpo."),
    ] = None,
    command: Annotated[
        str | None, typer.Option(help="Command of another trainer, with {overrides} {steps} {seed} {out}.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Command for SCRIPT: verl, openrlhf, prime-rl, skyrl; `list` shows them.")
    ] = None,
    writes: Annotated[
        list[str] | None, typer.Option(metavar="DIR", help="A folder in which the script may write; repeatable.")
    ] = None,
    python: Annotated[str, typer.Option(metavar="PATH", help="Python interpreter of the script.")] = sys.executable,
    jobs: Annotated[int, typer.Option(help="Runs at a time, of one seed; one for a GPU.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="Directory; the same command continues there.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show arms and costs; run nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Try changes in your own trainer: paired seeds, base and arms side by side, differences with 95% intervals.

    Runs SCRIPT in child processes, with the arm's settings over its own, trackers and uploads off, outputs in a folder
    of the trial, until its training ends. The same command continues after Ctrl-C or a kill. Writes compare.html,
    compare.json and compare.csv.

    Example: gxpo try train.py --arm learning_rate=1e-6 --arm beta=0.0 --seeds 3 --steps 60

    Example: gxpo try train.py --remedies out --dry-run

    Example: gxpo try --command 'bash run.sh {overrides} trainer.total_training_steps={steps} data.seed={seed}' --arm
    actor_rollout_ref.actor.optim.lr=1e-6
    """
    from gxpo.compare import trial_arms, trial_session

    if template == "list":
        say(json.dumps(trial_arms.templates(), indent=1) if as_json else trial_session.templates_as_text())
        return
    # The limits of a trial are set before its first look.
    has_limit = minutes is not None or tokens is not None
    is_sequential = sequential if sequential is not None else seeds is None and has_limit
    request = trial_session.Request(
        script=script, argv=tuple(argv or ()), arms=tuple(arm or ()), remedies=remedies,
        seeds=seeds or (MOST_SEEDS if is_sequential or has_limit else SEEDS), first_seed=first_seed, steps=steps,
        minutes=minutes, tokens=tokens, sequential=is_sequential, metric=metric, start=start, command=command,
        template=template, writes=tuple(writes or ()), python=python, jobs=jobs, out=out,
        command_line=f"gxpo {shlex.join(sys.argv[1:])}",
    )  # fmt: skip
    kind = trial_session.RunSession if request.is_own_run else trial_session.Session
    session = kind(request, notify=lambda line: say(line, err=as_json or not dry_run))
    session.plan()
    if dry_run:
        if as_json:
            say(json.dumps(session.plan_as_data(), indent=1))
        return
    # After Ctrl-C the finished runs are shown and saved, before the exit code says that it was interrupted.
    try:
        session.go()
    except KeyboardInterrupt:
        session.show(as_json=as_json)
        fail(f"interrupted; the same command continues in {session.out}", 130)
    session.show(as_json=as_json)
