"""``python -m tests.worker.intruder PORT ATTACK``: a process that writes what it should not into the ranks' store."""

from __future__ import annotations

import sys
from datetime import timedelta

from torch.distributed import TCPStore


def main() -> None:
    """As the module says."""
    port, attack = int(sys.argv[1]), sys.argv[2]
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=20))
    if attack == "guesses":
        store.set("control/round", '["ddp@2"]')
    else:
        (key,) = (key for key in store.list_keys() if key.endswith("control/round"))
        known = store.get(key).decode()
        store.set(key, {"forges": '["alone"]', "changes": known.replace("ddp@2", "alone"), "moves": known}[attack])
        if attack == "moves":
            store.set(key.replace("round", "other"), known)
    print("done", flush=True)


if __name__ == "__main__":
    main()
