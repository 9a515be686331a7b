"""Steps of a study's arms in turn: processor seconds of sampling and update, and bytes of the frozen weights.

    python scripts/nf4_steps.py studies/nf4.yaml --steps 3

The first step of each arm, which sets up kernels, is left out.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from gxpo.parts.definition import SettingValue
from gxpo.training.config import resolve
from gxpo.training.loop import Trainer
from study import keys_of, read_list


def frozen_bytes(model: Any) -> int:
    """Bytes of the storages of all parameters but adapters, with what a 4-bit weight holds beside its codes."""
    tensors = [p for name, p in model.named_parameters() if "lora_" not in name]
    for state in [p.quant_state for p in tensors if getattr(p, "quant_state", None) is not None]:
        tensors += [state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code]
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    listed = read_list(arguments.study)
    (experiment,) = listed["experiments"]
    setting = listed["settings"][experiment["setting"]]
    with tempfile.TemporaryDirectory() as folder:
        trainers = {}
        for arm in (experiment["base"], *experiment["arms"]):
            keys = {**keys_of(setting, arm), "seed": 0}
            resolved = resolve({key: SettingValue(value, "study") for key, value in keys.items()})
            trainers[arm["label"]] = Trainer(resolved, out=Path(folder) / arm["label"])
            print(f"{arm['label']}: {frozen_bytes(trainers[arm['label']].learner.model):,} bytes", flush=True)
        seconds_by_arm: dict[str, list[float]] = {label: [] for label in trainers}
        for step in range(arguments.steps + 1):
            for label, trainer in trainers.items():
                start = time.process_time()
                row = trainer.step()
                seconds = time.process_time() - start
                parts = " ".join(f"{key} {value:.2f}" for key, value in row.items() if key.startswith("time_"))
                print(f"{label} step {step + 1}: {seconds:.2f} s of processor ({parts}), "
                      f"sampler gap {row.get('sampler_gap_mean', float('nan')):.4f}", flush=True)  # fmt: skip
                if step:
                    seconds_by_arm[label].append(seconds)
        for label, seconds_taken in seconds_by_arm.items():
            low, high = min(seconds_taken), max(seconds_taken)
            print(f"{label}: median {median(seconds_taken):.2f} s a step ({low:.2f} to {high:.2f})")
        for trainer in trainers.values():
            trainer.close()


if __name__ == "__main__":
    main()
