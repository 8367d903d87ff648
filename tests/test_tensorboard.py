"""Event files: each update once on both axes, whatever is told twice, done again, torn or lost."""

from __future__ import annotations

import logging
import math
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from accumaudit.importers.formats import event_file as importer
from accumaudit.importers.reading.log import Log
from accumaudit.importers.recognition import recognise
from accumaudit.importers.records import Records
from accumaudit.outputs.tensorboard import live
from accumaudit.outputs.tensorboard.export import export
from accumaudit.outputs.tensorboard.live import Live
from accumaudit.outputs.tensorboard.names import LONGEST, LONGEST_PART, folder_name
from accumaudit.outputs.tensorboard.runs import Run
from accumaudit.service.snapshot import FINISHED, RUNNING, Snapshot
from tests.scalars import (
    EVERYTHING,
    START,
    finding,
    is_close,
    point,
    points,
    read,
    run_view,
    series_of,
    steps,
    texts,
)
from tests.servers import until
from tests.shown import HOSTILE
from tests.test_writer import file_limit


def _has_failed(listener: Live, times: int) -> bool:
    return listener.failures == times


def own_file(folder: Path) -> Path:
    """The one event file of a folder in which something stands."""
    (file,) = (one for one in folder.iterdir() if one.stat().st_size)
    return file


def test_updates_and_tokens_are_axes_of_their_own(tmp_path: Path) -> None:
    """Steps are updates in one folder and valid tokens in the other, under tags that no chart mixes."""
    Run(tmp_path, "a/b").take(run_view(), points(1, 3))
    over_updates, over_tokens = read(tmp_path / "a/b"), read(tmp_path / "a/b@tokens")
    assert steps(over_updates, "loss") == [1, 2, 3]
    assert steps(over_tokens, "over_tokens/loss") == [100, 200, 300]
    assert over_tokens["over_tokens/update"] == [(100, 1.0), (200, 2.0), (300, 3.0)]
    assert over_updates["tokens"] == [(1, 100.0), (2, 200.0), (3, 300.0)]
    assert not set(over_updates) & set(over_tokens)


def test_the_band_of_rates_is_what_the_scheduler_announced(tmp_path: Path) -> None:
    """Tags of the same steps, as a chart of bands needs; the first update has no announcement."""
    known = points(2, 3, scheduled_rate=0.25, learning_rate=0.125)
    Run(tmp_path, "run").take(run_view(), [point(1, scheduled_rate=None), *known])
    found = read(tmp_path / "run")
    assert steps(found, "learning_rate") == [1, 2, 3]
    assert found["schedule/rate"] == [(2, 0.125), (3, 0.125)]
    assert found["schedule/announced"] == [(2, 0.25), (3, 0.25)]
    assert is_close(found, "schedule/band_low", {2: 0.245, 3: 0.245})
    assert is_close(found, "schedule/band_high", {2: 0.255, 3: 0.255})


def test_what_is_not_known_is_no_point(tmp_path: Path) -> None:
    """Fields that are null, and tokens that do not grow."""
    told = [
        point(1),
        point(2, grad_norm_before=None),
        point(3, tokens_so_far=None),
        point(4, tokens_so_far=200.5),
    ]
    Run(tmp_path, "run").take(run_view(), told)
    assert steps(read(tmp_path / "run"), "grad_norm/before_clip") == [1, 3, 4]
    assert steps(read(tmp_path / "run"), "grad_scale") == []
    assert steps(read(tmp_path / "run@tokens"), "over_tokens/loss") == [100, 200]


