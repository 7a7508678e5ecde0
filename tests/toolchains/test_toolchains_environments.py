from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.device_kinds import CPU
from iree_gauntlet.errors import ExitCode, ToolchainError, UsageError
from iree_gauntlet.system import file_lock
from iree_gauntlet.targets import Target
from iree_gauntlet.toolchains import target_runtimes
from iree_gauntlet.toolchains.choice import parse_choice
from iree_gauntlet.toolchains.environments import SEAL, Environments
from iree_gauntlet.toolchains.find import ToolchainLocations, find_toolchain, provide_environment
from iree_gauntlet.toolchains.installer import Installer, Sources
from iree_gauntlet.toolchains.target_runtimes import find_target_runtime
from tests.support.command_line import LIMIT_SECONDS
from tests.support.iree_source import make_commit_packages, make_source_builds
from tests.support.iree_wheels import write_release_wheels, write_wheel
from tests.support.permissions import mount_read_only, with_mount_rights
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

_INSTALL = """
import sys
from pathlib import Path
from iree_gauntlet.toolchains.choice import parse_choice
from iree_gauntlet.toolchains.environments import Environments
from iree_gauntlet.toolchains.find import ToolchainLocations, provide_environment
from iree_gauntlet.toolchains.installer import Installer
folder, wanted, program = sys.argv[1:]
environments = Environments(
    Path(folder), Installer(program), offline=False, mark_used=lambda _: None, news=lambda text: print(text, flush=True)
)
provide_environment(parse_choice(wanted), ToolchainLocations(environments, None, None, "", None, ""))
"""


@dataclass
class Releases:
    """Environments over an index of small wheels, without a network.

    Attributes:
        folder: where they lie.
        links: the page of nightlies.
        news: what was said.
        used: folders that were in use.
    """

    folder: Path
    links: Path
    news: list[str] = field(default_factory=list)
    used: list[Path] = field(default_factory=list)

    def place(self, *, offline: bool = False, news: Callable[[str], None] | None = None) -> ToolchainLocations:
        environments = Environments(
            self.folder, Installer(), offline=offline, mark_used=self.used.append, news=news or self.news.append
        )
        return ToolchainLocations(
            environments,
            make_source_builds(self.folder, offline=offline),
            make_commit_packages(),
            str(self.links),
            hash_file,
            "",
        )

    def environment(self, wanted: str) -> Path:
        return provide_environment(parse_choice(wanted), self.place()).path

    def installs(self) -> int:
        return sum("installing with" in line for line in self.news)

    def start(self, wanted: str, program: str = "") -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", _INSTALL, str(self.folder), wanted, program]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels of the index, of the nightlies' page and in uv's cache."""
    folder = tmp_path_factory.mktemp("shared")
    write_release_wheels(folder / "index", "3.8.0", "3.9.0", "3.11.0", "3.12.0")
    write_release_wheels(folder / "nightlies", "3.13.0rc20261101", "3.13.0rc20261102")
    return folder


