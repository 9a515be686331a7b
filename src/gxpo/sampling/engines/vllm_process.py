"""Parent side of the vLLM process: start, request, end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from gxpo.base.errors import ModelError
from gxpo.base.exact import VARIABLES
from gxpo.base.process_tree import end_tree
from gxpo.base.processes import in_words
from gxpo.sampling.engines.in_vllm import gxpo_vllm

PROGRAM = str(Path(gxpo_vllm.__file__))
ENDING = 1.0  # seconds that a process whose line is closed may take to leave
OF_A_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
GIVEN = {  # what the environment may say otherwise
    **VARIABLES,
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # learner and sampler take turns: each may have all cores
    "VLLM_NO_USAGE_STATS": "1",
}


class VllmEnded(ModelError):
    """The process has ended by itself, or somebody ended it."""


class VllmProcess:
    """A vLLM process, in lockstep: one message, one answer.

    python    its interpreter, which can import vllm
    program   the program to run: `gxpo_vllm`
    """

    def __init__(self, python: str, *, program: Sequence[str] = (PROGRAM,)) -> None:
        self.python = python
        self._line, theirs = Pipe()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [python, "-I", *program, str(theirs.fileno()), str(os.getpid())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    start_new_session=True,  # Ctrl-C is the trainer's to handle; what vLLM starts is ended with it
                    env=environment(),
                )
            except OSError as error:
                self._line.close()
                self._log.close()
                raise ModelError(f"vLLM's interpreter {python} can't be run: {error.strerror}") from error
        self._asked = 0
        self.close = weakref.finalize(self, _end, self._line, self._process, self._log, os.getpid())

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(
        self,
        header: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray] | None = None,
        *,
        timeout: float | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Send a message, wait for the answer. `ModelError` for an error, or without an answer in `timeout` seconds,
        `VllmEnded` where the process has ended."""
        if not self.close.alive:
            raise ModelError("the vLLM process was closed")
        raw = {name: (str(x.dtype), x.tobytes()) for name, x in (arrays or {}).items()}
        self._asked += 1
        try:
            number = gxpo_vllm.NUMBER.pack(self._asked, 0)
            self._line.send_bytes(number + gxpo_vllm.encode(dict(header), raw))
            if not self._line.poll(timeout):
                self.close()
                raise ModelError(f"vLLM did not answer '{header['do']}' within {timeout:g} s; its process was ended")
            message = self._line.recv_bytes()
            if gxpo_vllm.NUMBER.unpack_from(message) != (self._asked, self.pid):
                raise ValueError("it is of another number or process")
            said, found = gxpo_vllm.decode(message[gxpo_vllm.NUMBER.size :])
            said.get("error")
        except (EOFError, OSError) as error:
            raise VllmEnded(f"the vLLM process ended while asked to {header['do']}: {self._last_words()}") from error
        except ModelError:
            raise
        except Exception as error:  # whatever reading it raises
            self.close()
            raise ModelError(f"the vLLM process wrote something that is no answer ({error})") from error
        if "error" in said:
            raise ModelError(f"vLLM ({self.python}) failed to {header['do']}: {said['error']}")
        return said, found

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING)
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        self.close()
        how = in_words(self._process.returncode)
        return f"{how}; {lines[-1][:300]}" if lines else how


def environment() -> dict[str, str]:
    """Environment variables of this process without those of a multi-process launcher."""
    own = {k: v for k, v in os.environ.items() if k not in OF_A_LAUNCHER}
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    return {**GIVEN, **threads, **own, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def _end(line: Connection, process: subprocess.Popen[bytes], log: IO[bytes], owner: int) -> None:
    line.close()
    if os.getpid() == owner:  # a forked copy of this process that ends leaves it alone
        end_tree(process.pid)
        process.wait()
    log.close()


def interpreter(given: str | None) -> str:
    """The Python interpreter for vLLM: the configured one, or this one."""
    return sys.executable if given is None else os.path.expanduser(given)


def can_import(python: str, module: str = "vllm", seconds: float = 60.0) -> bool:
    """Whether an interpreter finds a package, without importing it."""
    if python == sys.executable:
        return importlib.util.find_spec(module) is not None
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        found = subprocess.run([python, "-I", "-c", program], capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0
