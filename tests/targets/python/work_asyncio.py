"""A server and its clients in one event loop. Until SIGTERM."""
import asyncio
import json
import os
import signal


async def parse(reader):
    size = int.from_bytes(await reader.readexactly(4), "big")
    return json.loads(await reader.readexactly(size))


def answer(request):
    total = 0
    for i in range(request["n"]):
        total += i * i % 7
    return {"total": total, "rows": [request["n"]] * 50}


async def send(writer, message):
    data = json.dumps(message).encode()
    writer.write(len(data).to_bytes(4, "big") + data)
    await writer.drain()


async def serve(reader, writer):
    while True:
        await send(writer, answer(await parse(reader)))


async def client(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for n in range(10**9):
        await send(writer, {"n": 200 + n % 100})
        await parse(reader)


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    clients = [asyncio.ensure_future(client(port)) for _ in range(4)]
    print("ready", flush=True)
    await asyncio.gather(*clients)


signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
asyncio.new_event_loop().run_until_complete(main())