def test_skipped_attempts_are_counted_at_the_next_update(tmp_path: Path) -> None:
    """They have no step of their own; those after the last update are told in the end."""
    attempts = [
        point(1),
        point(1, 2, applied=False),
        point(1, 3, applied=False),
        point(2, 4),
        point(2, 5, applied=False),
    ]
    run = Run(tmp_path, "run")
    run.take(run_view(), attempts)
    assert read(tmp_path / "run")["attempts/skipped"] == [(1, 0.0), (2, 2.0)]
    run.finish(run_view())
    assert read(tmp_path / "run")["attempts/skipped"] == [(1, 0.0), (2, 2.0), (3, 3.0)]
    run.take(run_view(), [point(3, 6), point(4, 7)])
    found = read(tmp_path / "run")
    assert found["attempts/skipped"] == [(1, 0.0), (2, 2.0), (3, 3.0), (4, 3.0)]
    assert steps(found, "loss") == [1, 2, 3, 4]


def test_skips_before_a_resume_count_where_it_goes_on_behind_them(tmp_path: Path) -> None:
    """However often they are told; those of updates that are done again are no more."""
    crashed = [*points(1, 3), point(3, 4, applied=False), point(3, 5, applied=False)]
    for name, first, skipped in (("behind", 4, 2.0), ("again", 3, 0.0)):
        run = Run(tmp_path, name)
        for _ in range(3):
            run.take(run_view(history=crashed), crashed[-1:])
        resumed = point(first, 1, launch=2)
        run.take(run_view(history=[*crashed, resumed]), [resumed])
        assert read(tmp_path / name)["attempts/skipped"][-1] == (first, skipped)


def test_skips_are_known_of_attempts_that_nobody_was_told_of(tmp_path: Path) -> None:
    """The numbers of attempts and updates differ by them, over a restart of the service too."""
    Run(tmp_path, "run").take(run_view(), [point(5, 7)])
    Run(tmp_path, "run").take(run_view(), [point(6, 10), point(16, 20)])
    assert read(tmp_path / "run")["attempts/skipped"] == [(5, 0.0), (6, 2.0), (16, 2.0)]


def test_updates_that_a_resume_does_again_take_the_place_of_the_first(tmp_path: Path) -> None:
    """On both axes, for those who read the files anew and for those who have them open."""
    run = Run(tmp_path, "run")
    run.take(run_view(), [*points(1, 6), point(6, 7, applied=False)])
    readers = {
        name: EventAccumulator(str(tmp_path / name), size_guidance=EVERYTHING)
        for name in ("run", "run@tokens")
    }
    for reader in readers.values():
        reader.Reload()
    again = [point(update, update - 3, launch=2, loss=1.0, time=START + 60 + update) for update in (4, 5)]
    run.take(run_view(), again)
    for reader in readers.values():
        reader.Reload()
    expected = [(1, 2.0), (2, 2.0), (3, 2.0), (4, 1.0), (5, 1.0)]
    for found in (read(tmp_path / "run"), series_of(readers["run"])):
        assert found["loss"] == expected
        assert found["attempts/launch"] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0)]
        assert found["attempts/skipped"] == [(step, 0.0) for step in range(1, 6)]
    for found in (read(tmp_path / "run@tokens"), series_of(readers["run@tokens"])):
        assert found["over_tokens/loss"] == [(100 * step, loss) for step, loss in expected]


def test_a_resume_within_one_telling_gives_each_update_once(tmp_path: Path) -> None:
    """As an audit of a finished run could tell it, were the later launch not the one that counts."""
    Run(tmp_path, "run").take(run_view(), [*points(1, 4), *points(3, 5, launch=2, loss=1.0)])
    assert read(tmp_path / "run")["loss"] == [(1, 2.0), (2, 2.0), (3, 1.0), (4, 1.0), (5, 1.0)]


def test_a_service_that_starts_anew_writes_nothing_twice(tmp_path: Path) -> None:
    """It is told again what it may have written, and goes on where the files end."""
    view = run_view(finding())
    Run(tmp_path, "run").take(view, points(1, 4))
    before = own_file(tmp_path / "run").read_bytes()
    Run(tmp_path, "run").take(view, points(3, 4))
    assert own_file(tmp_path / "run").read_bytes() == before
    Run(tmp_path, "run").take(view, points(3, 6))
    found = read(tmp_path / "run")
    assert steps(found, "loss") == [1, 2, 3, 4, 5, 6]
    assert found["findings/ACC101"] == [(2, 1.0)]
    assert steps(read(tmp_path / "run@tokens"), "over_tokens/loss") == [100, 200, 300, 400, 500, 600]


