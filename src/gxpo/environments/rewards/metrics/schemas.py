"""JSON Schemas: check of a task's schema, and validation that retrieves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from gxpo.base.errors import ConfigError, need
from gxpo.base.usercode import OverLimit, one_line

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
PUBLISHED = ("http://json-schema.org/", "https://json-schema.org/")  # the drafts' own, which come with jsonschema
LATEST = ("http://json-schema.org/schema", "https://json-schema.org/schema")  # the current draft, whichever it is
TRIALS: tuple[Any, ...] = (None, True, 0, "", [], {}, [{}], {"a": {}})  # values that reach a reference to itself


def check_schema(schema: Any) -> None:
    """Check a JSON Schema: ConfigError unless its references all lead into itself or to published drafts.

    Nothing is retrieved: a reference to another document, by http, file or any other scheme, can't be resolved. Its
    regular expressions must compile, and no reference may lead back to itself without going deeper into the value.
    """
    library = need("jsonschema", "rewards")
    try:
        _kind_of(schema).check_schema(schema)
        validator = _validator(schema)
        _resolve_references(validator, schema)
        # Recursive references that go nowhere deeper show only when values are validated.
        for value in TRIALS:
            validator.is_valid(value)
    except (library.SchemaError, RecursionError, ValueError, TypeError, KeyError, AttributeError) as error:
        message = getattr(error, "message", None) or str(error)
        if isinstance(error, RecursionError):
            message = "it is nested too deeply, or a reference leads back to itself"
        raise ConfigError(f"no JSON Schema: {message}") from error


def is_schema(schema: Any) -> bool:
    """Return True for a valid schema, an object or JSON of one; ConfigError where `check_schema` refuses it."""
    check_schema(read(schema))
    return True


def read(schema: Any) -> Any:
    """Read a schema of a task: an object, or JSON of one, as columns of tables hold it."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"no JSON Schema: a text that is not JSON ({error})") from error


def fits(schema: Mapping[str, Any]) -> Callable[[Any, Any], bool]:
    """Build a function of (value, schema of a property) that is True where the value fits.

    ConfigError for an invalid schema; OverLimit where value or schema are nested too deeply.
    """
    validator = _check(json.dumps(schema))

    def fits_part(value: Any, part: Any) -> bool:
        try:
            return next(validator.descend(value, part), None) is None
        except RecursionError:
            raise OverLimit("a value or a schema that is nested too deeply") from None

    return fits_part


def problem_of(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Explain in a line why a value does not fit a schema; None where it fits. ConfigError for an invalid schema."""
    validator = _check(json.dumps(schema))
    try:
        error = need("jsonschema", "rewards").exceptions.best_match(validator.iter_errors(value))
    except RecursionError:
        return "it is nested too deeply"
    if error is None:
        return None
    place = ".".join(map(str, error.absolute_path))
    return one_line(f"{place}: {error.message}" if place else error.message)


@lru_cache(256)
def _check(text: str) -> Any:
    """Check a schema's JSON and build its validator."""
    schema = json.loads(text)
    check_schema(schema)
    return _validator(schema)


def _validator(schema: Any) -> Any:
    """Build a validator with a registry of the published drafts alone: without one jsonschema asks the network."""
    return _kind_of(schema)(schema, registry=need("referencing", "rewards").Registry())


def _kind_of(schema: Any) -> Any:
    """Validator class of the draft that `$schema` names, by default 2020-12; `https` is taken for `http`."""
    library = need("jsonschema", "rewards")
    if not isinstance(schema, (Mapping, bool)):
        raise ConfigError(f"no JSON Schema: an object or true or false, not {type(schema).__name__}")
    dialect = schema.get("$schema") if isinstance(schema, Mapping) else None
    if dialect is None:
        return library.Draft202012Validator
    if isinstance(dialect, str):
        if dialect.rstrip("#") in LATEST:
            return library.Draft202012Validator
        # Drafts are named by http, and many write https.
        for name in (dialect, dialect.replace("https:", "http:", 1)):
            kind = library.validators.validator_for({"$schema": name}, default=None)
            if kind is not None:
                return kind
    raise ConfigError(f"no JSON Schema: $schema {dialect!r} is none of the drafts 3, 4, 6, 7, 2019-09 and 2020-12")


def _resolve_references(validator: Any, schema: Any) -> None:
    """Follow all references of a schema, also in their targets; ConfigError for one that leads nowhere."""
    referencing, drafts = need("referencing", "rewards"), need("referencing.jsonschema", "rewards")
    specification = drafts.specification_with(validator.META_SCHEMA["$schema"], default=drafts.DRAFT202012)
    root = specification.create_resource(schema)
    registry = need("jsonschema_specifications", "rewards").REGISTRY
    queue, visited = [(registry.resolver_with_root(root), root)], set[int]()
    # References may lead in circles, so each part of the schema is visited once; published drafts are sound.
    while queue:
        resolver, resource = queue.pop()
        contents = resource.contents
        if not isinstance(contents, Mapping) or id(contents) in visited:
            continue
        visited.add(id(contents))
        for keyword in REFERENCES:
            reference = contents.get(keyword)
            if not isinstance(reference, str):
                continue
            try:
                target = resolver.lookup(reference)
            except referencing.exceptions.Unresolvable as error:
                raise ConfigError(
                    f"no JSON Schema of its own: {keyword} {reference!r} leads to nothing in it, and nothing is "
                    "retrieved: put what it means into $defs"
                ) from error
            if not reference.startswith(PUBLISHED):
                queue.append((target.resolver, specification.create_resource(target.contents)))
        for part in resource.subresources():
            queue.append((resolver.in_subresource(part), part))
