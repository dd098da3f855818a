"""Questions about results: one folder each, named like its command.

One module, named after what it answers, computes and returns one frozen result; ``tables`` and ``figures`` present it,
``command`` is ``cbs NAME`` (``commands/GROUP/NAME`` is a command in a group). They are found by their location, see
:mod:`cbs.registry.extensions`. Questions do not import one another: what two of them need is in
:mod:`analysis.estimate`.
"""

PANEL = "Analyze"  # Heading in ``cbs --help`` for commands of questions that name no other
