"""Kill samplers, rewarders, environments, trainer ranks and controllers of small runs at random moments.

    python scripts/checks/chaos.py --kills 30 --seed 0        # goes on where it was stopped
    python scripts/checks/chaos.py --report                   # the table of what has run

Each run is compared with a calm one of the same configuration: lines of metrics and evaluations (clock and memory
apart), rollouts with their log-probs, the tensors of the last checkpoint, and the prompts that were trained: none lost,
none twice. A line of studies/chaos.jsonl a kill. The runs themselves are in `chaos_runs.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chaos_outcome import Kill, Outcome, differences
from chaos_runs import SETTINGS, fleet, survive

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "studies" / "chaos.jsonl"
ACTING = 0.75  # share of kills of samplers and workers that wait until these have something under way
ORDER = ("served", "sharded", "served", "parallel")  # settings of the runs, in turn


def plan_kills(seed: int, run: int, calm_seconds: float, steps: int) -> list[Kill]:
    """Draw the kills of one run: who, after which step, and how long after."""
    chance = random.Random(f"{seed}/{run}")
    victims = SETTINGS[ORDER[run % len(ORDER)]].victims
    targets = chance.sample(victims, chance.randint(2, len(victims)))
    kills = [
        Kill(
            who,
            chance.randrange(steps),
            chance.uniform(0.0, 2 * calm_seconds / steps),
            acting=who in ("sampler", "rewarder", "environment") and chance.random() < ACTING,
        )
        for who in targets
    ]
    return sorted(kills, key=lambda kill: kill.step)


def rows_of(
    seed: int, run: int, kills: list[Kill], outcome: Outcome, run_differences: list[str]
) -> list[dict[str, Any]]:
    """Make a row for each kill that was carried out; the differences are of the run as a whole."""
    common = {
        "seed": seed,
        "run": run,
        "setting": ORDER[run % len(ORDER)],
        "planned": len(kills),
        "starts": outcome.starts,
        "seconds": round(outcome.seconds, 1),
        "prompts": outcome.prompts,
        "differences": run_differences,
    }
    return [
        {**common, "victim": k.victim, "step": k.step, "delay": round(k.delay, 3), "acting": k.acting, **k.progress}
        for k in outcome.kills
    ]


def study(folder: Path, seed: int, kills: int, done: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of one run after another, until there are so many kills."""
    calm_outcomes: dict[str, Outcome] = {}
    count, run = len(done), max((row["run"] + 1 for row in done), default=0)
    with fleet(folder, 2) as servers:
        while count < kills:
            name = ORDER[run % len(ORDER)]
            if name not in calm_outcomes:
                calm_outcomes[name] = survive(SETTINGS[name], folder / f"calm-{name}", [], servers)
                print(
                    f"calm {name}: {calm_outcomes[name].seconds:.0f} s, {calm_outcomes[name].prompts} prompts",
                    flush=True,
                )
            plan = plan_kills(seed, run, calm_outcomes[name].training_seconds, SETTINGS[name].steps)
            outcome = survive(SETTINGS[name], folder / f"run-{run}", plan, servers)
            run_differences = differences(calm_outcomes[name], outcome)
            new_rows = rows_of(seed, run, plan, outcome, run_differences)
            yield new_rows
            count, run = count + len(new_rows), run + 1
            victims = ", ".join(row["victim"] for row in new_rows)
            print(f"{name} {run - 1}: killed {victims} in {outcome.seconds:.0f} s, {outcome.starts} starts: "
                  f"{'; '.join(run_differences) or 'equal'}", flush=True)  # fmt: skip


def report(rows: list[dict[str, Any]]) -> None:
    """Print kills by setting and victim, and what differed from the calm runs."""
    runs = {(r["seed"], r["run"]): r for r in rows}
    print("| runs | kills | of which | with something under way | equal to the calm run | prompts trained |")
    print("|---|---|---|---|---|---|")
    for name in SETTINGS:
        setting_rows = [r for r in rows if r["setting"] == name]
        if not setting_rows:
            continue
        setting_runs = [r for r in runs.values() if r["setting"] == name]
        victims = ", ".join(f"{n} {victim}" for victim, n in Counter(r["victim"] for r in setting_rows).most_common())
        n_acting = sum(r.get("acting", False) for r in setting_rows)
        n_equal = sum(not r["differences"] for r in setting_runs)
        prompts = sum(r["prompts"] for r in setting_runs)
        print(
            f"| {name} | {len(setting_rows)} | {victims} | {n_acting} | {n_equal} of {len(setting_runs)} | {prompts} |"
        )
    for (seed, run), row in runs.items():
        for difference in row["differences"]:
            print(f"seed {seed}, run {run} ({row['setting']}): {difference}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--keep", type=Path, help="folder in which the runs stay; default: they are removed")
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.is_file() else []
    seed_rows = [r for r in rows if r["seed"] == arguments.seed]
    if not arguments.report:
        with tempfile.TemporaryDirectory(prefix="gxpo-chaos-") as scratch:
            for new_rows in study(arguments.keep or Path(scratch), arguments.seed, arguments.kills, seed_rows):
                with open(arguments.out, "a", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in new_rows)
                rows += new_rows
    report(rows)


if __name__ == "__main__":
    main()
