"""Words that must not appear: file names that say nothing, and platforms inside core."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGES, ROOT, modules

EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "handler", "base", "tools", "stuff"}

PLATFORM_WORD = re.compile(
    r"(?<![a-z])(amd(?!64)|ascend|aclnn|blackwell|cann|cuda|cutlass|davinci|deep_ep|deep_gemm|flash_mla|gpus?|h100|h200"
    r"|hccl|hip|hopper|huawei|mps|nccl|npus?|nvidia|nvlink|nvshmem|ptx|rocm|sm_?\d{2,3}|tilelang|torch_npu|tpus?|triton|xpus?)(?![a-z])",
    re.IGNORECASE,
)

ALLOWED = {
    ("deepinfer_core/backend/registry.py", "nvidia"): "another project's word for an accelerator",
    ("deepinfer_core/observability/vllm_names.py", "gpu"): "part of a label that routers read in vLLM's metrics",
    ("deepinfer_core/backend/registry.py", "cuda"): "a sibling distribution that an error message names",
    ("deepinfer_core/backend/registry.py", "ascend"): "a sibling distribution that an error message names",
}
"""(File of core, platform word) -> why it may stand there."""


def platform_words() -> set[tuple[str, str]]:
    """Every (file, word) of core."""
    return {
        (path.as_posix(), word.lower())
        for path in modules("deepinfer_core")
        for word in PLATFORM_WORD.findall((ROOT / path).read_text(encoding="utf-8"))
    }


def test_core_names_no_platform() -> None:
    assert platform_words() - set(ALLOWED) == set()


def test_every_exception_to_that_is_still_needed() -> None:
    assert set(ALLOWED) - platform_words() == set()


@pytest.mark.parametrize(
    "text", ["torch.cuda.Stream", "is_npu", "CUDA graph", "sm_90", "sm100", "an H200", "nccl_group"]
)
def test_the_pattern_finds_platform_words(text: str) -> None:
    assert PLATFORM_WORD.search(text)


@pytest.mark.parametrize("text", ["accelerator", "scan", "cannot", "relationship", "chip", "maps", "input_names"])
def test_the_pattern_leaves_other_words_alone(text: str) -> None:
    assert PLATFORM_WORD.search(text) is None


@pytest.mark.parametrize("path", modules(*PACKAGES), ids=str)
def test_file_name_says_what_is_inside(path: Path) -> None:
    assert {path.stem, path.parent.name}.isdisjoint(EMPTY_NAMES)


@pytest.mark.parametrize("path", modules(*PACKAGES), ids=str)
def test_source_is_ascii_and_leaves_nothing_open(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")

    assert [line for line in text.splitlines() if not line.isascii()] == []
    assert re.findall(r"TODO|FIXME|XXX|HACK", text) == []
