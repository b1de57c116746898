import pytest

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.spark.subscription import SubscribePattern


@pytest.mark.parametrize(
    ("pattern", "topic", "found"),
    [
        ("b", "abc", True),
        ("^b", "abc", False),
        ("orders-.*", "eu-orders-1", True),
        (r"\Qa.b\E", "a.b", True),
        (r"\Qa.b\E", "axb", False),
        (r"^\p{Alpha}+$", "abc", True),
        (r"^\p{Alpha}+$", "ab1", False),
        (r"^[\p{Lower}\d]+$", "ab1", True),
        (r"^\P{Digit}+$", "abc", True),
        (r"(?<x>a)\k<x>", "baab", True),
        (r"a\z", "ba", True),
        (r"(?i)ORDERS", "my-orders", True),
        (r"a++b", "aab", True),
    ],
)
def test_a_java_pattern_is_searched_for_in_the_name(pattern, topic, found):
    assert SubscribePattern(pattern).matches(topic) is found


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "is not a regular expression"),
        ("[a-z&&[^b]]", "not supported here"),
        ("[a[b]]", "a character class inside another one"),
        (r"\p{Greek}", "a character class of this name"),
    ],
)
def test_what_has_no_counterpart_is_refused(pattern, why):
    with pytest.raises(ConfigError, match=why):
        SubscribePattern(pattern)
