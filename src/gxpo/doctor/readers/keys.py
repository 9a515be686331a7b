"""Names of trainers' metric keys and settings: the tables of `doctor/trainers/*.yaml`, and who writes a key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gxpo.base import yamltext
from gxpo.doctor.series import Floats

Columns = Mapping[str, tuple[list[float], list[float]]]

FOLDER = Path(__file__).parents[1] / "trainers"
SAME_KEYS = {"unsloth": "trl", "ms-swift": "trl"}  # they patch TRL and write its keys
UNKNOWN = "unknown"
LONGEST = 300  # characters of a key that may have a name: patterns of keys are not linear in its length
SHOWN = LONGEST + 20  # characters of a longer key that are kept: without a tracker's prefix, too, it has no name
# Keys that hold the number of the step, the first that is there counts. Order matters: wandb's `_step` counts calls of
# `log`, not steps of the trainer.
STEP_KEYS = (
    "step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "trainer_step",
    "progress/step",
    "system/global_step",  # ROLL
    "rollout/step",  # slime
    "train/step",
    "eval/step",
    "global_step/max_steps",  # ms-swift: "5/100"
    "Step",
    "steps",
    "iteration",
    "iter",
    "_step",
)
_PLAIN = re.compile(r"[^a-z0-9]+")
_TAG = re.compile(r"@(mean|max|min|p50|p99|std|sum)$")  # of ROLL's reductions, in its consoles
_HF_TABLE = {"Training Loss": "loss", "Validation Loss": "eval_loss"}  # transformers' table in a notebook

# What a figure is computed by from others, over the steps that all of them have; the text quotes it.
OPERATIONS: dict[str, tuple[Callable[..., Floats], str]] = {
    "log": (np.log, "log {}"),
    "minus log": (lambda a: -np.log(a), "-log {}"),
    "percent": (lambda a: a / 100, "{} / 100"),
    "size": (np.abs, "|{}|"),
    "itself": (lambda a: a, "{}"),
    "minus": (lambda a: -a, "-{}"),
    "rest": (lambda a: 1 - a, "1 - {}"),
    "less": (lambda a, b: a - b, "{} - {}"),
    "over": (lambda a, b: a / b, "{} / {}"),
    "at most": (lambda a, b: np.where(b >= np.max(b, initial=-np.inf), a, 0.0), "{} where {} is at its largest"),
}


@dataclass(frozen=True)
class Trainer:
    """One trainer's file.

    own_keys        pattern of the beginning of keys that no other trainer writes
    least_keys      own keys that tell the trainer
    has_prefixes    `train/` and `eval/` are parts of its keys, not put before them by a tracker
    keys            key -> name in `gxpo.doctor.series.NAMES`; of several keys with one name the first counts
    patterns        pattern of a whole key -> name with groups
    no_reward       keys that look like the reward -> what they are
    aliases         pattern of the beginning of a key -> what stands there in `keys`
    formulas        name -> operation of `OPERATIONS` and the patterns of its keys
    evaluations     pattern of a whole key with the groups `source` and `n` (samples), name; the first has precedence
    eval_prefix     the names of keys behind it are those of held-out figures
    settings        name in `gxpo.doctor.runlog.SETTINGS` -> keys, of which the first counts
    kl              flag -> key of the KL's coefficient where the flag is set
    own_settings    keys of settings that tell the trainer
    lines           source of a check, or `reward` -> the setting that logs it
    words           `short`: word of a key -> what it is short for; `sets`: name -> words of a key; `aspects` of rewards
    """

    own_keys: re.Pattern[str] = re.compile(r"(?!)")
    least_keys: int = 1
    has_prefixes: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[tuple[re.Pattern[str], str], ...] = ()
    no_reward: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[tuple[re.Pattern[str], str], ...] = ()
    formulas: tuple[tuple[str, str, tuple[re.Pattern[str], ...]], ...] = ()
    evaluations: tuple[tuple[re.Pattern[str], str], ...] = ()
    eval_prefix: str = ""
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kl: Mapping[str, str] = field(default_factory=dict)
    own_settings: tuple[str, ...] = ()
    lines: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)

    def plain(self, key: str) -> str:
        """Key as `keys` has it."""
        for pattern, replacement in self.aliases:
            key = pattern.sub(replacement, key, count=1)
        return key

    def name(self, key: str) -> str | None:
        """The doctor's name of a key; None without one."""
        if len(key) > LONGEST:
            return None
        key = self.plain(key)
        if key in self.keys:
            return self.keys[key]
        for pattern, name in self.patterns:
            if match := pattern.fullmatch(key):
                return match.expand(name)
        if self.eval_prefix and key.startswith(self.eval_prefix):
            inner = self.name(key.removeprefix(self.eval_prefix))
            return inner and f"eval/{inner}"
        return None

    def has(self, key: str) -> bool:
        """True if a key has a name, is of an evaluation, or serves to compute a figure."""
        return len(key) <= LONGEST and (
            self.name(key) is not None
            or any(pattern.fullmatch(key) for pattern, _ in self.evaluations)
            or any(pattern.fullmatch(self.plain(key)) for _, _, patterns in self.formulas for pattern in patterns)
        )


