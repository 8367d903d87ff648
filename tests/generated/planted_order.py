"""Planted faults of schedules, clips, reductions, ranks and loss scales."""

from __future__ import annotations

import math

from tests.generated.plans import PEAK, Plan
from tests.generated.scene import (
    Attempt,
    Scene,
    at_one,
    cut,
    is_accumulated,
    planted,
    window_of,
)

MOVING = ("linear", "cosine", "inverse")


@planted("ACC301")
def scheduled_per_micro_step(scene: Scene) -> int | None:
    long = [attempt for attempt in scene.attempts if attempt[0]["microbatches"] > 1]
    if not long or scene.plan.shape == "none" or len(scene.launches) > 1:
        return None
    steps = "S" * scene.plan.contract
    for attempt in scene.attempts:
        for record in attempt:
            head, tail = window_of(record["events"].replace("S", ""))
            record["events"] = head.replace("B", f"B{steps}").replace("b", f"b{steps}") + "FB" + tail + steps
    return int(long[0][0]["attempt_id"])


@planted("ACC302")
def scheduled_on_skip(scene: Scene) -> int | None:
    skipped = [place for place, attempt in enumerate(scene.attempts) if attempt[0]["optimizer_step_skipped"]]
    applied = len(scene.attempts) - len(skipped)
    if scene.plan.shape == "none" or not skipped or applied < 2:
        return None
    gained = 0
    for attempt in scene.attempts:
        gained += scene.plan.contract if attempt[0]["optimizer_step_skipped"] else 0
        for record in attempt:
            record["scheduler_step"] += gained
            if record["optimizer_step_skipped"]:
                record["events"] += "S" * scene.plan.contract
    return scene.told_by(skipped[0])


@planted("ACC303")
def schedule_runs_ahead(scene: Scene) -> int | None:
    applied = [attempt for attempt in scene.attempts if not attempt[0]["optimizer_step_skipped"]]
    if (
        scene.plan.shape == "none"
        or len(scene.launches) > 1
        or len(applied) < 6
        or len(applied) < len(scene.attempts)
    ):
        return None
    for ahead, attempt in enumerate(applied):
        for record in attempt:
            record["scheduler_step"] += ahead
    return 0


@planted("ACC304")
def scheduler_first(scene: Scene) -> int | None:
    place = scene.some(lambda _: True, first=True)
    if place is None or scene.plan.shape == "none":
        return None
    steps = "S" * scene.plan.contract
    for attempt in scene.attempts:
        for record in attempt:
            record["events"] = record["events"].replace("S", "").replace("O", steps + "O")
    return scene.told_by(place)


@planted("ACC306")
def schedule_begins_again(scene: Scene) -> int | None:
    if len(scene.launches) < 2 or scene.plan.shape not in ("linear", "cosine") or not scene.attempts:
        return None
    begun_at = scene.runs[-1]["resumed_from_update"]
    if scene.plan.rate(begun_at) > 0.9 * scene.plan.rate(0) and scene.plan.rate(
        begun_at
    ) < 1.1 * scene.plan.rate(0):
        return None
    for attempt in scene.attempts:
        for record in attempt:
            made = record["optimizer_update_id"] - begun_at
            rate = scene.plan.rate(made - (not record["optimizer_step_skipped"]))
            record |= {
                "learning_rate": rate,
                "learning_rates": [rate, rate],
                "scheduler_rate": scene.plan.rate(made),
            }
    return scene.told_by(0)


@planted("ACC307")
def schedule_of_another_optimizer(scene: Scene) -> int | None:
    if scene.plan.shape not in MOVING or len(scene.launches) > 1:
        return None
    kept = scene.plan.rate(0)
    moved = [attempt for attempt in scene.attempts if attempt[0]["learning_rate"] != kept]
    if not moved:
        return None
    for record in (record for attempt in scene.attempts for record in attempt):
        record |= {"learning_rate": kept, "learning_rates": [kept, kept]}
    return int(moved[0][0]["attempt_id"])


@planted("ACC308")
def warm_up_left_out(scene: Scene) -> int | None:
    plan = scene.plan
    if plan.shape not in MOVING or not plan.declared or plan.warmup < 2 or len(scene.launches) > 1:
        return None
    place = scene.some(lambda attempt: attempt[0]["optimizer_update_id"] == 1)
    if place is None or scene.attempts[-1][0]["optimizer_update_id"] <= plan.warmup:
        return None
    for record in (record for attempt in scene.attempts for record in attempt):
        record |= {"learning_rate": PEAK, "learning_rates": [PEAK, PEAK]}
    return scene.told_by(place)


