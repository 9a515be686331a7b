"""Real TRL GRPO runs, sick in a known way or healthy, on which `gxpo doctor` is developed and judged.

    python scripts/doctor_corpus/trl_runs.py --half build          # runs that are missing
    python scripts/doctor_corpus/trl_runs.py --only NAME... --again

Needs trl 1.16. A recipe (recipes.py, healthy.py) is data; it becomes OUT/HALF/run-NNN as a user would have it, and an
entry of OUT/truth.json. Every run is a fork of this process, so that imports are paid for once.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
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

import patches  # noqa: E402
import tasks  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from datasets import Dataset  # noqa: E402
from healthy import HEALTHY  # noqa: E402
from recipes import SICK, WARM  # noqa: E402
from rewards import build  # noqa: E402
from transformers import TrainerCallback, set_seed  # noqa: E402
from trl import GRPOConfig  # noqa: E402

HERE = Path(__file__).parent
RECIPES: dict[str, dict[str, Any]] = {r["name"]: r for r in [*SICK, *HEALTHY]}
TEST = 100  # held-out problems for the greedy accuracy before and after
USER = {  # what every user of these runs would have written
    "per_device_train_batch_size": 64,
    "num_generations": 8,
    "max_completion_length": 12,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "max_steps": 50,
    "logging_steps": 1,
}
OURS = {"use_cpu": True, "bf16": False, "report_to": "none", "gradient_checkpointing": False, "save_strategy": "no"}


class Stop(TrainerCallback):
    """Ends the session at a step, as a time limit of the cluster does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop |= state.global_step >= self.step


def dataset(recipe: dict[str, Any], task: str, how: dict[str, Any], rng: random.Random) -> tuple[Dataset, Any, list]:
    """Draw training rows, evaluation rows or None, and held-out problems."""
    data = recipe.get("data", {})
    how = {**how, "noise": 0.0, **data.get("how", {})}
    how.pop("words", None)
    questions: set[str] = set()

    def new_rows(n: int) -> list[dict[str, Any]]:
        rows = []
        while len(rows) < n:
            question, answer, _ = tasks.problem(task, rng, **how)
            if question in questions and len(questions) < data.get("space", 300):
                continue
            questions.add(question)
            rows.append({"question": question, "answer": answer})
        return rows

    test = new_rows(TEST)
    n = recipe["steps"] * 64 // recipe.get("cfg", {}).get("num_generations", 8)
    pool = data.get("pool", 0)
    rows = new_rows(pool or data.get("rows_per_step", 0) * recipe["steps"] or n)
    if pool < 8:  # TRL would not train a step on fewer prompts than a batch holds
        rows = [dict(rows[i % len(rows)]) for i in range(n)] if pool else rows
    eval_rows = None
    if "eval" in recipe:
        some = recipe["eval"]["prompts"]
        eval_rows = [dict(r) for r in rows[:some]] if recipe["eval"].get("leak") else new_rows(some)
    if "roll" in data:  # answers joined one row off, in a share of the data
        answers = [r["answer"] for r in rows]
        for i in range(int(len(rows) * data["roll"])):
            rows[i]["answer"] = answers[(i + 1) % len(rows)]
    for r in [*rows, *(eval_rows or []), *test]:
        r["prompt"] = prompt(r.pop("question"), data)
    train = Dataset.from_list(rows)
    return train, None if eval_rows is None else Dataset.from_list(eval_rows), test


def prompt(question: str, data: dict[str, Any]) -> Any:
    if not data.get("chat"):
        return question
    return [{"role": "user", "content": question}]