def test_a_crash_between_the_axes_is_made_good(tmp_path: Path) -> None:
    """Tokens are written first, and come again with the updates."""
    Run(tmp_path, "run").take(run_view(), points(1, 2))
    whole = own_file(tmp_path / "run").read_bytes()
    Run(tmp_path, "run").take(run_view(), points(3, 4))
    own_file(tmp_path / "run").write_bytes(whole)
    Run(tmp_path, "run").take(run_view(), points(3, 4))
    assert steps(read(tmp_path / "run"), "loss") == [1, 2, 3, 4]
    assert steps(read(tmp_path / "run@tokens"), "over_tokens/loss") == [100, 200, 300, 400]


@pytest.mark.parametrize("cut", [1, 20, 400])
def test_a_torn_end_is_cut_off(tmp_path: Path, cut: int) -> None:
    """What was half written when the service was killed; the updates in it are written again."""
    Run(tmp_path, "run").take(run_view(), points(1, 3))
    file = own_file(tmp_path / "run")
    file.write_bytes(file.read_bytes()[:-cut])
    Run(tmp_path, "run").take(run_view(history=points(1, 4)), [])
    found = read(tmp_path / "run")
    assert steps(found, "loss") == [1, 2, 3, 4]
    assert list(importer.values(Log(own_file(tmp_path / "run")), Records(lambda _: None)))


def test_damage_in_the_middle_costs_what_is_damaged(tmp_path: Path) -> None:
    """The rest is read by TensorBoard again."""
    Run(tmp_path, "run").take(run_view(), points(1, 3))
    file = own_file(tmp_path / "run")
    content = bytearray(file.read_bytes())
    middle = content.rindex(b"loss") - 200  # in the event before the last
    content[middle] ^= 0xFF
    file.write_bytes(content)
    Run(tmp_path, "run").take(run_view(), points(3, 4))
    assert steps(read(tmp_path / "run"), "loss") == [1, 3, 4]


def test_files_that_were_removed_are_begun_anew(tmp_path: Path) -> None:
    """With what the service still knows of the run."""
    run = Run(tmp_path, "run")
    run.take(run_view(finding()), points(1, 3))
    own_file(tmp_path / "run").unlink()
    run.take(run_view(finding(), history=points(2, 4)), [point(4)])
    found = read(tmp_path / "run")
    assert steps(found, "loss") == [2, 3, 4]
    assert found["findings/ACC101"] == [(2, 1.0)]
    assert "custom_scalars__config__" in texts(tmp_path / "run")


@pytest.mark.parametrize("fresh", [True, False])
def test_another_run_of_the_same_name_takes_the_place_of_the_first(tmp_path: Path, fresh: bool) -> None:
    """A log folder that was emptied and used again; a rank that started seconds earlier is no other run."""
    run = Run(tmp_path, "run")
    run.take(run_view(finding(), started_at=START), points(1, 9))
    run.take(run_view(finding(), started_at=START - 5), points(10, 10))
    assert len(read(tmp_path / "run")["loss"]) == 10
    later = Run(tmp_path, "run") if fresh else run
    later.take(run_view(started_at=START + 3600), points(1, 2, loss=7.0))
    assert read(tmp_path / "run")["loss"] == [(1, 7.0), (2, 7.0)]
    assert "findings/ACC101" not in read(tmp_path / "run")
    assert steps(read(tmp_path / "run@tokens"), "over_tokens/loss") == [100, 200]


