"""Carries small tensors from the device to the writer thread without stalling the training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor

from accumaudit.hooks.shards import local


class Shipment:
    """The values of some small tensors, to be read by the writer thread.

    On CUDA the tensors are packed on the device and copied once, without blocking, into pinned memory;
    only the reader waits for the copy. Elsewhere the reader takes the values from the tensors
    themselves, which nobody changes any more.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._packs: list[tuple[torch.cuda.Event, Tensor, list[Tensor]]] = []
        self._values: dict[int, list[float]] = {}
        self._tensors = tensors
        if not torch.cuda.is_initialized():
            return  # nothing lies there
        self._tensors = list(tensors)
        on_cuda: dict[tuple[torch.device, bool], list[Tensor]] = {}
        for tensor in self._tensors:
            if tensor.is_cuda:
                on_cuda.setdefault((tensor.device, tensor.is_floating_point()), []).append(tensor)
        for (device, floating), pack in on_cuda.items():
            self._packs.append(_pack(device, torch.float64 if floating else torch.int64, pack))

    def unload(self) -> None:
        """Wait for the copies. Called by the writer thread before anything is read."""
        for event, host, tensors in self._packs:
            event.synchronize()
            self._keep(tensors, host)
        self._read([tensor for tensor in self._tensors if tensor.is_cpu])

    def _read(self, tensors: Sequence[Tensor]) -> None:
        """Read tensors of a kind together: with each call of torch the two threads change places."""
        kinds: dict[tuple[torch.dtype, bool], list[Tensor]] = {}
        for tensor in tensors:
            if (dimensions := tensor.dim()) < 2 and type(tensor) is Tensor:
                kinds.setdefault((tensor.dtype, dimensions == 0), []).append(tensor)
        for (_, single), together in kinds.items():
            self._keep(together, torch.stack(together) if single else torch.cat(together))

    def _keep(self, tensors: Sequence[Tensor], packed: Tensor) -> None:
        values, start = packed.tolist(), 0
        for tensor in tensors:
            end = start + tensor.numel()
            self._values[id(tensor)] = values[start:end]
            start = end

    def vector(self, tensor: Tensor) -> list[float]:
        """All values of a tensor, flattened."""
        known = self._values.get(id(tensor))
        # The whole of a DTensor would be asked of other ranks, and by another thread than theirs.
        return cast("list[float]", local(tensor).detach().reshape(-1).tolist()) if known is None else known

    def number(self, value: Tensor | float | None) -> float | None:
        """The value of a 0-d tensor; a plain number and None as they are."""
        return self.vector(value)[0] if isinstance(value, Tensor) else value


def _pack(
    device: torch.device, dtype: torch.dtype, tensors: list[Tensor]
) -> tuple[torch.cuda.Event, Tensor, list[Tensor]]:
    with torch.cuda.device(device), torch.no_grad():
        flat = torch.cat([tensor.detach().reshape(-1).to(dtype) for tensor in tensors])
        host = torch.empty(flat.shape, dtype=dtype, pin_memory=True)
        host.copy_(flat, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return event, host, tensors
