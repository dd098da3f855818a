"""Recipes of papers: a function per file that returns the sweeps, analyses and statements of a paper.

``cbs recipes`` lists them, ``cbs reproduce`` runs one. A recipe is called with its scale, ``"tiny"`` or ``"paper"``.
"""

from __future__ import annotations

from collections.abc import Callable

from cbs.registry import Registry
from sweeps.papers.base import SCALES, AnswerPath, Expectation, PaperRecipe, RecipeRun
from sweeps.papers.relations import Beyond, Likely, Monotone, Near, PublishedRelation, Reproduced

PAPERS: Registry[Callable[[str], PaperRecipe]] = Registry("recipe of a paper", "sweeps.papers", makes=PaperRecipe)

__all__ = [
    "PAPERS",
    "SCALES",
    "AnswerPath",
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
