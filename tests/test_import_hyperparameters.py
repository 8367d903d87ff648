"""Hyperparameters by all the names that people use, from all the files in which they keep them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accumaudit.importers import Log, Options, arguments
from accumaudit.importers.hyperparameters import declared, facts
from accumaudit.importers.reading.log import LogError

SAME = {
    "accumulation_steps": 4,
    "peak_learning_rate": 3e-4,
    "schedule": "cosine",
    "warmup_updates": 50,
    "planned_updates": 500,
}

FILES = {
    "args.json": '{"gradient_accumulation_steps": 4, "learning_rate": 3e-4, "lr_scheduler_type": "cosine",'
    ' "warmup_ratio": 0.1, "max_steps": 500, "deepspeed": {"gradient_accumulation_steps": "auto"}}',
    "training_args.txt": "# extracted\ngradient_accumulation_steps = 4\nlearning_rate = 0.0003\n"
    "warmup_steps = 50\nlr_scheduler_type = <SchedulerType ('cosine',)>\nmax_steps = 500\nseed = 1\n",
    "README.md": "# model\n\n- learning_rate: 0.0003\n- gradient_accumulation_steps: 4\n"
    "- lr_scheduler_type: cosine\n- lr_scheduler_warmup_steps: 50\n- training_steps: 500\n",
    "config.yaml": "wandb_version: 1\n\n_wandb:\n  desc: null\n  value:\n    t: [1]\nlearning_rate:\n"
    "  desc: null\n  value: 0.0003\ngradient_accumulation_steps:\n  desc: null\n  value: 4\n"
    "max_steps:\n  value: 500\nlr_scheduler_type:\n  value: cosine\nwarmup_ratio:\n  value: 0.1\n",
    "hparams.yaml": "trainer:\n  accumulate_grad_batches: 4\n  max_steps: 500\noptimizer:\n  lr: 3e-4\n"
    "model: !!python/object:models.Model\n  lr: 7.0\nlr_scheduler_type: !!python/name:cosine 'cosine'\n"
    "warmup_steps: 50\n",
    "train.toml": "[training]\nmax_steps = 500\ngradient_accumulation_steps = 4\n[optimizer]\nlr = 3e-4\n"
    '[lr_scheduler]\nwarmup_steps = 50\nlr_scheduler_type = "cosine"\n',
    "train.sh": "torchrun --nproc_per_node 8 train.py \\\n  --learning-rate 3e-4 --max_steps=500 \\\n"
    "  --gradient_accumulation_steps 4 --warmup_ratio 0.1 --lr_scheduler_type 'cosine'\n",
}


class TestFiles:
    @pytest.mark.parametrize("name", FILES)
    def test_each_kind_says_the_same(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        path.write_text(FILES[name])
        assert facts(arguments.read(path)) == SAME

    def test_what_stands_beside_a_log_is_found_and_the_given_file_goes_first(self, tmp_path: Path) -> None:
        (tmp_path / "run7.args.json").write_text(FILES["args.json"])
        given = tmp_path / "given.yaml"
        given.write_text("learning_rate: 0.5\nfp16: true\n")
        log = tmp_path / "run7.best.trainer_state.json"
        assert declared(Log(log)) == SAME
        mixed = declared(Log(log, Options(arguments=given)))
        assert mixed == SAME | {"peak_learning_rate": 0.5, "precision": "float16"}

    def test_a_checkpoint_has_those_of_the_folder_above(self, tmp_path: Path) -> None:
        (tmp_path / "README.md").write_text(FILES["README.md"])
        folder = tmp_path / "checkpoint-500"
        folder.mkdir()
        assert declared(Log(folder / "trainer_state.json")) == SAME
        (tmp_path / "other").mkdir()
        assert declared(Log(tmp_path / "other" / "trainer_state.json")) == {}

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("a.json", "{" * 100_000),
            ("a.json", "[1, 2]"),
            ("a.yaml", "[" * 500),
            ("a.yaml", "a: &a [*a]\n? {b: c}\n: d\n"),
            ("a.yaml", "a: !!int x\n"),
            ("a.toml", "a = "),
            ("a.txt", "nothing here\n"),
            ("a.bin", "\x00\x01\x02"),
            ("a.json", '{"lr": 1, "a": "' + "x" * 300_000 + '"}'),
        ],
    )
    def test_a_file_that_states_none_is_said_to(self, tmp_path: Path, name: str, text: str) -> None:
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(LogError, match=str(path)):
            arguments.read(path)
        assert declared(Log(tmp_path / "log", Options(arguments=path))) == {}

    def test_yaml_that_names_classes_makes_no_objects(self, tmp_path: Path) -> None:
        path = tmp_path / "hparams.yaml"
        path.write_text("lr: !!python/object/apply:builtins.print [a]\nmax_epochs: !custom 3\n")
        assert arguments.read(path) == {"lr": ["a"], "max_epochs": "3"}
        assert facts(arguments.read(path)) == {"planned_epochs": 3.0}


class TestFacts:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ({"warmup_steps": 7, "warmup_ratio": 0.5}, 7),
            ({"warmup_steps": 0, "warmup_ratio": 0.03}, 30),
            ({"warmup_ratio": 0.0301}, 31),
            ({"warmup_steps": 0.03}, 30),  # version 5
            ({"warmup_steps": 0}, 0),
            ({"lr_warmup_fraction": 0.01, "lr_decay_iters": 800, "lr_warmup_iters": 0}, 8),
            ({"lr_scheduler_warmup_steps": "500"}, 500),
            ({"warmup_ratio": float("nan")}, None),
            ({}, None),
        ],
    )
    def test_warmup_is_rounded_as_the_framework_does(
        self, values: dict[str, Any], expected: int | None
    ) -> None:
        assert facts(values, 1000).get("warmup_updates") == expected

    def test_a_share_of_an_unknown_length_is_unknown(self) -> None:
        assert "warmup_updates" not in facts({"warmup_ratio": 0.1})

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ({"lr_scheduler_type": "constant_with_warmup"}, {"schedule": "constant"}),
            (
                {
                    "lr_scheduler_type": "cosine_with_min_lr",
                    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
                    "lr": 0.5,
                },
                {"schedule": "cosine", "min_learning_rate": 0.05, "peak_learning_rate": 0.5},
            ),
            (
                {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 20}},
                {"schedule": "wsd", "decay_updates": 20},
            ),
            (
                {"lr_scheduler_type": "polynomial"},
                {"schedule": "polynomial", "schedule_power": 1.0, "min_learning_rate": 1e-7},
            ),
            (
                {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 3}},
                {"schedule": "cosine (num_cycles 3)"},
            ),
            ({"lr_scheduler_type": "SchedulerType.LINEAR"}, {"schedule": "linear"}),
            ({"lr_scheduler_type": "<SchedulerType.COSINE: 'cosine'>"}, {"schedule": "cosine"}),
            ({"lr_scheduler_type": "cosine", "deepspeed": {"scheduler": {"type": "WarmupLR"}}}, {}),
            ({"lr_decay_style": "cosine", "min_lr": 1e-5}, {"schedule": "cosine", "min_learning_rate": 1e-5}),
            ({"decay_lr": False, "warmup_iters": 10}, {"schedule": "constant", "warmup_updates": 0}),
            ({"decay_lr": True, "lr_decay_iters": 90}, {"schedule": "cosine", "schedule_updates": 90}),
        ],
    )
    def test_shapes_of_the_schedule(self, values: dict[str, Any], expected: dict[str, Any]) -> None:
        assert facts(values) == expected

    def test_a_limit_of_updates_goes_before_the_epochs(self) -> None:
        assert facts({"max_steps": 10, "num_train_epochs": 3.0}) == {"planned_updates": 10}
        assert facts({"max_steps": -1, "num_train_epochs": 3.0}) == {"planned_epochs": 3.0}

    def test_megatron_gives_the_accumulation_by_its_sizes(self) -> None:
        sizes = {"global_batch_size": 64, "micro_batch_size": 2, "data_parallel_size": 8, "world_size": 16}
        assert facts(sizes)["accumulation_steps"] == 4
        assert "accumulation_steps" not in facts(sizes | {"global_batch_size": 60})

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ({"fp16": True, "bf16": False}, "float16"),
            ({"fp16": "False", "bf16": "True"}, "bfloat16"),
            ({"mixed_precision_training": "Native AMP"}, "float16"),
            ({"precision": "bf16-mixed"}, "bfloat16"),
            ({"dtype": "bfloat16"}, "bfloat16"),
            ({"precision": 32}, None),
        ],
    )
    def test_precision(self, values: dict[str, Any], expected: str | None) -> None:
        assert facts(values).get("precision") == expected

    @pytest.mark.parametrize(
        "value", [[1, 2], {"a": 1}, "auto", 0, -1, 10**400, float("nan"), True, None, "x" * 99]
    )
    def test_a_value_of_another_kind_states_nothing(self, value: object) -> None:
        names = (
            "gradient_accumulation_steps",
            "max_steps",
            "num_train_epochs",
            "learning_rate",
            "max_grad_norm",
        )
        assert facts(dict.fromkeys(names, value)) == {}

    def test_names_of_other_sections_are_other_things(self) -> None:
        values = {"model": {"learning_rate": 1.0}, "Training": {"learning-rate": 2e-4, "model": {"lr": 3}}}
        assert facts(values) == {"peak_learning_rate": 2e-4}
