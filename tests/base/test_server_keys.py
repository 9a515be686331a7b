"""Which key goes where: a stranger's configuration gets none that its reader did not mean for that host."""

import pytest

from gxpo.base.errors import ConfigError
from gxpo.base.server_keys import ALLOW, allow, key_for

OPENAI = ("https", "api.openai.com", None)
ELSEWHERE = ("https", "collect.example", None)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv(ALLOW, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret")
    monkeypatch.setenv("MY_KEY", "mine\n")


@pytest.mark.parametrize(
    ("where", "key_from", "allowed", "key"),
    [
        (OPENAI, None, "", "sk-openai"),
        (OPENAI, "OPENAI_API_KEY", "", "sk-openai"),
        (("https", "api.openai.com", 443), None, "", "sk-openai"),
        (("http", "api.openai.com", None), None, "", None),
        (("https", "api.openai.com", 8443), None, "", None),
        (("https", "api.openai.com.collect.example", None), None, "", None),
        (("https", "api.openai.com.", None), None, "", None),
        (ELSEWHERE, None, "", None),
        (("http", "127.0.0.1", 8000), None, "", None),
        (ELSEWHERE, "NOT_SET", "", None),
        (ELSEWHERE, "MY_KEY", "MY_KEY", "mine"),
        (ELSEWHERE, "MY_KEY", "OTHER, MY_KEY@Collect.Example", "mine"),
        (("http", "127.0.0.1", 8000), "MY_KEY", "MY_KEY@127.0.0.1", "mine"),
        (ELSEWHERE, "OPENAI_API_KEY", "OPENAI_API_KEY@collect.example", "sk-openai"),
    ],
)
def test_a_key_goes_where_it_belongs(monkeypatch, where, key_from, allowed, key):
    monkeypatch.setenv(ALLOW, allowed)
    assert key_for(*where, key_from, "judge") == key


@pytest.mark.parametrize(
    ("where", "key_from", "allowed"),
    [
        (ELSEWHERE, "OPENAI_API_KEY", ""),
        (ELSEWHERE, "AWS_SECRET_ACCESS_KEY", ""),
        (OPENAI, "AWS_SECRET_ACCESS_KEY", ""),
        (("http", "api.openai.com", None), "OPENAI_API_KEY", ""),
        (("http", "localhost", 8000), "MY_KEY", "MY_KEY@127.0.0.1"),
        (ELSEWHERE, "MY_KEY", "MY_KEY_2 my_key MY_KEY@example MY_KEY@collect.example.org"),
    ],
)
def test_and_nowhere_else(monkeypatch, where, key_from, allowed):
    monkeypatch.setenv(ALLOW, allowed)
    with pytest.raises(ConfigError, match=f"{key_from} to .*--allow-key {key_from}@{where[1]}") as caught:
        key_for(*where, key_from, "judge")
    assert not any(secret in str(caught.value) for secret in ("sk-openai", "aws-secret", "mine"))


@pytest.mark.parametrize(
    ("key_from", "value", "words"),
    [
        ("sk-proj-0123", None, "never the key itself"),
        ("MY_KEY", "line\nbreak", "the value of MY_KEY"),
        ("MY_KEY", "schlüssel", "the value of MY_KEY"),
    ],
)
def test_bad_key_variable_is_refused_and_its_value_not_shown(monkeypatch, key_from, value, words):
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(ConfigError, match=words) as caught:
        key_for(*ELSEWHERE, key_from, "judge")
    assert "0123" not in str(caught.value) and (value is None or value not in str(caught.value))


def test_the_command_line_adds_to_what_the_environment_allows(monkeypatch):
    monkeypatch.setenv(ALLOW, "MY_KEY@collect.example")
    allow(["AWS_SECRET_ACCESS_KEY@s3.example"])
    assert key_for(*ELSEWHERE, "MY_KEY", "judge") == "mine"
    assert key_for("https", "s3.example", None, "AWS_SECRET_ACCESS_KEY", "judge") == "aws-secret"
    for wrong in ("sk-proj-0123", "A B", "", "KEY@", "@host"):
        with pytest.raises(ConfigError, match="--allow-key takes the name of an environment variable"):
            allow([wrong])
