"""Settings of a verl launch: of a script, a YAML file of Hydra or overrides, each with its place."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError

from gxpo.adapters.shell.files import text_of
from gxpo.adapters.shell.script import Script
from gxpo.adapters.shell.values import CALLER, Call, Text, Unknown, to_text
from gxpo.adapters.verl_keys import BASE_CONFIGS, CONFIGS, DEFAULTS, GROUPS, PROGRAM_BY_KEY, PROGRAMS, ROOTS
from gxpo.base import yamltext
from gxpo.base.errors import ConfigError

_KEY = re.compile(r"[A-Za-z_][\w-]*([./@][\w-]+)*\Z")
_SETTING = re.compile(r"(?<![\w./@-])([A-Za-z_][\w-]*(?:[./@][\w-]+)*)=")
_OVERRIDE = re.compile(r"(\+\+|\+|~)?([^=\s]+?)(?:=(.*))?\Z", re.DOTALL)
_NO_LAUNCH = ("cat", "echo", "grep", "printf", "sed", "tee")
# Programs of verl that take such settings and are no training by reward.
_NO_TRAINING = re.compile(r"sft|generation|generate|eval|merger|server|preprocess|print_cfg")
_CONFIG = re.compile(r"(--config-path|--config-name|--config-dir|-cp|-cn|-cd)(?:=(.*))?\Z", re.DOTALL)


class OpenSetting(Exception):
    """Raised by a setting that is not known, with the reason."""


@dataclass
class Source:
    """Settings of one launch. `unread`: why the defaults of its configuration are not known, "" if they are.

    settings  key -> (value, place); a value that is not known is an `Unknown`
    defaults  of its configuration, where they are not verl's
    """

    settings: dict[str, tuple[Any, str]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    program: str = ""
    unread: str = ""
    keys_read: set[str] = field(default_factory=set)

    def get(self, *keys: str) -> Any:
        """Return a setting by the first of its names that is set, else its default; `OpenSetting` if unknown."""
        self.keys_read.update(keys)
        for key in keys:
            if key in self.settings:
                value, where = self.settings[key]
                value = self.resolved(value)
                if isinstance(value, Unknown):
                    place = where if where and where not in value.why else ""
                    # a reason that names the value need not be preceded by it
                    text = key if value.text in value.why else f"{key}={value.text}"[:160]
                    raise OpenSetting(f"{place and f'{place}: '}{text}: {value.why}")
                if value is not None or key == keys[-1]:
                    return value
        for key in keys:
            if key in self.defaults:
                return self.defaults[key]
        if self.unread:
            raise OpenSetting(f"{keys[0]}: {self.unread}")
        return DEFAULTS.get(keys[0])

    def get_path(self, key: str) -> Any:
        """Return a setting that names files; one in the caller's home directory by `~`, which gxpo expands too."""
        value = self.settings.get(key, (None, ""))[0]
        if isinstance(value, Unknown) and (text := _by_tilde(value)):
            self.keys_read.add(key)
            return _yaml(text, key)
        return self.get(key)

    def is_set(self, *keys: str) -> bool:
        return any(key in self.settings for key in keys)

    def find(self, *keys: str) -> Any:
        """Return a setting, or None if it is not known."""
        try:
            return self.get(*keys)
        except OpenSetting:
            return None

    def is_unknown(self, key: str) -> bool:
        return key in self.settings and isinstance(self.resolved(self.settings[key][0]), Unknown)

    def resolved(self, value: Any, depth: int = 0) -> Any:
        """Fill interpolations of OmegaConf, `${a.b}`, into a value, as far as they are known."""
        if not isinstance(value, str) or "${" not in value:
            return value
        match = re.fullmatch(r"\$\{([^${}]*)\}", value)
        if match is None and depth < 10:
            pieces = [self.resolved(piece, depth + 1) for piece in re.split(r"(\$\{[^${}]*\})", value) if piece]
            if len(pieces) > 1 and not any(isinstance(piece, Unknown) for piece in pieces):
                return "".join(map(str, pieces))
        if match is None or depth >= 10:
            return Unknown(value, f"{value} is resolved when the training runs")
        kind, sign, argument = match[1].partition(":")
        name, comma, default = (argument if sign else kind).partition(",")
        if kind == "oc.env" and comma:
            return _yaml(default.strip(), name)
        if (not sign or kind == "oc.select") and name.strip() in self.settings:
            return self.resolved(self.settings[name.strip()][0], depth + 1)
        if kind == "oc.select" and comma and not self.unread:
            return _yaml(default.strip(), name)
        return Unknown(value, f"{value} is resolved when the training runs")


