"""Docker sandbox: run untrusted programs in containers."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.sandbox import DEFAULT_LIMITS, PROGRAM, START_SECONDS, Limits, Result
from gxpo.environments.rewards.scratch import fresh_directory

DAEMON = (125, 126, 127)  # exit codes of docker itself, which could not run the program
HOME = "/sandbox"


@dataclass(frozen=True)
class Docker:
    """One container for each program: no network, nothing of the host but the program's own files, read-only.

    image    has `python` on its path; it is never fetched here: `docker pull` it first
    runtime  an OCI runtime, as "runsc" (gVisor) or "kata-runtime", which put another kernel between; None: docker's own

    Memory is limited for the container as a whole, beyond which it is killed ("failed"). The shared kernel stays within
    reach unless the runtime brings its own. A run costs some tenths of a second.
    """

    image: str = "python:3.12-slim"
    runtime: str | None = None

    def check(self) -> None:
        if shutil.which("docker") is None:
            raise ConfigError(
                "sandbox 'docker': there is no docker command; install Docker (or podman with its docker command), or "
                "set scoring.options.code.sandbox to local"
            )
        # An image that is missing would fail with every program of the step.
        result = _run_docker(["docker", "image", "inspect", "--format", "{{.Id}}", self.image], 30.0)
        if result is None or result.returncode:
            reply = "it does not answer" if result is None else result.stderr.decode("utf-8", "replace").strip()[-200:]
            missing = "No such image" in reply or "no such image" in reply
            remedy = f"`docker pull {self.image}`" if missing else "start the docker daemon, or let this user reach it"
            raise ConfigError(f"sandbox 'docker' can't run {self.image} ({reply}): {remedy}")

    def command(self, name: str, directory: str, limits: Limits) -> list[str]:
        """Command line that starts the container `name` with the files of `directory`."""
        return [
            # Never pulled: a download within a step would count as the program's time.
            *("docker", "run", "--rm", "--interactive", "--name", name, "--pull", "never"),
            *(("--runtime", self.runtime) if self.runtime is not None else ()),
            # No network, no rights and a read-only system: the program has one directory in memory.
            *("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--user", "65534:65534", "--pids-limit", str(limits.processes), "--cpus", "1"),
            # Swap as large as memory means none.
            *("--memory", str(limits.memory), "--memory-swap", str(limits.memory)),
            *("--ulimit", f"cpu={int(limits.cpu)}", "--ulimit", f"fsize={limits.file_size}", "--ulimit", "core=0"),
            *("--tmpfs", f"{HOME}/tmp:rw,noexec,nosuid,size={limits.disk},nr_inodes={limits.entries},mode=1777"),
            *("--volume", f"{directory}:{HOME}/program:ro", "--workdir", f"{HOME}/tmp"),
            *("--env", f"TMPDIR={HOME}/tmp", "--env", "PYTHONHASHSEED=0", "--env", "PYTHONDONTWRITEBYTECODE=1"),
            *(self.image, "python", f"{HOME}/program/{PROGRAM}"),
        ]

    def run(self, files: Mapping[str, str], stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Result:
        name = f"gxpo-{uuid.uuid4().hex}"
        started = time.monotonic()
        # Output goes to files whose size the shell limits: a program that prints for ever fills no memory here.
        with fresh_directory(files, readable=True) as directory, tempfile.TemporaryFile() as stdin_file:
            stdin_file.write(stdin.encode("utf-8", "replace"))
            stdin_file.seek(0)
            with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
                try:
                    process = subprocess.Popen(
                        ["/bin/sh", "-c", f'ulimit -f {2 + limits.output // 512}; exec "$@"', "sh",
                         *self.command(name, directory, limits)],
                        stdin=stdin_file, stdout=out, stderr=err, start_new_session=True,
                    )  # fmt: skip
                except OSError as error:
                    # The daemon or shell is broken, which is no verdict on the program.
                    return Result("broken", stderr=str(error))
                status = None
                try:
                    code = process.wait(limits.wall + START_SECONDS)
                except subprocess.TimeoutExpired:
                    status, code = "timeout", 0
                finally:
                    # Killing the client leaves the container running, so the daemon is asked first.
                    if process.poll() is None:
                        _run_docker(["docker", "kill", name], START_SECONDS)
                        process.kill()
                        process.wait()
                streams = [_head(file, limits.output) for file in (out, err)]
        seconds = time.monotonic() - started
        # Exit codes of the daemon, which a program can return as well: one that has printed something has run.
        if code in DAEMON and not streams[0]:
            return Result("broken", streams[0], streams[1], seconds)
        if sum(map(len, streams)) > limits.output or code < 0:  # the client was ended by its file size
            status = "output"
        elif status is None:
            status = "ok" if code == 0 else "timeout" if code == 128 + 9 and seconds > limits.cpu else "failed"
        return Result(status, streams[0][: limits.output], streams[1][: limits.output], seconds)


def _head(file: IO[bytes], n: int) -> str:
    """First n + 1 bytes of a file as text: one more than allowed shows that there is more."""
    file.seek(0)
    return file.read(n + 1).decode("utf-8", "replace")


def _run_docker(command: list[str], timeout: float) -> subprocess.CompletedProcess[bytes] | None:
    """Run a docker command; None where it can't be started or does not end in time."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, timeout=timeout, check=False)
    return None
