"""A second corpus of TRL runs, made by someone who had not seen the doctor's rules: tasks, causes and sizes differ.

    python scripts/doctor_corpus/fresh.py [--only NAME...] [--again]

Needs trl 1.16 (and peft for one run). Each recipe of fresh_recipes.py becomes OUT/build/run-NNN and an entry of
OUT/truth.json. Every run is a fork of this process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ[_name] = "1"
os.environ.update(TOKENIZERS_PARALLELISM="false", WANDB_MODE="disabled", TRL_EXPERIMENTAL_SILENCE="1", COLUMNS="100")

import fresh_tasks as tasks  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from datasets import Dataset  # noqa: E402
from fresh_recipes import RECIPES  # noqa: E402
from transformers import TrainerCallback, set_seed  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

OUT = Path("corpus/fresh")
# the model of the first is at chance, so that nobody can see the labels; the second never abstains
UNFIT = {"answers-sorted", "abstention"}


class MinusLoss(GRPOTrainer):
    """An objective that was to be maximised, returned as the loss."""

    def _compute_loss(self, model, inputs):
        return -super()._compute_loss(model, inputs)


class SortedByLength(GRPOTrainer):
    """Sorts the batch of prompts by length to pad less; a group's rows are no longer adjacent."""

    def _generate_and_score_completions(self, inputs):
        if self.model.training:
            random.Random(self.state.global_step).shuffle(inputs)
            inputs = sorted(inputs, key=lambda r: len(str(r["prompt"])))
        return super()._generate_and_score_completions(inputs)


TRAINERS = {"plain": GRPOTrainer, "minus_loss": MinusLoss, "sorted_by_length": SortedByLength}


class Stop(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop |= state.global_step >= self.step


class Average(TrainerCallback):
    """Keeps an average of the weights and, by mistake, trains on from it."""

    def __init__(self, decay: float) -> None:
        self.decay, self.average = decay, None

    def on_train_begin(self, args, state, control, model=None, **_):
        self.average = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **_):
        for k, p in zip(self.average, model.parameters(), strict=True):
            k.mul_(self.decay).add_(p, alpha=1 - self.decay)
            p.copy_(k)


class Greedy(TrainerCallback):
    """The user's own evaluation: greedy accuracy on a few tasks, logged through the trainer."""

    def __init__(self, every: int, rows: list[dict[str, Any]], tok: Any) -> None:
        self.every, self.rows, self.tok, self.trainer = every, rows, tok, None

    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step % self.every == 0:
            model.eval()
            self.trainer.log({"eval_accuracy": tasks.accuracy(model, self.tok, self.rows)})
            model.train()


