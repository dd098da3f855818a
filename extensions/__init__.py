"""Extensions: a folder for each, with its package, its tests, and all that only it needs.

:mod:`cbs.registry.extensions` finds them by walking this folder. Nothing outside a folder imports it, except for
benchmarks, and nothing but tests names it: a folder that is deleted takes its commands and entries with it, without an
edit.
"""

__distribution__ = "critical-batch-size"
