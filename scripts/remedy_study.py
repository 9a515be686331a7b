"""Which remedy helps which sick run: differences from the untreated run on the lists studies/remedies*.yaml.

    python scripts/remedy_study.py                     # tables, from the runs that are there
    python scripts/remedy_study.py --run --hours 4     # first the pilot, then more seeds of what was ahead in it
    python scripts/remedy_study.py --write             # docs/remedies.md, and what gxpo doctor and gxpo methods quote

The pilot (the first seeds of each experiment) says what gets more seeds. Where there are more, the pilot's are left out
of the estimate: what was chosen for being ahead is ahead of its worth in the runs that chose it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from claims import commit_of, cost_until, runs_of
from gxpo.compare.conclude import difference_spread, has_collapsed, trouble
from gxpo.compare.inference import FEWEST_SEEDS, Spread, holm, mean_over_settings
from gxpo.compare.results import Estimate, RunResult
from gxpo.compare.wording import count, interval, number
from gxpo.doctor.evidence import PATH, Measurement, OfTask, to_json
from study import HERE, STORE, read_list, run
from study_rows import read_store, result_of, with_former

LISTS = tuple(HERE / "studies" / name for name in ("remedies.yaml", "remedies_2.yaml", "remedies_3.yaml"))
PAGE = HERE / "docs" / "remedies.md"
MOST_SEEDS = 100
CHOSEN, OF_EACH = 8, 2  # remedies that get more seeds: in all, of one sickness
ALPHA = 0.05

Store = Mapping[Any, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Side:
    """An arm of an experiment.

    pilot, rows   seed -> row of the store: of the first seeds, and those that the estimate is made of
    failed        runs that ended before their budget
    """

    label: str
    remedy: str
    keys: Mapping[str, Any]
    pilot: Mapping[int, Row]
    rows: Mapping[int, Row]
    failed: int

    def results(self, rows: Mapping[int, Row]) -> dict[int, RunResult]:
        results = {seed: result_of(row, self.label) for seed, row in rows.items()}
        return {seed: r for seed, r in results.items() if not trouble(r)}


# ---------------------------------------------------------------- runs
def read_lists() -> dict[str, Any]:
    """Read all experiments as one list."""
    plans = [read_list(path) for path in LISTS]
    settings = {name: setting for plan in plans for name, setting in plan["settings"].items()}
    return {"settings": settings, "experiments": [e for plan in plans for e in plan["experiments"]]}


def sides_of(plan: Mapping[str, Any], experiment: Mapping[str, Any], store: Store) -> tuple[Side, list[Side]]:
    """Return the untreated side and the remedies'."""
    setting, pilot = plan["settings"][experiment["setting"]], experiment["seeds"]

    def side(arm: Mapping[str, Any]) -> Side:
        rows = runs_of(setting, arm, MOST_SEEDS, store)
        pilot_rows = {s: r for s, r in rows.items() if s < pilot}
        fresh_rows = {s: r for s, r in rows.items() if s >= pilot}
        failures = sum(bool(r["trouble"]) for r in rows.values())
        keys = arm["keys"]
        return Side(
            arm["label"],
            arm.get("remedy", ""),
            keys,
            pilot_rows,
            fresh_rows if len(fresh_rows) > pilot else pilot_rows,
            failures,
        )

    return side(experiment["base"]), [side(arm) for arm in experiment["arms"]]


def spread(arm: Side, base: Side, rows: str = "rows") -> Spread | None:
    """Return the paired difference at the end, over seeds and held-out tasks; None with fewer than three pairs. `base`
    has more seeds than an arm without fresh ones."""
    arm_results = arm.results(getattr(arm, rows))
    base_results = base.results({**base.pilot, **base.rows})
    pairs = [(arm_results[s], base_results[s]) for s in sorted(arm_results) if s in base_results]
    return difference_spread(pairs, "eval_accuracy") if len(pairs) >= FEWEST_SEEDS else None


def sicknesses_of(experiment: Mapping[str, Any]) -> list[str]:
    """Return the ids of the experiment's sicknesses."""
    text = experiment["sickness"]
    return [text] if isinstance(text, str) else list(text)


# ---------------------------------------------------------------- whether they were sick
def curve(rows: Mapping[int, Row], name: str) -> tuple[float, float]:
    """Return the mean over runs of the first and of the last stretch of a metric of training; nan where none recorded
    it."""
    curves = [r["curves"][name] for r in rows.values() if r["curves"].get(name)]
    return (fmean(c[0][1] for c in curves), fmean(c[-1][1] for c in curves)) if curves else (math.nan, math.nan)


