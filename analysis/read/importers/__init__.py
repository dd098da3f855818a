"""Import training curves of other tools into a sweep folder that the analysis reads like one of our own.

Each format has a file, found by name in :data:`~analysis.read.importers.base.IMPORTERS`. It turns a source into
:class:`~analysis.read.importers.base.ImportedRun` objects and knows nothing of sweeps. Data flows one way::

    format (Run) -> facts (batch size, learning rate, ...) -> trial (with steps and values in order) -> folder

Units have to be given; they are never guessed.
"""

from analysis.read.importers.base import IMPORTERS, ImportedRun, Importer
from analysis.read.importers.importing import ImportReport, import_runs
from analysis.read.importers.settings import Settings

__all__ = ["IMPORTERS", "ImportReport", "ImportedRun", "Importer", "Settings", "import_runs"]
