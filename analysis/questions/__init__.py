"""Questions about results: a folder each, named as its command, with all that is its own.

``answer`` asks and returns one frozen result, ``tables`` and ``figures`` present it, ``command`` is ``cbs NAME``
(``commands/GROUP/NAME`` is one in a group). They are found by where they stand, see :mod:`cbs.registry.extensions`.
Questions do not import one another: what two need is in :mod:`analysis.estimate`.
"""

PANEL = "Analyze"
"""Under which heading ``cbs --help`` lists the commands of questions that say nothing else."""
