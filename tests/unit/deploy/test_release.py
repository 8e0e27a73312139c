"""The release artefact without its size: the archive, the wheelhouse and the bill of materials, on wheels of 1 KiB."""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from deploy.release.__main__ import commit_of, gather, prove_installable, version_of
from deploy.release.archive import unpack, write_archive, write_checksums
from deploy.release.bill_of_materials import bill_of_materials
from deploy.release.refusals import ReleaseError
from deploy.release.wheelhouse import (
    Wheel,
    check_pins,
    read_pins,
    read_wheel,
    read_wheelhouse,
    requirements,
    rewrite_with_one_time,
)

TIME_S: Final = 1_700_000_000
NOON: Final = (2026, 5, 4, 12, 0, 0)


def _wheel(folder: Path, name: str, version: str = "1.0", *, needs: str = "", made: tuple[int, ...] = NOON) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}-{version}-py3-none-any.whl"
    rows = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense-Expression: MIT\n"]
    rows += [f"Requires-Dist: {needs}\nRequires-Dist: pytest; extra == 'dev'\n"] if needs else []
    inside = f"{name}-{version}.dist-info"
    contents = {
        f"{name}.py": "",
        f"{inside}/METADATA": "".join(rows),
        f"{inside}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{inside}/RECORD": "",
    }
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in contents.items():
            archive.writestr(zipfile.ZipInfo(path, made), text)  # type: ignore[arg-type]
    return file


def _pair(folder: Path) -> list[Wheel]:
    _wheel(folder, "georelay_server", needs="Lz.4>=4")
    _wheel(folder, "lz_4", "4.4")
    return read_wheelhouse(folder)


def _tree(folder: Path, *, written_s: int, mode: int) -> Path:
    for name in ("b/two", "a", "SCRIPT") if mode else ("SCRIPT", "a", "b/two"):
        file = folder / "r-1" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
        file.chmod((0o755 if name == "SCRIPT" else 0o644) & ~mode)
        os.utime(file, (written_s, written_s))
    return folder / "r-1"


def test_an_archive_has_the_same_bytes_whoever_made_it_and_when(tmp_path: Path) -> None:
    one, other = tmp_path / "one.tar.gz", tmp_path / "other.tar.gz"
    write_archive(_tree(tmp_path / "x", written_s=1, mode=0), one, time_s=TIME_S)
    write_archive(_tree(tmp_path / "y", written_s=9, mode=0o077), other, time_s=TIME_S)
    assert one.read_bytes() == other.read_bytes()
    assert list(tmp_path.glob(".*")) == []


def test_an_archive_names_no_user_and_no_file_and_has_the_time_it_is_given(tmp_path: Path) -> None:
    file = tmp_path / "one.tar.gz"
    write_archive(_tree(tmp_path / "x", written_s=1, mode=0), file, time_s=TIME_S)
    assert file.read_bytes()[3] == 0  # no flag: neither name nor comment in gzip's header
    assert int.from_bytes(file.read_bytes()[4:8], "little") == TIME_S
    with tarfile.open(fileobj=gzip.open(file)) as tar:
        rows = [(entry.name, entry.uid, entry.uname, entry.mtime, entry.mode) for entry in tar]
    assert rows == [
        ("r-1/SCRIPT", 0, "", TIME_S, 0o755),
        ("r-1/a", 0, "", TIME_S, 0o644),
        ("r-1/b/two", 0, "", TIME_S, 0o644),
    ]


@pytest.mark.parametrize("knows_filters", [True, False])
def test_an_archive_is_unpacked_by_a_python_that_knows_no_filters_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_filters: bool
) -> None:
    given: list[dict[str, str]] = []
    monkeypatch.setattr(tarfile, "data_filter", None, raising=False)
    if not knows_filters:
        monkeypatch.delattr(tarfile, "data_filter")
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda _tar, _into, **options: given.append(options))
    write_archive(_tree(tmp_path / "x", written_s=1, mode=0), file := tmp_path / "one.tar.gz", time_s=TIME_S)
    unpack(file, tmp_path)
    assert given == [{"filter": "data"} if knows_filters else {}]


