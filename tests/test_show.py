"""`accumaudit show`: the table, what stands between its rows, and the micro-steps around an update."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from accumaudit.cli import main
from accumaudit.testing import write_run
from tests.rulefiles import rows, write_rule

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run where the settings ask for two rules of this module's own, and for no bundled one."""
    folder = tmp_path / "here"
    write_rule(folder / "rules", "ABC001", rows("weight_cause <> 'right'"), name="wrong-weight")
    late = rows("micro_step_id > 9999", rank="rank")
    write_rule(folder / "rules", "ABC002", late, name="late", severity="note")
    (folder / "accumaudit.toml").write_text('select = ["ABC"]\nrules = ["rules"]\n', encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


def show(run: Path, *options: object) -> Result:
    result = CliRunner().invoke(main, ["show", str(run), *map(str, options)], prog_name="accumaudit")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


def table(run: Path, *options: object) -> list[str]:
    """The lines from the heads of the columns to the empty line after the last row."""
    lines = show(run, *options).stdout.splitlines()
    start = next(place for place, line in enumerate(lines) if line.lstrip().startswith("update "))
    return lines[start : lines.index("", start)]


def cells(run: Path, head: str, *options: object) -> list[str]:
    """What stands in one column, from the top; columns are told apart by two spaces or more."""
    first, *lines = table(run, *options)
    end = first.index(head) + len(head)
    data = [line for line in lines if re.match(r" *(\d+\??|skip|split|-)  ", line)]
    if head in ("word", "faults"):
        return [line[first.index(head) :].split("  ")[0] for line in data]
    return [line[:end].rpartition("  ")[2].strip() for line in data]


def test_a_run_is_a_table(tmp_path: Path) -> None:
    result = show(write_run(tmp_path / "a-run", [{}, {"microbatches": 2, "total_weight": 0.5}]))
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout == (
        "a-run: 2 updates, 2 ranks, torch\n"
        "\n"
        "update  micro  tokens      T     d   loss      rate    norm  word         faults\n"
        "-- launch 1 of 2023-11-14 22:13:20 UTC, AdamW, LambdaLR, accumulation 4\n"
        "     1    4/4     932  1.000  1.00  2.000  9.90e-04  0.5000  ZfbfbfbFBOS\n"
        "     2    2/4     426  0.500  0.50  2.000  9.80e-04  0.5000  ZfbFBOS      ABC001\n"
        "   - the loop ended\n"
        "   T: what the update weighs, d: what its tokens count; 1 is right. -: not recorded.\n"
        "\n"
        "error ABC001 wrong-weight\n"
        "  update 2: attempt 2 is wrong\n"
        "\n"
        f"`accumaudit show {tmp_path / 'a-run'} --around 2` shows its micro-steps.\n"
        "Found 1 fault in 1 run (1 rule passed, 0 not checked).\n"
    )


def test_what_was_not_recorded_is_a_dash(tmp_path: Path) -> None:
    nothing = dict.fromkeys(
        (
            "valid_tokens",
            "loss_weight",
            "loss",
            "learning_rate",
            "grad_norm_after_clip",
            "events",
            "microbatches",
        ),
        None,
    )
    run = write_run(
        tmp_path / "run", [{}, {**nothing, "optimizer_step_skipped": None}], accumulation_steps=None
    )
    assert table(run)[3].split() == ["2?", "-/4", "-", "-", "-", "-", "-", "-", "-"]
    assert "accumulation 4 (inferred)" in table(run)[1]


def test_skipped_attempts_are_told_apart(tmp_path: Path) -> None:
    skip = {"skipped": True, "grad_scale": 65536.0, "grad_norm_after_clip": float("inf")}
    run = write_run(tmp_path / "run", [{"grad_scale": 65536.0}, skip, {"grad_scale": 32768.0}])
    assert show(run).stdout.startswith("run: 2 updates, 1 attempt skipped, 2 ranks, torch\n")
    assert cells(run, "update") == ["1", "skip", "2"]
    assert cells(run, "attempt") == ["1", "2", "3"]
    assert cells(run, "scale") == ["65536", "65536", "32768"]
    assert cells(run, "norm") == ["0.5000", "not finite", "0.5000"]
    assert cells(run, "T") == ["1.000", "-", "1.000"]


def test_ranks_that_differ_give_two_values(tmp_path: Path) -> None:
    other = {"learning_rate": 2e-3, "microbatches": 3}
    run = write_run(
        tmp_path / "run", [{"learning_rate": 1e-3, "on": {1: other}}, {"on": {1: {"skipped": True}}}]
    )
    assert cells(run, "update") == ["1", "split"]
    assert cells(run, "micro") == ["3..4/4", "4/4"]
    assert cells(run, "rate")[0] == "1.00e-03..2.00e-03"


def test_clipped_gradients_have_two_norms(tmp_path: Path) -> None:
    clip = {"grad_norm_before_clip": 2.5, "grad_norm_before_scope": "global", "grad_norm_after_clip": 1.0}
    run = write_run(tmp_path / "run", [clip, {}])
    assert cells(run, "norm") == ["2.500", "0.5000"]
    assert cells(run, "clipped") == ["1.000", "-"]


def test_a_long_word_is_shortened_in_the_table_alone(tmp_path: Path) -> None:
    word = "Z" + "FB" * 60 + "OS"
    run = write_run(tmp_path / "run", [{"events": word, "microbatches": 60}], 1)
    assert cells(run, "word") == ["ZFBFBFBFBFBFBFB..BFBFBFBFBFBFBOS"]
    assert f"    word  {word}\n" in show(run, "--around", 1).stdout


def test_a_long_run_is_its_ends_and_everything_faulty(tmp_path: Path) -> None:
    wrong = {40, 43, 44, 70}
    run = write_run(
        tmp_path / "run", [{"total_weight": 0.5 if i in wrong else 1.0} for i in range(1, 101)], 1
    )
    shown = [
        *range(1, 11),
        40,
        41,
        42,
        43,
        44,
        70,
        *range(96, 101),
    ]  # 41 and 42 cost no more than a line for them
    assert cells(run, "update") == list(map(str, shown))
    assert [line for line in table(run) if "..." in line] == [
        "   ... 29 more",
        "   ... 25 more",
        "   ... 25 more",
    ]


def test_of_many_faulty_attempts_the_rest_is_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [{"total_weight": 0.5}] * 200 + [{}] * 100, 1)
    shown = cells(run, "update")
    assert (len(shown), shown[99], shown[100]) == (105, "100", "296")
    assert "   ... 195 more, 100 of them with a fault" in table(run)
    around = table(run, "--around", 150)
    assert "   ... 147 more, all with a fault" in around


