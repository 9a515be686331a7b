"""JSON Schemas of tasks: nothing is retrieved, wrong ones are refused before a run, costly ones cost one rollout."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.environments.rewards.scored_tasks import Source
from tests.environments.rewards.test_majority import grown
from tests.environments.rewards.test_match import scored

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.metrics.schemas import check_schema, is_schema
from gxpo.environments.rewards.metrics.structure import json_schema
from gxpo.parts.protocols import Task

DRAFTS = {
    "3": "http://json-schema.org/draft-03/schema#",
    "4": "http://json-schema.org/draft-04/schema#",
    "6": "http://json-schema.org/draft-06/schema#",
    "7": "http://json-schema.org/draft-07/schema#",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
}


@pytest.fixture(scope="module")
def server():
    """A loopback server that answers with a schema that fits everything, and the paths that it was asked for."""
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    served = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}", paths
    served.shutdown()
    served.server_close()


class Held(Source):
    """Tasks that are all held out."""

    def __init__(self, tasks):
        super().__init__(None, None)
        self.tasks = tasks

    def held_out(self, n):
        return self.tasks[:n]


def foreign(base, path):
    """Schemas that refer to a document elsewhere, by every keyword, base and draft."""
    references = [f"{base}/a.json", f"{base}/a.json#/$defs/x", f"file://{path}", f"{path}", "other.json",
                  "//127.0.0.1/x", "urn:example:thing", "../up.json", "ftp://127.0.0.1/x",
                  "data:application/json,{}"]  # fmt: skip
    for reference in references:
        yield {"properties": {"a": {"$ref": reference}}}
        yield {"$id": f"{base}/whole/", "properties": {"a": {"$ref": reference}}}
        yield {"properties": {"a": {"$dynamicRef": reference}}}
        yield {"$schema": DRAFTS["2019-09"], "properties": {"a": {"$recursiveRef": reference}}}
    for draft in DRAFTS.values():
        yield {"$schema": draft, "properties": {"a": {"$ref": f"{base}/draft"}}}
        yield {"$schema": draft, "id": f"{base}/", "$id": f"{base}/", "properties": {"a": {"$ref": "draft"}}}
    for keyword in ("items", "not", "if", "additionalProperties", "contains", "propertyNames", "unevaluatedProperties"):
        yield {"properties": {"a": {keyword: {"$ref": f"{base}/{keyword}"}}}}
    for keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
        yield {"properties": {"a": {keyword: [{"$ref": f"{base}/{keyword}"}]}}}
    yield {"properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": {"$ref": f"{base}/behind"}}}
    yield {"properties": {"a": {"$id": f"{base}/nested/", "properties": {"b": {"$ref": "inner"}}}}}
    yield {"$schema": f"{base}/dialect", "properties": {"a": {}}}
    yield {"properties": {"a": {"$schema": f"{base}/dialect", "$ref": f"{base}/a"}}}


def test_nothing_is_retrieved(server, tmp_path):
    base, paths = server
    (tmp_path / "local.json").write_text("{}")
    schemas = list(foreign(base, tmp_path / "local.json"))
    accepted = []
    for schema in schemas:
        for use in (check_schema, lambda schema: json_schema('{"a": {"b": 1}}', None, schema=schema)):
            try:
                use(schema)
                accepted.append(schema)
            except ConfigError as error:
                assert "\n" not in str(error)
    assert not accepted and len(schemas) > 60
    assert paths == []


@pytest.mark.slow
def test_a_schema_that_refers_elsewhere_is_refused_with_its_task(server):
    base, paths = server
    good, bad = {"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"$ref": f"{base}/x"}}}
    tasks = [Task("fine", "?", None, {"schema": good}), Task("foreign", "?", None, {"schema": bad})]
    source = Held(tasks)
    source.training = tasks
    options = {"match": {"metric": "json_schema", "schema": "info.schema", "pattern": None}}
    message = r"task 'foreign': info.schema: no JSON Schema of its own: \$ref 'http.*' leads to nothing in it, and"
    with pytest.raises(ConfigError, match=message):
        RewardSet.make("match", source=source, options=options)
    routed = {"match": {"route_by": "info.kind", "route": {"json": options["match"], "text": {"metric": "exact"}}}}
    for task in tasks:
        task.info["kind"] = "json"
    with pytest.raises(ConfigError, match=message):
        RewardSet.make("match", source=source, options=routed)
    options["match"]["schema"] = bad
    with pytest.raises(ConfigError, match=r"scoring.options.match: schema: no JSON Schema of its own"):
        RewardSet.make("match", source=Source(None, None), options=options)
    # one that comes later costs its own rollouts: those of a source that makes tasks are met at run time
    forest, rewards = scored(
        {"a": ['{"a": 1}', '{"a": "x"}'], "b": ['{"a": 1}']},
        {"a": (None, {"schema": good}), "b": (None, {"schema": bad})},
        {"match": {"metric": "json_schema", "schema": "info.schema", "pattern": None}},
    )
    assert forest.outcome[:2].tolist() == [1.0, pytest.approx(0.5 / 0.7)] and forest.outcome[2].isnan()
    assert rewards.counts["raised"] == 1 and "leads to nothing in it" in rewards.messages["raised"]
    assert paths == []


def test_schema_references_resolve_within_and_to_drafts():
    tree = {"$defs": {"t": {"type": "object", "properties": {"next": {"$ref": "#/$defs/t"}, "n": {"type": "integer"}}}}}
    for schema in (
        {"properties": {"a": {"$ref": "#/$defs/t"}}, **tree},
        {"$id": "https://example.org/x.json", "properties": {"a": {"$ref": "x.json#/$defs/t"}}, **tree},
        {"properties": {"a": {"$ref": "urn:of:mine"}},
         "$defs": {"u": {"$id": "urn:of:mine", "type": "object", "properties": {"next": {"$ref": "#"}}}}},
        {"properties": {"a": {"$ref": "#node"}}, "$defs": {"t": {"$anchor": "node", "type": "object"}}},
        json.dumps({"properties": {"a": {"$ref": "#/$defs/t"}}, **tree}),
    ):  # fmt: skip
        assert json_schema('{"a": {"next": {"n": 1}}}', None, schema=schema) == 1.0, schema
        assert json_schema('{"a": 3}', None, schema=schema) == pytest.approx(0.5 / 0.7), schema
    check_schema({"properties": {"a": {"$ref": DRAFTS["2020-12"]}}})
    check_schema({"properties": {"a": {"const": {"$ref": "http://example.org/a value, no reference"}}}})
    check_schema({"$schema": "https://json-schema.org/draft-07/schema", "properties": {"a": {"type": "string"}}})


def test_what_is_no_schema_is_one_line():
    loop = {"properties": {"a": {"$ref": "#"}}, "allOf": [{"$ref": "#"}]}
    for schema in (3, [], "{", "3", {"type": "objekt"}, {"pattern": "("}, {"$ref": "#"}, loop, {"$schema": []},
                   {"$schema": "http://example.org/mine"}, {"$id": 5}, {"patternProperties": {"(": {}}},
                   {"$ref": "#/nowhere"}, {"required": "a"}):  # fmt: skip
        with pytest.raises(ConfigError, match="no JSON Schema") as caught:
            is_schema(schema)
        assert "\n" not in str(caught.value)
    options = {"match": {"metric": "json_schema", "schema": "info.schema", "pattern": None}}
    with pytest.raises(ConfigError, match=r"task 't': info.schema: no JSON Schema: 'objekt' is not valid under any"):
        RewardSet.make("match", source=Held([Task("t", "?", None, {"schema": {"type": "objekt"}})]), options=options)


@pytest.mark.slow
def test_a_costly_schema_counts_as_wrong_for_its_own_rollout():
    blow_up = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 4} for i in range(30)} | {"d30": {}}
    schemas = {
        "pattern": ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 60 + "!"}),
        "names": ({"properties": {"a": {"patternProperties": {"^(a|a)+$": {}}}}}, {"a": {"a" * 60 + "!": 1}}),
        "unique": ({"properties": {"a": {"uniqueItems": True}}}, {"a": [{"k": i} for i in range(20_000)]}),
        "any": ({"properties": {"a": {"type": "object", "$ref": "#/$defs/d0"}}, "$defs": blow_up}, {"a": {}}),
        "fine": ({"properties": {"a": {"pattern": "^a+$"}}}, {"a": "aaa"}),
    }
    groups = {name: [json.dumps(value)] for name, (_, value) in schemas.items()}
    tasks = {name: (None, {"schema": schema}) for name, (schema, _) in schemas.items()}
    options = {"match": {"metric": "json_schema", "schema": "info.schema", "pattern": None}}
    forest, texts = grown(groups)
    task_list = [Task(name, "?", *tasks[name]) for name in forest.task]
    with RewardSet.make("match", source=Source(None, None), options=options, timeout=0.3) as rewards:
        actual = rewards.score(forest, texts, task_list).outcome.tolist()
    assert dict(zip(schemas, actual, strict=True)) == {"pattern": 0, "names": 0, "unique": 0, "any": 0, "fine": 1}
    assert rewards.counts["limit"] == 4 and "computed for longer than 0.3 s" in rewards.messages["limit"]


@pytest.mark.slow
def test_values_nested_too_deep_for_a_reference_count_as_wrong():
    schema = {"properties": {"a": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}}
    deep = '{"a": ' + "[" * 400 + "]" * 400 + "}"
    options = {"match": {"metric": "json_schema", "schema": schema, "pattern": None}}
    forest, rewards = scored({"g": [deep, '{"a": [[]]}', '{"a": ' + "[" * 10**6]}, {"g": (None, {})}, options)
    assert forest.outcome.tolist() == [0.0, 1.0, 0.0]
    assert rewards.counts["limit"] == 1 and rewards.counts["raised"] == 0
