"""Commands that check and measure before a run: check-reward, check-model, check-template, check-env, signal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gxpo.cli.options import AllowKey, Json, Sets, app, quiet, say


@app.command()
def check_reward(
    reward: Annotated[str, typer.Argument(metavar="REWARD", help="my_rewards.py:function, or the name of a reward.")],
    task: Annotated[str, typer.Option(help="Name of a task, or a .jsonl file of prompts and answers.")],
    n: Annotated[int, typer.Option("--n", help="Number of tasks.", min=2)] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds that the reward may take for one completion.")] = 5.0,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is a finding.")] = False,
    as_json: Json = False,
) -> None:
    """Test a reward on right, wrong and cheating completions, before training.

    Example: gxpo check-reward my_rewards.py:exact --task data.jsonl
    """
    from gxpo.explain.check_reward import check, show

    report = check(reward, task, n=n, timeout=timeout)
    if as_json:
        say(json.dumps(report, indent=1))
    else:
        show(report)
    # A finding is no failure of the command, unless a script asks for it.
    if strict and report["findings"]:
        raise typer.Exit(1)


@app.command()
def check_template(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory, an id on the hub, or smollm2-135m.")],
    template: Annotated[Path | None, typer.Option(help="A .jinja file in place of the tokenizer's template.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a check fails.")] = False,
    as_json: Json = False,
) -> None:
    """Test a model's chat template on multi-turn conversations: earlier turns, tools, thinking.

    Example: gxpo check-template smollm2-135m
    """
    from gxpo.models import chat
    from gxpo.training.models.without_weights import tokenizer_of

    report = chat.check_template(tokenizer_of(model), None if template is None else str(template))
    say(json.dumps(report.to_dict(), indent=1) if as_json else report.text())
    if strict and not report.ok:
        raise typer.Exit(1)


@app.command()
def check_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory, an id on the hub, or tiny:cold.")],
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float64.")] = "float32",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is a problem.")] = False,
    as_json: Json = False,
) -> None:
    """Show how gxpo runs a model (fast or by transformers, and why), and compare sampler, learner and transformers.

    Example: gxpo check-model Qwen/Qwen2.5-0.5B-Instruct --dtype bfloat16
    """
    from gxpo.training.models.check import check

    # Before the model is loaded, which draws progress bars.
    quiet()
    report = check(model, dtype=dtype)
    say(json.dumps(report.to_dict(), indent=1) if as_json else report.text())
    if strict and report.problems:
        raise typer.Exit(1)


@app.command()
def check_env(
    task: Annotated[str, typer.Argument(metavar="TASK", help="my_env.py:MyEnv, or an environment's name.")],
    options: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the environment, as size=5; repeatable.")
    ] = None,
    episodes: Annotated[int, typer.Option(help="Number of seeds to play.", min=1)] = 8,
    horizon: Annotated[
        int, typer.Option("--horizon", help="Also search the effective horizon, up to so many actions ahead.", min=0)
    ] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is a problem.")] = False,
    as_json: Json = False,
) -> None:
    """Test an environment before training: play it at random and by its expert, twice; draw instances as a run does.

    Example: gxpo check-env sokoban --set style=bare
    """
    from dataclasses import asdict

    from gxpo.explain.check_env import check, horizon_of
    from gxpo.explain.horizon import text as horizon_text
    from gxpo.training import config

    # Options of the environment are parsed as settings are, so that 5 is a number.
    values = {k: s.value for k, s in config.parse_set(options or []).items()}
    report = check(task, values, episodes=episodes)
    search = horizon_of(task, values, horizon) if horizon else None
    if as_json:
        horizon_data = {} if search is None else {"horizon": {**vars(search), "success": [*search.success.items()]}}
        say(json.dumps(asdict(report) | horizon_data, indent=1))
    else:
        for name, value in asdict(report).items():
            text = "; ".join(map(str, value)) if isinstance(value, (tuple, list)) else value
            say(f"{name:<20} {text if text not in ('', None) else '-'}")
        if search is not None:
            say(horizon_text(search))
    if strict and report.problems:
        raise typer.Exit(1)


@app.command()
def signal(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A model, as in the setting `model`.", show_default=False)
    ] = None,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="A task, as in the setting `task`.", show_default=False)
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="NAMES",
            help="Methods, separated by commas; default: grpo, with --run the doctor's for groups of equal rewards.",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN|FILE", help="Rollouts to recompute, as `gxpo explain` reads them."),
    ] = None,
    step: Annotated[int | None, typer.Option(help="With --run: only this step; default: up to 8.")] = None,
    sizes: Annotated[
        str | None, typer.Option("--sizes", metavar="NUMBERS", help="Group sizes; default: 4,8,16.")
    ] = None,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks to measure on; default: 128.", min=3)] = None,
    sets: Sets = None,
    allow_key: AllowKey = None,
    as_json: Json = False,
) -> None:
    """Measure, before any training, how much of a step's gradient is signal, for methods and group sizes.

    Generates rollouts of the tasks and computes their gradients; no parameter changes. Reports the group size that
    needs the fewest generated tokens for the gradients of two batches to agree. With --run nothing is generated: the
    methods' advantages are recomputed on a run's rollouts and held against the run's own method.

    Example: gxpo signal tiny arithmetic --methods grpo,rloo --sizes 4,8

    Example: gxpo signal --run runs/arithmetic --methods dr_grpo,ngrpo
    """
    from gxpo.base.errors import ConfigError

    # Progress bars of the model would get between the lines of --json.
    quiet()
    names = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    if run is not None:
        measuring = {"MODEL": model, "TASK": task, "--sizes": sizes, "--tasks": tasks, "--set": sets}
        if unused := [name for name, value in measuring.items() if value]:
            raise ConfigError(f"--run recomputes finished rollouts and generates none: leave out {unused[0]}")
        _signal_of_run(run, names, step, as_json)
        return
    if model is None or task is None or step is not None:
        raise ConfigError("--step goes with --run" if step is not None else "give MODEL and TASK, or --run RUN")
    from gxpo.cli.checks import advice, show
    from gxpo.training import config
    from gxpo.training.gradient_signal import as_rows, measure, recommend

    try:
        group_sizes = [int(x) for x in (sizes or "4,8,16").split(",")]
    except ValueError:
        raise ConfigError(f"--sizes {sizes!r}: give whole numbers separated by commas, as in 4,8,16") from None
    # Progress goes to the error stream: standard output is the table, or JSON alone.
    settings = config.parse_set(sets or [])
    measurements = measure(
        model, task, names or ["grpo"], group_sizes, tasks or 128, settings, lambda line: say(line, err=True)
    )
    # A recommendation may be within the noise of the measurement, which the advice then says.
    best, is_decided = recommend(measurements)
    best_row = None if best is None else as_rows([best])[0]
    if as_json:
        say(
            json.dumps({"rows": as_rows(measurements), "recommended": best_row, "advice": advice(best_row, is_decided)})
        )
        return
    show(as_rows(measurements), best_row, is_decided)


def _signal_of_run(run: Path, methods: list[str] | None, step: int | None, as_json: bool) -> None:
    from gxpo.explain.run_signal import RECOMPUTED, as_data, show, signal_of_run

    result = signal_of_run(run, RECOMPUTED if methods is None else methods, step)
    if as_json:
        say(json.dumps(as_data(result), indent=1))
        return
    show(result)


def show(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None, told_apart: bool) -> None:
    """Print a row for each method and group size, and the one that needs the fewest tokens."""
    from rich.table import Table

    from gxpo.base import terminal

    table = Table(box=None, header_style="bold")
    columns = (
        "method",
        "group size",
        "agreement",
        "signal a task",
        "+-",
        "zero_signal_groups",
        "noise scale",
        "tokens a task",
        "tokens to agree",
        "against the first",
        "+-",
        "along",
    )
    for name in columns:
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        agree = row["tokens_to_agree"]
        table.add_row(
            row["method"],
            str(row["group_size"]),
            f"{row['agreement']:.3f}",
            f"{row['signal']:.4f}",
            f"{row['signal_error']:.4f}",
            f"{row['zero_signal_groups']:.0%}",
            "-" if row["noise_scale"] is None else f"{row['noise_scale']:,.0f}",
            f"{row['tokens_per_task']:.0f}",
            "-" if agree is None else f"{agree:,.0f}",
            "-" if row["relative"] is None else f"{row['relative']:.2f}",
            "-" if row["relative_error"] is None else f"{row['relative_error']:.2f}",
            "-" if row["along"] is None else f"{row['along']:.2f}",
        )
    # twelve columns of numbers need 145 columns of text; narrower, rich would cut them off
    console = terminal.console(width=max(145, terminal.console().width))
    console.print(
        "agreement: expected cosine of the gradients of two halves of these tasks; noise scale: tasks a step beyond "
        "which more of them hardly pay; tokens to agree: that two batches "
        "need each for a cosine of 1/2; against the first: signal per token over that of the first row; "
        "along: the cosine of the expected gradients",
        soft_wrap=True,
    )
    console.print(table)
    console.print(advice(best, told_apart), soft_wrap=True)


def advice(best: Mapping[str, Any] | None, told_apart: bool) -> str:
    """Return the recommended settings in one line."""
    if best is None:
        return (
            "No method has a signal here: its gradients on different tasks do not agree. More --tasks, or easier ones."
        )
    recommendation = f"rollout.group_size={best['group_size']} with {best['method']} needs the fewest tokens"
    if told_apart:
        return f"{recommendation}: set that."
    doubt = "but the next is within the error: more --tasks would tell them apart, or take what suits you."
    return f"{recommendation}, {doubt}"
