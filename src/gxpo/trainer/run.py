"""`gxpo.train(...)` and `gxpo.trainer.resume(...)`: a whole run, and what it leaves."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo import config
from gxpo.errors import CheckpointError, ConfigError
from gxpo.keys import Stated
from gxpo.learners import parallel
from gxpo.pipeline import Method
from gxpo.trainer import checkpoint
from gxpo.trainer.loop import Trainer
from gxpo.trainer.metrics import MetricsFile
from gxpo.trainer.report import write_report

Watch = Callable[[dict[str, Any]], "bool | None"]


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run: its directory, and the trainer that made it."""

    path: Path
    trainer: Trainer

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return MetricsFile(self.path / "metrics.jsonl").read()

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Held-out figures; the first is before any step."""
        return MetricsFile(self.path / "evaluations.jsonl").read()

    @property
    def samples(self) -> list[dict[str, Any]]:
        """Records (`gxpo schema`) of the last step whose rollouts were written."""
        files = sorted((self.path / "rollouts").glob("step-*.jsonl"))
        return [json.loads(line) for line in files[-1].read_text().splitlines()] if files else []

    def save_pretrained(self, directory: str | Path) -> None:
        """Model and tokenizer as transformers loads them; LoRA adapters are saved as peft does."""
        self.trainer.learner.model.save_pretrained(directory)
        self.trainer.tokenizer.save_pretrained(directory)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, step {self.trainer.step_number})"


def train(
    model: str | None = None,
    task: str | None = None,
    method: str | Method | None = None,
    steps: int | None = None,
    reward: Callable[..., Any] | str | Mapping[str, float] | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    resolved: config.Resolved | None = None,
    watch: Watch | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> Run:
    """Train a policy.

    model   "tiny", a local directory or a hub id
    task    "arithmetic", "countdown", "reasoning_gym:NAME", or a .jsonl file of prompts and answers
    method  a composition such as "dr_grpo+gspo", or what `gxpo.method` made
    steps   steps of the loop; each draws `tasks.per_step` tasks
    reward  a function of one rollout that declares what it wants among prompt, completion, answer, task, info, tokens,
            finish and gives a number (or named numbers); or `file.py:function`; or {name: weight}
    set     any other key, e.g. {"update.lr": 1e-4, "rollout.group_size": 16}
    watch   called with every line of metrics; returning True ends the run early
    notify  called with a line of text where something takes long before the first step

    Raises GxpoError subclasses whose message says what to change.
    """
    if resolved is None:
        values = {"model": model, "task": task, "trainer.steps": steps, "seed": seed}
        given = {k: Stated(v, "argument") for k, v in values.items() if v is not None}
        if isinstance(method, str):
            given["method"] = Stated(method, "argument")
        if reward is not None:
            given["reward"] = Stated(_name(reward) if callable(reward) else reward, "argument")
        given |= {k: Stated(v, "argument") for k, v in (set or {}).items()}
        resolved = config.resolve(given, composed=method if isinstance(method, Method) else None)
    trainer = Trainer(resolved, out=out, reward=reward if callable(reward) else None, notify=notify)
    return _go(trainer, watch)


def resume(
    out: str | Path, *, steps: int | None = None, watch: Watch | None = None, reward: Callable[..., Any] | None = None
) -> Run:
    """Go on with a stopped run, to the bit as if it had never stopped; `steps` may extend it."""
    out = Path(out)
    path = out / "config.yaml"
    if not path.is_file():
        raise CheckpointError(f"{out} is not a run directory: it has no config.yaml")
    trainer = Trainer(config.resolve(config.read(path)), out=out, resume=True, reward=reward)
    trainer.config_text = path.read_text(encoding="utf-8")
    trainer.resume()
    if steps is not None and steps != trainer.settings.trainer.steps:
        trainer.close()
        if trainer.settings.update.schedule != "constant":
            raise ConfigError(
                f"trainer.steps can't change under update.schedule={trainer.settings.update.schedule}: the "
                "learning rate depends on it; start another run"
            )
        extended = config.read(path) | {"trainer.steps": Stated(steps, "resume")}
        checkpoint.write_atomic(path, config.resolve(extended).to_yaml())
        trainer = Trainer(config.resolve(extended), out=out, resume=True, reward=reward)
        trainer.config_text = path.read_text(encoding="utf-8")
        trainer.resume(changed=True)
    return _go(trainer, watch)


def _go(trainer: Trainer, watch: Watch | None) -> Run:
    try:
        trainer.train(watch)
    finally:
        trainer.close()
    if parallel.rank() == 0:
        write_report(trainer.out)
    return Run(trainer.out, trainer)


def _name(function: Callable[..., Any]) -> str:
    """`file.py:name` where a new process can find the function again."""
    source = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if source is None or "<" in source or "<" in function.__qualname__ or "." in function.__qualname__:
        return f"python:{getattr(function, '__name__', 'function')}"
    return f"{source}:{function.__name__}"
