"""Claims of the papers at the size of two cores: verdicts on the runs of studies/claims.yaml.

    python scripts/claims.py                     # verdicts, from the runs that are there
    python scripts/claims.py --run --hours 4     # makes the runs that are missing (goes on where it was ended) first
    python scripts/claims.py --write             # docs/claims.md

The list says what each claim predicts and when it is held here; nothing here depends on a method.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gxpo.base.errors import ConfigError
from gxpo.compare.conclude import difference_spread
from gxpo.compare.inference import FEWEST_SEEDS, seed_interval
from gxpo.compare.results import COLLAPSED, Estimate
from gxpo.compare.wording import number
from predictors import correlations
from study import HERE, STORE, keys_of, list_runs, read_list, run, sides
from study_rows import digest, read_store, result_of, with_former

LIST = HERE / "studies" / "claims.yaml"
OTHERS = tuple(  # lists whose differences the predictors are held against, too
    HERE / "studies" / f"{name}.yaml" for name in ("remedies", "remedies_2", "remedies_3")
)
PAGE = HERE / "docs" / "claims.md"
HELD, NOT_SEEN, CANNOT = "held here", "not seen here", "can't be tested here"
Verdict = Literal["held here", "not seen here", "can't be tested here"]
LEAST_SPENT = 0.01  # share of the budget: what a target is said to cost that is reached at the start
ROOM = 0.02  # a base that gains less has no target to reach
Rows = Mapping[int, Mapping[str, Any]]  # seed -> row of the store


@dataclass(frozen=True)
class Prediction:
    """What a claim says of an arm against its base.

    measure    see the head of studies/claims.yaml
    direction  of the arm less the base; of a ratio, base over arm, "more" is less spent
    margin     of "equal"
    size       what the paper states, in the measure's unit; `ratio` of a ratio; nan: nothing
    target     share of the base's mean gain that has to be reached
    """

    measure: str
    direction: Literal["more", "less", "equal"]
    margin: float = math.nan
    size: float = math.nan
    ratio: float = math.nan
    target: float = 0.9

    def __post_init__(self) -> None:
        if self.direction not in ("more", "less", "equal"):
            raise ConfigError(f"{self.measure}: direction is more, less or equal, not {self.direction!r}")
        if self.direction == "equal" and not self.margin > 0:
            raise ConfigError(f"{self.measure}: a claim of equality needs a margin above 0")

    @property
    def unit(self) -> str | None:
        """Name what is counted until a target is reached; None where the measure is no such count."""
        return self.measure.removesuffix("_to_target") if self.measure.endswith("_to_target") else None


@dataclass(frozen=True)
class Finding:
    """An arm against its base.

    estimate      of the difference; of its logarithm where the prediction is of a ratio; None: there is none
    base, arm     means of the measure over the paired seeds, nan where the measure is not one of runs
    reached       runs of base and arm that reached the target, where there is one
    failed        runs that ended in an error
    waits         whether runs are missing without which there is no verdict
    """

    label: str
    against: str
    prediction: Prediction
    estimate: Estimate | None
    base: float
    arm: float
    verdict: Verdict
    reached: tuple[int, int] | None = None
    failed: int = 0
    why: str = ""
    waits: bool = False

    @property
    def verdict_text(self) -> str:
        return "not run yet" if self.waits else self.verdict


# ---------------------------------------------------------------- measures of a run
def value_of(row: Mapping[str, Any], measure: str) -> float:
    """Return the measure of one run; nan where it did not record it."""
    evaluations = row["evaluations"]
    if measure == "gain":
        return evaluations[-1]["eval_accuracy"] - evaluations[0]["eval_accuracy"]
    if measure == "collapsed":
        values = [e["eval_accuracy"] for e in evaluations]
        return float(values[-1] < COLLAPSED * max(values))
    kind, _, name = measure.partition(":")
    if kind in ("curve", "peak"):
        values = [v for _, v in row["curves"].get(name, [])]
        if not values:
            return math.nan
        if kind == "curve":
            return statistics.fmean(values[-max(1, len(values) // 4) :])
        middle = statistics.median(values)
        return max(values) / middle if middle else math.nan
    value = evaluations[-1].get(measure)
    return math.nan if value is None else float(value)


def cost_until(row: Mapping[str, Any], level: float, unit: str) -> tuple[float, bool]:
    """Return what the run spent until its held-out curve, linear between evaluations, first was at `level`, and whether
    it was; otherwise all that it spent. At least `LEAST_SPENT` of that."""
    points = [(float(e[unit]), float(e["eval_accuracy"])) for e in row["evaluations"]]
    total = points[-1][0]
    before = points[0]
    if before[1] >= level:
        return LEAST_SPENT * total, True
    for after in points[1:]:
        if after[1] >= level:
            share = (level - before[1]) / (after[1] - before[1])
            return max(before[0] + share * (after[0] - before[0]), LEAST_SPENT * total), True
        before = after
    return total, False


def complete_runs(rows: Rows) -> dict[int, Mapping[str, Any]]:
    """Select the runs that went on to their budget."""
    return {
        seed: row
        for seed, row in rows.items()
        if not row.get("trouble")
        and row["evaluations"]
        and all(e.get("eval_accuracy") is not None for e in row["evaluations"])
    }


# ---------------------------------------------------------------- differences and verdicts
def compare(prediction: Prediction, base: Rows, arm: Rows, label: str = "arm", against: str = "base") -> Finding:
    """Compare an arm with its base, paired by seed, and by held-out task where the measure is their mean verdict."""
    failures = len(base) + len(arm) - len(complete_runs(base)) - len(complete_runs(arm))
    base, arm = complete_runs(base), complete_runs(arm)
    seeds = sorted(set(base) & set(arm))

    def no_finding(why: str, waits: bool = False) -> Finding:
        return Finding(label, against, prediction, None, math.nan, math.nan, CANNOT, None, failures, why, waits)

    if len(seeds) < FEWEST_SEEDS:
        return no_finding(f"paired seeds: {len(seeds)}", waits=not failures)
    base_runs, arm_runs = [base[s] for s in seeds], [arm[s] for s in seeds]
    if (unit := prediction.unit) is not None:
        start = statistics.fmean(r["evaluations"][0]["eval_accuracy"] for r in base_runs)
        gain = statistics.fmean(value_of(r, "gain") for r in base_runs)
        if gain < ROOM:
            return no_finding(f"the base gained {number(gain, 3, sign=True)}: no target to reach")
        costs = [
            [cost_until(r, start + prediction.target * gain, unit) for r in side] for side in (base_runs, arm_runs)
        ]
        logs = [math.log(b / a) for (b, _), (a, _) in zip(*costs, strict=True)]
        estimate, reached = seed_interval(logs), (sum(x for _, x in costs[0]), sum(x for _, x in costs[1]))
        if not any(reached):
            return no_finding("no run reached the target")
        means = [statistics.fmean(x for x, _ in side) for side in costs]
        verdict = judge(prediction, estimate)
        return Finding(label, against, prediction, estimate, means[0], means[1], verdict, reached, failures)
    values = [[value_of(r, prediction.measure) for r in side] for side in (base_runs, arm_runs)]
    if any(math.isnan(x) for side in values for x in side):
        return no_finding(f"the runs have no {prediction.measure}")
    if prediction.measure == "gain":
        estimate = seed_interval(values[1])
    elif prediction.measure == "eval_accuracy":
        pairs = [(result_of(a, label), result_of(b, against)) for b, a in zip(base_runs, arm_runs, strict=True)]
        estimate = difference_spread(pairs, "eval_accuracy").estimate()
    else:
        estimate = seed_interval([a - b for b, a in zip(*values, strict=True)])
    b, a = (statistics.fmean(side) for side in values)
    return Finding(label, against, prediction, estimate, b, a, judge(prediction, estimate), None, failures)


def judge(prediction: Prediction, estimate: Estimate | None) -> Verdict:
    """Give the verdict by the rule at the head of studies/claims.yaml. `estimate` of a ratio is of its logarithm."""
    if estimate is None or not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return CANNOT
    low, high = estimate.low, estimate.high
    if prediction.direction == "equal":
        if max(abs(low), abs(high)) <= prediction.margin:
            return HELD
        return NOT_SEEN if low > 0 or high < 0 else CANNOT
    if prediction.direction == "less":
        low, high = -high, -low
    if low > 0:
        return HELD
    size = abs(math.log(prediction.ratio) if prediction.unit is not None else prediction.size)
    return CANNOT if high >= size else NOT_SEEN


def findings(
    plan: Mapping[str, Any], part: Mapping[str, Any], predicts: Mapping[str, Any], store: Mapping[Any, Any]
) -> list[Finding]:
    """Compare each arm of an experiment or of its varied condition; an arm with `predicts` of its own is held to
    that."""
    setting, n = plan["settings"][part["setting"]], part["seeds"]
    base = runs_of(setting, part["base"], n, store)
    return [
        compare(
            Prediction(**(arm.get("predicts") or predicts)),
            base,
            runs_of(setting, arm, n, store),
            arm["label"],
            part["base"]["label"],
        )
        for arm in part["arms"]
    ]


def runs_of(
    setting: Mapping[str, Any], arm: Mapping[str, Any], seeds: int, store: Mapping[Any, Any]
) -> dict[int, Mapping[str, Any]]:
    name = digest(keys_of(setting, arm))
    return {seed: store[name, seed] for seed in range(seeds) if (name, seed) in store}


def run_commits(plan: Mapping[str, Any], store: Mapping[Any, Any]) -> dict[tuple[str, int], str]:
    """Map (configuration, seed) of the list's runs that are there to the commit that made them."""
    commits: dict[tuple[str, int], str] = {}
    for e in plan["experiments"]:
        for setting, arms, n in sides(plan, e):
            names = [digest(keys_of(setting, arm)) for arm in arms]
            commits |= {
                (name, s): store[name, s].get("commit", "") for name in names for s in range(n) if (name, s) in store
            }
    return commits


