"""A run's configuration: YAML 1.2 and `--set`, every key with where it came from.

Order: defaults < methods from left to right < compat < YAML < --set. Nested mappings and dotted keys mean the same.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from gxpo.compose import method
from gxpo.errors import ConfigError, did_you_mean
from gxpo.keys import STAGES, Stated, show
from gxpo.pipeline import Method
from gxpo.settings import RUN_KEYS, RunSettings

_LEAF_MAPPINGS = (  # keys whose value is itself a mapping
    "tasks.options", "chat.kwargs", "scoring.options", "credit.weights", "versions", "reward",
)  # fmt: skip
_OTHER = ("method", "compat", "versions")
_RECORDED = ("torch", "transformers", "numpy", "gxpo")


@dataclass(frozen=True)
class Resolved:
    """Settings, method, and every key's value and origin."""

    settings: RunSettings
    method: Method
    keys: dict[str, Stated]

    def to_yaml(self) -> str:
        """A file that resolves to the same run; the origin of each key stands beside it."""
        document = CommentedMap()
        for key, stated in self.keys.items():
            value = stated.value
            document[key] = value if isinstance(value, (int, float, str, list, dict)) else show(value)
            if value is None:
                document[key] = None
            document.yaml_add_eol_comment(stated.origin, key)
        document["versions"] = versions()
        text = StringIO()
        _yaml().dump(document, text)
        return text.getvalue()


def versions() -> dict[str, str]:
    """Versions of what determines a run's numbers."""
    found = {"python": platform.python_version()}
    for name in _RECORDED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.width = 4096
    return yaml


def _plain(value: Any) -> Any:
    """Without the loader's own types."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def read(path: str | Path) -> dict[str, Stated]:
    """The leaf keys of a YAML file, each with its line."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        document = _yaml().load(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{path}{line}: not YAML: {problem}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file") from None
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path}: a configuration is a mapping of keys to values")
    out: dict[str, Stated] = {}
    _flatten(document, "", str(path), out)
    return out


def _flatten(node: Any, prefix: str, source: str, out: dict[str, Stated]) -> None:
    for key, value in node.items():
        name = f"{prefix}{key}"
        lines = getattr(node, "lc", None)
        origin = f"{source}:{lines.key(key)[0] + 1}" if lines is not None and lines.data else source
        leaf = name in _LEAF_MAPPINGS and not (
            name == "reward" and isinstance(value, Mapping) and set(value) == {"add"}
        )
        if isinstance(value, Mapping) and not leaf:
            _flatten(value, name + ".", source, out)
            continue
        if name in out:
            raise ConfigError(f"{origin}: {name} is set twice")
        out[name] = Stated(_plain(value), origin)


def parse_set(items: Sequence[str]) -> dict[str, Stated]:
    """`--set key=value` arguments; values are YAML."""
    out: dict[str, Stated] = {}
    for item in items:
        key, sign, text = item.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"--set {item}: write --set KEY=VALUE")
        try:
            value = _plain(_yaml().load(text)) if text.strip() else ""
        except YAMLError:
            value = text
        out[key.strip()] = Stated(value, "--set")
    return out


def resolve(given: Mapping[str, Stated], *, composed: Method | None = None) -> Resolved:
    """Settings and method of a run. `composed`: a method made in Python, instead of the key `method`."""
    spec, compat = given.get("method", Stated("grpo", "default")), given.get("compat", Stated(None, "default"))
    if not isinstance(spec.value, str):
        raise ConfigError(f"method={spec.value!r} ({spec.origin}) is not a method's name")
    own = {k: s for k, s in given.items() if k in RUN_KEYS}
    staged = {k: s for k, s in given.items() if k not in own and k not in _OTHER and k.split(".")[0] in STAGES}
    for key, stated in given.items():
        if key not in own and key not in staged and key not in _OTHER:
            hint = did_you_mean(key, [*RUN_KEYS, *_OTHER])
            raise ConfigError(f"{_at(stated)}unknown key {key!r}{hint}")
    if composed is None:
        composed = method(spec.value, staged, compat=compat.value)
    elif staged:
        raise ConfigError(f"{next(iter(staged))}: the method was composed in Python; give its keys to gxpo.method")
    merged = {k: Stated(v, "default") for k, v in RUN_KEYS.items()} | dict(composed.run_keys) | own
    settings = _validate(merged)
    keys = {"method": Stated(composed.name, spec.origin), **merged, **composed.keys}
    if compat.value is not None:
        keys["compat"] = compat
    return Resolved(settings, composed, keys)


def _at(stated: Stated) -> str:
    return "" if stated.origin == "default" else f"{stated.origin}: "


def _validate(keys: Mapping[str, Stated]) -> RunSettings:
    nested: dict[str, Any] = {}
    for key, stated in keys.items():
        *sections, leaf = key.split(".")
        target = nested
        for section in sections:
            target = target.setdefault(section, {})
        value = stated.value
        if isinstance(RUN_KEYS.get(key), float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        target[leaf] = value
    try:
        return RunSettings.model_validate(nested)
    except ValidationError as error:
        first = error.errors()[0]
        parts = [str(p) for p in first["loc"]]
        key = next((k for n in range(len(parts), 0, -1) if (k := ".".join(parts[:n])) in keys), ".".join(parts))
        stated = keys.get(key)
        place = _at(stated) if stated else ""
        got = f" (got {show(stated.value)})" if stated else ""
        raise ConfigError(f"{place}{key}: {first['msg'].lower()}{got}") from None


def load(path: str | Path | None = None, sets: Sequence[str] = ()) -> Resolved:
    """Resolve a YAML file with `--set` arguments."""
    return resolve((read(path) if path is not None else {}) | parse_set(sets))
