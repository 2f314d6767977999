"""Python programs that start at once: forks of one process that has imported torch, which takes seconds of CPU.

`start.command` is ``python -m MODULE ARGUMENTS`` from such a fork. What surrounds a program is as in a new process: its
arguments, environment, directory, standard streams, exit code and signals, and it ends with whoever started it. Other
than there, ``/proc/PID/environ`` is that of the process that forks, and libraries that are loaded already are not
looked for again in LD_LIBRARY_PATH.

`launcher` starts gangs whose agents and ranks are forks: without torchrun, and without its import in each rank.
"""