def test_what_was_packed_is_unpacked(tmp_path: Path) -> None:
    write_archive(_tree(tmp_path / "x", written_s=1, mode=0), file := tmp_path / "one.tar.gz", time_s=TIME_S)
    unpack(file, tmp_path / "out")
    assert (tmp_path / "out/r-1/b/two").read_text() == "b/two"


def test_the_checksums_are_those_that_sha256sum_checks_and_miss_no_file(tmp_path: Path) -> None:
    folder = _tree(tmp_path, written_s=1, mode=0)
    write_checksums(folder)
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    said = subprocess.run(check, cwd=folder, check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == ["SCRIPT: OK", "a: OK", "b/two: OK"]
    (folder / "a").write_text("other")
    assert subprocess.run(check, cwd=folder, capture_output=True).returncode == 1


def test_a_wheel_is_read_from_its_metadata_and_needs_nothing_of_its_extras(tmp_path: Path) -> None:
    server, lz4 = _pair(tmp_path)
    assert (server.name, server.version, server.licence, server.needs) == ("georelay-server", "1.0", "MIT", ("lz-4",))
    assert (lz4.name, lz4.version, lz4.needs) == ("lz-4", "4.4", ())


def test_what_is_no_wheel_is_named(tmp_path: Path) -> None:
    (tmp_path / "cut.whl").write_bytes(b"PK\x03\x04")
    with pytest.raises(ReleaseError, match=r"^cut\.whl is no wheel"):
        read_wheelhouse(tmp_path)


def test_a_package_in_two_versions_is_refused(tmp_path: Path) -> None:
    _wheel(tmp_path, "lz4", "4.3")
    _wheel(tmp_path, "lz4", "4.4")
    with pytest.raises(ReleaseError, match=r"^lz4 is there twice"):
        read_wheelhouse(tmp_path)


def test_a_version_that_pip_chose_by_itself_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    wheels = _pair(tmp_path)
    check_pins(wheels, read_pins("# tested\nLZ_4==4.4\n"), ours=["georelay-server"])
    for pins in ("", "lz-4==4.3"):
        with pytest.raises(ReleaseError, match=r"lz-4 4\.4 is not pinned: write lz-4==4\.4 in constraints\.txt"):
            check_pins(wheels, read_pins(pins), ours=["georelay-server"])


def test_a_wheel_built_at_another_time_becomes_the_same(tmp_path: Path) -> None:
    files = [_wheel(tmp_path / str(year), "pyspark", made=(year, 1, 1, 0, 0, 0)) for year in (2025, 2026)]
    assert files[0].read_bytes() != files[1].read_bytes()
    for file in files:
        rewrite_with_one_time(file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert read_wheel(files[0]).name == "pyspark"


def test_a_program_in_a_wheel_that_was_rewritten_is_one_that_pip_makes_executable(tmp_path: Path) -> None:
    file = _wheel(tmp_path, "pyspark")
    with zipfile.ZipFile(file, "a") as wheel:
        for name, mode in (("pyspark/bin/spark-submit", 0o100755), ("pyspark/data.txt", 0o100644)):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            wheel.writestr(entry, b"")
    rewrite_with_one_time(file)
    with zipfile.ZipFile(file) as wheel:
        modes = {entry.filename: entry.external_attr >> 16 for entry in wheel.infolist()}
    assert stat.S_ISREG(modes["pyspark/bin/spark-submit"]) and modes["pyspark/bin/spark-submit"] & 0o111
    assert stat.S_ISREG(modes["pyspark/data.txt"]) and not modes["pyspark/data.txt"] & 0o111


def test_the_bill_of_materials_is_what_the_published_schema_asks_for(tmp_path: Path) -> None:
    server, lz4 = _pair(tmp_path)
    text = bill_of_materials(server, [lz4, server], commit="ab" * 20, time_s=TIME_S)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.replace('"library"', '"books"')) is not None


def test_the_bill_of_materials_names_parts_hashes_and_who_needs_whom(tmp_path: Path) -> None:
    server, lz4 = _pair(tmp_path)
    text = bill_of_materials(server, [lz4, server], commit="ab" * 20, time_s=TIME_S)
    said = json.loads(text)
    assert said["metadata"]["component"]["purl"] == "pkg:pypi/georelay-server@1.0"
    assert [(part["purl"], part["hashes"][0]["content"]) for part in said["components"]] == [
        ("pkg:pypi/lz-4@4.4", lz4.sha256)
    ]
    assert said["dependencies"][0] == {"ref": "pkg:pypi/georelay-server@1.0", "dependsOn": ["pkg:pypi/lz-4@4.4"]}
    assert text == bill_of_materials(server, [server, lz4], commit="ab" * 20, time_s=TIME_S)
    other = json.loads(bill_of_materials(server, [server], commit="ab" * 20, time_s=TIME_S))
    assert said["serialNumber"] != other["serialNumber"]


def test_a_release_installs_from_its_own_wheels_and_says_which_one_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = _pair(tmp_path / "wheels")
    _pair(tmp_path / "local")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "local"))  # no host has those
    listed = tmp_path / "requirements.txt"
    listed.write_text(requirements(wheels))
    prove_installable(tmp_path, listed)
    (tmp_path / "wheels" / wheels[1].file).unlink()
    with pytest.raises(ReleaseError, match=r"from its own wheels: ERROR: Could not find .* lz-4==4\.4"):
        prove_installable(tmp_path, listed)