@cache
def trainers() -> Mapping[str, Trainer]:
    """All trainers by name, `unknown` (what other programs call the same) among them."""
    return {path.stem: _trainer(path) for path in sorted(FOLDER.glob("*.yaml"))}


def trainer(name: str) -> Trainer:
    """Trainer of a name; a trainer without a file has the keys of `unknown`."""
    trainer_by_name = trainers()
    return trainer_by_name.get(SAME_KEYS.get(name, name), trainer_by_name[UNKNOWN])


def _trainer(path: Path) -> Trainer:
    """Read one file."""
    table: dict[str, Any] = yamltext.plain(yamltext.load(path.read_text(encoding="utf-8"), path.name), path.name)

    def pairs(part: str) -> tuple[tuple[re.Pattern[str], str], ...]:
        return tuple((re.compile(pattern), name) for pattern, name in table.get(part, {}).items())

    return Trainer(
        own_keys=re.compile(table.get("own_keys", "(?!)")),
        least_keys=table.get("least_keys", 1),
        has_prefixes=table.get("has_prefixes", False),
        keys=table["keys"],
        patterns=pairs("patterns"),
        no_reward=table.get("no_reward", {}),
        aliases=pairs("aliases"),
        formulas=tuple(
            (name, operation, tuple(map(re.compile, keys)))
            for name, (operation, *keys) in table.get("formulas", {}).items()
        ),
        evaluations=tuple((re.compile(pattern), name) for pattern, name in table.get("evaluations", ())),
        eval_prefix=table.get("eval_prefix", ""),
        settings={name: tuple(keys) for name, keys in table.get("settings", {}).items()},
        kl=table.get("kl", {}),
        own_settings=tuple(table.get("own_settings", ())),
        lines=table.get("lines", {}),
        words=table.get("words", {}),
    )


@lru_cache(100_000)
def written_key(key: str) -> str:
    """The trainer's own key of a column: without the run's name before it (W&B's tables) and the tag behind it.

    No trainer writes keys of more than `LONGEST` characters: such a one is cut, and so has no name.
    """
    if len(key) > LONGEST:
        return key[:SHOWN] + "..."
    return _TAG.sub("", key.rsplit(" - ", 1)[-1].strip().replace(" / ", "/"))


@lru_cache(100_000)
def trainer_key(key: str) -> str:
    """Undo what trackers do to a trainer's key: "run - train/reward" of a wandb table, "train/reward" and "eval/reward"
    as transformers' trackers rewrite "reward" and "eval_reward"."""
    key = written_key(key)
    if key.startswith("train/") and not key.startswith(("train/global_step", "train/agg/")):
        return key.removeprefix("train/")
    if (key.startswith("eval/") and key.count("/") < 2) or key.startswith(("eval/rewards/", "eval/completions/")):
        return "eval_" + key.removeprefix("eval/")
    return _HF_TABLE.get(key, key)


@lru_cache(100_000)
def is_metric(key: str) -> bool:
    """True if a key is a metric of some trainer; a row without one is not of a training log."""
    forms = {trainer_key(key), written_key(key)}
    if forms & {"epoch", "Time"}:
        return False
    return (
        any(trainer_keys.has(form) for trainer_keys in trainers().values() for form in forms)
        or _common_name(trainer_key(key)) is not None
    )


