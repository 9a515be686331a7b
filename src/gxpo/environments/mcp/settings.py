"""Entries of `env.mcp`: which servers a run starts or connects to, and which of their tools the policy may call."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from gxpo.base.errors import ConfigError, did_you_mean

PYTHON = "python"  # as the first word of a command: the interpreter of the run


@dataclass(frozen=True)
class ServerSpec:
    """One MCP server.

    allow        names of the tools that the policy is shown and may call; no other is
    command      words of the program that speaks MCP on its standard input and output; or
    url          address of a server that speaks streamable HTTP
    per_episode  a process (or HTTP session) for each episode, instead of one that all share
    timeout      seconds for one call
    chars        most characters of one result that the policy is shown
    env          variables that the program gets beside HOME, PATH and the like; it gets no others of the run's
    key_from     variable with a bearer token for the `url`, which `--allow-key` has to allow
    """

    allow: tuple[str, ...]
    command: tuple[str, ...] = ()
    url: str = ""
    per_episode: bool = False
    timeout: float = 10.0
    chars: int = 4000
    env: Mapping[str, str] = field(default_factory=dict)
    key_from: str | None = None

    @property
    def label(self) -> str:
        """Name of the server in messages: its URL without a query, or its command."""
        return self.url.partition("?")[0] or " ".join(self.command)

    @property
    def words(self) -> list[str]:
        """The command, with the run's own interpreter for `python`."""
        first, *rest = self.command
        return [sys.executable if first == PYTHON else first, *rest]


KEYS = {  # of an entry: the types, and what a wrong value is told
    "command": (list, "a list of words, as [python, server.py]"),
    "url": (str, "an address, as http://localhost:8000/mcp"),
    "allow": (list, "a list of names of tools, as [search, fetch]"),
    "per_episode": (bool, "true or false"),
    "timeout": ((int, float), "a number of seconds above 0"),
    "chars": (int, "a whole number of characters above 0"),
    "env": (Mapping, "texts by name, as {LOG_LEVEL: error}"),
    "key_from": (str, "the name of an environment variable"),
}


def servers_of(entries: Sequence[Mapping[str, Any]], timeout: float, chars: int) -> tuple[ServerSpec, ...]:
    """Read `env.mcp`; ConfigError for an entry that is none.

    timeout, chars  `env.mcp_timeout` and `env.mcp_chars`, for servers that state none of their own

    >>> servers_of([{"command": ["python", "server.py"], "allow": ["add"]}], 10.0, 4000)[0].label
    'python server.py'
    """
    return tuple(_server(f"env.mcp[{i}]", entry, timeout, chars) for i, entry in enumerate(entries))


def _server(place: str, entry: Mapping[str, Any], timeout: float, chars: int) -> ServerSpec:
    # unknown keys and wrong types first: the errors after that can rely on what is there
    for key, value in entry.items():
        if key not in KEYS:
            hint = did_you_mean(str(key), KEYS) or f"; it has {', '.join(KEYS)}"
            raise ConfigError(f"{place} has no key {key!r}{hint}")
        types, wanted = KEYS[key]
        is_number = types not in (bool, str, list, Mapping)
        if not isinstance(value, types) or (is_number and (isinstance(value, bool) or not value > 0)):
            raise ConfigError(f"{place}.{key} is {wanted}, not {value!r}")
    # how it is reached: exactly one of two ways
    if ("command" in entry) == ("url" in entry):
        raise ConfigError(f"{place} needs either command (a program) or url (a server that runs)")
    for key in ("command", "allow"):
        names = entry.get(key, ())
        if not all(isinstance(name, str) and name for name in names) or (key in entry and not names):
            raise ConfigError(f"{place}.{key} is {KEYS[key][1]}, not {names!r}")
    if not all(isinstance(x, str) for pair in entry.get("env", {}).items() for x in pair):
        raise ConfigError(f"{place}.env is {KEYS['env'][1]}, not {dict(entry['env'])!r}")
    # nothing is callable by default: whoever writes the file decides what a policy may do
    if "allow" not in entry:
        raise ConfigError(f"{place} needs allow: the names of the tools that the policy may call (there is no 'all')")
    if repeated := [name for name in entry["allow"] if entry["allow"].count(name) > 1]:
        raise ConfigError(f"{place}.allow names {repeated[0]!r} twice")
    _check_way(place, entry)
    return ServerSpec(
        tuple(entry["allow"]),
        tuple(entry.get("command", ())),
        entry.get("url", ""),
        entry.get("per_episode", False),
        float(entry.get("timeout", timeout)),
        entry.get("chars", chars),
        dict(entry.get("env", {})),
        entry.get("key_from"),
    )


def _check_way(place: str, entry: Mapping[str, Any]) -> None:
    """Raise ConfigError for an address that is none, and for keys of the other way to reach a server."""
    if "command" in entry:
        if "key_from" in entry:
            raise ConfigError(f"{place}.key_from is for a url; a program reads its own keys, or gets them by env")
        return
    address = urlsplit(entry["url"])
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(f"{place}.url is {KEYS['url'][1]}, not {entry['url']!r}")
    if address.username or address.password:
        raise ConfigError(f"{place}.url holds a password, which would be written to the run's files: use key_from")
    if "env" in entry:
        raise ConfigError(f"{place}.env is for a command: a server that runs already has its own")
