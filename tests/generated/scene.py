"""Where a fault is planted: the records of the last launch, attempt by attempt."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from accumaudit.testing import Record
from tests.generated.plans import Plan
from tests.generated.simulation import Launch

Attempt = list[Record]
"""The records of one attempt, one a rank."""

LISTS = (
    *("valid_tokens", "loss_weight", "loss_weight_sq", "weight_uniform", "loss", "loss_scale", "samples"),
    *("input_positions", "attended_positions", "masked_positions", "data_digest"),
)


@dataclass(slots=True)
class Scene:
    """One healthy training, into which a planter puts a fault."""

    plan: Plan
    launches: list[Launch]
    rng: random.Random
    attempts: list[Attempt] = field(init=False)

    def __post_init__(self) -> None:
        by_attempt: dict[int, Attempt] = {}
        for lines in self.launch.values():
            for record in lines:
                if record["record"] == "update":
                    by_attempt.setdefault(record["attempt_id"], []).append(record)
        self.attempts = [
            by_attempt[key] for key in sorted(by_attempt) if len(by_attempt[key]) == self.plan.ranks
        ]

    @property
    def launch(self) -> Launch:
        """The records of the last launch by rank."""
        return self.launches[-1]

    @property
    def runs(self) -> list[Record]:
        """The run records of all launches."""
        return [lines[0] for launch in self.launches for lines in launch.values()]

    def marks(self, kind: str) -> Iterator[Record]:
        """The last launch's marks of this kind."""
        for lines in self.launch.values():
            yield from (record for record in lines if record.get("kind") == kind)

    def some(self, fits: Callable[[Attempt], bool], *, first: bool = False) -> int | None:
        """The place of an applied attempt that fits: any one, or the first."""
        places = [
            place
            for place, attempt in enumerate(self.attempts)
            if not attempt[0]["optimizer_step_skipped"] and fits(attempt)
        ]
        if not places:
            return None
        return places[0] if first else self.rng.choice(places)

    def told_by(self, place: int) -> int:
        """The attempt's number."""
        number: int = self.attempts[place][0]["attempt_id"]
        return number


def is_full(attempt: Attempt) -> bool:
    """A whole window, without the rest of an epoch before it."""
    one = attempt[0]
    return bool(one["microbatches"] == one["accumulation_steps"] and not one["discarded_microbatches"])


def is_accumulated(attempt: Attempt) -> bool:
    """A whole window of several micro-steps."""
    return is_full(attempt) and attempt[0]["microbatches"] > 1


def weigh(record: Record, weights: list[float]) -> None:
    """Give each token of a micro-step this weight."""
    n = record["valid_tokens"]
    record["loss_weight"] = [w * tokens for w, tokens in zip(weights, n, strict=True)]
    record["loss_weight_sq"] = [w * w * tokens for w, tokens in zip(weights, n, strict=True)]


def scale_weights(record: Record, factor: float) -> None:
    """Multiply every weight."""
    record["loss_weight"] = [a * factor for a in record["loss_weight"]]
    record["loss_weight_sq"] = [a * factor**2 for a in record["loss_weight_sq"]]


def cut(record: Record, chosen: slice) -> None:
    """Keep these micro-steps alone; the word is the caller's."""
    for name in LISTS:
        if isinstance(record.get(name), list):
            record[name] = record[name][chosen]
    record["microbatches"] = len(record["valid_tokens"])


def window_of(word: str) -> tuple[str, str]:
    """What comes before the last group of forward and backward, and what comes after the last backward."""
    end = max(word.rfind("B"), word.rfind("b")) + 1
    return word[: end - 2], word[end:]


def valid(attempt: Attempt, plan: Plan) -> float:
    """N: the valid tokens of the attempt over the ranks with different ones."""
    return float(sum(sum(record["valid_tokens"]) for record in attempt[:: plan.tensor]))


Planter = Callable[[Scene], "int | None"]
"""Plants a fault: the first attempt that it spoils, 0 where all are, None where it does not fit."""

PLANTERS: dict[str, Planter] = {}
"""By the code of the rule that is to find it."""


def planted(code: str) -> Callable[[Planter], Planter]:
    """Enter a planter."""

    def enter(planter: Planter) -> Planter:
        PLANTERS[code] = planter
        return planter

    return enter


def at_one(code: str, fits: Callable[[Attempt], bool], *, ranks: int = 1) -> Callable[[Any], Any]:
    """Enter a planter that spoils one attempt: it takes the attempt and the plan."""

    def enter(spoil: Callable[[Attempt, Plan], None]) -> Any:
        @planted(code)
        def plant(scene: Scene) -> int | None:
            place = scene.some(fits)
            if place is None or scene.plan.ranks < ranks:
                return None
            spoil(scene.attempts[place], scene.plan)
            return scene.told_by(place)

        return spoil

    return enter
