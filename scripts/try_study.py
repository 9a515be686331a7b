"""`gxpo try` on the scripts of studies/try: five sick and two healthy ones, each with three arms.

    python scripts/try_study.py --python TRL_PYTHON --out DIR     # continues in DIR, then writes studies/try.json
                                                                  # and docs/try.svg

TRL_PYTHON has gxpo and TRL. The model, two layers of width 48 over characters, is made in DIR.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STUDIES = Path(__file__).parents[1] / "studies"
SEEDS, STEPS = 5, 30
MODEL = """
from gxpo.models.tiny import character_tokenizer, tiny_model
size = {"num_key_value_heads": 2, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
tiny_model(seed=1, **size).save_pretrained("model")
character_tokenizer().save_pretrained("model")
"""


@dataclass(frozen=True)
class Case:
    """A script and what is tried in it; the remedy is empty for a healthy script."""

    script: str
    remedy: str
    others: tuple[str, ...]
    harmful: str
    metric: str = "reward"

    @property
    def arms(self) -> tuple[str, ...]:
        return (*((self.remedy,) if self.remedy else ()), *self.others, self.harmful)


CASES = (
    Case("rate", "learning_rate=3e-3", ("beta=0.04",), "learning_rate=1.0"),
    Case("parser", "reward_weights=[0.0,1.0]", ("learning_rate=*3",), "max_completion_length=2", "rewards/plain/mean"),
    Case("beta", "beta=0.0", ("num_generations=16",), "beta=*10"),
    Case("length", "max_completion_length=12", ("epsilon=0.1",), "learning_rate=1.0"),
    Case("group", "num_generations=8", ("beta=0.04",), "learning_rate=0.5"),
    Case("healthy_digits", "", ("learning_rate=/10", "beta=0.1"), "learning_rate=*100"),
    Case("healthy_words", "", ("learning_rate=/10", "epsilon=0.1"), "learning_rate=*100"),
)


def command_of(case: Case, python: str, out: Path) -> list[str]:
    """Build the command of the trial as a user would type it."""
    arms = [word for arm in case.arms for word in ("--arm", arm)]
    return [
        python, "-m", "gxpo", "try", str(STUDIES / "try" / f"{case.script}.py"), *arms, "--metric", case.metric,
        "--seeds", str(SEEDS), "--steps", str(STEPS), "--sequential", "--out", str(out / case.script), "--json", "--",
        "model",
    ]  # fmt: skip


def run_case(case: Case, python: str, out: Path) -> dict[str, Any]:
    """Run or continue a trial; return its row of the table."""
    clock = out / f"{case.script}.time.json"
    times = json.loads(clock.read_text()) if clock.is_file() else {"wall_s": 0.0, "processor_s": 0.0}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.run(
        command_of(case, python, out.resolve()), cwd=out, capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    times["wall_s"] += time.monotonic() - start
    times["processor_s"] += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    clock.write_text(json.dumps(times))
    # What was told from the base, and by how much.
    document = json.loads(process.stdout)
    arms = {
        d["arm"]: {"verdict": d["verdict"], "mean": d["end"]["mean"], "low": d["end"]["low"], "high": d["end"]["high"],
                   "seeds": d["end"]["n"]}
        for d in document["differences"]
    }  # fmt: skip
    ends = {a["label"]: a["end"]["mean"] for a in document["arms"]}
    return {
        "script": case.script, "remedy": case.remedy, "harmful": case.harmful, "metric": case.metric,
        "recommended": document["recommended"], "base_end": ends["base"], "arms": arms,
        "doctor_on_base": document["doctor"]["base"], **{k: round(v) for k, v in times.items()},
    }  # fmt: skip


def picture(page: Path, target: Path) -> None:
    """Draw two charts of a trial's page, side by side: the differences at the end and the curves."""
    charts = re.findall(r"<svg.*?</svg>", page.read_text(), re.DOTALL)
    wide, high = 460, 300
    svgs = [
        chart.replace("<svg ", f'<svg x="{i * wide}" width="{wide}" height="{high}" ', 1)
        for i, chart in enumerate((charts[0], charts[2]))
    ]
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * wide} {high}">'
    target.write_text(f'{frame}<rect width="100%" height="100%" fill="#fdfdfc"/>{"".join(svgs)}</svg>\n')


def main() -> None:
    """Run all trials and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[c.script for c in CASES])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if not (options.out / "model").is_dir():
        subprocess.run([options.python, "-c", MODEL], cwd=options.out, check=True)
    rows_path, rows = options.out / "rows.json", {}
    rows = json.loads(rows_path.read_text()) if rows_path.is_file() else {}
    for case in CASES:
        if case.script in options.only and case.script not in rows:
            rows[case.script] = run_case(case, options.python, options.out)
            rows_path.write_text(json.dumps(rows, indent=1))
            print(json.dumps(rows[case.script]), flush=True)
    document = {"seeds": SEEDS, "steps": STEPS, "rows": [rows[c.script] for c in CASES if c.script in rows]}
    (STUDIES / "try.json").write_text(json.dumps(document, indent=1) + "\n")
    picture(options.out / "parser" / "compare.html", STUDIES.parent / "docs" / "try.svg")


if __name__ == "__main__":
    main()