def test_optimizers_have_folders_of_their_own(tmp_path: Path) -> None:
    """Each counts its own updates; findings are of the run."""
    told = [point(1), point(1, optimizer=1, loss=9.0), point(2, 2, optimizer=1, loss=9.0)]
    Run(tmp_path, "run").take(run_view(finding(last_update=1, first_update=1)), told)
    assert steps(read(tmp_path / "run"), "loss") == [1]
    assert read(tmp_path / "run@optimizer-1")["loss"] == [(1, 9.0), (2, 9.0)]
    assert steps(read(tmp_path / "run@optimizer-1@tokens"), "over_tokens/loss") == [100, 200]
    assert "findings/ACC101" not in read(tmp_path / "run@optimizer-1")


def test_a_log_without_numbers_of_updates_counts_attempts(tmp_path: Path) -> None:
    """As logs of other programs do."""
    Run(tmp_path, "run").take(run_view(), [point(None, 10, applied=None), point(None, 20, applied=None)])
    assert steps(read(tmp_path / "run"), "loss") == [10, 20]


def test_a_finding_is_few_points_and_a_text(tmp_path: Path) -> None:
    """Its first attempt, and the newest whenever their number has doubled, and in the end."""
    run = Run(tmp_path, "run")
    for count, last in ((1, 2), (2, 3), (3, 5), (5, 8), (7, 12)):
        run.take(run_view(finding(count=count, last_update=last)), [])
    run.finish(run_view(finding(count=7, last_update=12)))
    run.finish(run_view(finding(count=7, last_update=12)))
    assert read(tmp_path / "run")["findings/ACC101"] == [(2, 1.0), (3, 2.0), (8, 5.0), (12, 7.0)]
    told = texts(tmp_path / "run")["reports/ACC101"]
    assert [step for step, _ in told] == [2, 3, 8, 12]
    assert told[0][1].split("\n\n") == [
        "**ACC101 fixed-divisor-tail** (error): update 2, rank 0",
        "A short last window was divided by the full accumulation count.",
        "a tail of 2 of 4 micro-steps weighs 0.500 (measured 0.5, expected 1)",
        "What to do: Divide by what the window holds.",
    ]


def test_a_finding_that_is_withdrawn_says_so(tmp_path: Path) -> None:
    """It goes to none at a step of its own, once."""
    run = Run(tmp_path, "run")
    run.take(run_view(finding(count=4, last_update=9)), points(1, 9))
    for _ in range(2):
        run.take(run_view(finding(count=4, last_update=9, withdrawn=True)), [])
    assert read(tmp_path / "run")["findings/ACC101"] == [(2, 1.0), (9, 4.0), (10, 0.0)]
    assert "Withdrawn" in texts(tmp_path / "run")["reports/ACC101"][-1][1]


def test_a_finding_of_the_whole_run_stands_at_its_newest_update(tmp_path: Path) -> None:
    """Where no update is named."""
    Run(tmp_path, "run").take(run_view(finding(first_update=None, last_update=None)), points(1, 3))
    assert read(tmp_path / "run")["findings/ACC101"] == [(3, 1.0)]
    assert "attempt 2, rank 0" in texts(tmp_path / "run")["reports/ACC101"][0][1]


def test_a_text_shows_marks_of_markdown_and_html_as_they_are(tmp_path: Path) -> None:
    """Messages quote names out of records, which may be anything."""
    message = "<script>alert(1)</script> [x](javascript:alert(1)) **b** `c`\n# d"
    Run(tmp_path, "run").take(run_view(finding(message=message)), [])
    (text,) = [text for _, text in texts(tmp_path / "run")["reports/ACC101"]]
    assert "<" not in text
    assert "\n# d" not in text
    assert "\\[x\\](" in text
    assert "\\*\\*b\\*\\*" in text


def test_numbers_of_any_size_are_written(tmp_path: Path) -> None:
    """What a hostile record may hold: no float of 32 bits, no step of 64."""
    told = [point(1, loss=1e300, learning_rate=math.nan), point(2**62 + 5, 2, tokens_so_far=math.inf)]
    Run(tmp_path, "run").take(run_view(), told)
    found = read(tmp_path / "run")
    assert found["loss"] == [(1, math.inf), (2**62, 2.0)]
    assert math.isnan(found["learning_rate"][0][1])
    assert steps(read(tmp_path / "run@tokens"), "over_tokens/loss") == [100]


