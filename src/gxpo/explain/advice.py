"""Recommend methods for a symptom of training: match the user's words to a symptom, rank its recommendations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.doctor import evidence
from gxpo.doctor.evidence import Measurement
from gxpo.explain.catalogue import FREE
from gxpo.explain.measurements import effects
from gxpo.explain.symptoms import SYMPTOMS, Advice, Symptom, foreign_words
from gxpo.methods import METHODS
from gxpo.parts.definition import EVIDENCE

VERDICT_ORDER = ("helped", "", "mixed", "undecided", "harmed")  # best first; "": not measured
SLACK = 4  # other words of a sentence that may stand between the words of a sign
CLAUSE = re.compile(r"[;:.!?]\s|\b(?:and|but|while|whereas|because|although)\b")
NEGATIONS = ("not", "no", "without", "never", "nor", "neither")
FORMS = {"fell": "falls", "fallen": "falls", "grew": "grows", "shrank": "shrinks", "rose": "rises", "went": "goes"}
FILLERS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been but by do does for from had has have how i in is it its me my of on or our so that "
        "the their then there this to too very was we what when while why with you your",
    )
)


def find(text: str) -> str:
    """Look up the symptom that free words describe.

    Raises ConfigError, with the three nearest symptoms, for words that describe none, or several equally well.
    """
    words, clauses = _words(text), [_words(clause) for clause in CLAUSE.split(text)]
    phrases = {name: [_words(phrase) for phrase in (name, *symptom.also)] for name, symptom in SYMPTOMS.items()}
    if exact := [name for name, texts in phrases.items() if words in texts]:
        return exact[0]
    words, *clauses = [_spelt(part, phrases) for part in (words, *clauses)]
    is_outside = any(_begins(word, stem) for word in words for stem in foreign_words())
    signs = {
        name: set[str]() if is_outside else _sign(words, clauses, phrases[name], symptom)
        for name, symptom in SYMPTOMS.items()
    }
    best = max(signs, key=lambda name: len(signs[name]))
    if not signs[best]:
        nearest = ", ".join(map(repr, _nearest(words, phrases)))
        raise ConfigError(
            f"no symptom fits {text!r}; the nearest are {nearest}; `gxpo methods` ends with all of them, and `gxpo "
            "doctor RUN` names what a run has"
        )
    # as strong, or said in other words of the text: nobody can tell which is meant
    matches = [
        repr(name) for name, sign in signs.items() if sign and (len(sign) == len(signs[best]) or not sign & signs[best])
    ]
    if len(matches) > 1:
        raise ConfigError(f"{text!r} may be {' or '.join(matches)}: say which")
    return best


def _words(text: str) -> list[str]:
    """Split a text into words: lower case, no hyphens, "n't" as "not", "pass@8" as "passk"."""
    text = re.sub(r"n['\u2019]t\b", " not", text.lower().replace("can't", "can not"))
    text = re.sub(r"\bpass(@| at )(\w+)", lambda m: "pass1" if m[2] in ("1", "one") else "passk", text)
    text = re.sub(r"-|_(?!generations|tokens|new_tokens|completion_length|response_length|length)", " ", text)
    text = re.sub(r"\blog ?prob\w*", "logprob", text)
    words: list[str] = re.findall(r"[a-z0-9]+(?:[._][a-z0-9]+)*", text)
    return [FORMS.get(word, word) for word in words]


def _spelt(words: list[str], phrases: Mapping[str, list[list[str]]]) -> list[str]:
    """Replace misspelt words by the closest word of a symptom."""
    from rapidfuzz import fuzz, process

    stems = {
        a for symptom in SYMPTOMS.values() for sign in symptom.signs for alternatives in sign for a in alternatives
    }
    stems_and_words = {word for texts in phrases.values() for phrase in texts for word in phrase} | stems
    out = []
    for word in words:
        is_known = len(word) < 5 or word in FILLERS or any(_begins(word, stem) for stem in stems_and_words)
        nearest_word = (
            None if is_known else process.extractOne(word, stems_and_words, scorer=fuzz.ratio, score_cutoff=84)
        )
        out.append(nearest_word[0] if nearest_word else word)
    return out


def _begins(word: str, stem: str) -> bool:
    """Return True if a word has the stem: short stems are whole words, in singular or plural."""
    return word.startswith(stem) if len(stem) > 3 and stem.isalpha() else word in (stem, f"{stem}s")


def _sign(words: list[str], clauses: list[list[str]], phrases: list[list[str]], symptom: Symptom) -> set[str]:
    """Return the words by which a text describes a symptom, the most that one sign has; none: it does not."""
    content = [word for word in words if word not in FILLERS]
    matches: list[set[str]] = [set()]
    for phrase in phrases:
        # a phrase such as "replay" is a topic: it is meant where little else is said, and in a sentence may be anything
        phrase_words = [word for word in phrase if word not in FILLERS]
        sign = tuple((word[: max(len(word) - 2, 4)],) for word in phrase_words)
        if len(content) <= len(phrase_words) + (2 if len(phrase_words) > 1 else 1):
            matches.append(_match_sign(words, sign, in_order=True))
        # two or more words of the name alone: "all wrong" of "all-wrong groups"
        if len(content) > 1 and all(any(_begins(p, word[: max(len(word) - 1, 3)]) for p in phrase) for word in content):
            matches.append(set(content))
    matches += [_match_sign(clause, sign) for sign in symptom.signs for clause in clauses]
    return max(matches, key=len)


def _match_sign(words: list[str], sign: Sequence[Sequence[str]], *, in_order: bool = False) -> set[str]:
    """Return the words of a text that a sign consists of if all stand close together and none is negated, else none."""
    places = [
        [i for i, word in enumerate(words) if any(_begins(word, stem) for stem in alternatives)]
        for alternatives in sign
    ]
    if not all(places):
        return set()
    for begin in sorted(i for row in places for i in row):
        # distinct words from here on, the first of each
        positions: list[int] = []
        for row in places:
            positions.append(
                next((i for i in row if begin <= i < begin + len(sign) + SLACK and i not in positions), -1)
            )
        if -1 in positions or (in_order and positions != sorted(positions)):
            continue
        if not _is_negated(words, positions):
            return {words[i] for i in positions}
    return set()


def _is_negated(words: list[str], positions: Sequence[int]) -> bool:
    """Return True if a negation that is not itself one of the words stands just before one of them."""
    return any(
        words[j] in NEGATIONS and j not in positions and "longer" not in words[j + 1 : j + 2]
        for i in positions
        for j in range(max(i - 2, 0), i)
    )


def _nearest(words: list[str], phrases: Mapping[str, list[list[str]]]) -> list[str]:
    """Return the three symptoms whose names and synonyms are the most similar."""
    from rapidfuzz import fuzz

    query = " ".join(word for word in words if word not in FILLERS)
    scores = {name: max(fuzz.token_set_ratio(query, " ".join(p)) for p in texts) for name, texts in phrases.items()}
    return sorted(scores, key=lambda name: -scores[name])[:3]


def of_run(path: Path) -> tuple[str, str | None, str]:
    """Diagnose a run: the symptom of its first cause, the trainer whose methods are listed, and the cause in one line.

    Raises ConfigError where the doctor finds no cause, or one that no method is listed for.
    """
    from gxpo.doctor import diagnose, read

    diagnosis = diagnose(read(path))
    findings = [f for f in diagnosis.findings if f.severity != "note"]
    if not findings:
        raise ConfigError(f"{path}: no cause is found in this run: gxpo doctor {path} shows what was read and checked")
    # only the first: methods against a consequence would leave its cause where it is
    cause = findings[0]
    names = [name for name, symptom in SYMPTOMS.items() if set(cause.ids) & set(symptom.sicknesses)]
    line = f"{path} ({diagnosis.source}): {cause.title} ({cause.grade}: {', '.join(cause.ids)})"
    if not names:
        raise ConfigError(f"{line}: no method is listed for it; gxpo doctor {path} names its remedies")
    if len(names) > 1:
        raise ConfigError(f"{line}: it may be {' or '.join(map(repr, names))}: say which")
    return names[0], {"trl": "trl", "unsloth": "trl", "verl": "verl"}.get(diagnosis.source), line


def recommendations(symptom: str, measurements: Sequence[Measurement] | None = None) -> list[dict[str, Any]]:
    """Rank the recommendations of `gxpo methods --for` for a symptom.

    Methods that helped in our measurements come first, the largest difference before the others; then those that were
    not measured, those whose formula was read at source first and reconstructions last; then those that did not help.
    Fewer than `evidence.FEWEST` seeds are quoted and change no order. A composition has the evidence of its weakest
    method, and the costs of all.

    measurements  default: those that gxpo comes with, of few seeds too
    """
    measurements_read = evidence.read(fewest=1) if measurements is None else measurements
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
            "sets": list(advice.sets),
            "line": advice.line,
            "measured": None
            if measurement is None
            else {"verdict": measurement.verdict, "figures": measurement.figures},
            "elsewhere": effects(advice.method, advice.sets),
        }
        # sorted by verdict, then by the size of the effect (only among measured ones), then by evidence
        ranking = measurement if measurement and measurement.seeds >= evidence.FEWEST else None
        verdict_rank = VERDICT_ORDER.index(ranking.verdict if ranking else "")
        rows_by_rank.append(((verdict_rank, -ranking.difference if ranking else 0.0, EVIDENCE.index(tier)), row))
    return [row for _, row in sorted(rows_by_rank, key=lambda pair: pair[0])]


def measurement_of(symptom: str, advice: Advice, measurements: Sequence[Measurement]) -> Measurement | None:
    """Return the measurement of the advice's keys for the symptom; None where there is none."""
    keys = {"method": advice.method, **{k: v for k, _, v in (s.partition("=") for s in advice.sets)}}
    return evidence.measured_for_keys(SYMPTOMS[symptom].sicknesses, keys, measurements)