def test_marks_stand_where_they_were_made(tmp_path: Path) -> None:
    marks: list[dict[str, Any]] = [
        {"kind": "declare", "attempt_id": 0, "name": '{"planned_updates": 100, "schedule_unit": "updates"}'},
        {"kind": "checkpoint", "attempt_id": 1, "name": "last.pt", "rank": 0},
        {"kind": "end_of_data", "attempt_id": 1},
        {"kind": "epoch_end", "attempt_id": 1, "epoch": 1},
        {"kind": "gap", "attempt_id": 2, "lost_records": 3},
        {"kind": "not_recorded", "attempt_id": 2, "name": "a captured CUDA graph"},
        {"kind": "hook_error", "attempt_id": 2, "name": "ValueError: no", "rank": 1},
        {"kind": "resume", "attempt_id": 2},
        {"kind": "close", "reason": "exception", "finished": False, "leftover_microbatches": 2},
    ]
    lines = table(write_run(tmp_path / "run", 2, marks=marks, close=False))
    assert [line.strip()[:5] if line.startswith("     ") else line for line in lines[2:-1]] == [
        "   - declared planned_updates 100, schedule_unit updates",
        "1    ",
        "   - checkpoint last.pt (rank 0)",
        "   - the data ended",
        "   - epoch 1 ended",
        "2    ",
        "   - 3 records could not be written",
        "   - not recorded: a captured CUDA graph",
        "   - a hook failed: ValueError: no (rank 1)",
        "   - resume",
        "   - the record ended, the loop did not (exception), 2 micro-steps left over",
    ]


