"""Reading a published config file."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from deepinfer_core.config.checkpoint import parse_config, read_architecture
from deepinfer_core.errors import ConfigError

OFF = object()


def edited(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with changes to ``section__key`` (a key of ``text_config`` without a section); ``OFF`` removes."""
    config = copy.deepcopy(config)
    for path, value in changes.items():
        *sections, leaf = path.split("__") if "__" in path else ("text_config", path)
        node = config
        for section in filter(None, sections):
            node = node[section]
        if value is OFF:
            del node[leaf]
        else:
            node[leaf] = value
    return config


def problems(config: dict[str, Any]) -> tuple[str, ...]:
    return parse_config(config).problems


def test_released_config_gives_the_documented_architecture(released: dict[str, Any]) -> None:
    model, unused = read_architecture(released)

    assert (model.num_layers, model.hidden_size, model.vocab_size, model.norm_eps) == (40, 5120, 129280, 1e-20)
    assert model.num_encoder_layers == 20
    assert model.compress_ratios == (0,) * 2 + (2,) * 18 + (1,) * 20
    assert model.num_mixes == 24
    assert model.index_key_source_layers == model.kv_source_layers == (2, 8, 14, 20)
    assert model.indexer.candidate_blocks * model.indexer.candidate_block_size == 16384
    assert model.attention.rope_scaling is not None
    assert model.attention.rope_scaling.factor == 16
    assert model.attention.fp4_main_cache
    assert model.hyper_connection.shifted
    assert model.engram is not None
    assert model.engram.width == 6144
    assert model.draft is not None
    assert (model.draft.experts.num_experts, model.draft.experts.experts_per_token) == (128, 3)
    assert model.draft.experts.inner_size == model.experts.inner_size == 2304
    assert model.vision is not None
    assert model.tokenizer_compatibility == "release"
    assert unused == (
        "transformers_version",
        "text_config.model_type",
        "text_config.initializer_range",
        "text_config.use_cache",
        "vision_config.model_type",
    )


def test_misspelt_required_key_is_named_with_what_was_found(released: dict[str, Any]) -> None:
    config = edited(released, hidden_size=OFF, hiden_size=5120)

    assert problems(config) == ("text_config.hidden_size is required but absent; did you mean 'hiden_size'?",)


def test_misspelt_section_is_named_with_what_was_found(released: dict[str, Any]) -> None:
    config = {("text_cfg" if key == "text_config" else key): value for key, value in released.items()}

    assert problems(config)[0] == "text_config is absent; it must be an object; did you mean 'text_cfg'?"


def test_misspelt_optional_key_is_listed_with_a_hint(released: dict[str, Any]) -> None:
    parsed = parse_config(edited(released, hc_shited=False))

    assert not parsed.problems
    assert "text_config.hc_shited" in parsed.unused
    assert parsed.hints == ("text_config.hc_shited is not used; did you mean 'hc_shifted'?",)


def test_every_problem_is_reported_at_once(released: dict[str, Any]) -> None:
    config = edited(released, __model_type="deepseek_v4", hidden_size=OFF, num_key_value_heads=2, o_groups=7)

    with pytest.raises(ConfigError) as refused:
        read_architecture(config)

    found = "\n".join(refused.value.problems)
    assert len(refused.value.problems) == 4
    for part in ("model_type is 'deepseek_v4'", "hidden_size is required", "num_key_value_heads is 2", "o_groups 7"):
        assert part in found


def test_wrong_model_type_names_both(released: dict[str, Any]) -> None:
    assert problems(edited(released, __model_type="deepseek_v4")) == (
        "model_type is 'deepseek_v4'; only 'deepseek_v41' is supported",
    )


def test_wrong_block_size_names_both_and_leaves_the_architecture_known(released: dict[str, Any]) -> None:
    parsed = parse_config(edited(released, quantization_config__weight_block_size=[128, 128]))

    assert len(parsed.problems) == 1
    assert "weight_block_size is [128, 128]; only [32, 32] is supported" in parsed.problems[0]
    assert parsed.architecture is not None


@pytest.mark.parametrize("key", ["quant_method", "expert_dtype", "activation_scheme", "weight_block_size", "scale_fmt"])
def test_absent_quantization_key_is_refused(released: dict[str, Any], key: str) -> None:
    config = edited(released, **{f"quantization_config__{key}": OFF})

    assert problems(config) == (f"quantization_config.{key} is required but absent",)


