"""Entry point of the command line `gxpo`: train, resume, eval, methods, export, bench, and errors in one line.

Heavy imports stay inside the commands, so that `gxpo --help` is quick.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from gxpo.base.library_variables import set_library_variables
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
    resolved_of,
    say,
)


def _version(requested: bool) -> None:
    if requested:
        from importlib import metadata

        from gxpo import __version__

        versions = [f"gxpo {__version__}"]
        # Versions are read from the installed metadata: importing torch would take seconds.
        for name in ("torch", "transformers"):
            try:
                versions.append(f"{name} {metadata.version(name)}")
            except metadata.PackageNotFoundError:
                versions.append(f"{name} not installed")
        say(", ".join(versions))
        raise typer.Exit


@app.callback()
def gxpo(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Versions of gxpo, torch, transformers.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error; allowed anywhere on the line.")
    ] = False,
) -> None:
    """Group-relative policy optimisation for language models.

    Example: gxpo train examples/arithmetic.yaml
    """


def _train_and_report(resolved: Any, out: Path | None, as_json: bool) -> None:
    from gxpo.training.progress import Progress
    from gxpo.training.train import train

    # The display takes signals while it is open, so that Ctrl-C saves a checkpoint before the run stops.
    progress = Progress(quiet=as_json)
    with progress:
        display: dict[str, Any] = {"callbacks": [progress], "watch": progress.interrupts, "progress": "none"}
        run = train(resolved=resolved, out=out, notify=progress.say, **display)
    _finish(progress, run, as_json)


def _finish(progress: Any, run: Any, as_json: bool) -> None:
    # Stopped by a signal: the summary says so, though the loop ended in good order.
    if progress.signal is not None:
        run.trainer.stopped = "interrupted"
    progress.close(run, as_json=as_json)
    # 128 + signal is the shell's code; a run that had finished anyway is a success.
    if progress.signal is not None and not run.trainer.is_finished:
        raise typer.Exit(128 + progress.signal)
    # Nothing could be scored: scripts must not take the run for a result.
    if run.tally.all_unscored:
        raise typer.Exit(1)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of the reinforcement learning; the warm start has a fixed one.")] = 0,
    method: Annotated[str, typer.Option(help="A method or composition; `gxpo methods` lists them.")] = "grpo",
    steps: Annotated[int | None, typer.Option(help="Number of steps; default: the demo's own.")] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Watch a 1-million-parameter policy learn column addition on this machine, in minutes.

    Example: gxpo demo --method dr_grpo
    """
    from gxpo.training import config
    from gxpo.training.config import demo_settings
    from gxpo.training.directory import free

    # The same keys as a configuration file has, so that the demo is a run like any other.
    values = demo_settings(seed=seed, method=method, steps=steps)
    resolved = config.resolve(values)
    _train_and_report(resolved, out or free(Path(f"runs/demo-{method}-seed{seed}")), as_json)


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
    # A dry run runs no file that the configuration names: it may be someone else's, looked at before it is trusted.
    if dry_run:
        from gxpo.cli.plan import show_unexecuted

        show_unexecuted(config_file, sets, from_run, as_json)
        return
    resolved = resolved_of(config_file, sets, from_run)
    settings = resolved.settings
    # The run is named after its file and the settings on the command line, unless the configuration has a name for it.
    if config_file is not None and out is None and settings.out is None and settings.init_from is None:
        from gxpo.training import config
        from gxpo.training.directory import name_for

        out = name_for(config_file, config.parse_set(sets or []))
    _train_and_report(resolved, out, as_json)


