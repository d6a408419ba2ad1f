"""A web server of a few fixed answers, in a thread: the demo's own code is not asynchronous."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def answering(
    bodies: Mapping[str, str], status: int = 200, headers: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Answers each path with its body, and 404 to all others. Yields the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.get(self.path, "").encode()
            self.send_response(status if self.path in bodies else 404)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def log_message(self, *_args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
