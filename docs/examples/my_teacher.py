"""A workload of one's own: a network learns what another one says of points in 16 dimensions."""

import torch
from torch import nn

from cbs.workloads import RandomExamples


class Teacher:
    metric, metric_unit, direction, default_target = "validation_loss", "nats", "below", 0.15
    example_unit, tokens_per_example, data_hash = "point", None, None

    def __init__(self, hidden: int = 64, dimensions: int = 16):
        generator = torch.Generator().manual_seed(0)
        points = torch.randn(41_000, dimensions, generator=generator)
        first = torch.randn(dimensions, 8, generator=generator) / dimensions**0.5
        second = torch.randn(8, 4, generator=generator)
        labels = (torch.tanh(2 * points @ first) @ second).argmax(dim=1)
        self.train, self.test = (points[1000:], labels[1000:]), (points[:1000], labels[:1000])
        self.hidden, self.dimensions = hidden, dimensions

    def build_model(self):
        return nn.Sequential(nn.Linear(self.dimensions, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 4))

    def training_stream(self, generator):
        return RandomExamples(self.train, generator)

    def example_losses(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def validate(self, model):
        return self.example_losses(model, self.test).mean().item()