@pytest.fixture
def releases(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Releases:
    # The user's own settings: an index of a folder, and no network.
    for name, value in {
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(shared / "index"),
        "UV_CACHE_DIR": str(shared / "uv-cache"),
    }.items():
        monkeypatch.setenv(name, value)
    return Releases(tmp_path / "envs", shared / "nightlies")


def test_a_release_is_installed_once_and_found_again(releases: Releases) -> None:
    tools = find_toolchain(parse_choice("3.9"), parse_choice("3.9"), releases.place())
    path = releases.folder / releases.place().environments.make_path("3.9.0").name
    assert tools.compiler.release == tools.runtime.release == "3.9.0"
    assert tools.source.startswith(f"3.9: {path}")
    for tool in (tools.compiler.compile, tools.runtime.run_module, tools.runtime.benchmark_module):
        done = subprocess.run([tool], capture_output=True, text=True, check=True)
        assert done.stdout.endswith(" 3.9.0\n")
    # The environment was moved after it was made: its Python finds it all the same.
    code = "import iree.compiler.version as v; print(v.VERSION)"
    done = subprocess.run([tools.compiler.python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "3.9.0\n"
    assert not [script.name for script in (path / "bin").iterdir() if not script.name.startswith("python")]
    again = find_toolchain(parse_choice("3.9.0"), parse_choice("3.9.0"), releases.place())
    assert again.compiler.identity == tools.compiler.identity
    assert releases.installs() == 1
    assert releases.used[0] == path


def test_the_runtime_of_another_architecture_is_installed_beside_the_releases(
    releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_runtimes, "_MACHINE", "x86_64")
    monkeypatch.setattr(target_runtimes, "explain_missing_runner", lambda _target: "")
    toolchain = find_toolchain(parse_choice("3.9"), parse_choice("3.9"), releases.place())
    target = Target("cpu", "aarch64")
    found = find_target_runtime(target, toolchain, releases.place(offline=True))
    assert "cpu-aarch64: IREE 3.9.0 for manylinux_2_28_aarch64 is not installed" in found.obstacle
    assert found.obstacle.endswith("with network access: run once; --stages compile makes them")
    found = find_target_runtime(target, toolchain, releases.place())
    folder = releases.folder / releases.place().environments.make_path("3.9.0-manylinux_2_28_aarch64").name
    assert Path(found.run_module).is_relative_to(folder)
    assert (found.runner, found.is_emulated, found.obstacle) == (target.runner, True, "")
    assert find_target_runtime(target, toolchain, releases.place(offline=True)) == found
    assert releases.installs() == 2
    # A wheel for another architecture is no release that `--iree` means.
    assert provide_environment(parse_choice(">=3.8,<3.10"), releases.place(offline=True)).label == "3.9.0"


def test_a_folder_with_tools_is_a_runtime(releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_runtimes, "_MACHINE", "x86_64")
    monkeypatch.setattr(target_runtimes, "explain_missing_runner", lambda _target: "")
    toolchain = find_toolchain(parse_choice("3.9"), parse_choice("3.9"), releases.place())
    ready_made = CPU.architectures["riscv64"]
    target = Target("cpu", "riscv64", definition=replace(ready_made, runtime=str(tmp_path)))
    found = find_target_runtime(Target("cpu", "riscv64"), toolchain, releases.place())
    assert (
        "IREE has no wheel of its runtime for riscv64. Name a folder with its tools in gauntlet.toml" in found.obstacle
    )
    found = find_target_runtime(target, toolchain, releases.place())
    assert f"{tmp_path}/iree-run-module, the runtime of [targets.riscv64], is no program" in found.obstacle
    for name in ("iree-run-module", "iree-benchmark-module"):
        (tmp_path / name).touch(0o755)
    found = find_target_runtime(target, toolchain, releases.place())
    assert (found.run_module, found.obstacle) == (f"{tmp_path}/iree-run-module", "")
    build = replace(toolchain, runtime=replace(toolchain.runtime, release="unknown"))
    found = find_target_runtime(Target("cpu", "aarch64"), build, releases.place())
    assert "the runtime's release is unknown, which no wheel has" in found.obstacle


def test_a_range_means_its_newest_release(releases: Releases) -> None:
    assert releases.environment(">=3.8,<3.12").name.startswith("3.11.0-")
    assert releases.environment("==3.8.*").name.startswith("3.8.0-")
    with pytest.raises(ToolchainError) as raised:
        releases.environment(">=4")
    assert raised.value.exit_code is ExitCode.USAGE
    assert str(raised.value) == "no release of IREE matches >=4\n  Available: 3.8.0 to 3.12.0."
    place = releases.place(offline=True)
    assert provide_environment(parse_choice(">=3.8"), place).label == "3.11.0"
    with pytest.raises(ToolchainError, match=r"no installed IREE matches >=3\.12, .* installed: 3\.8\.0, 3\.11\.0"):
        provide_environment(parse_choice(">=3.12"), place)


def test_nightlies_come_from_their_page(releases: Releases) -> None:
    for asked, version in (("nightly", "3.13.0rc20261102"), ("3.13.0rc20261101", "3.13.0rc20261101")):
        assert releases.environment(asked).name.startswith(f"{version}-")
    assert provide_environment(parse_choice("nightly"), releases.place(offline=True)).label == "3.13.0rc20261102"


def test_a_release_that_does_not_exist_names_its_neighbours(releases: Releases) -> None:
    with pytest.raises(ToolchainError) as raised:
        releases.environment("3.10.0")
    assert raised.value.exit_code is ExitCode.USAGE
    assert str(raised.value) == "there is no IREE 3.10.0 for this Python and platform\n  Nearest: 3.9.0 and 3.11.0."
    assert not [path for path in releases.folder.iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"PIP_INDEX_URL": "https://a"}, {"UV_DEFAULT_INDEX": "https://a"}),
        (
            {"PIP_EXTRA_INDEX_URL": "https://a\nhttps://b"},
            {"UV_INDEX": "https://a https://b", "UV_INDEX_STRATEGY": "unsafe-best-match"},
        ),
        ({"PIP_FIND_LINKS": "/a /b"}, {"UV_FIND_LINKS": "/a,/b"}),
        ({"PIP_INDEX_URL": "https://a", "UV_INDEX_URL": "https://b"}, {"UV_INDEX_URL": "https://b"}),
        ({"PIP_INDEX_URL": "https://a", "UV_FIND_LINKS": "/b"}, {"UV_FIND_LINKS": "/b"}),
        ({"PIP_INDEX_URL": "", "UV_INDEX": ""}, {"UV_INDEX": ""}),
        (
            {"PIP_EXTRA_INDEX_URL": "https://a", "UV_INDEX_STRATEGY": "first-index"},
            {"UV_INDEX": "https://a", "UV_INDEX_STRATEGY": "first-index"},
        ),
    ],
)
def test_indexes_of_pips_variables_hold_where_uvs_name_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: dict[str, str]
) -> None:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\nenv > '{tmp_path}/env.txt'\necho iree-base-compiler==3.9.0\n")
    uv.chmod(0o755)
    found = Installer(str(uv)).list_versions("iree-base-compiler", SpecifierSet(), Sources())
    assert found == [Version("3.9.0")]
    inherited = dict(line.split("=", 1) for line in (tmp_path / "env.txt").read_text().splitlines() if "=" in line)
    assert {name: value for name, value in inherited.items() if name.startswith("UV_")} == expected


