"""Refusals of asynchronous settings that the run or its method can not train with."""

from __future__ import annotations

from typing import Any

import pytest

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.training.preflight import check_settings

REFUSED = [
    ({"rollout": "dynamic_sampling"}, "rollout dynamic_sampling looks across groups"),
    ({"method": "ar3po"}, "looks across groups"),
    ({"method": "v0"}, "looks across groups"),
    ({"method": "gpg"}, "gpg needs on-policy rollouts.*weight.mismatch=truncated"),
    ({"async.partial": True}, "set async.order=finish"),
    ({"async.max_staleness": 0, "async.order": "finish"}, "set async.max_staleness=1 or more"),
    ({"cluster.backend": "fsdp"}, "set cluster.backend=local"),
    ({"model": "flow", "method": "flow_grpo", "task": "points"}, "model flow is sampled in the step that trains it"),
]


@pytest.mark.parametrize(("keys", "why"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_settings_that_can_not_train_are_refused_in_a_line(keys: dict[str, Any], why: str) -> None:
    settings = {"async.max_staleness": 1} | keys
    resolved = gxpo.config.resolve({k: gxpo.config.SettingValue(v, "test") for k, v in settings.items()})
    with pytest.raises(ConfigError, match=why) as refused:
        check_settings(resolved.settings, resolved.method)
    assert "\n" not in str(refused.value)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = gxpo.config.load(None, ["async.max_staleness=1"])
    monkeypatch.setattr("gxpo.base.runtime.world", lambda: 2)
    with pytest.raises(ConfigError, match="works in one process"):
        check_settings(resolved.settings, resolved.method)
