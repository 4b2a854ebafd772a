"""The device tier: it fails, rather than skips, where there is no device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuda_ops.backend import cuda_available
from cuda_ops.cuda_backend import CudaBackend


@pytest.fixture(scope="session")
def backend() -> Iterator[CudaBackend]:
    if not cuda_available():
        pytest.fail("no CUDA device: `make gpu` needs an NVIDIA driver, a device and the `cuda` extra", pytrace=False)
    device = CudaBackend()
    yield device
    device.close()
