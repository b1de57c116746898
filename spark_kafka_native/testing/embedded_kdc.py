"""`EmbeddedKdc`: a Kerberos key distribution centre for tests, Apache Kerby's, on this machine and without
root.
"""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from .broker_files import HOST
from .errors import BrokerStartError
from .java import JarSet, jars_folder, java_command
from .processes import EmbeddedService, Guard, free_ports

_KERBY: Final = JarSet(
    title="Apache Kerby 2.1.0",
    folder="kerby-2.1.0-1",
    size_mb=6,
    proof="kerb-simplekdc-2.1.0.jar",
    dependencies="""\
    <dependency org="org.apache.kerby" name="kerb-simplekdc" rev="2.1.0"/>""",
)
_START_S: Final = 60.0
SERVICE: Final = "kafka/localhost"
"""The brokers' principal: Java's clients and ours look up the name of 127.0.0.1."""
_PROGRAM: Final = """\
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import org.apache.kerby.kerberos.kerb.server.KdcConfigKey;
import org.apache.kerby.kerberos.kerb.server.SimpleKdcServer;

class Kdc {
    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        SimpleKdcServer kdc = new SimpleKdcServer();
        kdc.setWorkDir(new File(args[0]));
        kdc.setKdcRealm(args[1]);
        kdc.setKdcHost("127.0.0.1");
        kdc.setKdcTcpPort(Integer.parseInt(args[2]));
        kdc.setAllowUdp(false);
        kdc.getKdcConfig().setLong(KdcConfigKey.MINIMUM_TICKET_LIFETIME, 1L);
        kdc.getKdcConfig().setLong(KdcConfigKey.MAXIMUM_TICKET_LIFETIME, Long.parseLong(args[3]));
        kdc.init();
        kdc.start();
        answers.println("ready");
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] words = line.split("\\t");
            try {
                if (words[0].equals("add")) {
                    kdc.createPrincipal(words[1]);
                    kdc.exportPrincipal(words[1], new File(words[2]));
                } else {
                    kdc.deletePrincipal(words[1]);
                }
                answers.println("done");
            } catch (Exception error) {
                answers.println(error.toString().replace('\\n', ' '));
            }
        }
        System.exit(0);
    }
}
"""


class EmbeddedKdc(EmbeddedService):
    """A KDC of one realm that lives as long as the ``with`` block, and never longer than this process.

    ``ticket_lifetime_s``: the longest ticket that it grants. Its folder has ``krb5.conf``, to be named in
    ``KRB5_CONFIG`` or in Java's ``-Djava.security.krb5.conf``, and the keytabs. Any thread may use it.

    Raises `JavaUnavailableError`, `JarsUnavailableError` or `BrokerStartError`, each with what to do.
    """

    _folder_prefix = "spark-kafka-native-kdc-"

    def __init__(self, realm: str = "EXAMPLE.COM", *, ticket_lifetime_s: int = 86_400) -> None:
        self.realm = realm
        self.port = 0
        """The port on 127.0.0.1, TCP only; 0 before the start."""
        self._ticket_lifetime_s = ticket_lifetime_s
        self._lock = threading.Lock()
        self._owner: int | None = None
        """The process that has started it."""
        self._process: subprocess.Popen[str] | None = None

    def __repr__(self) -> str:
        return f"EmbeddedKdc({self.realm!r}, {f'port {self.port}' if self._process else 'not running'})"

    def close(self) -> None:
        """Kill it and remove its folder. Harmless when repeated. In a fork it does neither: both are the
        parent's.
        """
        process, self._process = self._process, None
        try:
            if process is not None and os.getpid() == self._owner:
                process.kill()
                process.wait()
                _close_pipes(process)
        finally:
            super().close()

    @property
    def krb5_conf(self) -> Path:
        """The configuration for clients and brokers."""
        return self.folder / "krb5.conf"

    @property
    def jvm_options(self) -> tuple[str, ...]:
        """What a JVM takes to use this KDC."""
        return (f"-Djava.security.krb5.conf={self.krb5_conf}",)

    def keytab(self, principal: str) -> Path:
        """A new keytab of ``principal`` (``alice``, ``kafka/localhost``), which is created with a random key
        if it does not exist.
        """
        path = self.folder / f"{principal.replace('/', '-')}.keytab"
        if not path.exists():
            self._ask("add", self.principal(principal), str(path))
            os.chmod(path, 0o600)
        return path

    def principal(self, name: str) -> str:
        """``name`` with the realm."""
        return f"{name}@{self.realm}"

    def delete(self, principal: str) -> None:
        """Delete a principal and its keytab."""
        self._ask("delete", self.principal(principal))
        (self.folder / f"{principal.replace('/', '-')}.keytab").unlink()

    def _start(self, guard: Guard) -> None:  # noqa: ARG002 - the KDC is asked by its standard input
        (self.port,) = free_ports(1)
        self.krb5_conf.write_text(krb5_conf(self.realm, self.port), encoding="utf-8")
        source = self.folder / "Kdc.java"
        source.write_text(_PROGRAM, encoding="utf-8")
        work = self.folder / "work"  # Kerby writes a krb5.conf of its own
        work.mkdir()
        self._owner = os.getpid()
        command = [*java_command(self.folder, kdc_jars()), str(source), str(work), self.realm]
        with (self.folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(self.port), str(self._ticket_lifetime_s)],
                stdin=subprocess.PIPE,  # it ends when this process does
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                bufsize=1,
                start_new_session=True,  # Ctrl-C does not reach it, as it does not reach the brokers
            )
        said = self._answer(self._process, _START_S)
        if said != "ready":
            output_text = (self.folder / "output").read_text(encoding="utf-8", errors="replace")
            raise BrokerStartError(f"the KDC did not start ({said})", output_text)

    def _ask(self, *words: str) -> None:
        if self._owner not in (None, os.getpid()):  # the parent would read the answer
            raise RuntimeError("this EmbeddedKdc belongs to the process that has started it, not to a fork")
        with self._lock:
            process = self._process
            if process is None or process.stdin is None:
                raise RuntimeError("this EmbeddedKdc is not running")
            # It has ended, and gives no answer; or another thread or a signal handler has closed it.
            with suppress(BrokenPipeError, ValueError):
                process.stdin.write("\t".join(words) + "\n")
            said = self._answer(process, _START_S)
            if process is not self._process:  # a signal handler has closed it, but for the pipe that was read
                _close_pipes(process)
        if said != "done":
            raise RuntimeError(f"the KDC refused: {said}" if said else "the KDC has ended")

    @staticmethod
    def _answer(process: subprocess.Popen[str], timeout_s: float) -> str:
        """The next line that it prints; a KDC that prints none is killed."""
        watchdog = threading.Timer(timeout_s, process.kill)
        watchdog.start()
        try:
            return process.stdout.readline().strip() if process.stdout else ""
        except ValueError:  # it was closed meanwhile
            return ""
        finally:
            watchdog.cancel()


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in filter(None, (process.stdin, process.stdout)):
        with suppress(OSError, RuntimeError):
            pipe.close()


def kdc_jars() -> list[Path]:
    """Paths of the KDC's jars; fetched on the first call ever. Raises as `jars`."""
    return sorted((jars_folder(_KERBY) / "jars").glob("*.jar"))


def krb5_conf(realm: str, port: int) -> str:
    """The text of a krb5.conf for one realm, with its KDC at ``port`` of this machine."""
    return f"""\
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = {HOST}:{port}
  }}
[domain_realm]
  localhost = {realm}
"""
