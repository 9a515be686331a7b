"""One server of a sampler pool: its connections, its load, and what is known of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.remote import Line, Unanswered, plain
from gxpo.sampling.engines.openai_reply import Models
from gxpo.sampling.engines.publish import State

CHECKING = 10.0  # seconds that a server may take to say that it is well
NO_SUCH_PATH = (404, 405)
LONGEST_LIST = 1 << 22  # bytes of a list of models


@dataclass(eq=False)
class Replica:
    """A server. Its fields change on the loop of `gxpo.base.remote.run` alone.

    line      to its base URL, and `root` to what stands before /v1: health, weights
    up        it is asked; else it is checked again after a back-off, by `checking`
    holds     what it acknowledged of published weights; None: nothing, or it is being updated
    probed    how it answers was looked at since it came up
    processed whether its log-probs are those after temperature and top-k
    requests, tokens   that are under way at it
    why       what was last wrong with it
    """

    number: int
    line: Line
    root: Line
    up: bool = False
    holds: State | None = None
    probed: asyncio.Future[None] | None = None
    processed: bool = True
    positions: int | None = None
    requests: int = 0
    tokens: int = 0
    why: str = ""
    checking: asyncio.Task[None] | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        """Its base URL."""
        return self.line.url

    def begin(self, tokens: int) -> None:
        """A request is under way."""
        self.requests, self.tokens = self.requests + 1, self.tokens + tokens
        self.idle.clear()

    def end(self, tokens: int) -> None:
        """It is not any more."""
        self.requests, self.tokens = self.requests - 1, self.tokens - tokens
        if not self.requests:
            self.idle.set()

    async def drained(self) -> None:
        """Returns when nothing is under way."""
        while self.requests:
            await self.idle.wait()

    async def models(self) -> dict[str, int | None]:
        """Names of its models, each with the tokens that a context may have; raises `Unanswered` unless it is well."""
        await self.healthy()
        said = await self.line.once("GET", "/models", None, Models, LONGEST_LIST, CHECKING)
        return {m.id: m.max_model_len for m in said.data}

    async def healthy(self) -> None:
        """Raises `Unanswered` where /health says that the server is not well; one without /health may be."""
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
    """One for each address."""
    return [Replica(i, make(url), make(root_of(url))) for i, url in enumerate(servers)]


def root_of(url: str) -> str:
    """What stands before /v1 in an address.

    >>> root_of("http://localhost:8000/v1/")
    'http://localhost:8000'
    """
    return url.rstrip("/").removesuffix("/v1")


def chosen(name: str | None, found: dict[Replica, dict[str, Any]]) -> tuple[str | None, str]:
    """The model that all servers have, or None and what is wrong, in words after "sampling.servers: "."""
    names = [name] if name is not None else sorted({m for models in found.values() for m in models})
    common = [m for m in names if all(m in models for models in found.values())]
    if name is None and len(names) == len(common) == 1:
        return names[0], ""
    if name is not None and any(name in models for models in found.values()):
        return name, ""
    first, models = next(iter(found.items()))
    asked = f"no model {name!r}" if name is not None else "several models" if len(models) > 1 else "another model"
    listed = plain(", ".join(names if name is None else models)) or "none"
    return None, f"{first.url} has {asked} ({listed}): name one in sampling.engine_options={{model: NAME}}"
