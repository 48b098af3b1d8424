"""A price board: adds up baskets. Alone: python board.py"""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STORE_S = 0.005
lock = threading.Lock()
known = {}


def price(item):
    return 7 * item % 101


def look_up(items):
    """The prices of some items, from a store that is far away."""
    new = [item for item in items if item not in known]
    if new:
        time.sleep(STORE_S)
        prices = {item: price(item) for item in new}
        with lock:
            known.update(prices)
    return [known[item] for item in items]


class Board(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            items = [int(item) for item in json.loads(body)["items"]]
        except (ValueError, KeyError, TypeError):
            self.answer(400, {"error": "no basket"})
            return
        self.answer(200, {"total": sum(look_up(items))})

    def do_GET(self):
        self.answer(404, {"error": "nothing here"})

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    address_family = socket.AF_UNIX  # of the socket that it makes and does not need
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # the client has gone


def serve(listener):
    """Serve requests that come to `listener`, a socket, until the process is ended."""
    server = Server(("", 0), Board, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.serve_forever()


if __name__ == "__main__":
    serve(socket.create_server(("127.0.0.1", 8000)))
