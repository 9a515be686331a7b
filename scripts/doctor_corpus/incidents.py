"""Print a table in Markdown: what `gxpo doctor` says of each incident of others, beside what its thread found.

python scripts/doctor_corpus/incidents.py
"""

from __future__ import annotations

import json
from pathlib import Path

from gxpo.doctor import diagnose, read

HOME = Path(__file__).resolve().parents[2] / "tests" / "doctor" / "incidents"


def main() -> None:
    print("| incident | the thread found | doctor says first | |\n|---|---|---|---|")
    right = silent = 0
    incidents = json.loads((HOME / "incidents.json").read_text())
    for incident in incidents:
        diagnosis = diagnose(read(HOME / incident["name"]))
        first = diagnosis.findings[0] if diagnosis.sick else None
        if first is None:
            mark = "right" if not incident["expected"] else "silent" if not incident["told_by_log"] else "missed"
        else:
            mark = "right" if set(first.ids) & set(incident["expected"]) else "wrong"
        right, silent = right + (mark == "right"), silent + (mark == "silent")
        words = f"{', '.join(first.ids)} ({first.grade}): {first.title}" if first else "nothing"
        name = f"[{incident['name']}]({incident['source'].split(' ')[0]})"
        print(f"| {name} | {incident['finding']} | {words} | {mark} |")
    print(f"\n{right} of {len(incidents)} right, {silent} silent where the log cannot tell")


if __name__ == "__main__":
    main()
