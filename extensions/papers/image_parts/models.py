"""Image classifiers by name: LeNet, a small CNN, ResNets, wide ResNets and VGG, with batch, group or no normalisation.

For images of up to 64 pixels the first layer is a 3 x 3 convolution and the last features are averaged, as in the CIFAR
models; for larger images the models are those for ImageNet. Convolutions are initialized as in He et al. 2015 (arXiv
1502.01852), fan out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from cbs.errors import ConfigError, UnknownNameError

SMALL = 64  # Largest image, in pixels across, for which the CIFAR form of a model is used

NORMS = ("batch", "group", "none")
GROUP_CHANNELS = 16  # Channels per group of a GroupNorm (Wu & He 2018, arXiv 1803.08494, table 3)

# Blocks per stage of the ResNets of He et al. 2016 (arXiv 1512.03385, table 1).
BASIC = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
BOTTLENECK = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}

# Convolutions per stage of Simonyan & Zisserman 2015 (arXiv 1409.1556, table 1)
VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}

KNOWN = (
    "lenet, cnn, resnet8 (or another 6n+2), resnet18, 34, 50, 101, 152, wrn-28-10 (or other numbers), vgg11, 13, 16, 19"
)
"""Names of the models."""


def build_classifier(
    name: str, *, classes: int, channels: int, size: int, norm: str = "group", width: int | None = None
) -> nn.Module:
    """Return a model from images ``[examples, channels, size, size]`` to logits ``[examples, classes]``.

    Args:
        name: see :data:`KNOWN`.
        classes: number of classes.
        channels: number of channels of an image.
        size: pixels across and down.
        norm: ``"batch"``, ``"group"`` or ``"none"``; LeNet and the CNN have none.
        width: channels of the first stage; ``None`` for 8 (CNN), 16 (ResNets of depth 6n+2 and wide ones) or 64.

    Raises:
        UnknownNameError: if there is no such model or norm.
        ConfigError: if the images are too small for the model, or a width is given for LeNet, which has only one.
    """
    if norm not in NORMS:
        raise UnknownNameError(f"unknown norm {norm!r} of workload 'images': known are {', '.join(NORMS)}")
    small = size <= SMALL
    found = re.fullmatch(r"(lenet|cnn|resnet|vgg|wrn)-?(\d+)?(?:-(\d+))?", name)
    kind, depth, factor = (found[1], int(found[2] or 0), int(found[3] or 0)) if found else ("", 0, 0)
    least = {"vgg": 32, "lenet": 12, "cnn": 4}.get(kind, 8)
    if size < least:
        raise ConfigError(f"model {name} needs images of at least {least} pixels across, these have {size}")
    if kind == "lenet" and not depth:
        if width is not None:
            raise ConfigError("option width of workload 'images' is not for lenet, which has one width only")
        return LeNet(classes, channels, size)
    if kind == "cnn" and not depth:
        return SmallCNN(classes, channels, size, width or 8)
    if kind == "vgg" and depth in VGG and not factor:
        return VGGNet(VGG[depth], classes, channels, size, norm, width or 64)
    if kind == "wrn" and depth % 6 == 4 and factor:
        base = width or 16
        widths = (base, *(base * factor * 2**stage for stage in range(3)))
        return ResNet((depth // 6,) * 3, PreactivationBlock, widths, classes, channels, norm, small)
    if kind == "resnet" and not factor:
        if depth in BASIC or depth in BOTTLENECK:
            base = width or 64
            widths = (base, *(base * 2**stage for stage in range(4)))
            block = BasicBlock if depth in BASIC else Bottleneck
            return ResNet((BASIC | BOTTLENECK)[depth], block, widths, classes, channels, norm, small)
        if depth > 2 and depth % 6 == 2:
            base = width or 16
            return ResNet(
                (depth // 6,) * 3, BasicBlock, (base, base, 2 * base, 4 * base), classes, channels, norm, small
            )
    raise UnknownNameError(f"unknown model {name!r} of workload 'images': known are {KNOWN}")


class LeNet(nn.Sequential):
    """LeNet-5 (LeCun et al. 1998) in its modern form, with ReLU and max pooling.

    It has 61,706 parameters for ten classes and grey images of 28 pixels, which are padded, or 32 pixels.
    """

    def __init__(self, classes: int, channels: int, size: int) -> None:
        padding = 0 if size >= 32 else 2
        left = ((size + 2 * padding - 4) // 2 - 4) // 2
        super().__init__(
            *(nn.Conv2d(channels, 6, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(16 * left**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
        )


class SmallCNN(nn.Sequential):
    """Two 5 x 5 convolutions with ``width`` and ``2 * width`` channels, each with 2 x 2 max pooling, and two linear
    layers.

    The hidden linear layer has ``32 * width`` entries. With a width of 32 this is the "simple CNN" of Shallue et al.
    2019 (arXiv 1811.03600).
    """

    def __init__(self, classes: int, channels: int, size: int, width: int) -> None:
        super().__init__(
            *(nn.Conv2d(channels, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(width, 2 * width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(2 * width * (size // 4) ** 2, 32 * width), nn.ReLU(), nn.Linear(32 * width, classes)),
        )


class VGGNet(nn.Sequential):
    """VGG: stages of 3 x 3 convolutions, each followed by 2 x 2 max pooling.

    Images of up to 64 pixels are classified by one linear layer, larger ones by three, without dropout.
    """

    def __init__(self, stages: Sequence[int], classes: int, channels: int, size: int, norm: str, width: int) -> None:
        layers: list[nn.Module] = []
        for stage, convolutions in enumerate(stages):
            outputs = width * min(2**stage, 8)
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, outputs, 3, padding=1), normalised(norm, outputs), nn.ReLU()]
                channels = outputs
            layers.append(nn.MaxPool2d(2))
        layers.append(nn.Flatten())
        features = channels * (size // 32) ** 2
        if size > SMALL:
            for inputs in (features, 64 * width):
                layers += [nn.Linear(inputs, 64 * width), nn.ReLU()]
            features = 64 * width
        super().__init__(*layers, nn.Linear(features, classes))
        initialise(self)


class ResNet(nn.Module):
    """A residual network: a stem, stages of blocks, the mean over positions and a linear layer.

    Args:
        stages: blocks per stage.
        block: :class:`BasicBlock`, :class:`Bottleneck` or :class:`PreactivationBlock`.
        widths: channels of the stem and of each stage; the outputs of a bottleneck have four times as many.
        classes: number of classes.
        channels: number of channels of an image.
        norm: see :func:`normalised`.
        small: whether the stem keeps the size of the image.
    """

    def __init__(
        self,
        stages: Sequence[int],
        block: type[ResidualBlock],
        widths: Sequence[int],
        classes: int,
        channels: int,
        norm: str,
        small: bool,
    ) -> None:
        super().__init__()
        inputs, before = widths[0], not block.normalised_first
        kernel, stride = (3, 1) if small else (7, 2)
        stem: list[nn.Module] = [convolution(channels, inputs, kernel, norm if before else "batch", stride)]
        if before:
            stem += [normalised(norm, inputs), nn.ReLU()]
        if not small:
            stem.append(nn.MaxPool2d(3, 2, 1))
        self.stem = nn.Sequential(*stem)
        blocks = []
        for stage, (count, width) in enumerate(zip(stages, widths[1:], strict=True)):
            for index in range(count):
                blocks.append(block(inputs, width, 2 if stage and not index else 1, norm))
                inputs = width * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Identity() if before else nn.Sequential(normalised(norm, inputs), nn.ReLU())
        self.head = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape ``[examples, classes]``."""
        return self.head(self.last(self.blocks(self.stem(images))).mean((2, 3)))


