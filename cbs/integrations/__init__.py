"""Callbacks that measure the noise scale inside other people's training loops; one file per library, none imported."""

from __future__ import annotations
