"""A training whose optimiser moves nothing of the model ends before the first rollouts, with the reason."""

import copy
import types
import warnings

import pytest
import torch
from torch.nn import Linear, Sequential

from gxpo.adapters.trl_parameters import ParameterCheck
from gxpo.base.errors import ConfigError


class Adapted(Sequential):
    """Names as peft has them: a frozen base and an adapter "default"."""

    def __init__(self, **free):
        super().__init__(Linear(2, 2))
        self.lora_A = torch.nn.ModuleDict({"default": Linear(2, 2, bias=False), "ref": Linear(2, 2, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": Linear(2, 2, bias=False)})
        self.peft_config, self.active_adapters = {"default": None}, ["default"]
        for name, p in self.named_parameters():
            p.requires_grad_(any(part in name for part in free.get("names", ())))


def check(model, optimiser=None, **about):
    sgd_of_model = torch.optim.SGD([p for p in model.parameters() if p.requires_grad] or [{"params": []}], 0.1)
    trainer = types.SimpleNamespace(model=model, optimizer=sgd_of_model if optimiser is None else optimiser, **about)
    return ParameterCheck(trainer)


def began(check):
    """What is said when the training begins."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check.on_train_begin(None, None, None)
    return [str(w.message) for w in caught]


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1)


def frozen(model):
    for p in model.parameters():
        p.requires_grad_(False)
    return model


def test_an_optimiser_that_moves_nothing_is_refused():
    plain, adapted = Sequential(Linear(2, 2), Linear(2, 1)), Adapted(names=("default",))
    sgd_of_copy = sgd(plain_copy := copy.deepcopy(plain))
    empty = torch.optim.SGD([{"params": []}], 0.1)
    base_alone = torch.optim.SGD(adapted[0].parameters(), 0.1)
    cases = [
        (frozen(copy.deepcopy(plain)), None, r"moves 0 of the model's 4 parameters: all have requires_grad=False; set"),
        (Adapted(), None, r"0 of the model's 5 parameters: all have .*as is_trainable=True of PeftModel"),
        (plain, sgd(copy.deepcopy(plain)), r"0 of the model's 4 parameters: it holds those of another model; make it"),
        (frozen(plain_copy), sgd_of_copy, r"all have requires_grad=False"),
        (plain, empty, r"all had requires_grad=False when it was made"),
        (adapted, base_alone, r"those that it holds have requires_grad=False; make it of the 2 that have True"),
    ]
    for model, optimiser, says in cases:
        with pytest.raises(ConfigError, match=says) as refused:
            began(check(model, optimiser))
        assert "\n" not in str(refused.value)


def test_parameters_left_out_are_a_warning_of_one_line():
    plain = Sequential(Linear(2, 2), Linear(2, 1))
    assert began(check(plain)) == [] and began(check(Adapted(names=("default",)))) == []
    adapted = Adapted(names=("default",))
    assert began(check(adapted, sgd(adapted))) == []  # frozen parameters in its groups change nothing
    assert began(check(plain, torch.optim.SGD(plain[1].parameters(), 0.1))) == [
        "the optimiser moves 2 of the 4 parameters with requires_grad=True; without it stay 0.weight, 0.bias"
    ]
    other = torch.nn.Parameter(torch.zeros(1))
    assert began(check(plain, torch.optim.SGD([*plain.parameters(), other], 0.1))) == [
        "1 of the optimiser's 5 parameters are not the model's, and get no gradient"
    ]
    assert began(check(Adapted(names=("lora_B.default",)))) == [
        "1 of the 2 parameters of the adapter do not move: lora_A.default.weight"
    ]


def test_an_adapter_thawed_after_the_optimiser_is_refused():
    """As where TRL switches to the reference's adapter and back: gradients flow, and nothing holds the parameters."""
    model = Adapted(names=("ref",))
    watching = check(model)
    model.lora_A["default"].weight.requires_grad_(True)
    model.lora_A["default"].weight.grad = torch.ones(2, 2)
    with pytest.raises(ConfigError, match=r"moves nothing: 1 parameters have a gradient \(lora_A.default.weight\)"):
        watching.on_pre_optimizer_step(None, None, None)
    model.lora_A["ref"].weight.grad = torch.ones(2, 2)  # something moves: what does not is said once
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            watching.on_pre_optimizer_step(None, None, None)
    assert [str(w.message) for w in caught] == [
        "the optimiser moves 1 of the 2 parameters with requires_grad=True; without it stay lora_A.default.weight"
    ]
    with pytest.raises(ConfigError, match="all have requires_grad=False"):
        check(frozen(Sequential(Linear(2, 2)))).on_pre_optimizer_step(None, None, None)


def test_tensors_that_stand_in_for_parameters_are_not_compared():
    model = Sequential(Linear(2, 2))
    others = sgd(Sequential(Linear(2, 2)))
    assert began(check(model, others, is_deepspeed_enabled=True)) == []
    assert began(check(model, others, is_fsdp_enabled=True)) == []
    lomo = type("AdaLomo", (), {"param_groups": []})()
    assert began(check(model, types.SimpleNamespace(optimizer=lomo))) == []
    with pytest.raises(ConfigError, match="all have requires_grad=False"):
        began(check(frozen(Sequential(Linear(2, 2))), others, is_fsdp_enabled=True))
    wrapped = types.SimpleNamespace(optimizer=sgd(model))  # as accelerate wraps it
    assert began(check(model, wrapped)) == []
