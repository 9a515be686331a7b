"""Score `gxpo doctor` on runs whose sickness is known: first cause right, false alarms.

    python scripts/doctor_corpus/score.py DIR... [--half build]

Each DIR holds truth.json and the folders build/ and held/ of runs.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from gxpo.base.errors import GxpoError
from gxpo.doctor import diagnose, read


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dirs", nargs="+", type=Path)
    parser.add_argument("--half", default="build")
    arguments = parser.parse_args()
    totals = {"sick": [0, 0, 0], "healthy": [0, 0], "mild": [0, 0]}
    for folder in arguments.dirs:
        truth = json.loads((folder / "truth.json").read_text())
        for name, row in sorted(truth.items()):
            row["first"] = row.get("expect", row.get("first", []))
            run = folder / row.get("directory", f"{arguments.half}/{name}")
            if row["half"] != arguments.half or not run.is_dir():
                continue
            start = time.perf_counter()
            try:
                diagnosis = diagnose(read(run))
            except GxpoError as error:
                print(f"{folder.name}/{name}: {error}")
                continue
            seconds = time.perf_counter() - start
            alarms = [f for f in diagnosis.findings if f.severity != "note"]
            first = alarms[0] if alarms else None
            text = f"{'/'.join(first.ids)} ({first.severity}, {first.grade})" if first else "-"
            if row["kind"] == "sick":
                right = first is not None and bool(set(first.ids) & set(row["first"]))
                anywhere = any(set(f.ids) & set(row["first"]) for f in alarms)
                exact = right and first is not None and len(first.ids) == 1
                totals["sick"][0] += 1
                totals["sick"][1] += right
                totals["sick"][2] += anywhere
                mark = "ok " if exact else "ok+" if right else "2nd" if anywhere else "MISS"
            else:
                worst = first is not None and (row["kind"] == "healthy" or first.severity == "critical")
                totals[row["kind"]][0] += 1
                totals[row["kind"]][1] += worst
                mark = "ALARM" if worst else "ok "
            expected = "/".join(row["first"]) or row["kind"]
            print(f"{mark:<5} {folder.name}/{name} [{row['recipe']}] {expected} -> {text}  {seconds:.2f}s")
    sick, right, anywhere = totals["sick"]
    print(f"sick {sick}: first {right}, anywhere {anywhere}; healthy {totals['healthy'][0]}: alarms "
          f"{totals['healthy'][1]}; mild {totals['mild'][0]}: critical {totals['mild'][1]}")  # fmt: skip


if __name__ == "__main__":
    main()
