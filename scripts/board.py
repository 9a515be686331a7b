"""The board: tables of docs/board.md and board-tasks.md, and docs/pictures/board.svg, from studies/board*.jsonl.

python scripts/board.py            # writes the table and the picture
python scripts/study.py studies/board.yaml --store studies/board.jsonl    # makes the runs that are missing first
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from gxpo.base.page.chart import svg_chart
from gxpo.compare.inference import seed_interval
from gxpo.compare.results import Estimate
from gxpo.compare.wording import number
from study import HERE, keys_of, read_list
from study_rows import digest, read_store

PAGE, PICTURE = HERE / "docs" / "board.md", HERE / "docs" / "pictures" / "board.svg"
TASKS_PAGE = HERE / "docs" / "board-tasks.md"
LIST, STORE = HERE / "studies" / "board.yaml", HERE / "studies" / "board.jsonl"
TOY_LIST, TOY_STORE = HERE / "studies" / "board_toy.yaml", HERE / "studies" / "board_toy.jsonl"
BEGIN, BEGIN_TOYS, END = "<!-- board -->", "<!-- toys -->", "<!-- end -->"
EXPERIMENTS = ("board", "board_prompts", "board_settings", "board_methods", "board_more")
TOY_EXPERIMENTS = ("board_toy",)
OTHER_TASKS = ("products", "guess")  # experiments of the other tasks, and their marks in the page
RESAMPLES = 2000
TARGET = 0.8  # share of the base's mean gain that a run has to reach
Row = Mapping[str, Any]
Arms = dict[str, dict[int, Row]]  # label -> seed -> row


def arms_of(
    listed: Mapping[str, Any], store: Mapping[tuple[str, int], Row], ids: Sequence[str] = EXPERIMENTS
) -> tuple[Arms, int]:
    """Rows of every arm, the base first, and the number of seeds that are planned."""
    arms: Arms = {}
    seeds = 0
    for experiment in (e for e in listed["experiments"] if e["id"] in ids):
        setting, seeds = listed["settings"][experiment["setting"]], experiment["seeds"]
        for arm in (experiment["base"], *experiment["arms"]):
            name = digest(keys_of(setting, arm))
            arms[arm["label"]] = {s: store[name, s] for s in range(seeds) if (name, s) in store}
    return arms, seeds


def evaluations_of(row: Row) -> list[Mapping[str, Any]]:
    """Evaluations of a run by step; a killed run that went on has its first ones twice."""
    return list({e["step"]: e for e in row["evaluations"]}.values())


def end_of(row: Row, measure: str = "eval_accuracy", place: int = -1) -> float:
    """A figure of the last evaluation, or of the one at `place`: -2 is half way."""
    return float(evaluations_of(row)[place][measure])


def tokens_to_target(row: Row, target: float) -> float | None:
    """Generated tokens until held-out accuracy reaches the target, on straight lines between evaluations."""
    points = [(e["tokens"], e["eval_accuracy"]) for e in evaluations_of(row)]
    for (tokens, value), (next_tokens, next_value) in pairwise(points):
        if next_value >= target > value:
            return tokens + (next_tokens - tokens) * (target - value) / (next_value - value)
    return None


def difference(
    rows: Mapping[int, Row], base: Mapping[int, Row], measure: str = "eval_accuracy", place: int = -1
) -> Estimate | None:
    """End of an arm less the base's, paired by seed, with the 95 % t interval; None with fewer than two pairs."""
    pairs = [end_of(rows[s], measure, place) - end_of(base[s], measure, place) for s in sorted(rows) if s in base]
    return seed_interval(pairs) if len(pairs) > 1 else None


def cost_ratio(rows: Mapping[int, Row], base: Mapping[int, Row], target: float) -> str:
    """Tokens to the target over the base's: geometric mean of pairs with its 95 % interval; "" unless all reach it."""
    costs = [(tokens_to_target(rows[s], target), tokens_to_target(base[s], target)) for s in sorted(rows) if s in base]
    logs = [math.log(cost / base_cost) for cost, base_cost in costs if cost is not None and base_cost is not None]
    if len(logs) < max(2, len(costs)):
        return ""
    estimate = seed_interval(logs)
    mean, low, high = (f"{math.exp(x):.2f}" for x in (estimate.mean, estimate.low, estimate.high))
    text = f"{mean} ({low} to {high}) times"
    return f", {text}" if estimate.holds_zero else f", **{text}**"


