import string

import pytest

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.spark.read.subscription import SubscribePattern

LOWER, UPPER, DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
ALL = LOWER + UPPER + DIGITS + "._-"


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
        (r"^\p{Lu}+$", "AB", True),
        (r"^\p{Lu}+$", "Ab", False),
        (r"^\p{IsL}\pN$", "a1", True),
        (r"^\PL$", "a", False),
        (r"^\P{Digit}+$", "abc", True),
        (r"(?<x>a)\k<x>", "baab", True),
        (r"a\z", "ba", True),
        (r"a\z", "ab", False),
        (r"a\Z", "ba", True),
        (r"a\Z", "ab", False),
        (r"\Ab", "bc", True),
        (r"\Ab", "ab", False),
        (r"\Gb", "ab", False),
        (r"^\D\W\S\H\V$", "a-1_.", True),
        (r"\D", "1", False),
        (r"\W", "a", False),
        (r"[\D]", "1", False),
        (r"^[^\W]+$", "a_1", True),
        (r"(?i)ORDERS", "my-orders", True),
        (r"a++b", "aab", True),
        (r"a*+a", "aa", False),
        (r"^a{2}$", "aa", True),
        (r"^a{2}$", "aaa", False),
        (r"^a{1,3}-\d{2,}$", "aaa-123", True),
        (r"^a{1,3}-\d{2,}$", "aaaa-123", False),
        (r"^(a??)a\1$", "aa", False),
        ("[a-z&&[^b]]", "b", False),
        ("[a-z&&[^b]&&[^c]]", "d", True),
        ("[a-z&&[^b]&&[^c]]", "9", False),
        ("[a-z&&[^b]&&[^c]]", "b", False),
        ("[a-z&&[^b]&&[^c]]", "c", False),
        ("[^a-z&&[^b]&&[^c]]", "b", True),
        ("[^a-z&&[^b]&&[^c]]", "d", False),
        ("[a[b]]", "b", True),
        ("^[]a]$", "a", True),  # a bracket at once is one of the characters
        ("^[^]a]$", "a", False),
        ("^[^]a]$", "b", True),
        (r"^[\Qa.\Ec]+$", "a.c", True),
        (r"^[\Qa.\Ec]+$", "a.Q", False),
        ("[(?<a]", "a", True),
        (r"\0101", "A", True),
        (r"[\d-z]", "-", True),
        (r"(?i)A(?-i)b", "aB", False),
        (r"(?i:A)b", "ab", True),
        (r"(?i:A)b", "aB", False),
        (r"(?i:A)b", "AB", False),
        (r"(A(?i)b)c", "ABc", True),
        (r"(A(?i)b)c", "ABC", False),
        (r"(?i)((?-i:a)b)", "aB", True),
        (r"(?i)((?-i:a)b)", "AB", False),
        (r"(?i)(a)\1$", "aA", True),
        (r"(a)\1$", "aA", False),
        (r"(?i)(?<x>a)\k<x>$", "aA", True),
        (r"(?<x>a)\k<x>$", "aA", False),
        (r"(?i)a(?m)B", "ab", True),
        (r"(?i)a(?s:B)c", "ABC", True),
        (r"(?i)^[a-c]+$", "aB", True),
        (r"^[a-c]+$", "aB", False),
        (r"(?i)^[\QaB\E]+$", "Ab", True),
        (r"^[a-[c]]+$", "a-c", True),
        (r"^[a-[c]]+$", "b", False),
        (r"^(a)\11$", "aa1", True),  # no eleventh group: the first one, and a 1
        (r"^(?<x>a)" + "(b)" * 9 + r"\10$", "a" + "b" * 10, True),
        (r"^(?<x>a)" + "(b)" * 9 + r"\10$", "a" + "b" * 9 + "a0", False),
        (r"(?U)\w\h*$", "a", True),
        (r"a\Rb", "a-b", False),
        (r"orders\b", "orders-1", True),
        (r"orders\b", "orders1", False),
        (r"orders\B", "orders1", True),
        (r"orders\B", "orders-1", False),
        ("^(?!internal).*", "orders", True),
        ("^(?!internal).*", "internal-1", False),
        ("(?<!eu-)orders", "us-orders", True),
        ("(?<!eu-)orders", "eu-orders", False),
        ("^[a-a]$", "a", True),
        ("^a.b$", "a-b", True),
        (r"^a\.b$", "a-b", False),
    ],
)
def test_a_java_pattern_is_searched_for_in_the_name(pattern, topic, found):
    assert SubscribePattern(pattern).matches(topic) is found


@pytest.mark.parametrize(
    ("names", "chars"),
    [
        ("Lower javaLowerCase IsLowercase Ll IsLl", LOWER),
        ("Upper javaUpperCase IsUppercase Lu IsLu", UPPER),
        ("Alpha javaLetter javaAlphabetic IsAlphabetic IsLetter IsLatin L IsL", LOWER + UPPER),
        ("Digit javaDigit IsDigit N Nd", DIGITS),
        ("Alnum javaLetterOrDigit", LOWER + UPPER + DIGITS),
        ("XDigit", DIGITS + "abcdefABCDEF"),
        ("Punct IsPunctuation P", "._-"),
        ("Pd", "-"),
        ("Pc", "_"),
        ("ASCII Graph Print InBASIC_LATIN", ALL),
        ("Blank Cntrl Space javaWhitespace IsWhite_Space IsControl Z S M", ""),
    ],
)
def test_a_named_class_has_the_characters_of_java(names, chars):
    for name in names.split():
        for of, expected in (("p", set(chars)), ("P", set(ALL) - set(chars))):
            one = SubscribePattern(rf"^\{of}{{{name}}}$")
            assert (name, {char for char in ALL if one.matches(char)}) == (name, expected)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "is not a regular expression"),
        ("(?x)a", "not supported here"),
        (r"\p{Greek}", "the character class Greek"),
        ("[a", "it ends too early"),
        ("a{,3}", "a repetition at 1 that is malformed"),
        ("orders(?i)+x", "a repetition at 10 that is malformed or repeats nothing"),
        ("a(?-i){2}", "a repetition at 6 that is malformed or repeats nothing"),
        ("a)", "the parenthesis at 1 closes nothing"),
        ("[z-a]", "the range before 4"),
        (r"\y", r"the escape \\y"),
        (r"\08", r"the escape \\0"),
        (r"\x{110000}", "no character has the number 110000"),
        (r"(?i)\p{Lower}", "the character class Lower where case is ignored"),
        ("(?P<x>a)", "the group at 0"),
    ],
)
def test_what_has_no_counterpart_is_refused(pattern, why):
    with pytest.raises(ConfigError, match=why):
        SubscribePattern(pattern)
