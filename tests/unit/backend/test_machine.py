"""What a probe sees of a machine, and what the two sibling backends make of it."""
# ruff: noqa: N802 - the names of the management library are its own

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer_ascend.info import NO_DEVICE_CODE as NO_ASCEND_CODE
from deepinfer_ascend.info import RUNTIME, AscendInfo
from deepinfer_core.backend.machine import Machine, count_visible, package_folder
from deepinfer_core.errors import CapacityError, UnsupportedByBackend
from deepinfer_cuda.info import DRIVER, CudaInfo
from deepinfer_cuda.nvml import LIBRARY


class ManagementLibrary:
    """The driver's management library on a machine with GPUs of one capability; writes through pointers as C does."""

    def __init__(self, version: str = "580.65", capability: tuple[int, int] = (9, 0), count: int = 2) -> None:
        self.version, self.capability, self.count = version, capability, count

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlShutdown(self) -> int:
        return 0

    def nvmlSystemGetDriverVersion(self, buffer, _length) -> int:
        buffer.value = self.version.encode()
        return 0

    def nvmlDeviceGetCount_v2(self, count) -> int:
        count._obj.value = self.count
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, _index, _handle) -> int:
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, _handle, major, minor) -> int:
        major._obj.value, minor._obj.value = self.capability
        return 0


def loader(*present: str, management: ManagementLibrary | None = None) -> Callable[[str], object]:
    """Loads the libraries named; others are missing, as the dynamic loader says it."""

    def load(name: str) -> object:
        if name == LIBRARY and management is not None:
            return management
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


def cuda_machine(root: Path, management: ManagementLibrary | None, triton: str = "3.6.0") -> Machine:
    """Two GPUs, the driver, torch for CUDA 13.0 and a version of Triton."""
    (root / "dev").mkdir()
    for node in ("nvidia0", "nvidia1", "nvidiactl"):
        (root / "dev" / node).touch()
    (root / "site/torch/lib").mkdir(parents=True)
    (root / "site/torch/lib/libtorch_cuda.so").touch()
    (root / "site/torch/version.py").write_text("cuda: Optional[str] = '13.0'\n")
    (root / "site/triton").mkdir()
    (root / "site/triton/__init__.py").write_text(f"__version__ = '{triton}'\n")
    folders = {name: root / "site" / name for name in ("torch", "triton")}
    return Machine(root=root, load_library=loader(DRIVER, management=management), find_package=folders.get)


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


def test_cuda_is_usable_and_counts_visible_gpus(tmp_path: Path) -> None:
    host = cuda_machine(tmp_path, ManagementLibrary())

    every = CudaInfo(machine=host, environ={}).probe()
    one = CudaInfo(machine=host, environ={"CUDA_VISIBLE_DEVICES": "1"}).probe()
    none = CudaInfo(machine=host, environ={"CUDA_VISIBLE_DEVICES": ""}).probe()

    assert (every.usable, every.device_count, every.reason) == (True, 2, "2 GPUs")
    assert (one.usable, one.device_count) == (True, 1)
    assert not none.usable
    assert "CUDA_VISIBLE_DEVICES='' hides every GPU" in none.reason


def test_cuda_does_not_need_the_management_library(tmp_path: Path) -> None:
    assert CudaInfo(machine=cuda_machine(tmp_path, None), environ={}).probe().usable


@pytest.mark.parametrize(
    ("management", "triton", "reason"),
    [
        (ManagementLibrary(version="550.54"), "3.6.0", "driver 550.54 is too old for torch's CUDA 13.0: 580 or later"),
        (ManagementLibrary(capability=(8, 0)), "3.6.0", "compute capability 8.0, 8.0 is too old: at least 9.0"),
        (ManagementLibrary(), "3.2.0", "triton 3.2 is too old: at least 3.6 is needed"),
    ],
)
def test_cuda_names_what_is_too_old(tmp_path: Path, management: ManagementLibrary, triton: str, reason: str) -> None:
    result = CudaInfo(machine=cuda_machine(tmp_path, management, triton), environ={}).probe()

    assert not result.usable
    assert reason in result.reason


def test_cuda_in_the_interpreter_needs_triton_alone_and_must_be_named(tmp_path: Path) -> None:
    info = CudaInfo(machine=machine(tmp_path, packages=("triton",)), environ={"TRITON_INTERPRET": "1"})

    assert info.probe().usable
    assert info.priority < 0
    assert "interpreter" in info.probe().reason


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


def test_a_skeleton_claims_no_op_and_refuses_a_device_in_words() -> None:
    backend = AscendInfo().load()

    assert dict(backend.table.entries) == {}
    with pytest.raises(UnsupportedByBackend, match="device 0 was asked for, but this version has no device code"):
        backend.device()


def test_cuda_without_a_gpu_has_no_device_0() -> None:
    with pytest.raises(CapacityError, match="there is no device 0"):
        CudaInfo().load().device()
