"""One training step in gxpo and in TRL's GRPOTrainer: same model, prompts, rewards, group size, lengths, dtype.

8 prompts x 8 samples x 32 tokens of full length, AdamW on every parameter, one optimiser step on the batch. TRL runs at
its fastest micro-batch of {4, 8, 16}, with its fused optimiser and without activation checkpointing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROMPTS, GROUP, NEW = 8, 8, 32
LR = {"tiny": 1e-4, "smollm2": 1e-5}
STATES = {"tiny": "float32", "smollm2": "bfloat16"}  # of the optimiser: TRL's are of the parameters' dtype
MICROBATCH = {"tiny": 2048, "smollm2": 512}  # tokens; fewer cost speed, more cost memory
DTYPE = {"tiny": "float32", "smollm2": "bfloat16"}


def value(ids: Sequence[int]) -> float:
    """Synthetic reward of a completion: unrelated to its quality, but different within groups."""
    return sum(ids) % 7 / 6


def questions(n: int, length: int, seed: int = 0) -> list[str]:
    """Prompts of digits: both tokenizers have one token per digit."""
    draw = random.Random(seed)
    return ["".join(draw.choice("0123456789") for _ in range(length)) for _ in range(n)]


# ---------------------------------------------------------------- gxpo
def reward(forest: Any, texts: Sequence[str], tasks: Sequence[Any]) -> list[float]:
    """`value` of every trajectory."""
    actions: list[list[int]] = [[] for _ in range(forest.n_trajectories)]
    for r, token in zip(forest.path_trajectory.tolist(), forest.token[forest.path_token].tolist(), strict=True):
        actions[r].append(token)
    return [value(ids) for ids in actions]


def gxpo_step(model: str, length: int, group: int, folder: str, settings: Mapping[str, Any] | None = None) -> Any:
    """Steps of gxpo's trainer with metrics, without evaluations, checkpoints and files."""
    from gxpo.parts.definition import Stated
    from gxpo.training import config
    from gxpo.training.loop import Trainer

    prompts = PROMPTS * GROUP // group
    path = Path(folder) / f"prompts-{length}.jsonl"
    lines = [json.dumps({"prompt": q, "answer": "0"}) for q in questions(8 * prompts, length)]
    path.write_text("\n".join(lines))
    given = {
        "model": f"{folder}/{model}",
        "task": str(path),
        "method": "grpo@trl",
        "rollout.group_size": group,
        "tasks.per_step": prompts,
        "chat.template": "none",
        "sampling.engine": "torch",
        "sampling.max_new_tokens": NEW,
        "optim.lr": LR[model],
        "learner.dtype": DTYPE[model],
        "learner.states": STATES[model],
        "learner.tokens_per_microbatch": MICROBATCH[model],
        **(settings or {}),
    }
    resolved = config.resolve({k: Stated(v, "bench") for k, v in given.items()})
    trainer = Trainer(resolved, out=Path(folder) / "run", reward=reward)
    setattr(trainer.engine, "stop_ids", ())  # noqa: B010  # every sample has its full length, as TRL's min_new_tokens
    trainer.chat.stop_ids = ()

    def step() -> dict[str, Any]:
        row = trainer.step()
        tokens = trainer.last_step[0].n_tokens if trainer.last_step else 0
        keys = ("time_sample_s", "time_update_s", "generated_tokens", "unique_token_ratio", "loss", "grad_norm")
        return {k: row[k] for k in keys if k in row} | {"tokens": tokens}

    return step


# ---------------------------------------------------------------- TRL
def trl_arguments(out: str, micro_batch: int, batch: int, group: int, full: bool = True, **more: Any) -> dict[str, Any]:
    """GRPOConfig's arguments on this machine: fused optimiser, no checkpointing; `full`: every sample is `NEW` long."""
    return {
        "output_dir": out,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": batch // micro_batch,
        "num_generations": group,
        "max_completion_length": NEW,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "beta": 0.0,
        "temperature": 1.0,
        "gradient_checkpointing": False,
        "generation_kwargs": {"min_new_tokens": NEW} if full else None,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **more,
    }


def loaded(path: str, dtype: str) -> tuple[Any, Any]:
    """Tokenizer and policy for TRL."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))


def trl_step(model: str, length: int, group: int, folder: str, micro_batch: int) -> Any:
    """Steps of TRL's GRPOTrainer, driven from its callbacks."""

    def train(gate: Any) -> None:
        import transformers

        from gxpo.base.errors import need

        trl: Any = need("trl", "trl")
        datasets: Any = need("datasets", "trl")
        tokenizer, policy = loaded(f"{folder}/{model}", DTYPE[model])
        prompts = PROMPTS * GROUP // group
        data = datasets.Dataset.from_list([{"prompt": q} for q in questions(8 * prompts, length)])
        compared = max(2, group)  # TRL has no groups of one
        given = trl_arguments(f"{folder}/trl", micro_batch, prompts * group, compared, learning_rate=LR[model])
        times = {"time_sample_s": 0.0, "tokens": 0}

        class Timed(trl.GRPOTrainer):
            def _generate_and_score_completions(self, inputs: Any) -> Any:
                import time

                began = time.perf_counter()
                found = super()._generate_and_score_completions(inputs)
                times["time_sample_s"] = time.perf_counter() - began
                times["tokens"] = int(found["prompt_mask"].sum() + found["completion_mask"].sum())
                return found

        class Gated(transformers.TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                control.should_training_stop = not gate.wait()

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                gate.done(times)

        def rewards(completion_ids: Any, **columns: Any) -> list[float]:
            return [value(ids) for ids in completion_ids]

        Timed(
            model=policy,
            args=trl.GRPOConfig(**given, max_steps=10**6),
            train_dataset=data,
            reward_funcs=rewards,
            processing_class=tokenizer,
            callbacks=[Gated()],
        ).train()

    train.holds_gate = True  # type: ignore[attr-defined]  # how a function says so to the worker
    return train


def save_models(folder: str, names: Sequence[str]) -> None:
    """Save the models as directories for both sides."""
    from gxpo.training import models

    for name in names:
        source = {"tiny": "tiny:cold", "smollm2": "smollm2-135m"}[name]
        loaded = models.load(source, task="arithmetic", dtype=DTYPE[name])
        loaded.model.save_pretrained(f"{folder}/{name}")
        loaded.tokenizer.save_pretrained(f"{folder}/{name}")
