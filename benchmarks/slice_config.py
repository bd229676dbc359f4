"""The layer slice: every layer kind of the released model at its released widths, in eight layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deepinfer_core

NUM_LAYERS = 8
ENGRAM_VOCABULARY = 20_000
"""First size of a hash column's table; the released tables have 16 million rows for each."""


def slice_config(*, with_draft: bool = False) -> dict[str, Any]:
    """The released config file with eight layers and small engram tables.

    Layers 0 and 1 attend to their window alone (1 has the n-gram memory), 2 and 3 have entries of two tokens (source
    and reuse), 4 to 7 entries of one token: source of entries and of candidates, reuse, reindex within candidates,
    reuse.

    Args:
        with_draft: Keep the draft module, whole; its features are those of the last three layers.
    """
    released = Path(deepinfer_core.__file__).parent / "models" / "released" / "config.json"
    config = json.loads(released.read_text(encoding="utf-8"))
    text = config["text_config"]
    text |= {
        "num_hidden_layers": NUM_LAYERS,
        "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1],
        "kv_source_layer_ids": [2, 4],
        "index_source_layer_ids": [2, 4, 6],
        "candidate_source_layer_id": 4,
        "engram_layer_ids": [1],
        "engram_vocab_size": ENGRAM_VOCABULARY,
    }
    del text["engram_num_embeddings"]
    if with_draft:
        text["dspark_target_layer_ids"] = list(range(NUM_LAYERS - 3, NUM_LAYERS))
        text["compress_ratios"] += [0] * text["num_nextn_predict_layers"]
        return config
    text["num_nextn_predict_layers"] = 0
    for name in [name for name in text if name.startswith("dspark_")]:
        del text[name]
    return config
