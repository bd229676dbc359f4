"""One open tiny model for the tests of this folder."""

from collections.abc import Iterator

import pytest

from deepinfer_core import LLM


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM("tiny", accelerator="cpu", max_num_seqs=8) as opened:
        yield opened
