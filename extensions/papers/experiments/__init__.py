"""Recipes of papers: a function per file that returns the sweeps, analyses and statements of a paper.

``cbs recipes`` lists them, ``cbs reproduce`` runs one. A recipe is called with its scale, ``"tiny"`` or ``"paper"``.
"""

from __future__ import annotations

from collections.abc import Callable

from cbs.registry import Registry
from extensions.papers.experiments.base import SCALES, Expectation, PaperRecipe, RecipeRun
from extensions.papers.experiments.relations import Beyond, Likely, Monotone, Near, PublishedRelation, Reproduced

PAPERS: Registry[Callable[[str], PaperRecipe]] = Registry(
    "recipe of a paper", "extensions.papers.experiments", makes=PaperRecipe
)

__all__ = [
    "PAPERS",
    "SCALES",
    "Beyond",
    "Expectation",
    "Likely",
    "Monotone",
    "Near",
    "PaperRecipe",
    "PublishedRelation",
    "RecipeRun",
    "Reproduced",
]
