"""Check of the JSON Schemas that tasks bring, before anything is sampled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.bounded import Bounded
from gxpo.environments.rewards.metrics.schemas import is_schema
from gxpo.parts.protocols import Task, TaskSource

ALL = 1 << 30  # more held-out tasks than a list has


def tasks_of(source: TaskSource) -> list[Task]:
    """All tasks of a source that has a list of them; one of a source that makes them."""
    training = getattr(source, "training", None)
    return source.held_out(1) if training is None else [*training, *source.held_out(ALL)]


def check_schemas(schemas: Iterable[tuple[str, Any]], limits: Mapping[str, Any]) -> None:
    """ConfigError for the first of (where it stands, schema) that is no JSON Schema, refers to something that it does
    not hold, or takes longer than the limit to be checked. `limits`: of `Bounded`."""
    distinct: dict[str, tuple[str, Any]] = {}
    for where, schema in schemas:
        try:
            text = json.dumps(schema, sort_keys=True, default=repr)
        except (RecursionError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: no JSON Schema: {type(error).__name__}") from error
        distinct.setdefault(text, (where, schema))
    checks = Bounded(is_schema, "JSON Schema", rehearsal=({},), **limits)
    try:
        replies = checks.run([(schema,) for _, schema in distinct.values()])
    finally:
        checks.close()
    for (where, _), (status, message) in zip(distinct.values(), replies, strict=True):
        if status != "ok":
            what = message if status == "raised" else f"its check {message}"
            raise ConfigError(f"{where}: {what.removeprefix('ConfigError: ').rpartition(' (schemas.py ')[0] or what}")
