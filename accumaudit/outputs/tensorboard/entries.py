"""Events before they are events: the numbers and texts of one step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from accumaudit import event_format
from accumaudit.outputs.tensorboard import tags

LARGEST_STEP: Final = 2**62
"""A step that a hostile record names may be higher; TensorBoard's are 64 bits wide."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is shown at one step."""

    step: int
    time: float
    """Seconds since the epoch."""
    numbers: dict[str, float] = field(default_factory=dict)
    """By their tags, as are the texts."""
    texts: dict[str, str] = field(default_factory=dict)
    """In Markdown."""

    def event(self, described: Collection[str], prefix: str) -> Any:
        """The event; `prefix` stands before the tags of numbers, and one not described before is."""
        event: Any = _event(self.time)
        event.step = min(self.step, LARGEST_STEP)
        for tag, number in self.numbers.items():
            value = event.summary.value.add(tag=(prefix + tag).encode(), simple_value=number)
            if tag not in described:
                value.metadata.plugin.name = "scalars"
                value.metadata.data_class = event_format.SCALAR_CLASS
                value.metadata.description = tags.meaning(tag)
        for tag, text in self.texts.items():
            _fill(event.summary.value.add(tag=tag.encode()), "text", text.encode("utf-8", "replace"))
        return event


def layout_event(time: float) -> Any:
    """The event that says how the charts are laid out."""
    layout = event_format.message("Layout")()
    tags.fill_layout(layout)
    event: Any = _event(time)
    _fill(event.summary.value.add(tag=tags.LAYOUT.encode()), "custom_scalars", layout.SerializeToString())
    return event


def _event(time: float) -> Any:
    event: Any = event_format.message("Event")()
    event.wall_time = time
    return event


def _fill(value: Any, plugin: str, content: bytes) -> None:
    value.metadata.plugin.name = plugin
    value.metadata.data_class = event_format.TENSOR_CLASS
    value.tensor.dtype = event_format.STRING
    value.tensor.texts.append(content)
