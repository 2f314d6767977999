"""With this folder on PYTHONPATH, ranks that torchrun starts are recorded.

Python imports a module of this name as it starts, before the worker, which is the real one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# torchrun sets LOCAL_RANK for ranks alone: neither it nor the node's agent has one.
if "NCCL_RULES_RUN_DIR" in os.environ and "LOCAL_RANK" in os.environ and sys.argv[:1] != ["-c"]:
    from tests.nccl_rules.ranks import make_recorded

    first = int(os.environ["DDPSCALE_NODE_INDEX"]) * int(os.environ["LOCAL_WORLD_SIZE"])
    make_recorded(Path(os.environ["NCCL_RULES_RUN_DIR"]), first + int(os.environ["LOCAL_RANK"]))