@app.command()
def resume(
    run: RunArgument,
    steps: Annotated[int | None, typer.Option(help="Continue to this many steps.")] = None,
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
        display: dict[str, Any] = {"callbacks": [progress], "watch": progress.interrupts, "progress": "none"}
        outcome = go_on(found_run(run), steps=steps, allow_changed_data=allow_changed_data, **display)
    _finish(progress, outcome, as_json)


@app.command(name="eval")
def evaluate(
    run: RunArgument,
    tasks: Annotated[int | None, typer.Option(help="Number of held-out tasks.")] = None,
    samples: Annotated[int | None, typer.Option(help="Samples of each task, for pass@k.")] = None,
    vote: Annotated[str | None, typer.Option(help="Let samples vote: count, or a reward component as weight.")] = None,
    corrupt: Annotated[float | None, typer.Option(help="Share of the words of observations to drop.")] = None,
    necessity: Annotated[
        str | None,
        typer.Option(help="Measure instead which steps of right attempts are needed: drop, or replace them."),
    ] = None,
    delimiter: Annotated[str, typer.Option(help="With --necessity: what ends a step.")] = "\n",
    best: Best = False,
    allow_key: AllowKey = None,
    as_json: Json = False,
) -> None:
    """Evaluate a run's newest checkpoint on the held-out tasks.

    Example: gxpo eval runs/arithmetic --samples 8 --vote count
    """
    from gxpo.training import checkpoint, config
    from gxpo.training.best import best_of
    from gxpo.training.loop import Trainer
    from gxpo.training.start import checkpoint_of, read_verified_config

    run = found_run(run)
    run_keys, _ = read_verified_config(run)
    # Callbacks and loggers belong to training: an evaluation must not write to the run's trackers.
    overrides = {"eval.tasks": tasks, "eval.samples": samples, "eval.vote": vote, "env.corrupt": corrupt}
    overrides |= {"trainer.callbacks": [], "logging.options": {}}
    # Options of the command line win over the run's own keys.
    run_keys |= {k: config.SettingValue(v, "argument") for k, v in overrides.items() if v is not None}
    checkpoint_path = checkpoint_of(run, best_of(run)["step"]) if best else checkpoint.latest(run)
    trainer = Trainer(config.resolve(run_keys), out=run, resume=True)
    # A model may hold processes and servers, which end even where the evaluation fails.
    try:
        figures = {"step": trainer.load(checkpoint_path)["step"]}
        if necessity is not None:
            from gxpo.training.necessity import report

            say(report(trainer, tasks or 32, samples or 8, delimiter, necessity, as_json=as_json))
            return
        figures |= trainer.evaluate().figures
    finally:
        trainer.close()
    if as_json:
        say(json.dumps(figures))
        return
    for name, value in figures.items():
        say(f"{name:<20} {value:g}")


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method or composition in full.")] = None,
    symptom: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="WORDS|RUN",
            help="What to try: for what goes wrong in your words, or for a run's own cause.",
        ),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="Only methods of this family; the bare command lists them.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Only methods whose name, idea, formula or settings have them.")
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="METHOD", help="Methods that share settings with it, most alike first.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="Only methods that change this stage: credit, objective, rollout...")
    ] = None,
    needs: Annotated[
        str | None, typer.Option(metavar="SIGNAL", help="Only methods that read this signal; `none`: no signal.")
    ] = None,
    evidence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIER",
            help="Only methods whose formula is from reference-code, paper, secondary or reconstruction; repeatable.",
        ),
    ] = None,
    cheap: Annotated[bool, typer.Option("--cheap", help="Only methods that cost no more than GRPO.")] = False,
    zero_variance: Annotated[
        str | None,
        typer.Option(
            metavar="zero|signal", help="Only methods for which groups of equal rewards have zero or some signal."
        ),
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option(
            "--in",
            metavar="trl|verl",
            help="Show which methods work in that trainer, its settings for them, and why others do not.",
        ),
    ] = None,
    lists_all: Annotated[bool, typer.Option("--all", help="List all methods, by stage.")] = False,
    as_json: Json = False,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="Print citations.")] = False,
) -> None:
    """List families of published methods, search them, show one, or recommend some for a problem in training.

    Example: gxpo methods gspo

    Example: gxpo methods --for "answers get longer without getting better" --cheap

    Example: gxpo methods --for outputs/my-trl-run

    Example: gxpo methods --search "length penalty"

    Example: gxpo methods --stage credit --needs none --zero-variance signal

    Example: gxpo methods --in trl --for "all-wrong groups"
    """
    # These choose among gxpo's own methods by facts that are not kept for other trainers.
    if trainer is not None and (
        family or search or like or stage or needs or evidence or cheap or zero_variance or bibtex
    ):
        raise typer.BadParameter("--in goes with a NAME, --for and --json alone")
    from gxpo.explain.methods import show

    say(
        show(
            name,
            symptom,
            trainer=trainer,
            as_json=as_json,
            bibtex=bibtex,
            lists_all=lists_all,
            conditions={
                "family": family,
                "search": search,
                "like": like,
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
    name: Annotated[str | None, typer.Argument(help="Show one part in full, with its options.")] = None,
    stage: Annotated[
        str | None,
        typer.Option(
            help="Only parts of this stage: credit, weight, rollout, segment, reward, signal, objective (surrogate, "
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


from gxpo.cli import best_of as _best_of  # noqa: E402, F401
from gxpo.cli import (  # noqa: E402, F401  # stand here in --help
    checks,
    compare,
    convert,
    examine,
    plan,  # `plan` stands here in --help
    serve,
    try_command,
)
from gxpo.cli import export as _export  # noqa: E402, F401
from gxpo.cli import tasks as _tasks  # noqa: E402, F401


@app.command()
def bench(
    suite: Annotated[
        str | None,
        typer.Argument(
            metavar="SUITE",
            help="credit, fidelity, sample, update, step, peer, limit, models, agreement or all.",
            show_default=False,
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Only rows whose names begin with this.", show_default=False),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each process; default: the cores.", min=1)] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of each side; default: the row's own.", min=1)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, smaller and fewer rows.")] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Measure even on a busy machine; its rows are marked.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Save each row as JSON; rows in the file are not measured again."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Plot the rows to a .svg, .png or .pdf file.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show a file of --out; measure nothing.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Python interpreter with gxpo\\[trl], for suites peer and agreement."),
    ] = None,
    vllm: Annotated[
        str | None, typer.Option(metavar="PATH", help="Python interpreter with vLLM, adds rows to suite sample.")
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

    # A failed measurement is exit code 1, after the rows that were finished have been shown.
    options = Options(threads, rounds, quick, anyway, out, plot, source, python, vllm, as_json)
    if failure := run_bench(suite, names or [], options):
        fail(failure, 1)


def main() -> None:
    """Run the command line. Exit code 0: success; 1: a run ended without a single scored rollout; 2: a user error
    (printed in one line); 130: interrupted."""
    # Taken out before typer parses: it may stand before or after any command.
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    # Before anything imports torch.
    set_library_variables()
    # A fork after a tokenizer's threads have started makes it print warnings.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with warnings.catch_warnings():
            # Warnings are shown in one line, as errors are.
            warnings.showwarning = _warn
            app()
    except Exception as error:
        if debug:
            say(traceback.format_exc().rstrip("\n"), err=True)
            sys.exit(1)
        fail(*_describe_error(error))
    except KeyboardInterrupt:
        fail("interrupted", 130)


def _describe_error(error: Exception) -> tuple[str, int]:
    """Message and exit code of an error, by whose mistake it is: the user's, the user's code, the system, or gxpo's."""
    from gxpo.base.errors import GxpoError
    from gxpo.base.usercode import place

    # An error of gxpo's own says what to change: the user's mistake.
    if isinstance(error, GxpoError):
        return str(error), 2
    description = f"{type(error).__name__}: {error}"
    # An error whose innermost frame is in the user's file is the user's, whatever its type.
    if frame := place(error):
        return f"{description} ({frame.filename} line {frame.lineno}, in {frame.name}; --debug shows the traceback)", 2
    # A full disk or a missing permission is named by the system.
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 2
    # Only where the module is loaded already: an error message must not import torch.
    if (runtime := sys.modules.get("gxpo.base.runtime")) is not None and (
        peer_message := runtime.lost_peer(error)
    ) is not None:
        return peer_message, 2
    return f"{description} (a bug in gxpo; --debug shows where)", 1


def _warn(message: Warning | str, category: type[Warning], filename: str, lineno: int, *args: Any) -> None:
    """Print a warning; of gxpo's own ones only the message, without the source line."""
    is_gxpo_warning = category is UserWarning and filename.startswith(str(Path(__file__).parents[1]))
    text = (
        f"gxpo: warning: {message}" if is_gxpo_warning else warnings.formatwarning(message, category, filename, lineno)
    )
    say(text.rstrip("\n"), err=True)


if __name__ == "__main__":
    main()
