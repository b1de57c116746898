"""`EmbeddedRegistry`: a schema registry for tests, Apicurio's, on this machine and in memory."""

from __future__ import annotations

import os
import shutil
import tarfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .broker_files import HOST
from .errors import BrokerStartError
from .java import JarSet, find_java, jars_folder, locked
from .processes import EmbeddedService, Guard, GuardedProcess, free_ports

_VERSION: Final = "3.0.9"  # the last that runs on Java 17
_ARCHIVE: Final = f"apicurio-registry-app-{_VERSION}.tar.gz"
_APICURIO: Final = JarSet(
    title=f"Apicurio Registry {_VERSION}",
    folder=f"apicurio-registry-{_VERSION}-1",
    size_mb=109,
    proof=_ARCHIVE,
    dependencies=f"""\
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{_VERSION}" transitive="false">
      <artifact name="apicurio-registry-app" type="jar" ext="tar.gz" m:classifier="all"/>
    </dependency>""",
    # Its parent's POM is not on Maven Central.
    reads_poms=False,
)
_API: Final = "/apis/ccompat/v7"
_ANSWER_S: Final = 10.0
_START_S: Final = 240.0
_JVM: Final = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto")


class EmbeddedRegistry(EmbeddedService):
    """A schema registry with Confluent's interface, which lives as long as the ``with`` block and never
    longer than this process. It takes about 250 MB. Any thread may use it.

    Raises `JavaUnavailableError`, `JarsUnavailableError` or `BrokerStartError`, each with what to do.
    """

    _folder_prefix = "spark-kafka-native-registry-"

    def __init__(self) -> None:
        self._port = 0

    def __repr__(self) -> str:
        return f"EmbeddedRegistry({self.url if self._guard else 'not running'})"

    @property
    def url(self) -> str:
        """For ``registry.url`` and ``schema.registry.url``."""
        self._running_guard()
        return f"http://{HOST}:{self._port}{_API}"

    def register(
        self, subject: str, text: str, type: str = "AVRO", references: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """The id of a schema, which becomes the latest version of ``subject``. Raises `RegistryError` if it
        is refused.

        ``references``: ``{"name": ..., "subject": ..., "version": ...}``.
        """
        from ..formats.registry import SchemaRegistry  # late: it takes pyarrow

        client = SchemaRegistry.from_settings({"registry.url": self.url})
        assert client is not None
        return client.register(subject, text, type, references)

    def _start(self, guard: Guard) -> None:
        application, output = registry_application(), guard.folder / "output"
        (self._port,) = free_ports(1)
        command = [
            str(find_java().executable),
            *_JVM,
            f"-Djava.io.tmpdir={guard.folder}",
            f"-Dquarkus.http.host={HOST}",
            f"-Dquarkus.http.port={self._port}",
            "-Dquarkus.http.access-log.enabled=false",
            *("-cp", f"{application}/*{os.pathsep}{application}/lib/*", "io.quarkus.runner.GeneratedMain"),
        ]
        self._await_start(guard.start(command, output=output, cwd=guard.folder), output)

    def _await_start(self, process: GuardedProcess, output: Path) -> None:
        deadline = time.monotonic() + _START_S
        while not self._answers():
            ended = process.returncode is not None
            if ended or time.monotonic() >= deadline:
                what = "ended" if ended else f"did not answer within {_START_S:g} s"
                text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
                raise BrokerStartError(f"the schema registry {what}", text)
            time.sleep(0.1)

    def _answers(self) -> bool:
        # Past the proxies of the environment: it is on this machine.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"{self.url}/subjects", timeout=_ANSWER_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def registry_application() -> Path:
    """The folder with the registry's jars; fetched on the first call ever. Raises as `jars`."""
    folder = jars_folder(_APICURIO)
    application = folder / "application"
    if not application.is_dir():
        with locked(folder / "unpack.lock"):
            if not application.is_dir():
                _unpack(folder / "jars" / _ARCHIVE, application)
    return application


def _unpack(archive: Path, folder: Path) -> None:
    partial = folder.with_name("partial")  # under the lock: any content is left from a process that died
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as opened:
        opened.extractall(partial, filter="data")
    os.rename(partial, folder)
