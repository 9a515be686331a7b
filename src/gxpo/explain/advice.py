"""Recommend methods for a symptom of training: match the user's words to a symptom, rank its recommendations."""

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

VERDICT_ORDER = ("helped", "", "mixed", "undecided", "harmed")  # best first; "": not measured
MIN_SCORE, TIE_MARGIN = 75, 3  # of 100: least score of a match; symptoms within the margin of the best are a tie


def find(words: str) -> str:
    """Look up a symptom's name; raises ConfigError, listing the symptoms, for words that match none or several."""
    from rapidfuzz import fuzz

    query = _normalise(words)
    texts_by_name = {name: [_normalise(text) for text in (name, *symptom.also)] for name, symptom in SYMPTOMS.items()}
    if exact := [name for name, texts in texts_by_name.items() if query in texts]:
        return exact[0]
    scores = {name: max(fuzz.WRatio(query, text) for text in texts) for name, texts in texts_by_name.items()}
    best = max(scores.values())
    if best < MIN_SCORE:
        symptom_names = ", ".join(map(repr, SYMPTOMS))
        raise ConfigError(f"no symptom is called {words!r}{did_you_mean(words, SYMPTOMS)}; there is {symptom_names}")
    close_names = [repr(name) for name, score in scores.items() if score >= best - TIE_MARGIN]
    if len(close_names) > 1:
        raise ConfigError(f"{words!r} may be {' or '.join(close_names)}: say which")
    return max(scores, key=lambda name: scores[name])


def _normalise(text: str) -> str:
    return " ".join(text.lower().replace("-", " ").replace("_", " ").split())


def recommendations(symptom: str, measurements: Sequence[Measured] | None = None) -> list[dict[str, Any]]:
    """Rank the recommendations of `gxpo methods --for` for a symptom.

    Methods that helped in our measurements come first, the largest difference before the others; then those that were
    not measured, the strongest evidence first and reconstructions last; then those that did not help. A composition has
    the evidence of its weakest method, and the costs of all.

    measurements  default: those that gxpo comes with
    """
    measurements_read = evidence.read() if measurements is None else measurements
    rows_by_rank = []
    for advice in SYMPTOMS[symptom].advice:
        definitions = [METHODS[name] for name in advice.method.split("+")]
        costs = list(dict.fromkeys(d.cost for d in definitions))
        tier = max((d.evidence for d in definitions), key=EVIDENCE.index)
        measurement = measurement_of(symptom, advice, measurements_read)
        row = {
            "method": advice.method,
            "evidence": tier,
            "cost": "; ".join([c for c in costs if c != FREE] or [FREE]),
            "why": advice.why,
            "line": advice.line,
            "measured": None if measurement is None else {"verdict": measurement.verdict, "said": measurement.figures},
        }
        # sorted by verdict, then by the size of the effect (only among measured ones), then by evidence
        verdict_rank = VERDICT_ORDER.index(measurement.verdict if measurement else "")
        rows_by_rank.append(
            ((verdict_rank, -measurement.difference if measurement else 0.0, EVIDENCE.index(tier)), row)
        )
    return [row for _, row in sorted(rows_by_rank, key=lambda pair: pair[0])]


def measurement_of(symptom: str, advice: Advice, measurements: Sequence[Measured]) -> Measured | None:
    """Return the measurement of the advice's keys for the symptom; None where there is none."""
    keys = {"method": advice.method, **{k: v for k, _, v in (s.partition("=") for s in advice.sets)}}
    return evidence.measured_for_keys(SYMPTOMS[symptom].sicknesses, keys, measurements)