def test_marks_that_tell_of_holes_stand_also_among_what_is_left_out(tmp_path: Path) -> None:
    marks = [{"kind": "checkpoint", "attempt_id": 50}, {"kind": "gap", "attempt_id": 50, "lost_records": 1}]
    lines = table(write_run(tmp_path / "run", 100, 1, marks=marks))
    place = lines.index("   ... 85 more")
    assert lines[place + 1] == "   - 1 record could not be written"
    assert not [line for line in lines if "checkpoint" in line]


def test_launches_and_optimizers_have_sections(tmp_path: Path) -> None:
    run = tmp_path / "run"
    both = [{"index": 0, "class": "Muon", "name": "matrices"}, {"index": 1, "class": "AdamW", "name": None}]
    attempts = [{"optimizer": k, "attempt_id": i, "optimizer_update_id": i} for i in (1, 2) for k in (0, 1)]
    write_run(run, attempts, 1, optimizers=both)
    more: dict[str, Any] = {"started_at": 1_700_100_000.0, "resumed_from_update": 2, "optimizers": both}
    again = [{"optimizer": k, "attempt_id": 1, "optimizer_update_id": 3} for k in (0, 1)]
    write_run(run, again, 1, launch="bbbb", first_update=3, scheduler_class=None, max_grad_norm=1.5, **more)
    text = re.sub(r"\n   (?=\w)", " ", show(run).stdout)
    assert re.findall(r"^-- (.*)", text, re.MULTILINE) == [
        "launch 1 of 2023-11-14 22:13:20 UTC, optimizer 0, Muon (matrices), LambdaLR, accumulation 4",
        "launch 1 of 2023-11-14 22:13:20 UTC, optimizer 1, AdamW, LambdaLR, accumulation 4",
        "launch 2 of 2023-11-16 02:00:00 UTC, resumed from update 2, optimizer 0, Muon (matrices), "
        "no scheduler, accumulation 4, norm limit 1.5",
        "launch 2 of 2023-11-16 02:00:00 UTC, resumed from update 2, optimizer 1, AdamW, "
        "no scheduler, accumulation 4, norm limit 1.5",
    ]
    assert cells(run, "update") == ["1", "2", "1", "2", "3", "3"]
    assert cells(run, "attempt") == ["1", "2", "1", "2", "1", "1"]


def test_of_many_optimizers_those_with_a_fault_are_shown(tmp_path: Path) -> None:
    optimizers = [{"index": k, "class": "AdamW", "name": None} for k in range(7)]
    attempts = [
        {"optimizer": k, "attempt_id": 1, "optimizer_update_id": 1, "total_weight": 0.5 if k == 5 else 1.0}
        for k in range(7)
    ]
    text = show(write_run(tmp_path / "run", attempts, 1, optimizers=optimizers)).stdout
    assert re.findall(r"optimizer (\d), AdamW", text) == ["0", "1", "5"]
    assert "-- launch 1, 4 more optimizers without a fault: 4 attempts\n" in text
    assert len(re.findall(r"^update 1 ", show(tmp_path / "run", "--around", 1).stdout, re.MULTILINE)) == 7


def test_a_launch_without_any_attempt_is_shown_too(tmp_path: Path) -> None:
    result = show(write_run(tmp_path / "run", 0))
    assert result.exit_code == 0
    assert "-- launch 1 of 2023-11-14 22:13:20 UTC, AdamW, LambdaLR, accumulation 4\n" in result.stdout
    assert "   - the loop ended\n" in result.stdout


