"""The noise scale that was measured along one run."""
