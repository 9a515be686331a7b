"""`gxpo tasks` shows a task source before a run; `gxpo filter-tasks` selects tasks that a model can learn from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gxpo.cli.options import Json, Sets, app, quiet, resolved_of, say


@app.command()
def tasks(
    task: Annotated[
        str, typer.Argument(metavar="TASK|CONFIG", help="A data file, the name of a task, or a configuration (.yaml).")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Show prompts in this model's chat template and count its tokens; default: CONFIG's."),
    ] = None,
    reward: Annotated[str | None, typer.Option(help="my_rewards.py:function, or the name of a reward.")] = None,
    n: Annotated[
        int, typer.Option("--n", help="Number of training and of held-out tasks, if they are generated.", min=2)
    ] = 512,
    show: Annotated[int, typer.Option("--show", help="Number of prompts printed in full.", min=0, max=8)] = 1,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Show what a model is asked and how its answers are scored: prompts, lengths, duplicates, leakage, the reward.

    Nothing is trained and only a tokenizer is loaded. Exit code 0: warnings say what to change.

    Example: gxpo tasks data.jsonl --model smollm2-135m

    Example: gxpo tasks examples/arithmetic.yaml --json
    """
    from gxpo.cli.tasks import text
    from gxpo.explain.task_report import report
    from gxpo.training import config

    # A bare data file has no model: a tokenizer is loaded only where one is stated.
    from_file = Path(task).suffix in (".yaml", ".yml")
    base = config.read(task) if from_file else {"task": config.SettingValue(task, "argument")}
    overrides: dict[str, Any] = {"model": model, "reward": reward}
    options = {k: config.SettingValue(v, "argument") for k, v in overrides.items() if v is not None}
    settings = config.resolve(config.over(config.over(base, config.parse_set(sets or [])), options)).settings
    model_name = settings.model if from_file or model is not None else None
    if model_name is not None:
        quiet()
    summary = report(settings, model=model_name, n=n)
    say(json.dumps(summary, indent=1) if as_json else text(summary, show))


@app.command("filter-tasks")
def filter_tasks(
    config_file: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the run.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE.jsonl", help="File for the selected tasks, one per line.")
    ],
    rollouts: Annotated[int, typer.Option(help="Attempts at each task.", min=1)] = 8,
    low: Annotated[float, typer.Option(help="Lowest success rate to keep.", min=0, max=1)] = 0.1,
    high: Annotated[float, typer.Option(help="Highest success rate to keep.", min=0, max=1)] = 0.9,
    n: Annotated[int, typer.Option("--n", help="Number of tasks, if they are generated.", min=1)] = 512,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Attempt every training task with the model and keep those of middling success rate; nothing is trained.

    Held-out tasks are written beside the file, to FILE_held_out.jsonl. `tasks.sampler=band` does the same in a run.

    Example: gxpo filter-tasks examples/arithmetic.yaml --n 64 --out middling.jsonl
    """
    from gxpo.training.filter_tasks import filter_tasks as measure

    resolved = resolved_of(config_file, sets)
    # The model is loaded quietly: standard output is the result.
    quiet()
    # Attempts are those of the run's own settings, so that rates are those which training would see.
    result = measure(
        resolved,
        out,
        rollouts=rollouts,
        low=low,
        high=high,
        n=n,
        notify=lambda line: say(line, err=True),
    )
    if as_json:
        say(json.dumps(result, indent=1))
        return
    say(
        f"{result['kept']} of {result['tasks']} tasks kept, of success rate {low:g} to {high:g} in {rollouts} attempts"
        f": {result['below']} were below ({result['all_wrong']} all wrong), {result['above']} above "
        f"({result['all_right']} all right); {result['generated_tokens']} tokens\n"
        f"train on them: task={result['out']} tasks.options.held_out={result['held_out']}, and the reward by name"
    )


def text(report: Mapping[str, Any], show: int = 1) -> str:
    """Format a report of `task_report.report` for a terminal, with the first `show` prompts in full."""
    kind = "" if report["complete"] else ", generated: as many as were asked for"
    lines = [f"{report['task']}: {report['training']} training tasks, {report['held_out']} held out{kind}"]
    if report["model"] is None:
        lines.append("lengths in characters; --model MODEL shows prompts as that model sees them, and counts tokens")
    else:
        limit = "no limit" if report["context_limit"] is None else f"{report['context_limit']:,} tokens"
        lines.append(f"model {report['model']}: context {limit}, sampling.max_new_tokens={report['max_new_tokens']}")
    lines += ["", *_columns(report), "", *_lengths(report)]
    for prompt in report["prompts"][:show]:
        lines += ["", f"prompt of {prompt['id']} (answer {prompt['answer']!r}):", *_indent(prompt["text"])]
    lines += ["", *_reward(report["reward"]), ""]
    lines += [f"warning: {w}" for w in report["warnings"]] or ["no warning"]
    return "\n".join(lines)


def _columns(r: Mapping[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("column", "tasks", "kind", "first")]
    for name, entry in r["columns"].items():
        rows.append((name, str(entry["tasks"]), ", ".join(entry["kinds"]), entry["example"]))
    return _align(rows)


def _lengths(r: Mapping[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [(f"length in {r['unit']}", "min", "median", "max")]
    for name, key in (("prompt", "prompt_lengths"), ("answer", "answer_lengths")):
        if (lengths := r[key]) is not None:
            rows.append((name, *(f"{lengths[x]:g}" for x in ("min", "median", "max"))))
    return _align(rows)


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _indent(text: str) -> list[str]:
    return [f"  | {line}" for line in text.split("\n")]


def _reward(reward: Mapping[str, Any] | None) -> list[str]:
    if reward is None:
        return ["no reward was tried: no task has an answer"]
    if "skipped" in reward:
        return [reward["skipped"]]
    score_by_form = {name: "unscored" if value is None else f"{value:.3g}" for name, value in reward["forms"].items()}
    right = f"reference answer {score_by_form[reward['form']]}, written as {reward['example'][:60]!r}"
    other_scores = ", ".join(
        f"{name} {'-' if reward[name] is None else f'{reward[name]:.3g}'}" for name in ("empty", "wrong")
    )
    return [
        f"reward {reward['name']} on {reward['tasks']} tasks, mean: {right}; {other_scores}",
        "  in other forms: "
        + ", ".join(f"{name} {value}" for name, value in score_by_form.items() if name != reward["form"]),
    ]
