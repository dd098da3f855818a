"""Products with the Hessian against the dense matrix of torch.func."""

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

from cbs.compute.hessian import flat, hessian_product, shaped


class Network(nn.Module):
    """Two layers, and a parameter that the outputs do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4, bias=False), nn.Linear(4, 5)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(inputs)))


def test_equals_the_dense_matrix() -> None:
    torch.manual_seed(0)
    model = Network().double()
    inputs, labels = torch.randn(6, 3, dtype=torch.float64), torch.randint(0, 5, (6,))
    parameters, names = list(model.parameters()), [name for name, _ in model.named_parameters()]
    at = flat(parameters)

    def loss(vector: Tensor) -> Tensor:
        values = dict(zip(names, shaped(vector, parameters), strict=True))
        return nn.functional.cross_entropy(functional_call(model, values, (inputs,)), labels)

    product = hessian_product(lambda of: nn.functional.cross_entropy(model(of[0]), of[1]), (inputs, labels), parameters)
    found = torch.stack([flat(product(shaped(unit, parameters))) for unit in torch.eye(len(at), dtype=torch.float64)])
    torch.testing.assert_close(found, hessian(loss)(at), rtol=1e-9, atol=1e-12)
    assert torch.linalg.eigvalsh(found).min() < -1e-3
    assert torch.equal(flat(parameters), at)
    assert all(parameter.grad is None for parameter in parameters)
