"""Which matrices the nuclear geometry counts, and how."""

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.noise_scale import GEOMETRIES
from cbs.noise_scale.geometries import Geometry
from cbs.noise_scale.moments import Sizes
from cbs.optimizers import CompositeOptimizer, Muon, build_optimizer
from cbs.optimizers.routing import route
from cbs.trial.config import Choice
from cbs.workloads.text_parts.gpt import GPT, SIZES


def bound(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer | None = None) -> Geometry:
    geometry = GEOMETRIES["nuclear"]()
    geometry.bind(parameters, optimizer)
    return geometry


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(shape)) for shape in ((3, 5), (4,), (6, 2), (4, 3, 2, 2))]


def covered(geometry: Geometry) -> list[bool]:
    return [geometry.covers(index) for index in range(4)]


def test_counts_what_muon_takes() -> None:
    model = GPT(SIZES["30k"], 128)
    every = list(model.parameters())
    geometry = bound(every, build_optimizer(Choice(name="muon"), model, 0.01))
    hidden = {id(parameter) for parameter in route(model).matrices}
    assert [geometry.covers(index) for index in range(len(every))] == [id(entry) in hidden for entry in every]
    assert hidden


def test_counts_all_matrices_without_a_spectral_optimizer() -> None:
    every = parameters()
    for optimizer in (None, torch.optim.SGD(every, lr=0.1), torch.optim.LBFGS(every)):
        assert covered(bound(every, optimizer)) == [True, False, True, False]


def test_kernels_count_where_the_optimizer_takes_them() -> None:
    every = parameters()

    class OwnMuon(torch.optim.SGD):
        pass

    # a vector in the hands of a spectral optimizer has no singular values to speak of
    parts = [OwnMuon([every[0], every[1], every[3]], lr=0.1), torch.optim.AdamW([every[2]])]
    geometry = bound(every, CompositeOptimizer(parts))
    assert covered(geometry) == [True, False, False, True]
    kernels = torch.randn(2, 4, 3, 2, 2).double()
    flat = kernels.view(2, 4, 12)
    torch.testing.assert_close(geometry.statistic(3, kernels), flat[0] @ flat[0].T + flat[1] @ flat[1].T)


def test_experts_count_one_by_one_in_the_layout_of_their_group() -> None:
    stack, matrix = nn.Parameter(torch.randn(2, 5, 3)), nn.Parameter(torch.randn(3, 4))
    groups = [{"params": [stack], "layout": "experts_in_out"}, {"params": [matrix], "layout": "in_out"}]
    geometry = bound([stack, matrix], Muon(groups))
    apart = bound([nn.Parameter(torch.zeros(3, 5)) for _ in range(2)] + [nn.Parameter(torch.zeros(4, 3))])
    gradients, others = torch.randn(4, 2, 5, 3), torch.randn(4, 3, 4)
    sizes = Sizes(small=2.0, big=8.0, groups=4)

    def read(counted: Geometry, stacks: list[torch.Tensor]) -> torch.Tensor:
        small = [counted.statistic(index, stack) / 4 for index, stack in enumerate(stacks)]
        big = [counted.statistic(index, stack.mean(0, keepdim=True)) for index, stack in enumerate(stacks)]
        signal, noise = counted.read(small, big, sizes)
        return torch.stack([signal.sum(), noise.sum()])

    one_by_one = [gradients[:, 0].mT, gradients[:, 1].mT, others.mT]
    torch.testing.assert_close(read(geometry, [gradients, others]), read(apart, one_by_one))


def test_marks_of_a_muon_that_runs_adam_too() -> None:
    every = parameters()

    class SingleDeviceMuonWithAuxAdam(torch.optim.SGD):
        pass

    groups = [{"params": [every[0]], "use_muon": True}, {"params": every[1:], "use_muon": False}]
    assert covered(bound(every, SingleDeviceMuonWithAuxAdam(groups, lr=0.1))) == [True, False, False, False]
    optimizer = SingleDeviceMuonWithAuxAdam(every[:3], lr=0.1)
    for index, parameter in enumerate(every[:3]):
        optimizer.state[parameter]["use_muon"] = index == 2
    assert covered(bound(every, optimizer)) == [False, False, True, False]


def test_is_the_same_for_a_matrix_and_its_transpose() -> None:
    matrices = torch.randn(3, 3, 5)
    wide, tall = bound([nn.Parameter(torch.zeros(3, 5))]), bound([nn.Parameter(torch.zeros(5, 3))])
    torch.testing.assert_close(wide.statistic(0, matrices), tall.statistic(0, matrices.mT))
    assert wide.statistic(0, matrices).shape == (3, 3)


def test_nothing_to_measure_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="none of the 1 parameter tensors is one; use 'l2' or 'l1'"):
        bound([nn.Parameter(torch.zeros(3))])
