"""Tiny configurations of models in ``transformers``, with the loss they compute themselves."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo_entry import CLASSES, TOKENS, WORDS, Batch, Entry

SMALL: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 1, "head_dim": 8}
STILL: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IMAGE = {"image_size": 8, "patch_size": 4, "num_channels": 3}
LOW = ("autocast", "bfloat16")
"""Modes in which rounding decides which expert sees a word, so that no two runs are of one model."""

EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
STATE: dict[str, Any] = {
    "mamba_d_state": 4,
    "mamba_d_conv": 3,
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
}


def of(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of a class and a configuration in ``transformers``."""

    def build() -> nn.Module:
        model: nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**options))
        with torch.no_grad():  # the usual initial weights are so small that the gradient of attention is all rounding
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1 and not name.endswith("A_log"):
                    parameter.normal_(0.0, 0.25)
        return model.train()

    return build


def tokens(examples: int, generator: torch.Generator) -> Tensor:
    return torch.randint(3, WORDS, (examples, TOKENS), generator=generator)


def causal(examples: int, generator: torch.Generator) -> Batch:
    ids = tokens(examples, generator)
    return {"input_ids": ids, "labels": ids}


def masked(examples: int, generator: torch.Generator) -> Batch:
    return {"input_ids": tokens(examples, generator), "labels": tokens(examples, generator)}


def padded(examples: int, generator: torch.Generator) -> Batch:
    """Sequences of several lengths, padded on the right."""
    ids = tokens(examples, generator)
    lengths = torch.randint(3, TOKENS + 1, (examples, 1), generator=generator)
    valid = torch.arange(TOKENS) < lengths
    labels = ids.masked_fill(~valid, -100)
    return {"input_ids": ids.masked_fill(~valid, 0), "attention_mask": valid.long(), "labels": labels}


def predicted_share(batch: Batch) -> Tensor:
    """The share of every example in the mean over predicted words."""
    predicted = (batch["labels"][:, 1:] != -100).sum(1).float()
    return predicted / predicted.sum()


def classified(examples: int, generator: torch.Generator) -> Batch:
    return {
        "input_ids": tokens(examples, generator), "labels": torch.randint(CLASSES, (examples,), generator=generator),
    }  # fmt: skip


def images(examples: int, generator: torch.Generator) -> Batch:
    labels = torch.randint(CLASSES, (examples,), generator=generator)
    pixels = torch.randn(examples, 3, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1) / 3
    return {"pixel_values": pixels, "labels": labels}


def speech(examples: int, generator: torch.Generator) -> Batch:
    return {
        "input_features": torch.randn(examples, 8, 16, generator=generator), "labels": tokens(examples, generator),
    }  # fmt: skip


def captioned(examples: int, generator: torch.Generator) -> Batch:
    return {"input_ids": tokens(examples, generator), "pixel_values": images(examples, generator)["pixel_values"]}


