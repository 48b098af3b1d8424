"""A price board: adds up baskets. Alone: python board.py"""

import asyncio
import json
import socket

STORE_S = 0.005


def price(item):
    return 7 * item % 101


async def total(items):
    await asyncio.sleep(STORE_S)
    return sum(price(item) for item in items)


async def answer(method, body):
    if method != "POST":
        return 404, {"error": "nothing here"}
    try:
        items = [int(item) for item in json.loads(body)["items"]]
    except (ValueError, KeyError, TypeError):
        return 400, {"error": "no basket"}
    return 200, {"total": await total(items)}


async def talk(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            fields = dict(
                line.lower().split(": ", 1) for line in head.split("\r\n") if ": " in line
            )
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            status, value = await answer(head.split(" ", 1)[0], body)
            reply = json.dumps(value).encode()
            writer.write(
                b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n" % (status, len(reply)) + reply
            )
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def run(listener):
    server = await asyncio.start_server(talk, sock=listener)
    await server.serve_forever()


def serve(listener):
    asyncio.run(run(listener))


if __name__ == "__main__":
    serve(socket.create_server(("127.0.0.1", 8000)))
