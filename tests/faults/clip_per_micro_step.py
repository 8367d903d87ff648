"""Gradients are clipped after each micro-step, before the window's gradient is whole."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K5",
    code="ACC401",
    reports=(
        "huggingface/transformers#1563",
        "facebookresearch/lingua#59",
        "huggingface/accelerate#641",
        "tenstorrent/tt-metal#17568",
    ),
    elsewhere={
        "Trainer": "it clips by itself, once for each update",
        "DeepSpeed": "the engine clips by itself, in its step",
    },
)
FAULT.by_demo("torch", "clip-per-micro-step", first=1)
FAULT.by_demo("DDP", "clip-per-micro-step", first=1)
