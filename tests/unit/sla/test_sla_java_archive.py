"""Spark's JVM starts from an archive where there is one, and reports of small data and large alike."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from sla import session
from sla.java_archive import archive_options, archive_path


def test_an_archive_belongs_to_the_installed_spark_below_the_prefix(tmp_path: Path) -> None:
    import pyspark

    assert archive_path(str(tmp_path)) == tmp_path / "share" / "georelay" / f"spark-{pyspark.__version__}.jsa"


def test_without_an_archive_no_option_names_one(tmp_path: Path) -> None:
    assert archive_options(tmp_path / "none.jsa") == ""
    assert archive_options(tmp_path) == ""


@pytest.mark.parametrize("name", ["with space.jsa", 'with"quote.jsa', "with\ttab.jsa"])
def test_a_path_that_the_option_cannot_name_is_left_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert archive_options(tmp_path / name) == ""


@pytest.mark.parametrize("is_quick", [True, False])
@pytest.mark.parametrize("is_local", [True, False])
def test_only_a_jvm_on_this_machine_starts_from_the_archive_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_quick: bool, is_local: bool
) -> None:
    archive = tmp_path / "spark.jsa"
    archive.touch()
    monkeypatch.setattr(session, "archive_path", lambda: archive)
    options = session._settings(is_local=is_local, is_quick=is_quick)["spark.driver.extraJavaOptions"].split()
    assert (f"-XX:SharedArchiveFile={archive}" in options) == is_local
