"""Python programs that start at once: forks of one process that has imported torch, which takes seconds of CPU.

`start.command` is ``python -m MODULE ARGUMENTS`` from such a fork. What surrounds a program is as in a new process: its
arguments, environment (in ``/proc/PID/environ``, too), directory, standard streams, exit code and signals, and it ends
with whoever started it. Other than there, its command line is that of the process that forks.

`launcher` starts gangs whose agents and ranks are forks: without torchrun, and without its import in each rank.
"""
