"""Which parameters the matrix part takes: the rule, the override, what is refused; how they are read as matrices."""

import importlib.util
import re
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS, build_optimizer
from cbs.optimizers.layout import LAYOUTS, as_matrices, as_parameter, kinds
from cbs.optimizers.routing import route
from cbs.trial.config import Choice

ROUTED = [name for name in OPTIMIZERS.names() if "matrices" in OPTIMIZERS[name].defaults]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24, bias=False)
        self.output = nn.Linear(8, 8)


class Transformer(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.positions = nn.Embedding(5, 8)
        self.pos_embed = nn.Parameter(torch.zeros(5, 8))
        self.patches = nn.Conv2d(3, 8, 2, bias=False)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


HIDDEN = ["blocks.0.qkv.weight", "blocks.0.output.weight", "blocks.1.qkv.weight", "blocks.1.output.weight"]


def names(model: nn.Module, matrices: object = "hidden") -> list[str]:
    return [entry.name for entry in route(model, matrices).routes if entry.is_matrix]


@pytest.mark.parametrize("tied", [True, False])
def test_the_rule_takes_the_matrices_between_hidden_layers(tied: bool) -> None:
    model = Transformer(tied)
    assert names(model) == HIDDEN
    assert [id(param) for param in route(model).matrices] == [id(model.get_parameter(name)) for name in HIDDEN]


def test_kernels_are_taken_when_asked_for() -> None:
    model = Transformer(tied=False)
    assert names(model, "kernels") == ["patches.weight", *HIDDEN]
    assert names(model, ["hidden", "patches.weight"]) == ["patches.weight", *HIDDEN]
    assert names(model, ["kernels", "!blocks.*", "head.*"]) == ["patches.weight", "head.weight"]
    assert {entry.reason for entry in route(model, "kernels").routes if entry.is_matrix} == {"kernel", "hidden"}
    assert "by override" in {entry.reason for entry in route(model, ["hidden", "patches.weight"]).routes}


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["blocks.0.qkv.weight"], HIDDEN[:1]),
        (["blocks.*.qkv.weight", "head.*"], [HIDDEN[0], HIDDEN[2], "head.weight"]),
        (["blocks.[01].*qkv.weight", "!blocks.1.*"], HIDDEN[:1]),
        (["!blocks.0.*"], HIDDEN[2:]),
        (["!blocks.*", "blocks.1.q??.weight"], HIDDEN[2:3]),
        (["!*"], []),
    ],
)
def test_patterns_add_and_take_away_in_order(patterns: list[str], expected: list[str]) -> None:
    assert names(Transformer(tied=False), patterns) == expected
    assert names(Transformer(tied=False), tuple(patterns)) == expected


