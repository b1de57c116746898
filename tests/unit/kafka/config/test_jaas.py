"""Java's sasl.jaas.config: three modules, their options, and nothing else."""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.config.jaas import (
    KRB5_MODULE,
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    parse_jaas,
)
from spark_kafka_native.kafka.errors import ConfigError


def options(text: str) -> dict[str, str]:
    return {name: value.reveal() for name, value in parse_jaas(text).options}


ESCAPED = [
    (r"a\tb\nc\rd\be\ff\ag\vh", "a\tb\nc\rd\be\ff\ag\vh"),
    (r"a\042b\0c\101\7", 'a"b\0cA\7'),
    (r"\377\400\4777\1234\08\79", "\xff\x200\x2777S4\x008\x079"),
    (r"DOM\nick\x\u\8\\\"\'", "DOM\nickxu8\\\"'"),
    ("a\\\nb", "a\nb"),
]
"""As Java's ``StreamTokenizer`` reads them; compared with that of Java 17."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f'{PLAIN_MODULE} required username="a" password="b";', {"username": "a", "password": "b"}),
        # A broker's entry, copied.
        (
            f'{PLAIN_MODULE} required username="a" password="b" user_a="b";',
            {"username": "a", "password": "b", "user_a": "b"},
        ),
        (f"{PLAIN_MODULE}  required\n username='a'  password=b ;", {"username": "a", "password": "b"}),
        *(
            (f'{module} required serviceName="kafka" debug=true;', {"serviceName": "kafka", "debug": "true"})
            for module in (PLAIN_MODULE, SCRAM_MODULE, KRB5_MODULE)
        ),
        (f"{KRB5_MODULE} required renewTicket=true;", {"renewTicket": "true"}),
        (
            f'{PLAIN_MODULE} required username="$ConnectionString" '
            r'password="Endpoint=sb://x/;Key=a\"b\\c=";',
            {"username": "$ConnectionString", "password": 'Endpoint=sb://x/;Key=a"b\\c='},
        ),
        (rf'{PLAIN_MODULE} required username="\"a" password="b\"";', {"username": '"a', "password": 'b"'}),
        (
            f'{SCRAM_MODULE} required username="id" password="hmac" tokenauth="true";',
            {"username": "id", "password": "hmac", "tokenauth": "true"},
        ),
        (
            f'{OAUTHBEARER_MODULE} required clientId="i" clientSecret="s" scope="x y" '
            'extension_logicalCluster="l";',
            {"clientId": "i", "clientSecret": "s", "scope": "x y", "extension_logicalCluster": "l"},
        ),
        (f'{PLAIN_MODULE} REQUIRED username="" password=";";', {"username": "", "password": ";"}),
        (f"{OAUTHBEARER_MODULE} required;", {}),
        *((f'{PLAIN_MODULE} required password="{text}";', {"password": found}) for text, found in ESCAPED),
        (
            f"/* a; 'b */{PLAIN_MODULE} /**/ required // c;\n username='a' // d;\r password=b/*/ ;*/;// e;",
            {"username": "a", "password": "b"},
        ),
        (f"{PLAIN_MODULE} required password='a//b/*c*/' /* d\n */;", {"password": "a//b/*c*/"}),
        (
            f'{PLAIN_MODULE} required username=\'a "b"\' password="it\'s";',
            {"username": 'a "b"', "password": "it's"},
        ),
        (f"{PLAIN_MODULE} required password=p/q;", {"password": "p/q"}),  # refused by Java
        (f"{PLAIN_MODULE} required\npassword=p/q;", {"password": "p/q"}),  # refused by Java
    ],
)
def test_what_java_reads(text: str, found: dict[str, str]) -> None:
    assert options(text) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://x";',
            "must begin with one",
        ),
        ("com.ibm.security.auth.module.Krb5LoginModule required useKeytab=x;", "must begin with one"),
        ("", "must begin with one"),
        (f'"{PLAIN_MODULE}" required;', "must begin with one"),
        (f'{PLAIN_MODULE} username="marked-1" password="marked-2";', "must be followed by one of required"),
        (f'{PLAIN_MODULE} required username="a" password="marked-1"', "must end with a semicolon"),
        (f"{PLAIN_MODULE} required password=marked//1;", "must end with a semicolon.*value with // needs"),
        (f"{PLAIN_MODULE} required password=marked/1\n;", "a value with a / needs quotes"),  # Java: marked
        (f'{PLAIN_MODULE} required password="marked-1" /* ;', "must end with a semicolon"),
        (f'{PLAIN_MODULE} required password="marked-1', "a quote is not closed"),
        (f'{PLAIN_MODULE} required password="marked-1\\', "a quote is not closed"),
        (f'{PLAIN_MODULE} required password="marked-1\\"', "a quote is not closed"),
        (f'{PLAIN_MODULE} required password="marked\n-1";', "a quote is not closed"),
        (f'{PLAIN_MODULE} required password "marked-1";', 'must be written name="value"'),
        (f"{PLAIN_MODULE} required password=;", "password has no value"),
        (f'{PLAIN_MODULE} required password="a" password="marked-1";', "password is given twice"),
        (f'{PLAIN_MODULE} required marked-1="a";', "an option of PlainLoginModule is not known"),
        (f'{SCRAM_MODULE} required extension_a="marked-1";', "an option of ScramLoginModule is not known"),
        (f'{OAUTHBEARER_MODULE} required unsecuredLogin_sub="marked-1";', "is not known"),
        (f'{PLAIN_MODULE} required username="a"; {PLAIN_MODULE} required;', "must hold one login module"),
        (f'{PLAIN_MODULE} required password="{"x" * 70000}";', "longer than 65536"),
    ],
)
def test_everything_else_is_refused_without_showing_a_value(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_jaas(text)
    assert "marked" not in str(caught.value)