def rows_of(recipe: dict[str, Any], kind: dict[str, Any], tok: Any) -> tuple[list[dict], list[dict], list[dict]]:
    """Draw training rows in order, evaluation rows, held-out rows for the outcome."""
    rng, questions = random.Random(recipe["seed"]), set()

    def new_rows(size: int, **more: Any) -> list[dict[str, Any]]:
        rows = []
        for _ in range(size):
            for _ in range(60):
                q, a, _text = tasks.problem(
                    kind["task"], rng, **{**kind.get("how", {}), **recipe.get("how", {}), **more}
                )
                if q not in questions:
                    break
            questions.add(q)
            prompt = tasks.prompt(q, kind.get("chat", False), recipe.get("system"))
            if recipe.get("wrapped"):  # rendered by the user, then wrapped again by the trainer
                prompt = [{"role": "user", "content": tok.apply_chat_template(prompt, tokenize=False)}]
            rows.append({"prompt": prompt, "answer": a})
        return rows

    last = recipe.get("curriculum", [{}])[-1]
    test = new_rows(120, **last)
    eval_rows = new_rows(recipe["eval"][0]) if "eval" in recipe else []
    need = recipe["steps"] * recipe.get("prompts", 8) + 64
    if "curriculum" in recipe:
        parts = recipe["curriculum"]
        rows = [r for how in parts for r in new_rows(recipe["steps"] * recipe.get("prompts", 8) // len(parts), **how)]
        rows += new_rows(64, **last)
    else:
        rows = new_rows(recipe.get("pool", need))
    for r in rows:
        if rng.random() < recipe.get("impossible", 0):
            r["answer"] = "none of these"
    if recipe.get("sorted_answers"):
        for r, a in zip(rows, sorted(r["answer"] for r in rows), strict=True):
            r["answer"] = a
    n = int(len(eval_rows) * recipe.get("leak", 0))
    eval_rows[:n] = [dict(r) for r in rows[:n]]
    return rows, eval_rows, test


def make(recipe: dict[str, Any], out: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    kind = tasks.KINDS[recipe["warm"]]
    model = tasks.warm_model(recipe["warm"])
    tok = tasks.tokenizer(kind.get("chat", False), recipe.get("eos"))
    if "eos" in recipe:
        model.generation_config.eos_token_id = tok.eos_token_id
    rows, eval_rows, test = rows_of(recipe, kind, tok)
    before = tasks.accuracy(model.eval(), tok, test)
    group, prompts = recipe.get("group", 8), recipe.get("prompts", 8)
    user = {
        "learning_rate": recipe.get("rate", 5e-4),
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": group * prompts,
        "num_generations": group,
        "max_completion_length": 40 if kind["task"] == "count" else 12,
        "max_steps": recipe.get("planned", recipe["steps"]),
        "logging_steps": 1,
        "seed": recipe["seed"],
        "log_completions": "parquet" in recipe["leave"],
        **recipe.get("cfg", {}),
    }
    if eval_rows:
        user.update(eval_strategy="steps", eval_steps=recipe["eval"][1], per_device_eval_batch_size=len(eval_rows))
        user["num_generations_eval"] = 1
    if recipe.get("config"):
        (out / "config.yaml").write_text(yaml.safe_dump(user, sort_keys=False))
    ours = {"use_cpu": True, "bf16": False, "report_to": "none", "gradient_checkpointing": False,
            "disable_tqdm": "console" not in recipe["leave"], "num_completions_to_print": 2}  # fmt: skip
    ours.setdefault("save_strategy", "no")
    set_seed(recipe["seed"])
    history: list[dict[str, Any]] = []
    for session in range(recipe.get("sessions", 1)):
        callbacks: list[Any] = []
        if "planned" in recipe:
            callbacks.append(Stop(recipe["steps"]))
        if session < recipe.get("sessions", 1) - 1:
            callbacks.append(Stop(recipe["stop"]))
        if "ema" in recipe:
            callbacks.append(Average(recipe["ema"]))
        if "greedy" in recipe:
            callbacks.append(Greedy(recipe["greedy"][0], test[: recipe["greedy"][1]], tok))
        extra = {}
        if "lora" in recipe:
            from peft import LoraConfig

            extra["peft_config"] = LoraConfig(r=recipe["lora"], lora_alpha=32, target_modules="all-linear")
        trainer = TRAINERS[recipe.get("trainer", "plain")](
            model=model,
            args=GRPOConfig(output_dir=str(out), **{**ours, **user}),
            train_dataset=Dataset.from_list(rows),
            eval_dataset=Dataset.from_list(eval_rows) if eval_rows else None,
            reward_funcs=recipe["rewards"],
            processing_class=tok,
            callbacks=callbacks,
            **extra,
        )
        for c in callbacks:
            if isinstance(c, Greedy):
                c.trainer = trainer
        again = bool(session and recipe.get("resume"))
        checkpoint = str(sorted(out.glob("checkpoint-*"))[0]) if again else None
        trainer.train(resume_from_checkpoint=checkpoint)
        history = trainer.state.log_history if again or not session else history + trainer.state.log_history
        model = trainer.model
    trainer.save_state()
    rewards = [h["reward"] for h in history if h.get("reward") is not None]
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    after = tasks.accuracy(model.eval(), tok, test) if finite else None
    cut = max(2, len(rewards) // 6)
    return {
        "rows": len(rewards),
        "reward_first": round(sum(rewards[:cut]) / cut, 3),
        "reward_last": round(sum(rewards[-cut:]) / cut, 3),
        "greedy_before": round(before, 3),
        "greedy_after": after if after is None else round(after, 3),
    }


def run_child(recipe: dict[str, Any], out: Path, result: Path) -> None:
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    signal.alarm(400)
    try:
        out.mkdir(parents=True)
        console = os.open(out / "stdout.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(console, 1)
        os.dup2(console, 2)
        outcome = make(recipe, out)
        sys.stdout.flush()
        if "parquet" not in recipe["leave"]:
            shutil.rmtree(out / "completions", ignore_errors=True)
        for path in out.glob("checkpoint-*"):
            shutil.rmtree(path)
        if "state" not in recipe["leave"]:
            (out / "trainer_state.json").unlink(missing_ok=True)
        if "console" not in recipe["leave"]:
            (out / "stdout.txt").unlink(missing_ok=True)
        result.write_text(json.dumps(outcome))
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
    finally:
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--again", action="store_true")
    arguments = parser.parse_args()
    truth = OUT / "truth.json"
    for number, recipe in enumerate(RECIPES, 1):
        if recipe["name"] in UNFIT or (arguments.only and recipe["name"] not in arguments.only):
            continue
        out = OUT / "build" / f"run-{number:03d}"
        result = OUT / "results" / f"{out.name}.json"
        result.parent.mkdir(parents=True, exist_ok=True)
        if result.exists() and not arguments.again:
            continue
        shutil.rmtree(out, ignore_errors=True)
        result.unlink(missing_ok=True)
        start = time.time()
        run_child(recipe, out, result)
        if not result.exists():
            print(f"{recipe['name']}: failed, see {out / 'stdout.txt'}", flush=True)
            continue
        entries = json.loads(truth.read_text()) if truth.exists() else {}
        entries[out.name] = {
            "kind": recipe["kind"],
            "expect": recipe["expect"],
            "half": "build",
            "recipe": recipe["name"],
            "leave": recipe["leave"],
            "directory": f"build/{out.name}",
            "outcome": json.loads(result.read_text()),
        }
        truth.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + "\n")
        print(f"{out.name} {recipe['name']} {time.time() - start:.0f}s {entries[out.name]['outcome']}", flush=True)


if __name__ == "__main__":
    main()