def test_pips_own_variables_suffice(releases: Releases, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.setenv("PIP_FIND_LINKS", (shared / "index").as_uri())
    assert releases.environment("3.8.0").name.startswith("3.8.0-")


def test_without_uv_the_message_names_it(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"^uv cannot be started: .*/none") as raised:
        Installer(str(tmp_path / "none")).list_versions("iree-base-compiler", SpecifierSet(), Sources())
    assert raised.value.hint.endswith("-m pip install uv")


def test_offline_nothing_is_installed(releases: Releases) -> None:
    with pytest.raises(ToolchainError) as raised:
        provide_environment(parse_choice("3.9.0"), releases.place(offline=True))
    assert "IREE 3.9.0 is not installed: " in raised.value.message
    assert "gauntlet toolchain.install 3.9.0" in raised.value.hint
    assert not releases.folder.exists()


@pytest.fixture
def whole(releases: Releases, shared: Path) -> Path:
    """An environment, made once."""
    return replace(releases, folder=shared / "envs", news=[]).environment("3.9.0")


def _another_version(path: Path) -> None:
    for info in path.rglob("iree_base_*-3.9.0.dist-info"):
        info.rename(info.with_name(info.name.replace("3.9.0", "3.8.0")))


def _of_another_time(path: Path) -> None:
    document = json.loads((path / SEAL).read_bytes())
    (path / SEAL).write_text(json.dumps(document | {"format": 0}))


def _a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()
    (path / "leftover").touch()


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda path: next(path.rglob("iree-run-module")).unlink(), "iree-run-module is missing"),
        (lambda path: next(path.rglob("iree-compile")).write_text("#!/bin/sh\n"), "iree-compile has changed"),
        (lambda path: (path / SEAL).unlink(), "is incomplete"),
        (lambda path: os.truncate(path / SEAL, 100), "damaged gauntlet-environment.json"),
        (lambda path: (path / "bin" / "python").unlink(), "lost its Python"),
        (_another_version, "is missing"),
        (_of_another_time, "another version of this toolkit"),
        (_a_file, "is incomplete"),
    ],
)
def test_a_broken_environment_is_seen_and_made_again(
    releases: Releases, whole: Path, harm: Callable[[Path], object], why: str
) -> None:
    path = releases.place().environments.make_path("3.9.0")
    shutil.copytree(whole, path, symlinks=True)
    assert releases.environment("3.9.0") == path
    harm(path)
    with pytest.raises(ToolchainError, match=why):
        provide_environment(parse_choice("3.9.0"), releases.place(offline=True))
    assert releases.environment("3.9.0") == path
    assert any(why in line and "recreating it" in line for line in releases.news)
    assert releases.installs() == 1
    assert [child.name for child in releases.folder.iterdir() if child.is_dir()] == [path.name]