def arguments(recipe: dict[str, Any], out: Path) -> dict[str, Any]:
    user = {**USER, **recipe.get("cfg", {}), "max_steps": recipe["steps"], "seed": recipe["seed"]}
    if "parquet" in recipe["leave"]:
        user["log_completions"] = True
    if "eval" in recipe:
        user.update(eval_strategy="steps", eval_steps=recipe["eval"]["steps"], per_device_eval_batch_size=64)
        user["num_generations_eval"] = recipe["eval"].get("samples", 1)
    if recipe.get("config"):
        settings = {**user, **({"model_init_kwargs": {"dtype": recipe["dtype"]}} if "dtype" in recipe else {})}
        (out / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    tqdm = {"disable_tqdm": not ("console" in recipe["leave"] and recipe.get("tqdm"))}
    if recipe.get("eval", {}).get("greedy"):
        user["num_generations_eval"] = 1
    return {**OURS, **user, **tqdm, "num_completions_to_print": recipe.get("printed", 1)}


def make(recipe: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train; return the outcome for truth.json."""
    torch.set_num_threads(1)
    warm = WARM[recipe["warm"]]
    data = recipe.get("data", {})
    model = tasks.warm_model(warm)
    tok = tasks.tokenizer(data.get("template", tasks.CHAT) if data.get("chat") else None)
    train, eval_rows, test = dataset(recipe, warm["task"], warm.get("how", {}), random.Random(1000 + recipe["seed"]))
    if data.get("chat"):
        ids = [tok.apply_chat_template(r["prompt"], add_generation_prompt=True, return_dict=False) for r in test]
    else:
        ids = [tok(r["prompt"])["input_ids"] for r in test]
    answers = [r["answer"] for r in test]
    before = tasks.greedy_accuracy(model.eval(), tok, ids, answers)
    if "dtype" in recipe:
        model.to(getattr(torch, recipe["dtype"]))
    if recipe.get("freeze"):  # adapters on the base that the user forgot to leave trainable: only norms are
        for name, p in model.named_parameters():
            p.requires_grad_(name.endswith("norm.weight") and "layers" not in name)
    set_seed(recipe["seed"])
    settings = arguments(recipe, out)
    history: list[dict[str, Any]] = []
    sessions = recipe.get("sessions", 1)
    for session in range(sessions):
        args = GRPOConfig(output_dir=str(out), **settings)
        extra: dict[str, Any] = {}
        if recipe.get("other_optimiser"):  # built on a copy of the model, before it was wrapped
            other = torch.optim.AdamW(copy.deepcopy(model).parameters(), lr=settings["learning_rate"])
            extra["optimizers"] = (other, torch.optim.lr_scheduler.ConstantLR(other, 1.0))
        trainer = patches.TRAINERS[recipe.get("trainer", "plain")](
            model=model,
            args=args,
            train_dataset=train,
            eval_dataset=eval_rows,
            reward_funcs=[build(n, **s) for n, s in recipe["rewards"]],
            processing_class=tok,
            callbacks=[Stop(recipe["stop"])] if session < sessions - 1 else None,
            **extra,
        )
        if "engine" in recipe:
            patches.attach_engine(trainer, **recipe["engine"])
        resume = session > 0 and recipe.get("resume")
        try:
            trainer.train(resume_from_checkpoint=str(out / f"checkpoint-{recipe['stop']}") if resume else None)
        except RuntimeError:
            if not recipe.get("dies"):
                raise
            traceback.print_exc()
        history = trainer.state.log_history if resume or not session else history + trainer.state.log_history
        model = trainer.model
    if recipe.get("state", "end") == "end":
        trainer.save_state()
    rewards = [h["reward"] for h in history if h.get("reward") is not None]
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    after = tasks.greedy_accuracy(model.float().eval(), tok, ids, answers) if finite else None
    evaluations = [round(h["eval_reward"], 3) for h in history if h.get("eval_reward") is not None]
    return {
        "steps": len(rewards),
        "reward_first5": round(sum(rewards[:5]) / max(len(rewards[:5]), 1), 4),
        "reward_last5": round(sum(rewards[-5:]) / max(len(rewards[-5:]), 1), 4),
        "greedy_before": before,
        "greedy_after": after,
        **({"eval_reward": evaluations} if evaluations else {}),
    }


def tidy(recipe: dict[str, Any], out: Path) -> None:
    """Leave what that user would have kept."""
    if "parquet" not in recipe["leave"]:
        shutil.rmtree(out / "completions", ignore_errors=True)
    if "state" not in recipe["leave"]:
        for path in [out / "trainer_state.json", *out.glob("checkpoint-*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    console = out / "stdout.txt"
    if "console" not in recipe["leave"]:
        console.unlink(missing_ok=True)
        return
    text = console.read_text(errors="replace").replace(str(Path(__file__)), "train.py")  # in tracebacks
    console.write_text(text.replace(sys.prefix, "/opt/venv"))


def run_child(recipe: dict[str, Any], out: Path, result: Path) -> int:
    """Run one recipe in a fork, console and errors in stdout.txt."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    signal.alarm(recipe.get("limit_s", 240))
    code = 1
    try:
        out.mkdir(parents=True)
        console = os.open(out / "stdout.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(console, 1)
        os.dup2(console, 2)
        outcome = make(recipe, out)
        sys.stdout.flush()
        tidy(recipe, out)
        result.write_text(json.dumps(outcome))
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
    finally:
        os._exit(code)


def record(path: Path, key: str, entry: dict[str, Any]) -> None:
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = json.loads(path.read_text()) if path.exists() else {}
        entries[key] = entry
        path.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + "\n")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--out", type=Path, default=Path("corpus/trl"))
    ap.add_argument("--half", choices=["build", "held"])
    ap.add_argument("--only", nargs="*", help="names of recipes")
    ap.add_argument("--again", action="store_true", help="repeat runs that exist")
    ap.add_argument("--trial", action="store_true", help="write to OUT/trial/NAME, for tuning a recipe")
    a = ap.parse_args()
    split = json.loads((HERE / "split.json").read_text())["trl"] if not a.trial else {}
    for name, recipe in RECIPES.items():
        place = split.get(name, {"half": "trial", "run": name})
        if (a.only and name not in a.only) or (a.half and place["half"] != a.half) or (split and name not in split):
            continue
        out = a.out / place["half"] / (name if a.trial else f"run-{place['run']:03d}")
        result = a.out / "results" / f"{out.name}.json"
        key = f"trl-{place['run']:03d}" if not a.trial else name
        entry = {k: recipe.get(k, []) for k in ("kind", "expect")}
        entry |= {"half": place["half"], "recipe": name, "seed": recipe["seed"], "leave": recipe["leave"]}
        entry |= {"config": bool(recipe.get("config")), "directory": f"{place['half']}/{out.name}"}
        if result.exists() and not (a.again or a.trial):
            record(a.out / "truth.json", key, {**entry, "outcome": json.loads(result.read_text())})
            continue
        shutil.rmtree(out, ignore_errors=True)
        result.parent.mkdir(parents=True, exist_ok=True)
        result.unlink(missing_ok=True)
        start = time.time()
        status = run_child(recipe, out, result)
        if not result.exists():
            print(f"{name}: failed ({status}); see {out / 'stdout.txt'}", flush=True)
            continue
        outcome = json.loads(result.read_text())
        if not a.trial:
            record(a.out / "truth.json", key, {**entry, "outcome": outcome})
        print(f"{name} {out.name} {time.time() - start:.0f}s {outcome}", flush=True)


if __name__ == "__main__":
    main()
