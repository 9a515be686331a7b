"""Chaos: samplers, rewarders, environments, trainer ranks and controllers of small runs are killed at random moments.

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


def planned(seed: int, run: int, calm_seconds: float, steps: int) -> list[Kill]:
    """The kills of one run: who, after which step, and how long after."""
    chance = random.Random(f"{seed}/{run}")
    victims = SETTINGS[ORDER[run % len(ORDER)]].victims
    chosen = chance.sample(victims, chance.randint(2, len(victims)))
    actual = [
        Kill(
            who,
            chance.randrange(steps),
            chance.uniform(0.0, 2 * calm_seconds / steps),
            acting=who in ("sampler", "rewarder", "environment") and chance.random() < ACTING,
        )
        for who in chosen
    ]
    return sorted(actual, key=lambda kill: kill.step)


def rows_of(seed: int, run: int, kills: list[Kill], outcome: Outcome, found: list[str]) -> list[dict[str, Any]]:
    """A line for each kill that was carried out; what was found is of the run as a whole."""
    common = {
        "seed": seed,
        "run": run,
        "setting": ORDER[run % len(ORDER)],
        "planned": len(kills),
        "starts": outcome.starts,
        "seconds": round(outcome.seconds, 1),
        "prompts": outcome.prompts,
        "differences": found,
    }
    return [
        {**common, "victim": k.victim, "step": k.step, "delay": round(k.delay, 3), "acting": k.acting, **k.told}
        for k in outcome.kills
    ]


def study(folder: Path, seed: int, kills: int, done: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Lines of one run after another, until there are so many kills."""
    calm: dict[str, Outcome] = {}
    count, run = len(done), max((row["run"] + 1 for row in done), default=0)
    with fleet(folder, 2) as servers:
        while count < kills:
            name = ORDER[run % len(ORDER)]
            if name not in calm:
                calm[name] = survive(SETTINGS[name], folder / f"calm-{name}", [], servers)
                print(f"calm {name}: {calm[name].seconds:.0f} s, {calm[name].prompts} prompts", flush=True)
            plan = planned(seed, run, calm[name].training_seconds, SETTINGS[name].steps)
            outcome = survive(SETTINGS[name], folder / f"run-{run}", plan, servers)
            actual = differences(calm[name], outcome)
            new = rows_of(seed, run, plan, outcome, actual)
            yield new
            count, run = count + len(new), run + 1
            victims = ", ".join(row["victim"] for row in new)
            print(f"{name} {run - 1}: killed {victims} in {outcome.seconds:.0f} s, {outcome.starts} starts: "
                  f"{'; '.join(actual) or 'equal'}", flush=True)  # fmt: skip


def report(rows: list[dict[str, Any]]) -> None:
    """Kills by setting and victim; what differed from the calm runs."""
    runs = {(r["seed"], r["run"]): r for r in rows}
    print("| runs | kills | of which | with something under way | equal to the calm run | prompts trained |")
    print("|---|---|---|---|---|---|")
    for name in SETTINGS:
        own_rows = [r for r in rows if r["setting"] == name]
        if not own_rows:
            continue
        mine = [r for r in runs.values() if r["setting"] == name]
        victims = ", ".join(f"{n} {victim}" for victim, n in Counter(r["victim"] for r in own_rows).most_common())
        acting = sum(r.get("acting", False) for r in own_rows)
        equal = sum(not r["differences"] for r in mine)
        prompts = sum(r["prompts"] for r in mine)
        print(f"| {name} | {len(own_rows)} | {victims} | {acting} | {equal} of {len(mine)} | {prompts} |")
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
    own_rows = [r for r in rows if r["seed"] == arguments.seed]
    if not arguments.report:
        with tempfile.TemporaryDirectory(prefix="gxpo-chaos-") as built_tempfile:
            for new in study(arguments.keep or Path(built_tempfile), arguments.seed, arguments.kills, own_rows):
                with open(arguments.out, "a", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in new)
                rows += new
    report(rows)


if __name__ == "__main__":
    main()