@pytest.mark.parametrize("name", [*HOSTILE, "@tokens", "run@tokens", "a/" * 600, "é" * 500, "~", "%"])
def test_a_run_may_have_any_name(tmp_path: Path, name: str) -> None:
    """Its folders lie below TensorBoard's own, and TensorBoard reads them."""
    Run(tmp_path / "tb", name).take(run_view(run_id=name), [point(1)])
    assert list(tmp_path.iterdir()) == [tmp_path / "tb"]
    found = [file.parent.relative_to(tmp_path / "tb") for file in tmp_path.rglob("*.accumaudit")]
    assert sorted(found) == sorted(Path(folder_name(name, axis=axis)) for axis in ("", "tokens"))
    for folder in found:
        assert folder.as_posix().isprintable()
        assert all(not part.startswith(".") for part in folder.parts)
        assert all(len(part.encode()) < LONGEST_PART + 40 for part in folder.parts)
        assert len(folder.as_posix().encode()) < LONGEST + 40
    assert steps(read(tmp_path / "tb" / folder_name(name)), "loss") == [1]


def test_no_two_runs_share_a_folder() -> None:
    """Whatever is escaped or cut."""
    names = [
        *HOSTILE,
        "a",
        "a/",
        "/a",
        "a@tokens",
        "a%40tokens",
        "n" * 4001,
        "n" * 121,
        "%",
        "%25",
        "~",
        "a%",
    ]
    folders = {folder_name(name, axis=axis) for name in names for axis in ("", "tokens")}
    assert len(folders) == 2 * len(set(names))


def test_files_of_others_stay(tmp_path: Path) -> None:
    """In the same folder, by any name that is not accumaudit's own."""
    others = ("events.out.tfevents.1.host", "events.out.tfevents.x.accumaudit", "notes.txt")
    (tmp_path / "run").mkdir()
    for name in others:
        (tmp_path / "run" / name).write_bytes(b"kept")
    run = Run(tmp_path, "run")
    run.take(run_view(), points(1, 3))
    run.take(run_view(), points(2, 3, launch=2))
    run.clear(run_view())
    assert {path.name for path in (tmp_path / "run").iterdir() if path.stat().st_size} == set(others)


