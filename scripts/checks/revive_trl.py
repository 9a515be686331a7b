"""A stalled TRL run and what one argument changes: `python scripts/checks/revive_trl.py --python TRL_PYTHON`.

A small model is taught a habit first: whatever digit it is shown, it answers with a digit, and hardly ever (about once
in 60000 answers) with "=", which is what the task asks for. Then TRL trains it, 8 prompts x 8 samples a step: every
group is all wrong, so that rewards do not differ, GRPO's advantages are 0 and nothing moves. The second run is the same
but for `method="ngrpo"`. Prints both reward curves. Under a minute on two cores.

`--rare` is the other side: an untaught model and a reward for the two characters "q7" anywhere in an answer, over six
seeds. Prints the last reward and entropy of each run: what pushes every wrong answer down spends the entropy that the
rare right one needs. About three minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
STEPS, PROMPTS, GROUP, EVERY = 120, 8, 8, 10
ASKED, RARE, TAUGHT = "=", 1e-5, 500  # the right answer, the probability it is taught to have, steps of that
RARE_TEXT = "q7"


def save_habitual(folder: Path) -> str:
    """Save a model that answers with digits."""
    from gxpo.models.tiny import tiny_model
    from gxpo.training import models

    tokenizer = models.load("tiny:cold", task="arithmetic", dtype="float32").tokenizer
    small = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = tiny_model(seed=1, num_key_value_heads=2, **small).train()
    ids = torch.tensor([tokenizer(str(d))["input_ids"] for d in range(10)])
    answer_id = tokenizer(ASKED)["input_ids"][-1]
    target = torch.zeros(10, model.config.vocab_size)
    target[:, ids[:, -1]] = (1 - RARE) / 10
    target[:, answer_id] = RARE
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, TAUGHT)
    for _ in range(TAUGHT):
        loss = -(target * model(input_ids=ids).logits[:, -1].log_softmax(-1)).sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    probability = model(input_ids=ids).logits[:, -1].softmax(-1).detach().mean(0)
    digits = float(probability[ids[:, -1]].sum())
    print(f'probability of "{ASKED}": {float(probability[answer_id]):.1e}, of a digit: {digits:.4f}')
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def reward_answer(completions: Any, **columns: Any) -> list[float]:
    return [float(c.strip() == ASKED) for c in completions]


def reward_rare(completions: Any, **columns: Any) -> list[float]:
    return [float(RARE_TEXT in c) for c in completions]


def run(
    trainer: Any, path: str, reward: Any = reward_answer, settings: Any = None, **overrides: Any
) -> list[dict[str, float]]:
    """Train, and return TRL's log, a row per step. `overrides` is what differs from TRL's own arguments."""
    import datasets
    import transformers
    import trl

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, padding_side="left")

    instance = trainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        reward_funcs=reward,
        args=trl.GRPOConfig(
            **{
                "output_dir": path + "-out",
                "per_device_train_batch_size": PROMPTS * GROUP,
                "num_generations": GROUP,
                "max_completion_length": 1,
                "max_steps": STEPS,
                "learning_rate": 3e-3,
                "lr_scheduler_type": "constant",
                "logging_steps": 1,
                "save_strategy": "no",
                "report_to": "none",
                "use_cpu": True,
                "bf16": False,
                "gradient_checkpointing": False,
                "disable_tqdm": True,
                "dataloader_pin_memory": False,
                **(settings or {}),
            }
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": str(i % 10)} for i in range(160)]),
        processing_class=tokenizer,
        **overrides,
    )
    instance.remove_callback(transformers.PrinterCallback)  # it prints every line of the log
    instance.train()
    return [row for row in instance.state.log_history if "reward" in row]


def curve(rows: list[dict[str, float]], key: str) -> list[float]:
    """Average over EVERY steps."""
    return [sum(r[key] for r in rows[i : i + EVERY]) / EVERY for i in range(0, len(rows), EVERY)]


def show_revival(method: str) -> int:
    import trl

    from gxpo.adapters.trl import GRPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        path = save_habitual(Path(folder) / "model")
        rows_by_name = {}
        for name, trainer, overrides in (
            ("trl.GRPOTrainer(...)", trl.GRPOTrainer, {}),
            (f'gxpo.adapters.trl.GRPOTrainer(..., method="{method}")', GRPOTrainer, {"method": method}),
        ):
            start = time.perf_counter()
            rows_by_name[name] = run(trainer, path, **overrides)
            print(f"{name}: {STEPS} steps in {time.perf_counter() - start:.0f} s")
    print(f"\nmean reward of steps 1-{EVERY}, {EVERY + 1}-{2 * EVERY}, ...")
    for name, rows in rows_by_name.items():
        print(f"{name:<52}", " ".join(f"{x:.2f}" for x in curve(rows, "reward")))
    print("share of groups whose rewards are all equal")
    for name, rows in rows_by_name.items():
        print(f"{name:<52}", " ".join(f"{x:.2f}" for x in curve(rows, "frac_reward_zero_std")))
    stalled, revived = (curve(rows, "reward")[-1] for rows in rows_by_name.values())
    return 0 if stalled < 0.05 and revived > 0.8 else 1


def show_collapse(method: str) -> int:
    """Train six seeds of TRL and of the method where the right answer is rare from the start."""
    import transformers
    import trl

    from gxpo.adapters.trl import GRPOTrainer

    print(
        f'reward for "{RARE_TEXT}" among 8 characters, 50 steps at rate 0.01: last 5 steps\' reward (entropy), by seed'
    )
    for name, trainer, overrides in (("TRL", trl.GRPOTrainer, {}), (method, GRPOTrainer, {"method": method})):
        cells = []
        for seed in range(6):
            with tempfile.TemporaryDirectory() as folder:
                path = save_untaught(Path(folder) / "model", seed)
                settings = {"max_completion_length": 8, "max_steps": 50, "learning_rate": 0.01, "seed": seed}
                transformers.set_seed(seed)
                rows = run(trainer, path, reward_rare, settings, **overrides)
            reward, entropy = (sum(r[k] for r in rows[-5:]) / 5 for k in ("reward", "entropy"))
            cells.append(f"{reward:.2f} ({entropy:.1f})")
        print(f"{name:<8}", "  ".join(cells), flush=True)
    return 0


def save_untaught(folder: Path, seed: int) -> str:
    """Save a model that answers anything, and its tokenizer of 98 characters."""
    from gxpo.models.tiny import tiny_model
    from gxpo.training import models

    small = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    tiny_model(seed=seed, num_key_value_heads=2, **small).save_pretrained(folder)
    models.load("tiny:cold", task="arithmetic", dtype="float32").tokenizer.save_pretrained(folder)
    return str(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter of an environment that has TRL (default: this one)")
    parser.add_argument("--method", default="ngrpo", help="what revives it (default: ngrpo)")
    parser.add_argument("--rare", action="store_true", help="the task on which it revives some seeds and ends others")
    arguments = parser.parse_args()
    if arguments.python:
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        more = ["--rare"] if arguments.rare else []
        surroundings = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        return subprocess.run(
            [arguments.python, __file__, "--method", arguments.method, *more], env=surroundings
        ).returncode
    return show_collapse(arguments.method) if arguments.rare else show_revival(arguments.method)


if __name__ == "__main__":
    sys.exit(main())
