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

from claims import committed, runs_of, spent_until
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
        actual = {seed: result_of(row, self.label) for seed, row in rows.items()}
        return {seed: r for seed, r in actual.items() if not trouble(r)}


# ---------------------------------------------------------------- runs
def read_lists() -> dict[str, Any]:
    """All experiments as one list."""
    actual = [read_list(path) for path in LISTS]
    settings = {name: setting for one in actual for name, setting in one["settings"].items()}
    return {"settings": settings, "experiments": [e for one in actual for e in one["experiments"]]}


def sides_of(listed: Mapping[str, Any], experiment: Mapping[str, Any], store: Store) -> tuple[Side, list[Side]]:
    """The untreated side and the remedies'."""
    setting, pilot = listed["settings"][experiment["setting"]], experiment["seeds"]

    def side(arm: Mapping[str, Any]) -> Side:
        actual = runs_of(setting, arm, MOST_SEEDS, store)
        first = {s: r for s, r in actual.items() if s < pilot}
        fresh = {s: r for s, r in actual.items() if s >= pilot}
        failed = sum(bool(r["trouble"]) for r in actual.values())
        keys = arm["keys"]
        return Side(arm["label"], arm.get("remedy", ""), keys, first, fresh if len(fresh) > pilot else first, failed)

    return side(experiment["base"]), [side(arm) for arm in experiment["arms"]]


def spread(arm: Side, base: Side, rows: str = "rows") -> Spread | None:
    """Paired difference at the end, over seeds and held-out tasks; None with fewer than three pairs. `base` has more
    seeds than an arm without fresh ones."""
    own_results = arm.results(getattr(arm, rows))
    of_base = base.results({**base.pilot, **base.rows})
    pairs = [(own_results[s], of_base[s]) for s in sorted(own_results) if s in of_base]
    return difference_spread(pairs, "eval_accuracy") if len(pairs) >= FEWEST_SEEDS else None


def names(experiment: Mapping[str, Any]) -> list[str]:
    """Ids of the experiment's sicknesses."""
    text = experiment["sickness"]
    return [text] if isinstance(text, str) else list(text)


# ---------------------------------------------------------------- whether they were sick
def curve(rows: Mapping[int, Row], name: str) -> tuple[float, float]:
    """Mean over runs of the first and of the last stretch of a metric of training; nan where none recorded it."""
    actual = [r["curves"][name] for r in rows.values() if r["curves"].get(name)]
    return (fmean(c[0][1] for c in actual), fmean(c[-1][1] for c in actual)) if actual else (math.nan, math.nan)


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
    """Whether the untreated runs had the sickness, by thresholds that were fixed before the study ran."""
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
def measured(listed: Mapping[str, Any], store: Store) -> list[Measurement]:
    """Every remedy of every sickness over the tasks whose untreated runs were sick; Holm's correction over the remedies
    of a sickness."""
    groups: dict[str, dict[str, list[tuple[str, Side, Side, Spread]]]] = {}
    for experiment in listed["experiments"]:
        base, arms = sides_of(listed, experiment, store)
        for name in names(experiment):
            if not base.pilot or not was_sick(name, base.pilot):
                continue
            for arm in arms:
                if (actual := spread(arm, base)) is not None:
                    of_arm = groups.setdefault(name, {}).setdefault(arm.label, [])
                    of_arm.append((experiment["setting"], arm, base, actual))
    out = []
    for name, labels in groups.items():
        means = {label: mean_over_settings([s for *_, s in actual]) for label, actual in labels.items()}
        adjusted = dict(zip(means, holm([m.p for m in means.values()]), strict=True))
        out += [_measured(name, actual, means[label], adjusted[label]) for label, actual in labels.items()]
    return sorted(out, key=lambda m: (m.sickness, -m.difference))


def _measured(name: str, found: Sequence[tuple[str, Side, Side, Spread]], mean: Estimate, p: float) -> Measurement:
    tasks, fallen, of_base, runs = [], 0, 0, 0
    for setting, arm, base, s in found:
        e = s.estimate()
        tasks.append(OfTask(setting, round(e.mean, 4), round(e.low, 4), round(e.high, 4), e.n))
        own_results, untreated = arm.results(arm.rows), base.results({**base.pilot, **base.rows})
        fallen += sum(has_collapsed(r, "more") for r in own_results.values())
        of_base += sum(has_collapsed(untreated[seed], "more") for seed in own_results if seed in untreated)
        runs += len(own_results)
    arm = found[0][1]
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
        collapsed=fallen,
        collapsed_untreated=of_base,
        runs=runs,
        commit=next((str(r["commit"]) for r in arm.rows.values()), ""),
    )