def is_training(keys: Sequence[str]) -> bool:
    """True if the head of a table is of a training log: one with a metric, or with a step and words for one."""
    return any(map(is_metric, keys)) or (any(map(is_step, keys)) and any(map(by_words, keys)))


def is_step(key: str) -> bool:
    """True if a column holds the number of the step."""
    return written_key(key) in STEP_KEYS or trainer_key(key) in STEP_KEYS or _words(key) == ["step"]


LEAST_RESTORED, LEAST_OWN = 5, 3  # keys, and those that only their trainer writes, by which a spelling is told


@cache
def _underlined_keys(name: str) -> Mapping[str, str]:
    """Keys of a trainer with underlines for their strokes -> as the trainer writes them."""
    return {key.replace("/", "_"): key for key in trainer(name).keys if "/" in key}


@cache
def _underlined_evaluations(name: str) -> tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]:
    """Patterns of a trainer's evaluations, with underlines for strokes and as they are."""
    return tuple((re.compile(p.pattern.replace("/", "_")), p) for p, _ in trainer(name).evaluations)


def restore_keys(keys: Iterable[str]) -> dict[str, str]:
    """Keys of one trainer that a store or script wrote with underlines for strokes ("critic_score_mean") -> as the
    trainer writes them; empty where too few are its own to tell."""
    columns = [key for key in keys if "_" in key and "/" not in key and len(key) <= LONGEST]
    best: dict[str, str] = {}
    for name, trainer_keys in trainers().items():
        found_keys = {key: _underlined_keys(name)[key] for key in columns if key in _underlined_keys(name)}
        for key in columns:
            for flat, pattern in _underlined_evaluations(name):
                if key in found_keys or (match := flat.fullmatch(key)) is None:
                    continue
                start, end = match.span("source")
                full = key[:start].replace("_", "/") + key[start:end] + key[end:].replace("_", "/")
                if pattern.fullmatch(full):
                    found_keys[key] = full
        n_own = sum(bool(trainer_keys.own_keys.match(full)) for full in found_keys.values())
        if len(found_keys) >= max(LEAST_RESTORED, len(best) + 1) and n_own >= LEAST_OWN:
            best = found_keys
    return best


def source(keys: Iterable[str]) -> str:
    """Name the trainer that writes these keys by those that it alone writes; "unknown" without enough of them, or if
    another trainer has as many."""
    counts = {name: count for name, count in _own_counts(keys).items() if count >= trainer(name).least_keys}
    ranked = sorted(counts, key=lambda name: -counts[name])
    is_clear = bool(ranked) and (len(ranked) == 1 or counts[ranked[0]] > counts[ranked[1]])
    return ranked[0] if is_clear else UNKNOWN


def have_prefixes(keys: Iterable[str]) -> bool:
    """True if `train/` and `eval/` are parts of these keys."""
    return trainer(source(keys)).has_prefixes


def _own_counts(keys: Iterable[str]) -> dict[str, int]:
    """Number of keys that each trainer alone writes."""
    short_keys = [key[:SHOWN] for key in keys]
    trainer_keys = [trainer_key(key) for key in short_keys]
    return {
        name: sum(bool(table.own_keys.match(key)) for key in (short_keys if table.has_prefixes else trainer_keys))
        for name, table in trainers().items()
    }


def _common_name(key: str) -> str | None:
    """Name of a key of a loop that nobody knows: what programs call the same, whatever its case and separators; else
    what all trainers that write the key mean by it, or as TRL calls rewards."""
    plain = _PLAIN.sub("_", key.lower()).strip("_").removeprefix("train_")
    if (name := trainer(UNKNOWN).keys.get(plain)) is not None:
        return name
    meanings = _meanings().get(key, frozenset())
    if not meanings:
        return trainer("trl").name(key)
    only = next(iter(meanings))
    return (
        only
        if len(meanings) == 1 and not any(key in trainer_keys.no_reward for trainer_keys in trainers().values())
        else None
    )


