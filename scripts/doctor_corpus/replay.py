"""rlprobe 0.1 or rlwatch 0.5 over the rows of finished runs, as if attached.

peers.py runs this in the interpreter that has them. Standard input: [{"trainer", "rows"}]; standard output, last line:
for each run the tool's findings [name, severity] in its own order, or null where it had nothing to look at. The names
are the tools' own for TRL (and rlwatch's for verl); for the others what a user would write into `log_step`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
import tempfile
from typing import Any

PROBE = {  # rlprobe/integrations/trl.py, _SCALAR_MAP
    "trl": {
        "reward": "reward_mean",
        "reward_std": "reward_std",
        "frac_reward_zero_std": "zero_variance_group_frac",
        "kl": "kl_mean",
        "entropy": "entropy_mean",
        "clip_ratio": "clip_fraction",
        "clip_ratio/region_mean": "clip_fraction",
        "loss": "loss",
        "learning_rate": "lr",
        "grad_norm": "grad_norm",
        "completions/mean_length": "completion_len_mean",
        "completions/max_length": "completion_len_max",
        "completions/clipped_ratio": "truncation_rate",
        "step_time": "step_time_s",
    },
    "gxpo": {
        "reward_mean": "reward_mean",
        "zero_signal_groups": "zero_variance_group_frac",
        "kl": "kl_mean",
        "entropy": "entropy_mean",
        "clip_fraction": "clip_fraction",
        "loss": "loss",
        "lr": "lr",
        "grad_norm": "grad_norm",
        "length_mean": "completion_len_mean",
        "truncated_rate": "truncation_rate",
        "time_step_s": "step_time_s",
    },
    "verl": {
        "critic/score/mean": "reward_mean",
        "critic/score/max": "reward_max",
        "critic/score/min": "reward_min",
        "actor/kl_loss": "kl_mean",
        "actor/entropy": "entropy_mean",
        "actor/entropy_loss": "entropy_mean",
        "actor/pg_clipfrac": "clip_fraction",
        "actor/pg_loss": "loss",
        "actor/lr": "lr",
        "actor/grad_norm": "grad_norm",
        "response_length/mean": "completion_len_mean",
        "response_length/max": "completion_len_max",
        "response_length/clip_ratio": "truncation_rate",
        "timing_s/step": "step_time_s",
    },
}
WATCH = {  # rlwatch/core.py, metric_map of the TRL callback; integrations/verl_tracking.py
    "trl": {
        "entropy": ["entropy", "policy_entropy", "approx_entropy"],
        "kl_divergence": ["kl", "kl_divergence", "kl_penalty", "approx_kl"],
        "reward_mean": ["reward", "reward_mean", "rewards/mean", "env/reward_mean"],
        "reward_std": ["reward_std", "rewards/std", "env/reward_std"],
        "advantage_std": ["advantage_std", "advantages_std"],
        "loss": ["loss", "train_loss", "policy_loss"],
        "grad_norm": ["grad_norm", "gradient_norm", "grads/norm"],
    },
    "gxpo": {
        "entropy": ["entropy"],
        "kl_divergence": ["kl", "approx_kl"],
        "reward_mean": ["reward_mean"],
        "loss": ["loss"],
        "grad_norm": ["grad_norm"],
    },
    "verl": {
        "entropy": ["actor/entropy", "entropy", "policy_entropy"],
        "kl_divergence": ["actor/kl_divergence", "training/kl_penalty", "kl", "kl_divergence"],
        "reward_mean": ["rewards/mean", "reward_mean", "reward"],
        "reward_std": ["rewards/std", "reward_std"],
        "loss": ["training/policy_loss", "policy_loss", "loss"],
        "grad_norm": ["training/grad_norm", "grad_norm", "gradient_norm"],
        "advantage_std": ["advantage_std", "advantages_std"],
    },
}
TRAINING = {"trl": "reward", "gxpo": "reward_mean", "verl": "critic/score/mean"}


def training(run: dict[str, Any]) -> list[dict[str, float]]:
    rows = [{k: float(v) for k, v in r.items()} for r in run["rows"]]
    return [r for r in rows if TRAINING[run["trainer"]] in r or "loss" in r]


def component(key: str, trainer: str) -> str | None:
    if trainer == "trl" and key.startswith("rewards/") and key.endswith("/mean"):
        return key[len("rewards/") : -len("/mean")]
    if trainer == "gxpo" and key.startswith("reward_") and key not in ("reward_mean", "reward_std"):
        return key.removeprefix("reward_")
    return None


def probe(run: dict[str, Any]) -> list[list[str]] | None:
    from rlprobe.doctor.engine import diagnose_view
    from rlprobe.doctor.runview import RunView
    from rlprobe.schemas import RunManifest, StepRecord

    names, records = PROBE[run["trainer"]], []
    for i, row in enumerate(training(run)):
        figures = {names[k]: v for k, v in row.items() if k in names and not math.isnan(v)}
        parts = {component(k, run["trainer"]): v for k, v in row.items() if not math.isnan(v)}
        parts.pop(None, None)
        if figures:
            records.append(StepRecord(step=int(row.get("step", i)), reward_components=parts, **figures))
    if not records:
        return None
    manifest = RunManifest(run_id="run", created_at="2026-01-01T00:00:00", algorithm="grpo")
    with contextlib.redirect_stdout(io.StringIO()):
        findings = diagnose_view(RunView(manifest, records))
    return [[probe_part(f), f.severity] for f in findings]


def probe_part(f: Any) -> str:
    name, text = f.signature_id, f.explanation
    if name == "GRAD_PATHOLOGY":
        return f"{name}:{'NaN' if 'NaN' in text else 'spikes'}"
    if name == "REWARD_STD_DEATH":
        return f"{name}:{'ceiling' if 'near its maximum' in text else 'collapse'}"
    return name


def watch(run: dict[str, Any]) -> list[list[str]] | None:
    from rlwatch.config import RLWatchConfig
    from rlwatch.core import RLWatch

    with tempfile.TemporaryDirectory() as tmp, contextlib.redirect_stdout(io.StringIO()):
        config = RLWatchConfig()
        config.storage.log_dir = tmp
        monitor = RLWatch(config)
        monitor.start()
        alerts, has_figures = [], False
        for i, row in enumerate(training(run)):
            figures = {}
            for name, keys in WATCH[run["trainer"]].items():
                key = next((k for k in keys if k in row), None)
                if key is not None:
                    figures[name] = row[key]
            if figures:
                has_figures = True
                alerts += monitor.log_step(int(row.get("step", i)), **figures)
        monitor.stop()
    if not has_figures:
        return None
    alerts.sort(key=lambda x: (x.severity != "critical", x.step))
    return [[watch_part(x), x.severity] for x in alerts]


def watch_part(alert: Any) -> str:
    if alert.detector == "reward_mean_drift":
        return f"{alert.detector}:{alert.metric_values.get('direction', 'down')}"
    return alert.detector


if __name__ == "__main__":
    look = {"rlprobe": probe, "rlwatch": watch}[sys.argv[1]]
    print(json.dumps([look(run) for run in json.load(sys.stdin)]))