def test_an_inferred_accumulation_is_called_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 12, 1, accumulation_steps=None)
    assert "accumulation 4 (inferred)" in table(run)[1]
    assert cells(run, "micro") == ["4/4"] * 12


def test_attempts_that_were_not_recorded_are_no_gap(tmp_path: Path) -> None:
    marks = [{"kind": "checkpoint", "name": "a", "attempt_id": 14}]
    run = write_run(tmp_path / "run", 30, 1, every=10, marks=marks)
    assert cells(run, "update") == ["1", "11", "21"]
    assert "every 10th attempt is recorded" in show(run).stdout
    assert "..." not in show(run).stdout
    assert "   - checkpoint a" in table(run)
    assert cells(run, "update", "--around", 13) == ["1", "11", "21"]


def test_of_a_foreign_log_nothing_is_said_that_it_does_not_tell(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("iter 0: loss 4.5, time 5ms\niter 1: loss nan, time 5ms\n", encoding="utf-8")
    assert cells(log, "loss") == ["4.500", "not finite"]
    assert show(log).stdout.startswith("train.log: nanoGPT's log, 2 records of 2 steps\n\nupdate")
    assert "\n-- launch 1\n" in show(log).stdout


class TestAround:
    def test_micro_steps_of_each_rank_and_the_findings(self, tmp_path: Path) -> None:
        attempts: list[dict[str, Any]] = [{}] * 5 + [{"microbatches": 2, "total_weight": 0.5}] + [{}] * 5
        run = write_run(tmp_path / "run", attempts)
        result = show(run, "--around", 6)
        assert (result.exit_code, result.stderr) == (1, "")
        assert cells(run, "update", "--around", 6) == ["4", "5", "6", "7", "8"]
        assert [line for line in table(run, "--around", 6) if "more" in line] == ["   ... 3 more"] * 2
        file = run / "rank-00" / "00001.aaaa.jsonl"
        assert (
            "update 6 (launch 1, optimizer 0, attempt 6)\n"
            "  error ABC001 wrong-weight\n"
            "    attempt 6 is wrong\n"
        ) in result.stdout
        assert (
            f"  rank 1  {file}:7\n"
            "    word  ZfbFBOS\n"
            "    step  rate 0.0009434, norm 0.5 at the step\n"
            "    micro-step    n      A1         w      d   loss  scale  input  attended  masked  samples\n"
            "             1  103  0.2418  0.002347  0.500  2.000      1    256       200       0        4\n"
            "             2  113  0.2653  0.002347  0.500  2.000      1    256       200       0        4\n"
        ) in result.stdout

    def test_a_fault_of_one_rank_names_it(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{}, {"on": {1: {"micro_step_id": 20_000}}}])
        assert "  note ABC002 late, rank 1\n    attempt 2 is wrong\n" in show(run, "--around", 2).stdout

    def test_how_the_step_was_taken(self, tmp_path: Path) -> None:
        scaled = {"grad_scale": 1024.0, "grad_rescale": 0.25, "discarded_microbatches": 2}
        skip = {"skipped": True, "skip_evidence": "found_inf", "grad_norm_after_clip": float("nan")}
        clip = {"grad_norm_before_clip": 3.0, "grad_norm_after_scope": "shard"}
        text = show(write_run(tmp_path / "run", [scaled, skip, clip], 1), "--around", 2).stdout
        text = re.sub(r"\n {10}", " ", text)  # wrapped lines
        assert "gradients multiplied by 0.25, loss scale 1024, 2 micro-steps thrown away before\n" in text
        assert "norm not finite at the step, skipped, as found_inf tells\n" in text
        assert "norm 3 before the clip, norm 0.5 at the step (shard)\n" in text
        assert "skipped after update 1 (launch 1, optimizer 0, attempt 2)\n" in text

    def test_long_windows_and_many_ranks_are_cut_but_not_the_faulty_one(self, tmp_path: Path) -> None:
        late = {"on": {20: {"micro_step_id": 20_000}}, "microbatches": 30}
        text = show(write_run(tmp_path / "run", [late], 24, accumulation_steps=30), "--around", 1).stdout
        ranks = [line.split()[1] for line in text.splitlines() if line.startswith("  rank ")]
        assert ranks == [*map(str, range(8)), "20", "22", "23"]
        assert [line for line in text.splitlines() if "more rank" in line] == [
            "  ... 12 more ranks",
            "  ... 1 more rank",
        ]
        assert text.count("    ... 20 more\n") == len(ranks)

    def test_a_record_of_sums_has_no_micro_steps(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 2, microbatch_detail="sums")
        assert cells(run, "loss") == ["2.000", "2.000"]
        text = " ".join(show(run, "--around", 1).stdout.split())
        assert (
            "sums 4 micro-steps, n 460 (100..130 each), A1 0.9871 (0.2146..0.279), w 0.002146, loss 2.000, "
            "scale 1, positions 1,024 input, 800 attended, 0 masked, 16 samples"
        ) in text
        assert "micro-step n A1" not in text

    def test_an_update_that_is_not_there(self, tmp_path: Path) -> None:
        result = show(write_run(tmp_path / "run", 3), "--around", 4)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "Error: there is no update 4: run has updates 1 to 3\n"

    def test_only_the_runs_that_have_it(self, tmp_path: Path) -> None:
        write_run(tmp_path / "runs" / "short", 2)
        write_run(tmp_path / "runs" / "long", 9)
        text = show(tmp_path / "runs", "--around", 8).stdout
        assert "long: 9 updates" in text
        assert "short" not in text

    def test_updates_without_a_number_are_found_by_their_attempt(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"optimizer_update_id": None}] * 9)
        assert cells(run, "attempt", "--around", 5) == ["3", "4", "5", "6", "7"]
        assert cells(run, "update", "--around", 5) == ["-"] * 5


