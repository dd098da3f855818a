"""Import training curves of other tools as a sweep folder; the importers are in :mod:`analysis.read.importers`."""
