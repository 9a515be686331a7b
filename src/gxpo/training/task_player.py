"""Tasks whose episodes another library plays: the rollout that lets it call the policy follows from the task."""

from __future__ import annotations

from gxpo.base.errors import ConfigError
from gxpo.environments import verifiers
from gxpo.methods.compose import method
from gxpo.methods.method import Method
from gxpo.parts.definition import SettingValue, show


def with_player(task: str, part_keys: dict[str, SettingValue], method_or_name: str | Method) -> dict[str, SettingValue]:
    """Add the rollout of a task that another library plays, which lets it call the policy (`environments.verifiers`).

    task  name of the run's task; others than `verifiers:NAME` have no player, and the keys come back as they are
    """
    if not verifiers.names_tasks(task):
        return part_keys
    player = verifiers.KEYS["rollout"]
    player_entry = part_keys.get("rollout")
    advice = f"its episodes are played by verifiers, against rollout={player}"
    if player_entry is not None and player_entry.value != player:
        raise ConfigError(
            f"{player_entry.error_prefix}rollout={show(player_entry.value)}: the task is {task}, and {advice}"
        )
    if player_entry is None:
        # A method's own way of sampling would be replaced unseen.
        entry = method(method_or_name).keys["rollout"]
        if entry.value == player:
            return part_keys
        if entry.origin != "default":
            raise ConfigError(
                f"{entry.origin} samples by rollout={show(entry.value)}, and the task is {task}: {advice}"
            )
    return {k: SettingValue(value, f"task {task}") for k, value in verifiers.KEYS.items()} | part_keys