class TestJson:
    def test_every_attempt_with_its_codes(self, tmp_path: Path) -> None:
        attempts = [{"total_weight": 0.5 if i == 50 else 1.0} for i in range(1, 101)]
        result = show(write_run(tmp_path / "run", attempts, 1), "--format", "json")
        (run,) = json.loads(result.stdout)["runs"]
        (section,) = run["sections"]
        assert (result.exit_code, run["run_id"], run["updates"]) == (1, "run", 100)
        assert [one["attempt_id"] for one in section["attempts"]] == list(range(1, 101))
        assert [one["attempt_id"] for one in section["attempts"] if one["codes"]] == [50]
        assert section["attempts"][0] | {"valid_tokens": 460.0, "loss": 2.0} == section["attempts"][0]
        assert [mark["kind"] for mark in section["marks"]] == ["close"]
        assert [(one["code"], one["count"]) for one in run["findings"]] == [("ABC001", 1)]

    def test_details_around_an_update(self, tmp_path: Path) -> None:
        result = show(write_run(tmp_path / "run", 9), "--format", "json", "--around", 5)
        (section,) = json.loads(result.stdout)["runs"][0]["sections"]
        assert [one["attempt_id"] for one in section["attempts"]] == [3, 4, 5, 6, 7]
        (_, rank) = section["attempts"][0]["ranks"]
        assert (rank["rank"], rank["line"], len(rank["micro_steps"])) == (1, 4, 4)
        assert rank["micro_steps"][0]["n"] == 103.0


