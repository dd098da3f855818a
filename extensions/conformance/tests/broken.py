"""A correct optimizer, and for every check one that breaks what it asks for."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from cbs.optimizers.contract import CheckedOptimizer
from extensions.conformance import Subject, subject


class Good(CheckedOptimizer):
    """Momentum."""

    geometry = "l2"

    def __init__(self, params: ParamsT, lr: float = 0.1, *, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        if not 0.0 <= group["momentum"] < 1.0:
            raise ValueError(f"momentum must be in [0, 1), got {group['momentum']}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.update(param, param.grad, group)
        return loss

    def update(self, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if gradient.is_sparse:
            raise RuntimeError("Good takes dense gradients, got a sparse one")
        state = self.state[param]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["average"] = torch.zeros_like(param, dtype=self.state_dtype("average", param))
        lr = float(group["lr"])
        state["step"] = state["step"] + 1
        state["average"].mul_(group["momentum"]).add_(gradient)
        param.mul_(1 - lr * group["weight_decay"]).add_(state["average"], alpha=-lr)


class Adam(Good):
    """Adam with decoupled weight decay; what others break is a method of its own."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        CheckedOptimizer.__init__(self, params, locals())

    def check(self, group: Mapping[str, Any]) -> None:
        CheckedOptimizer.check(self, group)
        if len(group["betas"]) != 2 or not all(0.0 <= beta < 1.0 for beta in group["betas"]):
            raise ValueError(f"betas must be two numbers in [0, 1), got {group['betas']}")

    def update(self, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if gradient.is_sparse:
            raise RuntimeError("Adam takes dense gradients, got a sparse one")
        state, dtype = self.state[param], self.state_dtype("", param)
        if not state:
            state["step"] = torch.tensor(0.0)
            state["first"], state["second"] = (torch.zeros_like(param, dtype=dtype) for _ in range(2))
        state["step"] = state["step"] + 1
        for average, value, beta in zip(
            ("first", "second"), (gradient, gradient.to(dtype).square()), group["betas"], strict=True
        ):
            state[average].mul_(beta).add_(value, alpha=1 - beta)
        first, second = self.corrected(state, group["betas"])
        lr = float(group["lr"])
        param.mul_(1 - lr * group["weight_decay"]).add_(first / self.root(second, group["eps"]), alpha=-lr)

    def corrected(self, state: dict[str, Tensor], betas: tuple[float, float]) -> tuple[Tensor, Tensor]:
        first, second = (1 - beta ** float(state["step"]) for beta in betas)
        return state["first"] / first, state["second"] / second

    def root(self, second: Tensor, eps: float) -> Tensor:
        return second.sqrt() + eps


def adam(**methods: Any) -> type[Adam]:
    """Adam with other methods."""
    return type("Broken", (Adam,), methods)


def grown(self: Adam, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
    Adam.update(self, param, gradient, {**group, "weight_decay": -group["weight_decay"]})


plain = Good.update


def like(update: Callable[..., None] | None = None, **methods: Any) -> type[Good]:
    """Good with another update, or other methods."""
    return type("Broken", (Good,), methods | ({"update": update} if update else {}))


def before(change: Callable[[Good, Tensor, Tensor, dict[str, Any]], Any]) -> type[Good]:
    """Good that does something before every update of a parameter, and updates with the gradient that it returns."""

    def update(self: Good, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        changed = change(self, param, gradient, group)
        plain(self, param, gradient if changed is None else changed, group)

    return like(update)


def after(change: Callable[[Good, Tensor, dict[str, Any]], Any]) -> type[Good]:
    """Good that does something after every update of a parameter."""

    def update(self: Good, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        plain(self, param, gradient, group)
        change(self, param, group)

    return like(update)


def built(change: Callable[[Good], Any]) -> type[Good]:
    """Good that does something after its construction."""

    def __init__(self: Good, *args: Any, **options: Any) -> None:
        Good.__init__(self, *args, **options)
        change(self)

    return like(__init__=__init__)


def taking(change: Callable[[Any], Any]) -> type[Good]:
    """Good that changes the parameters that it is given."""
    return like(__init__=lambda self, params, **options: Good.__init__(self, change(params), **options))


def loading(change: Callable[[Good, dict[str, Any]], Any]) -> type[Good]:
    """Good that does something after every load."""

    def load_state_dict(self: Good, saved: dict[str, Any]) -> None:
        Good.load_state_dict(self, saved)
        change(self, saved)

    return like(load_state_dict=load_state_dict)


def stepping(step: Callable[..., Any]) -> type[Good]:
    """Good with another step."""
    return like(step=torch.no_grad()(step))


def own_momentum(self: Good, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
    """Averages that an attribute holds beside the state."""
    if param not in self.__dict__.setdefault("_averages", {}):
        plain(self, param, gradient, group)
        self._averages[param] = self.state[param]["average"]
        return
    param.sub_(self._averages[param].mul_(group["momentum"]).add_(gradient), alpha=group["lr"])


def by_number(self: Good, saved: dict[str, Any]) -> None:
    params = [param for group in self.param_groups for param in group["params"]]
    for number, state in saved["state"].items():
        self.state[params[number]] = state


def two_steps(self: Good, closure: Callable[[], Any] | None = None) -> Any:
    loss = Good.step.__wrapped__(self, closure)
    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1).step()
    return loss


def twice(self: Good, closure: Callable[[], Any] | None = None) -> Any:
    with torch.enable_grad():
        first = closure() if closure else None
    Good.step.__wrapped__(self, closure)
    return first


def moves_all(self: Good, closure: Callable[[], Any] | None = None) -> Any:
    for group in self.param_groups:
        for param in group["params"]:
            param.mul_(0.99)
    return Good.step.__wrapped__(self, closure)


def ignores_the_scale(self: Good, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:
    return Good.step.__wrapped__(self, closure)


def raw_memory(self: Good, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
    return gradient.as_strided(gradient.shape, torch.empty(gradient.shape).stride())


def poison_where(condition: Callable[..., bool]) -> type[Good]:
    def update(self: Good, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if condition(self, param, gradient):
            param.fill_(float("nan"))
        else:
            plain(self, param, gradient, group)

    return like(update)


def frozen_too(model: nn.Module, lr: float, **options: Any) -> Good:
    return Good(model.parameters(), lr=lr, **options)


def of_defaults(name: str) -> type[Good]:
    """Good that reads an option of its defaults, not of the group."""
    return like(lambda self, p, g, group: plain(self, p, g, {**group, name: self.defaults[name]}))


def noise(self: Good, param: Tensor, group: dict[str, Any]) -> None:
    generator = torch.Generator()
    generator.seed()
    param.add_(torch.rand(param.shape, generator=generator), alpha=1e-3)


BROKEN: dict[str, type[Good] | Subject] = {
    "check_is_a_torch_optimizer": built(lambda self: self.param_groups[0].pop("momentum")),
    "check_holds_trainable_parameters_once": Subject(name="Broken", build=frozen_too, lr_grid=(0.1,)),
    "check_frozen_parameters_stay": stepping(moves_all),
    "check_takes_what_torch_takes": taking(lambda ps: [p if isinstance(p, Tensor | dict) else p[1] for p in ps]),
    "check_refuses_no_parameters": taking(lambda params: list(params) or [nn.Parameter(torch.ones(1))]),
    "check_refuses_bad_values": like(check=lambda self, group: None),
    "check_refuses_values_that_are_not_finite": like(
        check=lambda self, group: Good.check(self, group) if group["lr"] < 0 or group["weight_decay"] < 0 else None
    ),
    "check_refuses_unknown_options": like(
        __init__=lambda self, params, lr=0.1, momentum=0.9, weight_decay=0.0, **ignored: Good.__init__(
            self, params, lr, momentum=momentum, weight_decay=weight_decay
        )
    ),
    "check_refuses_misspelt_keys_of_groups": like(add_param_group=torch.optim.Optimizer.add_param_group),
    "check_complex_parameters": like(
        lambda self, param, gradient, group: param.sub_(gradient.sgn(), alpha=group["lr"]),
        add_param_group=torch.optim.Optimizer.add_param_group,
    ),
    "check_declares_a_geometry": like(geometry="round"),
    "check_learning_rates_are_a_grid": Subject(name="Broken", build=frozen_too, lr_grid=(0.1, 0.2, 0.3)),
    "check_learns": before(lambda self, param, gradient, group: -gradient),
    "check_repeats_bitwise": after(noise),
    "check_steps_in_place": after(lambda self, param, group: setattr(param, "data", param.data.clone())),
    "check_leaves_gradients_alone": before(lambda self, param, gradient, group: gradient.mul_(0.5)),
    "check_closure": stepping(twice),
    "check_learning_rate_of_the_group": of_defaults("lr"),
    "check_missing_gradients": stepping(moves_all),
    "check_zero_gradients": before(lambda self, param, gradient, group: gradient / gradient.norm()),
    "check_huge_and_tiny_gradients": before(lambda self, p, gradient, group: gradient / gradient.square().sum().sqrt()),
    "check_shapes": before(lambda self, param, gradient, group: gradient * gradient.shape[0]),
    "check_memory_layouts": before(raw_memory),
    "check_dtypes": poison_where(lambda self, param, gradient: param.dtype == torch.float64),
    "check_float16": before(lambda self, p, g, group: g * 0 / torch.full((), 1e-8, dtype=p.dtype)),
    "check_double_precision": before(lambda self, p, g, group: 2 * g if p.dtype == torch.float64 else g),
    "check_sparse_gradients": like(lambda self, p, g, group: None if g.is_sparse else plain(self, p, g, group)),
    "check_new_memory": before(lambda self, p, g, group: self.__dict__.setdefault("_seen", {}).setdefault(p, g)),
    "check_changed_tensors": poison_where(lambda self, param, g: self.state[param].get("average", g).shape != g.shape),
    "check_weight_decay": of_defaults("weight_decay"),
    "check_weight_decay_of_the_group": like(
        lambda self, p, g, group: plain(self, p, g, {**group, "weight_decay": self.param_groups[0]["weight_decay"]})
    ),
    "check_decays_of_the_group": of_defaults("momentum"),
    "check_weight_decay_shrinks": adam(update=grown),
    "check_decays_matter": like(lambda self, p, g, group: plain(self, p, g, {**group, "momentum": 0.9})),
    "check_bias_correction": adam(corrected=lambda self, state, betas: (state["first"], state["second"])),
    "check_eps_is_outside_the_root": adam(root=lambda self, second, eps: (second + eps).sqrt()),
    "check_gradient_scaler": like(_step_supports_amp_scaling=True, step=torch.no_grad()(ignores_the_scale)),
    "check_state_dict_has_torchs_format": like(state_dict=lambda self: {**Good.state_dict(self), "more": 1}),
    "check_resumes_bitwise": before(
        lambda self, p, g, group: g / (1 + self.__dict__.setdefault("_n", []).append(0) or len(self._n))
    ),
    "check_loading_leaves_what_it_loads": loading(lambda self, _: [g.setdefault("fast", 1) for g in self.param_groups]),
    "check_loads_by_position": loading(by_number),
    "check_step_hooks": stepping(two_steps),
    "check_loads_what_lacks_options": like(__setstate__=torch.optim.Optimizer.__setstate__),
    "check_reset": like(own_momentum),
    "check_assigned_state": like(own_momentum),
    "check_pickle": type("Nowhere", (Good,), {}),
    "check_deepcopy": type(
        "Forgetful",
        (built(lambda self: setattr(self, "factor", 2)),),
        {"__getstate__": torch.optim.Optimizer.__getstate__},
    ),
    "check_schedulers": built(lambda self: self.defaults.clear()),
    "check_resumes_with_a_scheduler": loading(
        lambda self, _: [g.update(lr=g.pop("initial_lr", 1)) for g in self.param_groups]
    ),
    "check_options_of_groups": like(lambda self, p, g, group: plain(self, p, g, self.param_groups[0])),
    "check_compiled": poison_where(lambda *_: torch.compiler.is_compiling()),
}


def broken(name: str) -> Subject:
    """The optimizer that breaks a check."""
    return subject(BROKEN[name], lr=0.1)