class ResidualBlock(nn.Module):
    """Convolutions added to a shortcut, which is a 1 x 1 convolution where the shape changes.

    Args:
        inputs: number of input channels.
        width: number of channels of the 3 x 3 convolutions.
        stride: stride of the first of them.
        norm: see :func:`normalised`.
    """

    expansion = 1
    normalised_first = False

    def __init__(self, inputs: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.branch = nn.Sequential(*self.layers(inputs, width, stride, norm))
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(convolution(inputs, outputs, 1, norm, stride))
            self.shortcut.append(normalised(norm, outputs))

    def layers(self, inputs: int, width: int, stride: int, norm: str) -> Iterator[nn.Module]:
        """Yield the layers of the branch: two 3 x 3 convolutions."""
        yield convolution(inputs, width, 3, norm, stride)
        yield from (normalised(norm, width), nn.ReLU())
        yield convolution(width, width, 3, norm)
        yield normalised(norm, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps ``[examples, channels, rows, columns]`` to feature maps."""
        return (self.branch(x) + self.shortcut(x)).relu()


class BasicBlock(ResidualBlock):
    """Two 3 x 3 convolutions, as in ResNet-18."""


class Bottleneck(ResidualBlock):
    """A 1 x 1, a 3 x 3 and a 1 x 1 convolution to four times the width, as in ResNet-50; the 3 x 3 has the stride."""

    expansion = 4

    def layers(self, inputs: int, width: int, stride: int, norm: str) -> Iterator[nn.Module]:
        """Yield the layers of the branch."""
        for arguments in ((inputs, width, 1, norm), (width, width, 3, norm, stride)):
            yield convolution(*arguments)
            yield from (normalised(norm, width), nn.ReLU())
        yield convolution(width, width * self.expansion, 1, norm)
        yield normalised(norm, width * self.expansion)


class PreactivationBlock(ResidualBlock):
    """A block with norm and ReLU before each convolution (Zagoruyko & Komodakis 2016, arXiv 1605.07146).

    Where the shape changes, the shortcut starts after the first norm and ReLU.
    """

    normalised_first = True

    def __init__(self, inputs: int, width: int, stride: int, norm: str) -> None:
        super().__init__(inputs, width, stride, norm)
        self.first = nn.Sequential(normalised(norm, inputs), nn.ReLU())
        self.changes = len(self.shortcut) > 0
        self.shortcut = nn.Sequential(*list(self.shortcut)[:1])

    def layers(self, inputs: int, width: int, stride: int, norm: str) -> Iterator[nn.Module]:
        """Yield the layers of the branch after the first norm."""
        yield convolution(inputs, width, 3, norm, stride)
        yield from (normalised(norm, width), nn.ReLU())
        yield convolution(width, width, 3, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps to feature maps."""
        active = self.first(x)
        return self.branch(active) + self.shortcut(active if self.changes else x)


def convolution(inputs: int, outputs: int, kernel: int, norm: str, stride: int = 1) -> nn.Conv2d:
    """Return a convolution that keeps the image size apart from its stride, with a bias only where no norm follows."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=norm == "none")


def normalised(norm: str, channels: int) -> nn.Module:
    """Return BatchNorm, GroupNorm with groups of 16 channels (one group if 16 does not divide them), or the
    identity.
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    groups = channels // GROUP_CHANNELS if channels % GROUP_CHANNELS == 0 else 1
    return nn.GroupNorm(groups, channels) if norm == "group" else nn.Identity()


def initialise(model: nn.Module) -> None:
    """Initialize convolutions with normal weights of variance 2 / fan out and zero biases."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
