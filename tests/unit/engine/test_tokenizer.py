"""Text to ids and back, and the checks when a tokenizer is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.engine.tokenizer import Tokenizer, load_tokenizer
from deepinfer_core.errors import CheckpointError, RequestError

GOLDEN = Path(__file__).parents[2] / "golden/tiny"
TEXTS = {item["name"]: item["text"] for item in json.loads((GOLDEN / "texts.json").read_text())}
BOS, EOS, PAD = (
    f"<\uff5c{words}\uff5c>"
    for words in ("begin\u2581of\u2581sentence", "end\u2581of\u2581sentence", "\u2581pad\u2581")
)

ChangedCopy = Callable[..., Path]


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_prompts_encode_to_the_ids_of_the_golden_files(tiny: Tokenizer, name: str) -> None:
    with safe_open(GOLDEN / f"{name}.safetensors", "pt") as golden:
        expected = golden.get_tensor("input/ids").tolist()

    assert tiny.encode(TEXTS[name]) == expected


def test_decoding_gives_the_text_back_with_special_tokens_on_request(tiny: Tokenizer) -> None:
    ids = tiny.encode(f"{BOS}P\u0159\u00edli\u0161 \U0001f40e <think>{EOS}")

    assert tiny.decode(ids) == "P\u0159\u00edli\u0161 \U0001f40e <think>"
    assert tiny.decode(ids, skip_special_tokens=False) == f"{BOS}P\u0159\u00edli\u0161 \U0001f40e <think>{EOS}"


@pytest.mark.parametrize(
    "text", [BOS, EOS, "<think>", "</think>", "<\uff5cUser\uff5c>", "\uff5cDSML\uff5c", "<\uff5cdeepseek_image\uff5c>"]
)
def test_special_spellings_stay_text_where_they_are_not_recognised(tiny: Tokenizer, text: str) -> None:
    added = set(tiny.backing.get_added_tokens_decoder())

    ids = tiny.encode(f"a {text} b", recognize_special=False)

    assert not added & set(ids)
    assert tiny.decode(ids) == f"a {text} b"
    assert added & set(tiny.encode(f"a {text} b"))


def test_bytes_of_tokens_joined_are_the_bytes_of_the_text(tiny: Tokenizer) -> None:
    text = f"{BOS}<\uff5cUser\uff5c>\u010f\U0001f600 x\n"

    joined = b"".join(tiny.token_bytes(i) for i in tiny.encode(text))

    assert joined == text.encode()


def test_an_id_without_a_token_has_no_bytes(tiny: Tokenizer) -> None:
    assert tiny.token_bytes(10**6) == b""


def test_empty_text_has_no_tokens_where_none_are_inserted(tiny: Tokenizer) -> None:
    ids = tiny.encode("")

    assert ids == []
    with pytest.raises(RequestError, match="has no tokens; give some text or at least one token id"):
        tiny.check_token_ids(ids)


def test_empty_text_is_the_start_token_alone_under_the_release_policy(
    architecture: ModelArchitecture, changed_copy: ChangedCopy
) -> None:
    tokenizer = load_tokenizer(changed_copy(), replace(architecture, tokenizer_compatibility="release"))

    ids = tokenizer.encode("")

    assert ids == [0]
    tokenizer.check_token_ids(ids)


def test_the_start_token_is_inserted_exactly_once(architecture: ModelArchitecture, changed_copy: ChangedCopy) -> None:
    tokenizer = load_tokenizer(changed_copy(tokenizer_config=lambda c: c.update(add_bos_token=True)), architecture)

    assert tokenizer.encode("Hi")[0] == tokenizer.bos_id
    assert tokenizer.encode(BOS + "Hi") == tokenizer.encode("Hi")


def test_ids_of_the_model_are_accepted(tiny: Tokenizer) -> None:
    tiny.check_token_ids([0, 1279, 5])


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([5, 1280], "token ids 1280 at position 1 are not allowed; ids of this model are whole numbers from 0 to 1279"),
        ([-1], "-1 at position 0"),
        ([1.0, True, "7"], "1.0 at position 0, True at position 1, '7' at position 2"),
        ([1280] * 8, "1280 at position 4 and 3 more"),
    ],
)
def test_ids_outside_the_model_are_named_with_the_range(tiny: Tokenizer, ids: list[Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        tiny.check_token_ids(ids)


def test_half_a_surrogate_pair_is_refused(tiny: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"character 2 is half a surrogate pair \('\\ud800'\)"):
        tiny.encode("ab\ud800")


def test_limits_written_into_the_file_never_cut_a_prompt(
    architecture: ModelArchitecture, changed_copy: ChangedCopy
) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    tokenizer = load_tokenizer(changed_copy(tokenizer=lambda c: c.update(truncation=truncation)), architecture)

    assert len(tokenizer.encode("1234567")) == 7


def test_a_missing_file_is_named(architecture: ModelArchitecture, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer.json is missing"):
        load_tokenizer(tmp_path, architecture)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_truncated_file_is_named(architecture: ModelArchitecture, changed_copy: ChangedCopy, name: str) -> None:
    folder = changed_copy()
    (folder / name).write_text((folder / name).read_text()[:-20])

    with pytest.raises(CheckpointError, match=name):
        load_tokenizer(folder, architecture)


def test_more_tokens_than_embedding_rows_are_refused(
    architecture: ModelArchitecture, changed_copy: ChangedCopy
) -> None:
    with pytest.raises(CheckpointError, match=r"ids up to 1279 but vocab_size is 1200"):
        load_tokenizer(changed_copy(), replace(architecture, vocab_size=1200))


def test_fewer_tokens_than_embedding_rows_are_accepted_with_a_warning(
    architecture: ModelArchitecture, changed_copy: ChangedCopy, caplog: pytest.LogCaptureFixture
) -> None:
    load_tokenizer(changed_copy(), replace(architecture, vocab_size=1300))

    assert "20 of the model's 1300 token ids have no token" in caplog.text


def test_another_kind_of_decoder_is_refused(architecture: ModelArchitecture, changed_copy: ChangedCopy) -> None:
    folder = changed_copy(tokenizer=lambda c: c.update(decoder=None))

    with pytest.raises(CheckpointError, match=r"has no decoder; the format uses a ByteLevel one"):
        load_tokenizer(folder, architecture)


def test_special_ids_that_differ_from_the_config_are_all_reported(
    architecture: ModelArchitecture, changed_copy: ChangedCopy
) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(changed_copy(), replace(architecture, bos_token_id=7, eos_token_id=0))

    assert len(caught.value.problems) == 2
    assert (
        f"bos_token_id is 7 in config.json but tokenizer_config.json names {BOS}, which has id 0"
        in caught.value.problems[0]
    )


def test_the_release_policy_insists_on_its_ids(architecture: ModelArchitecture, changed_copy: ChangedCopy) -> None:
    def swap(content: dict[str, Any]) -> None:
        content["added_tokens"][0]["content"], content["added_tokens"][2]["content"] = PAD, BOS
        vocabulary = content["model"]["vocab"]
        vocabulary[BOS], vocabulary[PAD] = vocabulary[PAD], vocabulary[BOS]

    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(
            changed_copy(tokenizer=swap), replace(architecture, tokenizer_compatibility="release", eos_token_id=5)
        )

    assert [p.split(";")[0] for p in caught.value.problems] == [
        f"the bos token {BOS} has id 2 in tokenizer.json",
        f"the pad token {PAD} has id 0 in tokenizer.json",
        "eos_token_id is 5 in config.json",
    ]


def test_settings_that_are_no_object_are_refused(architecture: ModelArchitecture, changed_copy: ChangedCopy) -> None:
    folder = changed_copy()
    (folder / "tokenizer_config.json").write_text("[]")

    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is no JSON object"):
        load_tokenizer(folder, architecture)


def test_the_release_policy_repairs_a_pad_that_repeats_the_end_token(
    architecture: ModelArchitecture, changed_copy: ChangedCopy
) -> None:
    tokenizer = load_tokenizer(changed_copy(), replace(architecture, tokenizer_compatibility="release", pad_token_id=1))

    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2)


def test_ending_every_prompt_is_refused(architecture: ModelArchitecture, changed_copy: ChangedCopy) -> None:
    folder = changed_copy(tokenizer_config=lambda c: c.update(add_eos_token=True))

    with pytest.raises(CheckpointError, match="add_eos_token"):
        load_tokenizer(folder, architecture)
