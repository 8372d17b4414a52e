"""A pretended GPU: PyTorch's fake tensors check the devices, and copies on the CPU supply the values.

The device type is "lazy", not "cuda": a build of PyTorch without CUDA ends the process if autograd meets a tensor that
pretends to be on "cuda". FakeTensorMode compares devices, whatever their type.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock
from weakref import ref

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

CPU, GPU = torch.device("cpu"), torch.device("lazy", 0)


class FakeDevice(TorchDispatchMode):
    """Runs each operation twice: on fake tensors, which raise an error for mixed devices, and on their values.

    A fake tensor has a device but no values, so FakeTensorMode alone stops at each `if tensor.any()`. Here, every fake
    tensor has a copy on the CPU, on which the same operations run. The copies answer questions about values; the fake
    tensors decide whether the devices fit. A tensor that was made before is a tensor on the CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._values: dict[int, tuple[ref, Tensor]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        values_args, values_kwargs = tree_map(self.value_of, (args, kwargs))
        storages = {x.data_ptr() for x in tree_flatten((values_args, values_kwargs))[0] if isinstance(x, Tensor)}
        with _disable_current_modes():
            values = func(*values_args, **values_kwargs)
        try:
            outputs = func(*args, **kwargs)  # under the mode below this one, which is the fake mode
        except (DataDependentOutputException, DynamicOutputShapeException):
            tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
            outputs = tree_map(lambda value: self.make_fake(value, tensors[0].device), values)
        for output, value in zip(tree_flatten(outputs)[0], tree_flatten(values)[0], strict=True):
            if isinstance(output, FakeTensor):
                if output.numel() and value.numel():  # CPU kernels leave some outputs for the gradient empty
                    assert output.shape == value.shape, f"{func}: {output.shape} and {value.shape}"
                    if value.stride() != output.stride() and value.data_ptr() not in storages:
                        with _disable_current_modes():  # some kernels need the memory format that autograd expects
                            value = torch.empty_strided(value.shape, output.stride(), dtype=value.dtype).copy_(value)
                self._values[id(output)] = ref(output), value
        return outputs

    def value_of(self, x: Any) -> Any:
        """Return the values of a fake tensor, and the CPU for a device; everything else is returned unchanged."""
        if isinstance(x, torch.device):
            return CPU
        if not isinstance(x, FakeTensor):
            return x
        weak, value = self._values[id(x)]
        assert weak() is x
        return value

    def make_fake(self, value, device):
        """Return a fake tensor on a device with these values; other objects are returned unchanged."""
        if not isinstance(value, Tensor):
            return value
        value = self.value_of(value)
        with _disable_current_modes():
            value = value.detach()
            fake = FakeTensor(self.fake_mode, value.to("meta"), device)
        self._values[id(fake)] = ref(fake), value
        return fake

    def move(self, module: nn.Module, device: torch.device = GPU) -> nn.Module:
        """Replace the parameters and buffers of a module by fake tensors on a device, as `module.to(device)` does."""
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    fake = self.make_fake(parameter, device)
                    part._parameters[name] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
                    self._values[id(part._parameters[name])] = ref(part._parameters[name]), self.value_of(fake)
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = self.make_fake(buffer, device)
        return module


@contextmanager
def fake_device() -> Iterator[FakeDevice]:
    """Pretend in the block that this machine has a GPU. Autocast, which needs a real device type, does nothing."""
    mode, autocast = FakeDevice(), torch.autocast

    def skip_autocast(device_type, *args, **options):
        return nullcontext() if device_type == GPU.type else autocast(device_type, *args, **options)

    with mock.patch("torch.autocast", skip_autocast), mode.fake_mode, mode:
        yield mode