def test_a_shared_parameter_is_found_under_each_of_its_names() -> None:
    for pattern in ("tokens.weight", "head.weight"):
        assert names(Transformer(tied=True), [pattern]) == ["tokens.weight"]


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ("hiden", """matrices must be "hidden", "kernels", "all" or a list of patterns, got 'hiden'"""),
        ([], 'matrices must be "hidden", "kernels", "all" or a list of patterns'),
        ([3], 'matrices must be "hidden", "kernels", "all" or a list of patterns'),
        (["block.0.qkv.weight"], "matches no trainable parameter: did you mean blocks.0.qkv.weight"),
        (["zzz"], "matches no trainable parameter: there are pos_embed, tokens.weight, positions.weight"),
        (["blocks.0.*"], "matches 'blocks.0.norm.weight', which is not a matrix: did you mean blocks.0.qkv.weight or"),
        (["blocks.0.norm.weight"], "matches 'blocks.0.norm.weight', which is not a matrix"),
        (["hidden", "zzz"], "'zzz' of matrices matches no trainable parameter"),
        (["!head.*"], "'!head.*' of matrices removes nothing: there are blocks.0.qkv.weight"),
        (["!block.0.qkv.weight"], "removes nothing: did you mean blocks.0.qkv.weight"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(matrices: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        route(Transformer(tied=False), matrices)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ROUTED)
def test_every_routed_optimizer_has_the_override(name: str) -> None:
    model = Transformer(tied=False)
    optimizer = build_optimizer(Choice(name=name, options={"matrices": ["head.weight"]}), model, 0.01)
    assert [id(param) for param in optimizer.param_groups[0]["params"]] == [id(model.head.weight)]
    with pytest.raises(ConfigError, match=f"optimizer '{name}' refuses its options: pattern 'heda'"):
        build_optimizer(Choice(name=name, options={"matrices": ["heda"]}), model, 0.01)


H, E, N, OUT = "hidden", "embedding", "not a matrix", "output layer"
IN_OUT = ("hidden", "in_out")
STACK, TURNED = ("experts", "experts_out_in"), ("experts", "experts_in_out")
ATTENTION = [f"self_attn.{name}_proj" for name in "qkvo"]


def bert(name: str) -> dict[str, str]:
    parts = [f"attention.self.{part}" for part in ("query", "key", "value")]
    parts += ["attention.output.dense", "intermediate.dense", "output.dense"]
    tables = {f"{name}.embeddings.{part}_embeddings": E for part in ("word", "position", "token_type")}
    return tables | {f"{name}.encoder.layer.*.{part}": H for part in parts}


ARCHITECTURES = {
    "GPT-2": {
        "transformer.wte": E, "transformer.wpe": E,
        **{f"transformer.h.*.{name}": IN_OUT for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")},
    },
    "Llama": {
        "model.embed_tokens": E, "lm_head": OUT,
        **{f"model.layers.*.{name}": H for name in (*ATTENTION, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")},
    },
    "Mixtral": {
        "model.embed_tokens": E, "lm_head": OUT, **{f"model.layers.*.{name}": H for name in ATTENTION},
        "model.layers.*.mlp.gate": "hidden?",
        "model.layers.*.mlp.experts.gate_up_proj": STACK, "model.layers.*.mlp.experts.down_proj": STACK,
    },
    "GPT-OSS": {
        "model.embed_tokens": E, "lm_head": OUT, **{f"model.layers.*.{name}": H for name in ATTENTION},
        "model.layers.*.mlp.router": "hidden?",
        **{f"model.layers.*.mlp.experts.{name}_proj": TURNED for name in ("gate_up", "down")},
        **{f"model.layers.*.mlp.experts.{name}_proj_bias": "not a matrix?" for name in ("gate_up", "down")},
    },
    "BERT": {
        **bert("bert"),
        "cls.predictions.transform.dense": H,
    },
    "BERT, untied": {
        **bert("bert"),
        "cls.predictions.transform.dense": H, "cls.predictions.decoder": OUT,
    },
    "RoBERTa": {
        **bert("roberta"),
        "classifier.dense": H, "classifier.out_proj": "output layer?",
    },
    "T5": {
        "shared": E,
        **{f"encoder.block.*.layer.*.SelfAttention.{name}": H for name in "qkvo"},
        **{f"decoder.block.*.layer.*.{kind}Attention.{name}": H for kind in ("Self", "EncDec") for name in "qkvo"},
        **{f"{side}coder.block.*.layer.*.DenseReluDense.{name}": H for side in ("en", "de") for name in ("wi", "wo")},
        **{f"{side}coder.block.*.layer.*.SelfAttention.relative_attention_bias": E for side in ("en", "de")},
    },
    "ViT": {
        "vit.embeddings.cls_token": N, "vit.embeddings.position_embeddings": N,
        "vit.embeddings.patch_embeddings.projection": "kernel",
        **{f"vit.layers.*.attention.{name}_proj": H for name in "qkvo"},
        "vit.layers.*.mlp.fc1": H, "vit.layers.*.mlp.fc2": H, "classifier": "output layer?",
    },
    "Mamba": {
        "backbone.embeddings": E, "backbone.layers.*.mixer.A_log": "not a matrix?", "backbone.layers.*.mixer.conv1d": N,
        **{f"backbone.layers.*.mixer.{name}_proj": H for name in ("in", "x", "dt", "out")},
    },
    "GPT-NeoX": {
        "gpt_neox.embed_in": E, "lm_head": OUT,
        **{f"gpt_neox.layers.*.attention.{name}": H for name in ("query_key_value", "dense")},
        **{f"gpt_neox.layers.*.mlp.dense_{name}": H for name in ("h_to_4h", "4h_to_h")},
    },
    "OPT": {
        "model.decoder.embed_tokens": E, "model.decoder.embed_positions": E,
        **{f"model.decoder.layers.*.self_attn.{name}_proj": H for name in ("q", "k", "v", "out")},
        "model.decoder.layers.*.fc1": H, "model.decoder.layers.*.fc2": H,
    },
    "Falcon": {
        "transformer.word_embeddings": E,
        **{f"transformer.h.*.self_attention.{name}": H for name in ("query_key_value", "dense")},
        **{f"transformer.h.*.mlp.dense_{name}": H for name in ("h_to_4h", "4h_to_h")},
    },
    "ConvNeXt": {
        "convnext.embeddings.patch_embeddings": "kernel", "convnext.encoder.stages.*.downsampling_layer.*": "kernel",
        "convnext.encoder.stages.*.layers.*.dwconv": N, "classifier": "output layer?",
        **{f"convnext.encoder.stages.*.layers.*.pwconv{place}": H for place in (1, 2)},
    },
}  # fmt: skip
"""What every parameter of two or more dimensions is, ``.weight`` left out; a question mark where it was guessed."""


def architecture(name: str) -> nn.Module:
    from benchmarks.zoo_transformers import GROUPED, SMALL, TRANSFORMERS, of

    others = {
        "BERT, untied": of("BertForMaskedLM", "BertConfig", **SMALL, tie_word_embeddings=False),
        "GPT-OSS": of("GptOssForCausalLM", "GptOssConfig", **GROUPED, num_local_experts=4, num_experts_per_tok=2),
    }
    return others[name]() if name in others else TRANSFORMERS[name].build()


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_of_transformers(name: str) -> None:
    model, found = architecture(name), {}
    for entry in route(model).routes:
        if entry.parameter.ndim < 2:
            assert (entry.kind, entry.guessed, entry.is_matrix) == (N, False, False), entry.name
            continue
        key = re.sub(r"\.\d+(?=\.|$)", ".*", entry.name.removesuffix(".weight"))
        told = entry.kind + "?" * entry.guessed
        assert found.setdefault(key, (told, entry.layout)) == (told, entry.layout)
        assert entry.is_matrix == (entry.kind in ("hidden", "experts"))
    expected = ARCHITECTURES[name].items()
    assert found == {key: (told, "out_in") if isinstance(told, str) else told for key, told in expected}


class Table(nn.Module):
    """Parameters of its own, in no module that tells what they are."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.ones(4, 3))
        self.A_log = nn.Parameter(torch.ones(4, 3))
        self.D = nn.Parameter(torch.ones(4, 3))
        self.D_proj = nn.Parameter(torch.ones(4, 3))
        self.dt_bias = nn.Parameter(torch.ones(4, 3))
        self.pos_table = nn.Parameter(torch.ones(4, 3))
        self.mask_token = nn.Parameter(torch.ones(1, 3))
        self.column = nn.Parameter(torch.ones(4, 1))
        self.experts = nn.Parameter(torch.ones(2, 4, 3))
        self.class_token = nn.Parameter(torch.ones(2, 4, 3))
        self.leading = nn.Parameter(torch.ones(1, 4, 3))
        self.four = nn.Parameter(torch.ones(2, 2, 4, 3))
        self.attention = nn.MultiheadAttention(4, 2)
        self.recurrent = nn.LSTM(4, 3)
        self.norm = nn.LayerNorm((4, 3))
        self.up = nn.ConvTranspose2d(3, 4, 2)
        self.grouped = nn.Conv2d(4, 4, 2, groups=2)


def test_parameters_without_a_telling_module_are_told_by_name_and_shape() -> None:
    routes = {entry.name: entry for entry in route(Table()).routes if entry.parameter.ndim > 1}
    told = {name: entry.kind + "?" * entry.guessed for name, entry in routes.items()}
    assert told == {
        "mix": "hidden?",
        "A_log": "not a matrix?",
        "D": "not a matrix?",
        "D_proj": "hidden?",
        "dt_bias": "not a matrix?",
        "pos_table": "embedding?",
        "mask_token": "embedding?",
        "column": "not a matrix?",
        "experts": "experts?",
        "class_token": "not a matrix?",
        "leading": N,
        "four": N,
        "attention.in_proj_weight": H,
        "attention.out_proj.weight": H,
        "recurrent.weight_ih_l0": H,
        "recurrent.weight_hh_l0": H,
        "norm.weight": N,
        "norm.bias": N,
        "up.weight": "kernel",
        "grouped.weight": "kernel",
    }
    assert routes["up.weight"].layout == "in_out"
    assert {entry.layout for name, entry in routes.items() if entry.kind == "hidden"} == {"out_in"}


class LanguageModel(nn.Module):
    """Its output layer is called what nobody calls it."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.places = nn.Embedding(6, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 11), nn.Linear(11, 8), nn.Linear(8, 6)])
        self.unusual = nn.Linear(8, outputs)


def warned(model: nn.Module, matrices: object = "hidden") -> Iterator[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        route(model, matrices)
    return (str(warning.message) for warning in caught)


def test_a_guess_is_warned_about_once_for_a_model_with_an_override_that_works() -> None:
    model = nn.ModuleList(Table() for _ in range(2))
    (message,) = warned(model)
    assert "\n" not in message
    assert message.startswith("ModuleList: guessed by name or shape: *.mix (hidden), *.A_log (not a matrix), ")
    assert "and 6 more" in message
    assert list(warned(model)) == []
    override = re.search(r'matrices=\["hidden", "(.*)"\]', message)
    assert names(model, ["hidden", override[1]]) == [name for name in names(model) if not name.endswith("mix")]
    (message,) = warned(LanguageModel(11))
    assert message.endswith('matrices=["hidden", "unusual.weight"]')
    assert "unusual.weight" in names(LanguageModel(11), ["hidden", "unusual.weight"])


def test_there_is_no_warning_where_nothing_was_guessed_or_the_user_said_what_is_what() -> None:
    plain = nn.ModuleList([nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5), nn.Conv2d(3, 4, 2), nn.LayerNorm(4)])
    plain[2].weight = plain[0].weight
    assert list(warned(plain)) == []
    assert list(warned(Table(), ["mix"])) == []


SHAPES = {
    "out_in": [(5, 3), (5, 3, 2, 2), (5, 3, 4)],
    "in_out": [(3, 5), (3, 5, 2, 2)],
    "experts_out_in": [(4, 5, 3)],
    "experts_in_out": [(4, 3, 5)],
}


@pytest.mark.parametrize(("layout", "shape"), [(layout, shape) for layout in LAYOUTS for shape in SHAPES[layout]])
def test_sides_views_and_inverse_agree(layout: str, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    matrices = as_matrices(tensor, layout)
    assert matrices.shape[-2] == 5
    assert matrices[..., 0, :].numel() == tensor.numel() // 5
    assert matrices.ndim == (3 if layout.startswith("experts") else 2)
    assert torch.equal(as_parameter(matrices, shape, layout), tensor)
    assert torch.equal(as_parameter(matrices.clone(), shape, layout), tensor)


def test_a_matrix_maps_the_inputs_of_its_module() -> None:
    x = torch.randn(2, 3)
    linear, kernel = nn.Linear(3, 5, bias=False), nn.Conv2d(3, 5, 2, bias=False)
    assert torch.equal(x @ as_matrices(linear.weight).T, linear(x))
    patch = torch.randn(1, 3, 2, 2)
    torch.testing.assert_close(as_matrices(kernel.weight) @ patch.flatten(), kernel(patch).flatten())
    back = nn.ConvTranspose2d(3, 5, 2, bias=False)
    place = torch.randn(1, 5, 2, 2)
    # The transposed convolution's adjoint is a convolution with 3 outputs, so its own matrix has the 3 as inputs.
    ahead = as_matrices(back.weight, "in_out")
    assert ahead.shape == (5, 3 * 4)
    adjoint = (back(torch.eye(3)[:, :, None, None]) * place).sum((1, 2, 3))
    torch.testing.assert_close((ahead.view(5, 3, 2, 2) * place[0][:, None]).sum((0, 2, 3)), adjoint)


def test_the_last_linear_layer_is_a_guess_and_that_inside_attention_is_not_it() -> None:
    last, attention = nn.Linear(8, 8), nn.MultiheadAttention(8, 2)
    found = kinds(nn.Sequential(nn.Linear(8, 8), last, attention))
    assert [guessed for _, _, guessed in found.values() if guessed] == [True]
    assert found[id(last.weight)] == ("hidden", "out_in", True)
    assert found[id(attention.out_proj.weight)] == ("hidden", "out_in", False)
