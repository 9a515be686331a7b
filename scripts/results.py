"""Results of all studies: docs/results.csv, one row for each arm, and the tables of docs/results.md made from it.

    python scripts/results.py                                       # rows of our own studies anew, then the tables,
                                                                    # and what the suites' files say was measured
    python scripts/results.py --check compare.json smith-2027-01    # whether rows of a study say what its runs say

Rows of studies that are not in studies/ are kept as they are.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.base.errors import GxpoError
from gxpo.compare import suites
from gxpo.compare.arms import SHUFFLED
from gxpo.compare.conclude import conclude
from gxpo.compare.files import Row, heading, read_rows
from gxpo.compare.files import row as lines_of
from gxpo.compare.results import Arm, Budget, Comparison, Kind
from gxpo.compare.wording import number
from gxpo.explain.measurements import COLUMNS
from gxpo.explain.measurements import PATH as EFFECTS
from study import HERE, STORE, keys_of, read_list, sides
from study_rows import digest, read_store, result_of, with_former

TABLE, PAGE = HERE / "docs" / "results.csv", HERE / "docs" / "results.md"
BEGIN, END = "<!-- results.csv -->", "<!-- end -->"
LONGEST_KEYS = 80  # characters of an arm's keys in the page; the file has them whole
FEWEST = 3  # seeds of an arm that has a row
SUITES = HERE / "src" / "gxpo" / "compare" / "suites"
Store = Mapping[tuple[str, int], Mapping[str, Any]]


def comparisons(path: Path, store: Store) -> list[Comparison]:
    """Conclude from the runs of a list, experiment by experiment; those with too few runs are left out."""
    plan = read_list(path)
    names = {id(s): name for name, s in plan["settings"].items()}
    out = []
    for experiment in plan["experiments"]:
        for setting, arms, seeds in sides(plan, experiment):
            comparison = conclude_arms(names[id(setting)], setting, arms, seeds, store)
            if comparison is not None:
                out.append(comparison)
    return out


def conclude_arms(
    name: str, setting: Mapping[str, Any], arm_keys: Sequence[Mapping[str, Any]], seeds: int, store: Store
) -> Comparison | None:
    """Compare the base with the arms that have runs enough; None where the base or all arms have not."""
    arms = [Arm(a["label"], a["keys"], kind_of(a, first=i == 0)) for i, a in enumerate(arm_keys)]
    rows = {
        arm.label: [store[d, s] for s in range(seeds) if (d, s) in store]
        for arm, a in zip(arms, arm_keys, strict=True)
        for d in [digest(keys_of(setting, a))]
    }
    arms_with_rows = [arm for arm in arms if len(rows[arm.label]) >= FEWEST]
    if arms[0] not in arms_with_rows or len(arms_with_rows) < min(2, len(arms)):
        return None
    (unit, amount), *_ = setting["budget"].items()
    measure = setting.get("measure", "eval_accuracy")
    return conclude(
        [result_of(row, arm.label, measure) for arm in arms_with_rows for row in rows[arm.label]],
        arms_with_rows,
        setting=name,
        measure=measure,
        better=setting.get("better", "more"),
        budget=Budget(unit, float(amount)),
        keys=setting["keys"],
        versions={"commit": rows[arms[0].label][0]["commit"]},
    )


def kind_of(arm: Mapping[str, Any], *, first: bool) -> Kind:
    """Return the kind of an arm of a list, whose first is the base."""
    if first:
        return "base"
    return "control" if arm.get("control") or arm["label"] == SHUFFLED else "arm"


def table(rows: Sequence[Row]) -> list[str]:
    """Make a line for each base with the arms that follow it, those told from it in bold."""
    groups: list[list[Row]] = []
    for row in rows:
        if row.against and groups:
            groups[-1].append(row)
        else:
            groups.append([row])
    out = ["| study | setting | base | arms, less the base (95 %) |", "|---|---|---|---|"]
    for base, *arms in groups:
        name = "" if base.measure == "eval_accuracy" else f" ({base.measure})"
        ends = f"`{base.method}` {number(base.start)} to {number(base.end)}, {base.seeds} seeds"
        out.append(f"| {base.study} | `{base.setting}`{name} | {ends} | {'; '.join(map(_arm, arms)) or '-'} |")
    return out


def _arm(row: Row) -> str:
    keys = f" {textwrap.shorten(row.keys, LONGEST_KEYS, placeholder=' ...')}" if row.keys else ""
    difference = number(row.difference, sign=True)
    if math.isfinite(row.low):
        difference += f" ({number(row.low, sign=True)} to {number(row.high, sign=True)})"
    message = f"`{row.method}{keys}` {difference}"
    return f"**{message}**" if row.verdict in ("better", "worse") else message


def write(rows: Sequence[str]) -> None:
    """Write the file of rows, and the table in the page."""
    TABLE.write_text("\n".join([heading(), *rows]) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text("\n".join([f"{before}{BEGIN}", *table(read_rows(TABLE)), f"{END}{after}"]), encoding="utf-8")
    write_effects(list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines())))


def write_effects(rows: Sequence[Mapping[str, str]]) -> None:
    """Write what `gxpo methods` quotes: published methods against their base, outside of the studies of remedies."""
    with EFFECTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            row
            for row in rows
            if row["difference"]
            and row["measure"] == "eval_accuracy"
            and row["method"] != "grpo"
            and not row["study"].startswith("remedies")
        )


def suite_lines(comparisons: Sequence[Comparison], settings: Sequence[str]) -> list[str]:
    """Make the lines of a suite's file: of each of its settings, every arm less the base; positive is in the arm's
    favour."""
    lines = []
    for c in (c for c in comparisons if c.setting in settings):
        lines += [
            f"  - {{setting: {c.setting}, method: {d.arm}, difference: {d.end.mean:.4f}, low: {d.end.low:.4f}, "
            f"high: {d.end.high:.4f}, seeds: {d.end.n}, commit: {c.versions['commit']}}}"
            for d in c.differences
        ]
    return ["validated:", *lines] if lines else []


def write_suites(comparisons: Sequence[Comparison]) -> None:
    """Write what was measured into the file of each suite."""
    for name in suites.names():
        path = SUITES / f"{name}.yaml"
        settings = [s.name for s in suites.suite(name).settings]
        before = path.read_text(encoding="utf-8").partition("validated:")[0].rstrip()
        path.write_text("\n".join([before, *suite_lines(comparisons, settings), ""]), encoding="utf-8")


def check(path: Path, study: str) -> list[str]:
    """List the differences between a study's rows and the compare.json of its runs."""
    document = json.loads(path.read_text(encoding="utf-8"))
    problems = []
    rows = [r for r in read_rows(TABLE) if r.study == study]
    for value in document if isinstance(document, list) else [document]:
        differences = {d["arm"]: d["end"] for d in value["differences"]}
        for arm in value["arms"]:
            method = arm["keys"].get("method", value["keys"].get("method", arm["label"]))
            rows_of_arm = [r for r in rows if r.setting == value["setting"] and r.method == method]
            end = differences.get(arm["label"], {})
            expected = (arm["start"]["mean"], arm["end"]["mean"], end.get("mean"), end.get("low"), end.get("high"))
            if not any(_equal((r.start, r.end, r.difference, r.low, r.high), expected) for r in rows_of_arm):
                problems.append(f"{value['setting']}: no row of {study} says what the runs of {arm['label']} say")
    return problems


