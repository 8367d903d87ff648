"""What the names of metrics mean that trainers give to their loggers."""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = {
    "reported_loss": (
        "loss",
        "train_loss",
        "train/loss",
        "train/loss_step",
        "train_loss_step",
        "loss_step",
        "loss/train",
        "training_loss",
        "training/loss",
        "lm loss",
        "loss_metrics/global_avg_loss",
    ),
    "learning_rate": ("lr", "learning_rate", "learning-rate", "train/learning_rate", "train/lr", "opt/lr"),
    "grad_norm_before_clip": ("grad_norm", "grad-norm", "gnorm", "train/grad_norm", "train/gnorm"),
    "grad_scale": ("loss_scale", "loss-scale", "train/loss_scale"),
    "reported_epoch": ("train/epoch",),
    "epoch": ("epoch",),
}
_FIELDS: Final = {name: field for field, names in _NAMES.items() for name in names}
# Lightning's monitor of the rate: lr-AdamW, and lr-AdamW/pg1 where there are several groups.
_MONITORED: Final = re.compile(r"lr-\w+(?:/pg1)?")
_EVALUATION: Final = re.compile(r"(?:eval|val|valid|validation|test|predict)(?:[_/ -]|$)", re.IGNORECASE)

SUMMARY: Final = ("train/train_runtime", "train_runtime")
"""What Hugging Face's Trainer logs once, at its end."""


def field_of(name: str) -> str | None:
    """The field of an update that a metric is; None where it is none."""
    if _MONITORED.fullmatch(name):
        return None if name.endswith(("momentum", "weight_decay")) else "learning_rate"
    return _FIELDS.get(name.lower())


def is_evaluation(name: str) -> bool:
    """Whether a metric was measured on other data than the training's."""
    return _EVALUATION.match(name) is not None


def is_of_epoch(name: str) -> bool:
    """Whether a metric is the mean over a pass of the data."""
    return name.endswith("_epoch")
