"""Compare what `gxpo convert verl` says of launch scripts with what it says of the arguments that running them gives.

    python scripts/checks/check_convert_verl.py CHECKOUT [CHECKOUT ...] [--rows ROWS.jsonl]
                                                [--train 60 [--trained RECORD.jsonl]]

CHECKOUT is a checkout of verl or of verl-recipe. Each script runs in a copy of it, without network, as nobody, with
programs that only write their arguments down. Exit 1 if a key is wrong without being said to be unknown.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from gxpo.adapters.convert_verl import convert_verl
from gxpo.adapters.shell.values import Unknown
from gxpo.adapters.verl_source import read_source
from gxpo.base.errors import ConfigError
from gxpo.base.yamltext import OPEN

REAL = ("awk", "basename", "bash", "cat", "cut", "date", "dirname", "env", "expr", "grep", "head", "hostname",
        "nohup", "readlink", "realpath", "sed", "seq", "sort", "tail", "tee", "tr", "uname", "wc")  # fmt: skip
STUBS = ("python", "python3", "ray", "torchrun", "srun", "uv", "sleep", "nvidia-smi", "npu-smi", "scontrol", "pip",
         "pip3", "curl", "wget", "rm", "hf", "huggingface-cli", "ssh", "git", "sudo", "docker", "nproc", "lscpu",
         "time", "timeout", "numactl", "accelerate", "deepspeed", "ulimit", "chmod", "kill", "ps", "which")  # fmt: skip
STUB = """#!{python} -I
import json, os, sys
with open({record!r}, "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""
KINDS = ("equal", "open in both", "unknown", "wrong")
LAUNCHES = re.compile(r"main_\w+|_main\b|grpo_main|fully_async|reward_queue")
FILLED = {
    "model": "tiny", "task": "arithmetic", "trainer.steps": 2, "method": "grpo@verl", "objective": "grpo",
    "credit.scale": "std", "rollout": "independent", "weight.mismatch": "truncated", "tasks.per_step": 4,
    "objective.aggregate": "token_mean", "rollout.group_size": 4, "sampling.max_new_tokens": 24,
    "reward.add.overlong.max_length": 24, "objective.kl.coef": 0.01, "objective.ratio_over": "proximal",
    "optim.schedule": "constant", "learner.freeze_vision_tower": False, "objective.kl.estimator": "k3",
}  # fmt: skip
SMALL = ("model=tiny", "task=arithmetic", "trainer.steps=2", "tasks.per_step=4", "rollout.group_size=16",
         "tasks.options.digits=1", "sampling.max_new_tokens=24", "trainer.checkpoint_every=0", "eval.every=0",
         "learner.device=cpu")  # fmt: skip


def sandbox(checkout: Path, folder: Path) -> tuple[Path, Path, Path]:
    """Make a copy of a checkout, programs that write their arguments down, and the file that they write to."""
    copy, programs, record = folder / "copy", folder / "bin", folder / "record.jsonl"
    ignore = shutil.ignore_patterns(".git", "*.png", "*.jpg", "docs")
    shutil.copytree(checkout, copy, ignore=ignore, symlinks=True)
    programs.mkdir()
    (folder / "home").mkdir()
    for name in STUBS:
        (programs / name).write_text(STUB.format(python="/usr/bin/python3", record=str(record)))
        (programs / name).chmod(0o755)
    (programs / "mkdir").write_text(f'#!/bin/bash\n{shutil.which("mkdir")} -p "$@" 2> /dev/null || true\n')
    (programs / "mkdir").chmod(0o755)
    for name in REAL:
        if path := shutil.which(name):
            (programs / name).symlink_to(path)
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files, "."):
            if not (Path(root) / name).is_symlink():
                os.chown(Path(root) / name, 65534, 65534)
    return copy, programs, record


def true_arguments(script: Path, copy: Path, programs: Path, record: Path) -> tuple[list[list[str]], str]:
    """Run a script; return the commands that it gave to its programs, and the end of its errors."""
    home = copy.parent / "home"
    environment = {"PATH": str(programs), "HOME": str(home)}
    errors = ""
    for _ in range(8):
        record.write_text("")
        record.chmod(0o666)
        command = ["unshare", "-n", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "-i",
                   *(f"{k}={v}" for k, v in environment.items()), "bash", "-c",
                   'ulimit -t 10 -f 20000; command_not_found_handle() { python3 "$@"; }; '
                   'export -f command_not_found_handle; exec bash "$0"', str(script)]  # fmt: skip
        try:
            process = subprocess.run(command, cwd=copy, capture_output=True, timeout=20, stdin=subprocess.DEVNULL)
            errors = process.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired:
            errors = "20 seconds"
        # what the script asks of its caller gets its own name as its value
        missing = re.search(r"(?:line \d+: )(\w+): (?:unbound variable|parameter null|.*must be set|.*set )", errors)
        if missing is None or missing[1] in environment or not re.match(r"[A-Za-z_]", missing[1]):
            break
        environment[missing[1]] = missing[1]
    return [json.loads(line) for line in record.read_text().splitlines()], errors[-300:]


