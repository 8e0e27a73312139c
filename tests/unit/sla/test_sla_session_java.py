"""What Java is started with: two collectors at once, and it does not start at all."""

from __future__ import annotations

import pytest

from sla.session import _settings


@pytest.mark.parametrize(
    ("is_local", "is_quick", "collector"),
    [
        (True, False, ["-XX:+UseParallelGC"]),
        (True, True, ["-XX:+UseSerialGC"]),
        (False, True, ["-XX:+UseSerialGC"]),
        (False, False, []),
    ],
)
def test_java_gets_one_collector_at_most(is_local: bool, is_quick: bool, collector: list[str]) -> None:
    options = _settings(is_local=is_local, is_quick=is_quick)["spark.driver.extraJavaOptions"].split()
    assert [option for option in options if option.startswith("-XX:+Use")] == collector


def test_only_a_light_job_of_this_machine_goes_without_the_second_compiler() -> None:
    def options(*, is_local: bool, is_light: bool) -> str:
        settings = _settings(is_local=is_local, is_quick=False, is_light=is_light)
        assert "spark.executor.extraJavaOptions" not in settings
        return settings["spark.driver.extraJavaOptions"]

    first_only = "-XX:TieredStopAtLevel=1"
    assert first_only in options(is_local=True, is_light=True).split()
    assert first_only not in options(is_local=True, is_light=False)
    assert first_only not in options(is_local=False, is_light=True)
