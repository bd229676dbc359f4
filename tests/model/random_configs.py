"""Random valid configs: any topology of sources, any sizes that the format allows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any


def random_config(seed: int) -> dict[str, Any]:
    """Changes to the small config of :mod:`tests.model.configs`."""
    chance = random.Random(seed)
    window_layers, pair_layers, single_layers = chance.randint(0, 2), chance.randint(0, 4), chance.randint(1, 4)
    layers = window_layers + pair_layers + single_layers
    cut = window_layers + pair_layers
    draft_layers = chance.randint(0, 2)
    entries = _some(chance, range(window_layers, cut), always=window_layers) if pair_layers else []
    keys = sorted({*entries, cut, *_some(chance, range(window_layers, layers))})
    index = sorted({*keys, *_some(chance, range(window_layers, layers))})
    targets = range(cut) if cut and chance.random() < 0.4 else range(cut, layers)
    block_size = chance.choice([1, 2, 4, 8, 16])
    top_k = chance.randint(1, 12)
    heads = chance.choice([1, 2, 3])
    return {
        "num_hidden_layers": layers,
        "compress_ratios": [0] * window_layers + [2] * pair_layers + [1] * single_layers + [0] * draft_layers,
        "kv_source_layer_ids": [*entries, cut],
        "index_k_source_layer_ids": keys,
        "index_source_layer_ids": index,
        "candidate_source_layer_id": chance.choice([None, -1, *(layer for layer in index if layer >= cut)]),
        "candidate_block_size": block_size,
        "candidate_topk_blocks": -(-top_k // block_size) + chance.randint(0, 3),
        "index_topk": top_k,
        "index_n_heads": chance.randint(1, 5),
        "index_head_dim": chance.choice([32, 64]),
        "num_attention_heads": 2 * heads,
        "o_groups": chance.choice([1, 2, heads]),
        "head_dim": chance.choice([64, 96]),
        "qk_rope_head_dim": chance.choice([2, 18, 32]),
        "sliding_window": chance.randint(1, 20),
        "use_fp4_sparse_kv": chance.random() < 0.7,
        "rope_scaling": None if chance.random() < 0.3 else {
            "rope_type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 64,
        },
        "hc_mult": chance.choice([2, 3, 4]),
        "hc_shifted": chance.random() < 0.7,
        "engram_layer_ids": chance.sample(range(cut), chance.randint(0, min(cut, 2))),
        "engram_max_ngram_size": chance.randint(2, 6),
        "n_shared_experts": chance.choice([1, 2]),
        "num_nextn_predict_layers": draft_layers,
        "dspark_block_size": chance.randint(1, 5),
        "dspark_target_layer_ids": chance.sample(targets, chance.randint(1, len(targets))),
    }  # fmt: skip


def _some(chance: random.Random, layers: Sequence[int], always: int | None = None) -> list[int]:
    """A random part of ``layers``, ascending, with ``always`` among them."""
    picked = {layer for layer in layers if chance.random() < 0.4}
    return sorted(picked | ({always} if always is not None else set()))
