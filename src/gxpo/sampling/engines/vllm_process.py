"""Parent side of gxpo's own vLLM process: start, requests, end."""

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
from gxpo.base.library_variables import library_variables
from gxpo.base.process_tree import end_tree
from gxpo.base.processes import in_words
from gxpo.sampling.engines.in_vllm import gxpo_vllm

PROGRAM = str(Path(gxpo_vllm.__file__))
ENDING = 1.0  # seconds in which a process whose connection is closed has to exit
LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
)
DEFAULT_ENVIRONMENT = {  # defaults, which variables of this process override
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # learner and sampler take turns: each may have all cores
    "VLLM_NO_USAGE_STATS": "1",
}


class VllmEnded(ModelError):
    """The vLLM process ended although it was not closed."""


class VllmProcess:
    """vLLM process that answers one message at a time.

    python    interpreter that can import vllm
    program   program to run: `gxpo_vllm`
    """

    def __init__(self, python: str, *, program: Sequence[str] = (PROGRAM,)) -> None:
        self.python = python
        self._connection, child_end = Pipe()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        with child_end:
            try:
                self._process = subprocess.Popen(
                    [python, "-I", *program, str(child_end.fileno()), str(os.getpid())],
                    pass_fds=[child_end.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    start_new_session=True,  # Ctrl-C is the trainer's to handle; what vLLM starts is ended with it
                    env=environment(),
                )
            except OSError as error:
                self._connection.close()
                self._log.close()
                raise ModelError(f"vLLM's interpreter {python} can't be run: {error.strerror}") from error
        self._message_number = 0
        self.close = weakref.finalize(self, _end, self._connection, self._process, self._log, os.getpid())

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
        """Send a message and wait for the reply. `ModelError` for an error or after `timeout` seconds, `VllmEnded` if
        the process has ended."""
        if not self.close.alive:
            raise ModelError("the vLLM process was closed")
        raw = {name: (str(x.dtype), x.tobytes()) for name, x in (arrays or {}).items()}
        self._message_number += 1
        try:
            number = gxpo_vllm.NUMBER.pack(self._message_number, 0)
            self._connection.send_bytes(number + gxpo_vllm.encode(dict(header), raw))
            if not self._connection.poll(timeout):
                self.close()
                raise ModelError(f"vLLM did not answer '{header['do']}' within {timeout:g} s; its process was ended")
            message = self._connection.recv_bytes()
            # A late reply to an earlier message, or one of a forked copy, must not pass for this one's.
            if gxpo_vllm.NUMBER.unpack_from(message) != (self._message_number, self.pid):
                raise ValueError("it is of another number or process")
            reply, reply_arrays = gxpo_vllm.decode(message[gxpo_vllm.NUMBER.size :])
            reply.get("error")
        except (EOFError, OSError) as error:
            raise VllmEnded(
                f"the vLLM process ended while asked to {header['do']}: {self._exit_description()}"
            ) from error
        except ModelError:
            raise
        except Exception as error:  # whatever decoding raises
            # The two sides may be out of step, so later replies could not be trusted.
            self.close()
            raise ModelError(f"the vLLM process wrote something that is no answer ({error})") from error
        if "error" in reply:
            raise ModelError(f"vLLM ({self.python}) failed to {header['do']}: {reply['error']}")
        return reply, reply_arrays

    def _exit_description(self) -> str:
        """Exit status and last line of output of a process that has ended; closes it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING)
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        self.close()
        exit_status = in_words(self._process.returncode)
        return f"{exit_status}; {lines[-1][:300]}" if lines else exit_status


def environment() -> dict[str, str]:
    """Environment of the vLLM process: defaults, then this process's own without those of a multi-process launcher."""
    variables = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    defaults = {**DEFAULT_ENVIRONMENT, **library_variables(variables), **threads}
    return {**defaults, **variables, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def _end(connection: Connection, process: subprocess.Popen[bytes], log: IO[bytes], owner: int) -> None:
    """Close the connection and end the process with everything that it started."""
    connection.close()
    if os.getpid() == owner:  # not when a forked copy of this process exits
        end_tree(process.pid)
        process.wait()
    log.close()


def interpreter(path: str | None) -> str:
    """Path of the interpreter for vLLM: the configured one, or this one."""
    return sys.executable if path is None else os.path.expanduser(path)


def can_import(python: str, module: str = "vllm", seconds: float = 60.0) -> bool:
    """Return True if an interpreter finds a package, without importing it."""
    if python == sys.executable:
        return importlib.util.find_spec(module) is not None
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        result = subprocess.run([python, "-I", "-c", program], capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0
