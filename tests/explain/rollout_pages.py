"""Records, sources and a reader of pages for the tests of `gxpo explain`."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from gxpo.explain import rollout_page
from gxpo.explain.rollout_source import Source, Words
from gxpo.forest.forest import Forest

HOSTILE = (
    "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028 \u202eabc \x00\x07 \\ \"' &amp; ${7*7}"
)


def record(i: int, reward: float | None, text: str = "7", group: str = "g0", **more: object) -> dict:
    turn = {"action": [4, 5], "action_text": text, "logprob": [-0.5, -0.25]}
    return {"schema": "gxpo.rollouts/1", "group": group, "task": f"task {group}", "id": f"t{i}", "prompt": [1, 2],
            "prompt_text": "what?", "turns": [turn], "reward": reward, **more}  # fmt: skip


def write(path: Path, records: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


class ParsedReply(HTMLParser):
    """Elements of a page, and the text of its script elements."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append("")
        assert not [k for k, _ in attrs if k.startswith("on") or k in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.text += data

    @property
    def data(self) -> dict:
        return json.loads(self.scripts[0])


def page_of(path: Path, methods: tuple[str, ...] = (), step: int | None = None) -> ParsedReply:
    text = rollout_page.explain(path, methods, step)
    text.encode("utf-8")
    return ParsedReply(text)


def numbers(x: dict, n: int) -> list[float]:
    if "c" in x:
        return [x["c"]] * n
    kind = {"f4": "<f4", "f8": "<f8", "u1": "u1", "i1": "i1", "u2": "<u2", "i2": "<i2", "i4": "<i4"}[x["k"]]
    values = np.frombuffer(base64.b64decode(x["d"]), dtype=kind)
    return (np.frombuffer(base64.b64decode(x["v"]), dtype="<f8")[values] if "v" in x else values).tolist()


def many(groups: int, size: int, tokens: int = 2) -> Source:
    rng = np.random.default_rng(0)
    rewards = (rng.random((groups, size)) < rng.random((groups, 1))).astype(float)
    ids = rng.integers(0, 5000, (groups, size, tokens)).tolist()
    logprobs = (-rng.random((groups, size, tokens))).tolist()
    forest = Forest.from_completions([[i] for i in range(groups)], ids, rewards.ravel(), logprobs=logprobs,
                                     success=rewards.ravel())  # fmt: skip
    return Source(forest, "many", [], [], Words.of(forest, lambda i: f" word{i}"), np.full(groups * size, np.nan))


def forest_of(*groups: list[float], tokens: int = 2, logprob: float = -0.5) -> Forest:
    return Forest.from_completions(
        [[i + 1] for i in range(len(groups))],
        [[[7] * tokens for _ in group] for group in groups],
        [r for group in groups for r in group],
        success=[float(r > 0) for group in groups for r in group],
        logprobs=[[[logprob] * tokens for _ in group] for group in groups],
    )