@pytest.mark.slow
def test_a_wheel_that_is_not_the_one_that_was_listed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(requirements(_pair(tmp_path / "wheels")))
    _wheel(tmp_path / "wheels", "lz_4", "4.4", made=(2027, 1, 1, 0, 0, 0))
    with pytest.raises(ReleaseError, match="cannot be installed from its own wheels"):
        prove_installable(tmp_path, tmp_path / "requirements.txt")


def test_without_an_index_one_line_says_what_pip_did_not_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    _wheel(tmp_path / "ours", "georelay_server", needs="lz_4>=4")
    (tmp_path / "constraints.txt").write_text("lz_4==4.4\n")
    with pytest.raises(ReleaseError) as refused:
        gather(tmp_path / "ours", tmp_path / "r" / "wheels", extra="", constraints=tmp_path / "constraints.txt")
    assert "built where the package index answers" in str(refused.value)
    assert "georelay-server" in str(refused.value) and "\n" not in str(refused.value)


def _git(folder: Path, *words: str) -> None:
    who = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_COMMITTER_DATE": f"{TIME_S} +0000", "PATH": os.environ["PATH"]}
    names = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, env=who)


def test_a_release_is_of_a_commit_and_never_of_a_changed_tree(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    with pytest.raises(ReleaseError, match=r"1 files differ from the commit \(\?\? a, …\)\. Commit them first"):
        commit_of(tmp_path)
    _git(tmp_path, "add", "a")
    _git(tmp_path, "commit", "-qm", "one")
    commit, time_s = commit_of(tmp_path)
    assert len(commit) == 40 and time_s == TIME_S


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="git cannot read this checkout: fatal: not a git repository"):
        commit_of(tmp_path)


def test_two_versions_of_server_and_client_are_refused(tmp_path: Path) -> None:
    for folder, version in ((tmp_path, "1.0"), (tmp_path / "sdk", "1.1")):
        folder.mkdir(exist_ok=True)
        (folder / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    with pytest.raises(ReleaseError, match=r"georelay-server is 1\.0 and georelay is 1\.1"):
        version_of(tmp_path)
