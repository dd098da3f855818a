"""What general tests know of this extension."""

LOGITS = ["sweep", "--set", "diagnostics=max_attention_logit"]
MISTAKES = [
    (["sweep", "--set", "diagnostics=max_logit"], ["max_logit", "did you mean max_attention_logit"]),
    ([*LOGITS, "--workload", "noisy_quadratic"], ["never calls"]),
    ([*LOGITS, "--set", "compile=true"], ["compiled model"]),
]
SELDOM = ["optimizer_step"]  # A figure that is drawn of a diagnostic alone
