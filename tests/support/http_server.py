"""`serving`: an HTTP server on this machine that answers as a test says."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Served:
    """All requests; ``answer`` returns status, headers and body (bytes, or JSON)."""

    answer: Callable[[Asked], tuple[int, dict[str, str], Any]]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    @property
    def paths(self) -> list[str]:
        return [one.path for one in self.asked]


@contextmanager
def serving(answer: Callable[[Asked], tuple[int, dict[str, str], Any]]) -> Iterator[Served]:
    served = Served(answer)

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = Asked(self.command, self.path, dict(self.headers.items()), body)
            served.asked.append(asked)
            status, headers, content = served.answer(asked)
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, text in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = respond  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
