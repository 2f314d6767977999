"""What ranges of a training step are called: in traces of torch.profiler and, as NVTX ranges, in those of nsys."""

STEP, FORWARD, BACKWARD, OPTIMIZER = "ddpscale:step", "ddpscale:forward", "ddpscale:backward", "ddpscale:optimizer"
LOAD = "ddpscale:load"
