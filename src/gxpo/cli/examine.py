"""Commands that examine a finished run: `gxpo doctor` diagnoses it, `gxpo explain` shows its advantages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gxpo.cli.options import AllowKey, Json, RunArgument, app, fail, found_run, say

if TYPE_CHECKING:
    from gxpo.doctor.rollouts import Rollouts

EXPLAIN_PAGE = Path("explain.html")  # written where neither --out nor --json is given


@app.command()
def doctor(
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="A run directory, or one of its files.", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the diagnosis as a page.")] = None,
    reward: Annotated[
        str,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="Call this reward function on the logged completions, too: one of a single completion with 5 s for "
            "each in a process of its own, all of them in a child that is ended after a minute.",
        ),
    ] = "",
    lists_sicknesses: Annotated[
        bool, typer.Option("--list", help="List every sickness it can diagnose, with its statistic.")
    ] = False,
    mappings: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="NAME=KEY", help="Take a column of the log for what NAME means (repeatable)."),
    ] = None,
    run: Annotated[str | None, typer.Option(help="The run to read, of a file that holds several.")] = None,
    as_json: Json = False,
) -> None:
    """Diagnose a training run from its logs: TRL, verl, NeMo-RL, slime, ROLL, SkyRL, AReaL, Trinity-RFT, gxpo, others.

    One cause first, its consequences under it, with evidence and remedies in that trainer's own keys. Exit code 0: no
    sickness found, 1: a warning or worse, 2: no verdict, since too little of the reward was read. No file that a run's
    configuration names is run; --reward names one that is.

    Example: gxpo doctor runs/arithmetic

    Example: gxpo doctor outputs/checkpoint-500 --json

    Example: gxpo doctor outputs --reward rewards.py:accuracy

    Example: gxpo doctor my.csv --map reward=train/rewards_mean
    """
    from gxpo.base.errors import GxpoError
    from gxpo.doctor import Diagnosis, diagnose, read
    from gxpo.doctor.text import sickness_list, text

    if lists_sicknesses:
        from gxpo.doctor.sickness import SICKNESSES, STAGES

        rows = [
            {"id": s.id, "stage": STAGES[s.stage], "title": s.title, "statistic": s.statistic, "needs": list(s.needs)}
            for s in sorted(SICKNESSES.values(), key=lambda s: s.stage)
        ]
        say(json.dumps(rows, indent=1) if as_json else sickness_list())
        return
    if path is None:
        fail("give a PATH: a run directory or one of its files (or --list)")
    # With --json, an unreadable path is a diagnosis, too: a script that parses the output need not catch an error.
    try:
        log = read(path, mapping=_mapping(mappings or []), run=run)
    except GxpoError as error:
        if not as_json:
            raise
        say(json.dumps(Diagnosis("unknown", [], notes=[str(error)]).as_json(), indent=1))
        raise typer.Exit(2) from None
    further = []
    if reward:
        from gxpo.explain.logged_reward import check

        rejection, line = check(log, reward)
        further = [] if rejection is None else [rejection]
        log.notes.append(line)
    diagnosis = diagnose(log, recompute=_signal_in_equal_groups, further=further)
    if html is not None:
        from gxpo.doctor.html import html as page

        try:
            html.write_text(page(diagnosis, log), encoding="utf-8", errors="replace")
        except OSError as error:
            fail(f"--html {html}: {error.strerror}; give a file in a directory that exists and can be written")
    say(json.dumps(diagnosis.as_json(), indent=1) if as_json else text(diagnosis))
    raise typer.Exit(diagnosis.exit_code)


def _signal_in_equal_groups(rollouts: Rollouts) -> Mapping[str, tuple[int, int]]:
    """Count signals in groups of equal rewards; a run without such groups needs no torch."""
    from gxpo.explain.run_signal import signal_in_equal_groups

    return signal_in_equal_groups(rollouts)


def _mapping(pairs: list[str]) -> dict[str, str]:
    """Parse NAME=KEY pairs; a key may hold further equals signs."""
    mapping = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if bad := next((pair for pair in pairs if "=" not in pair or not all(pair.split("=", 1))), None):
        fail(f"--map {bad}: give NAME=KEY, e.g. reward=train/rewards_mean")
    return mapping


@app.command()
def verify(
    run: RunArgument,
    steps: Annotated[int, typer.Option(help="Number of steps to recompute.", min=1)] = 3,
    allow_key: AllowKey = None,
    as_json: Json = False,
) -> None:
    """Recompute the log-probs of recorded rollouts from the checkpoints that sampled them, and locate differences.

    Names the cause where they differ: weights, age, support, edited records, temperature or precision, with the largest
    deviation and its place. Exit code 0: equal, 1: different, 2: can't tell, with what to save the next time. The
    result is in RUN/verify.json, too, where `gxpo doctor` reads it.

    Example: gxpo verify runs/arithmetic

    Example: gxpo verify runs/arithmetic --steps 10 --json
    """
    from gxpo.base.errors import GxpoError
    from gxpo.training.verify import Verification
    from gxpo.training.verify import verify as recompute

    path = found_run(run)
    # A run that can't be read is a result, too, for a script that parses the output.
    try:
        result = recompute(path, steps, notify=lambda line: say(line, err=True))
    except GxpoError as error:
        if not as_json:
            raise
        result = Verification(str(path), advice=str(error))
    say(json.dumps(result.as_json(), indent=1) if as_json else result.text())
    raise typer.Exit(result.exit_code)


@app.command()
def triage(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A run directory, or one of its files.")],
    step: Annotated[int | None, typer.Option(help="Only this step; default: all.")] = None,
    top: Annotated[int, typer.Option("--top", help="Number of rollouts to show.", min=1)] = 12,
    run: Annotated[str | None, typer.Option(help="The run to read, of a file that holds several.")] = None,
    as_json: Json = False,
) -> None:
    """Pick the rollouts of a run to read first, by signs that need no model: loops, failures, giving up, odd payments.

    Reads what the doctor reads: gxpo's records, TRL's tables, verl's dumps, others. A sign that most rollouts have
    weighs little, a rare one much. --json has the whole texts.

    Example: gxpo triage runs/arithmetic

    Example: gxpo triage outputs --step 40 --top 5
    """
    from gxpo.doctor import read
    from gxpo.explain.triage import as_data, text
    from gxpo.explain.triage import triage as triage_of

    log = read(path, run=run)
    result = triage_of(log, step=step, top=top)
    say(json.dumps(as_data(result, log), indent=1) if as_json else text(result, log))


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
        list[str] | None,
        typer.Option(
            "--methods",
            metavar="METHOD,...",
            help="Side by side, as `gxpo compare` takes them, with commas between or repeated; default: the run's own.",
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Only this step; default: a page of all steps, with --json the last.")
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(
            "--beside",
            metavar="RUN[@STEP]",
            help="Another run or checkpoint: its rollouts on the same tasks, under each group.",
        ),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the files that hold parts of the run's own method.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a run's rollouts: as trees, each token by advantage, weight and gradient, with the arithmetic.

    A slider chooses among up to twelve steps. The page fetches nothing and needs no server. No file that a run's
    configuration names is run without --trust.
    --json prints the rewards and advantages of every group instead.

    Example: gxpo explain runs/arithmetic --methods grpo,dr_grpo --out step.html

    Example: gxpo explain runs/arithmetic --methods grpo@trl,grpo:credit=mine.py:credit,mine.yaml

    Example: gxpo explain runs/arithmetic/evaluations --beside runs/arithmetic/evaluations@0

    Example: gxpo explain runs/arithmetic --json
    """
    from gxpo.compare.arms import parse_arm, split_arms
    from gxpo.explain.beside import SecondRun
    from gxpo.explain.rollout_page import as_data, looks_of, page_text, run_text
    from gxpo.explain.rollout_source import read, steps_of

    # The page is written by default; with --json alone the data take its place.
    if beside is not None and as_json and out is None:
        fail("--beside is shown on the page: give --out FILE.html with --json, or leave --json out")
    second_run = None if beside is None else SecondRun.parse(beside)
    arms = [parse_arm(text, {}) for option in methods or () for text in split_arms(option)]
    keys = {arm.label: arm.keys for arm in arms}
    steps = [s for s in steps_of(path) if s is not None]
    source = read(path, step, trust=trust)
    looks = looks_of(source, keys)
    if out is not None or not as_json:
        has_several = step is None and len(steps) > 1
        if has_several:
            page = run_text(path, steps, keys, trust=trust, beside=second_run)
        else:
            shown_step = step if step is not None else next(iter(steps), None)
            page = page_text(source, looks, beside=None if second_run is None else second_run.read(shown_step))
        to = out or EXPLAIN_PAGE
        try:
            to.write_text(page, encoding="utf-8", errors="replace")
        except OSError as error:
            fail(f"--out {to}: {error.strerror}; give a file in a directory that exists and can be written")
        if not as_json:
            say(f"{to}: {len(page.encode('utf-8', 'replace')) / 1e6:.1f} MB; open it in a browser")
    if as_json:
        say(json.dumps(as_data(source, looks) | ({} if out is None else {"page": str(out)}), indent=1))
