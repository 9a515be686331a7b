"""Training engine over a Ray worker group of verl: one controller, the policy's shards in workers of the cluster."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gxpo.base.errors import ConfigError, GxpoError, ModelError, need
from gxpo.learning.remote import verl_cpu, verl_rows
from gxpo.learning.remote.verl_rows import NAMES, EngineSettings, Part
from gxpo.parts.protocols import TokenRow

BUCKET = 256 << 20  # bytes of parameters that are fetched together


class RayVerlEngine:
    """A `gxpo.parts.protocols.TrainEngine` whose shards are in workers of `verl.single_controller.ray.RayWorkerGroup`
    (`pip install 'gxpo[verl,ray]'` on every node).

    model, settings  as of `gxpo.learning.remote.verl_rows.EngineSettings`; every node must see the directory, and those
              of `save`
    address   of Ray: "auto", "HOST:PORT", or "local" for a cluster of this machine that ends with the engine
    nodes, per_node  nodes, and workers on each: a worker has a GPU, or a core in a cluster that has none
    timeout   seconds for one call; `ModelError` after that

    Ray places the workers and reports when one has died, which ends the run: `gxpo resume` continues from its newest
    checkpoint. `close` gives the cluster's resources back.
    """

    abilities = frozenset({"logprob", "entropy", "temperature", "save"})

    def __init__(
        self,
        model: str | Path,
        *,
        address: str = "auto",
        nodes: int = 1,
        per_node: int = 1,
        timeout: float = 600.0,
        **settings: Any,
    ) -> None:
        verl_rows.check_version()
        self._ray: Any = need("ray", "ray")
        self.model, self.timeout, self.version, self.eps = Path(model), timeout, 0, 1e-8
        # a connection that is made here is ended here, one of the user's is not
        self._owns_cluster = _connect(self._ray, address)
        # from here on a failure must end the workers that were placed, or the cluster keeps their resources
        self._pool: Any = None
        self._group: Any = None
        try:
            self._gpus = bool(self._ray.cluster_resources().get("GPU", 0))
            _check_room(self._ray, nodes, per_node, "GPU" if self._gpus else "CPU")
            self._group = self._start_workers(
                EngineSettings(str(Path(model).resolve()), **settings), [per_node] * nodes
            )
            self._has_packed_rows: bool = self._call_all("load the model", "begin")[0]
            self._shapes: list[tuple[str, int]] = self._call_all("name its parameters", "shapes")[0]
        except BaseException:
            self.close()
            raise

    def _start_workers(self, engine_settings: EngineSettings, processes: list[int]) -> Any:
        if not self._gpus:
            verl_cpu.platform()
        workers: Any = need("verl.single_controller.ray.base", "verl")
        from gxpo.learning.remote.verl_worker import PolicyWorker  # imports verl's engines

        self._pool = workers.RayResourcePool(process_on_nodes=processes, use_gpu=self._gpus, max_colocate_count=1)
        worker_class = workers.RayClassWithInitArgs(self._ray.remote(PolicyWorker), engine_settings)
        device = "cuda" if self._gpus else "cpu"
        return workers.RayWorkerGroup(self._pool, worker_class, use_gpu=self._gpus, device_name=device)

    # ------------------------------------------------------------ the workers
    def _call_all(self, action: str, method: str, *arguments: Any, **keywords: Any) -> list[Any]:
        """Call a method of all workers; return their results."""
        return self._results(action, self._group.execute_all_async(method, *arguments, **keywords))

    def _results(self, action: str, references: Sequence[Any]) -> list[Any]:
        errors = self._ray.exceptions
        try:
            return self._ray.get(list(references), timeout=self.timeout)
        except errors.GetTimeoutError as error:
            raise ModelError(f"verl's workers did not {action} within {self.timeout:g} seconds") from error
        except errors.RayTaskError as error:
            # an error of a worker arrives wrapped, with a traceback of another machine
            cause = error.cause if isinstance(error.cause, Exception) else error
            # gxpo's own messages say what to change, and pass as they are
            if isinstance(cause, GxpoError):
                raise cause from error
            raise ModelError(f"verl's workers could not {action}: {_last_line(cause)}") from error
        except errors.RayError as error:
            raise ModelError(
                f"verl's workers could not {action}, one has ended: {_last_line(error)}; gxpo resume continues from "
                "the newest checkpoint"
            ) from error

    # ------------------------------------------------------------ rows
    def forward(
        self, rows: Sequence[TokenRow], names: Sequence[str] = ("logprob",), policy: str = "current"
    ) -> dict[str, list[Tensor]]:
        if policy != "current":
            raise ModelError("verl's engine holds the current policy alone")
        parts = verl_rows.parts_of(rows)
        data = self._batch(parts, names=names)
        answers = self._results("run a forward pass", self._group.infer_batch(data).futures)
        outputs = {n: [x for answer in answers for x in answer[NAMES[n]].unbind()] for n in names}
        # the batch was filled up until every worker had equally many rows: the fillers are left out
        readings = {
            n: [x[part.read - 1].double().tolist() for part, x in zip(parts, outputs[n][: len(parts)], strict=True)]
            for n in names
        }
        return verl_rows.readings_by_row(rows, parts, readings)

    def pull(self, rows: Sequence[TokenRow], slopes: Mapping[str, Sequence[Tensor]]) -> None:
        data = self._batch(verl_rows.parts_of(rows), slopes=slopes)
        self._results("run a backward pass", self._group.forward_backward(data).futures)

    def _batch(self, parts: list[Part], **options: Any) -> Any:
        """Batch of parts, the first one repeated until every worker has equally many."""
        world = self._group.world_size
        n_fillers = -len(parts) % world
        return verl_rows.batch(
            parts + parts[:1] * n_fillers, packed=self._has_packed_rows, n_fillers=n_fillers, processes=world, **options
        )

    # ------------------------------------------------------------ steps
    def step(self, lr: float, max_grad_norm: float | None, *, eps: float | None = None) -> float:
        return float(self._call_all("take a step", "step", lr, max_grad_norm, self.eps if eps is None else eps)[0])

    def discard(self) -> None:
        self._call_all("forget gradients", "optimizer_zero_grad")

    # ------------------------------------------------------------ weights
    def gradients(self) -> dict[str, Tensor]:
        """Gradient so far by parameter name (for conformance, not of the protocol)."""
        return dict(self._whole_tensors(gradients=True))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and parameters on the CPU, fetched in buckets of about `BUCKET` bytes."""
        return self._whole_tensors(gradients=False)

    def _whole_tensors(self, *, gradients: bool) -> Iterator[tuple[str, Tensor]]:
        for names in _buckets(self._shapes):
            yield from zip(
                names, self._call_all("send its weights", "gather_tensors", tuple(names), gradients)[0], strict=True
            )

    def publish(self, version: int, timeout: float) -> None:
        self.version = version  # samplers are given `weights`

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._call_all("save", "save_checkpoint", str(path.resolve()))

    def load(self, path: Path) -> None:
        verl_rows.check_same_processes(path, self._group.world_size)
        self._call_all("load", "load_checkpoint", str(path.resolve()))
        self.discard()

    def fingerprint(self) -> int:
        return int(self._call_all("sum its weights", "fingerprint")[0])

    def close(self) -> None:
        """End the workers, and the cluster if it was started here."""
        # killed and not asked to end: a worker may hang in a collective
        if self._group is not None:
            for worker in self._group.workers:
                self._ray.kill(worker)
            self._group = None
        if self._pool is not None and self._ray.is_initialized():
            for group in self._pool.pgs or ():
                self._ray.util.remove_placement_group(group)
            self._pool = None
        if self._owns_cluster and self._ray.is_initialized():
            self._owns_cluster = False
            self._ray.shutdown()