SIGNS: Mapping[str, tuple[str, ...]] = {  # sickness -> metrics that show it
    "all_wrong": ("zero_signal_groups", "success_rate"),
    "all_right": ("zero_signal_groups", "success_rate"),
    "reward_noise": ("success_rate",),
    "length_hack": ("length_mean", "success_rate"),
    "entropy_collapse": ("entropy", "success_rate"),
    "lr_too_high": ("success_rate", "grad_norm"),
    "too_off_policy": ("clip_fraction", "approx_kl"),
    "stale_sampler": ("success_rate",),
    "sampler_mismatch": ("sampler_gap_mean",),
}


def was_sick(name: str, rows: Mapping[int, Row]) -> bool:
    """Tell whether the untreated runs had the sickness, by thresholds that were fixed before the study ran."""
    at = {metric: curve(rows, metric) for metric in SIGNS[name]}
    if name == "all_wrong":
        return at["zero_signal_groups"][0] >= 0.5 and at["success_rate"][0] <= 0.1
    if name == "all_right":
        return at["zero_signal_groups"][1] >= 0.3 and at["success_rate"][1] >= 0.5
    if name == "length_hack":
        return at["length_mean"][1] >= 1.15 * at["length_mean"][0]
    if name == "entropy_collapse":
        return at["entropy"][1] <= 0.6 * at["entropy"][0]
    if name == "lr_too_high":
        results = [result_of(row, "") for row in rows.values() if not row["trouble"]]
        return bool(results) and fmean(r.end < r.best - 0.05 for r in results) >= 0.5
    if name == "too_off_policy":
        return max(at["clip_fraction"]) >= 0.02
    if name == "sampler_mismatch":
        return max(at["sampler_gap_mean"]) >= 0.02
    return True  # noise of a known share, weights of a known age (the gap counts no tokens that are known to be old)


# ---------------------------------------------------------------- what was measured
def measure_remedies(plan: Mapping[str, Any], store: Store) -> list[Measurement]:
    """Measure every remedy of every sickness over the tasks whose untreated runs were sick, with Holm's correction over
    the remedies of a sickness."""
    groups: dict[str, dict[str, list[tuple[str, Side, Side, Spread]]]] = {}
    for experiment in plan["experiments"]:
        base, arms = sides_of(plan, experiment, store)
        for name in sicknesses_of(experiment):
            if not base.pilot or not was_sick(name, base.pilot):
                continue
            for arm in arms:
                if (difference := spread(arm, base)) is not None:
                    comparisons = groups.setdefault(name, {}).setdefault(arm.label, [])
                    comparisons.append((experiment["setting"], arm, base, difference))
    out = []
    for name, by_label in groups.items():
        means = {label: mean_over_settings([s for *_, s in comparisons]) for label, comparisons in by_label.items()}
        adjusted = dict(zip(means, holm([m.p for m in means.values()]), strict=True))
        out += [
            _measurement(name, comparisons, means[label], adjusted[label]) for label, comparisons in by_label.items()
        ]
    return sorted(out, key=lambda m: (m.sickness, -m.difference))


def _measurement(
    name: str, comparisons: Sequence[tuple[str, Side, Side, Spread]], mean: Estimate, p: float
) -> Measurement:
    tasks, collapses, base_collapses, runs = [], 0, 0, 0
    for setting, arm, base, s in comparisons:
        e = s.estimate()
        tasks.append(OfTask(setting, round(e.mean, 4), round(e.low, 4), round(e.high, 4), e.n))
        results, base_results = arm.results(arm.rows), base.results({**base.pilot, **base.rows})
        collapses += sum(has_collapsed(r, "more") for r in results.values())
        base_collapses += sum(has_collapsed(base_results[seed], "more") for seed in results if seed in base_results)
        runs += len(results)
    arm = comparisons[0][1]
    return Measurement(
        sickness=name,
        label=arm.label,
        remedy=arm.remedy,
        keys=dict(arm.keys),
        difference=round(mean.mean, 4),
        low=round(mean.low, 4),
        high=round(mean.high, 4),
        p=float(f"{p:.2g}"),
        seeds=mean.n,
        tasks=tuple(tasks),
        collapsed=collapses,
        collapsed_untreated=base_collapses,
        runs=runs,
        commit=next((str(r["commit"]) for r in arm.rows.values()), ""),
    )


