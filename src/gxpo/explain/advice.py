"""Find methods for a symptom of training: match the user's words, list recommendations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.doctor import evidence
from gxpo.doctor.evidence import Measured
from gxpo.explain.catalogue import FREE
from gxpo.explain.symptoms import SYMPTOMS, Advice
from gxpo.methods import METHODS
from gxpo.parts.definition import EVIDENCE

PLACE = ("helped", "", "mixed", "undecided", "harmed")  # "": not measured
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


def recommendations(symptom: str, found: Sequence[Measured] | None = None) -> list[dict[str, Any]]:
    """Recommendations of `gxpo methods --for` for a symptom.

    What helped in our measurements comes first, the largest difference before the others; then what was not measured,
    the strongest evidence of its reading first and reconstructions last; then what did not help here. A composition has
    the evidence of its weakest method, and the costs of all.

    found   measurements; None: those that gxpo comes with
    """
    known = evidence.read() if found is None else found
    placed = []
    for advice in SYMPTOMS[symptom].advice:
        definitions = [METHODS[name] for name in advice.method.split("+")]
        costs = list(dict.fromkeys(d.cost for d in definitions))
        tier = max((d.evidence for d in definitions), key=EVIDENCE.index)
        m = measured(symptom, advice, known)
        row = {
            "method": advice.method,
            "evidence": tier,
            "cost": "; ".join([c for c in costs if c != FREE] or [FREE]),
            "why": advice.why,
            "line": advice.line,
            "measured": None if m is None else {"verdict": m.verdict, "said": m.figures},
        }
        place = PLACE.index(m.verdict if m else "")
        placed.append(((place, -m.difference if m else 0.0, EVIDENCE.index(tier)), row))
    return [row for _, row in sorted(placed, key=lambda pair: pair[0])]


def measured(symptom: str, advice: Advice, found: Sequence[Measured]) -> Measured | None:
    """What was measured of the advice's keys for the symptom; None where nothing was."""
    keys = {"method": advice.method, **{k: v for k, _, v in (s.partition("=") for s in advice.sets)}}
    return evidence.measured_for_keys(SYMPTOMS[symptom].sicknesses, keys, found)
