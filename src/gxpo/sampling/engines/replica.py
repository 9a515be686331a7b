"""Server of a sampler pool: connections, load, health, and the weights that it has acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.remote import Line, Unanswered, plain
from gxpo.sampling.engines.openai_reply import Models
from gxpo.sampling.engines.weight_transfer import WorkerState

CHECKING = 10.0  # seconds that a health check may take
NO_SUCH_PATH = (404, 405)
LONGEST_LIST = 1 << 22  # bytes of a list of models


@dataclass(eq=False)
class Replica:
    """Server of a pool. Its fields change on the event loop of `gxpo.base.remote.run` alone.

    line          connections to its base URL;   root  to the URL before /v1, for health and weights
    up            it gets requests; if False, the task `recheck` checks it with growing pauses
    worker_state  published weights that it acknowledged; None: none, or an update is under way
    probe         result of probing how it answers, since it came up
    has_processed_logprobs  True if its log-probs are those after temperature and top-k
    positions     longest context that it accepts; None: unknown
    requests, tokens   in flight
    problem       its last failure, in words
    """

    number: int
    line: Line
    root: Line
    up: bool = False
    worker_state: WorkerState | None = None
    probe: asyncio.Future[None] | None = None
    has_processed_logprobs: bool = True
    positions: int | None = None
    requests: int = 0
    tokens: int = 0
    problem: str = ""
    recheck: asyncio.Task[None] | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return self.line.url

    def begin(self, tokens: int) -> None:
        """Count a request as in flight."""
        self.requests, self.tokens = self.requests + 1, self.tokens + tokens
        self.idle.clear()

    def end(self, tokens: int) -> None:
        """Count a request as finished."""
        self.requests, self.tokens = self.requests - 1, self.tokens - tokens
        if not self.requests:
            self.idle.set()

    async def wait_until_idle(self) -> None:
        """Return when no request is in flight."""
        while self.requests:
            await self.idle.wait()

    async def models(self) -> dict[str, int | None]:
        """Names of its models with their longest contexts; `Unanswered` unless the server is healthy."""
        await self.healthy()
        reply = await self.line.once("GET", "/models", None, Models, LONGEST_LIST, CHECKING)
        return {m.id: m.max_model_len for m in reply.data}

    async def healthy(self) -> None:
        """Raise `Unanswered` if /health reports a failure; servers without that path pass."""
        try:
            await self.root.up("/health", CHECKING)
        except Unanswered as error:
            if error.status not in NO_SUCH_PATH:
                raise

    def close(self) -> None:
        """Close its connections."""
        self.line.close()
        self.root.close()


def replicas(servers: list[str], make: Callable[[str], Line]) -> list[Replica]:
    """Build a replica for each address."""
    return [Replica(i, make(url), make(root_of(url))) for i, url in enumerate(servers)]


def root_of(url: str) -> str:
    """URL of a server without its /v1.

    >>> root_of("http://localhost:8000/v1/")
    'http://localhost:8000'
    """
    return url.rstrip("/").removesuffix("/v1")


def common_model(name: str | None, models_by_replica: dict[Replica, dict[str, Any]]) -> tuple[str | None, str]:
    """Return the model that all servers have and "", or None and an error message."""
    # A given name has to be on one server only: others may come up with it later. Without a name, all must have one.
    names = [name] if name is not None else sorted({m for models in models_by_replica.values() for m in models})
    common = [m for m in names if all(m in models for models in models_by_replica.values())]
    if name is None and len(names) == len(common) == 1:
        return names[0], ""
    if name is not None and any(name in models for models in models_by_replica.values()):
        return name, ""
    first, models = next(iter(models_by_replica.items()))
    description = f"no model {name!r}" if name is not None else "several models" if len(models) > 1 else "another model"
    names_text = plain(", ".join(names if name is None else models)) or "none"
    return None, f"{first.url} has {description} ({names_text}): name one in sampling.engine_options={{model: NAME}}"
