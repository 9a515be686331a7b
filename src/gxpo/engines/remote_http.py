"""JSON over HTTP with connections that stay open, for many requests at once."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from queue import Empty, LifoQueue
from typing import Any
from urllib.parse import urlparse

from gxpo.errors import ConfigError, ModelError


class Line:
    """A server's address; `post` and `get` may be called from several threads.

    url       what stands before /completions, as http://localhost:8000/v1
    key_from  environment variable that holds the key; without it none is sent
    timeout   seconds for one answer
    """

    def __init__(self, url: str, *, key_from: str = "OPENAI_API_KEY", timeout: float = 600.0) -> None:
        parts = urlparse(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"sampling.server={url!r} is no address; give one as http://localhost:8000/v1")
        self.url, self._timeout = url.rstrip("/"), timeout
        self._make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._place, self._path = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self._idle: LifoQueue[http.client.HTTPConnection] = LifoQueue()
        key = os.environ.get(key_from)
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    def get(self, path: str) -> Any:
        """What the server says to a GET."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """What the server says to a POST; `ModelError` where it refuses, can't be reached or speaks no JSON."""
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, verb: str, path: str, body: bytes | None) -> Any:
        try:
            connection, fresh = self._idle.get_nowait(), False
        except Empty:
            connection, fresh = self._make(self._place, timeout=self._timeout), True
        try:
            try:
                status, said = self._exchange(connection, verb, path, body)
            except (ConnectionError, http.client.BadStatusLine):
                if fresh:
                    raise
                connection.close()  # the server may close an idle connection at any time: once more, on a new one
                status, said = self._exchange(connection, verb, path, body)
        except TimeoutError as error:
            connection.close()
            raise ModelError(f"{self.url}{path} took longer than {self._timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ModelError(
                f"{self.url} can't be reached: {error or type(error).__name__}; is the server up?"
            ) from error
        self._idle.put(connection)
        if status != 200:
            text = " ".join(said[:400].decode("utf-8", "replace").split())
            raise ModelError(f"{self.url}{path} answers {status}: {text}")
        try:
            return json.loads(said)
        except ValueError as error:
            raise ModelError(f"{self.url}{path} answers with something that is no JSON") from error

    def _exchange(
        self, connection: http.client.HTTPConnection, verb: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        connection.request(verb, self._path + path, body, self._headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        """Close the connections that are open."""
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return
