"""Server of a pool: its load, and the model that all servers have in common."""

import asyncio

from tests.sampling.engines.letters import LETTERS

from gxpo.base.remote import Line
from gxpo.sampling.engines.replica import common_model, replicas, root_of


def servers(n):
    """Replicas of addresses that are never called."""
    make = lambda url: Line(url, setting="sampling.servers", asker="test", key_from=None, timeout=1.0, retries=0)  # noqa: E731
    return replicas([f"http://{letter}:1/v1" for letter in LETTERS[:n]], make)


def test_addresses_are_numbered_and_have_a_root():
    a, b = servers(2)
    assert (a.number, b.number) == (0, 1) and (b.url, b.root.url) == ("http://b:1/v1", "http://b:1")
    assert root_of("http://b:1") == root_of("http://b:1/v1/") == "http://b:1"


def test_a_replica_is_drained_when_its_last_request_ends():
    (replica,) = servers(1)
    replica.begin(100)
    replica.begin(20)
    assert (replica.requests, replica.tokens) == (2, 120)

    async def drain():
        waiting = asyncio.ensure_future(replica.wait_until_idle())
        replica.end(100)
        await asyncio.sleep(0)
        assert not waiting.done()
        replica.end(20)
        await asyncio.wait_for(waiting, 5.0)
        await replica.wait_until_idle()  # idle already

    asyncio.run(drain())
    assert (replica.requests, replica.tokens) == (0, 0)


def test_the_one_model_of_all_servers_is_found():
    a, b = servers(2)
    assert common_model(None, {a: {"m": 128}, b: {"m": None}}) == ("m", "")


def test_a_named_model_may_be_on_one_server_only():
    a, b = servers(2)
    assert common_model("m", {a: {"other": None}, b: {"m": None}}) == ("m", "")
    name, problem = common_model("m", {a: {"x": None}, b: {"y": None}})
    assert name is None and problem.startswith(
        "http://a:1/v1 has no model 'm' (x): name one in sampling.engine_options"
    )


def test_several_or_different_models_have_to_be_named():
    a, b = servers(2)
    assert common_model(None, {a: {"x": None, "y": None}})[1].startswith("http://a:1/v1 has several models (x, y)")
    assert common_model(None, {a: {"x": None}, b: {"y": None}})[1].startswith("http://a:1/v1 has another model (x, y)")
