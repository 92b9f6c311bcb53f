"""Arrays packed into one buffer are the same arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagetide_server.model.transfer import pack, to_device, unpack

ARRAYS = [
    np.arange(3, dtype=np.int64),
    np.array([], dtype=np.int64),
    np.arange(15, dtype=np.int32).reshape(3, 5),
    np.zeros((0, 4), np.int32),
    np.array([2**62, -1], dtype=np.int64),
    np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2],
]


def check(found: list[torch.Tensor]) -> None:
    for tensor, array in zip(found, ARRAYS, strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_packed_arrays_come_back() -> None:
    packed, places = pack(ARRAYS, pinned=False)
    check(unpack(packed.clone(), ARRAYS, places))


def test_on_a_cpu_nothing_moves() -> None:
    check(to_device(ARRAYS, torch.device("cpu")))


def test_to_another_device_goes_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    plain = torch.Tensor.to

    def counted(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        moved.append(tensor.dtype)
        return plain(tensor, *args, **kwargs)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch.Tensor, "to", counted)
    found = to_device(ARRAYS, torch.device("meta"))
    assert moved == [torch.uint8]
    assert [(t.shape, t.dtype) for t in found] == [(torch.Size(a.shape), torch.from_numpy(a).dtype) for a in ARRAYS]
