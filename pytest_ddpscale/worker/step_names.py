"""Names of ranges of a training step, in traces of torch.profiler and, as NVTX ranges, of nsys."""

STEP, FORWARD, BACKWARD, OPTIMIZER = "ddpscale:step", "ddpscale:forward", "ddpscale:backward", "ddpscale:optimizer"
LOAD = "ddpscale:load"
