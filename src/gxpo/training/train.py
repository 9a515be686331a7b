"""`gxpo.train` and `gxpo.resume`: a whole run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.base import runtime
from gxpo.base.errors import ConfigError
from gxpo.methods.method import Method
from gxpo.parts.definition import SettingValue
from gxpo.training import config
from gxpo.training.callbacks import Callback
from gxpo.training.directory import CONFIG, default, free, run_of
from gxpo.training.display import Display, display, no_loading_bars
from gxpo.training.interrupts import for_python_script, is_interactive
from gxpo.training.loop import Trainer
from gxpo.training.python_inputs import Arguments, Objects
from gxpo.training.report import write_report
from gxpo.training.run import Run
from gxpo.training.start import checkpoint_of, inherit_keys, read_verified_config

Watch = Callable[[dict[str, Any]], "bool | None"]


def train(
    model: Any = None,
    task: Any = None,
    method: str | Method | None = None,
    steps: int | None = None,
    reward: Any = None,
    *,
    tokenizer: Any = None,
    eval_task: Any = None,
    seed: int | None = None,
    out: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    from_run: str | Path | None = None,
    resolved: config.RunConfig | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | str | None = None,
    watch: Watch | None = None,
    notify: Callable[[str], None] | None = None,
) -> Run:
    """Train a policy.

    model   "tiny", a local directory, a hub id; a model of transformers (with `tokenizer`) or (model, tokenizer), which
            stays as it is: the trained one is `run.model`
    task    "arithmetic", "countdown", "reasoning_gym:NAME"; a .jsonl, .csv or .parquet file with columns prompt and
            answer; a list of dicts, a datasets.Dataset, a pandas.DataFrame; a task source: object, class or
            "my_tasks.py:NAME"
    method  a composition such as "dr_grpo+gspo", or what `gxpo.method` made; keys of it in `set` go over its own
    steps   steps of the loop; each draws `tasks.per_step` tasks
    reward  a function of one rollout that declares what it wants among prompt, completion, answer, task, info, tokens,
            finish and gives a number (or named numbers); a function of a batch, (prompts, completions, **columns), as
            TRL has them; a rubric of verifiers; `file.py:function`; {any of these: weight}, or a list of them
    eval_task  held-out tasks, as `task`; without them a share of the task's rows (`tasks.options.held_out_fraction`)
    set     any other key, e.g. {"optim.lr": 1e-4, "rollout.group_size": 16}
    from_run  start from the newest parameters of this run (or of RUN/checkpoints/step-N) with a fresh optimiser; keys
            that are not given are the run's. The default of `out` is then RUN-2, RUN-3...
    callbacks  loggers and others, beside those of the key trainer.callbacks (docs/logging.md)
    progress  what is shown on standard error or in the notebook's cell. None: a bar in a terminal or notebook, else a
            line now and then; True: the bar; False: the lines; "none": nothing
    out     run directory; by default under runs/, a new one. Objects are written into it, so that the run resumes
    watch   called with every line of metrics; returning True ends the run early
    notify  called with a line of text where something takes long before the first step; None: shown with the progress

    Ctrl-C (in a notebook, the stop button) ends the run after the step and saves it. A notebook gets the `Run` then,
    whose `stopped` says so; a script a KeyboardInterrupt, so that it ends. A second one stops at once.

    Raises GxpoError subclasses whose message says what to change.
    """
    objects = None
    if resolved is None:
        arguments = Arguments(model, tokenizer, task, eval_task, reward)
        values = {"trainer.steps": steps, "seed": seed, "method": method if isinstance(method, str) else None}
        keys = {k: SettingValue(v, "argument") for k, v in values.items() if v is not None}
        keys |= {k: SettingValue(v, "argument") for k, v in (set or {}).items()}
        composed = method if isinstance(method, Method) else None
        if composed is not None and "method" in (set or {}):
            raise ConfigError("set names a method beside method=: leave one out")

        def resolve_in(place: Path) -> config.RunConfig:
            settings = arguments.keys(place) | keys
            if from_run is not None:
                settings = keys_from_run(from_run, settings, is_composed=composed is not None)
            return config.resolve(settings, composition=composed)

        # Resolved twice: the directory's name depends on the settings, and the keys of objects on the directory.
        resolved = resolve_in(Path("RUN"))
        if out is None:
            out = _directory_of(resolved, arguments.label)
        if arguments.has_objects:
            resolved = resolve_in(Path(out))
            objects = arguments.collect_objects(resolved.settings)
    elif from_run is not None:
        raise ConfigError("from_run: what is resolved already has its init_from; see gxpo.training.train.keys_from_run")
    else:
        if out is None and resolved.settings.init_from is not None:
            out = _directory_of(resolved, None)
        objects = Objects(reward=reward) if callable(reward) else None
    screen = display(progress)
    # Loading may take minutes (downloads, warm-up): the display shows its lines until the first step.
    say = notify or screen.say
    with no_loading_bars():
        trainer = Trainer(resolved, out=out, objects=objects, notify=say, callbacks=[*callbacks, screen])
    say(f"run directory: {trainer.out}")
    for line in dict.fromkeys(line for method in resolved.methods for line in method.without):
        say(line)
    return _run_to_end(trainer, watch, screen)


def _directory_of(resolved: config.RunConfig, label: str | None) -> Path:
    """Choose a new run directory: beside the run that this one starts from, or under runs/."""
    s = resolved.settings
    runtime.start()
    if s.out is not None:
        return Path(s.out)
    if s.init_from is not None:
        path = free(run_of(Path(s.init_from)))
    else:
        path = free(default(label or s.task, resolved.method.name, s.seed))
    return Path(runtime.first(str(path)))


def keys_from_run(
    from_run: str | Path, settings: Mapping[str, SettingValue], *, is_composed: bool = False
) -> dict[str, SettingValue]:
    """Keys of a run that starts from the newest checkpoint of `from_run` (or from that checkpoint): the given ones over
    the other run's, and `init_from`."""
    path = Path(from_run)
    phases = config.read(run_of(path) / CONFIG).get("phases")
    if phases is not None and phases.value and not is_composed and not {"method", "phases"} & settings.keys():
        raise ConfigError(f"{path} had phases: say what the new run does, as --set method=NAME or --set phases=[...]")
    keys = inherit_keys(run_of(path), settings, is_composed=is_composed)
    for name in ("reward", "task"):
        if name not in settings and str(getattr(keys.get(name), "value", None)).startswith("python:"):
            raise ConfigError(
                f"the {name} of {path} was a Python object ({keys[name].value}): give it again, or put it into a file "
                f"({name}=my_file.py:NAME)"
            )
    return keys | {"init_from": SettingValue(str(checkpoint_of(path)), "from")}


