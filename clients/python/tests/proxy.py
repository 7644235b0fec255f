"""A TCP proxy that aborts connections in the middle of what the server sends."""

from __future__ import annotations

import socket
import threading


class AbortingProxy:
    """Forwards connections to `target`; aborts each of the first `aborts` after `after` bytes of the
    server, with a reset as of a lost host."""

    def __init__(self, target, after, aborts):
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._after = after
        self._left = aborts
        self._lock = threading.Lock()
        self.aborted = 0
        self.connections = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.close()

    def _accept(self):
        while True:
            try:
                inner, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            with self._lock:
                allowed = self._after if self._left > 0 else None
                self._left -= 1
            outer = socket.create_connection(self._target)
            threading.Thread(target=self._forward, args=(inner, outer, None), daemon=True).start()
            threading.Thread(
                target=self._forward, args=(outer, inner, allowed), daemon=True
            ).start()

    def _forward(self, source, sink, allowed):
        try:
            while piece := source.recv(1 << 14):
                if allowed is not None:
                    piece, allowed = piece[:allowed], allowed - len(piece)
                if piece:
                    sink.sendall(piece)
                if allowed is not None and allowed <= 0:
                    self.aborted += 1
                    break
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
