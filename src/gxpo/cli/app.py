"""The command line `gxpo`. Heavy imports stay inside the commands, so that `gxpo --help` is quick."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from gxpo.base.exact import ask_for_equal_bits
from gxpo.cli.options import (
    AllowKey,
    Best,
    Json,
    Out,
    RunArgument,
    Sets,
    app,
    fail,
    found_run,
    quiet,
    resolved_of,
    say,
)


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        from gxpo import __version__

        found = [f"gxpo {__version__}"]
        for name in ("torch", "transformers"):
            try:
                found.append(f"{name} {metadata.version(name)}")
            except metadata.PackageNotFoundError:
                found.append(f"{name} not installed")
        say(", ".join(found))
        raise typer.Exit


@app.callback()
def gxpo(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Versions of gxpo, torch, transformers.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error; may stand anywhere on the line.")
    ] = False,
) -> None:
    """Group-relative policy optimisation for language models.

    Example: gxpo train examples/arithmetic.yaml
    """


def _run(resolved: Any, out: Path | None, as_json: bool) -> None:
    from gxpo.training.progress import Progress
    from gxpo.training.train import train

    progress = Progress(quiet=as_json)
    with progress:
        shown: dict[str, Any] = {"callbacks": [progress], "watch": progress.interrupts, "progress": "none"}
        run = train(resolved=resolved, out=out, notify=progress.say, **shown)
    _closed(progress, run, as_json)


def _closed(progress: Any, run: Any, as_json: bool) -> None:
    if progress.signal is not None:
        run.trainer.stopped = "interrupted"
    progress.close(run, as_json=as_json)
    if progress.signal is not None and not run.trainer.finished:
        raise typer.Exit(128 + progress.signal)
    if run.tally.all_unscored:
        raise typer.Exit(1)


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
    from gxpo.training import config
    from gxpo.training.config import demo_settings
    from gxpo.training.directory import free

    given = demo_settings(seed=seed, method=method, steps=steps)
    resolved = config.resolve(given)
    _run(resolved, out or free(Path(f"runs/demo-{method}-seed{seed}")), as_json)


@app.command()
def train(
    config_file: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="YAML file; not needed with --set or --from.", show_default=False),
    ] = None,
    sets: Sets = None,
    out: Out = None,
    from_run: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Start from this run's parameters and settings (see docs)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show every key, its origin and the arithmetic; train nothing.")
    ] = False,
    allow_key: AllowKey = None,
    as_json: Json = False,
) -> None:
    """Train from a YAML configuration, or continue from another run with other settings.

    Example: gxpo train examples/arithmetic.yaml --set method=dr_grpo+gspo --set seed=1

    Example: gxpo train --from runs/arithmetic --set optim.lr=1e-5
    """
    if dry_run:
        from gxpo.cli.plan import show_unexecuted

        show_unexecuted(config_file, sets, from_run, as_json)
        return
    resolved = resolved_of(config_file, sets, from_run)
    settings = resolved.settings
    if config_file is not None and out is None and settings.out is None and settings.init_from is None:
        from gxpo.training import config
        from gxpo.training.directory import name_for

        out = name_for(config_file, config.parse_set(sets or []))
    _run(resolved, out, as_json)


@app.command()
def resume(
    run: RunArgument,
    steps: Annotated[int | None, typer.Option(help="Go on to this many steps.")] = None,
    allow_changed_data: Annotated[
        bool, typer.Option("--allow-changed-data", help="Resume although data or code files have changed.")
    ] = False,
    allow_key: AllowKey = None,
    as_json: Json = False,
) -> None:
    """Resume a run that was stopped or killed, exactly as if it had not been interrupted.

    Example: gxpo resume runs/arithmetic
    """
    from gxpo.training.progress import Progress
    from gxpo.training.train import resume as go_on

    progress = Progress(quiet=as_json)
    with progress:
        shown: dict[str, Any] = {"callbacks": [progress], "watch": progress.interrupts, "progress": "none"}
        finished = go_on(found_run(run), steps=steps, allow_changed_data=allow_changed_data, **shown)
    _closed(progress, finished, as_json)


@app.command(name="eval")
def evaluate(
    run: RunArgument,
    tasks: Annotated[int | None, typer.Option(help="How many held-out tasks.")] = None,
    samples: Annotated[int | None, typer.Option(help="Samples a task, for pass@k.")] = None,
    best: Best = False,
    allow_key: AllowKey = None,
    as_json: Json = False,
) -> None:
    """Evaluate a run's newest checkpoint on the held-out tasks.

    Example: gxpo eval runs/arithmetic --samples 8
    """
    from gxpo.training import checkpoint, config
    from gxpo.training.best import best_of
    from gxpo.training.loop import Trainer
    from gxpo.training.start import checkpoint_of, read_verified_config

    run = found_run(run)
    given, _ = read_verified_config(run)
    values = {"eval.tasks": tasks, "eval.samples": samples, "trainer.callbacks": [], "logging.options": {}}
    given |= {k: config.Stated(v, "argument") for k, v in values.items() if v is not None}
    found = checkpoint_of(run, best_of(run)["step"]) if best else checkpoint.latest(run)
    trainer = Trainer(config.resolve(given), out=run, resume=True)
    try:
        figures = {"step": trainer.load(found)["step"], **trainer.evaluate().figures}
    finally:
        trainer.close()
    if as_json:
        say(json.dumps(figures))
        return
    for name, value in figures.items():
        say(f"{name:<20} {value:g}")


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method or composition whole.")] = None,
    symptom: Annotated[
        str | None, typer.Option("--for", metavar="SYMPTOM", help="What to try: 'all-wrong groups', 'length growth'...")
    ] = None,
    stage: Annotated[str | None, typer.Option(help="Only those that change credit, objective, rollout...")] = None,
    needs: Annotated[str | None, typer.Option(metavar="SIGNAL", help="Only those that read it, or none.")] = None,
    evidence: Annotated[list[str] | None, typer.Option(help="Only of this tier; may be given again.")] = None,
    cheap: Annotated[bool, typer.Option("--cheap", help="Only those that cost nothing beyond GRPO.")] = False,
    zero_variance: Annotated[
        str | None, typer.Option(metavar="zero|signal", help="Only those for which groups of equal rewards are so.")
    ] = None,
    trainer: Annotated[
        str | None, typer.Option("--in", metavar="trl|verl", help="What works there, what to give it, and why not.")
    ] = None,
    as_json: Json = False,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="Print citations.")] = False,
) -> None:
    """List the published methods, show one, or recommend some for a problem in training.

    Example: gxpo methods gspo

    Example: gxpo methods --for "all-wrong groups" --cheap

    Example: gxpo methods --stage credit --needs none --zero-variance signal

    Example: gxpo methods --in trl --for "all-wrong groups"
    """
    if trainer is not None:
        from gxpo.adapters import available

        if stage or needs or evidence or cheap or zero_variance or bibtex:
            raise typer.BadParameter("--in goes with a NAME, --for and --json alone")
        names = None if name is None else [name]
        if symptom is not None:
            from gxpo.explain.advice import find, recommendations

            names = [row["method"] for row in recommendations(find(symptom))]
        rows = available.available(trainer, names)
        say(available.as_json(trainer, rows) if as_json else available.as_text(trainer, rows))
        return
    from gxpo.explain.methods import show

    say(
        show(
            name,
            symptom,
            as_json=as_json,
            bibtex=bibtex,
            conditions={
                "stage": stage,
                "needs": needs,
                "evidence": evidence or [],
                "cheap": cheap,
                "zero_variance": zero_variance,
            },
        )
    )


@app.command()
def parts(
    name: Annotated[str | None, typer.Argument(help="Show one part whole, with its options.")] = None,
    stage: Annotated[
        str | None,
        typer.Option(
            help="Only those of a stage: credit, weight, rollout, segment, reward, signal, objective (of it surrogate, "
            "ratio, control or term), update, sampler."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the parts that methods are made of, by stage, or show one: options, needs, and the methods that use it.

    Example: gxpo parts relative

    Example: gxpo parts --stage weight
    """
    from gxpo.explain.parts import show_parts

    say(show_parts(name, stage, as_json=as_json))


