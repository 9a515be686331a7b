"""Child process of `gxpo try`: runs a user's TRL script, or the command of another trainer, for one arm and one seed.

    python -m gxpo.compare.trial_child FOLDER PARENT    # FOLDER/job.json describes the run
    python -m gxpo.compare.trial_child serve PARENT     # forks a child for each [FOLDER, LOG] on its standard input

TRL's configurations and trainers are replaced before the script runs: settings of the arm go over those of the script,
every logged figure becomes a line of FOLDER/metrics.jsonl, and the script ends with its training. The script may write
below FOLDER and to caches, not below its own folder. FOLDER/end.json says how the run ended.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SERVE = "serve"
JOB, END, METRICS, SETTINGS = "job.json", "end.json", "metrics.jsonl", "args.json"
TRAINERS, CONFIGS = ("GRPOTrainer", "RLOOTrainer"), ("GRPOConfig", "RLOOConfig")
MODULES = ("trl", "trl.trainer", "trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer")
RELATIVE = re.compile(r"[*/][0-9.]+(e[-+]?\d+)?")  # a value in terms of the script's own
LAUNCHERS = re.compile(r"\b(accelerate\s+launch|torchrun|torch\.distributed\.(run|launch)|deepspeed)\b")
SETTLED = "_gxpo_settled"  # attribute of a configuration: field -> value that stays
EVALUATIONS = 5  # in a trial whose metric is of an evaluation
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PATH_EVENTS = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0, "shutil.rmtree": 0, "os.truncate": 0}
CACHE_FOLDERS = ("__pycache__", ".cache", ".triton", ".nv")


class TrainingEnd(BaseException):
    """The trial's steps are done; not an Exception, so that no `except` of the script holds it up."""


class Refusal(BaseException):
    """Error for a script that a trial can't run; the message is one line."""


def fields() -> dict[str, list[str]]:
    """Fields of TRL's configurations, as installed here."""
    import dataclasses

    import trl  # pyright: ignore[reportMissingImports]

    return {name: [f.name for f in dataclasses.fields(getattr(trl, name)) if f.init] for name in CONFIGS}