def test_wheels_of_a_folder_have_environments_by_their_content(releases: Releases, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_wheel(tmp_path / name, "compiler", "3.13.0.dev1", content=name)
        write_wheel(tmp_path / name, "runtime", "3.13.0.dev1")
    found = {}
    for name in ("a", "b"):
        choice = parse_choice(f"wheels:{tmp_path / name}")
        found[name] = find_toolchain(choice, choice, releases.place())
    assert found["a"].compiler.compile != found["b"].compiler.compile
    assert found["a"].compiler.identity != found["b"].compiler.identity
    assert found["a"].runtime.identity == found["b"].runtime.identity
    # The same wheels elsewhere are the same IREE.
    shutil.copytree(tmp_path / "a", tmp_path / "with space")
    choice = parse_choice(f"wheels:{tmp_path / 'with space'}")
    assert find_toolchain(choice, choice, releases.place()).compiler.compile == found["a"].compiler.compile
    assert found["a"].compiler.release == "3.13.0.dev1"
    assert releases.installs() == 2


def test_wheels_that_cannot_be_used(releases: Releases, tmp_path: Path) -> None:
    def error(folder: Path) -> str:
        with pytest.raises(ToolchainError) as raised:
            provide_environment(parse_choice(f"wheels:{folder}"), releases.place())
        return raised.value.message

    assert error(tmp_path / "none").endswith("is not a folder")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "iree_base_compiler-3.13.0-cp27-cp27mu-win32.whl").touch()
    assert error(tmp_path / "foreign").endswith("it has iree_base_compiler-3.13.0-cp27-cp27mu-win32.whl")
    write_wheel(tmp_path / "two", "compiler", "3.13.0")
    write_wheel(tmp_path / "two", "compiler", "3.13.1")
    assert "several wheels of one kind" in error(tmp_path / "two")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "iree_base_compiler-3.13.0-py3-none-any.whl").write_bytes(b"PK")
    assert "cannot install" in error(tmp_path / "torn")
    with pytest.raises(UsageError, match="not installed by this toolkit"):
        provide_environment(parse_choice("path"), releases.place())


def test_three_processes_install_once(releases: Releases) -> None:
    running = [releases.start("3.12.0") for _ in range(3)]
    output = "".join(process.communicate(timeout=LIMIT_SECONDS)[0] for process in running)
    assert [process.returncode for process in running] == [0, 0, 0], output
    assert output.count("installing with") == 1
    assert provide_environment(parse_choice("3.12.0"), releases.place(offline=True)).label == "3.12.0"


