"""What a probe sees of a machine, and what the two sibling backends make of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer_ascend.info import NO_DEVICE_CODE as NO_ASCEND_CODE
from deepinfer_ascend.info import RUNTIME, AscendInfo
from deepinfer_core.backend.machine import Machine, count_visible, package_folder
from deepinfer_core.errors import UnsupportedByBackend
from deepinfer_cuda.info import DRIVER, CudaInfo
from deepinfer_cuda.info import NO_DEVICE_CODE as NO_CUDA_CODE


def loader(*present: str) -> Callable[[str], object]:
    """Loads the libraries named; others are missing, as the dynamic loader says it."""

    def load(name: str) -> object:
        if name not in present:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        return object()

    return load


def machine(
    root: Path, *, nodes: tuple[str, ...] = (), libraries: tuple[str, ...] = (), packages: tuple[str, ...] = ()
) -> Machine:
    (root / "dev").mkdir()
    for node in nodes:
        (root / "dev" / node).touch()
    folders = {name: root / "site" / name for name in packages}
    return Machine(root=root, load_library=loader(*libraries), find_package=folders.get)


def cuda_torch(root: Path) -> None:
    (root / "site/torch/lib").mkdir(parents=True)
    (root / "site/torch/lib/libtorch_cuda.so").touch()


def test_only_whole_names_are_device_nodes(tmp_path: Path) -> None:
    host = machine(tmp_path, nodes=("card0", "card1", "cardctl", "mycard2"))

    assert host.device_nodes(r"card\d+") == ("card0", "card1")


def test_unreadable_dev_means_no_nodes(tmp_path: Path) -> None:
    assert Machine(root=tmp_path / "nowhere").device_nodes(".*") == ()


def test_missing_library_is_not_found_and_a_broken_one_says_why() -> None:
    def broken(name: str) -> object:
        raise OSError("libother.so: cannot open shared object file")

    assert Machine(load_library=loader()).library_problem("libx.so") == "libx.so not found"
    assert (
        Machine(load_library=broken).library_problem("libx.so")
        == "libx.so does not load: libother.so: cannot open shared object file"
    )
    assert Machine(load_library=loader("libx.so")).library_problem("libx.so") == ""


def test_package_folder_finds_without_importing() -> None:
    folder = package_folder("this")  # importing this module prints a poem

    assert folder is not None
    assert (folder / "this.py").exists()
    assert package_folder("no_such_package_anywhere") is None


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, 4),
        ("", 0),
        ("0", 1),
        ("0,2", 2),
        ("0,1,-1,2", 2),
        ("-1", 0),
        ("GPU-7f1c,GPU-0a2b", 2),
        ("0,1,2,3,4,5", 4),
    ],
)
def test_visible_devices_end_at_the_first_invalid_id(visible: str | None, expected: int) -> None:
    assert count_visible(4, visible) == expected


def test_cuda_names_everything_that_a_bare_machine_lacks(tmp_path: Path) -> None:
    result = CudaInfo(machine=machine(tmp_path), environ={}).probe()

    assert not result.usable
    assert result.device_count == 0
    assert "no NVIDIA GPU found" in result.reason
    assert f"no NVIDIA driver found ({DRIVER} not found)" in result.reason
    assert "torch is not installed" in result.reason


def test_cuda_notices_a_cpu_build_of_torch(tmp_path: Path) -> None:
    host = machine(tmp_path, nodes=("nvidia0",), libraries=(DRIVER,), packages=("torch",))

    assert "torch is not a CUDA build" in CudaInfo(machine=host, environ={}).probe().reason


def test_cuda_counts_visible_gpus_and_still_refuses_without_device_code(tmp_path: Path) -> None:
    host = machine(tmp_path, nodes=("nvidia0", "nvidia1", "nvidiactl"), libraries=(DRIVER,), packages=("torch",))
    cuda_torch(tmp_path)

    every = CudaInfo(machine=host, environ={}).probe()
    one = CudaInfo(machine=host, environ={"CUDA_VISIBLE_DEVICES": "1"}).probe()
    none = CudaInfo(machine=host, environ={"CUDA_VISIBLE_DEVICES": ""}).probe()

    assert (every.usable, every.device_count, every.reason) == (False, 2, NO_CUDA_CODE)
    assert one.device_count == 1
    assert "CUDA_VISIBLE_DEVICES='' hides every GPU" in none.reason


def test_ascend_names_everything_that_a_bare_machine_lacks(tmp_path: Path) -> None:
    reason = AscendInfo(machine=machine(tmp_path), environ={}).probe().reason

    assert "no Ascend NPU found" in reason
    assert f"no CANN found ({RUNTIME} not found)" in reason
    assert "torch_npu is not installed" in reason


def test_ascend_warns_of_torch_npu_without_cann(tmp_path: Path) -> None:
    host = machine(tmp_path, nodes=("davinci0",), packages=("torch_npu",))

    assert "torch_npu without CANN breaks 'import torch'" in AscendInfo(machine=host, environ={}).probe().reason


def test_ascend_counts_visible_npus_and_still_refuses_without_device_code(tmp_path: Path) -> None:
    nodes = ("davinci0", "davinci1", "davinci_manager")
    host = machine(tmp_path, nodes=nodes, libraries=(RUNTIME,), packages=("torch_npu",))

    result = AscendInfo(machine=host, environ={"ASCEND_RT_VISIBLE_DEVICES": "0"}).probe()

    assert (result.usable, result.device_count, result.reason) == (False, 1, NO_ASCEND_CODE)


@pytest.mark.parametrize("info", [CudaInfo(), AscendInfo()], ids=lambda info: info.name)
def test_skeletons_claim_no_op_and_refuse_a_device_in_words(info: CudaInfo | AscendInfo) -> None:
    backend = info.load()

    assert dict(backend.table.entries) == {}
    with pytest.raises(
        UnsupportedByBackend, match=f"{info.name}.*device 0 was asked for, but this version has no device code"
    ):
        backend.device()
