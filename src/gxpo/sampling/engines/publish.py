"""Publication of weights to vLLM servers: safetensors files in a shared folder, loaded and acknowledged by each server.

Written for vLLM 0.32 in developer mode (`VLLM_SERVER_DEV_MODE=1`), started with the worker extension
`engines.in_vllm.gxpo_vllm.WeightLoader`: `/collective_rpc` loads a file in every worker of a server and says which
one it has, `/reset_prefix_cache` drops keys and values of the old weights.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import save_file

from gxpo.base.errors import ConfigError
from gxpo.base.remote import Line, Unanswered, plain
from gxpo.sampling.engines.decode import writes
from gxpo.sampling.engines.in_vllm.gxpo_vllm import checksum
from gxpo.sampling.engines.vllm_weights import weights_of

ANSWER = 1 << 24  # bytes of a server's answer
ASKING = 30.0  # seconds that a server may take to say which weights it has
FOLDER = "gxpo-weights-"  # what a run's folder of weights is called, and a random word
LOCK = ".lock"  # in it; held as long as the run

Said = TypeVar("Said", bound="State")


class State(BaseModel):
    """What a worker says of itself: its process, and the publication whose weights it has."""

    model_config = ConfigDict(strict=True, frozen=True)

    boot: str
    stamp: str | None = None


class Loaded(State):
    """What a worker says after loading: tensors that it read wrongly, and checksums of parameters that it holds."""

    wrong: list[str] = []
    held: Mapping[str, int] = {}


class Results(BaseModel, Generic[Said]):
    """Answer of /collective_rpc: one result from each worker of the server."""

    model_config = ConfigDict(strict=True)

    results: Annotated[list[Said], Field(min_length=1)]


class Reset(BaseModel):
    """Answer of /reset_prefix_cache; vLLM says false while blocks are in use."""

    model_config = ConfigDict(strict=True)

    success: bool = True


@dataclass(frozen=True)
class Publication:
    """Weights in a file. `stamp` names them among all publications of all runs; `sums`: a checksum of each tensor."""

    path: Path
    stamp: str
    version: int
    sums: Mapping[str, int]

    @property
    def message(self) -> str:
        """What `WeightLoader.gxpo_load` is told."""
        return json.dumps({"path": str(self.path), "stamp": self.stamp, "sums": dict(self.sums)})


class WeightFiles:
    """Files of a model's weights in a folder of this run's own, under one that the servers see by the same path.

    Folders there of runs that were killed are removed: those whose lock nobody holds.
    """

    def __init__(self, model: Any, folder: str) -> None:
        self.model = model
        place = Path(folder).expanduser().resolve()
        if not place.is_dir():
            raise ConfigError(f"sampling.engine_options: weights={folder} is no folder; name one that the servers see")
        _remove_abandoned(place)
        made = Path(tempfile.mkdtemp(prefix=".partial-", dir=place))
        made.chmod(0o755)  # the servers may be another user's
        self._lock = FileLock(made / LOCK, thread_local=False)
        with contextlib.suppress(OSError, NotImplementedError):  # a file system without locks
            self._lock.acquire(timeout=0)
        self.folder = place / f"{FOLDER}{made.name.removeprefix('.partial-')}"
        os.rename(made, self.folder)  # it is seen with its lock held
        self._run, self._number = uuid.uuid4().hex[:12], 0

    def writes(self) -> int:
        """Count of writes to the parameters: another one, other weights."""
        return writes(self.model)

    def write(self, version: int) -> Publication:
        """The weights as they are now, in a file of their own that is whole once it has its name."""
        self._number += 1
        tensors = {name: x.detach().to("cpu").contiguous() for name, x in weights_of(self.model)}
        path = self.folder / f"weights-{self._number}.safetensors"
        partial = path.with_suffix(".partial")
        save_file(tensors, partial)
        os.replace(partial, path)
        sums = {name: checksum(x) for name, x in tensors.items()}
        return Publication(path, f"{self._run}-{self._number}", version, sums)

    def keep_only(self, held: Publication) -> None:
        """Remove all other files."""
        for path in self.folder.iterdir():
            if path != held.path and path.name != LOCK:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()


def _remove_abandoned(place: Path) -> None:
    """Remove folders of weights whose lock nobody holds."""
    for folder in place.glob(f"{FOLDER}*"):
        if not (folder / LOCK).is_file():
            continue
        with contextlib.suppress(Timeout, OSError, NotImplementedError), FileLock(folder / LOCK, timeout=0):
            shutil.rmtree(folder, ignore_errors=True)


async def state(root: Line) -> State:
    """Which weights a server has; `Unanswered` where its workers do not agree, or it does not say."""
    body = {"method": "gxpo_state"}
    first, *others = (await root.once("POST", "/collective_rpc", body, Results[State], ANSWER, ASKING)).results
    if any(other.stamp != first.stamp for other in others):
        raise Unanswered("nonsense", f"{root.url} has workers with different weights")
    return State(boot="/".join(s.boot for s in (first, *others)), stamp=first.stamp)


async def load(root: Line, weights: Publication, timeout: float) -> State:
    """Load a publication into every worker of a server that is idle; `Unanswered` unless all of it was acknowledged."""
    body = {"method": "gxpo_load", "args": [weights.message], "timeout": timeout}
    workers = (await root.once("POST", "/collective_rpc", body, Results[Loaded], ANSWER, timeout)).results
    for said in workers:
        wrong = said.wrong or [name for name, x in said.held.items() if x != weights.sums.get(name)]
        if wrong or said.stamp != weights.stamp:
            what = f"the checksum of {wrong[0][:80]} differs" if wrong else f"stamp {str(said.stamp)[:40]}"
            raise Unanswered(
                "nonsense", f"{root.url} holds other weights than version {weights.version}: {plain(what)}"
            )
    if not (await root.once("POST", "/reset_prefix_cache", {}, Reset, ANSWER, ASKING)).success:
        raise Unanswered("raised", f"{root.url} did not drop its prefix cache, which is of the old weights", again=True)
    return State(boot="/".join(s.boot for s in workers), stamp=weights.stamp)
