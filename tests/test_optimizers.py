"""Several optimizers in one loop, averages of the parameters, collectives of the loop, long windows."""

from __future__ import annotations

import _thread
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import accumaudit
from accumaudit import Audit
from accumaudit.hooks import handles
from accumaudit.hooks import track as tracks
from accumaudit.hooks.session import session
from tests.loops import TOKENS, VOCABULARY, TinyModel, batches, read_records, token_loss, total_weight

Record = dict[str, Any]


def updates(folder: Path, optimizer: int | None = None) -> list[Record]:
    records = [entry for entry in read_records(folder) if entry["record"] == "update"]
    return [entry for entry in records if optimizer in (None, entry["optimizer"])]


def words(folder: Path, optimizer: int | None = None) -> list[str]:
    return [entry["events"] for entry in updates(folder, optimizer)]


def marks(folder: Path, kind: str) -> list[Record]:
    return [entry for entry in read_records(folder) if entry.get("kind") == kind]


@pytest.fixture(autouse=True)
def _no_faults(tmp_path: Path) -> Iterator[None]:
    yield
    assert [*marks(tmp_path, "hook_error"), *marks(tmp_path, "gap")] == []


# optimizers


@pytest.mark.parametrize("hooked_first", [True, False])
def test_an_optimizer_for_each_parameter_steps_inside_backward(tmp_path: Path, hooked_first: bool) -> None:
    """Whether the loop's own hooks on the parameters run before the recorder's or after them."""
    model = TinyModel()
    own = {id(parameter): torch.optim.AdamW([parameter]) for parameter in model.parameters()}

    def step(parameter: Tensor) -> None:
        own[id(parameter)].step()
        own[id(parameter)].zero_grad()

    def hook() -> None:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)

    if hooked_first:
        hook()
    with accumaudit.attach(model, list(own.values()), log_dir=tmp_path, summary=False):
        if not hooked_first:
            hook()
        for ids in batches(3):
            (token_loss(model(ids), ids) / TOKENS).backward()
    for place in range(len(own)):
        mine = updates(tmp_path, place)
        assert [entry["events"].replace("o", "") for entry in mine] == ["ZFBO"] * 3
        assert [entry["microbatches"] for entry in mine] == [1, 1, 1]
        assert [total_weight(entry) for entry in mine] == pytest.approx([1.0] * 3)
        assert [entry["optimizer_state_step"] for entry in mine] == [1, 2, 3]