@planted("ACC310")
def weight_decay_lost(scene: Scene) -> int | None:
    if len(scene.launches) < 2 or not scene.attempts:
        return None
    for record in (record for attempt in scene.attempts for record in attempt):
        record["weight_decays"] = [0.0, 0.0]
    return scene.told_by(0)


@planted("ACC311")
def rate_above_the_peak(scene: Scene) -> int | None:
    place = scene.some(lambda _: True)
    if place is None or not scene.plan.declared:
        return None
    for record in scene.attempts[place]:
        record |= {"learning_rate": 2 * PEAK, "learning_rates": [2 * PEAK, 2 * PEAK]}
    return scene.told_by(place)


def is_clipped(attempt: Attempt) -> bool:
    return "C" in attempt[0]["events"]


@at_one("ACC401", lambda attempt: is_accumulated(attempt) and is_clipped(attempt))
def clipped_early(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        record["events"] = record["events"][:3] + "C" + record["events"][3:]
        record["clips"] = [record["clips"][0] | {"micro_step": 1}, *record["clips"]]


@at_one("ACC402", lambda attempt: is_clipped(attempt) and "U" in attempt[0]["events"])
def clipped_while_scaled(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        [call] = record["clips"]
        norm = call["norm"] * record["grad_scale"]
        coefficient = min(1.0, call["limit"] / norm)
        record["events"] = record["events"].replace("UC", "CU")
        record["clips"] = [call | {"norm": norm, "coefficient": coefficient}]
        record |= {"grad_norm_before_clip": norm, "probe_clip_coefficient": coefficient}
        record["grad_norm_after_clip"] = call["norm"] * coefficient


@planted("ACC403")
def clipped_before_the_reduction(scene: Scene) -> int | None:
    plan = scene.plan
    place = scene.some(is_clipped)
    if place is None or plan.wrapper != "ddp" or plan.data_ranks * plan.context == 1:
        return None
    # The loop reduces by itself, and clips first.
    words(scene.attempts[place], ("F", "f"), ("B", "b"), ("C", "CA"))
    return scene.told_by(place)


@at_one("ACC404", lambda attempt: is_clipped(attempt) and attempt[0]["clips"][0]["coefficient"] < 0.9)
def clip_without_effect(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        [call] = record["clips"]
        record["clips"] = [call | {"coefficient": 1.0}]
        record |= {"probe_clip_coefficient": 1.0, "grad_norm_after_clip": call["norm"]}


@planted("ACC405")
def each_shard_clipped_by_itself(scene: Scene) -> int | None:
    plan = scene.plan
    place = scene.some(is_clipped)
    parts = plan.data_ranks * plan.context
    if place is None or plan.wrapper != "fsdp2" or plan.tensor > 1 or parts < 2:
        return None
    for rank, record in enumerate(scene.attempts[place]):
        [call] = record["clips"]
        norm = plan.clip * (2.0 + rank) if plan.clip else math.nan
        coefficient = call["limit"] / norm
        record["clips"] = [call | {"norm": norm, "coefficient": coefficient}]
        record |= {
            "grad_norm_before_clip": norm,
            "grad_norm_before_scope": "shard",
            "grad_norm_after_scope": "shard",
        }
        record |= {"grad_norm_after_clip": norm * coefficient, "probe_clip_coefficient": coefficient}
    return scene.told_by(place)


def words(attempt: Attempt, *changes: tuple[str, str]) -> None:
    for record in attempt:
        for old, new in changes:
            record["events"] = record["events"].replace(old, new)


def part_ways(scene: Scene, place: int) -> None:
    """Each rank steps with a gradient of its own, after which the parameters agree no more."""
    for record in scene.attempts[place]:
        record["probe_gradient"] = [entry * (1 + record["rank"]) for entry in record["probe_gradient"]]
    for record in (record for attempt in scene.attempts[place:] for record in attempt):
        record["param_digest"] = None


@planted("ACC501")
def never_reduced(scene: Scene) -> int | None:
    place = scene.some(lambda attempt: not attempt[0]["discarded_microbatches"])
    if place is None or scene.plan.wrapper == "none" or scene.plan.data_ranks * scene.plan.context == 1:
        return None
    words(scene.attempts[place], ("FB", "fb" if scene.plan.wrapper == "ddp" else "Fb"))
    part_ways(scene, place)
    return scene.told_by(place)


@planted("ACC502")
def reduced_too_soon(scene: Scene) -> int | None:
    place = scene.some(is_accumulated)
    if place is None or scene.plan.wrapper == "none" or scene.plan.data_ranks * scene.plan.context == 1:
        return None
    for record in scene.attempts[place]:
        _, tail = window_of(record["events"])
        quiet = "fb" if scene.plan.wrapper == "ddp" else "Fb"
        record["events"] = "ZFB" + quiet * (record["microbatches"] - 1) + tail
    part_ways(scene, place)
    return scene.told_by(place)


def replicas(scene: Scene) -> bool:
    return scene.plan.wrapper == "ddp" and scene.plan.data_ranks * scene.plan.context > 1


@planted("ACC505")
def slices_differ(scene: Scene) -> int | None:
    place = scene.some(lambda _: True)
    if place is None or not replicas(scene):
        return None
    part_ways(scene, place)
    return scene.told_by(place)


def one_rank_differs(code: str, field: str, factor: float, offset: float = 0.0) -> None:
    """Enter a planter: the last rank has another value of this field in one attempt."""

    @planted(code)
    def plant(scene: Scene) -> int | None:
        place = scene.some(lambda attempt: attempt[0].get(field) is not None)
        if place is None or not replicas(scene):
            return None
        record = scene.attempts[place][-1]
        record[field] = type(record[field])(record[field] * factor + offset)
        return scene.told_by(place)


one_rank_differs("ACC603", "learning_rate", 1.01)
one_rank_differs("ACC604", "grad_norm_after_clip", 1.1)
one_rank_differs("ACC607", "grad_scale", 2.0)
one_rank_differs("ACC609", "optimizer_state_step", 1, -1)


@planted("ACC601")
def rank_stops_early(scene: Scene) -> int | None:
    if scene.plan.ending != "closed" or scene.plan.ranks == 1 or len(scene.attempts) < 3:
        return None
    rank = scene.plan.ranks - 1
    last = scene.attempts[-1][-1]
    scene.launch[rank].remove(last)
    for mark in scene.launch[rank][1:]:
        if mark["record"] == "mark" and mark["attempt_id"] == last["attempt_id"]:
            mark["attempt_id"] -= 1
    return scene.told_by(-1) - 1


@planted("ACC602")
def one_rank_skips(scene: Scene) -> int | None:
    place = scene.some(lambda _: True)
    if place is None or not replicas(scene):
        return None
    record = scene.attempts[place][-1]
    record |= {"optimizer_step_skipped": True, "skip_evidence": "scaler", "probe_parameter_changed": False}
    record["events"] = record["events"].replace("O", "X").replace("S", "").replace("E", "")
    record["optimizer_update_id"] -= 1
    return scene.told_by(place)


@planted("ACC605")
def parameters_differ(scene: Scene) -> int | None:
    place = scene.some(lambda attempt: len(attempt) > 1 and attempt[0]["param_digest"] is not None)
    if place is None or not replicas(scene) or scene.attempts[place][-1]["param_digest"] is None:
        return None
    scene.attempts[place][-1]["param_digest"] = "0123456789abcdef"
    return scene.told_by(place)


@planted("ACC606")
def one_rank_has_fewer(scene: Scene) -> int | None:
    place = scene.some(is_accumulated)
    if place is None or not replicas(scene) or scene.plan.tensor > 1:
        return None
    record = scene.attempts[place][-1]
    head, tail = window_of(record["events"])
    cut(record, slice(-1))
    record["events"] = head[:-2] + "FB" + tail
    return scene.told_by(place)


@planted("ACC608")
def same_data_on_ranks(scene: Scene) -> int | None:
    if scene.plan.data_ranks == 1 or len(scene.attempts) < 3:
        return None
    for attempt in scene.attempts:
        for record in attempt:
            record["data_digest"] = attempt[0]["data_digest"]
    return scene.told_by(0)


@at_one("ACC701", lambda attempt: is_accumulated(attempt) and attempt[0].get("grad_scale") is not None)
def scale_changes_inside(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        record["loss_scale"] = [2 * record["grad_scale"], *record["loss_scale"][1:]]


@at_one("ACC702", lambda attempt: is_accumulated(attempt) and "U" in attempt[0]["events"])
def unscaled_inside(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        word = record["events"].replace("U", "")
        record["events"] = word[:3] + "U" + word[3:]


@at_one("ACC703", lambda attempt: is_accumulated(attempt) and "G" in attempt[0]["events"])
def scaler_updated_inside(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        word = record["events"].replace("G", "")
        record["events"] = word[:3] + "G" + word[3:]


@at_one("ACC706", lambda attempt: is_accumulated(attempt) and attempt[0].get("grad_scale") is not None)
def one_unscaled(attempt: Attempt, plan: Plan) -> None:
    for record in attempt:
        record["loss_scale"] = [1.0, *record["loss_scale"][1:]]
