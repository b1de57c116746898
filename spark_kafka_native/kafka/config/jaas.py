"""A strict parser for Java's ``sasl.jaas.config``: one login module of a closed list, and its known options.

In Java the value names a class to load, which attackers have used to run their own (CVE-2023-25194). Here it
is text: any other module or option is refused. No error shows a value.

Quotes, escapes and comments are those of Java's ``StreamTokenizer``, as Kafka sets it up: a value comes out
as Java reads it. Some texts without quotes that Java refuses are read, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..errors import ConfigError
from .secret import Secret

MAX_JAAS_CHARACTERS: Final = 64 * 1024
"""Several times the size of a token with its extensions; a longer text is not parsed."""

_PACKAGE: Final = "org.apache.kafka.common.security"
PLAIN_MODULE: Final = f"{_PACKAGE}.plain.PlainLoginModule"
SCRAM_MODULE: Final = f"{_PACKAGE}.scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule"
IAM_MODULE: Final = "software.amazon.msk.auth.iam.IAMLoginModule"
"""The login module of Amazon's ``aws-msk-iam-auth``."""
KRB5_MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
_SHADED: Final = ("kafkashaded.", "shadedmskiam.")
"""The prefixes that Databricks puts before the packages that it bundles."""
_AWS: Final = (
    "awsProfileName", "awsRoleArn", "awsRoleSessionName", "awsStsRegion", "awsDebugCreds", "awsMaxRetries",
    "awsMaxBackOffTimeMs",
)  # fmt: skip
UNSECURED: Final = "unsecuredLogin"
"""The prefix of the options from which Java makes an unsigned token."""
_PREFIXES: Final[dict[str, tuple[str, ...]]] = {
    OAUTHBEARER_MODULE: (
        "extension_", f"{UNSECURED}StringClaim_", f"{UNSECURED}NumberClaim_", f"{UNSECURED}ListClaim_",
    ),
    # The users that a broker knows, in a copy of its entry: without effect in a client.
    PLAIN_MODULE: ("user_",),
    SCRAM_MODULE: ("user_",),
}  # fmt: skip

_OF_OTHERS: Final = ("serviceName", "debug")
"""Left in an entry that was made from one of another module; Java's modules ignore what they do not know."""

_OPTIONS: Final = {
    PLAIN_MODULE: ("username", "password", *_OF_OTHERS),
    SCRAM_MODULE: ("username", "password", "tokenauth", *_OF_OTHERS),
    OAUTHBEARER_MODULE: (
        "clientId", "clientSecret", "scope", "ssl.protocol", *_AWS, f"{UNSECURED}PrincipalClaimName",
        f"{UNSECURED}ScopeClaimName", f"{UNSECURED}LifetimeSeconds",
    ),
    IAM_MODULE: _AWS,
    KRB5_MODULE: (
        "useKeyTab", "keyTab", "principal", "useTicketCache", "ticketCache", "serviceName", "storeKey",
        "doNotPrompt", "refreshKrb5Config", "renewTGT", "renewTicket", "isInitiator", "useFirstPass",
        "tryFirstPass", "storePass", "clearPass", "debug",
    ),
}  # fmt: skip
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_NAME: Final = "sasl.jaas.config"
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_COMMENTS: Final = ("//", "/*")
_LINE_END: Final = re.compile(r"[\r\n]")
_OCTAL: Final = re.compile(r"[0-3][0-7]{0,2}|[4-7][0-7]?")


@dataclass(frozen=True, kw_only=True)
class JaasConfig:
    """One login module with its options, including the ``extension_...`` options of OAUTHBEARER."""

    module: str
    options: tuple[tuple[str, Secret], ...]

    def option(self, name: str) -> Secret | None:
        """The value of an option; None if it is not given."""
        return dict(self.options).get(name)

    @property
    def is_unsecured(self) -> bool:
        """True if an unsigned token is to be made from its options."""
        return any(name.startswith(UNSECURED) for name, _ in self.options)


def without_shading(name: str) -> str:
    """The name of a Java class as its library spells it."""
    for prefix in _SHADED:
        name = name.removeprefix(prefix)
    return name


