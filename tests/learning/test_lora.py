"""Names and checks of LoRA adapters, without a model."""

import pytest

from gxpo.base.errors import ConfigError
from gxpo.learning.lora import adapter_of, parameters_of_policy, trained_policies


def test_the_only_policy_has_the_default_adapter():
    assert adapter_of("main") == "default"
    assert adapter_of("solver") == "policy_solver"


def test_trained_policies_keep_their_order():
    assert trained_policies({"solver": "trained", "judge": "frozen", "critic": "trained"}) == ("solver", "critic")


@pytest.mark.parametrize("policies", [{}, {"judge": "frozen"}, {"solver": "trained", "judge": "asleep"}])
def test_policies_without_a_trained_one_or_of_another_kind_fail(policies):
    with pytest.raises(ConfigError, match="at least one is trained"):
        trained_policies(policies)


def test_parameters_of_one_policy_have_the_names_of_a_single_run():
    parameters = {"q.lora_A.policy_solver.weight": 1, "q.lora_A.policy_critic.weight": 2, "value_head.weight": 3}
    own_parameters = parameters_of_policy(
        "solver", parameters, {"solver": "trained", "critic": "trained", "judge": "frozen"}
    )
    assert own_parameters == {"q.lora_A.default.weight": 1, "value_head.weight": 3}