def read_source(source: Sequence[str]) -> Source:
    """Read a launch: `[NAME=VALUE ...] SCRIPT [ARGUMENT ...]`, a YAML file and overrides, or overrides alone."""
    files = [i for i, word in enumerate(source) if re.fullmatch(r"[^=\s]+\.(sh|bash|ya?ml)", word)]
    # what follows --config-name is a value of Hydra's, and no file of the caller's
    files = [i for i in files if i == 0 or not _CONFIG.match(source[i - 1])]
    if not files:
        return _of_words([(word, "") for word in _split(source)], Path())
    path = Path(source[files[0]])
    if not os.path.isfile(path):
        raise ConfigError(f"{path}: no such file")
    before, arguments = source[: files[0]], _split(source[files[0] + 1 :])
    if path.suffix in (".yaml", ".yml"):
        out = Source()
        _read_configuration(out, path)
        _add(out, [(word, "") for word in arguments])
        return out
    environment = dict(word.split("=", 1) for word in before if re.match(r"[A-Za-z_]\w*=", word))
    script = Script(path, _is_launch, arguments or None, environment)
    return _of_script(script, path)


def _split(source: Sequence[str]) -> list[str]:
    """Split arguments that hold several overrides, as a quoted command line does."""
    words = []
    for word in source:
        if len(source) == 1 or re.search(rf"\s[+~]*({'|'.join(ROOTS)})\.[\w.]+=", word):
            try:
                words += shlex.split(word)
            except ValueError as error:
                raise ConfigError(f"{word[:60]}: {str(error).lower()}: these are no arguments of a command") from None
        else:
            words.append(word)
    return words


# ---------------------------------------------------------------- launches
def _key_of(word: Text) -> str:
    """Key that a word sets; "" if it sets none, or if that is not known."""
    match = _OVERRIDE.match(word if isinstance(word, str) else word.start)
    is_set = match is not None and (match[3] is not None or match[1] == "~")
    return match[2] if match and is_set and _KEY.match(match[2]) else ""


def _is_launch(words: Sequence[Text]) -> bool:
    """True if a command gets settings of verl."""
    roots = {_key_of(word).split(".")[0] for word in words}
    has_configuration = any(isinstance(word, str) and _CONFIG.match(word) for word in words)
    return words[0] not in _NO_LAUNCH and (not roots.isdisjoint(ROOTS) or (has_configuration and "-m" in words))


def _program_of(words: Sequence[Text]) -> tuple[str, Sequence[Text]]:
    """Find the program that a command starts, and its arguments."""
    for i, word in enumerate(words):
        if word == "-m" and i + 1 < len(words):
            return to_text(words[i + 1]), words[i + 2 :]
        if isinstance(word, str) and word.endswith(".py") and not _key_of(word):
            return word.removesuffix(".py").removeprefix("./").replace("/", "."), words[i + 1 :]
    return "", words


def _of_script(script: Script, path: Path) -> Source:
    """Choose the training of a script, and read its arguments."""
    launches = [call for call in script.calls if not _NO_TRAINING.search(_program_of(call.words)[0].rpartition(".")[2])]
    if not launches:
        other_calls = [f"{call.where}: {_program_of(call.words)[0]}" for call in script.calls]
        why = (
            f", only {', '.join(other_calls)}"
            if other_calls
            else ": no command gets settings as algorithm.adv_estimator=grpo"
        )
        if script.end and not other_calls:
            why = (
                f": it ends in {script.end}; put NAME=VALUE for {_names(script) or 'its variables'} before {path.name}"
            )
        raise ConfigError(f"{path}: there is no training by reward in it{why}")
    # of several the last one that surely runs: earlier ones prepare it, or are variants of it
    call = ([c for c in launches if not c.why] or launches)[-1]
    out = _of_words([(word, call.where) for word in call.words], path.parent)
    if other_calls := [c.where for c in launches if c is not call]:
        places = ", ".join(dict.fromkeys(other_calls))
        out.notes.append((call.where, f"{len(launches)} trainings: this is the last one; others: {places}"))
    if call.why:
        out.notes.append((call.where, f"whether this training starts {call.why.partition(': ')[2] or 'is not known'}"))
    if script.defaults:
        description = f"defaults of the script are taken for {_names(script)}"
        out.notes.append(("", f"{description}: put NAME=VALUE before {path.name}"))
    out.notes += script.notes
    _places(out, path, call)
    return out


def _names(script: Script) -> str:
    return ", ".join(f"${name}" for name in script.defaults)