@lru_cache(100_000)
def by_words(key: str) -> str | None:
    """Name of a key by its words, whatever their order, case and abbreviation: "Avg Reward", "GrpStd", "% truncated";
    None where another meaning is as likely."""
    words = _words(key)
    # the mean of a gradient's entries is not its length
    if words == ["grad", "norm"] and "mean" in key.lower() and "norm" not in key.lower():
        return None
    if (name := _names_of_words().get(frozenset(words))) is not None:
        return name
    # a part of the reward is told by the word for it, or by what stands behind "reward/"
    aspects = [word for word in words if word != "reward"]
    aspect_words = trainer(UNKNOWN).words["aspects" if "reward" in words else "alone"]
    if aspects and (set(aspects) <= set(aspect_words) or _PART.match(key)) and not set(aspects) & _OTHER:
        return f"component/{'_'.join(aspects)}"
    return None


_PART = re.compile(r"rewards?/\w", re.I)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_UNIT = re.compile(r"[(\[](?:s|ms|min|h|sec|seconds|tok|tokens|nats|%|chars?|UTC)[)\]]", re.I)
_WORD = re.compile(r"[a-z]+|\d+|[\u2191\u2193]|[\u4e00-\u9fff]+")
_LEARNER = {"train", "trainer", "training", "learner", "actor"}
_SAMPLER = {"rollout", "sampler", "inference", "infer", "vllm", "sglang", "generator"}


def _words(key: str) -> list[str]:
    """Words of a key, abbreviations spelt out and words that add nothing left out; "mismatch" where it names both the
    learner and the sampler."""
    parts = [w for part in _WORD.findall(_CAMEL.sub(" ", _UNIT.sub(" ", key)).lower()) for w in _parts(part)]
    mismatch = ["mismatch"] if _LEARNER & set(parts) and _SAMPLER & set(parts) else []
    full = trainer(UNKNOWN).words["short"]
    return [w for part in [*parts, *mismatch] for w in full.get(part, part).split()]


def _parts(word: str) -> list[str]:
    """Known parts of a word of Chinese characters, which has no blanks: the longest first; other words are one part."""
    if word.isascii() or word in (stems := trainer(UNKNOWN).words["short"]):
        return [word]
    parts: list[str] = []
    unknown_part = ""  # characters that are no part of a known word
    begin = 0
    while begin < len(word):
        stem = next((word[begin:end] for end in range(len(word), begin, -1) if word[begin:end] in stems), "")
        unknown_part += "" if stem else word[begin]
        parts += [stem] if stem else []
        begin += len(stem) or 1
    return [*parts, unknown_part] if unknown_part else parts


@cache
def _names_of_words() -> Mapping[frozenset[str], str]:
    """Words of a key -> name."""
    table = trainer(UNKNOWN).words["sets"]
    return {frozenset(words.split()): name for name, sets in table.items() for words in sets}


@cache
def _meanings() -> Mapping[str, frozenset[str]]:
    """Key -> the names that it has at any trainer, or what it is there besides the reward."""
    meanings: dict[str, set[str]] = {}
    for trainer_keys in trainers().values():
        for key, name in {**trainer_keys.no_reward, **trainer_keys.keys}.items():
            for form in {key, trainer_key(key)}:
                meanings.setdefault(form, set()).add(name)
    return {key: frozenset(names) for key, names in meanings.items()}


