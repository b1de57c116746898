"""Patterns of `subscribePattern` find the topics that java.util.regex finds."""

import random
from pathlib import Path

import pytest

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.spark.read.subscription import SubscribePattern
from spark_kafka_native.testing import run_java

NAMES = (
    "a", "A", "b", "B", "-", "_", ".", "_d", "-z", "a-b", "ab", "aB", "abc", "aa", "aaa", "9", "0", "z", "Z",
    "U", "h", "R", "orders-1", "eu.orders", "EU_ORDERS", "x-0", "a1", "a11", "1.2", "P", "Q", "E", "k", "__a",
    "A.b-C_9", "aA",
)  # fmt: skip

SUPPORTED = r"""
[(?<a]            [(?<]x            x[(?<y>)]           \0101                \01011         \07
\0377             [\0101-\0103]     (?-i)a              (?i)A(?-i)B          (?i-s:a)b      (?U)\w
(?u)a             (?U)^\p{Alpha}+$  a\h*b               ^\H+$                a\R?b          \V
[\d-z]            [\w-.]            [a-z&&[^b]]         [a[b]]               []a]           [^]a]
[^\d-z]           [[:alpha:]]       [a-d[m-p]&&[^bc]]   [^a[b]]              [^a-z&&[^b]]   [a-z&&b-y&&[^k]]
[a&b]             [a-]              [-a]                [a-[b]]              [--9]          [^a&&[ab]]
[#-&&[a-z]]      [!-&&[^b]]         [a-c-&&[b-]]
\x{41}            \x41              \u0041              \cA                  [\x2d\x2e]     [a-\x7a]
\Aa               b\Z               b\z                 ^a$                  \b1            \Ba
x*+               (?>a)b            a{2}                a{2,}                a{1,2}?        a++b
\p{Lower}         \p{IsLatin}       \p{javaLowerCase}   \p{IsAlphabetic}     \P{Alpha}      [\P{Alpha}]
\pL               \p{L}             \p{Lu}              \p{IsLu}             \p{IsDigit}    [\p{Punct}-]
\p{Pd}            \p{Nd}            (?i)\p{Alpha}       ^\P{Digit}+$         [^\p{Lower}.]  \p{IsPunctuation}
[\Q.-\E]          \Qa.b\E           \Qa-b\E             \Qa                  \Qa\E+b        (a)\1
(a)\11            (?<x>a)\k<x>      (?<x1>a)            (?i)(a)\1b           (?i)ORDERS     (?i)[a-c]$
(?i:A)b           (?i)[^a]          a(?i)b|C            (a(?i)b)C            (?i)\Qab\E     (?i:a|B)c
(?<!a)b           (?<=a)b           (?=a)a              (?!a).b              \_             \-
(?d)a             (?m)^a$           (?s).               a|                   \.             a}
a]                [\]a]             [\[a]               .                    \S             \W
[\D&&\W]          [\s\S]            \X                  (?:a|b)(?<x>b)       [A-z]          [.-_]
[a-a]             (?i)\^            [\x{0}-\x{10FFFF}]  ^(?<x>a)()()()()()()()()(a)\10$
[a-z&&[^b]&&[^k]] [^a-z&&[^b]&&[^k]] [a-z&&[^b]&&[^k]&&[^z]]
(?i)(a)\1$        (?i)(?<x>a)\k<x>$   (a)\1$           (?<x>a)\k<x>$
"""

REFUSED = r"""
[a-\d]   (?P<x>a)  (?(1)a)  (?#c)a  [z-a]  \Ea  a{,3}  a{2  {a}  \8(a)  [\b]  \y  (?<_n>a)  [a  (a  a)  \x  \0
\p{Greek} [\R] *a (?x)a (?i)\p{Lower} [a&&] [&&a] (?<=a+)b \N{DIGIT\u0020ONE} \b{g} a**
[a&&&&b] [a-\Qc\E] [a-&&[a-]]
"""

ORACLE = """
    import java.util.*;
    import java.util.regex.*;
    class Oracle {
        public static void main(String[] names) {
            Scanner patterns = new Scanner(System.in, "UTF-8");
            while (patterns.hasNextLine()) {
                StringBuilder found = new StringBuilder();
                try {
                    Pattern pattern = Pattern.compile(patterns.nextLine());
                    for (String name : names) found.append(pattern.matcher(name).find() ? '1' : '0');
                } catch (PatternSyntaxException refused) {
                    found.append('-');
                }
                System.out.println(found);
            }
        }
    }
"""


def java_finds(patterns: list[str]) -> list[str | None]:
    """For each pattern a 0 or 1 for each name; None where Java refuses the pattern."""
    lines = run_java(ORACLE, *NAMES, classpath=[Path()], input_text="\n".join(patterns) + "\n").splitlines()
    return [None if line == "-" else line for line in lines]


def we_find(pattern: str) -> str | None:
    try:
        subscription = SubscribePattern(pattern)
    except ConfigError:
        return None
    return "".join("01"[subscription.matches(name)] for name in NAMES)


def test_a_table_of_patterns_finds_what_java_finds() -> None:
    patterns = SUPPORTED.split()
    found = {
        pattern: (we_find(pattern), java)
        for pattern, java in zip(patterns, java_finds(patterns), strict=True)
    }
    assert {pattern: both for pattern, both in found.items() if both[0] != both[1]} == {}
    assert all(java is not None for _, java in found.values())


@pytest.mark.parametrize("pattern", REFUSED.split())
def test_what_is_malformed_or_has_no_faithful_translation_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="Option 'subscribePattern'"):
        SubscribePattern(pattern)


PIECES = r"""
a A b B 9 z Z . - _ ^ $ | ( ) [ ] { } * + ? & \ [^ && (?i) (?-i) (?i: (?: (?= (?! (?<! (?> (?<n> \k<n> \1
\d \D \w \W \h \H \R \b \Q \E \p{Alpha} \P{Lower} \pL \0101 \x2d a-z A-C {2} {1,} (a) (?U) \z [a-c] [^b&&\w]
"""


def test_random_patterns_find_what_java_finds_or_are_refused() -> None:
    choose, pieces = random.Random(20), PIECES.split()
    patterns = sorted({"".join(choose.choices(pieces, k=choose.randint(1, 7))) for _ in range(20_000)})
    ours = {pattern: found for pattern in patterns if (found := we_find(pattern)) is not None}
    java = dict(zip(patterns, java_finds(patterns), strict=True))
    compared = {pattern for pattern in ours if java[pattern] is not None}
    assert [pattern for pattern in compared if ours[pattern] != java[pattern]] == []
    assert len(compared) > 3_000
