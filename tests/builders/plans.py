"""Workloads, studies and plans of every kind."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=12)
SIZES = st.integers(1, 4096)
SECONDS = st.floats(0.1, 1e4)

WORKLOADS = st.builds(
    Workload,
    name=NAMES,
    family=st.builds(
        ImageFamily,
        model=NAMES,
        image_size=SIZES,
        memory_format=st.sampled_from(["channels_last", "contiguous"]),
        num_classes=SIZES,
        cudnn_benchmark=st.booleans(),
    ),
    precision=st.sampled_from(["fp32", "fp16", "bf16"]),
    batch_size=SIZES,
    global_batch_size=st.none() | SIZES,
    compile=st.booleans(),
)
ARMS = st.builds(Arm, st.just("alone"), st.just(1), SIZES) | st.builds(Arm, st.just("ddp"), st.integers(2, 1024), SIZES)
STUDIES = st.builds(
    Study,
    scaling=st.sampled_from(["weak", "strong"]),
    workload=WORKLOADS,
    arms=st.lists(ARMS, min_size=1, max_size=4).map(tuple),
    rounds=st.integers(1, 20),
    block_s=SECONDS,
    warmup_s=SECONDS,
)
PLANS = st.builds(
    Plan,
    sku=NAMES,
    device_type=st.sampled_from(["cuda", "cpu"]),
    studies=st.lists(STUDIES, max_size=3, unique_by=lambda study: study.id).map(tuple),
    seed=st.integers(0, 2**32),
)
