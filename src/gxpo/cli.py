"""The command line. Heavy imports stay inside the commands, so that `gxpo --help` is quick."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Group-relative policy optimisation for language models.\n\nExample: gxpo train examples/arithmetic.yaml",
)

Sets = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, over the file; may be given again.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Out = Annotated[Path | None, typer.Option("--out", help="Run directory.")]


def _say(text: str) -> None:
    typer.echo(text)


def _run(resolved: Any, out: Path | None, as_json: bool) -> None:
    from gxpo.trainer.progress import Progress
    from gxpo.trainer.run import train

    progress = Progress(quiet=as_json)
    with progress:
        run = train(resolved=resolved, out=out, watch=progress, notify=progress.say)
    _closed(progress, run, as_json)


def _closed(progress: Any, run: Any, as_json: bool) -> None:
    progress.close(run, as_json=as_json)
    if progress.stopping and run.trainer.step_number < run.trainer.settings.trainer.steps:
        raise typer.Exit(130)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of the reinforcement learning; the warm start has its own.")] = 0,
    method: Annotated[str, typer.Option(help="A method or composition; `gxpo methods` lists them.")] = "grpo",
    steps: Annotated[int | None, typer.Option(help="Steps; the default is the demo's.")] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Watch a 1-million-parameter policy learn column addition on this machine, in minutes.

    Example: gxpo demo --method dr_grpo
    """
    from gxpo import config
    from gxpo.trainer.demo import settings

    given = settings(seed=seed, method=method, steps=steps)
    resolved = config.resolve(given)
    _run(resolved, out or _free(Path(f"runs/demo-{method}-seed{seed}")), as_json)


def _free(path: Path) -> Path:
    """`path`, or the first of path-2, path-3... that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


@app.command()
def train(
    config_file: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file.")],
    sets: Sets = None,
    out: Out = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show every key, its origin and the plan; train nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train as a YAML file says.

    Example: gxpo train examples/arithmetic.yaml --set method=dr_grpo+gspo --set seed=1
    """
    from gxpo import config

    resolved = config.load(config_file, sets or [])
    if dry_run:
        _show_plan(resolved, as_json)
        return
    _run(resolved, out, as_json)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    steps: Annotated[int | None, typer.Option(help="Go on to this many steps.")] = None,
    as_json: Json = False,
) -> None:
    """Go on with a run that was stopped or killed, as if it never had been.

    Example: gxpo resume runs/arithmetic
    """
    from gxpo.trainer.progress import Progress
    from gxpo.trainer.run import resume as go_on

    progress = Progress(quiet=as_json)
    with progress:
        finished = go_on(run, steps=steps, watch=progress)
    _closed(progress, finished, as_json)


@app.command(name="eval")
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    tasks: Annotated[int | None, typer.Option(help="How many held-out tasks.")] = None,
    samples: Annotated[int | None, typer.Option(help="Samples a task, for pass@k.")] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a run's newest checkpoint on the held-out tasks.

    Example: gxpo eval runs/arithmetic --samples 8
    """
    from gxpo import config
    from gxpo.errors import CheckpointError
    from gxpo.trainer import checkpoint
    from gxpo.trainer.loop import Trainer

    if not (run / "config.yaml").is_file():
        raise CheckpointError(f"{run} is not a run directory: it has no config.yaml")
    given = config.read(run / "config.yaml")
    values = {"eval.tasks": tasks, "eval.samples": samples}
    given |= {k: config.Stated(v, "argument") for k, v in values.items() if v is not None}
    newest = checkpoint.latest(run)
    trainer = Trainer(config.resolve(given), out=run, resume=True)
    try:
        tensors, state = checkpoint.load(newest)
        trainer.learner.load_tensors(tensors, state["learner"])
        figures = {"step": state["step"], **trainer.evaluate()[0]}
    finally:
        trainer.close()
    if as_json:
        _say(json.dumps(figures))
        return
    for name, value in figures.items():
        _say(f"{name:<20} {value:g}")


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method whole.")] = None,
    as_json: Json = False,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="Print the citation.")] = False,
) -> None:
    """List the published methods, or show one.

    Example: gxpo methods gspo
    """
    from gxpo.explain.catalogue import entries, one, table

    if name is not None:
        _say(one(name, bibtex=bibtex, as_json=as_json))
    elif as_json:
        _say(json.dumps(entries(), indent=1))
    else:
        table()


@app.command()
def schema() -> None:
    """Print the JSON Schema of a rollout record (`gxpo.rollouts/1`), with its defaults.

    Example: gxpo schema > rollouts.schema.json
    """
    from gxpo.records import Record

    _say(json.dumps(Record.model_json_schema(by_alias=True), indent=1))


@app.command()
def plan(
    config_file: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file.")],
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Show the arithmetic of a run: prompts, rollouts, micro-batches, optimiser steps, reuse. Trains nothing.

    Example: gxpo plan examples/arithmetic.yaml --set update.epochs=2
    """
    from gxpo import config

    _show_plan(config.load(config_file, sets or []), as_json)


def _show_plan(resolved: Any, as_json: bool) -> None:
    from gxpo.explain.plan import arithmetic, show_keys, show_plan

    figures = arithmetic(resolved)
    if as_json:
        keys = {k: {"value": str(s.value), "origin": s.origin} for k, s in resolved.keys.items()}
        _say(json.dumps({"plan": figures, "keys": keys}, indent=1))
        return
    show_keys(resolved)
    show_plan(figures)


def _fail(message: str, code: int = 2) -> NoReturn:
    sys.stderr.write(" ".join(f"gxpo: {message}".splitlines()) + "\n")
    sys.stderr.flush()
    sys.stdout.flush()
    sys.exit(code)


def main() -> None:
    """Run the command line: 0 on success, 2 on an error a user can mend (one line), 130 when interrupted."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except Exception as error:
        from gxpo.errors import GxpoError

        if debug:
            raise
        if isinstance(error, GxpoError):
            _fail(str(error))
        if isinstance(error, OSError):
            _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        _fail(f"{type(error).__name__}: {error} (a bug in gxpo; --debug shows where)", 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


if __name__ == "__main__":
    main()
