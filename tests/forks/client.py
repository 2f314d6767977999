"""``python client.py ADDRESS MODULE ARGUMENT...``: stands for a program that a fork server runs, with this process's
environment, directory and standard streams. Passes signals on to it, and ends as it does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from types import FrameType

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run(connection: socket.socket, address: str, program: list[str], streams: list[int]) -> int:
    """Have the server run the program with these standard streams; its exit code, negative if a signal ended it."""
    connection.connect(address)
    order = json.dumps([program, dict(os.environ), os.getcwd()])  # noqa: PTH109
    socket.send_fds(connection, [order.encode("ascii")], streams)
    said = connection.recv(4)
    if not said:
        sys.exit("the fork server is gone")
    return int.from_bytes(said, "big", signed=True)


def main() -> None:
    """As the module says."""
    _, address, *program = sys.argv
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def pass_on(number: int, frame: FrameType | None) -> None:
        connection.send(bytes([number]))

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    code = run(connection, address, program, [0, 1, 2])
    if code < 0:
        if -code != signal.SIGKILL:  # which cannot be handled anyway
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
