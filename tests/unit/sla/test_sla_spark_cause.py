"""Why Spark did not start, in its own words: what JVM and Spark print around them names everything but the cause."""

from __future__ import annotations

import pytest

from sla.spark_cause_core import cause_of

EXITED = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
NO_MASTER = """WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" org.apache.spark.SparkException: Master must be yarn or start with spark, k8s, or local
\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1068)
"""
NO_HEAP = """Picked up JAVA_TOOL_OPTIONS: -Xshare:auto
Invalid maximum heap size: -Xmxbanana
Error: Could not create the Java Virtual Machine.
"""
CALLING = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'
\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:603)
"""
INSTANTIATING = """Error while instantiating 'SessionStateBuilder':

JVM stacktrace:
java.lang.IllegalArgumentException: Error while instantiating 'SessionStateBuilder':
\tat org.apache.spark.sql.SparkSession.sessionState(SparkSession.scala:205)
Caused by: java.lang.NumberFormatException: For input string: "banana"
\tat java.lang.Integer.parseInt(Integer.java:1)
Caused by: org.apache.spark.SparkNumberFormatException: [INVALID_CONF_VALUE] 'banana' is no number.
\t... 12 more
"""


@pytest.mark.parametrize(
    ("said", "log", "cause"),
    [
        (EXITED, NO_MASTER, "Master must be yarn or start with spark, k8s, or local"),
        (EXITED, NO_HEAP, "Invalid maximum heap size: -Xmxbanana"),
        (EXITED, "WARNING: Using incubator modules: jdk.incubator.vector\n", EXITED),
        (EXITED, "", EXITED),
        (CALLING, "ERROR SparkContext: Error initializing SparkContext.", "Could not parse Master URL: 'local[x]'"),
        (INSTANTIATING, "", "[INVALID_CONF_VALUE] 'banana' is no number."),
        ("", "", "it did not say why"),
    ],
)
def test_the_cause_is_the_line_that_says_what_to_change(said: str, log: str, cause: str) -> None:
    assert cause_of(said, log) == cause
