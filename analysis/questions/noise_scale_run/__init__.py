"""The noise scale measured along one run."""