def contrastive(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(**batch, return_loss=True).loss
    return loss


def balanced(model: nn.Module, batch: Batch) -> Tensor:
    """The mean over words and the balancing loss; the Trainer would not scale the latter with the former."""
    loss: Tensor = model(**batch).loss
    return loss


def causal_terms(model: nn.Module, batch: Batch) -> Tensor:
    """What every sequence adds to the mean over predicted words."""
    logits, labels = model(**batch).logits[:, :-1].float(), batch["labels"][:, 1:]
    return functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(1) / len(labels)


def class_terms(model: nn.Module, batch: Batch) -> Tensor:
    logits, labels = model(**batch).logits.float(), batch["labels"]
    return functional.cross_entropy(logits, labels, reduction="none") / len(labels)


LABELS = {"num_labels": CLASSES}
OWN: dict[str, Any] = {"blocks": None, "compiled": False}
LANGUAGE: dict[str, Any] = {"batch": causal, **OWN}
TEXT: dict[str, Any] = {"batch": classified, **OWN}


def language(kind: str, config: str = "", **options: Any) -> Entry:
    """A language model."""
    return Entry(build=of(f"{kind}ForCausalLM", config or f"{kind}Config", **options), **LANGUAGE)


def decoder(kind: str, config: str = "", **options: Any) -> Entry:
    """One with grouped attention."""
    return language(kind, config, **{**GROUPED, **options})


def routed(kind: str, config: str = "", **options: Any) -> Entry:
    """One with grouped attention and experts."""
    return replace(decoder(kind, config, **options), skips=LOW)


def classifier(kind: str, **options: Any) -> Entry:
    """Of whole sequences."""
    return Entry(build=of(f"{kind}ForSequenceClassification", f"{kind}Config", **options, **LABELS), **TEXT)


def gpt2(dropout: float) -> Callable[[], nn.Module]:
    return of(
        "GPT2LMHeadModel", "GPT2Config", vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


MIXTRAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
TRANSFORMERS = {
    "GPT-2": Entry(build=gpt2(0.0), batch=causal, blocks=None),
    "GPT-2 with dropout": Entry(build=gpt2(0.1), **LANGUAGE, terms=causal_terms),
    "Llama": decoder("Llama"),
    "Llama, tied": decoder("Llama", tie_word_embeddings=True),
    "Llama, padded": replace(decoder("Llama"), batch=padded, shares=predicted_share),
    "Mistral": decoder("Mistral", sliding_window=4),
    "Qwen2": language("Qwen2", **SMALL, num_key_value_heads=1),
    "Qwen3": decoder("Qwen3"),
    "Gemma": decoder("Gemma"),
    "Gemma 2": decoder("Gemma2", sliding_window=4),
    "Mixtral": routed("Mixtral", **MIXTRAL),
    "Mixtral with balancing loss": replace(
        routed("Mixtral", **MIXTRAL, output_router_logits=True, router_aux_loss_coef=0.1), only_check=True,
        loss=balanced,
    ),
    "Qwen3-MoE": routed("Qwen3Moe", num_experts=4, **EXPERTS),
    "OPT": language(
        "OPT", vocab_size=WORDS, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=16, word_embed_proj_dim=16, dropout=0.0, pad_token_id=1,
    ),
    "GPT-NeoX": language("GPTNeoX", **SMALL),
    "Bloom": language("Bloom", vocab_size=WORDS, hidden_size=16, n_layer=2, n_head=2),
    "Phi": language("Phi", **SMALL),
    "Falcon": language("Falcon", vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2),
    "Mamba": language(
        "Mamba", vocab_size=WORDS, hidden_size=16, state_size=4, num_hidden_layers=2, conv_kernel=3, time_step_rank=2
    ),
    "Funnel": Entry(
        build=of(
            "FunnelForMaskedLM", "FunnelConfig", vocab_size=WORDS, block_sizes=[1, 1], num_decoder_layers=1, d_model=16,
            n_head=2, d_head=8, d_inner=32, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        ),
        batch=masked,
        blocks=("funnel.encoder.blocks.0.0", "funnel.encoder.blocks.1.0", "funnel.decoder.layers.0"),
        compiled=False,
    ),
    "RWKV": language(
        "Rwkv", vocab_size=WORDS, hidden_size=16, attention_hidden_size=16, num_hidden_layers=2, context_length=16
    ),
    "DeepSeek-V3": replace(
        language(
            "DeepseekV3", **SMALL, num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4,
            qk_nope_head_dim=4, v_head_dim=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
            n_shared_experts=1, moe_intermediate_size=16, first_k_dense_replace=1,
        ),
        skips=LOW,
    ),
    "gpt-oss": routed(
        "GptOss", **MIXTRAL, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
    ),
    "BERT": Entry(build=of("BertForMaskedLM", "BertConfig", **SMALL, **STILL), batch=masked, **OWN),
    "BERT classifier with dropout": replace(classifier("Bert", **SMALL), terms=class_terms),
    "RoBERTa": classifier("Roberta", **{**SMALL, "pad_token_id": 1}, **STILL),
    "DistilBERT": classifier(
        "DistilBert", vocab_size=WORDS, dim=16, hidden_dim=32, n_layers=2, n_heads=2, max_position_embeddings=16,
        dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    ),
    "ALBERT": replace(
        classifier("Albert", **SMALL, **STILL, embedding_size=8, classifier_dropout_prob=0.0), blocks=()
    ),
    "ELECTRA": classifier("Electra", **SMALL, **STILL, embedding_size=8),
    "DeBERTa-v2": classifier(
        "DebertaV2", **SMALL, **STILL, relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False
    ),
    "T5": Entry(
        build=of("T5ForConditionalGeneration", "T5Config", vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=2,
                 num_heads=2, dropout_rate=0.0, decoder_start_token_id=0),
        batch=masked,
        **OWN,
    ),
    "BART": Entry(
        build=of("BartForConditionalGeneration", "BartConfig", vocab_size=WORDS, d_model=16, encoder_layers=1,
                 decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
                 decoder_ffn_dim=32, max_position_embeddings=16, dropout=0.0, bos_token_id=1, pad_token_id=0,
                 eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2),
        batch=masked,
        **OWN,
    ),
    "Whisper": Entry(
        build=of("WhisperForConditionalGeneration", "WhisperConfig", vocab_size=WORDS, num_mel_bins=8, d_model=16,
                 encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
                 encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=8, max_target_positions=8,
                 pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, dropout=0.0),
        batch=speech,
        **OWN,
    ),
    "ViT": Entry(
        build=of("ViTForImageClassification", "ViTConfig", **{**SMALL, "vocab_size": 1}, **STILL, **LABELS, **IMAGE),
        batch=images,
        **OWN,
    ),
    "ConvNeXt": Entry(
        build=of("ConvNextForImageClassification", "ConvNextConfig", num_channels=3, image_size=16, patch_size=2,
                 num_stages=2, hidden_sizes=[8, 16], depths=[1, 1], **LABELS),
        batch=images,
        compiled=False,
    ),
    "CLIP": Entry(
        build=of("CLIPModel", "CLIPConfig", projection_dim=8, text_config=SMALL,
                 vision_config={**{key: SMALL[key] for key in SMALL if "hidden" in key or "num" in key},
                                "intermediate_size": 32, **IMAGE}),
        batch=captioned,
        loss=contrastive,
        **OWN,
    ),
}  # fmt: skip

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
    "GPT-J": language(
        "GPTJ", vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16, rotary_dim=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    ),
    "MPT": language("Mpt", vocab_size=WORDS, d_model=16, n_layers=2, n_heads=2, max_seq_len=16),
    "OLMoE": routed("Olmoe", num_experts=4, num_experts_per_tok=2),
    "Granite MoE": routed("GraniteMoe", **MIXTRAL),
    "Phi-3.5 MoE": replace(routed("Phimoe", **MIXTRAL), terms=causal_terms),
    "Qwen2-MoE": routed("Qwen2Moe", num_experts=4, **EXPERTS, shared_expert_intermediate_size=16),
    "ERNIE 4.5 MoE": routed("Ernie4_5_Moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=16,
                            moe_num_shared_experts=1),
    "GLM-4 MoE": routed("Glm4Moe", n_routed_experts=4, **EXPERTS, n_group=1, topk_group=1, n_shared_experts=1,
                        first_k_dense_replace=1),
    "Llama 4": routed(
        "Llama4", "Llama4TextConfig", intermediate_size_mlp=32, num_local_experts=4, num_experts_per_tok=1,
        attention_chunk_size=4, interleave_moe_layer_step=2,
    ),
    "Qwen3-Next": routed(
        "Qwen3Next", num_experts=4, **EXPERTS, shared_expert_intermediate_size=16, linear_num_key_heads=2,
        linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "LFM2": decoder("Lfm2", layer_types=["conv", "full_attention"], block_multiple_of=8),
    "Falcon-H1": decoder("FalconH1", **STATE, mamba_d_ssm=32, mamba_chunk_size=4),
    "Granite 4 hybrid": routed(
        "GraniteMoeHybrid", **STATE, **MIXTRAL, mamba_chunk_size=4, shared_intermediate_size=16,
        layer_types=["mamba", "attention"],
    ),
    "RecurrentGemma": decoder("RecurrentGemma", attention_window_size=4, lru_width=16,
                              block_types=["recurrent", "attention"]),
    "ModernBERT": Entry(
        build=of("ModernBertForMaskedLM", "ModernBertConfig", **SMALL, local_attention=4,
                 global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2),
        batch=masked,
        **OWN,
    ),
    "ModernBERT classifier": classifier("ModernBert", **SMALL, local_attention=4, cls_token_id=1, sep_token_id=2),
}  # fmt: skip