def _places(out: Source, path: Path, call: Call) -> None:
    """Replace the line of the command by the line of each override, where it is written out in the script."""
    start = int(call.where.rpartition(" ")[2]) if call.where.startswith("line ") else 1
    lines: dict[str, list[int]] = {}
    for line, row in enumerate(text_of(path).splitlines(), 1):
        for match in _SETTING.finditer("" if row.lstrip().startswith("#") else row):
            lines.setdefault(match[1], []).append(line)
    for key, (value, where) in out.settings.items():
        if where == call.where and key in lines:
            out.settings[key] = value, f"line {next((n for n in lines[key] if n >= start), lines[key][-1])}"


# ---------------------------------------------------------------- arguments
def _of_words(words: Sequence[tuple[Text, str]], folder: Path) -> Source:
    """Read a command's words: its program, its configuration and its overrides."""
    program, arguments = _program_of([word for word, _ in words])
    places = [where for _, where in words][len(words) - len(arguments) :]
    out = Source(program=program)
    options, overrides = _named_configuration(list(zip(arguments, places, strict=True)))
    # overrides alone tell their program by settings that only it has
    keys = [_key_of(word) for word, _ in overrides]
    by_key = (name for key, name in PROGRAM_BY_KEY.items() if any(k.startswith(key) for k in keys))
    program_name = program or next(by_key, "")
    if program_name and not program:
        out.notes.append(("", f"no program is named: by its settings read as {program_name}'s"))
    name = options.get("name", PROGRAMS.get(program_name, ""))
    if isinstance(name, str):
        name = name.removesuffix(".yaml")
    if isinstance(name, str) and name in CONFIGS:
        out.defaults = CONFIGS[name]
    elif isinstance(name, str) and name and (file := _configuration(name, options.get("path", ""), folder)):
        _read_configuration(out, file)
    else:
        description = f"the configuration {to_text(name)}" if name else f"the configuration of {program}"
        out.unread = f"{description} is not read"
        out.notes.append(("", f"{description} is no file here: what it sets is not known"))
    _add(out, overrides)
    return out


def _named_configuration(words: list[tuple[Text, str]]) -> tuple[dict[str, Text], list[tuple[Text, str]]]:
    """Take `--config-path` and `--config-name` out of arguments."""
    options: dict[str, Text] = {}
    other_words, i = [], 0
    while i < len(words):
        word = words[i][0]
        match = _CONFIG.match(word if isinstance(word, str) else word.start)
        if match is None:
            other_words.append(words[i])
        else:
            kind = {"-cn": "name", "--config-name": "name"}.get(match[1], "path")
            i += match[2] is None
            value = words[i][0] if match[2] is None and i < len(words) else match[2] or ""
            if isinstance(word, Unknown) and match[2] is not None:
                value = Unknown(word.text.partition("=")[2], word.why, end=word.end)
            options[kind] = value
        i += 1
    return options, other_words


def _configuration(name: str, folder: Text, script_folder: Path) -> Path | None:
    """Find a configuration by its name and the certain end of its folder, from the script's folder or one above."""
    text = folder if isinstance(folder, str) else folder.end
    parts = [part for part in Path(text).parts if part not in ("/", ".")]
    bases = [Path(), script_folder, *list(script_folder.resolve().parents)[:6]]
    ends = [Path(*parts[i:]) for i in range(len(parts) + 1)]
    candidates = [Path(text) / f"{name}.yaml", *(base / end / f"{name}.yaml" for end in ends for base in bases)]
    return next((path for path in candidates if path.is_file()), None)


def _add(out: Source, words: Sequence[tuple[Text, str]]) -> None:
    """Put overrides into settings, in their order."""
    for word, where in words:
        key = _key_of(word)
        if not key:
            if isinstance(word, Unknown) and not word.start:
                description = "arguments of the caller" if word.text == '"$@"' else f"{word.text[:80]} ({word.why})"
                out.notes.append((where, f"{description} may set any key: put them behind the name of the script"))
            continue
        if isinstance(word, Unknown):
            first, *tail = word.pieces or (word.start,)
            pieces = (first.partition("=")[2], *tail) if isinstance(first, str) else ()
            out.settings[key] = Unknown(word.text.partition("=")[2], word.why, pieces=pieces), where
        elif word.startswith("~"):
            for name in [n for n in out.settings if n == key or n.startswith(f"{key}.")] or [key]:
                out.settings[name] = None, where
        else:
            _put(out.settings, key, _yaml(word.partition("=")[2], key), where)