def _equal(row: Sequence[float], expected: Sequence[float | None]) -> bool:
    """Compare to the six digits that a row has."""
    return all(
        math.isnan(r) if w is None else math.isclose(r, w, rel_tol=1e-5, abs_tol=1e-9)
        for r, w in zip(row, expected, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", nargs=2, metavar=("COMPARE.JSON", "STUDY"))
    arguments = parser.parse_args()
    if arguments.check:
        problems = check(Path(arguments.check[0]), arguments.check[1])
        sys.exit("\n".join(problems) if problems else 0)
    common_store = read_store(STORE)
    store = with_former(common_store)
    lists = sorted((HERE / "studies").glob("*.yaml"))
    own_lines = []
    for path in lists:
        list_store = read_store(path.with_suffix(".jsonl"))  # empty where its runs are among the common ones
        runs = with_former({**common_store, **list_store}) if list_store else store
        own_lines += [line for c in comparisons(path, runs) for line in lines_of(c, path.stem)]
    other_lines = []
    if TABLE.is_file():
        names = {path.stem for path in lists}
        others = [r.study not in names for r in read_rows(TABLE)]
        text = TABLE.read_text(encoding="utf-8").splitlines()[1:]
        other_lines = [line for line, other in zip(text, others, strict=True) if other]
    write(list(dict.fromkeys([*own_lines, *other_lines])))
    write_suites(comparisons(HERE / "studies" / "suites.yaml", store))
    print(f"{len(read_rows(TABLE))} rows in {TABLE.relative_to(HERE)}")


if __name__ == "__main__":
    try:
        main()
    except GxpoError as error:
        sys.exit(str(error))