def test_two_optimizers_share_a_backward(tmp_path: Path) -> None:
    model = TinyModel()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    rest = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    both: list[torch.optim.Optimizer] = [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(rest)]
    with accumaudit.attach(model, both, log_dir=tmp_path, summary=False):
        for _ in range(2):
            for ids in batches(2):
                (token_loss(model(ids), ids) / TOKENS / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            for optimizer in both:
                optimizer.step()
                optimizer.zero_grad()
    assert words(tmp_path, 0) == ["ZFBFBCOo"] * 2
    assert words(tmp_path, 1) == ["ZFBFBCoO"] * 2
    assert [total_weight(entry) for entry in updates(tmp_path)] == pytest.approx([1.0] * 4)
    assert [entry["clips"][0]["complete"] for entry in updates(tmp_path)] == [True] * 4


def test_a_scaler_that_skips_another_optimizer_has_used_its_gradients(tmp_path: Path) -> None:
    """So that what is cleared after it is no gradient lost inside a window."""
    model, scaler = TinyModel(), torch.amp.GradScaler("cpu", init_scale=64.0)
    body = [parameter for name, parameter in model.named_parameters() if not name.startswith("head")]
    mine, other = torch.optim.AdamW(body), torch.optim.AdamW(model.head.parameters())
    with accumaudit.attach(model, mine, log_dir=tmp_path, summary=False):
        for optimizer, factor in ((other, math.inf), (mine, 1.0)):
            model.zero_grad()
            ids = batches(1)[0]
            scaler.scale(token_loss(model(ids), ids) / TOKENS * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert words(tmp_path) == ["ZFBoZFBUOG"]


class Twice(torch.optim.SGD):
    """Calls its parent's step, which has hooks of its own wherever a plain SGD was made before."""

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                closure()
        return super().step()


@pytest.mark.parametrize("with_closure", [False, True])
def test_a_step_inside_a_step_is_part_of_it(tmp_path: Path, with_closure: bool) -> None:
    model = TinyModel()
    torch.optim.SGD(model.parameters())
    optimizer = Twice(model.parameters(), lr=0.1)
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        for ids in batches(2):

            def backward(ids: Tensor = ids) -> None:
                (token_loss(model(ids), ids) / TOKENS).backward()

            if with_closure:
                optimizer.step(backward)
            else:
                backward()
                optimizer.step()
            optimizer.zero_grad()
    assert words(tmp_path) == (["(ZFB)O"] * 2 if with_closure else ["ZFBO"] * 2)
    assert [entry["optimizer_update_id"] for entry in updates(tmp_path)] == [1, 2]


def generator_and_critic(run: Callable[[nn.Module, nn.Module, list[torch.optim.Optimizer]], None]) -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 2)
    run(generator, critic, [torch.optim.Adam(each.parameters()) for each in (generator, critic)])


def play(generator: nn.Module, critic: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Three rounds: the critic learns, then the generator, through the critic."""
    for_generator, for_critic = optimizers
    for _ in range(3):
        noise, real = torch.randn(6, 4), torch.randn(6, 4)
        for_critic.zero_grad()
        seen = critic(torch.cat([real, generator(noise).detach()]))
        functional.cross_entropy(seen, torch.tensor([1] * 6 + [0] * 6)).backward()
        for_critic.step()
        for_generator.zero_grad()
        functional.cross_entropy(critic(generator(noise)), torch.ones(6, dtype=torch.long)).backward()
        for_generator.step()


def test_both_sides_of_a_game_in_one_attach(tmp_path: Path) -> None:
    def run(generator: nn.Module, critic: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        both = nn.ModuleList([generator, critic])
        with accumaudit.attach(both, optimizers, log_dir=tmp_path, summary=False, accumulation_steps=1):
            play(generator, critic, optimizers)

    generator_and_critic(run)
    assert words(tmp_path, 0) == ["oZBOo", "ZBOo", "ZBO"]
    assert words(tmp_path, 1) == ["ZBO", "BoZBO", "BoZBO"]
    assert [total_weight(entry) for entry in updates(tmp_path)] == pytest.approx([1.0] * 6)


def test_both_sides_of_a_game_in_an_attach_each(tmp_path: Path) -> None:
    def run(generator: nn.Module, critic: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        options: dict[str, Any] = {"summary": False, "accumulation_steps": 1}
        with (
            accumaudit.attach(generator, optimizers[0], log_dir=tmp_path / "generator", **options),
            accumaudit.attach(critic, optimizers[1], log_dir=tmp_path / "critic", **options),
        ):
            play(generator, critic, optimizers)

    generator_and_critic(run)
    assert words(tmp_path / "generator") == ["oZFBOo", "ZFBOo", "ZFBO"]
    assert words(tmp_path / "critic") == ["ZFBO", "FBoZFBO", "FBoZFBO"]


def test_gradients_that_another_optimizer_used_are_not_left_over(tmp_path: Path) -> None:
    """The critic's, after the generator's last backward went through it."""

    def run(generator: nn.Module, critic: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        both = nn.ModuleList([generator, critic])
        with accumaudit.attach(both, optimizers, log_dir=tmp_path, summary=False, accumulation_steps=1):
            play(generator, critic, optimizers)

    generator_and_critic(run)
    assert [mark["leftover_microbatches"] for mark in marks(tmp_path, "close")] == [0, 0]


def test_an_optimizer_that_takes_the_place_of_the_attached_one_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it used up is counted, not kept."""
    monkeypatch.setattr(tracks, "DISCARDED", 8)
    model = TinyModel()
    attached, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    with accumaudit.attach(model, attached, log_dir=tmp_path, summary=False) as audit:
        for place, ids in enumerate(batches(42)):
            (token_loss(model(ids), ids) / TOKENS).backward()
            (other if place < 41 else attached).step()
            model.zero_grad()
        assert audit._recorder is not None
        window = audit._recorder.tracks[0].window
        assert max(len(window.micro_steps), len(window.events) / 4) <= 9
    (update,) = updates(tmp_path)
    assert (update["microbatches"], update["discarded_microbatches"]) == (1, 41)
    (mark,) = marks(tmp_path, "not_recorded")
    assert "a SGD that is not attached steps parameters" in mark["name"]


class Around(torch.optim.Optimizer):
    """Steps another optimizer, of the same parameters, as lookahead and sharpness-aware ones do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_an_optimizer_around_the_attached_one_takes_nothing_from_it(tmp_path: Path) -> None:
    model = TinyModel()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = Around(inner)
    with accumaudit.attach(model, inner, log_dir=tmp_path, summary=False):
        for ids in batches(3):
            (token_loss(model(ids), ids) / TOKENS).backward()
            outer.step()
            outer.zero_grad()
    assert [entry["optimizer_update_id"] for entry in updates(tmp_path)] == [1, 2, 3]
    assert marks(tmp_path, "not_recorded") == []


def test_threads_that_are_not_the_program_s_work_for_it(tmp_path: Path) -> None:
    """Autograd's own are such, also when something in them has asked for the current thread."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    seen: list[bool] = []

    def look() -> None:
        threading.current_thread()  # as logging does: it enters a dummy among the threads
        seen.append(session.is_foreign)
        done.release()

    done = threading.Lock()
    done.acquire()
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        _thread.start_new_thread(look, ())
        assert done.acquire(timeout=10)
        ours = threading.Thread(target=lambda: seen.append(session.is_foreign))
        ours.start()
        ours.join()
    assert seen == [False, True]


def test_what_another_thread_trains_is_none_of_this_run(tmp_path: Path) -> None:
    """Its backwards run while the attached model is trained, and leave no trace."""
    own, stranger = TinyModel(), TinyModel()
    optimizer, ids = torch.optim.AdamW(own.parameters()), batches(1)[0]
    stop = threading.Event()

    def train_stranger() -> None:
        while not stop.is_set():
            stranger.zero_grad()
            token_loss(stranger(ids), ids).backward()

    other = threading.Thread(target=train_stranger)
    with accumaudit.attach(own, optimizer, log_dir=tmp_path, summary=False):
        other.start()
        for _ in range(60):
            (token_loss(own(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
        stop.set()
        other.join()
    assert words(tmp_path) == ["ZFBO"] * 60
    assert [total_weight(entry) for entry in updates(tmp_path)] == pytest.approx([1.0] * 60)


@pytest.mark.parametrize("forward_seen", [True, False])
def test_a_training_in_a_thread_of_its_own_is_recorded(tmp_path: Path, forward_seen: bool) -> None:
    """Where attach was called in another; without a forward the first step tells which thread it is."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for ids in batches(3):
            loss = token_loss(model(ids), ids) if forward_seen else model.compute_loss(ids)
            (loss / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()

    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        worker = threading.Thread(target=train)
        worker.start()
        worker.join()
    assert words(tmp_path) == ["ZFBO" if forward_seen else "ZBO"] * 3
    weights = [total_weight(entry) for entry in updates(tmp_path)]
    assert weights[1:] == pytest.approx([1.0, 1.0])
    assert weights[0] == (pytest.approx(1.0) if forward_seen else None)


# averages


@pytest.mark.parametrize(
    ("average", "decay"),
    [
        (lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99)), 0.99),
        (lambda model: AveragedModel(model), None),
        (lambda model: AveragedModel(model, avg_fn=lambda mean, new, _count: (mean + new) / 2), None),
    ],
)
def test_torch_s_averages_are_seen(
    tmp_path: Path, average: Callable[[nn.Module], AveragedModel], decay: float | None
) -> None:
    model = TinyModel()
    optimizer, averaged, another = torch.optim.AdamW(model.parameters()), average(model), nn.Linear(2, 2)
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        for ids in batches(3):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            averaged.update_parameters(model)
            AveragedModel(another).update_parameters(another)
            optimizer.zero_grad()
    assert words(tmp_path) == ["ZFBOE"] * 3
    assert [entry["ema_updates"] for entry in updates(tmp_path)] == [1, 2, 3]
    assert [entry["ema_decay"] for entry in updates(tmp_path)] == [decay] * 3


def test_the_loop_tells_of_its_own_average(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False) as audit:
        for ids in batches(2):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
            audit.ema_updated(decay=0.9)
    assert [entry["events"].replace("Z", "") for entry in updates(tmp_path)] == ["FBOE", "FBOE"]
    assert [(entry["ema_updates"], entry["ema_decay"]) for entry in updates(tmp_path)] == [(1, 0.9), (2, 0.9)]


def test_parameters_that_move_between_steps_are_told(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        for place, ids in enumerate(batches(4)):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
            if place == 1:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(0.5)
    assert [entry["probe_parameter_moved"] for entry in updates(tmp_path)] == [None, False, True, False]


# collectives: the group is of this process alone


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def each_by_itself(model: nn.Module) -> None:
    for gradient in gradients(model):
        distributed.all_reduce(gradient)


def not_waited_for(model: nn.Module) -> None:
    for work in [distributed.all_reduce(tensor=g, async_op=True) for g in gradients(model)]:
        assert work is not None
        work.wait()


def through_one_buffer(model: nn.Module) -> None:
    """With noise in place of the other ranks' gradients, which this group does not have."""
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients(model)])
    distributed.all_reduce(flat)
    flat += torch.randn_like(flat)
    for gradient, part in zip(
        gradients(model), flat.split([gradient.numel() for gradient in gradients(model)]), strict=True
    ):
        gradient.copy_(part.view_as(gradient))


def of_the_loss_alone(model: nn.Module) -> None:
    distributed.all_reduce(torch.ones(()))


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("reduce", "letter"),
    [(each_by_itself, "A"), (not_waited_for, "A"), (through_one_buffer, "A"), (of_the_loss_alone, "")],
)
def test_a_reduction_of_the_loop_s_own_is_told(
    tmp_path: Path, reduce: Callable[[nn.Module], None], letter: str
) -> None:
    torch.manual_seed(0)
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    folder = tmp_path / "run"
    seen: list[list[float]] = []
    with accumaudit.attach(model, optimizer, log_dir=folder, summary=False) as audit:
        for ids in batches(2):
            (token_loss(model(ids), ids) / TOKENS).backward()
            reduce(model)
            seen.append(_probed(model, audit))
            optimizer.step()
            optimizer.zero_grad()
    assert words(folder) == [f"ZFB{letter}O"] * 2
    assert [entry["grad_rescale"] for entry in updates(folder)] == [1.0, 1.0]
    assert [entry["probe_gradient"] for entry in updates(folder)] == seen


class Reducing(torch.optim.SGD):
    """Reduces the gradients inside its own step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                distributed.all_reduce(parameter.grad)
                parameter.grad.mul_(0.5)
        return super().step(closure)


@pytest.mark.usefixtures("group")
def test_what_an_optimizer_reduces_inside_its_step_belongs_to_it(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = Reducing(model.parameters(), lr=0.1)
    folder = tmp_path / "run"
    with accumaudit.attach(model, optimizer, log_dir=folder, summary=False):
        for ids in batches(2):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert words(folder) == ["ZFBO"] * 2
    assert [entry["grad_rescale"] for entry in updates(folder)] == [1.0, 1.0]


def _probed(model: nn.Module, audit: Audit) -> list[float]:
    """The polled slice as it is now."""
    assert audit._recorder is not None
    gradient = dict(model.named_parameters())[audit._recorder.tracks[0].probe.name].grad
    assert gradient is not None
    return [float(value) for value in gradient.reshape(-1)[:64]]


# what is left out


def accumulate(model: nn.Module, micro_steps: int) -> None:
    for ids in batches(micro_steps):
        (token_loss(model(ids), ids) / TOKENS / micro_steps).backward()


def test_sums_stand_in_place_of_lists(tmp_path: Path) -> None:
    for detail in ("full", "sums"):
        torch.manual_seed(0)
        model = TinyModel()
        optimizer = torch.optim.AdamW(model.parameters())
        with accumaudit.attach(
            model, optimizer, log_dir=tmp_path / detail, summary=False, microbatch_detail=detail
        ):
            accumulate(model, 3)
            optimizer.step()
    (full,), (short,) = updates(tmp_path / "full"), updates(tmp_path / "sums")
    sums = short["window_sums"]
    assert sums["loss_weight"] == math.fsum(full["loss_weight"])
    assert sums["loss_weight_sq"] == math.fsum(full["loss_weight_sq"])
    assert sums["valid_tokens"] == 3 * TOKENS == sums["valid_tokens_max"] * 3
    assert sums["token_weight_min"] == min(
        a / n for a, n in zip(full["loss_weight"], full["valid_tokens"], strict=True)
    )
    assert sums["loss"] == pytest.approx(math.fsum(full["loss"]) / 3)
    assert sums["samples"] == 6
    assert short["loss_weight"] is short["data_digest"] is short["samples"] is None
    assert {k: v for k, v in short.items() if full.get(k) == v}.keys() >= {
        "events",
        "microbatches",
        "grad_norm_after_clip",
    }


def test_a_window_of_a_thousand_micro_steps_is_a_short_record(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(
        model, optimizer, log_dir=tmp_path, summary=False, accumulation_steps=1024, microbatch_detail="sums"
    ):
        accumulate(model, 1024)
        optimizer.step()
    (update,) = updates(tmp_path)
    assert update["events"] == "ZFB{FB}1022FBO"
    assert update["microbatches"] == 1024
    assert update["window_sums"]["loss_weight"] == pytest.approx(1.0, rel=1e-4)
    assert len(str(update)) < 6000


def test_every_third_attempt_is_written(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False, every=3):
        for ids in batches(8):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [entry["attempt_id"] for entry in updates(tmp_path)] == [1, 4, 7]
    assert [entry["optimizer_update_id"] for entry in updates(tmp_path)] == [1, 4, 7]
    assert [entry["optimizer_state_step"] for entry in updates(tmp_path)] == [1, 4, 7]
    assert [entry["seq"] for entry in updates(tmp_path)] == [2, 3, 4]
    assert read_records(tmp_path)[0]["recorded_every"] == 3


@pytest.mark.parametrize(
    ("ranks", "rank", "writes"), [("first", 1, False), ("first", 0, True), ([1], 1, True)]
)
def test_ranks_that_do_not_write_have_no_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Any, rank: int, writes: bool
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False, ranks=ranks):
        assert bool(model._forward_hooks) is writes
    heads = [entry for entry in read_records(tmp_path) if entry["record"] == "run"]
    assert [head["recorded_ranks"] for head in heads] == ([[rank]] if writes else [])


def test_a_lazy_device_is_said_to_be_not_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(VOCABULARY, 2, device="meta")
    optimizer = torch.optim.SGD(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        assert not model._forward_hooks
    assert "lie on meta, a lazy device: this run is not recorded" in caplog.text
    (mark,) = marks(tmp_path, "not_recorded")
    assert mark["name"] == "parameters lie on meta, a lazy device: this run is not recorded"


def test_a_captured_graph_is_said_to_be_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No GPU is needed: what asks whether a stream is captured answers yes."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = batches(1)[0]
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        monkeypatch.setattr(handles, "_capturing", lambda: True)
        for _ in range(2):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
        monkeypatch.setattr(handles, "_capturing", lambda: False)
    assert updates(tmp_path) == []
    assert caplog.text.count("captured in a CUDA graph: it is not recorded") == 1
    (mark,) = marks(tmp_path, "not_recorded")
    assert "CUDA graph" in mark["name"]