def test_killed_at_any_moment_the_next_one_makes_it_whole(releases: Releases) -> None:
    # As far as it has come, or the one that continues with its installer has.
    for there in ("*", ".making-*", ".making-*/bin/python", ".making-*/lib/*/*/iree*", f".making-*/{SEAL}"):
        with releases.start("3.11.0") as process:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
            wait_until(functools.partial(_is_there_or_over, releases.folder, there, process))
            process.send_signal(signal.SIGKILL)
    found = provide_environment(parse_choice("3.11.0"), releases.place())
    assert found.label == "3.11.0"
    assert [path.name for path in releases.folder.iterdir() if path.is_dir()] == [found.path.name]


def _is_there_or_over(folder: Path, pattern: str, process: subprocess.Popen[str]) -> bool:
    return any(folder.glob(pattern)) or process.poll() is not None


def test_an_installer_that_outlives_us_is_waited_for(
    releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on, ended = (tmp_path / name for name in ("started", "go-on", "ended"))
    slow = tmp_path / "slow-uv"
    slow.write_text(f"#!/bin/sh\ntouch '{started}'\ncat '{go_on}'\ntouch '{ended}'\nexit 1\n")
    slow.chmod(0o755)
    os.mkfifo(go_on)
    with releases.start("3.12.0", str(slow)) as process:
        wait_until(started.exists)
        process.kill()
    assert not ended.exists()

    said: list[str] = []

    def news(text: str) -> None:
        said.append(text)
        if text.startswith("waiting for another process"):
            go_on.write_text("")

    monkeypatch.setattr(file_lock, "_FIRST_REMINDER_SECONDS", 0.0)
    assert provide_environment(parse_choice("3.12.0"), releases.place(news=news)).path.is_dir()
    assert said[0].startswith("waiting for another process that installs IREE 3.12.0")
    assert ended.exists(), "both wrote at once"


def test_a_cache_that_cannot_be_written_is_an_error_that_names_it(releases: Releases) -> None:
    releases.folder.parent.mkdir(exist_ok=True)
    releases.folder.write_text("a file")
    with pytest.raises(ToolchainError, match="envs: "):
        releases.environment("3.9.0")


@pytest.mark.parametrize(
    ("said", "what", "hint"),
    [
        (
            "error: Failed to begin\n  cause: cannot make `/home/me/.cache/uv`: Permission denied (os error 13)",
            "/home/me/.cache/uv: Permission denied",
            "Grant write permission there, or name other folders: uv's with $UV_CACHE_DIR, ",
        ),
        (
            "error: Failed to write to the cache\n  cause: failed to write to file `/x/y`: No space (os error 28)",
            "/x/y: disk full",
            "Free disk space there, or name other folders: uv's with $UV_CACHE_DIR, ",
        ),
        ("error: write: No space left on device", "disk full", "Free disk space.\n"),
        (
            "error: error sending request for `http://h/`: Connection refused (os error 111)",
            "(exit code 2)",
            "Check the network and uv's index settings.\n",
        ),
    ],
)
def test_what_the_system_refuses_uv_is_no_fault_of_the_network(
    releases: Releases, tmp_path: Path, said: str, what: str, hint: str
) -> None:
    program = tmp_path / "uv"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 2\n")
    program.chmod(0o755)
    with pytest.raises(ToolchainError) as raised:
        Installer(str(program)).list_versions("iree-base-compiler", SpecifierSet(">=3"), Sources())
    assert raised.value.message.startswith("uv cannot list the versions of iree-base-compiler>=3")
    assert raised.value.message.endswith(what)
    assert raised.value.hint.startswith(hint)


@with_mount_rights
def test_a_home_that_cannot_be_written_is_named(
    releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("UV_CACHE_DIR", str(home / "uv"))
    monkeypatch.setenv("COLUMNS", "40")
    with mount_read_only(home), pytest.raises(ToolchainError) as raised:
        releases.environment(">=3.8")
    assert raised.value.message.endswith(f"{home / 'uv'}: Read-only file system")
