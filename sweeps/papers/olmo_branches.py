"""Merrill et al. (2025): the local critical batch size along a run, by branches of its checkpoints."""

from __future__ import annotations

from typing import Any

from cbs.registry.choices import Choice
from sweeps.papers import PAPERS, AnswerPath, Beyond, Expectation, Monotone, PaperRecipe, RecipeRun
from sweeps.papers.parts import AUTO, PROBE, TEXT, experiment

PLACES = {"tiny": ("8%", "30%", "90%"), "paper": ("2%", "8%", "16%", "33%", "66%", "95%")}
SOURCE = "arXiv 2505.23971, section 3, read in the text"


@PAPERS.register("branch-olmo")
def branch_olmo(scale: str) -> PaperRecipe:
    """Branches with a quarter to eight times the batch at several checkpoints of one run."""
    tiny, places = scale == "tiny", PLACES[scale]
    about: dict[str, Any] = {"at": ",".join(places), "lr_rule": "sqrt", "error": 0}
    if tiny:
        sweep = experiment(TEXT, ("adamw",), (16,), budgets=(24_000,), seeds=(0, 1, 2), probe=PROBE)
        about |= {"factors": "1/2,1,2,4,8", "window": "2560"}
    else:
        options = {"size": "gpt2-large", "width": 2048, "layers": 16, "heads": 16, "context": 4096,
                   "data": "data/olmo/train.bin", "dtype": "uint32", "vocab_size": 100278}  # fmt: skip
        sweep = experiment(Choice(name="text", options=options), ("adamw",), (1024,), budgets=(148_437_500,),
                           lrs=(4e-4 * 2**0.5,), seeds=(0, 1), probe=AUTO, precision="bfloat16")  # fmt: skip
        about |= {"factors": "1/4,1/2,1,2,3,4,5,6,7,8", "window": "491520"}

    def along(name: str) -> tuple[AnswerPath, ...]:
        of = [("scopes", 0, "curves", 0, "checkpoints", place) for place in range(len(places))]
        return tuple(AnswerPath(analysis="local", path=(*path, name), ok=((*path, "verdict"),)) for path in of)

    return PaperRecipe(
        title="the local critical batch size along a run, by branches",
        paper="Merrill et al. 2025, arXiv 2505.23971",
        protocol="one run with AdamW; from each of its checkpoints branches with k times the batch and the root of k "
        "times the learning rate over equal examples; the largest k that does not fall behind",
        deviations=(
            "paired differences over seeds with an interval and a tolerance of half their scatter or .01; the paper "
            "has one seed, smoothed training losses and .01, which stand beside",
            "bytes of a small text" if tiny else "a GPT of 1B parameters in place of OLMo-1B; two seeds",
        ),
        runs=(RecipeRun(name="text", sweep=sweep, policy=Choice(name="branch", options=about)),),
        analyses={"local": "local {text}"},
        expectations=(
            Expectation(
                claim="the local critical batch size rises along the run",
                published="near 0 at the start, rises fast, then about 4096 documents", source=SOURCE,
                relation=Monotone(), ours=along("critical_batch_size"),
            ),
            Expectation(
                claim="the noise scale lies below it",
                published="the noise scale is lower by orders of magnitude", source=SOURCE,
                relation=Beyond(1.0, above=False), ours=along("noise_scale_ratio"),
            ),
        ),
        figure="local_curve",
        minutes=6.0 if tiny else None,
    )  # fmt: skip