# ---------------------------------------------------------------- runs to make
def choose_remedies(plan: Mapping[str, Any], store: Store) -> list[tuple[str, str]]:
    """Choose the (sickness, label) that get more seeds: ahead of the untreated runs in the mean of its tasks' pilots,
    the largest first, `OF_EACH` of a sickness and `CHOSEN` in all. By the pilot alone, so that it stays what it is."""
    groups: dict[tuple[str, str], list[Spread]] = {}
    for experiment in plan["experiments"]:
        base, arms = sides_of(plan, experiment, store)
        name = sicknesses_of(experiment)[0]
        if not base.pilot or not any(was_sick(n, base.pilot) for n in sicknesses_of(experiment)):
            continue
        for arm in arms:
            if (difference := spread(arm, base, "pilot")) is not None:
                groups.setdefault((name, arm.label), []).append(difference)
    means = {key: mean_over_settings(differences).mean for key, differences in groups.items()}
    ahead = sorted((key for key, mean in means.items() if mean > 0), key=lambda key: -means[key])
    choice: list[tuple[str, str]] = []
    for rank in range(OF_EACH):  # the best of every sickness before the second best of any
        for key in ahead:
            position = [k for k in ahead if k[0] == key[0]].index(key)
            if position == rank and len(choice) < CHOSEN:
                choice.append(key)
    return choice


def second_round(plan: Mapping[str, Any], store: Store, seeds: int) -> dict[str, Any]:
    """Return the list with the chosen remedies alone, at `seeds` seeds."""
    choice = set(choose_remedies(plan, store))
    experiments = []
    for experiment in plan["experiments"]:
        arms = [a for a in experiment["arms"] if (sicknesses_of(experiment)[0], a["label"]) in choice]
        if arms:
            experiments.append({**experiment, "arms": arms, "seeds": seeds})
    return {**plan, "experiments": experiments}


# ---------------------------------------------------------------- the report
def tables(plan: Mapping[str, Any], store: Store) -> Iterator[str]:
    """Yield Markdown: a table for each experiment, with what showed that the untreated runs were sick."""
    for experiment in plan["experiments"]:
        base, arms = sides_of(plan, experiment, store)
        if not base.pilot:
            continue
        setting = plan["settings"][experiment["setting"]]
        yield f"### {' and '.join(sicknesses_of(experiment))}, {experiment['setting']}"
        yield ""
        for name in sicknesses_of(experiment):
            signs = [f"{m} {a:.3g} -> {b:.3g}" for m in SIGNS[name] for a, b in [curve(base.pilot, m)] if a == a]
            sick = "" if was_sick(name, base.pilot) else f"; **not {name}: nothing is concluded for it**"
            yield f"- untreated, {name}: {', '.join(signs) or 'nothing recorded'}{sick}"
        budget = ", ".join(f"{amount:,} {unit}" for unit, amount in setting["budget"].items())
        yield f"- {budget} a run, target {experiment['target']}"
        yield ""
        yield "| arm | seeds | end | less untreated (95 %) | target reached | tokens to target | collapsed | failed |"
        yield "|---" * 8 + "|"
        for side in (base, *arms):
            yield _line(side, base, experiment["target"])
        yield ""


def experiment_rows(plan: Mapping[str, Any], store: Store) -> Iterator[str]:
    """Yield Markdown: a row for each experiment."""
    yield "| sickness, task, target | untreated | remedies |"
    yield "|---" * 3 + "|"
    for experiment in plan["experiments"]:
        base, arms = sides_of(plan, experiment, store)
        if not base.pilot:
            continue
        target, healthy = experiment["target"], [n for n in sicknesses_of(experiment) if not was_sick(n, base.pilot)]
        none = f" (no conclusion for {', '.join(healthy)})" if healthy else ""
        untreated = _figures(base, {**base.pilot, **base.rows}, target)
        texts = []
        for side in arms:
            difference = spread(side, base)
            less = interval(difference.estimate(), sign=True) if difference is not None else "too few pairs"
            texts.append(f"{side.label} {less}; {_figures(side, side.rows, target)}")
        where = f"{', '.join(sicknesses_of(experiment))}: {experiment['setting']}, {target}"
        yield f"| {where} | {untreated}{none} | {'. '.join(texts)} |"


def _figures(side: Side, rows: Mapping[int, Row], target: float) -> str:
    """Format the mean end, runs that reached the target of all, thousand tokens until then, collapsed."""
    results = side.results(rows)
    if not results:
        return "no run"
    costs = [cost_until(rows[s], target, "tokens") for s in results]
    collapses = sum(has_collapsed(r, "more") for r in results.values())
    return (
        f"{number(fmean(r.end for r in results.values()))}, {sum(reached for _, reached in costs)} of {len(costs)}, "
        f"{fmean(x for x, _ in costs) / 1000:.0f} k" + (f", {collapses} collapsed" if collapses else "")
    )