def resume(
    out: str | Path,
    *,
    steps: int | None = None,
    allow_changed_data: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | str | None = None,
    watch: Watch | None = None,
    reward: Any = None,
    task: Any = None,
) -> Run:
    """Go on with a stopped run, to the bit as if it had never stopped; `steps` may extend it.

    Refused where config.yaml, or a file of data or code that it names, is not what the checkpoint was made with; files
    may differ where `allow_changed_data` says so. Nothing that config.yaml names is loaded before that is known.
    `reward` and `task`: functions, rubrics and task sources that can't be found again, given again.
    """
    out = Path(out)
    keys, text = read_verified_config(out, allow_changed_data=allow_changed_data)
    resolved = config.resolve(keys)
    # More steps change config.yaml; where a schedule or phases depend on the total, that would change the past too.
    is_extended = steps is not None and steps != resolved.settings.trainer.steps
    if is_extended:
        if resolved.phases:
            raise ConfigError("trainer.steps can't change where phases share it: start another run with --from")
        if resolved.settings.optim.schedule != "constant":
            raise ConfigError(
                f"trainer.steps can't change under optim.schedule={resolved.settings.optim.schedule}: the "
                "learning rate depends on it; start another run"
            )
        resolved = config.resolve(keys | {"trainer.steps": SettingValue(steps, "resume")})
    screen = display(progress)
    objects = Objects(source=task, reward=reward)
    with no_loading_bars():
        trainer = Trainer(resolved, out=out, resume=True, objects=objects, callbacks=[*callbacks, screen])
    try:
        trainer.resume(text, allow_changed_data=allow_changed_data)
        if is_extended:
            # More steps were asked for: patience that had run out begins anew.
            if trainer.early is not None:
                trainer.early.reset()
            trainer.reconfigure(resolved.to_yaml(trainer.out))
    except BaseException:
        trainer.close()
        raise
    return _run_to_end(trainer, watch, screen)


def _run_to_end(trainer: Trainer, watch: Watch | None, screen: Display) -> Run:
    def watch_or_interrupt(row: dict[str, Any]) -> bool:
        # The user's function sees every row, the last one too.
        return bool(watch is not None and watch(row)) or interrupts(row)

    with for_python_script(screen.say) as interrupts:
        try:
            trainer.train(watch_or_interrupt)
        finally:
            trainer.close()
        run = Run(trainer.out, trainer)
        if interrupts.signal is not None:
            trainer.stopped = "interrupted"
        if runtime.rank() == 0:
            write_report(trainer.out, run.diagnosis)
    if interrupts.signal is not None:
        screen.say(f"interrupted at step {run.step}, which is saved: gxpo.resume({str(run.path)!r}) goes on")
        if not is_interactive():
            raise KeyboardInterrupt
    # Told once: in the course of the run, or here.
    if not trainer.has_warned and (problem := run.problem):
        warnings.warn(problem, stacklevel=3)
    return run