class TestStatus:
    def test_a_right_run(self, tmp_path: Path) -> None:
        assert show(write_run(tmp_path / "run", 3)).exit_code == 0

    def test_the_settings_decide_what_fails(self, tmp_path: Path, elsewhere: Path) -> None:
        run = write_run(tmp_path / "run", [{"micro_step_id": 20_000}])
        assert show(run).exit_code == 0
        with (elsewhere / "accumaudit.toml").open("a", encoding="utf-8") as file:
            file.write('fail-on = "note"\n')
        assert show(run).exit_code == 1

    def test_a_broken_rule(self, tmp_path: Path, elsewhere: Path) -> None:
        write_rule(elsewhere / "rules", "ABC003", rows("error('no')"), name="broken")
        result = show(write_run(tmp_path / "run", 3))
        assert result.exit_code == 2
        assert "broken rule ABC003 broken\n" in result.stdout

    def test_input_that_cannot_be_read(self, tmp_path: Path) -> None:
        result = show(tmp_path / "nowhere")
        assert (result.exit_code, result.stdout) == (2, "")
        assert str(tmp_path / "nowhere") in result.stderr

    def test_lines_that_were_left_out_are_told_on_stderr(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 3, 1)
        with next(run.rglob("*.jsonl")).open("a", encoding="utf-8") as file:
            file.write("torn\n")
        assert "the line was left out" in show(run).stderr


def test_nothing_in_a_record_reaches_the_terminal_as_a_command(tmp_path: Path) -> None:
    evil = "\x1b[2J\u202e\n[bold]"
    run = write_run(
        tmp_path / "a\x1brun",
        [{"events": evil, "skip_evidence": evil, "skipped": True, "probe_parameter": evil}],
        1,
        marks=[{"kind": "checkpoint", "name": evil}, {"kind": evil, "name": "x"}],
        optimizers=[{"index": 0, "class": evil, "name": evil}],
        scheduler_class=evil,
        runtime=evil,
    )
    for result in (show(run), show(run, "--around", 0), show(run, "--format", "json")):
        assert not {"\x1b", "\u202e"} & set(result.output)
        assert "[bold]" in result.output


PAGE = Path(__file__).parents[1] / "docs" / "show.md"


def example(folder: Path) -> Path:
    """The run of the page: a skip at first, and a short last window."""
    scaled = {"grad_scale": 1024.0, "grad_norm_before_scope": "global"}
    full = {**scaled, "loss_scale": [1024.0] * 4, "events": "ZFBFBFBFBUCOGS", "grad_norm_after_clip": 1.0}
    skipped = {"skipped": True, "skip_evidence": "scaler", "grad_scale": 2048.0, "loss_scale": [2048.0] * 4}
    tail = {**scaled, "loss_scale": [1024.0] * 2, "events": "ZFBFBUCOGS", "grad_norm_before_clip": 0.5}
    return write_run(
        folder / "runs" / "first",
        [
            {**skipped, "events": "ZFBFBFBFBUXG", "grad_norm_after_clip": float("inf")},
            {**full, "grad_norm_before_clip": 1.2},
            {**full, "grad_norm_before_clip": 1.3, "loss": [1.9, 1.8, 2.0, 1.7]},
            {**tail, "microbatches": 2, "total_weight": 0.5},
        ],
        1,
        marks=[
            {"kind": "end_of_data", "attempt_id": 4},
            {"kind": "checkpoint", "name": "last.pt", "attempt_id": 4},
        ],
        max_grad_norm=1.0,
    )


@pytest.mark.parametrize(("part", "options"), [("table", ""), ("around", " --around 3")])
def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, options: str
) -> None:
    example(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "accumaudit.toml").write_text("", encoding="utf-8")  # the bundled rules
    (block,) = re.findall(rf"<!-- begin {part} -->\n```console\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    printed = f"$ accumaudit show runs/first{options}\n{show(Path('runs/first'), *options.split()).stdout}"
    counted = r"\(\d+ rules passed, \d+ not checked\)"
    assert re.sub(counted, "", block) == re.sub(counted, "", printed)


def test_every_column_is_explained(tmp_path: Path) -> None:
    heads = table(example(tmp_path))[0].split()
    assert not {head for head in heads if f"`{head}`" not in PAGE.read_text(encoding="utf-8")}