def interval_text(estimate: Estimate | None) -> str:
    """Mean and interval, in bold where it leaves out 0."""
    if estimate is None:
        return "needs two pairs"
    mean, low, high = (number(x, sign=True) for x in (estimate.mean, estimate.low, estimate.high))
    return f"{mean} ({low} to {high})" if estimate.holds_zero else f"**{mean} ({low} to {high})**"


def table(arms: Arms, seeds: int) -> list[str]:
    """Lines of the table: an arm each, the base first."""
    base = next(iter(arms.values()))
    if not base:
        return [f"No run of grpo yet, of {seeds} seeds planned: nothing can be compared."]
    starts, ends = ([evaluations_of(row)[place] for row in base.values()] for place in (0, -1))
    start = statistics.fmean(e["eval_accuracy"] for e in starts)
    target = start + TARGET * (statistics.fmean(map(end_of, base.values())) - start)
    samples = max(int(name.rpartition("_")[2]) for name in ends[0] if name.startswith("eval_pass_at_"))
    unit = "episode" if any(e.get("eval_turns", 1) > 1 for e in starts) else "answer"
    measures = {"less grpo, same seed (95 %)": ("eval_accuracy", -1)}
    if min(len(evaluations_of(row)) for row in base.values()) > 2:
        measures["half way, less grpo"] = ("eval_accuracy", -2)
    measures[f"pass@{samples}, less grpo"] = (f"eval_pass_at_{samples}", -1)
    heads = (
        "arm", f"seeds of {seeds}", f"held-out accuracy at the end (start {number(start)})", *measures,
        f"tokens an {unit}", "entropy", f"thousand tokens to {number(target)} (runs), over grpo's", "steps",
        "runs that the doctor calls sick",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for label, rows in arms.items():
        if not rows:
            lines.append(f"| {label} | 0 | missing |" + " |" * (len(heads) - 3))
            continue
        spent = [t for row in rows.values() if (t := tokens_to_target(row, target)) is not None]
        reached = f"{len(spent)} of {len(rows)}"
        cost = f"{statistics.fmean(spent) / 1000:.1f} ({reached})" if spent else reached
        cost += "" if rows is base else cost_ratio(rows, base, target)
        entropy = [row["curves"]["entropy"][-1][1] for row in rows.values() if "entropy" in row["curves"]]
        words = [row["doctor"] for row in rows.values() if "doctor" in row]
        alarms = sum(bool(word) for word in words)
        cells = [
            label,
            str(len(rows)),
            number(statistics.fmean(map(end_of, rows.values()))),
            *("" if rows is base else interval_text(difference(rows, base, *measure)) for measure in measures.values()),
            f"{statistics.fmean(end_of(row, 'eval_length') for row in rows.values()):.1f}",
            f"{statistics.fmean(entropy):.2f}" if entropy else "",
            cost,
            f"{statistics.fmean(row['steps'] for row in rows.values()):.0f}",
            f"{alarms} of {len(words)}" if words else "not asked",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def by_seed(arms: Arms, seeds: int) -> list[str]:
    """Lines of the ends: an arm each, by seed."""
    lines = [f"| end of seed | {' | '.join(map(str, range(seeds)))} |", "|---" * (seeds + 1) + "|"]
    for label, rows in arms.items():
        ends = [number(end_of(rows[s])) if s in rows else "missing" for s in range(seeds)]
        lines.append(f"| {label} | {' | '.join(ends)} |")
    return lines


def pairs_of(arms: Arms) -> dict[str, list[float]]:
    """Differences from the base by seed, of the arms that have two."""
    base, *others = arms.items()
    pairs = {
        label: [end_of(rows[s]) - end_of(base[1][s]) for s in sorted(rows) if s in base[1]] for label, rows in others
    }
    return {label: differences for label, differences in pairs.items() if len(differences) > 1}


def rank_correlation(x: Mapping[str, Sequence[float]], y: Mapping[str, Sequence[float]]) -> tuple[float, float, float]:
    """Spearman's correlation of the means of common labels, with the 95 % percentile interval over resampled seeds."""
    labels = [label for label in x if label in y]
    rng = np.random.default_rng(0)

    def mean_of(differences: Sequence[float], resample: bool) -> float:
        return float(np.mean(rng.choice(differences, len(differences)) if resample else differences))

    def correlation(resample: bool) -> float:
        means = [[mean_of(side[label], resample) for label in labels] for side in (x, y)]
        return float(spearmanr(*means).statistic)

    low, high = np.percentile([correlation(resample=True) for _ in range(RESAMPLES)], [2.5, 97.5])
    return correlation(resample=False), float(low), float(high)


def toys(arms: Arms, toy_arms: Arms) -> list[str]:
    """Lines of the comparison with the small model: differences of each arm there and here, and rank correlations."""
    here, there = pairs_of(arms), pairs_of(toy_arms)
    heads = ("arm", "small model, less grpo (seeds)", "SmolLM2, less grpo (seeds)")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for label in there:
        cells = (
            f"{interval_text(seed_interval(side[label]))} ({len(side[label])})" if label in side else "needs two pairs"
            for side in (there, here)
        )
        lines.append(f"| {label} | {' | '.join(cells)} |")
    common = [label for label in there if label in here]
    for which in (common, [label for label in common if label != "shuffled"]):
        rho, low, high = rank_correlation({label: there[label] for label in which}, here)
        text = f"{number(rho, sign=True)} (95 % {number(low, sign=True)} to {number(high, sign=True)})"
        lines += [
            "",
            f"Spearman's correlation of the {len(which)} arms{'' if which is common else ' but the control'}: {text}.",
        ]
    return lines


def differs(rows: Mapping[int, Row], base: Mapping[int, Row]) -> bool:
    """True if an arm is told from the base, at the end or half way."""
    estimates = [difference(rows, base, place=place) for place in (-1, -2)]
    return any(estimate is not None and not estimate.holds_zero for estimate in estimates)


def picture(arms: Arms) -> str:
    """Held-out accuracy over generated tokens of the base and the arms that differ from it, means over seeds."""
    series: dict[str, Sequence[tuple[float, float]]] = {}
    base = next(iter(arms.values()))
    for label, rows in arms.items():
        if rows is not base and not differs(rows, base):
            continue
        points = [[(e["tokens"], e["eval_accuracy"]) for e in evaluations_of(row)] for row in rows.values()]
        if points:
            columns = list(zip(*points, strict=True))
            series[label] = [
                (statistics.fmean(t for t, _ in column), statistics.fmean(v for _, v in column)) for column in columns
            ]
    title = "SmolLM2-135M-Instruct, sums and differences, means over seeds"
    return svg_chart(
        series, title=title, y_label="held-out accuracy", x_label="generated tokens", dashed=["shuffled"],
        y_range=(0, 0.7), width=720, height=340,
    )  # fmt: skip


def with_blocks(text: str, blocks: Mapping[str, Sequence[str]]) -> str:
    """The page with new lines in the place of those between each mark and the next END."""
    for begin, lines in blocks.items():
        before, _, rest = text.partition(begin)
        text = "\n".join([f"{before}{begin}", *lines, f"{END}{rest.partition(END)[2]}"])
    return text


def page(text: str, arms: Arms, seeds: int, toy_arms: Arms) -> str:
    """docs/board.md with its tables of now."""
    return with_blocks(text, {BEGIN: tables(arms, seeds), BEGIN_TOYS: toys(arms, toy_arms)})


def tasks_page(text: str, listed: Mapping[str, Any], store: Mapping[tuple[str, int], Row]) -> str:
    """docs/board-tasks.md with its tables of now."""
    return with_blocks(text, {f"<!-- {x} -->": tables(*arms_of(listed, store, [x])) for x in OTHER_TASKS})


def tables(arms: Arms, seeds: int) -> list[str]:
    """Lines of both tables of a task: by arm, and the ends by seed."""
    return [*table(arms, seeds), "", *by_seed(arms, seeds)]


def toy_arms_of() -> Arms:
    """Rows of the same arms on the small model."""
    return arms_of(read_list(TOY_LIST), read_store(TOY_STORE), TOY_EXPERIMENTS)[0]


def main() -> None:
    listed, store = read_list(LIST), read_store(STORE)
    arms, seeds = arms_of(listed, store)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), arms, seeds, toy_arms_of()), encoding="utf-8")
    TASKS_PAGE.write_text(tasks_page(TASKS_PAGE.read_text(encoding="utf-8"), listed, store), encoding="utf-8")
    PICTURE.write_text(picture(arms) + "\n", encoding="utf-8")
    print(f"{sum(map(len, arms.values()))} of {seeds * len(arms)} runs")


if __name__ == "__main__":
    main()
