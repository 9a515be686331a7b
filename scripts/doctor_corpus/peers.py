"""`gxpo doctor` beside rldoctor 0.2, rlprobe 0.1, rlwatch 0.5 and martingale 0.2 on the runs of the corpus.

    python scripts/doctor_corpus/peers.py --half build [--kinds trl gxpo verl] [--out rows.json]

Each tool reads what it can; what it can't read is handed to it as a user would: the trainer's rows, renamed as the
tool's own adapter renames them (replay.py), as if it had been attached; gxpo's rows go to rldoctor under TRL's names.
Console text counts as rows where it holds them. A finding counts for every id that the tool names as a cause, in
whatever words (`NAMED`); a false alarm is a warning or worse on a healthy run. martingale needs records of tokens that
none of these runs has: it reads nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from ast import literal_eval
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOOLS = ("gxpo", "rldoctor", "rlprobe", "rlwatch", "martingale")
ALARM = {"warning", "warn", "critical"}

# tool -> its own finding (with what it says of it, where one name stands for several) -> ids that this names
NAMED: dict[str, dict[str, set[str]]] = {
    "rldoctor": {
        "advantage_collapse:too_hard": {"all_wrong", "verifier_rejects_right_answers"},  # both are prescribed for
        "advantage_collapse:saturated": {"all_right"},
        "advantage_collapse:mixed": {"group_too_small"},  # prescribes a larger group
        "entropy_collapse": {"entropy_collapse"},
        "reward_hacking": {"memorising", "component_dominates", "length_hack"},
        "length_pathology:truncated": {"truncation", "no_eos"},
        "length_pathology:paid by the token": {"length_hack"},
        "clip_saturation": {"too_off_policy", "lr_too_high"},
        "kl_drift:high": {"kl_runaway"},
        "kl_drift:pinned": {"kl_too_high"},
        "gradient_pathology:non-finite": {"non_finite"},
        "gradient_pathology:zero": {"all_wrong", "all_right"},
        "gradient_pathology:spikes": {"lr_too_high"},
        "gradient_pathology:vanishing": set(),
        "reward_composition:dead": {"dead_component"},
        "reward_composition:dominant": {"component_dominates"},
        "plateau": set(),
    },
    "rlprobe": {
        "KL_BLOWUP": {"kl_runaway"},
        "ENTROPY_COLLAPSE": {"entropy_collapse"},
        "REWARD_HACK_LENGTH": {"length_hack"},
        "FORMAT_GAMING": {"component_dominates"},
        "CLIP_SATURATION": {"too_off_policy", "lr_too_high"},
        "DEGENERATE_GROUPS": {"all_wrong", "all_right", "group_too_small"},
        "ADV_COLLAPSE": {"all_right", "near_constant_reward"},
        "VALUE_DIVERGENCE": set(),
        "GRAD_PATHOLOGY:NaN": {"non_finite"},
        "GRAD_PATHOLOGY:spikes": {"lr_too_high"},
        "TRUNCATION_STARVE": {"truncation", "no_eos"},
        "REPETITION_SPIRAL": set(),
        "REWARD_STD_DEATH:ceiling": {"all_right"},
        "REWARD_STD_DEATH:collapse": {"entropy_collapse", "no_diversity"},
        "REF_POLICY_DRIFT_ASYMMETRY": {"wrong_template"},
        "THROUGHPUT_ROT": {"slow_tail"},
    },
    "rlwatch": {
        "entropy_collapse": {"entropy_collapse"},
        "kl_explosion": {"kl_runaway"},
        "reward_hacking": {"component_dominates", "length_hack", "memorising"},
        "advantage_variance": set(),
        "loss_nan": {"non_finite"},
        "gradient_norm_spike": {"lr_too_high"},
        "reward_mean_drift:down": {"lr_too_high", "advantage_sign"},
        "reward_mean_drift:up": {"length_hack", "component_dominates"},
    },
}


# ---------------------------------------------------------------- the corpus
def truths(corpus: Path, kinds: list[str], half: str) -> list[dict[str, Any]]:
    """Runs of a half with what is wrong in them: kind, directory, name, sick, expected ids."""
    found = []
    for kind in kinds:
        file = corpus / kind / "truth.json"
        if not file.exists():
            continue
        for name, entry in json.loads(file.read_text()).items():
            where = corpus / kind / entry.get("directory", f"{entry['half']}/{name}")
            if entry["half"] == half and where.is_dir():
                expected = entry.get("first", entry.get("expect", []))
                found.append(
                    {
                        "trainer": kind,
                        "name": f"{kind}/{where.name}",
                        "recipe": entry.get("recipe", ""),
                        "directory": where,
                        "kind": entry["kind"],
                        "expected": [expected] if isinstance(expected, str) else list(expected),
                    }
                )
    return sorted(found, key=lambda r: r["name"])


def trl_rows(text: str) -> list[dict[str, Any]]:
    """Rows of a console text: dictionaries, a step each where the text names none."""
    rows: list[dict[str, Any]] = []
    for found in re.findall(r"\{'[^{}]*\}", text):
        try:
            row = literal_eval(re.sub(r"(?<=: )(nan|inf|-inf)(?=[,}])", r"'\1'", found))
        except (ValueError, SyntaxError):
            continue
        if any(k in row for k in ("reward", "loss", "eval_reward")):
            numbers = {k: number(v) for k, v in row.items()}
            step = sum("reward" in r for r in rows) + ("reward" in row)
            rows.append({"step": step, **{k: v for k, v in numbers.items() if v is not None}})
    return rows


def verl_rows(text: str) -> list[dict[str, Any]]:
    rows = []
    for step, rest in re.findall(r"step:(\d+) - (.*)", text):
        row: dict[str, Any] = {"step": int(step)}
        for key, value in re.findall(r"([\w/@.\-]+):(\S+)", rest):
            if number(value) is not None:
                row[key] = number(value)
        rows.append(row)
    return rows


def number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def lines(file: Path) -> list[dict[str, Any]]:
    found = []
    for text in file.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return [r for r in found if isinstance(r, dict)]


def rows_of(run: dict[str, Any]) -> tuple[list[dict[str, Any]], Path | None]:
    """The run's rows under the trainer's keys, and the file that rldoctor opens by itself (None: there is none)."""
    d: Path = run["directory"]
    states = sorted(d.rglob("trainer_state.json"), key=lambda p: (len(p.parts) > len(d.parts) + 1, -p.stat().st_mtime))
    if states:
        return json.loads(states[0].read_text())["log_history"], states[0]
    if run["trainer"] == "gxpo":
        files = [f for f in (d / "metrics.jsonl", d / "evaluations.jsonl") if f.exists()]
        return [r for f in files for r in lines(f)], None
    for file in sorted(d.rglob("*.jsonl")):
        rows = lines(file)
        if rows and "step" in rows[0] and isinstance(rows[0].get("data"), dict):
            return [{"step": r["step"], **r["data"]} for r in rows], file
    for file in sorted([*d.rglob("*.txt"), *d.rglob("*.log"), *d.rglob("*.md")]):
        text = file.read_text(errors="replace")
        rows = trl_rows(text) if run["trainer"] == "trl" else verl_rows(text)
        if rows:
            return rows, None
    return [], None


# ---------------------------------------------------------------- the tools
Finding = tuple[str, str]  # its own name for it, severity


def gxpo(directory: Path, program: str) -> list[dict[str, Any]] | None:
    done = subprocess.run(
        [*program.split(), "doctor", str(directory), "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        return None
    said = json.loads(done.stdout)
    return [{"says": f["title"], "ids": f["ids"], "severity": f["severity"]} for f in said["findings"]]


TRL_NAMES = {  # gxpo's key -> TRL's, which rldoctor knows
    "reward_mean": "reward",
    "zero_signal_groups": "frac_reward_zero_std",
    "length_mean": "completions/mean_length",
    "truncated_rate": "completions/clipped_ratio",
    "clip_fraction": "clip_ratio/region_mean",
    "lr": "learning_rate",
    "eval_accuracy": "eval_score",
    "time_step_s": "step_time",
}


def trl_name(key: str) -> str:
    if key in TRL_NAMES or not key.startswith("reward_"):
        return TRL_NAMES.get(key, key)
    return f"rewards/{key.removeprefix('reward_')}/mean"


def rldoctor(run: dict[str, Any], rows: list[dict[str, Any]], file: Path | None, python: Path) -> list[Finding] | None:
    if not rows:
        return None
    with tempfile.TemporaryDirectory() as tmp:
        if file is None:
            file = Path(tmp) / "rows.jsonl"
            ours = run["trainer"] == "gxpo"
            renamed = [{trl_name(k): v for k, v in r.items() if v is not None} if ours else r for r in rows]
            file.write_text("".join(json.dumps(r) + "\n" for r in renamed))
        command = [str(python.with_name("rldoctor")), "diagnose", str(file), "--format", "json", "--fail-on", "never"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        said = json.loads(done.stdout)["findings"]
    except ValueError:
        return None
    if all(f["severity"] == "SKIPPED" for f in said):
        return None
    rank = {"CRITICAL": 0, "WARNING": 1, "INFO": 2}
    problems = sorted((f for f in said if f["severity"] in rank), key=lambda f: (rank[f["severity"]], f["detector"]))
    return [(part, f["severity"].lower()) for f in problems for part in rldoctor_parts(f)]


def rldoctor_parts(f: dict[str, Any]) -> list[str]:
    """One finding of rldoctor may speak of several things: each of them, as a key of NAMED."""
    name, text, metrics = f["detector"], f["summary"], f["metrics"]
    if name == "advantage_collapse":
        return [f"{name}:{metrics.get('regime', 'mixed')}"]
    tests = {
        "length_pathology": {"truncated": "truncated", "paid by the token": "Length grew"},
        "gradient_pathology": {
            "non-finite": "non-finite",
            "zero": "exactly zero gradient",
            "vanishing": "barely moving",
            "spikes": "spike",
        },
        "reward_composition": {"dominant": "of all reward variance", "dead": "contribute <2%"},
        "kl_drift": {"pinned": "never exceeded"},
    }.get(name)
    if tests is None:
        return [name]
    parts = [f"{name}:{part}" for part, words in tests.items() if words in text]
    if name == "kl_drift" and not parts:
        parts = ["kl_drift:high"]
    return parts or [name]


def replay(tool: str, batch: list[dict[str, Any]], python: Path) -> list[list[Finding] | None]:
    """rlprobe and rlwatch over the rows, as if they had been attached."""
    done = subprocess.run(
        [str(python), str(HERE / "replay.py"), tool],
        input=json.dumps(batch),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return [None if f is None else [(a, b) for a, b in f] for f in json.loads(done.stdout.splitlines()[-1])]


def named(tool: str, findings: list[Finding] | None) -> list[dict[str, Any]] | None:
    if findings is None:
        return None
    return [{"says": n, "ids": sorted(NAMED[tool].get(n, set())), "severity": s} for n, s in findings]


# ---------------------------------------------------------------- the table
def judge(run: dict[str, Any], said: list[dict[str, Any]] | None) -> dict[str, Any]:
    expected = set(run["expected"])
    found = said or []
    return {
        "readable": said is not None,
        "first": bool(found) and bool(expected & set(found[0]["ids"])),
        "anywhere": any(expected & set(f["ids"]) for f in found),
        "alarm": any(f["severity"] in ALARM for f in found),
    }


def table(rows: list[dict[str, Any]], tools: list[str]) -> str:
    sick = [r for r in rows if r["kind"] != "healthy"]
    well = [r for r in rows if r["kind"] == "healthy"]
    out = [
        f"{len(sick)} sick and {len(well)} healthy runs",
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
    ap.add_argument("--corpus", type=Path, default=Path("/tmp/corpus"))
    ap.add_argument("--half", choices=["build", "held"], required=True)
    ap.add_argument("--kinds", nargs="+", default=["trl", "gxpo", "verl"])
    ap.add_argument("--python", type=Path, default=Path("/tmp/peers/bin/python"), help="where the peers are installed")
    ap.add_argument("--gxpo", default="gxpo", help="command of gxpo; empty: leave it out")
    ap.add_argument("--out", type=Path, help="rows per run as JSON")
    a = ap.parse_args()
    runs = truths(a.corpus, a.kinds, a.half)
    if not runs:
        sys.exit(
            f"no runs of the half {a.half} under {a.corpus}: make them with trl_runs.py, gxpo_runs.py, verl_runs.py"
        )
    read = [rows_of(r) for r in runs]
    batch = [{"trainer": r["trainer"], "rows": clean(rows)} for r, (rows, _) in zip(runs, read, strict=True)]
    said: dict[str, list[list[dict[str, Any]] | None]] = {
        "rldoctor": [named("rldoctor", rldoctor(r, *x, a.python)) for r, x in zip(runs, read, strict=True)],
        **{t: [named(t, f) for f in replay(t, batch, a.python)] for t in ("rlprobe", "rlwatch")},
        "martingale": [None] * len(runs),
    }
    if a.gxpo:
        said = {"gxpo": [gxpo(r["directory"], a.gxpo) for r in runs], **said}
    tools = [t for t in TOOLS if t in said]
    rows = []
    for i, run in enumerate(runs):
        row = {k: run[k] for k in ("name", "trainer", "recipe", "kind", "expected")}
        row["as_is"] = read[i][1] is not None
        row["tools"] = {t: {**judge(run, said[t][i]), "findings": said[t][i]} for t in tools}
        rows.append(row)
    if a.out:
        a.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows, tools))
    for kind in a.kinds:
        part = [r for r in rows if r["trainer"] == kind]
        if part and len(a.kinds) > 1:
            print(f"\n{kind}: " + table(part, tools))


def clean(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Numbers only; what is not finite as text, which JSON can carry."""
    out = []
    for r in rows:
        known = {k: number(v) for k, v in r.items()}
        out.append({k: v if math.isfinite(v) else str(v) for k, v in known.items() if v is not None})
    return out


if __name__ == "__main__":
    main()