def varied_condition(experiment: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the varied condition with what it inherits, and what it predicts."""
    varied = {**{k: experiment[k] for k in ("setting", "seeds", "base")}, **experiment["varied"]}
    return varied, varied.get("predicts") or experiment["predicts"]


def describe_change(main: Finding, varied: Finding) -> str:
    """Say in a few words what the varied condition did to the claim."""
    if main.waits or varied.waits:
        return ""
    if (main.prediction.measure, main.prediction.direction) != (varied.prediction.measure, varied.prediction.direction):
        return "as predicted there" if varied.verdict == HELD else "not as predicted there"
    if CANNOT in (main.verdict, varied.verdict):
        return "can't be told" if varied.verdict == CANNOT else f"{varied.verdict.removesuffix(' here')} there"
    if main.verdict == varied.verdict:
        return "there, too" if main.verdict == HELD else "nor there"
    return "appears" if varied.verdict == HELD else "vanishes"


# ---------------------------------------------------------------- the page
PLACES = {"eval_length": 1, "curve:entropy": 4, "peak:grad_norm": 2, "collapsed": 2}


def difference_text(finding: Finding) -> str:
    """Format the difference with its interval, or why there is none."""
    e, p = finding.estimate, finding.prediction
    if e is None:
        return finding.why
    if p.unit is not None:
        low, mean, high = (f"{math.exp(x):.2f}" for x in (e.low, e.mean, e.high))
        reached = finding.reached or (0, 0)
        return f"{mean} ({low} to {high}) times; target reached by {reached[1]} of {e.n} seeds, base {reached[0]}"
    places = PLACES.get(p.measure, 3)
    low, mean, high = (number(x, places, sign=True) for x in (e.low, e.mean, e.high))
    sides = "" if p.measure == "gain" else f"{number(finding.arm, places)} - {number(finding.base, places)}: "
    return f"{sides}{mean} ({low} to {high}), {e.n} seeds"


def prediction_text(p: Prediction) -> str:
    """Say in a few words what is claimed."""
    if p.unit is not None:
        size_text = "" if math.isnan(p.ratio) else f", {p.ratio:g} times by the paper"
        return f"fewer {p.unit} to the target{size_text}"
    if p.direction == "equal":
        return f"{p.measure} within {number(p.margin, 4 if p.margin < 0.001 else 2)}"
    size_text = "" if math.isnan(p.size) else f", {number(p.size, 3, sign=True)} by the paper"
    return f"{p.direction} {p.measure}{size_text}"


def table(plan: Mapping[str, Any], store: Mapping[Any, Any]) -> list[str]:
    """Build a row of Markdown for each claim."""
    lines = ["| claim | predicted | found (95 %) | verdict | one condition varied | found there | |", "|---" * 7 + "|"]
    for e in plan["experiments"]:
        main = findings(plan, e, e["predicts"], store)
        varied, predicts = varied_condition(e)
        varied_finding = findings(plan, varied, predicts, store)[0]
        lines.append(
            f"| `{e['id']}` | {prediction_text(main[0].prediction)} | {difference_text(main[0])} | "
            f"**{main[0].verdict_text}** | {varied['condition']} | {difference_text(varied_finding)} | "
            f"{describe_change(main[0], varied_finding)} |"
        )
    return lines


def notes(plan: Mapping[str, Any], store: Mapping[Any, Any]) -> list[str]:
    """Build a note for each claim: its words and setting, our experiment, and the second part of the claim."""
    lines = []
    for e in plan["experiments"]:
        main = findings(plan, e, e["predicts"], store)
        more = [f"{f.label}: {difference_text(f)}" for f in main[1:]]
        if "also" in e:
            first = findings(plan, {**e, "arms": e["arms"][:1]}, e["also"], store)[0]
            more.append(
                f"also claimed, {prediction_text(first.prediction)}: {difference_text(first)}, {first.verdict_text}"
            )
        failures = max(f.failed for f in main)
        more += [f"{failures} runs failed"] if failures else []
        more += [f"known before: {e['known']}"] if "known" in e else []
        text = (
            f"- `{e['id']}` ([{e['arxiv']}](https://arxiv.org/abs/{e['arxiv']})): *{e['claim']}* "
            f"{e['their_setting']}; read: {e['read']}. Here: {e['here']} `{main[0].label}` against "
            f"`{main[0].against}`, {e['seeds']} seeds. {'; '.join(more)}"
        )
        lines.append(" ".join(text.split()).rstrip("; ") + ".")
    lines += [
        " ".join(f"- `{u['id']}`: *{u['claim']}* **{CANNOT}**: {u['why']}.".split()) for u in plan.get("untested", ())
    ]
    return lines


def page(plan: Mapping[str, Any], lists: Sequence[Mapping[str, Any]], store: Mapping[Any, Any]) -> str:
    """Return the text of docs/claims.md."""
    verdicts: list[str] = [findings(plan, e, e["predicts"], store)[0].verdict_text for e in plan["experiments"]]
    verdicts += [CANNOT for _ in plan.get("untested", ())]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in (HELD, NOT_SEEN, CANNOT, "not run yet") if v in verdicts)
    commit_by_run, n_planned = run_commits(plan, store), len({(digest(k), s) for k, s in list_runs([plan])})
    commits = sorted(set(commit_by_run.values()))
    intro = (
        "prints the table below from the runs in `studies/runs.jsonl.gz`; `--run` makes what is missing. Of "
        f"{len(verdicts)} claims: {counts}. The list (`studies/claims.yaml`: claim, arms, measure, prediction, rule of "
        f"the verdict) was committed as {commit_of(LIST)}, before any of its runs, of which {len(commit_by_run)} of "
        f"{n_planned} are there"
    )
    return "\n".join(
        [
            "# Headline claims of the papers, put to the test at the size of two cores",
            "",
            "```bash",
            "python scripts/claims.py",
            "```",
            "",
            intro + (f" (at {', '.join(commits)})." if commits else "."),
            "",
            "A policy of this size, on sums and frozen lakes, can show that a mechanism works, not that it does not "
            "elsewhere. *Not seen here* says that the interval holds no difference on the claimed side, *can't be "
            "tested here* that it holds both none and the one that the paper states, or that the measure does not "
            "exist here. Differences are of the arm less the base, paired by seed and held-out task, equal budgets; "
            "ratios are what the base spends over what the arm spends until the target. One learning rate each.",
            "",
            *table(plan, store),
            "",
            "## Claims, settings, experiments",
            "",
            *notes(plan, store),
            "",
            "## Was the order foreseeable?",
            "",
            "Both measures are taken before any training; the differences are of held-out accuracy at the end.",
            "",
            *[f"- {line}" for line in correlations(lists, store)],
            "",
        ]
    )


def commit_of(path: Path) -> str:
    """Return the commit that added a file, with its date; `not yet` where there is none."""
    command = ["git", "log", "--diff-filter=A", "--format=%h (%cs)", "--", str(path)]
    log = subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=False)
    return (log.stdout.strip().splitlines() or ["not yet"])[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="make the runs that are missing first")
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write docs/claims.md")
    arguments = parser.parse_args()
    plan = read_list(LIST)
    lists = [plan, *(read_list(path) for path in OTHERS if path.exists())]
    if arguments.run:
        n_missing = run([plan], hours=arguments.hours, workers=arguments.workers, folder=HERE / "runs" / "studies")
        print(f"{n_missing} runs are still missing; the same command goes on" if n_missing else "all runs are there")
    store = with_former(read_store(STORE))
    print("\n".join([*table(plan, store), "", *correlations(lists, store)]))
    if arguments.write:
        PAGE.write_text(page(plan, lists, store))


if __name__ == "__main__":
    main()