def _line(side: Side, base: Side, target: float) -> str:
    rows = {**side.pilot, **side.rows} if side is base else side.rows
    results = side.results(rows)
    if not results:
        return f"| {side.label} | 0 | | | | | | {side.failed} |"
    costs = [cost_until(rows[s], target, "tokens") for s in results]
    text = ""
    if side is not base:
        difference = spread(side, base)
        text = interval(difference.estimate(), sign=True) if difference is not None else "too few pairs"
    return (
        f"| {side.label} | {len(results)} | {number(fmean(r.end for r in results.values()))} | {text} | "
        f"{sum(reached for _, reached in costs)} of {len(costs)} | {count(fmean(x for x, _ in costs))} | "
        f"{sum(has_collapsed(r, 'more') for r in results.values())} | {side.failed} |"
    )


def summary(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield Markdown: every remedy of every sickness over its tasks."""
    yield "| sickness | remedy | tasks | seeds | less untreated (95 %) | collapsed, untreated | verdict |"
    yield "|---" * 7 + "|"
    for m in measurements:
        text = interval(Estimate(m.difference, m.low, m.high, m.seeds), sign=True)
        fallen = f"{m.collapsed} and {m.collapsed_untreated} of {m.runs}"
        yield (
            f"| {m.sickness} | {m.remedy} | {', '.join(t.setting for t in m.tasks)} | {m.seeds} | {text} | {fallen} | "
            f"{m.verdict} |"
        )


def page(plan: Mapping[str, Any], store: Store) -> str:
    """Return the text of docs/remedies.md."""
    measurements = measure_remedies(plan, store)
    return "\n".join(
        [
            "# Remedies: what helped sick runs here",
            "",
            "```bash",
            "python scripts/remedy_study.py",
            "```",
            "",
            "prints this from the runs in `studies/runs.jsonl.gz`; `--run` makes what is missing. "
            f"{', '.join(f'`studies/{path.name}` was committed as {commit_of(path)}' for path in LISTS)}, each "
            "before any of its runs; the second when the first seed of the first had run, the third after the pilots "
            "of both, for sicknesses that their runs did not have. Each remedy "
            "is held against the untreated run of the same seed on the same held-out tasks, at equal generated "
            "tokens. The policies have about a million parameters and the tasks are small; what is not told from 0 "
            "here may help elsewhere, and the other way round. The learning rate is the setting's for every arm.",
            "",
            "*Helped* and *harmed*: the 95 % interval of the mean over the tasks is on one side of 0 and Holm's p over "
            "the sickness's remedies is below .05, and no task's interval says the opposite. *Mixed*: one task's "
            "interval is above 0 and another's below. The first five seeds chose what got more; where there are more, "
            "those five are in no estimate. Collapsed: ended below half of its best evaluation.",
            "",
            *summary(measurements),
            "",
            "## By task",
            "",
            "Of each remedy: accuracy at the end less that of the untreated run; its own, runs that reached the "
            "target, and thousand tokens until then (the budget where it was not reached). *No conclusion*: the "
            "untreated runs turned out not to be sick.",
            "",
            *experiment_rows(plan, store),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", action="store_true", help="make the runs that are missing first")
    parser.add_argument("--seeds", type=int, default=20, help="of the remedies that were ahead in the pilot")
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--skip", nargs="*", default=[], help="ids of experiments of which no more runs are made")
    parser.add_argument("--write", action="store_true", help="write docs/remedies.md and the doctor's evidence")
    arguments = parser.parse_args()
    plan = read_lists()
    if arguments.run:
        options = {
            "hours": arguments.hours,
            "workers": arguments.workers,
            "folder": HERE / "runs" / "studies",
            "skip": arguments.skip,
        }
        if run([plan], **options) or run([second_round(plan, read_store(STORE), arguments.seeds)], **options):
            print("runs are still missing; the same command goes on")
    store = with_former(read_store(STORE))
    measurements = measure_remedies(plan, store)
    print("\n".join([*tables(plan, store), *summary(measurements)]))
    print("more seeds for:", ", ".join(f"{name}: {label}" for name, label in choose_remedies(plan, store)) or "nothing")
    if arguments.write:
        PAGE.write_text(page(plan, store))
        PATH.write_text(to_json(measurements))
        print(json.dumps({"remedies": len(measurements), "written": [str(PAGE), str(PATH)]}))


if __name__ == "__main__":
    main()