def settings_of(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Fields that every trial sets, and over them the arm's."""
    is_held_out = str(job["metric"]).startswith("eval_")
    evaluation_interval = max(1, int(job["steps"]) // EVALUATIONS)
    evaluation = {"eval_strategy": "steps", "eval_steps": evaluation_interval, "eval_on_start": True}
    return {
        "output_dir": str(folder / "trainer"), "seed": job["seed"], "save_strategy": "no", "report_to": [],
        "push_to_hub": False, "hub_token": None, "hub_model_id": None, "log_completions_hub_repo": None,
        "load_best_model_at_end": False, "logging_strategy": "steps", "logging_steps": 1, "disable_tqdm": True,
        "resume_from_checkpoint": None,
        **(evaluation if is_held_out else {"eval_strategy": "no", "eval_on_start": False}),
        **job["settings"],
    }  # fmt: skip


def relative(value: Any, text: str) -> Any:
    """Apply `*2` or `/10` to the script's own value; `Refusal` if that is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refusal(f"the script's own value is {value!r}, no number that {text} could change: give a value")
    changed_value = value * float(text[1:]) if text[0] == "*" else value / float(text[1:])
    return max(1, round(changed_value)) if isinstance(value, int) else float(f"{changed_value:.12g}")


class Trial:
    """State of one run: what the job asks for, the trainer that the script built, and what was logged."""

    def __init__(self, job: Mapping[str, Any], folder: Path) -> None:
        self.job, self.folder = job, folder
        self.trainer: Any = None
        self.steps = self.tokens = 0
        self.advantage = math.nan
        self.begin = self.evaluation_s = 0.0
        self.process = os.getpid()
        self.output_dirs: list[str] = []
        self.notes: list[str] = []

    # ---------------------------------------------------------------- TRL
    def replace_trl(self) -> None:
        """Replace TRL's configurations and trainers, wherever a script imports them from."""
        import importlib

        import trl  # pyright: ignore[reportMissingImports]

        for name in CONFIGS:
            self._override(getattr(trl, name))
        bases = {name: getattr(trl, name) for name in TRAINERS}
        if self.job["method"]:
            from gxpo.adapters import trl as adapter

            bases["GRPOTrainer"] = adapter.GRPOTrainer
        modules = [importlib.import_module(name) for name in MODULES]
        for name, base in bases.items():
            trial_class = self._trainer_class(name, base)
            for module in modules:
                if name in vars(module) or module.__name__ in ("trl", "trl.trainer"):
                    setattr(module, name, trial_class)

    def _override(self, config_class: Any) -> None:
        """Make a configuration class take the arm's settings before it derives others from them."""
        derive, trial = config_class.__post_init__, self

        def settle(config: Any) -> None:
            names = {name for name in type(config).__dataclass_fields__ if hasattr(config, name)}
            wrong = [k for k in trial.job["settings"] if k not in names]
            if wrong:
                raise Refusal(f"{type(config).__name__} has no setting {wrong[0]!r}")
            trial.output_dirs.append(str(getattr(config, "output_dir", "") or ""))
            settings = {k: v for k, v in settings_of(trial.job, trial.folder).items() if k in names}
            for name, value in settings.items():
                is_relative = isinstance(value, str) and RELATIVE.fullmatch(value) is not None
                setattr(config, name, relative(getattr(config, name), value) if is_relative else value)
            derive(config)
            vars(config)[SETTLED] = {name: getattr(config, name) for name in settings}

        config_class.__post_init__ = settle

    def _trainer_class(self, name: str, base: Any) -> Any:
        """A trainer that records, stops after the trial's steps, and is built once."""
        trial, method = self, self.job["method"]

        class Trainer(base):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                trial.enter(self)
                # a script may change its configuration after making it
                for value in (*args, *kwargs.values()):
                    settle(value)
                if method and name != "GRPOTrainer":
                    raise Refusal(f"method={method} replaces GRPOTrainer, and the script builds a {name}")
                if method:
                    kwargs |= {"method": method, "overrides": trial.job["overrides"] or None}
                super().__init__(*args, **kwargs)
                trial.attach(self)

            def train(self, *args: Any, **kwargs: Any) -> Any:
                trial.enter(self)
                settle(self.args)
                if args or kwargs.get("resume_from_checkpoint"):
                    trial.notes.append("the script resumes from a checkpoint: the trial does not, but for --from")
                trial.write_settings(self.args)
                super().train()
                raise TrainingEnd

            def evaluate(self, *args: Any, **kwargs: Any) -> Any:
                start = time.monotonic()
                try:
                    return super().evaluate(*args, **kwargs)
                finally:
                    trial.evaluation_s += time.monotonic() - start

            def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
                batch = super()._generate_and_score_completions(*args, **kwargs)
                if self.model.training:
                    trial.count(batch)
                return batch

        Trainer.__name__, Trainer.__qualname__, Trainer.__doc__ = name, name, base.__doc__
        return Trainer

    def enter(self, trainer: Any) -> None:
        """Take note of the trainer that a script builds and trains; `Refusal` for a second one or another process."""
        if os.getpid() != self.process:
            (self.folder / "forked").touch()
            raise Refusal("the script forks, and trains in the new process: train in the script's own process")
        if self.trainer is not None and self.trainer is not trainer:
            raise Refusal(f"the script builds two trainers: try one at a time (the second: {script_position()})")
        self.trainer = trainer

    def attach(self, trainer: Any) -> None:
        """Refuse several processes, load the checkpoint, and follow the training."""
        from transformers import TrainerCallback

        if int(getattr(trainer.args, "world_size", 1) or 1) > 1:
            raise Refusal(f"the script runs in {trainer.args.world_size} processes: try it in one")
        if self.job["from"]:
            load_weights(trainer.model, Path(self.job["from"]))
        trial = self

        class Record(TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                trial.begin = time.monotonic()

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                trial.steps = state.global_step
                if state.global_step >= trial.job["steps"]:
                    control.should_training_stop = True

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
                if logs and "train_runtime" not in logs:
                    trial.write(state.global_step, logs)

        trainer.add_callback(Record())

    def count(self, batch: Any) -> None:
        """Count the generated tokens of a batch, and note its largest advantage."""
        if "completion_mask" in batch:
            self.tokens += int(batch["completion_mask"].sum())
        if "advantages" in batch and batch["advantages"].numel():
            largest = float(batch["advantages"].abs().max())
            self.advantage = largest if math.isnan(self.advantage) else max(self.advantage, largest)

    def write(self, step: int, logs: Mapping[str, Any]) -> None:
        """Append the figures of a step to metrics.jsonl."""
        seconds = time.monotonic() - self.begin - self.evaluation_s if self.begin else 0.0
        costs = {"gxpo_tokens": self.tokens, "gxpo_seconds": round(seconds, 3)}
        if not math.isnan(self.advantage):
            costs["gxpo_largest_advantage"], self.advantage = self.advantage, math.nan
        figures = {k: v for k, v in logs.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **figures, **costs}) + "\n")

    def write_settings(self, config: Any) -> None:
        """Write the configuration as it trains to args.json, where the doctor reads it."""
        values = config.to_dict() if hasattr(config, "to_dict") else vars(config)
        public_values = {
            k: v for k, v in values.items() if isinstance(v, int | float | str | list) and "token" not in k
        }
        (self.folder / SETTINGS).write_text(json.dumps(public_values, indent=1, default=str))

    # ---------------------------------------------------------------- what a script may not do
    def guard(self, script: Path) -> None:
        """Keep the script from writing below its own folder and the working directory, and from starting launchers."""
        import multiprocessing.popen_spawn_posix as spawn

        guarded = [script.parent.resolve(), Path.cwd()]
        free = [self.folder.resolve(), *(Path(p).resolve() for p in self.job["writes"])]

        def is_refused(path: Any) -> bool:
            if not isinstance(path, str | bytes | os.PathLike):
                return False
            target = Path(os.path.abspath(os.fsdecode(path)))
            if any(part in CACHE_FOLDERS for part in target.parts):
                return False
            own_now = [*guarded, *(Path(os.path.abspath(p)) for p in self.output_dirs if p)]
            guard_depth = max((len(p.parts) for p in own_now if p == target or p in target.parents), default=0)
            return guard_depth > max((len(p.parts) for p in free if p == target or p in target.parents), default=0)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            path: Any = None
            if event == "open" and isinstance(args[2], int) and args[2] & WRITES:
                path = args[0]
            elif event in PATH_EVENTS:
                path = args[PATH_EVENTS[event]]
            elif event == "subprocess.Popen":
                words = args[1] if isinstance(args[1], str) else " ".join(map(os.fsdecode, args[1] or ()))
                if LAUNCHERS.search(words):
                    raise Refusal(f"the script starts several processes ({words[:80]}): try what it starts, in one")
            if path is not None and is_refused(path):
                name = os.fsdecode(path)
                line = f"the script writes to {name}, which a trial leaves alone: --writes DIR allows a folder"
                if line not in self.notes:
                    self.notes.append(line)
                raise PermissionError(line)

        def refuse_spawn(*args: Any, **kwargs: Any) -> None:
            raise Refusal("the script starts processes by `spawn`, which a trial does not see into: train in its own")

        spawn.Popen.__init__ = refuse_spawn  # type: ignore[method-assign]
        sys.addaudithook(hook)


def settle(config: Any) -> None:
    """Set the fields of a trial again that a script has changed since."""
    for name, value in getattr(config, SETTLED, {}).items():
        setattr(config, name, value)


def script_position() -> str:
    """Position in the user's script of the innermost frame there."""
    frames = [f for f in traceback.extract_stack() if f.filename == sys.argv[0]]
    return f"{Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else "in another module"


def load_weights(model: Any, checkpoint: Path) -> None:
    """Load a checkpoint's weights into the trainer's model; `Refusal` where they are not of this model."""
    from safetensors.torch import load_file

    files = sorted(checkpoint.glob("*.safetensors"))
    weights = {k: v for file in files for k, v in load_file(str(file)).items()}
    if not weights:
        raise Refusal(f"--from {checkpoint}: no *.safetensors there: give a folder checkpoint-N of TRL")
    if (checkpoint / "adapter_config.json").is_file():
        from peft import set_peft_model_state_dict  # pyright: ignore[reportMissingImports]

        unexpected = set_peft_model_state_dict(model, weights).unexpected_keys
    else:
        unexpected = model.load_state_dict(weights, strict=False).unexpected_keys
    if unexpected:
        raise Refusal(f"--from {checkpoint}: its weights are of another model ({unexpected[0]})")


# ---------------------------------------------------------------- runs
def run_script(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run a TRL script for one arm and seed; how it ended."""
    trial, script = Trial(job, folder), Path(job["script"])
    trouble = ""
    try:
        trial.replace_trl()
        seed_everything(int(job["seed"]))
        sys.argv = [str(script), *job["argv"]]
        sys.path[0] = str(script.parent)
        trial.guard(script)
        runpy.run_path(str(script), run_name="__main__")
        trouble = _without_training(trial)
    except TrainingEnd:
        trouble = "" if trial.steps else "the training ended before its first step"
    except Refusal as refusal:
        trouble = str(refusal)
    except SystemExit as ending:
        trouble = (
            f"the script ended by itself, with {ending.code!r}, after {trial.steps} steps: see {folder / 'log.txt'}"
        )
    except EOFError as error:
        traceback.print_exc()
        trouble = f"the script asks at the terminal, where nobody answers in a trial ({_one_line(error)})"
    except BaseException as error:
        traceback.print_exc()
        trouble = str(error) if isinstance(error, PermissionError) and str(error) in trial.notes else _one_line(error)
        trouble += f" (after {trial.steps} steps)" if trial.steps else ""
    return {"trouble": trouble, "steps": trial.steps, "notes": trial.notes}


def seed_everything(seed: int) -> None:
    """Seed what a script may draw from before the trainer sets its seed: heads and adapters belong to the pair, too."""
    random.seed(seed)
    for name, path in (("numpy", "random.seed"), ("torch", "manual_seed")):
        seeder: Any = sys.modules.get(name)  # what TRL has not loaded, nobody draws from
        for part in path.split("."):
            seeder = getattr(seeder, part, None)
        if seeder is not None:
            seeder(seed)


def _without_training(trial: Trial) -> str:
    """Explain why a script that ran to its end has trained nothing."""
    if (trial.folder / "forked").exists():
        return "the script forks, and trains in the new process: train in the script's own process"
    if trial.trainer is not None:
        return "the script builds a trainer and never calls its train()"
    other_trainers = [
        name for name in sys.modules if name.startswith("trl.experimental.") and name.endswith("_trainer")
    ]
    import_hint = f" (it imports {other_trainers[0]}, which a trial does not replace)" if other_trainers else ""
    return f"the script never builds a GRPOTrainer or RLOOTrainer{import_hint}: --command tries other trainers"


def _one_line(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == sys.argv[0]]
    place = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400] + place


def run_command(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run the command of another trainer; how it ended."""
    process = subprocess.run(job["command"], stdin=subprocess.DEVNULL, check=False)
    code = process.returncode
    log = folder / "log.txt"
    lines = log.read_text(errors="replace").split("\n") if code and log.is_file() else []
    last = next((f" ({line.strip()[:200]})" for line in reversed(lines) if line.strip()), "")
    trouble = f"the command ended with exit code {code}{last}: see {log}" if code else ""
    return {"trouble": trouble, "steps": 0, "notes": []}


def follow_parent(parent: int) -> None:
    """End this process, and all that it started, when its parent dies."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def serve(parent: int) -> None:
    """Import TRL once, then fork a child for each line of standard input; print its id, and at its end its exit code.

    Prints first whether it forks: only on Linux, and not where there is a GPU, which a fork can't use.
    """
    import trl  # pyright: ignore[reportMissingImports]

    for name in TRAINERS:  # imported by TRL only when they are asked for
        getattr(trl, name)
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    can_fork = sys.platform == "linux" and (cuda is None or not cuda.is_available())
    print(f"\n{SERVE} {'forks' if can_fork else 'refuses'}", flush=True)
    server_id = os.getpid()
    while can_fork and (line := sys.stdin.readline()):
        folder, log = json.loads(line)
        child = os.fork()
        if not child:
            os.setsid()
            for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT), (2, "", 0)):
                os.dup2(os.open(path, flags, 0o644) if path else 1, number)
            try:
                run_job(Path(folder), server_id)
            finally:
                os._exit(1)
        print(child, flush=True)
        # The child is waited for without blocking, so that it ends when the trial is killed.
        while not (status := os.waitpid(child, os.WNOHANG))[0]:
            if os.getppid() != parent:
                os.killpg(child, signal.SIGKILL)
                return
            time.sleep(0.05)
        print(os.waitstatus_to_exitcode(status[1]), flush=True)


def run_job(folder: Path, parent: int) -> None:
    """Run the job of a folder, write how it ended, and end this process."""
    follow_parent(parent)
    job = json.loads((folder / JOB).read_text())
    end = run_command(job, folder) if job["command"] else run_script(job, folder)
    if os.getpid() != os.getpgid(0):  # a process that the script forked
        os._exit(1)
    (folder / END).write_text(json.dumps(end))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads and handlers of the script must not hold the trial up


def main(arguments: list[str]) -> None:
    """Run the job of a folder, serve children, or print the fields of TRL's configurations."""
    if arguments == ["fields"]:
        print(json.dumps(fields()))
    elif arguments[0] == SERVE:
        serve(int(arguments[1]))
    else:
        run_job(Path(arguments[0]), int(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
