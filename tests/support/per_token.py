"""A task with an output per token, a network that takes a mask, and one without, as a user would write them in a file."""

import math

import torch
from torch import Tensor, nn

from bifl.nn.models import model
from bifl.tasks import Task, class_per_position, positions, row_per_position, task


@task
def class_per_token() -> Task:
    """The class of every token; accuracy of the tokens that count."""

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        total = nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten(), ignore_index=-1, reduction="sum")
        return total / max(positions(targets), 1)

    def sums(output: Tensor, targets: Tensor) -> Tensor:
        return ((output.argmax(-1) == targets) & (targets >= 0)).sum().reshape(1)

    return Task(
        loss,
        sums,
        lambda sums, count: {"accuracy": float(sums[0] / count)},
        targets=class_per_position,
        sensible=lambda sums, count: bool(0 <= sums[0] <= count),
        output=row_per_position,
        count=positions,
        most=math.prod,
    )


class Tagger(nn.Module):
    """Knows of every token its word, and the mean of all words that are no padding."""

    def __init__(self, classes: int, words: int) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(words, 16), nn.Linear(32, classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        words, there = self.words(tokens), mask.unsqueeze(-1).float()
        mean = (words * there).sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1)
        scores: Tensor = self.scores(torch.cat([words, mean.expand_as(words)], -1))
        return scores


@model
def token_tagger(classes: int, words: int = 12) -> nn.Module:
    return Tagger(classes, words)
