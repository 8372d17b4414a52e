"""Choosing the device, the precision and the runtime."""

import subprocess
import sys

import pytest
import torch

from triptych import devices
from triptych.devices import Execution, choose_device, choose_execution, default_batch_size, use_execution
from triptych.errors import UsageError


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv(devices.DEVICE_VARIABLE, raising=False)


def pretend_devices(monkeypatch, gpus, has_mps):
    """Let PyTorch report other devices than this machine has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)


@pytest.mark.parametrize(
    ("gpus", "has_mps", "name", "expected"),
    [
        (0, False, None, "cpu"),
        (0, False, "auto", "cpu"),
        (0, True, "auto", "mps"),
        (2, True, "auto", "cuda:0"),
        (2, False, "cuda", "cuda:0"),
        (2, False, "cuda:1", "cuda:1"),
        (2, False, "cpu", "cpu"),
        (2, False, torch.device("cuda", 1), "cuda:1"),
        (0, True, " MPS ", "mps"),
    ],
)
def test_a_device_is_chosen_by_name(monkeypatch, gpus, has_mps, name, expected):
    pretend_devices(monkeypatch, gpus, has_mps)
    assert choose_device(name) == torch.device(expected)


def test_each_process_of_a_machine_gets_its_gpu(monkeypatch):
    pretend_devices(monkeypatch, 2, has_mps=False)
    assert [choose_device(None, rank).index for rank in range(3)] == [0, 1, 0]
    assert choose_device("cuda:1", 0).index == 1


@pytest.mark.parametrize("name", ["cuda", "cuda:2", "mps", "gpu", "cuda:-1", "0"])
def test_a_device_that_is_not_available_is_an_error_that_lists_the_devices(monkeypatch, name):
    pretend_devices(monkeypatch, 0, has_mps=False)
    with pytest.raises(UsageError, match=rf"device '{name}' is not available; available: cpu$"):
        choose_device(name)
    pretend_devices(monkeypatch, 2, has_mps=False)
    with pytest.raises(UsageError, match="not available; available: cuda:0, cuda:1, cpu"):
        choose_device("cuda:7")


def test_convolutions_on_a_gpu_are_computed_in_float32(monkeypatch):
    pretend_devices(monkeypatch, 1, has_mps=False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    choose_device("cpu")
    assert torch.backends.cudnn.allow_tf32
    choose_device("cuda")
    assert not torch.backends.cudnn.allow_tf32


def test_the_environment_variable_is_the_default(monkeypatch):
    pretend_devices(monkeypatch, 2, has_mps=False)
    monkeypatch.setenv(devices.DEVICE_VARIABLE, "cuda:1")
    assert choose_device() == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")


def test_an_execution_in_a_block_is_the_default_of_arguments():
    with use_execution(Execution(device="cpu", runtime="onnx")):
        assert choose_execution() == Execution("cpu", "float32", "onnx")
        assert choose_execution(runtime="pytorch") == Execution("cpu")
    assert choose_execution() == Execution()
    assert choose_execution(torch.device("cpu")).device == "cpu"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runtime": "onxx"}, "runtime 'onxx' is unknown; known: onnx, pytorch; did you mean 'onnx'"),
        ({"precision": "half"}, "precision 'half' is unknown; known: bfloat16, float16, float32"),
        ({"runtime": "onnx", "precision": "float16"}, "runtime onnx computes in float32"),
        ({"runtime": "onnx", "device": "cuda"}, "runtime onnx runs on the cpu; leave out device = cuda"),
        ({"precision": "bfloat16", "device": "cpu"}, "precision = bfloat16 needs a GPU"),
    ],
)
def test_invalid_settings_are_reported(settings, message):
    with pytest.raises(UsageError, match=message):
        Execution(**settings).choose_device()


def test_the_onnx_runtime_needs_its_packages(monkeypatch):
    monkeypatch.setattr(devices, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"onnx, onnxruntime, onnxscript not installed; run: pip install 'triptych"):
        Execution(runtime="onnx").choose_device()


def test_batches_are_larger_on_a_gpu():
    assert [default_batch_size(torch.device(name)) for name in ("cpu", "cuda", "mps")] == [64, 256, 256]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cuda:9"], "device 'cuda:9' is not available; available: "),
        (["--runtime", "tensorrt"], "runtime 'tensorrt' is unknown; known: onnx, pytorch"),
    ],
)
def test_commands_check_the_device_before_they_read_the_files(options, message, tmp_path):
    for name in ("not-a-space.safetensors", "empty.csv"):
        (tmp_path / name).touch()
    files = [tmp_path / "not-a-space.safetensors", "--data", tmp_path / "empty.csv"]
    command = [sys.executable, "-m", "triptych", "evaluate", *files, *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert message in result.stderr
