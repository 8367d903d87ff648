"""What a caller says of foreign logs: `--args`, `--map`, and the same in Python and in the settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from accumaudit import Ledger
from accumaudit.cli import StopError, main
from accumaudit.cli.config import find_settings
from accumaudit.importers.options import OptionError, checked, pairs

TABLE = "iter,lr,cost\n" + "".join(f"{step},{step / 1000},{2.5 - step / 100}\n" for step in range(1, 21))


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


class TestMap:
    def test_pairs(self) -> None:
        assert pairs(["step=iter, learning_rate = lr", "reported_loss=train/loss"]) == {
            "step": "iter",
            "learning_rate": "lr",
            "reported_loss": "train/loss",
        }

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("step", "`step` is no pair; write FIELD=COLUMN, as in step=iter,learning_rate=lr"),
            ("step=iter,", "`` is no pair"),
            ("=iter", "`=iter` is no pair"),
            ("step=a,step=b", "`step` is two columns, `a` and `b`"),
        ],
    )
    def test_what_is_no_pair(self, text: str, message: str) -> None:
        result = invoke("check", "x", "--map", text)
        assert result.exit_code == 2
        assert "Invalid value for '--map'" in result.stderr
        assert message in result.stderr.replace("\n", " ")

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"step": "iter", "learning_rat": "lr"}, "`learning_rat` is no field of a record that a column"),
            ({"step": "iter", "zzz": "lr"}, "`zzz` is no field of a record that a column can be; fields are"),
            ({"learning_rate": "lr"}, "no column is the step: add step=COLUMN"),
            ({"step": ""}, "the column of `step` has no name"),
        ],
    )
    def test_what_is_no_field(self, columns: dict[str, str], message: str, table: Path) -> None:
        with pytest.raises(OptionError) as error:
            checked(None, columns)
        assert str(error.value).startswith(message)
        with pytest.raises(ValueError, match="^" + message[:10]):
            Ledger.open(table, columns=columns)

    def test_a_table_of_any_names(self, table: Path) -> None:
        pairs = "step=iter,learning_rate=lr,reported_loss=cost"
        asked = "SELECT count(*) AS n, max(attempt_id) AS last, max(learning_rate) AS rate FROM updates"
        result = invoke("sql", table, asked, "--map", pairs)
        assert result.stdout.split()[-3:] == ["20", "20", "0.02"]
        with Ledger.open(table, columns={"step": "iter", "reported_loss": "cost"}) as ledger:
            assert ledger.updates["reported_loss"][0] == 2.49
        assert invoke("check", table, "--map", pairs).exit_code == 0
        assert invoke("show", table, "--map", pairs).exit_code == 0

    def test_the_nearest_name(self) -> None:
        with pytest.raises(OptionError, match=r"did you mean `learning_rate`\?"):
            checked(None, {"step": "iter", "learning_rat": "lr"})


class TestArgs:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (None, "no such file; give one with the hyperparameters of the run"),
            ("", "no hyperparameters in it"),
            ("one two three\n", "no hyperparameters in it"),
        ],
    )
    def test_a_file_that_states_none(
        self, text: str | None, message: str, table: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "args.json"
        if text is not None:
            file.write_text(text, encoding="utf-8")
        result = invoke("check", table, "--args", file)
        assert result.exit_code == 2
        assert f"{file}: {message}" in result.stderr.replace("\n", " ")

    def test_it_does_not_wait_for_a_pipe(self, table: Path, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert "pipe: no file; give one" in invoke("check", table, "--args", tmp_path / "pipe").stderr

    def test_they_are_told_of_the_run(self, tmp_path: Path) -> None:
        state = tmp_path / "trainer_state.json"
        state.write_text(
            '{"global_step": 2, "max_steps": 2, "log_history": ['
            '{"loss": 1.5, "learning_rate": 0.1, "epoch": 0.5, "step": 1},'
            '{"loss": 1.4, "learning_rate": 0.1, "epoch": 1.0, "step": 2}]}',
            encoding="utf-8",
        )
        file = tmp_path / "elsewhere" / "args.json"
        file.parent.mkdir()
        file.write_text('{"gradient_accumulation_steps": 4, "max_grad_norm": 1.0}', encoding="utf-8")
        with Ledger.open(state, args=file) as ledger:
            assert ledger.runs["accumulation_steps"] == [4]
        with Ledger.open(state) as ledger:
            assert ledger.runs["accumulation_steps"] == [None]


class TestSettings:
    def test_they_stand_in_for_the_options(self, tmp_path: Path) -> None:
        (tmp_path / "accumaudit.toml").write_text(
            'args = "train.yaml"\n[map]\nstep = "iter"\n', encoding="utf-8"
        )
        settings = find_settings(tmp_path)
        assert settings.arguments == tmp_path / "train.yaml"
        assert settings.columns == {"step": "iter"}

    @pytest.mark.parametrize(
        ("text", "message"),
        [("args = 1", "`args` is the name of a file"), ('map = "step"', "`map` is a table of names")],
    )
    def test_wrong_ones(self, text: str, message: str, tmp_path: Path) -> None:
        (tmp_path / "accumaudit.toml").write_text(text, encoding="utf-8")
        with pytest.raises(StopError, match=message):
            find_settings(tmp_path)
