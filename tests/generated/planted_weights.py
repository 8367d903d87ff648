"""Planted faults of weights, windows and bookkeeping."""

from __future__ import annotations

import math
from typing import Any

from tests.generated.plans import Plan
from tests.generated.scene import (
    LISTS,
    Attempt,
    Scene,
    at_one,
    cut,
    is_accumulated,
    is_full,
    planted,
    scale_weights,
    valid,
    weigh,
    window_of,
)


def spreads(attempt: Attempt) -> bool:
    """The numbers of valid tokens differ by more than 5 % inside every rank."""
    return all(max(record["valid_tokens"]) > 1.05 * min(record["valid_tokens"]) for record in attempt)


def is_short(attempt: Attempt) -> bool:
    return bool(attempt[0]["microbatches"] < attempt[0]["accumulation_steps"])


@at_one("ACC101", lambda attempt: is_short(attempt) and not attempt[0]["discarded_microbatches"])
def fixed_divisor(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        scale_weights(record, record["microbatches"] / record["accumulation_steps"])


@at_one("ACC102", lambda attempt: is_accumulated(attempt) and spreads(attempt))
def mean_of_means(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        weigh(record, [1 / (record["microbatches"] * n) for n in record["valid_tokens"]])


@planted("ACC103")
def rank_local_denominator(scene: Scene) -> int | None:
    def differs(attempt: Attempt) -> bool:
        sums = [sum(record["valid_tokens"]) for record in attempt]
        return max(sums) > 1.05 * min(sums)

    place = scene.some(differs)
    if place is None:
        return None
    for record in scene.attempts[place]:
        weigh(record, [1 / sum(record["valid_tokens"])] * record["microbatches"])
    return scene.told_by(place)


@planted("ACC104")
def not_divided(scene: Scene) -> int | None:
    place = scene.some(lambda _: True, first=True)
    if place is None or scene.plan.accumulation == 1:
        return None
    for attempt in scene.attempts:
        for record in attempt:
            scale_weights(record, record["accumulation_steps"])
    return scene.told_by(place)


@at_one("ACC105", lambda _: True)
def empty_window(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        zeros = [0.0] * record["microbatches"]
        record |= {"valid_tokens": zeros, "loss_weight": zeros, "loss_weight_sq": zeros}
        record |= {"loss": [None] * record["microbatches"], "global_valid_tokens_in_update": None}


@at_one("ACC106", lambda attempt: is_accumulated(attempt) and spreads(attempt))
def several_denominators(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        n = record["valid_tokens"]
        weigh(record, [(1.5 if step % 2 else 0.7) / sum(n) for step in range(len(n))])


@at_one("ACC107", lambda attempt: is_accumulated(attempt) and spreads(attempt))
def term_with_own_denominator(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        record["loss_terms"] = [
            {
                "micro_step": step,
                "term": "router",
                "loss_weight": 0.01,
                "loss_weight_sq": 1e-6,
                "valid_tokens": n,
            }
            for step, n in enumerate(record["valid_tokens"], 1)
        ]


@at_one("ACC109", lambda _: True)
def non_finite_loss(attempt: Attempt, plan: Plan) -> None:
    attempt[0]["loss"][0] = math.nan


@planted("ACC110")
def attended_positions_counted(scene: Scene) -> int | None:
    place = scene.some(lambda _: True, first=True)
    if place is None or scene.plan.unit == "sample":
        return None
    for attempt in scene.attempts:
        attended = sum(sum(record["attended_positions"]) for record in attempt[:: scene.plan.tensor])
        for record in attempt:
            scale_weights(record, valid(attempt, scene.plan) / attended)
    return scene.told_by(place)


@planted("ACC201")
def steps_too_soon(scene: Scene) -> int | None:
    for place in range(1, len(scene.attempts) - 2):
        around = scene.attempts[place - 1 : place + 3]
        one_epoch = len({attempt[0]["epoch"] for attempt in around}) == 1
        if one_epoch and all(map(is_accumulated, around)) and "|" not in around[3][0]["events"]:
            for attempt in around[1:3]:
                for record in attempt:
                    before, after = window_of(record["events"])
                    half = record["microbatches"] // 2
                    cut(record, slice(half))
                    record["events"] = before[: 1 + 2 * (half - 1)] + "FB" + after
            return scene.told_by(place)
    return None


@at_one("ACC202", is_accumulated)
def cleared_inside(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        cut(record, slice(1, None))
        record["discarded_microbatches"] = 1
        record["events"] = record["events"][:3] + "Z" + record["events"][3:]


@planted("ACC203")
def never_cleared(scene: Scene) -> int | None:
    place = scene.some(is_full)
    if not place:
        return None
    for record in scene.attempts[place]:
        record["events"] = record["events"].replace("Z", "")
    return scene.told_by(place)


@at_one("ACC204", is_accumulated)
def one_more(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        for name in LISTS:
            if isinstance(record.get(name), list):
                record[name] = [*record[name], record[name][0]]
        record["microbatches"] += 1
        record["micro_step_id"] += 1
        record["events"] = "Z" + record["events"][1:3] + record["events"][1:]


@planted("ACC206")
def across_epochs(scene: Scene) -> int | None:
    place = scene.some(is_accumulated)
    if place is None or not scene.plan.watched:
        return None
    for record in scene.attempts[place]:
        record["events"] = record["events"][:3] + "|" + record["events"][3:]
        mark = {"kind": "epoch_end", "attempt_id": record["attempt_id"] - 1, "epoch": record["epoch"]}
        mark |= {"micro_step_id": record["micro_step_id"] - record["microbatches"] + 1, "name": None}
        head = {
            "record": "mark",
            "launch": record["launch"],
            "rank": record["rank"],
            "time": record["time"] - 0.1,
        }
        scene.launch[record["rank"]].append(head | mark)
    return scene.told_by(place)


@planted("ACC801")
def update_id_jumps(scene: Scene) -> int | None:
    place = scene.some(lambda _: True)
    if not place:
        return None
    for attempt in scene.attempts[place:]:
        for record in attempt:
            record["optimizer_update_id"] += 3
    return scene.told_by(place)


@at_one("ACC802", lambda attempt: not attempt[0]["discarded_microbatches"])
def other_token_count(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        record["global_valid_tokens_in_update"] = 3.0 * valid(attempt, plan) + 1
        record["cumulative_train_tokens"] = None


@at_one("ACC803", lambda _: True)
def non_finite_norm(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        record |= {"grad_norm_after_clip": math.nan, "probe_nonfinite": True}


@planted("ACC804")
def counts_micro_steps(scene: Scene) -> int | None:
    if scene.plan.accumulation == 1 or len(scene.attempts) < 3:
        return None
    for attempt in scene.attempts:
        for record in attempt:
            record["reported_global_step"] = record["micro_step_id"]
    return 0


@planted("ACC805")
def averaged_twice(scene: Scene) -> int | None:
    place = scene.some(lambda attempt: "E" in attempt[0]["events"] and is_accumulated(attempt))
    if place is None:
        return None
    for record in scene.attempts[place]:
        word = record["events"]
        record["events"] = word[:3] + "E" + word[3:5] + "E" + word[5:]
    return scene.told_by(place)


@planted("ACC806")
def recorded_twice(scene: Scene) -> int | None:
    place = scene.some(lambda _: True)
    if place is None:
        return None
    copy = dict(scene.attempts[place][0])
    scene.launch[copy["rank"]].append(copy)
    return scene.told_by(place)


@planted("ACC807")
def attended_tokens_reported(scene: Scene) -> int | None:
    place = scene.some(lambda _: True, first=True)
    if place is None or scene.plan.unit == "sample":
        return None
    for attempt in scene.attempts:
        attended = sum(sum(record["attended_positions"]) for record in attempt[:: scene.plan.tensor])
        for record in attempt:
            record |= {"global_valid_tokens_in_update": float(attended), "cumulative_train_tokens": None}
    return scene.told_by(place)


@planted("ACC808")
def planned_more(scene: Scene) -> int | None:
    if scene.plan.ending != "closed":
        return None
    for run in scene.runs:
        run["planned_updates"] = 2 * scene.plan.attempts
    return scene.told_by(-1)


@planted("ACC809")
def named_by_micro_steps(scene: Scene) -> int | None:
    marks = list(scene.marks("checkpoint"))
    if not marks or scene.plan.accumulation == 1 or len(scene.launches) > 1 or not marks[0]["attempt_id"]:
        return None
    for mark in marks:
        mark["name"] = f"step-{mark['micro_step_id']}.pt"
    return int(marks[0]["attempt_id"])


@planted("ACC810")
def loss_logged_scaled(scene: Scene) -> int | None:
    if scene.plan.accumulation == 1 or scene.plan.ramp or not all(map(is_accumulated, scene.attempts)):
        return None
    judged = [attempt for attempt in scene.attempts if not attempt[0]["optimizer_step_skipped"]]
    if len(judged) < 5:
        return None
    for attempt in judged:
        total = sum(
            n * loss
            for record in attempt[:: scene.plan.tensor]
            for n, loss in zip(record["valid_tokens"], record["loss"], strict=True)
        )
        for record in attempt:
            record["reported_loss"] = total / valid(attempt, scene.plan) * scene.plan.accumulation
    return int(judged[0][0]["attempt_id"])


@planted("ACC811")
def batches_taken_twice(scene: Scene) -> int | None:
    long = [attempt for attempt in scene.attempts if attempt[0]["microbatches"] > 2]
    if 2 * len(long) < len(scene.attempts) or not long:
        return None
    for attempt in long:
        for record in attempt:
            digests: list[Any] = record["data_digest"]
            record["data_digest"] = digests[:1] * (len(digests) - 1) + digests[-1:]
    return int(long[0][0]["attempt_id"])


@planted("ACC905")
def tokens_weigh_unequally(scene: Scene) -> int | None:
    if scene.plan.accumulation < 4 or scene.some(is_accumulated) is None:
        return None
    for attempt in scene.attempts:
        for record in attempt:
            total = sum(record["valid_tokens"])
            weigh(record, [(9.0 if step == 0 else 0.1) / total for step in range(record["microbatches"])])
    return 0