@app.command()
def schema(as_json: Json = False) -> None:
    """Print the JSON Schema of a rollout record (`gxpo.rollouts/1`), with its defaults.

    Example: gxpo schema > rollouts.schema.json
    """
    from gxpo.forest.records import Record

    del as_json  # a schema is JSON with it and without
    say(json.dumps(Record.model_json_schema(by_alias=True), indent=1))


from gxpo.cli import plan  # noqa: E402, F401  # `plan` stands here in --help


@app.command()
def export(
    run: RunArgument,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New directory.")],
    adapter: Annotated[bool, typer.Option("--adapter", help="Only the LoRA adapter, as peft loads it.")] = False,
    step: Annotated[int | None, typer.Option(help="Checkpoint of this step; default: the newest.")] = None,
    best: Best = False,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float64; default: the run's.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run's checkpoint as a model directory that transformers loads, with its model card.

    Example: gxpo export runs/arithmetic models/arithmetic
    """
    from gxpo.base.errors import ConfigError
    from gxpo.training.best import best_of
    from gxpo.training.export import export as write

    if best and step is not None:
        raise ConfigError("--best and --step: give one of them")
    quiet()
    run = found_run(run)
    step = best_of(run)["step"] if best else step
    written = write(run, directory, adapter=adapter, step=step, dtype=dtype)
    if as_json:
        files = {p.name: p.stat().st_size for p in sorted(written.iterdir())}
        say(json.dumps({"directory": str(written), "bytes": files}))
        return
    say(f"{written}: " + ", ".join(sorted(p.name for p in written.iterdir())))


from gxpo.cli import checks, compare, convert, doctor, explain, serve  # noqa: E402, F401  # stand here in --help
from gxpo.cli import tasks as _tasks  # noqa: E402, F401


@app.command()
def bench(
    suite: Annotated[
        str | None,
        typer.Argument(
            metavar="SUITE", help="credit, fidelity, sample, update, step, peer, agreement or all.", show_default=False
        ),
    ] = None,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only rows that begin so.", show_default=False)
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each process; default: the cores.", min=1)] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of each side; default: the row's own.", min=1)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, smaller and fewer rows.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Measure on a busy machine; its rows are marked.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Save each row as JSON; rows it has are not redone.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the rows: .svg, .png, .pdf.")
    ] = None,
    saved: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show what --out saved; measure nothing.")
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter with gxpo\\[trl], for peer and agreement.")
    ] = None,
    vllm: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter with vLLM: suite sample has rows of it then.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Benchmark gxpo against other implementations, interleaved (A B A B), and show how many times as fast it is.

    Every side runs in a process of its own, its threads pinned; the first round does not count. Nothing is reported
    (exit code 1) when others are using the machine.

    Example: gxpo bench sample --out sample.json --plot sample.svg

    Example: gxpo bench peer tiny --python ../with-trl/bin/python

    Example: gxpo bench --from sample.json --json
    """
    from gxpo.bench.command import Options
    from gxpo.bench.command import bench as run_bench

    options = Options(threads, rounds, quick, anyway, out, plot, saved, python, vllm, as_json)
    if failure := run_bench(suite, names or [], options):
        fail(failure, 1)


def main() -> None:
    """Run the command line. Exit code 0: success; 1: a run ended without a single scored rollout; 2: a user error
    (printed in one line); 130: interrupted."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    ask_for_equal_bits()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            app()
    except Exception as error:
        if debug:
            say(traceback.format_exc().rstrip("\n"), err=True)
            sys.exit(1)
        fail(*_described(error))
    except KeyboardInterrupt:
        fail("interrupted", 130)


def _described(error: Exception) -> tuple[str, int]:
    """What went wrong and whose mistake it is; the exit code."""
    from gxpo.base.errors import GxpoError
    from gxpo.base.usercode import place

    if isinstance(error, GxpoError):
        return str(error), 2
    said = f"{type(error).__name__}: {error}"
    if frame := place(error):
        return f"{said} ({frame.filename} line {frame.lineno}, in {frame.name}; --debug shows the traceback)", 2
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 2
    if (runtime := sys.modules.get("gxpo.base.runtime")) is not None and (lost := runtime.lost_peer(error)) is not None:
        return lost, 2
    return f"{said} (a bug in gxpo; --debug shows where)", 1


def _warn(message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any) -> None:
    """gxpo's own warnings without the line of gxpo that gives them."""
    own = category is UserWarning and filename.startswith(str(Path(__file__).parents[1]))
    text = f"gxpo: warning: {message}" if own else warnings.formatwarning(message, category, filename, lineno)
    say(text.rstrip("\n"), err=True)


if __name__ == "__main__":
    main()
