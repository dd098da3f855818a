"""Tiny configurations of recent language models in ``transformers``."""

from __future__ import annotations

from typing import Any

from benchmarks.model_zoo import CLASSES, WORDS, Entry
from benchmarks.zoo_transformers import GROUPED, LANGUAGE, LOW, OWN, SMALL, TEXT, causal_terms, masked, moe, of

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
STATE = {"mamba_d_state": 4, "mamba_d_conv": 3, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1}


def decoder(kind: str, config: str = "", **options: Any) -> Entry:
    """A language model with grouped attention."""
    return Entry(build=of(f"{kind}ForCausalLM", config or f"{kind}Config", **{**GROUPED, **options}), **LANGUAGE)


def routed(kind: str, **options: Any) -> Entry:
    """One with experts."""
    return Entry(skips=LOW, build=moe(kind, **options), **LANGUAGE)


RECENT = {
    "Gemma 3": decoder("Gemma3", "Gemma3TextConfig", sliding_window=4),
    "OLMo 2": decoder("Olmo2"),
    "OLMo 3": decoder("Olmo3", sliding_window=4),
    "Phi-3": decoder("Phi3"),
    "Granite": decoder("Granite", embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5),
    "SmolLM3": decoder("SmolLM3"),
    "Cohere 2": decoder("Cohere2", sliding_window=4),
    "GLM-4": decoder("Glm4"),
    "Helium": decoder("Helium"),
    "StableLM": decoder("StableLm"),
    "StarCoder 2": decoder("Starcoder2", residual_dropout=0.0, embedding_dropout=0.0),
    "Nemotron": decoder("Nemotron"),
    "Apertus": decoder("Apertus"),
    "DiffLlama": decoder("DiffLlama", num_key_value_heads=2),
    "Arcee": decoder("Arcee"),
    "Seed-OSS": decoder("SeedOss", attention_dropout=0.0, residual_dropout=0.0),
    "EXAONE 4": decoder("Exaone4", sliding_window=4),
    "BitNet": decoder("BitNet"),
    "nanochat": decoder("NanoChat"),
    "GPT-J": Entry(
        build=of("GPTJForCausalLM", "GPTJConfig", vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16,
                 rotary_dim=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
        **LANGUAGE,
    ),
    "MPT": Entry(
        build=of("MptForCausalLM", "MptConfig", vocab_size=WORDS, d_model=16, n_layers=2, n_heads=2, max_seq_len=16),
        **LANGUAGE,
    ),
    "OLMoE": routed("Olmoe", num_experts=4, num_experts_per_tok=2),
    "Granite MoE": routed("GraniteMoe", num_local_experts=4, num_experts_per_tok=2),
    "Phi-3.5 MoE": Entry(
        skips=LOW, build=moe("Phimoe", num_local_experts=4, num_experts_per_tok=2), **LANGUAGE, terms=causal_terms
    ),
    "Qwen2-MoE": routed("Qwen2Moe", num_experts=4, **EXPERTS, shared_expert_intermediate_size=16),
    "ERNIE 4.5 MoE": routed("Ernie4_5_Moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=16,
                            moe_num_shared_experts=1),
    "GLM-4 MoE": routed("Glm4Moe", n_routed_experts=4, **EXPERTS, n_group=1, topk_group=1, n_shared_experts=1,
                        first_k_dense_replace=1),
    "Llama 4": Entry(
        skips=LOW,
        build=of("Llama4ForCausalLM", "Llama4TextConfig", **GROUPED, intermediate_size_mlp=32, num_local_experts=4,
                 num_experts_per_tok=1, attention_chunk_size=4, interleave_moe_layer_step=2),
        **LANGUAGE,
    ),
    "Qwen3-Next": Entry(
        skips=LOW,
        build=of("Qwen3NextForCausalLM", "Qwen3NextConfig", **GROUPED, num_experts=4, **EXPERTS,
                 shared_expert_intermediate_size=16, linear_num_key_heads=2, linear_num_value_heads=2,
                 linear_key_head_dim=8, linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"]),
        **LANGUAGE,
    ),
    "LFM2": decoder("Lfm2", layer_types=["conv", "full_attention"], block_multiple_of=8),
    "Falcon-H1": decoder("FalconH1", **STATE, mamba_d_ssm=32, mamba_chunk_size=4),
    "Granite 4 hybrid": Entry(
        skips=LOW,
        build=of("GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig", **GROUPED, **STATE, mamba_chunk_size=4,
                 num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=16,
                 layer_types=["mamba", "attention"]),
        **LANGUAGE,
    ),
    "RecurrentGemma": decoder("RecurrentGemma", attention_window_size=4, lru_width=16,
                              block_types=["recurrent", "attention"]),
    "ModernBERT": Entry(
        build=of("ModernBertForMaskedLM", "ModernBertConfig", **SMALL, local_attention=4,
                 global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2),
        batch=masked,
        **OWN,
    ),
    "ModernBERT classifier": Entry(
        build=of("ModernBertForSequenceClassification", "ModernBertConfig", **SMALL, num_labels=CLASSES,
                 local_attention=4, cls_token_id=1, sep_token_id=2),
        **TEXT,
    ),
}  # fmt: skip