@pytest.mark.parametrize("source", [None, -1])
def test_null_and_negative_candidate_source_both_mean_off(released: dict[str, Any], source: int | None) -> None:
    config = edited(released, candidate_source_layer_id=source, candidate_topk_blocks=OFF, candidate_block_size=OFF)

    model, _ = read_architecture(config)

    assert model.indexer.candidate_source_layer is None
    assert not any(model.uses_candidates(layer) for layer in range(model.num_layers))


@pytest.mark.parametrize("limit", [None, 0, -1.0])
def test_null_or_nonpositive_swiglu_limit_means_no_clamp(released: dict[str, Any], limit: float | None) -> None:
    model, _ = read_architecture(edited(released, swiglu_limit=limit))

    assert model.experts.swiglu_limit is None


@pytest.mark.parametrize("scaling", [None, {}, OFF])
def test_absent_rope_scaling_means_plain_rotary(released: dict[str, Any], scaling: object) -> None:
    model, _ = read_architecture(edited(released, rope_scaling=scaling))

    assert model.attention.rope_scaling is None


def test_incomplete_rope_scaling_is_refused(released: dict[str, Any]) -> None:
    config = edited(released, text_config__rope_scaling__beta_fast=OFF)

    assert problems(config) == ("text_config.rope_scaling.beta_fast is required but absent",)


def test_older_spelling_of_dtype_is_accepted(released: dict[str, Any]) -> None:
    model, unused = read_architecture(edited(released, __dtype=OFF, __torch_dtype="bfloat16"))

    assert model.num_layers == 40
    assert "torch_dtype" not in unused


def test_stated_table_rows_are_compared_with_the_primes(released: dict[str, Any]) -> None:
    found = problems(edited(released, engram_num_embeddings=[384006168, 384016681]))

    assert len(found) == 1
    assert "[384006168, 384016681]" in found[0]
    assert "[384006168, 384016682]" in found[0]


def test_table_rows_need_not_be_stated(released: dict[str, Any]) -> None:
    assert not problems(edited(released, engram_num_embeddings=OFF))


def test_model_without_engram_draft_and_vision_needs_none_of_their_keys(released: dict[str, Any]) -> None:
    text = {
        key: value
        for key, value in released["text_config"].items()
        if not key.startswith(("engram_", "dspark_")) and key != "num_nextn_predict_layers"
    }
    text["compress_ratios"] = text["compress_ratios"][:40]

    model, _ = read_architecture({**released, "text_config": text, "vision_config": {"num_hidden_layers": 0}})

    assert (model.engram, model.draft, model.vision) == (None, None, None)


def test_optional_keys_override_their_defaults(released: dict[str, Any]) -> None:
    config = edited(released, hc_shifted=False, use_fp4_sparse_kv=False, index_k_source_layer_ids=[2, 8, 14, 20, 28])

    model, _ = read_architecture(config)

    assert not model.hyper_connection.shifted
    assert not model.attention.fp4_main_cache
    assert model.index_key_source(30) == 28


def test_null_optional_keys_are_as_good_as_absent(released: dict[str, Any]) -> None:
    config = edited(released, engram_layer_ids=None, index_k_source_layer_ids=None, hc_shifted=None)

    model, _ = read_architecture(config)

    assert model.engram is None
    assert model.index_key_source_layers == model.kv_source_layers
    assert model.hyper_connection.shifted