def test_a_later_file_has_a_later_name_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers take files in the order of their names."""
    names = []
    for now, launch in zip((5000.0, 10.0, 10.0), (1, 2, 3), strict=True):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        Run(tmp_path, "run").take(run_view(), points(1, 2, launch=launch))
        names.append(own_file(tmp_path / "run").name)
    assert all(before < after for before, after in pairwise(names))


def test_what_was_exported_is_no_log_of_a_training(tmp_path: Path) -> None:
    """An audit of the folder in which it lies finds the ledger alone."""
    Run(tmp_path, "run").take(run_view(), points(1, 3))
    log = Log(own_file(tmp_path / "run"))
    assert not importer.is_event_file(log.head)
    assert recognise(log, ()).looks_like == "a binary file"


def test_an_export_replaces_the_one_before(tmp_path: Path) -> None:
    """It holds what its snapshot holds, skips after the last update and final counts too."""
    first = Snapshot(time=START, runs=(run_view(finding(), history=points(1, 5)),))
    history = [*points(1, 2, loss=1.0), point(2, 3, applied=False)]
    second = Snapshot(time=START, runs=(run_view(history=history, state=FINISHED),))
    for snapshot in (first, second, second):
        export(snapshot, tmp_path)
    found = read(tmp_path / "run")
    assert found["loss"] == [(1, 1.0), (2, 1.0)]
    assert found["attempts/skipped"] == [(1, 0.0), (2, 0.0), (3, 1.0)]
    assert "findings/ACC101" not in found
    assert steps(read(tmp_path / "run@tokens"), "over_tokens/loss") == [100, 200]


def test_live_writes_all_that_waits_before_it_ends(tmp_path: Path) -> None:
    """Findings, attempts, and what there is to say at the end of a run."""
    listener = Live(tmp_path)
    for first in (1, 4, 7):
        listener.moved(run_view(), points(first, first + 2))
    listener.found(run_view(), finding())
    ended = run_view(finding(count=3, last_update=9), state=FINISHED)
    listener.moved(ended, [point(9, 10, applied=False)])
    listener.close()
    found = read(tmp_path / "run")
    assert steps(found, "loss") == list(range(1, 10))
    assert found["findings/ACC101"][-1] == (9, 3.0)
    assert found["attempts/skipped"][-1] == (10, 1.0)
    assert (listener.failures, listener.trouble) == (0, None)


def test_live_and_export_show_the_same(tmp_path: Path) -> None:
    """Whatever the portions in which a service is told, and however often it was started anew."""
    history = [*points(1, 4), point(4, 5, applied=False), point(5, 6), point(6, 7, grad_norm_before=None)]
    history += [point(update, update - 6, launch=2) for update in range(7, 12)]
    history.append(point(11, 6, launch=2, applied=False))
    for start in range(0, len(history), 5):
        listener = Live(tmp_path / "live")
        for end in range(start + 1, min(start + 5, len(history)) + 1):
            state = FINISHED if end == len(history) else RUNNING
            listener.moved(run_view(history=history[:end], state=state), history[end - 1 : end])
        listener.close()
    view = run_view(history=history, state=FINISHED)
    export(Snapshot(time=START, runs=(view,)), tmp_path / "export")
    for folder in ("run", "run@tokens"):
        assert read(tmp_path / "live" / folder) == read(tmp_path / "export" / folder)
    assert steps(read(tmp_path / "live/run"), "attempts/skipped") == list(range(1, 13))


def test_live_goes_on_after_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning; what the history still holds is written when there is room again, nothing twice."""
    with caplog.at_level(logging.WARNING, "accumaudit"):
        filling = Live(tmp_path)
        filling.moved(run_view(), points(1, 3))
        filling.close()
        size = own_file(tmp_path / "run").stat().st_size
        listener = Live(tmp_path)
        with file_limit(size + 700):
            for update in (5, 6, 7):
                failures = listener.failures
                listener.moved(run_view(history=points(1, update)), points(4, update))
                until(partial(_has_failed, listener, failures + 1), "failure")
        assert listener.trouble is not None
        assert "TensorBoard's files cannot be written: File too large" in listener.trouble
        assert len(caplog.records) == 1
        listener.moved(run_view(history=points(1, 9)), [point(9)])
        listener.close()
    assert listener.trouble is None
    assert steps(read(tmp_path / "run"), "loss") == list(range(1, 10))
    assert steps(read(tmp_path / "run@tokens"), "over_tokens/loss") == [100 * step for step in range(1, 10)]


def test_live_holds_a_bounded_number_of_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that does not answer costs points, not memory, and delays nobody."""
    monkeypatch.setattr(live, "WAITING", 10)
    blocked, waits = threading.Event(), threading.Event()
    take = Run.take

    def slow(self: Run, *given: Any) -> None:
        waits.set()
        assert blocked.wait(30)
        take(self, *given)

    monkeypatch.setattr(Run, "take", slow)
    listener = Live(tmp_path)
    listener.moved(run_view(), points(1, 5))
    assert waits.wait(30)
    for update in range(6, 30):
        listener.moved(run_view(), [point(update)])
    blocked.set()
    listener.close()
    assert steps(read(tmp_path / "run"), "loss") == list(range(1, 16))


def test_live_keeps_few_runs_in_mind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it has forgotten are read again."""
    monkeypatch.setattr(live, "RUNS", 2)
    listener = Live(tmp_path)
    for update in (1, 2):
        for name in "abcd":
            listener.moved(run_view(run_id=name), [point(update)])
        until(lambda: (tmp_path / "d").is_dir(), "file of the last run")
    listener.close()
    for name in "abcd":
        assert steps(read(tmp_path / name), "loss") == [1, 2]
