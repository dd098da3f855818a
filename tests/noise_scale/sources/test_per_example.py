import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cbs.noise_scale.probe import Probe
from cbs.workloads.text_parts.gpt import GPT, GPTShape
from tests.references.per_example import Euclidean, assert_exact


def test_sequences_are_examples_under_a_token_mean_with_ignored_tokens() -> None:
    torch.manual_seed(0)
    ids, targets = torch.randint(11, (6, 5)), torch.randint(11, (6, 5))
    targets[0, 2:] = targets[3, 1:] = -100
    kept = (targets != -100).sum()

    def losses(model: nn.Module) -> Tensor:
        return cross_entropy(model(ids).mT, targets, ignore_index=-100, reduction="none").sum(1) / kept

    model = GPT(GPTShape(width=8, layers=2, heads=2, context=6), 11).double()
    torch.testing.assert_close(losses(model).sum(), cross_entropy(model(ids).mT, targets, ignore_index=-100))
    # Double precision leaves rounding of sums of some thousand products.
    assert_exact(model, losses, source="per_example", rtol=1e-11, geometries=(Euclidean(),))


def test_noise_of_a_linear_model_is_the_variance_of_its_inputs() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 3).double()
    model = nn.Linear(3, 1, bias=False).double()
    with Probe(model, source="per_example") as probe:
        model(x).mean().backward()
        moments = probe.step()["l2"]
    assert moments.sizes.small == 1
    # The gradient of an example is its input, so both moments are those of a sample of vectors.
    assert abs(moments.noise.item() - x.var(0).sum().item()) < 1e-12
    assert abs(moments.signal.item() - (x.mean(0).square().sum() - x.var(0).sum() / 64).item()) < 1e-12