# ---------------------------------------------------------------- runs to make
def chosen(listed: Mapping[str, Any], store: Store) -> list[tuple[str, str]]:
    """(sickness, label) of what gets more seeds: ahead of the untreated runs in the mean of its tasks' pilots, the
    largest first, `OF_EACH` of a sickness and `CHOSEN` in all. By the pilot alone, so that it stays what it is."""
    groups: dict[tuple[str, str], list[Spread]] = {}
    for experiment in listed["experiments"]:
        base, arms = sides_of(listed, experiment, store)
        name = names(experiment)[0]
        if not base.pilot or not any(was_sick(n, base.pilot) for n in names(experiment)):
            continue
        for arm in arms:
            if (actual := spread(arm, base, "pilot")) is not None:
                groups.setdefault((name, arm.label), []).append(actual)
    means = {key: mean_over_settings(actual).mean for key, actual in groups.items()}
    ahead = sorted((key for key, mean in means.items() if mean > 0), key=lambda key: -means[key])
    kept_keys: list[tuple[str, str]] = []
    for rank in range(OF_EACH):  # the best of every sickness before the second best of any
        for key in ahead:
            before = [k for k in ahead if k[0] == key[0]].index(key)
            if before == rank and len(kept_keys) < CHOSEN:
                kept_keys.append(key)
    return kept_keys


def second(listed: Mapping[str, Any], store: Store, seeds: int) -> dict[str, Any]:
    """The list with the chosen remedies alone, at `seeds` seeds."""
    kept_chosen = set(chosen(listed, store))
    experiments = []
    for experiment in listed["experiments"]:
        arms = [a for a in experiment["arms"] if (names(experiment)[0], a["label"]) in kept_chosen]
        if arms:
            experiments.append({**experiment, "arms": arms, "seeds": seeds})
    return {**listed, "experiments": experiments}


# ---------------------------------------------------------------- the report
def tables(listed: Mapping[str, Any], store: Store) -> Iterator[str]:
    """Markdown: a table for each experiment, with what showed that the untreated runs were sick."""
    for experiment in listed["experiments"]:
        base, arms = sides_of(listed, experiment, store)
        if not base.pilot:
            continue
        setting = listed["settings"][experiment["setting"]]
        yield f"### {' and '.join(names(experiment))}, {experiment['setting']}"
        yield ""
        for name in names(experiment):
            seen_signs = [f"{m} {a:.3g} -> {b:.3g}" for m in SIGNS[name] for a, b in [curve(base.pilot, m)] if a == a]
            sick = "" if was_sick(name, base.pilot) else f"; **not {name}: nothing is concluded for it**"
            yield f"- untreated, {name}: {', '.join(seen_signs) or 'nothing recorded'}{sick}"
        budget = ", ".join(f"{amount:,} {unit}" for unit, amount in setting["budget"].items())
        yield f"- {budget} a run, target {experiment['target']}"
        yield ""
        yield "| arm | seeds | end | less untreated (95 %) | target reached | tokens to target | collapsed | failed |"
        yield "|---" * 8 + "|"
        for side in (base, *arms):
            yield _line(side, base, experiment["target"])
        yield ""


def condensed(listed: Mapping[str, Any], store: Store) -> Iterator[str]:
    """Markdown: a row for each experiment."""
    yield "| sickness, task, target | untreated | remedies |"
    yield "|---" * 3 + "|"
    for experiment in listed["experiments"]:
        base, arms = sides_of(listed, experiment, store)
        if not base.pilot:
            continue
        target, healthy = experiment["target"], [n for n in names(experiment) if not was_sick(n, base.pilot)]
        none = f" (no conclusion for {', '.join(healthy)})" if healthy else ""
        untreated = _figures(base, {**base.pilot, **base.rows}, target)
        messages = []
        for side in arms:
            actual = spread(side, base)
            less = interval(actual.estimate(), sign=True) if actual is not None else "too few pairs"
            messages.append(f"{side.label} {less}; {_figures(side, side.rows, target)}")
        where = f"{', '.join(names(experiment))}: {experiment['setting']}, {target}"
        yield f"| {where} | {untreated}{none} | {'. '.join(messages)} |"


