"""What ships: the folders beside the package, no torch for the auditor, nothing heavy at import."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import accumaudit

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("hooks", "rules", "dashboards")


def shipped_files(folder: str) -> set[str]:
    """The files of a folder beside the package, as a wheel names them."""
    files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    files = (path for path in files if "__pycache__" not in path.parts)
    return {f"accumaudit/{path.relative_to(ROOT).as_posix()}" for path in files}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of the checkout, and the wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(name))


@pytest.mark.parametrize("folder", LINKED)
def test_the_checkout_sees_the_folder_through_a_relative_link(folder: str) -> None:
    link = ROOT / "accumaudit" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder


def test_the_wheel_holds_every_file_of_the_folders_once(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert len(names) == len(set(names))
    for folder in LINKED:
        inside = {name for name in names if name.startswith(f"accumaudit/{folder}/")}
        assert inside == shipped_files(folder)
    assert {"accumaudit/py.typed", "accumaudit/rules/tables.sql"} < set(names)


def test_the_wheel_installs_one_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"accumaudit", f"accumaudit-{accumaudit.__version__}.dist-info"}


def test_the_source_distribution_has_the_real_folders_and_not_the_links(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for folder in LINKED:
        assert shipped_files(folder) <= {f"accumaudit/{name}" for name in names}
        assert not {name for name in names if name.startswith(f"accumaudit/{folder}")}
    beside = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt"}
    assert {*beside, "tests/__init__.py", "docs/ledger.md"} <= names


def test_torch_is_an_extra_with_a_lower_bound_alone(metadata: Message) -> None:
    wanted = metadata.get_all("Requires-Dist") or []
    (torch,) = (line for line in wanted if re.match(r"torch\b", line))
    bound = re.fullmatch(r"torch>=([\d.]+); extra == 'torch'", torch)
    assert bound is not None
    assert f"hooks need torch {bound[1]} or later" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_metadata_names_version_python_and_licence(metadata: Message) -> None:
    assert metadata["Version"] == accumaudit.__version__
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[?([^\]\s]+)", text, re.MULTILINE)
    assert accumaudit.__version__ in [name for name in headings if name != "Unreleased"][:1]


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FORBID = """
import sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"{{name}} is not installed here", name=name)

sys.meta_path.insert(0, Forbidden())
"""


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'duckdb', 'pandas', 'pyarrow', 'numpy', 'click', 'rich'}"
    assert python(f"import accumaudit, sys; print(*({heavy} & sys.modules.keys()))") == ""


def test_the_hooks_need_torch_and_the_standard_library_alone() -> None:
    others = ("duckdb", "pandas", "pyarrow", "click", "rich", "tomli")
    code = "from accumaudit import attach; print(attach.__name__)"
    assert python(FORBID.format(names=others) + code) == "attach"


def test_the_auditor_works_where_there_is_no_torch() -> None:
    code = "import accumaudit.cli, accumaudit.ledger.reader, accumaudit.engine.judge, accumaudit.outputs.text"
    assert python(FORBID.format(names=("torch",)) + code) == ""