def names(keys: Iterable[str], source: str, mapping: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name the keys; of several keys with one name, the first of the trainer's table counts.

    Keys that the trainer does not write itself are named by common names: a loop on top of TRL adds its own. One that
    its table has is named by nothing else: a second estimate of the KL is no gap of sampler and learner.

    mapping  key -> name, before all others
    """
    trainer_keys = trainer(source)
    order = {key: i for i, key in enumerate(trainer_keys.keys)}
    ordered = sorted(keys, key=lambda k: (order.get(trainer_keys.plain(k), len(order)), -len(k), k))
    out = {key: name for key, name in (mapping or {}).items() if key in ordered}
    used_names = set(out.values())
    has_additions = source != "gxpo" and source != "verl" and not trainer_keys.has_prefixes
    naming = (
        *(() if source == UNKNOWN else (trainer_keys.name,)),
        *((_common_name, by_words) if has_additions else ()),
    )
    own_keys = set() if source == UNKNOWN else {key for key in ordered if trainer_keys.plain(key) in trainer_keys.keys}
    for name_of in naming:
        for key in ordered:
            name = None if key in own_keys and name_of != trainer_keys.name else name_of(key)
            if name is not None and name not in used_names and key not in out:
                used_names.add(name)
                out[key] = name
    return out


def formula_figures(columns: Columns, source: str, used_names: Iterable[str]) -> dict[str, tuple[Floats, Floats, str]]:
    """Figures that the trainer's own give together: name -> (steps, values, text of the key)."""
    trainer_keys, out = trainer(source), {}
    for name, operation, patterns in trainer_keys.formulas:
        matches = [next((key for key in columns if p.fullmatch(trainer_keys.plain(key))), None) for p in patterns]
        keys = [key for key in matches if key is not None]
        if name in used_names or name in out or len(keys) < len(patterns):
            continue
        tables = [dict(zip(*columns[key], strict=True)) for key in keys]
        steps = [s for s in tables[0] if all(s in t for t in tables)]
        compute, text = OPERATIONS[operation]
        with np.errstate(all="ignore"):
            values = compute(*(np.array([t[s] for s in steps], dtype=float) for t in tables))
        out[name] = (np.array(steps, dtype=float), values, text.format(*keys))
    return out


def evaluations(columns: Columns, source: str) -> tuple[dict[str, tuple[list[float], list[float], str]], list[str]]:
    """Average evaluations over their data sources: name -> (steps, values, key), and notes.

    A step counts only where every source was measured: a mean over fewer would move with the set of them.
    """
    # one key for each data source, since a source is logged with several numbers of samples: the one with most, and of
    # these the pattern that stands first (a reward before the raw score)
    best_by_source: dict[str, dict[str, tuple[int, int, str]]] = {}
    for key in columns:
        for place, (pattern, name) in enumerate(trainer(source).evaluations):
            match = pattern.fullmatch(key)
            if match is None:
                continue
            groups = match.groupdict()
            rank = (int(groups.get("n") or 0), -place, key)
            data = groups["source"]
            best_by_source.setdefault(name, {})[data] = max(rank, best_by_source.get(name, {}).get(data, (-1, 0, "")))
            break
    out, notes = {}, []
    for name, sources in best_by_source.items():
        names = sorted(key for _, _, key in sources.values())
        if len(names) == 1:
            out[name] = (*columns[names[0]], names[0])
            continue
        tables = [dict(zip(*columns[key], strict=True)) for key in names]
        # a mean over fewer sources would move with the set of them
        steps = [s for s in sorted(tables[0]) if all(s in t for t in tables)]
        if steps:
            out[name] = (steps, [sum(t[s] for t in tables) / len(tables) for s in steps], f"mean of {', '.join(names)}")
            notes.append(f"{name} is the mean of {len(names)} data sources: {', '.join(sorted(sources))}")
    return out, notes


# Words of keys that may be a reward or a success, and of keys that are another statistic of it.
_LIKE = {
    "reward": (
        "reward",
        "rewards",
        "score",
        "scores",
        "return",
        "returns",
        "avg reward",
        "mean reward",
        "total reward",
    ),
    "success": ("accuracy", "acc", "success", "success rate", "pass rate", "solved", "correct", "pass 1"),
}
_OTHER = {
    "std",
    "max",
    "min",
    "var",
    "count",
    "norm",
    "advantage",
    "clip",
    "time",
    "loss",
    "lr",
    "kl",
    "eval",
    "val",
    "test",
}
ALIKE = 85.0  # of 100, by rapidfuzz


def lookalikes(keys: Sequence[str]) -> list[tuple[str, str]]:
    """Keys that look like the reward or a success rate, the most alike first: (name, key)."""
    from rapidfuzz import fuzz

    ranked: list[tuple[float, str, str]] = []
    for key in keys:
        words = [w for w in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", key).lower()) if w]
        if not words or set(words) & _OTHER:
            continue
        for name, spellings in _LIKE.items():
            likeness = max(fuzz.ratio(w, s) for w in (*words, " ".join(words)) for s in spellings)
            if likeness >= ALIKE:
                # of two alike the one with a mean in it, then the shorter
                ranked.append(
                    (likeness + 5 * bool({"mean", "avg", "average"} & set(words)) - len(words) / 10, name, key)
                )
    return [(name, key) for _, name, key in sorted(ranked, key=lambda r: (-r[0], r[1], r[2]))]
