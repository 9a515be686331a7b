"""Worker process of a comparison: trains one run after the other on request (see `gxpo.base.processes`)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gxpo.base.processes import Line

# Files in a run directory: its keys, how it ended, what it printed.
JOB, DONE, LOG = "job.json", "done.json", "log.txt"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def job_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Contents of a run's job.json: its keys, and the order in which it draws a finite list of tasks."""
    return {**keys, **task_order(keys)}


def task_order(keys: Mapping[str, Any]) -> dict[str, int]:
    """`first_step`, the step that begins the first epoch, where tasks are a finite list; otherwise empty."""
    from gxpo.environments.tasks.epochs import FIRST_STEP, goes_by_epochs

    return {"first_step": FIRST_STEP} if goes_by_epochs(keys) else {}


def serve(line: Line) -> None:
    """Train or probe the runs that are sent; the answer to a training is its `trouble`, empty on success."""
    while True:
        for item in line.receive():
            for name in THREADS:  # read when torch is loaded, which no import before this has done
                os.environ[name] = str(item["threads"])
            if item.get("probe"):
                answer = probe(item["keys"])
            else:
                answer = {"trouble": run_one(Path(item["path"]), item["keys"], keep=item["keep"])}
            line.answer(json.dumps(answer))


def probe(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the cost of two steps: figures of `gxpo.training.probe`, or `trouble`."""
    from gxpo.parts.definition import SettingValue
    from gxpo.training import probe as steps
    from gxpo.training.config import resolve

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            return steps.probe(resolve({k: SettingValue(v, "compare") for k, v in keys.items()}))
        except Exception as error:
            return {"trouble": " ".join(f"{error}".split())[:500]}


def run_one(path: Path, keys: Mapping[str, Any], *, keep: bool) -> str:
    """Train in `path`, or continue there, to the end; return the error in one line, empty on success.

    keep  whether checkpoints and report stay; without it the directory holds metrics and evaluations alone
    """
    # A finished run is never made again, whatever its end.
    done_file = path / DONE
    if done_file.is_file():
        return str(json.loads(done_file.read_text())["trouble"])
    path.mkdir(parents=True, exist_ok=True)
    trouble = ""
    # Everything that a run prints goes to its log: between those of others it would be unreadable.
    with (
        (path / LOG).open("a", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                _train(path, keys, keep)
        # An error of the run is its result: it is recorded, and not tried again. Memory is the machine's and may do
        # next time.
        except MemoryError:
            raise
        except Exception as error:
            traceback.print_exc()
            trouble = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    # Written last: a run that is killed before is taken up again.
    done_file.write_text(json.dumps({"trouble": trouble}))
    return trouble


def _train(path: Path, keys: Mapping[str, Any], keep: bool) -> None:
    from gxpo.base.errors import need
    from gxpo.parts.definition import SettingValue
    from gxpo.training.checkpoint import FOLDER, write_atomic
    from gxpo.training.config import resolve
    from gxpo.training.loop import Trainer
    from gxpo.training.train import resume, train

    need("transformers.utils.logging", "train").disable_progress_bar()
    keys_with_origin = {k: SettingValue(v, "compare") for k, v in keys.items()}
    has_checkpoint = any((path / FOLDER).glob("step-*"))
    if not has_checkpoint:
        # Nothing of a run that was killed before its first checkpoint can be continued; its log is worth keeping.
        for leftover in path.iterdir():
            if leftover.name != LOG:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        write_atomic(path / JOB, json.dumps(job_keys(keys), indent=1))
    if keep:
        # A checkpoint continues to the bit, so that an interruption changes no result.
        resume(path) if has_checkpoint else train(resolved=resolve(keys_with_origin), out=path)
        return
    # Tuning runs keep neither checkpoints nor rollouts: there are many, and only their figures are read.
    if has_checkpoint:
        shutil.rmtree(path / FOLDER)  # of a run with checkpoints in this place: one that keeps none starts over
    trainer = Trainer(resolve(keys_with_origin), out=path)
    try:
        trainer.train()
    finally:
        trainer.close()
    shutil.rmtree(path / FOLDER, ignore_errors=True)
    shutil.rmtree(path / "rollouts", ignore_errors=True)


if __name__ == "__main__":  # one run, described by a line of JSON on standard input
    from gxpo.base.library_variables import set_library_variables

    set_library_variables()
    request = json.loads(sys.stdin.read())
    print(json.dumps({"trouble": run_one(Path(request["path"]), request["keys"], keep=request["keep"])}))
