"""`gxpo doctor` beside rldoctor 0.2, rlprobe 0.1, rlwatch 0.5 and martingale 0.2 on the runs of the corpus.

    python scripts/doctor_corpus/peers.py --half build [--kinds trl gxpo verl] [--out rows.json]

Each tool reads what it can; what it can't read is handed to it as a user would: the trainer's rows, renamed as the
tool's own adapter renames them (replay.py), as if it had been attached; gxpo's rows go to rldoctor under TRL's names.
Console text counts as rows where it holds them. A finding counts for every id that the tool names as a cause, in
whatever words (`peer_tools.NAMED`); a false alarm is a warning or worse on a healthy run, a critical finding on a mild
one. martingale needs records of tokens that none of these runs has: it reads nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peer_rows import clean, rows_of
from peer_tools import gxpo, replay, rldoctor, with_ids

TOOLS = ("gxpo", "rldoctor", "rlprobe", "rlwatch", "martingale")
CRITICAL, WARNING = {"critical"}, {"warning", "warn", "critical"}
ALARM = {"sick": WARNING, "healthy": WARNING, "mild": CRITICAL}


def truths(corpus: Path, kinds: list[str], half: str, tmp: Path) -> list[dict[str, Any]]:
    """List the runs of a half with what is wrong in them; from CORPUS/{trl,gxpo,verl}, or from archives, which are
    unpacked."""
    runs = []
    for trainer, name, entry in _entries(corpus):
        if entry["half"] != half or trainer not in kinds:
            continue
        where = corpus / trainer / entry.get("directory", f"{half}/{name}")
        archive = corpus / half / f"{name}.tar.xz"
        if archive.exists():
            where = tmp / name
            with tarfile.open(archive, "r:xz") as tar:
                tar.extractall(where, filter="data")
        if not where.is_dir():
            continue
        expected = entry.get("first", entry.get("expect", []))
        run = {"trainer": trainer, "name": name, "recipe": entry.get("recipe", ""), "kind": entry["kind"]}
        runs.append(
            {**run, "directory": where, "expected": [expected] if isinstance(expected, str) else list(expected)}
        )
    return sorted(runs, key=lambda r: (r["trainer"], r["name"]))


def _entries(corpus: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if (corpus / "truth.json").exists():
        for name, entry in json.loads((corpus / "truth.json").read_text()).items():
            yield name.split("-")[0], name, entry
        return
    for file in sorted(corpus.glob("*/truth.json")):
        for name, entry in json.loads(file.read_text()).items():
            yield file.parent.name, name, entry


def judge(run: dict[str, Any], report: list[dict[str, Any]] | None) -> dict[str, Any]:
    expected = set(run["expected"])
    findings = report or []
    return {
        "readable": report is not None,
        "first": bool(findings) and bool(expected & set(findings[0]["ids"])),
        "anywhere": any(expected & set(f["ids"]) for f in findings),
        "alarm": any(f["severity"] in ALARM[run["kind"]] for f in findings),
    }


def table(rows: list[dict[str, Any]], tools: list[str]) -> str:
    sick = [r for r in rows if r["kind"] == "sick"]
    well = [r for r in rows if r["kind"] != "sick"]
    out = [
        f"{len(sick)} sick and {len(well)} healthy runs, {sum(r['kind'] == 'mild' for r in well)} of these mild",
        "",
        "| tool | sick read | cause first | cause anywhere | healthy read | false alarms |",
        "|---|---|---|---|---|---|",
    ]
    for tool in tools:
        s, w = [r["tools"][tool] for r in sick], [r["tools"][tool] for r in well]
        count = [sum(x[k] for x in s) for k in ("readable", "first", "anywhere")]
        count += [sum(x[k] for x in w) for k in ("readable", "alarm")]
        out.append(f"| {tool} | " + " | ".join(map(str, count)) + " |")
    return "\n".join(out)


def main() -> None:
    ap = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ap.add_argument("--corpus", type=Path, default=Path("corpus"))
    ap.add_argument("--half", choices=["build", "held"], required=True)
    ap.add_argument("--kinds", nargs="+", default=["trl", "gxpo", "verl"])
    ap.add_argument("--python", type=Path, default=Path("peers/bin/python"), help="where the peers are installed")
    ap.add_argument("--only-peers", action="store_true", help="leave gxpo out")
    ap.add_argument("--out", type=Path, help="rows per run as JSON")
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        compare(a, truths(a.corpus, a.kinds, a.half, Path(tmp)))


def compare(a: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    if not runs:
        sys.exit(
            f"no runs of the half {a.half} under {a.corpus}: make them with trl_runs.py, gxpo_runs.py, verl_runs.py"
        )
    rows_by_run = [rows_of(r) for r in runs]
    batch = [{"trainer": r["trainer"], "rows": clean(rows)} for r, (rows, _) in zip(runs, rows_by_run, strict=True)]
    findings_by_tool: dict[str, list[list[dict[str, Any]] | None]] = {
        "rldoctor": [with_ids("rldoctor", rldoctor(r, *x, a.python)) for r, x in zip(runs, rows_by_run, strict=True)],
        **{t: [with_ids(t, f) for f in replay(t, batch, a.python)] for t in ("rlprobe", "rlwatch")},
        "martingale": [None] * len(runs),
    }
    if not a.only_peers:
        findings_by_tool = {"gxpo": [gxpo(r["directory"]) for r in runs], **findings_by_tool}
    tools = [t for t in TOOLS if t in findings_by_tool]
    rows = []
    for i, run in enumerate(runs):
        row = {k: run[k] for k in ("name", "trainer", "recipe", "kind", "expected")}
        row["as_is"] = rows_by_run[i][1] is not None
        row["tools"] = {t: {**judge(run, findings_by_tool[t][i]), "findings": findings_by_tool[t][i]} for t in tools}
        rows.append(row)
    if a.out:
        a.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows, tools))
    for kind in a.kinds:
        part = [r for r in rows if r["trainer"] == kind]
        if part and len(a.kinds) > 1:
            print(f"\n{kind}: " + table(part, tools))


if __name__ == "__main__":
    main()
