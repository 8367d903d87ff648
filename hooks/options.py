"""What `attach` may be told, whatever the runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from accumaudit.hooks import patches
from accumaudit.hooks.layout import coordinates
from accumaudit.hooks.watching import SEVERITIES


@dataclass(frozen=True, kw_only=True)
class Options:
    """The keyword arguments of `attach`, which describes them."""

    log_dir: str | os.PathLike[str]
    accumulation_steps: int | None = None
    max_grad_norm: float | None = None
    dataloader: Any = None
    gradient_divisor: float | None = None
    layout: Any = None
    loss_coefficients: Mapping[str, float] | None = None
    loss_unit: str = "token"
    labels: str | None = None
    ignore_index: int = -100
    reduction: str = "mean"
    ranks: Literal["all", "first"] | Sequence[int] = "all"
    every: int = 1
    microbatch_detail: Literal["full", "sums"] = "full"
    summary: bool = True
    watch: bool = False
    stop_on: Literal["error", "warning", "note"] | None = None

    @property
    def watches(self) -> bool:
        """Whether the run is judged while it is recorded."""
        return self.watch or self.stop_on is not None

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: a number or a word that is none of those allowed.
            TypeError: data whose iteration cannot be watched.
        """
        if self.accumulation_steps is not None and self.accumulation_steps < 1:
            raise ValueError(
                f"accumaudit: accumulation_steps is {self.accumulation_steps}; it must be 1 or more"
            )
        if self.loss_unit not in ("token", "sample"):
            raise ValueError(f"accumaudit: loss_unit is {self.loss_unit!r}; it is token or sample")
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"accumaudit: reduction is {self.reduction!r}; it is mean or sum")
        if self.dataloader is not None and not patches.watchable(self.dataloader, "__iter__"):
            raise TypeError(
                f"accumaudit: dataloader is a {type(self.dataloader).__name__}, whose iteration cannot be "
                "watched; give the DataLoader, or leave it out and call audit.mark('end_of_data') when the "
                "data ends"
            )
        if self.every < 1:
            raise ValueError(f"accumaudit: every is {self.every}; it must be 1 or more")
        if self.microbatch_detail not in ("full", "sums"):
            raise ValueError(
                f"accumaudit: microbatch_detail is {self.microbatch_detail!r}; it is full or sums"
            )
        if self.stop_on is not None and self.stop_on not in SEVERITIES:
            raise ValueError(f"accumaudit: stop_on is {self.stop_on!r}; it is error, warning or note")

    def writing_ranks(self, world_size: int) -> list[int] | None:
        """The ranks that write; None where all do.

        Raises:
            ValueError: ranks that there are none of, or too few of them for what is asked besides.
        """
        chosen = self._chosen_ranks(world_size)
        if chosen is not None and self.stop_on is not None:
            raise ValueError("accumaudit: stop_on stops all ranks alike and needs all to record: ranks='all'")
        if chosen is not None and self.watch and 0 not in chosen:
            raise ValueError(f"accumaudit: watch is rank 0's, which ranks={list(self.ranks)} leaves out")
        return chosen

    def _chosen_ranks(self, world_size: int) -> list[int] | None:
        if isinstance(self.ranks, str):
            if self.ranks not in ("all", "first"):
                raise ValueError(f"accumaudit: ranks is {self.ranks!r}; it is all, first, or a list of ranks")
            return None if self.ranks == "all" or world_size == 1 else [0]
        chosen = sorted(set(self.ranks))
        if not chosen or not set(chosen) <= set(range(world_size)):
            raise ValueError(
                f"accumaudit: ranks is {list(self.ranks)}; it must name ranks below {world_size}"
            )
        return chosen if len(chosen) < world_size else None

    def declared(self, writing: list[int] | None, world_size: int) -> dict[str, Any]:
        """What the run record says of it, with the ranks that write.

        Raises:
            ValueError: a layout of other ranks than these.
            TypeError: a layout that is none.
        """
        return {
            **({} if self.layout is None else coordinates(self.layout, world_size)),
            "accumulation_steps": self.accumulation_steps,
            "max_grad_norm": self.max_grad_norm,
            "gradient_divisor": self.gradient_divisor,
            "loss_unit": self.loss_unit,
            "recorded_ranks": writing,
            "recorded_every": self.every if self.every > 1 else None,
        }