def test_limits_of_released_kernels_are_not_limits_of_the_format(released: dict[str, Any]) -> None:
    """Rotary width, candidate blocks and index head width of the small test models."""
    config = edited(
        released,
        qk_rope_head_dim=32,
        candidate_topk_blocks=6,
        candidate_block_size=4,
        index_topk=16,
        index_head_dim=64,
        n_routed_experts=7,
        engram_head_dim=32,
    )

    assert not problems(config)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"__architectures": ["DeepseekV4ForCausalLM"]}, "only ['DeepseekV41ForCausalLM'] is supported"),
        ({"__dtype": "float16"}, "only 'bfloat16' is supported"),
        ({"__tokenizer_compatibility": "other"}, "it must be 'release' or 'native'"),
        ({"__eos_token_id": 129280}, "it must be below text_config.vocab_size 129280"),
        ({"num_hidden_layers": True}, "it must be a whole number, 1 or more"),
        ({"rms_norm_eps": "1e-20"}, "it must be a number, 0 or more"),
        ({"rope_theta": float("nan")}, "it must be a number above 0"),
        ({"attention_bias": 0}, "only False is supported"),
        ({"tie_word_embeddings": True}, "only False is supported"),
        ({"attention_dropout": 0.1}, "only 0.0 is supported"),
        ({"gate_temp": 2.0}, "only 1.0 is supported"),
        ({"scoring_func": "softmax"}, "only 'sqrtsoftplus' is supported"),
        ({"hidden_size": 5121}, "must be a multiple of 32"),
        ({"o_groups": 7}, "it must be divisible by text_config.o_groups 7"),
        ({"qk_rope_head_dim": 63}, "it must be even, below head_dim 512"),
        ({"qk_rope_head_dim": 256}, "at most index_head_dim 128"),
        ({"num_experts_per_tok": 385}, "it must be at most text_config.n_routed_experts 384"),
        ({"dspark_num_experts_per_tok": 129}, "it must be at most text_config.dspark_n_routed_experts 128"),
        ({"compress_ratios": [0, 1]}, "it must have num_hidden_layers 40"),
        ({"compress_ratios": [4] * 43}, "it must be a list of the numbers 0, 1 and 2"),
        ({"compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0, 0, 1]}, "draft layers must have ratio 0"),
        ({"compress_ratios": [0] * 2 + [2] * 38 + [0] * 3}, "no layer of ratio 1"),
        ({"compress_ratios": [0] * 2 + [2] * 17 + [1] * 21 + [0] * 3}, "share the KV source 14 but have ratios [1, 2]"),
        ({"compress_ratios": [0, 2] + [2] * 18 + [1] * 20 + [0] * 3}, "layer 1 has ratio 2 but no KV source"),
        ({"kv_source_layer_ids": [8, 2, 14, 20]}, "in ascending order"),
        ({"kv_source_layer_ids": [0, 2, 8, 14, 20]}, "names layer 0, whose ratio is 0"),
        ({"kv_source_layer_ids": [2, 8, 14]}, "layer 20 is the first of ratio 1; it must be in"),
        ({"kv_source_layer_ids": [2, 8, 14, 20, 28]}, "the last KV source must be layer 20"),
        ({"index_source_layer_ids": [2, 8, 14, 20, 40]}, "the model has layers 0 to 39"),
        ({"index_source_layer_ids": [2, 14, 20]}, "index-key source layers [8] are not in"),
        ({"index_k_source_layer_ids": [2, 8, 20]}, "KV source layers [14] are not in"),
        ({"candidate_source_layer_id": 21}, "it must be in index_source_layer_ids"),
        ({"candidate_source_layer_id": 14}, "layer 20 selects among candidates of layer 14 but has another ratio"),
        ({"candidate_topk_blocks": 63}, "504 entries cannot fill index_topk 512"),
        ({"candidate_block_size": 12}, "it must divide 128"),
        ({"hc_mult": 1}, "a model with engram layers needs 2 or more"),
        ({"engram_layer_ids": [1, 20]}, "it must be before layer 20"),
        ({"engram_layer_ids": [1, 1]}, "each once"),
        ({"engram_compressed_vocab_size": OFF}, "engram_compressed_vocab_size is required but absent"),
        ({"dspark_target_layer_ids": [19, 38, 39]}, "lie on both sides of layer 20"),
        ({"dspark_target_layer_ids": [38, 40]}, "names [40]; the model has layers 0 to 39"),
        ({"dspark_target_layer_ids": []}, "needs at least one"),
        ({"dspark_target_attn_input": False}, "only True is supported"),
        ({"dspark_markov_rank": 0}, "1 or more"),
        ({"rope_scaling": {"rope_type": "linear"}}, "only 'yarn' is supported"),
        ({"rope_scaling": 16}, "text_config.rope_scaling is 16; it must be an object"),
        ({"vision_config__num_attention_heads": 3}, "must be a multiple of 4"),
        ({"vision_config__min_pixels": 100}, "= 1764 or more"),
        ({"vision_config__max_wh_ratio": 0.5}, "it must be a number, 1 or more"),
        ({"vision_config__max_wh_ratio": OFF}, "max_wh_ratio is required but absent"),
    ],
)
def test_value_against_the_rules_is_refused(released: dict[str, Any], changes: dict[str, Any], part: str) -> None:
    found = problems(edited(released, **changes))

    assert any(part in problem for problem in found), found


def test_config_that_is_no_model_at_all_is_refused_in_words() -> None:
    found = problems({})

    assert "text_config is absent; it must be an object" in found
    assert "model_type is required but absent" in found
