"""Entries of `env.mcp`: what they say, and one line for each mistake."""

from __future__ import annotations

import sys

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments.mcp.settings import servers_of

COMMAND = {"command": ["python", "server.py"], "allow": ["add"]}
URL = {"url": "http://localhost:8000/mcp?token=x", "allow": ["add", "root"]}


def test_entries_take_the_runs_limits_or_their_own():
    first, second = servers_of([COMMAND, {**URL, "timeout": 2, "chars": 50, "per_episode": True}], 10.0, 4000)
    assert (first.timeout, first.chars, first.per_episode, first.words) == (
        10.0, 4000, False, [sys.executable, "server.py"],
    )  # fmt: skip
    assert (second.timeout, second.chars, second.per_episode, second.allow) == (2.0, 50, True, ("add", "root"))
    assert second.label == "http://localhost:8000/mcp"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"command": ["x"]}, r"env.mcp\[0\] needs allow: the names of the tools that the policy may call"),
        ({"allow": ["add"]}, "needs either command .* or url"),
        ({**COMMAND, "url": "http://a/mcp"}, "needs either command .* or url"),
        ({**COMMAND, "allow": []}, "allow is a list of names"),
        ({**COMMAND, "allow": ["add", 3]}, "allow is a list of names"),
        ({**COMMAND, "allow": ["add", "add"]}, "names 'add' twice"),
        ({**COMMAND, "command": "python server.py"}, "command is a list of words"),
        ({**COMMAND, "alow": ["add"]}, "no key 'alow'; did you mean 'allow'"),
        ({**COMMAND, "timeout": 0}, "timeout is a number of seconds above 0, not 0"),
        ({**COMMAND, "timeout": True}, "timeout is a number of seconds above 0, not True"),
        ({**COMMAND, "chars": 1.5}, "chars is a whole number"),
        ({**COMMAND, "per_episode": "yes"}, "per_episode is true or false"),
        ({**COMMAND, "env": {"A": 1}}, "env is texts by name"),
        ({**COMMAND, "key_from": "KEY"}, "key_from is for a url"),
        ({**URL, "env": {"A": "1"}}, "env is for a command"),
        ({**URL, "url": "localhost:8000"}, "url is an address, as http"),
        ({**URL, "url": "https://me:pw@host/mcp"}, "holds a password"),
    ],
)
def test_a_mistake_is_told_in_one_line(entry, message):
    with pytest.raises(ConfigError, match=message) as error:
        servers_of([entry], 10.0, 4000)
    assert "\n" not in str(error.value)
