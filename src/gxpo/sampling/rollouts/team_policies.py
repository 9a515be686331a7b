"""Policies of a team's roles: shared or one each, trained, paused, frozen, or other checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.sampling.rollouts.graph import SHARED, Graph, Role


@dataclass(frozen=True)
class TeamPolicies:
    """Assignment of policies to the roles of a team.

    policy   "shared": one policy, SHARED, for all trained roles; "per_role": one for each, named as the role
    frozen_roles  roles that are not trained; each has a policy of its own name, the model that the run starts from
    paused_roles  roles that are not trained and keep the weights that their policy has
    models   roles that other checkpoints play: policies of their own names, which are not the learner's
    traitor_rate, traitor_prompt, traitor   see `Team`
    """

    graph: Graph
    policy: str
    frozen_roles: tuple[str, ...]
    paused_roles: tuple[str, ...] = ()
    traitor_rate: float = 0.0
    traitor_prompt: str = "{prompt}"
    traitor: str = "prompted"
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names_by_option = {"frozen_roles": self.frozen_roles, "paused_roles": self.paused_roles, "models": self.models}
        for option, names in names_by_option.items():
            for name in names:
                if name not in self.graph.names:
                    raise ConfigError(
                        f"rollout.{option}: the team has no role {name!r}{did_you_mean(name, self.graph.names)}; it "
                        f"has {', '.join(self.graph.names)}"
                    )
        if set(self.graph.names) <= set(self.untrained):
            options = " with ".join(f"rollout.{option}" for option, names in names_by_option.items() if names)
            raise ConfigError(f"{options} names every role of the team: leave out one, which is trained")
        weights = {"frozen_roles": "the model that the run starts from", "paused_roles": "what it has learned"}
        for one, other in (("frozen_roles", "paused_roles"), ("frozen_roles", "models"), ("paused_roles", "models")):
            if both := set(names_by_option[one]) & set(names_by_option[other]):
                source = weights.get(other, "another checkpoint")
                raise ConfigError(
                    f"rollout.{other}: {min(both)!r} is in rollout.{one}, too: {one} has {weights[one]}, {other} "
                    f"{source}"
                )

    @property
    def untrained(self) -> tuple[str, ...]:
        """Roles whose tokens are not trained."""
        return (*self.frozen_roles, *self.paused_roles, *self.models)

    def of(self, role: Role) -> str:
        """Return the name of a role's policy."""
        return SHARED if self.policy == "shared" and role.name not in (*self.frozen_roles, *self.models) else role.name

    @property
    def policies(self) -> dict[str, str]:
        """Policy name -> "trained" or "frozen", the trained ones first; those of the learner."""
        trained_by_policy = {
            self.of(role): "frozen" if role.name in self.frozen_roles else "trained"
            for role in self.graph.members
            if role.name not in self.models
        }
        if len(trained_by_policy) > 1:  # where each reads its own tokens, somebody has to read theirs: the bare model
            trained_by_policy |= dict.fromkeys(self.models, "frozen")
        return dict(sorted(trained_by_policy.items(), key=lambda item: item[1] != "trained"))