def _connect(ray: Any, address: str) -> bool:
    """Connect this process to a Ray cluster; return True if it was not connected before."""
    if ray.is_initialized():
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            ray.init(address=address, log_to_driver=False, configure_logging=False, include_dashboard=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"cluster.address={address} leads to no Ray cluster ({_last_line(error)}): start one with `ray start "
            "--head`, or set cluster.address=local"
        ) from error
    return True


def _check_room(ray: Any, nodes: int, per_node: int, kind: str) -> None:
    """Raise ConfigError unless the cluster has room for the workers: verl would wait for it without end."""
    request = f"cluster.train.nodes={nodes} and gpus_per_node={per_node} ask for {nodes * per_node} {kind}s"
    sizes = sorted((int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]), reverse=True)
    if sum(size // per_node for size in sizes) < nodes:
        raise ConfigError(f"{request}, and the nodes of the Ray cluster have {sizes}: lower them")
    if (free := int(ray.available_resources().get(kind, 0))) < nodes * per_node:
        raise ConfigError(f"{request}, and {free} of the Ray cluster's are free: lower them, or wait")


def _buckets(shapes: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    """Yield names of parameters that together have at most `BUCKET` bytes; a larger one is alone."""
    names: list[str] = []
    size = 0
    for name, parameter_bytes in shapes:
        if names and size + parameter_bytes > BUCKET:
            yield names
            names, size = [], 0
        names.append(name)
        size += parameter_bytes
    if names:
        yield names


def _last_line(error: BaseException) -> str:
    """Last line of an error's message, in which Ray puts the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