def training_of(commands: list[list[str]]) -> list[str] | None:
    """Choose the last command that is a training by reward."""
    out = None
    for command in commands:
        program = next((command[i + 1] for i, word in enumerate(command[:-1]) if word == "-m"), "")
        program = program or next((word for word in command if word.endswith(".py")), "")
        is_other = re.search(r"sft|generat|eval|merger|server|preprocess|print_cfg", program.rpartition(".")[2])
        if not is_other and any(re.match(r"[+~]*(algorithm|actor_rollout_ref|data|trainer)\.", w) for w in command):
            out = command
    return out


def count_keys(script_keys: dict[str, Any], true_keys: dict[str, Any], is_open: Any, home: Path) -> Counter[str]:
    """Count keys by what a conversion of the script says: equal, unknown, wrong. `home`: what `~` stands for."""
    counts: Counter[str] = Counter()
    script_keys, true_keys = (
        {k: f"{home}{v[1:]}" if isinstance(v, str) and v.startswith("~/") else v for k, v in one.items()}
        for one in (script_keys, true_keys)
    )
    for key in {**script_keys, **true_keys}:
        if key in script_keys and is_open(script_keys[key]):
            kind = "open in both" if key in true_keys and is_open(true_keys[key]) else "unknown"
        else:
            kind = (
                "equal" if key in script_keys and key in true_keys and script_keys[key] == true_keys[key] else "wrong"
            )
        counts[kind] += 1
        if kind == "wrong":
            counts[f"wrong: {key}: {script_keys.get(key, '-')} for {true_keys.get(key, '-')}"] += 1
    return counts


def literals_of(script: Path) -> set[str]:
    """List the keys that a script sets to a value without a variable."""
    text = script.read_text(errors="replace")
    return {
        m[1] for m in re.finditer(r"(?m)(?<![\w.])([a-z_]+(?:\.\w+)+)=([^\s\\]*)", text) if not re.search("[$`]", m[2])
    }


def check(script: Path, name: str, copy: Path, programs: Path, record: Path) -> dict[str, Any]:
    """Compare one script."""
    row: dict[str, Any] = {"script": name}
    try:
        conversion = convert_verl([str(script)])
        row["open"] = sorted(conversion.open)
        row["notes"] = len(conversion.notes)
        row["text"] = conversion.text(script.name)
    except ConfigError as error:
        row["refused"] = str(error)
    commands, errors = true_arguments(script, copy, programs, record)
    command = training_of(commands)
    if command is None:
        return row | {"no truth": errors.strip().splitlines()[-1:] or ["it starts no training"]}
    if "refused" in row:
        return row
    row["arguments"] = command
    before = os.getcwd()
    os.chdir(script.parent)  # where its configurations lie
    truth, run_source = convert_verl(command), read_source(command)
    os.chdir(before)
    script_source, home = read_source([str(script)]), copy.parent / "home"
    row["keys"] = dict(count_keys(dict(conversion.keys), dict(truth.keys), lambda value: value == OPEN, home))
    values = [{k: v for k, (v, _) in source.settings.items()} for source in (script_source, run_source)]
    row["settings"] = dict(count_keys(values[0], values[1], lambda value: isinstance(value, Unknown), home))
    literals = literals_of(script) & set(values[1])
    row["literals"] = [len(literals), sum(isinstance(values[0].get(key), Unknown) for key in literals)]
    return row


def resolves(row: dict[str, Any], folder: Path) -> str:
    """Resolve a conversion with its open lines filled; "" if it does, else why not."""
    from gxpo.training import config

    (folder / "run.yaml").write_text(row["text"])
    sets = [f"{key}={FILLED.get(key, 1)}" for key in row["open"] if key != "reward"]
    drops = [f"~{key}" for key in row["open"] if key == "reward"]
    try:
        config.load(folder / "run.yaml", [*sets, *drops, *SMALL, *small_of(row)])
    except ConfigError as error:
        return str(error)
    return ""


def small_of(row: dict[str, Any]) -> list[str]:
    """List settings that make a conversion small enough for two steps on a stand-in, which has no chat template."""
    sets = ["~chat.kwargs"] if re.search(r"(?m)^chat\.kwargs\b", row["text"]) else []
    for key, value in (("update.minibatches", 2), ("optim.warmup_steps", 1), ("reward.add.overlong.max_length", 24)):
        if re.search(rf"(?m)^{re.escape(key)}: \d", row["text"]):
            sets.append(f"{key}={value}")
    return sets


