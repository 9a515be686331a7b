"""Find methods for a symptom of training: match the user's words, list recommendations."""

from __future__ import annotations

from typing import Any

from gxpo.definition import EVIDENCE
from gxpo.errors import ConfigError, did_you_mean
from gxpo.explain.catalogue import FREE
from gxpo.explain.symptoms import SYMPTOMS
from gxpo.methods import METHODS

CERTAIN, CLOSE = 75, 3  # of 100: the score from which a name is taken for a symptom, and what tells two apart


def find(words: str) -> str:
    """Look up a symptom's name. ConfigError, listing the known ones, for words that match none or several."""
    from rapidfuzz import fuzz

    asked = _plain(words)
    called = {name: [_plain(text) for text in (name, *symptom.also)] for name, symptom in SYMPTOMS.items()}
    if exact := [name for name, texts in called.items() if asked in texts]:
        return exact[0]
    scores = {name: max(fuzz.WRatio(asked, text) for text in texts) for name, texts in called.items()}
    best = max(scores.values())
    if best < CERTAIN:
        known = ", ".join(map(repr, SYMPTOMS))
        raise ConfigError(f"no symptom is called {words!r}{did_you_mean(words, SYMPTOMS)}; there is {known}")
    near = [repr(name) for name, score in scores.items() if score >= best - CLOSE]
    if len(near) > 1:
        raise ConfigError(f"{words!r} may be {' or '.join(near)}: say which")
    return max(scores, key=lambda name: scores[name])


def _plain(text: str) -> str:
    return " ".join(text.lower().replace("-", " ").replace("_", " ").split())


def recommendations(symptom: str) -> list[dict[str, Any]]:
    """Recommendations of `gxpo methods --for` for a symptom: the strongest evidence first, reconstructions last.

    A composition has the evidence of its weakest method, and the costs of all.
    """
    rows = []
    for advice in SYMPTOMS[symptom].advice:
        definitions = [METHODS[name] for name in advice.method.split("+")]
        costs = list(dict.fromkeys(d.cost for d in definitions))
        rows.append(
            {
                "method": advice.method,
                "evidence": max((d.evidence for d in definitions), key=EVIDENCE.index),
                "cost": "; ".join([c for c in costs if c != FREE] or [FREE]),
                "why": advice.why,
                "line": advice.line,
            }
        )
    return sorted(rows, key=lambda row: EVIDENCE.index(row["evidence"]))
