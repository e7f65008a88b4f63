"""How to ask a running gateway for something: a program of our own on its unix socket.

Program 0x20474C59, version 1 (beside that of bricks, see `control`). Its one procedure takes a JSON object with the
operation's name in `op` and its arguments, and returns `{"result": ...}` or `{"error": "a sentence"}`. Whoever may open
the socket may ask, so its mode is 0600.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from glustx.mgmt.state import ServeError
from glustx.rpc.body import Body, Text
from glustx.rpc.channel import Address
from glustx.rpc.connection import ProcUnavail, RpcConnection
from glustx.rpc.getspec import connect, own_credential
from glustx.rpc.message import Call
from glustx.rpc.programs import Program
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop
from glustx.runtime import TimedOut, Waiter, drive, wait_for

ASK = 1
GATEWAY = Program("glustx gateway control", 0x20474C59, 1, {ASK: "ASK"})
_LIMIT = 16 << 20

Operation = Callable[[dict[str, Any]], Coroutine[Any, Any, Any]]


class Json(Body, frozen=True):
    """A JSON document."""

    text: Text


def make_receiver(operations: dict[str, Operation]) -> RpcConnection:
    """Return the receiver of a connection to the control socket.

    Args:
        operations: by name; each takes the arguments and returns plain values. A ServeError or ValueError is the
            answer's sentence.
    """

    async def answer(text: str) -> dict[str, Any]:
        try:
            request = msgspec.json.decode(text, type=dict[str, Any])
            name = request.pop("op", "")
            if name not in operations:
                return {"error": f"the gateway has no operation {name!r}"}
            return {"result": await operations[name](request)}
        except (ServeError, ValueError) as error:
            return {"error": str(error)}
        except KeyError as error:
            return {"error": f"an argument is missing: {error}"}

    def handle(connection: RpcConnection, call: Call, body: bytes) -> bytes | None:
        if call.proc != ASK:
            raise ProcUnavail

        def finish(value: Any, error: BaseException | None) -> None:
            reply = value if error is None else {"error": f"it failed: {error}"}
            connection.reply(call.xid, Json(msgspec.json.encode(reply).decode()).encode())

        drive(answer(Json.decode(body).text), finish)
        return None

    return RpcConnection({(GATEWAY.number, GATEWAY.version): handle}, limit=_LIMIT)


async def ask(socket: Path, op: str, timeout: float = 30.0, **arguments: Any) -> Any:
    """Return a gateway's answer; ServeError with its sentence, OSError when none runs behind `socket`."""
    loop = asyncio.get_running_loop()
    network, reactor = AsyncioNetwork(loop), AsyncioReactor(loop)
    body = Json(msgspec.json.encode({"op": op, **arguments}).decode()).encode()

    async def call() -> dict[str, Any]:
        connection = await connect(network, reactor, Address(path=str(socket)), timeout)
        answer: Waiter[Json] = connection.ask(GATEWAY, ASK, body, own_credential(), Json.decode)
        return msgspec.json.decode((await wait_for(reactor, answer, timeout)).text, type=dict[str, Any])

    try:
        reply = await drive_in_loop(call(), loop)
    except TimedOut:
        raise TimeoutError(f"no answer in {timeout:g} s") from None
    finally:
        await network.close()
    if "error" in reply:
        raise ServeError(str(reply["error"]))
    return reply.get("result")
