"""The scripts of slurm/, executed with bash; those that ask Slurm, against stand-ins for its commands.

tests/integration/test_slurm_scripts_lab.py executes them against a real Slurm.
"""
