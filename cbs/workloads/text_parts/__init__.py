"""Parts of the ``text`` workload: a GPT, the embedded corpus, and readers for the user's own data."""

from cbs.workloads.text_parts.corpus import Corpus, embedded_corpus
from cbs.workloads.text_parts.files import load_corpus
from cbs.workloads.text_parts.gpt import GPT, SIZES, GPTShape

__all__ = ["GPT", "SIZES", "Corpus", "GPTShape", "embedded_corpus", "load_corpus"]
