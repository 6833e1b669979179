#!/usr/bin/env python3
"""A proxy on loopback that is a round trip away: what arrives goes on half a round trip later, and a
connection takes a whole one to come about. Bandwidth is what this process can copy.
usage: delay.py PORT ROUND_TRIP_MS      (prints its own port, and for each line of input how many bytes have
                                         passed so far, in both directions; ends with its input)"""

import asyncio
import sys
from collections import deque

BUFFERED = 4 << 20


class Direction(asyncio.Protocol):
    """Receives from one end of a connection and sends to the other, later."""

    # Bytes that have arrived, by all connections.
    passed = 0

    def __init__(self, half: float):
        self.half = half
        self.loop = asyncio.get_running_loop()
        self.other: Direction | None = None
        self.transport: asyncio.Transport | None = None
        # When the connection is there, seen from the end that this one receives from.
        self.connected = self.loop.time()
        # When each piece goes on; None is the end.
        self.under_way: deque[tuple[float, bytes | None]] = deque()

    def connection_made(self, transport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=BUFFERED)

    def data_received(self, data: bytes) -> None:
        Direction.passed += len(data)
        self.take(data)

    def eof_received(self) -> bool:
        self.take(None)
        return True

    def connection_lost(self, error) -> None:
        self.take(None)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def take(self, piece: bytes | None) -> None:
        due = max(self.loop.time(), self.connected) + self.half
        self.under_way.append((due, piece))
        if len(self.under_way) == 1:
            self.loop.call_at(due, self.pass_on)

    def pass_on(self) -> None:
        """Sends what is due."""
        out = self.other.transport
        while self.under_way and self.under_way[0][0] <= self.loop.time():
            _, piece = self.under_way.popleft()
            if out.is_closing():
                continue
            if piece is not None:
                out.write(piece)
            elif self.transport.is_closing():
                out.close()
            else:
                out.write_eof()
        if self.under_way:
            self.loop.call_at(self.under_way[0][0], self.pass_on)


class Client(Direction):
    """The end that has connected to the proxy."""

    def __init__(self, half: float, port: int):
        super().__init__(half)
        self.port = port
        self.connected += 2 * half

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        transport.pause_reading()
        self.connecting = self.loop.create_task(self.connect())

    async def connect(self) -> None:
        server = Direction(self.half)
        server.other = self
        try:
            await self.loop.create_connection(lambda: server, "127.0.0.1", self.port)
        except OSError:
            self.transport.abort()
            return
        self.other = server
        self.transport.resume_reading()

    def connection_lost(self, error) -> None:
        if self.other is not None:
            super().connection_lost(error)


async def main() -> None:
    port, milliseconds = int(sys.argv[1]), float(sys.argv[2])
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    server = await loop.create_server(lambda: Client(milliseconds / 2000, port), "127.0.0.1", 0,
                                      backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)

    def asked() -> None:
        # It ends with the process that holds it.
        if sys.stdin.readline():
            print(Direction.passed, flush=True)
        else:
            ended.set()

    loop.add_reader(sys.stdin, asked)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