def parse_jaas(text: str) -> JaasConfig:
    """Parse ``module flag name=value ... ;``. Raises `ConfigError` that names the mistake, never a value."""
    if len(text) > MAX_JAAS_CHARACTERS:
        raise ConfigError(f"{_NAME} is longer than {MAX_JAAS_CHARACTERS} characters")
    words = _words(text)
    module = without_shading(next(words, ""))
    if module not in _OPTIONS:
        known = ", ".join(_OPTIONS)
        raise ConfigError(f"{_NAME} must begin with one of these login modules: {known}")
    if next(words, "").lower() not in _FLAGS:
        raise ConfigError(f"{_NAME}: the login module must be followed by one of {', '.join(_FLAGS)}")
    options: dict[str, Secret] = {}
    for name in words:
        if name == ";":
            if next(words, None) is not None:
                raise ConfigError(f"{_NAME} must hold one login module and end with its semicolon")
            return JaasConfig(module=module, options=tuple(options.items()))
        _check_option(module, name, options)
        options[name] = _value(name, words)
    raise ConfigError(
        f"{_NAME} must end with a semicolon, in front of any comment (a value with // needs quotes)"
    )


def _value(name: str, words: Iterator[str]) -> Secret:
    if next(words, "") != "=":
        raise ConfigError(f'{_NAME}: an option must be written name="value"')
    value = next(words, ";")
    if value in (";", "="):
        raise ConfigError(f"{_NAME}: the option {name} has no value")
    return Secret(value.removeprefix('"'))


def _check_option(module: str, name: str, given: dict[str, Secret]) -> None:
    known = _OPTIONS[module]
    if name not in known and not name.startswith(_PREFIXES.get(module, ())):
        # An unknown name may be a value that lost its quotes: it is not shown.
        short = module.rpartition(".")[2]
        raise ConfigError(f"{_NAME}: an option of {short} is not known; it may have {', '.join(known)}")
    if name in given:
        raise ConfigError(f"{_NAME}: the option {name} is given twice")


def _words(text: str) -> Iterator[str]:
    """Words, ``=`` and ``;``. A quoted word keeps its opening quote, so that it differs from ``=``
    and ``;``.
    """
    at = 0
    while at < len(text):
        letter = text[at]
        if letter.isspace():
            at += 1
        elif letter in "=;":
            yield letter
            at += 1
        elif letter in "\"'":
            word, at = _quoted(text, at)
            yield '"' + word
        elif text.startswith(_COMMENTS, at):
            at = _after_comment(text, at)
        else:
            end = _end_of_word(text, at)
            yield text[at:end]
            at = end


def _end_of_word(text: str, at: int) -> int:
    """The position after the word without quotes that begins at ``at``."""
    end = at
    while end < len(text) and not text[end].isspace() and text[end] not in "=;\"'":
        if text.startswith(_COMMENTS, end):
            break
        end += 1
    if "/" in text[at:end] and _LINE_END.search(text, end):
        # In Java a single slash begins a comment, too; without a line behind that is never valid.
        raise ConfigError(f"{_NAME}: a value with a / needs quotes")
    return end


def _after_comment(text: str, at: int) -> int:
    """The position after the comment that begins at ``at``."""
    if text.startswith("/*", at):
        end = text.find("*/", at + 2)
        return len(text) if end < 0 else end + 2
    end_of_line = _LINE_END.search(text, at)
    return len(text) if end_of_line is None else end_of_line.start()


def _quoted(text: str, at: int) -> tuple[str, int]:
    """The quoted word that begins at ``at``, and the position after it. A backslash begins an escape."""
    quote = text[at]
    letters: list[str] = []
    at += 1
    while at < len(text):
        letter = text[at]
        if letter == quote:
            return "".join(letters), at + 1
        if letter in "\r\n":
            break
        at += 1
        if letter == "\\" and at < len(text):
            letter = text[at]
            if octal := _OCTAL.match(text, at):
                letter, at = chr(int(octal[0], 8)), octal.end()
            else:
                letter, at = _ESCAPES.get(letter, letter), at + 1
        letters.append(letter)
    raise ConfigError(f"{_NAME}: a quote is not closed")
