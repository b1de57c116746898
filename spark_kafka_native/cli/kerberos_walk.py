"""The Kerberos checks of ``doctor``: the configuration, the KDC, the login, the ticket for the broker."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

from ..kafka.config.client_config import ClientConfig
from ..kafka.config.kerberos_login import KerberosLogin
from ..kafka.errors import KafkaError
from ..kafka.runtime.deadline import Deadline
from ..kafka.security.kerberos import log_in, login_of, open_context
from ..kafka.security.krb5_files import Krb5Conf, config_path, read_krb5_conf
from .doctor import Finding, error, ok, remark, warning

_KDC_PORT = 88
_SHORT_TICKET_S = 600
_MAX_KDCS = 8


def check_kerberos(host: str, config: ClientConfig) -> Iterator[Finding]:
    """Walk to a ticket for the broker ``host``; stop at the first failure."""
    conf = read_krb5_conf()
    yield _check_files(conf)
    try:
        login = login_of(config.security)
    except KafkaError as failure:
        yield error("Kerberos login", str(failure))
        return
    yield from _check_kdcs(login, conf, config)
    for check in (_check_login, lambda *given: _check_ticket(host, *given)):
        finding = check(login, config)
        yield finding
        if finding.status == "error":
            return


def _check_files(conf: Krb5Conf) -> Finding:
    check, path = "Kerberos configuration", config_path()
    if not conf.files:
        return warning(
            check,
            f"{path} can't be read",
            "Name the file in KRB5_CONFIG, on driver and executors; without one, DNS must know the KDCs.",
        )
    return ok(check, f"{', '.join(conf.files)}: default_realm {conf.default_realm or 'is not set'}")


def _check_kdcs(login: KerberosLogin, conf: Krb5Conf, config: ClientConfig) -> Iterator[Finding]:
    realm = (login.principal or "").partition("@")[2] or conf.default_realm
    kdcs = conf.kdcs.get(realm or "", [])
    check = f"KDC of {realm or 'the default realm'}"
    if not kdcs and conf.is_off("dns_lookup_kdc"):
        known = ", ".join(conf.kdcs) or "none"
        yield error(check, f"krb5.conf has no kdc of it; realms with one: {known}", "Realms are upper case.")
    elif not kdcs:
        yield remark(check, "krb5.conf has no kdc of it: DNS is asked (_kerberos._tcp, _kerberos._udp)")
    else:
        yield from _check_reachable(check, kdcs[:_MAX_KDCS], config.connection_setup_timeout_ms / 1000)


def _check_reachable(check: str, kdcs: list[str], timeout_s: float) -> Iterator[Finding]:
    findings = []
    for kdc in kdcs:
        bare, _, port = kdc.rpartition(":") if kdc.count(":") == 1 or "]:" in kdc else (kdc, "", "")
        host = bare.removeprefix("[").removesuffix("]")
        started = time.monotonic()
        try:
            address = (host, int(port or _KDC_PORT))
            socket.create_connection(address, timeout_s).close()
        except (OSError, ValueError) as failure:
            advice = "Port 88 is needed, TCP or UDP (which is not tried here): a firewall may be in between."
            findings.append(warning(check, f"{kdc}: {failure}", advice))
        else:
            took_ms = (time.monotonic() - started) * 1000
            findings.append(ok(check, f"{kdc} in {took_ms:.1f} ms"))
    yield from findings


def _check_login(login: KerberosLogin, config: ClientConfig) -> Finding:
    how = f"keytab {login.keytab}" if login.keytab else "ticket cache"
    check = f"Kerberos login by {how}"

    def ask(deadline: Deadline) -> Finding:
        principal, lifetime_s = log_in(login, deadline)
        detail = f"{principal}, for {lifetime_s / 3600:.1f} hours"
        if lifetime_s < _SHORT_TICKET_S and not login.keytab:
            return warning(check, detail, "The ticket ends soon: kinit again, or give a keytab.")
        return ok(check, detail)

    return _answered(check, config, ask)


def _check_ticket(host: str, login: KerberosLogin, config: ClientConfig) -> Finding:
    check = f"Kerberos ticket for {host}"

    def ask(deadline: Deadline) -> Finding:
        return ok(check, open_context(login, host, deadline).target)

    return _answered(check, config, ask)


def _answered(check: str, config: ClientConfig, ask: Callable[[Deadline], Finding]) -> Finding:
    try:
        return ask(Deadline.after_ms(config.connection_setup_timeout_ms))
    except KafkaError as failure:
        return error(check, str(failure))