def _by_tilde(value: Unknown) -> str:
    """Write `$HOME` at the beginning of paths as `~`; "" where something else is not known."""
    home = [piece for piece in value.pieces if isinstance(piece, Unknown)]
    is_home_alone = all((piece.text, piece.why) == ("$HOME", CALLER.format("$HOME")) for piece in home)
    if not home or not is_home_alone or any("~" in piece for piece in value.pieces if isinstance(piece, str)):
        return ""
    text = "".join(piece if isinstance(piece, str) else "~" for piece in value.pieces)
    return text if len(re.findall(r"(?:(?<=[\[,'\" ])|\A)~/", text)) == len(home) else ""


def _put(settings: dict[str, tuple[Any, str]], key: str, value: Any, where: str) -> None:
    """Put a setting, a mapping entry by entry."""
    if isinstance(value, Mapping) and value:
        for name, entry in value.items():
            _put(settings, f"{key}.{name}", entry, where)
    else:
        settings.pop(key, None)
        settings[key] = value, where


def _yaml(text: str, key: str) -> Any:
    """Read a value of Hydra: YAML but for what only looks like it, which is a text."""
    if len(text) > 100_000:
        raise ConfigError(f"{key}: a value of more than 100,000 characters")
    if text.lower() in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text.lower()]
    # what YAML would read too, and much slower
    if re.fullmatch(r"[A-Za-z_/][\w/-]*", text):
        return text
    if re.fullmatch(r"-?[1-9]\d{0,15}|0", text):
        return int(text)
    if text.startswith("{"):  # Hydra's colons need no blank
        text = re.sub(r"([\w\"'-]):(?=[^\s/])", r"\1: ", text)
    try:
        return yamltext.plain(yamltext.load(text, key), key) if text and "${" not in text else text
    except YAMLError:
        return text


# ---------------------------------------------------------------- YAML
def _read_configuration(out: Source, path: Path) -> None:
    """Read a YAML file into settings; what its `defaults` name and is nowhere leaves all defaults open."""
    missing: list[str] = []
    out.settings |= _read_yaml(path, [], missing)
    if missing:
        out.unread = f"{', '.join(missing)} of the defaults of {path.name} is not read"
        out.notes.append(
            ("", f"defaults: {', '.join(missing)}: no file beside {path.name}, so what it sets is not known")
        )


def _read_yaml(path: Path, above: Sequence[Path], missing: list[str]) -> dict[str, tuple[Any, str]]:
    """Read a YAML file of Hydra with the files of its `defaults` that lie beside it; others are `missing`."""
    if len(above) > 5 or path in above:
        raise ConfigError(f"{path}: its defaults name one another")
    try:
        document = yamltext.load(text_of(path), str(path))
    except YAMLError as error:
        problem, line = yamltext.problem_of(error)
        raise ConfigError(f"{path}{line}: not YAML: {problem}") from None
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path}: a configuration is a mapping of keys to values")
    settings: dict[str, tuple[Any, str]] = {}
    _leaves(document, "", lambda line: f"line {line}" if not above else f"{path.name} line {line}", settings)
    defaults = document.get("defaults")
    entries = defaults if isinstance(defaults, list) else []
    below: dict[str, tuple[Any, str]] = {}
    for entry in entries:
        name, package = (entry, "") if isinstance(entry, str) else next(
            ((f"{str(k).partition('@')[0].removeprefix('optional ')}/{v}", str(k).partition("@")[2])
             for k, v in entry.items()), ("", "")) if isinstance(entry, Mapping) else ("", "")  # fmt: skip
        if name == "_self_":
            below, settings = {**below, **settings}, dict(settings)
        elif name in BASE_CONFIGS or (isinstance(entry, Mapping) and name.partition("/")[0] in GROUPS):
            continue
        elif not (file := path.parent / f"{name.removesuffix('.yaml')}.yaml").is_file():
            missing.append(name)
        else:
            group = package or name.rpartition("/")[0].replace("/", ".")
            read = _read_yaml(file, [*above, path], missing)
            below |= {f"{group}.{k}" if group and group != "_global_" else k: v for k, v in read.items()}
    order = [entry for entry in entries if isinstance(entry, str)]
    return below if "_self_" in order else {**below, **settings}


def _leaves(node: Any, prefix: str, place: Callable[[int], str], out: dict[str, tuple[Any, str]]) -> None:
    """Collect the leaves of a YAML document, each with its line."""
    lines = getattr(getattr(node, "lc", None), "data", None) or {}
    for key, value in node.items():
        name = f"{prefix}{key}"
        if not prefix and key in ("defaults", "hydra"):
            continue
        if isinstance(value, Mapping) and value:
            _leaves(value, f"{name}.", place, out)
            continue
        where = place(lines[key][0] + 1) if key in lines else ""
        plain = yamltext.plain(value, name)
        out[name] = (Unknown("???", f"{where}: ??? in the file") if plain == yamltext.OPEN else plain), where
