"""Run rldoctor, rlprobe, rlwatch and `gxpo doctor` over one run, each with its own names and what they mean in ids."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

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

Finding = tuple[str, str]  # its own name for it, severity


def gxpo(directory: Path) -> list[dict[str, Any]] | None:
    """Return what `gxpo doctor DIRECTORY --json` prints; None where it could read nothing."""
    from gxpo.doctor import diagnose, read

    diagnosis = diagnose(read(directory))
    if diagnosis.exit_code == 2:
        return None
    return [{"says": f.title, "ids": list(f.ids), "severity": f.severity} for f in diagnosis.findings]


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
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        findings = json.loads(process.stdout)["findings"]
    except ValueError:
        return None
    if all(f["severity"] == "SKIPPED" for f in findings):
        return None
    rank = {"CRITICAL": 0, "WARNING": 1, "INFO": 2}
    problems = sorted(
        (f for f in findings if f["severity"] in rank), key=lambda f: (rank[f["severity"]], f["detector"])
    )
    return [(part, f["severity"].lower()) for f in problems for part in rldoctor_parts(f)]


def rldoctor_parts(f: dict[str, Any]) -> list[str]:
    """List the several things that one finding of rldoctor may speak of, each as a key of NAMED."""
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
    """Run rlprobe and rlwatch over the rows, as if they had been attached."""
    process = subprocess.run(
        [str(python), str(HERE / "replay.py"), tool],
        input=json.dumps(batch),
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(process.stderr[-2000:])
    return [None if f is None else [(a, b) for a, b in f] for f in json.loads(process.stdout.splitlines()[-1])]


def with_ids(tool: str, findings: list[Finding] | None) -> list[dict[str, Any]] | None:
    if findings is None:
        return None
    return [{"says": n, "ids": sorted(NAMED[tool].get(n, set())), "severity": s} for n, s in findings]
