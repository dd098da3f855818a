"""One file for each library, service or kind of program; entries of :data:`~analysis.read.importers.base.IMPORTERS`."""
