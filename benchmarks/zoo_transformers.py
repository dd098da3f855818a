"""Tiny configurations of models in ``transformers``, with the loss they compute themselves."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo_entry import CLASSES, TOKENS, WORDS, Batch, Entry

SMALL = {
    "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 1, "head_dim": 8}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IMAGE = {"image_size": 8, "patch_size": 4, "num_channels": 3}
LOW = ("autocast", "bfloat16")
"""Modes in which rounding decides which expert sees a word, so that no two runs are of one model."""

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
STATE = {"mamba_d_state": 4, "mamba_d_conv": 3, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1}


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


def llama(**options: Any) -> Callable[[], nn.Module]:
    return of("LlamaForCausalLM", "LlamaConfig", **GROUPED, **options)


def gpt2(dropout: float) -> Callable[[], nn.Module]:
    return of(
        "GPT2LMHeadModel", "GPT2Config", vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def moe(kind: str, **options: Any) -> Callable[[], nn.Module]:
    return of(f"{kind}ForCausalLM", f"{kind}Config", **GROUPED, **options)


LABELS = {"num_labels": CLASSES}
OWN: dict[str, Any] = {"blocks": None, "compiled": False}
LANGUAGE: dict[str, Any] = {"batch": causal, **OWN}
TEXT: dict[str, Any] = {"batch": classified, **OWN}
TRANSFORMERS = {
    "GPT-2": Entry(build=gpt2(0.0), batch=causal, blocks=None),
    "GPT-2 with dropout": Entry(build=gpt2(0.1), **LANGUAGE, terms=causal_terms),
    "Llama": Entry(build=llama(), **LANGUAGE),
    "Llama, tied": Entry(build=llama(tie_word_embeddings=True), **LANGUAGE),
    "Llama, padded": Entry(build=llama(), batch=padded, shares=predicted_share, **OWN),
    "Mistral": Entry(build=of("MistralForCausalLM", "MistralConfig", **GROUPED, sliding_window=4), **LANGUAGE),
    "Qwen2": Entry(build=of("Qwen2ForCausalLM", "Qwen2Config", **SMALL, num_key_value_heads=1), **LANGUAGE),
    "Qwen3": Entry(build=of("Qwen3ForCausalLM", "Qwen3Config", **GROUPED), **LANGUAGE),
    "Gemma": Entry(build=of("GemmaForCausalLM", "GemmaConfig", **GROUPED), **LANGUAGE),
    "Gemma 2": Entry(build=of("Gemma2ForCausalLM", "Gemma2Config", **GROUPED, sliding_window=4), **LANGUAGE),
    "Mixtral": Entry(skips=LOW, build=moe("Mixtral", num_local_experts=4, num_experts_per_tok=2), **LANGUAGE),
    "Mixtral with balancing loss": Entry(
        skips=LOW,
        only_check=True,
        build=moe(
            "Mixtral", num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.1
        ),
        **LANGUAGE,
        loss=balanced,
    ),
    "Qwen3-MoE": Entry(
        skips=LOW,
        build=moe("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16), **LANGUAGE
    ),
    "OPT": Entry(
        build=of(
            "OPTForCausalLM", "OPTConfig", vocab_size=WORDS, hidden_size=16, ffn_dim=32, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=16, word_embed_proj_dim=16, dropout=0.0, pad_token_id=1,
        ),
        **LANGUAGE,
    ),
    "GPT-NeoX": Entry(build=of("GPTNeoXForCausalLM", "GPTNeoXConfig", **SMALL), **LANGUAGE),
    "Bloom": Entry(
        build=of("BloomForCausalLM", "BloomConfig", vocab_size=WORDS, hidden_size=16, n_layer=2, n_head=2), **LANGUAGE
    ),
    "Phi": Entry(build=of("PhiForCausalLM", "PhiConfig", **SMALL), **LANGUAGE),
    "Falcon": Entry(
        build=of(
            "FalconForCausalLM", "FalconConfig", vocab_size=WORDS, hidden_size=16, num_hidden_layers=2,
            num_attention_heads=2,
        ),
        **LANGUAGE,
    ),
    "Mamba": Entry(
        build=of(
            "MambaForCausalLM", "MambaConfig", vocab_size=WORDS, hidden_size=16, state_size=4, num_hidden_layers=2,
            conv_kernel=3, time_step_rank=2,
        ),
        **LANGUAGE,
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
    "RWKV": Entry(
        build=of("RwkvForCausalLM", "RwkvConfig", vocab_size=WORDS, hidden_size=16, attention_hidden_size=16,
                 num_hidden_layers=2, context_length=16),
        **LANGUAGE,
    ),
    "DeepSeek-V3": Entry(
        skips=LOW,
        build=of(
            "DeepseekV3ForCausalLM", "DeepseekV3Config", **SMALL, num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=8,
            qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
            topk_group=1, n_shared_experts=1, moe_intermediate_size=16, first_k_dense_replace=1,
        ),
        **LANGUAGE,
    ),
    "gpt-oss": Entry(
        skips=LOW,
        build=of(
            "GptOssForCausalLM", "GptOssConfig", **GROUPED, num_local_experts=4, num_experts_per_tok=2,
            sliding_window=4, layer_types=["sliding_attention", "full_attention"],
        ),
        **LANGUAGE,
    ),
    "BERT": Entry(build=of("BertForMaskedLM", "BertConfig", **SMALL, **STILL), batch=masked, **OWN),
    "BERT classifier with dropout": Entry(
        build=of("BertForSequenceClassification", "BertConfig", **SMALL, **LABELS), **TEXT, terms=class_terms
    ),
    "RoBERTa": Entry(
        build=of(
            "RobertaForSequenceClassification", "RobertaConfig", **{**SMALL, "pad_token_id": 1}, **STILL, **LABELS
        ),
        **TEXT,
    ),
    "DistilBERT": Entry(
        build=of(
            "DistilBertForSequenceClassification", "DistilBertConfig", vocab_size=WORDS, dim=16, hidden_dim=32,
            n_layers=2, n_heads=2, max_position_embeddings=16, dropout=0.0, attention_dropout=0.0,
            seq_classif_dropout=0.0, **LABELS,
        ),
        **TEXT,
    ),
    "ALBERT": Entry(
        build=of("AlbertForSequenceClassification", "AlbertConfig", **SMALL, **STILL, **LABELS, embedding_size=8,
                 classifier_dropout_prob=0.0),
        batch=classified,
        compiled=False,
    ),
    "ELECTRA": Entry(
        build=of("ElectraForSequenceClassification", "ElectraConfig", **SMALL, **STILL, **LABELS, embedding_size=8),
        **TEXT,
    ),
    "DeBERTa-v2": Entry(
        build=of("DebertaV2ForSequenceClassification", "DebertaV2Config", **SMALL, **STILL, **LABELS,
                 relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False),
        **TEXT,
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