def trains(row: dict[str, Any], folder: Path) -> str:
    """Train two steps on a stand-in, with the open lines filled; "" if that works, else why not."""
    from gxpo.training import config
    from gxpo.training.train import train

    if problem := resolves(row, folder):
        return problem
    sets = [f"{key}={FILLED.get(key, 1)}" for key in row["open"] if key != "reward"]
    drops = [f"~{key}" for key in row["open"] if key == "reward"]
    values = config.over(config.read(folder / "run.yaml"), config.parse_set([*sets, *drops, *SMALL, *small_of(row)]))
    try:
        train(resolved=config.resolve(values), out=folder / "run", progress="none")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder / "run", ignore_errors=True)
    return ""


def train_sample(rows: list[dict[str, Any]], size: int, record: Path | None) -> None:
    """Train a sample of the conversions, and print how many train; those in `record` count without a second time."""
    sample = random.Random(0).sample(rows, min(size, len(rows)))
    text = record.read_text() if record and record.exists() else ""
    outcomes = {script: problem for script, digest, problem in map(json.loads, text.splitlines())
                if any((row["script"], digest_of(row)) == (script, digest) for row in sample)}  # fmt: skip
    for row in sample:
        if row["script"] in outcomes:
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcomes[row["script"]] = trains(row, Path(folder))
        if record:
            with record.open("a") as file:
                file.write(json.dumps([row["script"], digest_of(row), outcomes[row["script"]]]) + "\n")
    print(f"train two steps: {sum(not problem for problem in outcomes.values())} of {len(sample)}")
    for script, problem in outcomes.items():
        if problem:
            print(f"  {script}: {problem[:200]}")


def digest_of(row: dict[str, Any]) -> str:
    """Return the digest of a conversion and of the commit that trains it."""
    return hashlib.sha256(f"{_commit()}{row['text']}".encode()).hexdigest()[:16]


@functools.cache
def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True).stdout


def main() -> int:
    """Compare all scripts of the checkouts, and print a line for each and the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--train", type=int, default=0, help="train a sample of so many two steps on a stand-in")
    parser.add_argument("--trained", type=Path, help="record of the sample, with which it goes on where it stopped")
    options = parser.parse_args()
    rows = []
    for checkout in options.checkouts:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder = Path(name)
            folder.chmod(0o755)
            copy, programs, record = sandbox(checkout.resolve(), folder)
            for script in sorted(copy.rglob("*.sh")):
                text = script.read_text(errors="replace")
                if LAUNCHES.search(text) and re.search(r"\w+\.\w+=", text):
                    label = f"{checkout.name}/{script.relative_to(copy)}"
                    rows.append(check(script, label, copy, programs, record))
                    print(line_of(rows[-1]), flush=True)
    report(rows, options)
    if options.rows:
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return int(any("wrong" in row.get(part, {}) for row in rows for part in ("keys", "settings")))


def line_of(row: dict[str, Any]) -> str:
    """Format one line of the table."""
    parts = [" ".join(f"{row[part].get(kind, 0):3}" for kind in KINDS) if part in row else " " * 15
             for part in ("keys", "settings")]  # fmt: skip
    remark = row.get("refused", "") or str(row.get("no truth", [""])[0])
    wrong = "; ".join(k for part in ("keys", "settings") for k in row.get(part, {}) if k.startswith("wrong: "))
    return f"{row['script'][:88]:88} {parts[0]} | {parts[1]} {remark[:100]} {wrong[:400]}"


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the sums, how many conversions resolve, and how many of a sample train."""
    compared_rows = [row for row in rows if "keys" in row]
    print(f"{len(rows)} scripts, {sum('refused' in r for r in rows)} refused, {len(compared_rows)} compared")
    for part in ("keys", "settings"):
        total = sum((Counter(row[part]) for row in compared_rows), Counter())
        n = sum(total[kind] for kind in KINDS) or 1
        shares = ", ".join(f"{kind} {total[kind]} ({total[kind] / n:.1%})" for kind in KINDS)
        print(f"{part}: {n}: {shares}; scripts with a wrong one: {sum('wrong' in row[part] for row in compared_rows)}")
    literals = [sum(row["literals"][i] for row in compared_rows) for i in (0, 1)]
    print(f"set by literals: {literals[0]}, of these unknown {literals[1]} ({literals[1] / max(literals[0], 1):.1%})")
    with tempfile.TemporaryDirectory() as name:
        converted_rows = [row for row in rows if "text" in row]
        problems = {row["script"]: resolves(row, Path(name)) for row in converted_rows}
        print(f"resolve once filled: {sum(not p for p in problems.values())} of {len(rows)}")
        for script, problem in problems.items():
            if problem:
                print(f"  {script}: {problem[:200]}")
    if options.train:
        train_sample(converted_rows, options.train, options.trained)


if __name__ == "__main__":
    sys.exit(main())
