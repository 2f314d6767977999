"""Options and keys that went: each is refused by name for this version, with what to use instead."""

REMOVED: dict[str, str] = {
    "pytest --ddp-launches": "runs on several days, which ddpscale compare and the history hold against each other",
    "ddpscale simulate --launches": "several runs, each with another --seed",
    "ddpscale calibrate --history": "the run directories of those nights, which have every value",
    "ddpscale compare --history": "pytest --ddp-history=FILE, which judges a run by earlier ones",
    "ddpscale import pytorch-ddp --out": "the file itself, which import prints and compare reads",
    "thresholds beyond_node: asked": "rows at `2 nodes` or `all` for numbers over several nodes",
    "thresholds checks": "rows under `requirements`: {check: [ecc, disk], severity: fail}",
    "thresholds check: clock": "your monitoring of chrony or NTP; no value compares times of two nodes",
    "thresholds clock_skew_s": "your monitoring of chrony or NTP",
    "thresholds classifier_hidden": "ddpscale suite factors, which trains classifiers on frozen features",
    "thresholds feature_weights": "ddpscale suite factors --feature-weights",
    "thresholds remove": "`change: [{METRIC: SIZES, of: NAME, severity: off, who: NAME, why: WHY}]`",
    "thresholds waivers": "`change: [{METRIC: SIZES, of: NAME, severity: warn, until: DAY, who: NAME, why: WHY}]`",
    "thresholds warn": "one bound a row; a report has each value beside its bound",
    "thresholds versus: run:DIR": "a SKU with that run's numbers, as calibrate writes it; or ddpscale compare",
    "ddpscale suite whole-run --bounds": "--at-most-time-to-train and --at-least-accuracy, of the largest world size",
    "ddpscale simulate --nic-gbps": "ClusterOptions(nic_gbps=…) in Python, or --fault=slow-link:NODE:SHARE",
    "ddpscale simulate --unwaited": "ClusterOptions(unwaited=…) in Python, or --fault=slow-link:NODE:SHARE",
    "ddpscale simulate --world-sizes": "--gpus, a size that is always measured; or plan(world_sizes=…) in Python",
    "ddpscale history --accept": "--forget NODE, after which its next runs become a new baseline",
}