def _figures(side: Side, rows: Mapping[int, Row], target: float) -> str:
    """Mean end, runs that reached the target of all, thousand tokens until then, collapsed."""
    results = side.results(rows)
    if not results:
        return "no run"
    spent = [spent_until(rows[s], target, "tokens") for s in results]
    fallen = sum(has_collapsed(r, "more") for r in results.values())
    return (
        f"{number(fmean(r.end for r in results.values()))}, {sum(reached for _, reached in spent)} of {len(spent)}, "
        f"{fmean(x for x, _ in spent) / 1000:.0f} k" + (f", {fallen} collapsed" if fallen else "")
    )


def _line(side: Side, base: Side, target: float) -> str:
    rows = {**side.pilot, **side.rows} if side is base else side.rows
    results = side.results(rows)
    if not results:
        return f"| {side.label} | 0 | | | | | | {side.failed} |"
    spent = [spent_until(rows[s], target, "tokens") for s in results]
    text = ""
    if side is not base:
        actual = spread(side, base)
        text = interval(actual.estimate(), sign=True) if actual is not None else "too few pairs"
    return (
        f"| {side.label} | {len(results)} | {number(fmean(r.end for r in results.values()))} | {text} | "
        f"{sum(reached for _, reached in spent)} of {len(spent)} | {count(fmean(x for x, _ in spent))} | "
        f"{sum(has_collapsed(r, 'more') for r in results.values())} | {side.failed} |"
    )


def summary(found: Sequence[Measurement]) -> Iterator[str]:
    """Markdown: every remedy of every sickness over its tasks."""
    yield "| sickness | remedy | tasks | seeds | less untreated (95 %) | collapsed, untreated | verdict |"
    yield "|---" * 7 + "|"
    for m in found:
        text = interval(Estimate(m.difference, m.low, m.high, m.seeds), sign=True)
        fallen = f"{m.collapsed} and {m.collapsed_untreated} of {m.runs}"
        yield (
            f"| {m.sickness} | {m.remedy} | {', '.join(t.setting for t in m.tasks)} | {m.seeds} | {text} | {fallen} | "
            f"{m.verdict} |"
        )


def page(listed: Mapping[str, Any], store: Store) -> str:
    """docs/remedies.md."""
    actual = measured(listed, store)
    return "\n".join(
        [
            "# Remedies: what helped sick runs here",
            "",
            "```bash",
            "python scripts/remedy_study.py",
            "```",
            "",
            "prints this from the runs in `studies/runs.jsonl.gz`; `--run` makes what is missing. "
            f"{', '.join(f'`studies/{path.name}` was committed as {committed(path)}' for path in LISTS)}, each "
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
            *summary(actual),
            "",
            "## By task",
            "",
            "Of each remedy: accuracy at the end less that of the untreated run; its own, runs that reached the "
            "target, and thousand tokens until then (the budget where it was not reached). *No conclusion*: the "
            "untreated runs turned out not to be sick.",
            "",
            *condensed(listed, store),
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
    listed = read_lists()
    if arguments.run:
        how = {
            "hours": arguments.hours,
            "workers": arguments.workers,
            "folder": HERE / "runs" / "studies",
            "skip": arguments.skip,
        }
        if run([listed], **how) or run([second(listed, read_store(STORE), arguments.seeds)], **how):
            print("runs are still missing; the same command goes on")
    store = with_former(read_store(STORE))
    actual = measured(listed, store)
    print("\n".join([*tables(listed, store), *summary(actual)]))
    print("more seeds for:", ", ".join(f"{name}: {label}" for name, label in chosen(listed, store)) or "nothing")
    if arguments.write:
        PAGE.write_text(page(listed, store))
        PATH.write_text(to_json(actual))
        print(json.dumps({"remedies": len(actual), "written": [str(PAGE), str(PATH)]}))


if __name__ == "__main__":
    main()
