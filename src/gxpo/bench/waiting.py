"""Agents whose tools take 50 ms to 2 s, against the same agents with tools that answer at once."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from gxpo.bench.runner import Case, Side

CALLS = 4  # replies of an episode
REPLY = 16  # tokens of each
SHORTEST, LONGEST = 0.05, 2.0  # seconds of a tool


# ---------------------------------------------------------------- agents
def waiting_agent(prompt: str, base_url: str, api_key: str, attempt: int) -> float:
    """Call the policy, with a tool after each reply; how long it takes is drawn by prompt, attempt and turn."""
    random_seconds = random.Random(f"{prompt}/{attempt}")

    def use_tool() -> None:
        time.sleep(SHORTEST * (LONGEST / SHORTEST) ** random_seconds.random())

    return _play(prompt, base_url, api_key, use_tool)


def instant_agent(prompt: str, base_url: str, api_key: str) -> float:
    """Make the same calls as `waiting_agent`, with tools that take no time."""
    return _play(prompt, base_url, api_key, lambda: None)


def _play(prompt: str, base_url: str, api_key: str, use_tool: Callable[[], None]) -> float:
    """Make the calls of an episode on one connection; its reward depends on what the policy has written."""
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=600)
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    messages, text = [{"role": "user", "content": prompt}], ""
    try:
        for _ in range(CALLS):
            connection.request("POST", f"{address.path}/chat/completions", json.dumps({"messages": messages}), headers)
            reply = json.loads(connection.getresponse().read())["choices"][0]["message"]
            text = reply["content"]
            use_tool()
            messages += [reply, {"role": "user", "content": "ok"}]
    finally:
        connection.close()
    return float(len(text) % 2)


# ---------------------------------------------------------------- measurement
def agents_step(folder: str, episodes: int, agent: str, cohorts: int) -> Callable[[], dict[str, Any]]:
    """Whole steps of the tiny model with so many episodes, all under way together."""
    from gxpo.bench.peer import GROUP, gxpo_step

    settings = {
        "rollout": "agent",
        "rollout.run": f"{__name__}:{agent}",
        "rollout.concurrency": episodes,
        "rollout.cohorts": cohorts,
        "rollout.max_calls": CALLS,
        "tasks.per_step": episodes // GROUP,
        "sampling.max_new_tokens": REPLY,
    }
    return gxpo_step("tiny", 16, GROUP, folder, settings)


def cases(folder: str, quick: bool = False) -> list[Case]:
    """Rows `waiting/EPISODES/cCOHORTS` of suite `step`: the share of its speed that a step keeps when tools wait."""
    rows = []
    for episodes in (64,) if quick else (64, 1_000):
        for cohorts in (1, 4):
            work = {"folder": folder, "episodes": episodes, "cohorts": cohorts}
            waiting, instant = (
                Side(name, f"{__name__}:agents_step", work | {"agent": f"{name}_agent"})
                for name in ("waiting", "instant")
            )
            figures = {"tokens": episodes * CALLS * REPLY}
            rows.append(Case(f"waiting/{episodes}/c{cohorts}", waiting, instant, 3, figures=figures))
    return rows
