"""API keys by server: a service's own variable goes to that service, any other only where the user allows it.

A configuration names the address and, in `key_from`, a variable; it may come from a stranger, so it decides neither.
"""

from __future__ import annotations

import os
import re

from gxpo.base.errors import ConfigError

ALLOW = "GXPO_ALLOW_KEY"  # what `--allow-key` adds to: NAME or NAME@HOST, with spaces or commas between
DOCUMENTED_KEYS = {  # host -> the variable that its documentation names; sent there over https alone
    "api.deepseek.com": "DEEPSEEK_API_KEY",
    "api.groq.com": "GROQ_API_KEY",
    "api.mistral.ai": "MISTRAL_API_KEY",
    "api.openai.com": "OPENAI_API_KEY",
    "api.together.xyz": "TOGETHER_API_KEY",
    "openrouter.ai": "OPENROUTER_API_KEY",
}


def key_for(scheme: str, host: str, port: int | None, key_from: str | None, asker: str) -> str | None:
    """API key for a server; None if there is none, or none that may be sent there.

    key_from  the variable that the configuration names; None: the service's own
    asker     setting that needs the key, as errors name it ("judge", "sampling.engine_options")

    Raises `ConfigError` where a variable that is set would go to a host for which it was not allowed.
    """
    if key_from is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key_from):
        raise ConfigError(f"{asker}: key_from is the name of an environment variable, never the key itself")
    name = key_from or DOCUMENTED_KEYS.get(host)
    key = os.environ.get(name, "").strip() if name else ""
    if not name or not key:
        return None
    # a key with a line break would add headers of its own
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{asker}: the value of {name} can't be a key: it has spaces or control characters inside")
    # a service's own key may go there, encrypted and on its port; anything else has to be allowed by the user
    if (DOCUMENTED_KEYS.get(host) == name and scheme == "https" and port in (None, 443)) or _is_allowed(name, host):
        return key
    if key_from is None:
        return None  # the service's own key, and no https
    raise ConfigError(
        f"{asker}: key_from would send {name} to {scheme}://{host}: if that is where it belongs, allow it with "
        f"--allow-key {name}@{host} (or {ALLOW}={name}@{host} in the environment)"
    )


def allow(names: list[str]) -> None:
    """Allow more keys to be sent, in this process and its children."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(@[^\s,@]+)?", name):
            raise ConfigError("--allow-key takes the name of an environment variable, as MY_KEY or MY_KEY@api.my.org")
    os.environ[ALLOW] = " ".join([*os.environ.get(ALLOW, "").split(), *names])


def _is_allowed(name: str, host: str) -> bool:
    for entry in os.environ.get(ALLOW, "").replace(",", " ").split():
        allowed_name, sign, allowed_host = entry.partition("@")
        if allowed_name == name and (not sign or allowed_host.lower() == host):
            return True
    return False
