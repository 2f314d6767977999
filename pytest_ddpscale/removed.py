"""Options and keys that went: each is refused by name for this version, with what to use instead."""

REMOVED: dict[str, str] = {
    "pytest --ddp-launches": "runs on several days, which ddpscale compare and the history hold against each other",
    "ddpscale simulate --launches": "several runs, each with another --seed",
    "ddpscale calibrate --history": "the run directories of those nights, which have every value",
    "ddpscale compare --history": "pytest --ddp-history=FILE, which judges a run by earlier ones",
    "ddpscale import pytorch-ddp --out": "the file itself, which import prints and compare reads",
    "ddpscale suite whole-run --bounds": "--at-most-time-to-train and --at-least-accuracy, of the largest world size",
    "ddpscale history --accept": "--forget NODE, after which its next runs become a new baseline",
}
