"""LAMB (2020): BERT at batch sizes of 512 to 32,768 in equal epochs, and the record run in two stages."""

from cbs.registry.choices import Choice, parse_choice
from extensions.papers.experiments import PAPERS, Beyond, Expectation, Near, PaperRecipe, asks
from extensions.papers.experiments.parts import (
    among_sizes,
    excess,
    experiment,
    lower_loss,
    one_run,
    schedule_less,
    steps_saved,
)
from sweeps.spec.given_rates import PrescribedRate
from sweeps.spec.lengths import ScheduleRule

LINEAR = "linear"
WARMUP = 3_125  # Warmup steps, the same at every batch size: 1/320 of 1,000,000 steps at 512, 1/5 of 15,625 at 32,768


@PAPERS.register("lamb-bert")
def lamb_bert(scale: str) -> PaperRecipe:
    """Compare LAMB and AdamW on masked text at equal examples, with a short context and then a long one."""
    tiny = scale == "tiny"
    examples = 24_576 if tiny else 512_000_000
    contexts = {"context": 16, "later_context": 32} if tiny else {"context": 128, "later_context": 512}
    options = {**contexts, "switch": round(0.9 * examples), "size": "30k" if tiny else "bert-large"}
    if tiny:
        sweep = experiment(
            Choice(name="masked_text", options=options), ("adamw", "lamb"), tuple(2**k for k in range(3, 10)),
            budgets=(examples,), seeds=(0, 1), schedule=ScheduleRule(name=LINEAR),
        )  # fmt: skip
        sweeps = {"bert": sweep}
    else:
        options |= {"init": "bert", "data": "data/wikibooks/train.bin", "validation": "data/wikibooks/validation.bin",
                    "dtype": "uint16", "vocab_size": 30522, "mask_id": 103}  # fmt: skip
        sweep = experiment(
            Choice(name="masked_text", options=options), ("adamw(weight_decay=0.01)",),
            tuple(2**k for k in range(9, 16)), budgets=(examples,), precision="bfloat16",
            schedule=ScheduleRule(name=LINEAR, warmup_steps=WARMUP),
        )  # fmt: skip
        lamb = sweep.replace(optimizers=(parse_choice("lamb(weight_decay=0.01)"),),
                             lr_rule=PrescribedRate(power=0.5, lrs={32_768: 5e-3}))  # fmt: skip
        sweeps = {"adamw": sweep, "lamb": lamb}
    large = sweep.axes.batch_sizes[-1]
    stops = among_sizes("adamw", "largest_within", lambda of: of.equivalence.largest_within)
    return PaperRecipe(
        title="LAMB: BERT in equal epochs up to very large batches",
        paper="You et al. 2020, arXiv 1904.00962",
        protocol="masked tokens, nine tenths of the examples at the short context and one tenth at the long one, "
        "warmup and linear decay; LAMB and AdamW at equal examples",
        deviations=(
            "masked loss in place of the F1 of SQuAD after finetuning; no next sentences",
            "one warmup, not a second one for the long context",
            "the learning rate is searched at every batch size; bytes of a small text"
            if tiny
            else "the learning rate of AdamW is searched at every batch size, that of LAMB is the published one",
            *(["a first run had only 8, 64 and 512; the question where AdamW stops came after it"] if tiny else []),
        ),
        runs=tuple(one_run(name, each, tiny, parameters=335e6, tokens_per_example=166.4)
                   for name, each in sweeps.items()),
        analyses={"budget": asks("budget", *sweeps, within="0.05")},
        expectations=(
            lower_loss("lamb", "adamw", large, "AdamW's F1 falls beyond 16K and it diverges at 32K; LAMB's is 91.475",
                       "from memory of table 1"),
            Expectation(
                claim=f"LAMB at batch size {large} ends within .05 of its best batch size",
                published="F1 91.752 at 512, 91.475 at 32768", source="from memory of table 1",
                relation=Near((0.0,), 0.05), ours=(excess("lamb", large),),
            ),
            Expectation(
                claim=f"AdamW stops scaling below batch size {large}: its largest within .05 of its best",
                published="AdamW's F1 falls beyond 16K", source="from memory of table 1",
                relation=Beyond(large, above=False), ours=(stops,),
            ),
        ),
        figure="budget_losses",
        minutes=6.0 if tiny else None,
    )  # fmt: skip


SHORT = 0.9  # Fraction of the examples at the short context


@PAPERS.register("lamb-bert-mixed")
def lamb_bert_mixed(scale: str) -> PaperRecipe:
    """Compare LAMB with a batch that halves when the context grows with LAMB at both constant batch sizes."""
    tiny = scale == "tiny"
    large, examples = (512, 24_576) if tiny else (65_536, 512_000_000)
    small, switch = large // 2, round(SHORT * examples)
    contexts = {"context": 16, "later_context": 64} if tiny else {"context": 128, "later_context": 512}
    options = {**contexts, "switch": switch, "size": "30k" if tiny else "bert-large"}
    first, second = (round(0.2843 * switch), round(0.128 * (examples - switch)))
    stages = {"boundary_examples": switch, "rewarmup_examples": second, "second_peak": 4 / 6}
    about = {
        "budgets": (examples,),
        "batch_schedules": (Choice(name="constant"), Choice(name="late_switch", options={"at": SHORT, "to": small})),
        "schedule": ScheduleRule(name="two_stage", warmup_examples=first, options=stages),
    }
    if tiny:
        workload = Choice(name="masked_text", options=options)
        sweep = experiment(workload, ("lamb",), (small, large), seeds=(0, 1, 2), **about)
    else:
        options |= {"init": "bert", "data": "data/wikibooks/train.bin", "validation": "data/wikibooks/validation.bin",
                    "dtype": "uint16", "vocab_size": 30522, "mask_id": 103}  # fmt: skip
        sweep = experiment(
            Choice(name="masked_text", options=options), ("lamb(weight_decay=0.01)",), (small, large),
            lr_rule=PrescribedRate(power=None, lrs={small: 5e-3, large: 6e-3}), precision="bfloat16", **about,
        )  # fmt: skip
    saved = 1 - (SHORT / 2 + 1 - SHORT)
    return PaperRecipe(
        title="LAMB's record: twice the batch at the short context, a second warmup",
        paper="You et al. 2020, arXiv 1904.00962",
        protocol="nine tenths of the examples at the short context with the large batch, the rest at the long one with "
        "half of it; linear decay and a warmup in each part; compared with either batch size throughout",
        deviations=(
            "masked loss in place of the F1 of SQuAD after finetuning; no next sentences",
            "lengths of the warmups and the second peak, 4/6 of the first, are those of the released scripts; runs "
            "with one batch size throughout have the same schedule",
            "the learning rate is searched; bytes of a small text"
            if tiny
            else "batch size 65,536 throughout is not in the paper",
        ),
        runs=(one_run("bert", sweep, tiny, parameters=335e6, tokens_per_example=166.4),),
        analyses={"losses": asks("schedule judge", "bert")},
        expectations=(
            Expectation(
                claim=f"the mixed batch ends within .05 of batch size {small} throughout",
                published="F1 90.584 mixed, 91.475 at 32K", source="8,599 steps in the abstract; F1 from memory",
                relation=Beyond(0.05, above=False), ours=(schedule_less("late_switch", large, small),),
            ),
            steps_saved("late_switch", large, small, saved, "8,599 steps against 15,625 at 32K: 45 %", "abstract"),
        ),
        figure="schedule_losses",
        minutes=5.0 if tiny else None,
    )  # fmt: skip
