"""Readers of the usual formats of image data sets: MNIST, CIFAR, Parquet, and a folder for every class."""

import gzip
import io
import math
import pickle
import re
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from cbs.errors import ConfigError, DataError, reason
from cbs.files import check_fits, inner_path, memory
from extensions.papers.image_parts.data import (
    EncodedImages,
    ImageData,
    Images,
    StoredImages,
    as_bytes,
    decode,
    describe,
)
from extensions.papers.image_parts.models import SMALL
from extensions.papers.image_parts.trees import Tree, open_tree, read

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".gif", ".tif", ".tiff")
# Photos are stored this much larger than a model sees them, 256 pixels for 224, as in Krizhevsky et al. 2012.
PHOTO_SIZE, PHOTO_MARGIN = 224, 8 / 7

# Largest size in bytes of decoded images that are kept in memory; larger data are decoded whenever they are drawn
MEMORY = 2**31

FIELDS = (("image", "img"), ("label", "labels", "fine_label"))  # Accepted names of the columns of images and of labels
GREY = ("1", "L", "LA")  # Modes of Pillow without colour

SPLITS = {
    "training": (("train", "training"),),
    "validation": (("val", "valid", "validation"), ("eval",), ("test", "testing")),
}
"""Accepted beginnings of the names of either part; later ones are used only where there are no earlier ones."""

Part = tuple[Images, list[str]]  # Images and the names of their classes, where the format has names


def load_images(
    path: str, validation: str | None = None, size: int | None = None, channels: int | None = None
) -> ImageData:
    """Read a data set from a folder, an archive (ZIP or TAR) or a Parquet file.

    - MNIST's layout: ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and ``t10k-...``, also ``.gz``.
    - CIFAR's: ``data_batch_1`` to ``5`` and ``test_batch``, or ``train`` and ``test``; the Python version, whose
      pickles are read without executing code, or the binary one (``.bin``).
    - Parquet files whose names start with the split, with columns ``image`` or ``img`` (encoded images, or structures
      with ``bytes``) and ``label``.
    - A folder for every class in ``train`` and in ``val``, ``validation`` or ``test``, as of ImageNet.

    If ``validation`` is a folder inside ``path``, its images are not used for training. Where ``path`` has both a
    validation and a test part, the test part is not used.

    Args:
        path: path of the data.
        validation: path of the validation part, if it is not in ``path``.
        size: pixels across and down, for Parquet and class folders; ``None`` for the size of the images where it is at
            most 64 and the same for all, else 224.
        channels: 1 or 3, to which images of Parquet and class folders are converted; ``None`` for those of the first
            image, which all others must share, and for 3 where images are larger than 64 pixels.

    Raises:
        DataError: if the data are missing or damaged, have an unknown layout, or lack one of the two parts.
    """
    if channels not in (None, 1, 3):
        raise ConfigError(f"channels of workload 'images' must be 1 or 3, got {channels!r}")
    sources = [Path(source).expanduser() for source in (path, validation or path)]
    trees = [open_tree(source) for source in sources[: 1 if validation is None else 2]]
    alone = validation is not None
    if (inside := inner_path(*sources)) is not None:
        trees[0] = {name: content for name, content in trees[0].items() if not f"{name}/".startswith(f"{inside}/")}
    training, names = _part(sources[0], trees[0], "training", size, channels, alone)
    held_out, other_names = _part(sources[1], trees[-1], "validation", size, channels, alone)
    for part, source in zip((training, held_out), sources, strict=True):
        if not len(part.labels):
            raise DataError(f"{source}: holds no images; check the path")
    if names != other_names:
        differing = ", ".join(sorted(set(names) ^ set(other_names))[:3])
        raise DataError(f"{sources[1]}: classes {differing} are in one part only; both need the same folders")
    shapes = [tuple(part.gather(torch.zeros(1, dtype=torch.int64)).shape[1:]) for part in (training, held_out)]
    if shapes[0] != shapes[1]:
        raise DataError(
            f"{sources[1]}: validation images are {shapes[1]}, training images {shapes[0]}; set image_size and channels"
        )
    stored = shapes[0][-1]
    return describe(training, held_out, names, size or (PHOTO_SIZE if stored > SMALL else stored), str(sources[1]))


def _part(source: Path, tree: Tree, split: str, size: int | None, channels: int | None, alone: bool) -> Part:
    """Return one part of the data at ``source``; all images if they are not split there and ``alone`` is true."""
    bases = {Path(name).name: name for name in tree}
    arrays: Callable[[Tree, dict[str, str], str, Path], StoredImages] | None = None
    if any(name.startswith(("train-images", "t10k-images")) for name in bases):
        arrays = _mnist
    elif any(re.fullmatch(r"(data_batch_\d|test_batch)(\.bin)?|(train|test)(\.bin)?", name) for name in bases):
        arrays = _cifar
    if arrays is not None:
        if size is not None or channels is not None:
            raise ConfigError(f"{source}: these images have a fixed size and colour; leave out image_size and channels")
        return arrays(tree, bases, split, source), []
    parquet = [name for name in tree if name.endswith(".parquet")]
    if parquet:
        return _parquet(source, _of_split(parquet, split, source, alone, r"[-_.\d]"), size, channels), []
    pictures = [name for name in tree if name.lower().endswith(PICTURES)]
    if not pictures:
        raise DataError(
            f"{source}: neither MNIST, CIFAR, Parquet nor folders of images; docs/workloads.md has the layouts"
        )
    return _class_folders(source, tree, _of_split(pictures, split, source, alone, "/"), size, channels)


def _of_split(names: list[str], split: str, source: Path, alone: bool, after: str) -> list[str]:
    """Return the files of a split, recognized by the start of their name or of a folder on their path."""
    found: dict[str, list[str]] = {}
    for kind, choices in SPLITS.items():
        starting = (
            [name for name in names if re.search(rf"(^|/)({'|'.join(words)}){after}", name, re.IGNORECASE)]
            for words in choices
        )
        found[kind] = next(filter(None, starting), [])
    if found[split]:
        return found[split]
    if alone and not any(found.values()):
        return names
    option = "validation" if split == "validation" else "data"
    starts = " or ".join(word for words in SPLITS[split] for word in words)
    raise DataError(f"{source}: no images for {split} (names that start with {starts}); pass {option}=PATH of them")


def _content(tree: Tree, bases: dict[str, str], name: str, source: Path) -> bytes:
    several = [path for path in tree if Path(path).name == name]
    if len(several) > 1:
        raise DataError(
            f"{source}: {' and '.join(several[:2])} belong to two data sets; pass the folder of one of them"
        )
    if name not in bases:
        raise DataError(f"{source}: no file {name}; fetch it, or pass validation=PATH where it is the validation part")
    return read(tree, bases[name], source)


def _mnist(tree: Tree, bases: dict[str, str], split: str, source: Path) -> StoredImages:
    start = "train" if split == "training" else "t10k"
    arrays = []
    for kind, dimensions in (("images", 3), ("labels", 1)):
        names = [f"{start}-{kind}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
        name = next((name for name in names if name in bases), names[0])
        content = _content(tree, bases, name, source)
        try:
            content = _unpacked(content) if name.endswith(".gz") else content
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{source / name}: damaged ({reason(error)}); fetch it again") from None
        header = np.frombuffer(content[: 4 + 4 * dimensions].ljust(4 + 4 * dimensions, b"\0"), dtype=">i4")
        shape = header[1:].tolist()
        if header[0] != 0x800 + dimensions or len(content) != 4 + 4 * dimensions + np.prod(shape, dtype=np.int64):
            raise DataError(f"{source / name}: not an IDX file of {dimensions} dimensions, or cut off; fetch it again")
        arrays.append(np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy())
    return _stored(arrays[0][:, None], arrays[1], source)


def _unpacked(content: bytes) -> bytes:
    """Return what is in a ``.gz`` file, which may hold a thousand times its size."""
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        found = file.read(memory() // 3)
        check_fits(3.0 * len(found) if not file.read(1) else math.inf)
    return found


def _cifar(tree: Tree, bases: dict[str, str], split: str, source: Path) -> StoredImages:
    suffix = ".bin" if any(name.endswith(".bin") for name in bases) else ""
    hundred = not any(re.match(r"data_batch_\d|test_batch", name) for name in bases)
    if hundred:
        names = ["train" if split == "training" else "test"]
    else:
        names = [f"data_batch_{number}" for number in range(1, 6)] if split == "training" else ["test_batch"]
    pixels: list[Any] = []
    labels: list[Any] = []
    for name in names:
        content = _content(tree, bases, name + suffix, source)
        if suffix:
            skipped = 2 if hundred else 1  # coarse and fine label, or the label
            if not content or len(content) % (3072 + skipped):
                raise DataError(
                    f"{source / (name + suffix)}: not whole records of {3072 + skipped} bytes; fetch it again"
                )
            rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3072 + skipped)
            pixels.append(rows[:, skipped:])
            labels.append(rows[:, skipped - 1])
        else:
            found = _unpickled(content, source / name)
            pixels.append(found.get(b"data"))
            labels.append(found.get(b"fine_labels" if hundred else b"labels"))
            if getattr(pixels[-1], "shape", None) != (len(labels[-1] or ()), 3072) or pixels[-1].dtype != np.uint8:
                raise DataError(f"{source / name}: not a batch of CIFAR images of 3 x 32 x 32; fetch it again")
    return _stored(np.concatenate(pixels).reshape(-1, 3, 32, 32), np.concatenate(labels), source)


class _Arrays(pickle.Unpickler):
    """Unpickler that reads arrays of numbers and refuses anything else, because a pickle may run code."""

    MODULES = frozenset({"numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy._core.numeric"})
    NAMES = frozenset({"_reconstruct", "ndarray", "dtype", "_frombuffer"})

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few numpy names that an array needs."""
        if module in self.MODULES and name in self.NAMES:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no CIFAR file does")


def _unpickled(content: bytes, where: Path) -> dict[bytes, Any]:
    try:
        found = _Arrays(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # noqa: BLE001 - a damaged pickle may raise anything
        raise DataError(f"{where}: not a batch of CIFAR images ({reason(error)}); fetch it again") from None
    if not isinstance(found, dict):
        raise DataError(f"{where}: not a batch of CIFAR images; fetch it again")
    return found


def _stored(pixels: np.ndarray, labels: np.ndarray, source: Path) -> StoredImages:
    if len(pixels) != len(labels):
        raise DataError(f"{source}: {len(pixels)} images but {len(labels)} labels; fetch the files again")
    return StoredImages(torch.from_numpy(np.ascontiguousarray(pixels)), torch.from_numpy(labels.astype(np.int64)))


def _class_folders(source: Path, tree: Tree, names: list[str], size: int | None, channels: int | None) -> Part:
    folders = [Path(name).parent.name for name in names]
    classes = sorted(set(folders))
    if len(classes) < 2:
        raise DataError(f"{source}: all images lie in one folder, {classes[0] or '.'}; make a folder for every class")
    order = {name: index for index, name in enumerate(classes)}
    labels = torch.tensor([order[folder] for folder in folders])

    def content(index: int) -> bytes:
        return read(tree, names[index], source)

    return _pictures(labels, content, lambda index: str(source / names[index]), size, channels), classes


def _parquet(source: Path, names: list[str], size: int | None, channels: int | None) -> Images:
    paths = [source / name if source.is_dir() else source for name in names]
    groups: list[tuple[Path, int, str]] = []
    starts, labels = [0], []
    try:
        for path in paths:
            with pq.ParquetFile(path) as file:
                columns = file.schema_arrow.names
                image, label = (next((name for name in known if name in columns), "") for known in FIELDS)
                if not image or not label:
                    known = " and ".join(" or ".join(names) for names in FIELDS)
                    raise DataError(f"{path}: columns {', '.join(columns)[:200]}, but {known} are needed; rename them")
                if not pa.types.is_integer(file.schema_arrow.field(label).type):
                    raise DataError(f"{path}: column {label!r} does not hold whole numbers; number the classes from 0")
                check_fits(24.0 * file.metadata.num_rows)  # a few bytes may stand for millions of labels
                for group in range(file.num_row_groups):
                    labels.append(file.read_row_group(group, columns=[label]).column(0).to_numpy())
                    groups.append((path, group, image))
                    starts.append(starts[-1] + len(labels[-1]))
        numbers = torch.from_numpy(np.concatenate(labels or [np.empty(0)]).astype(np.int64))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise DataError(f"{path}: not a readable Parquet file of images ({reason(error)}); fetch it again") from None

    @lru_cache(maxsize=2)
    def images(which: int) -> Any:
        path, group, field = groups[which]
        with pq.ParquetFile(path) as file:
            return file.read_row_group(group, columns=[field]).column(0)

    def content(index: int) -> bytes:
        which = int(np.searchsorted(starts, index, side="right")) - 1
        value = images(which)[index - starts[which]].as_py()
        found = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(found, bytes):
            raise DataError(f"{name(index)}: holds no encoded image; write the files' bytes into the column")
        return found

    def name(index: int) -> str:
        which = int(np.searchsorted(starts, index, side="right")) - 1
        return f"{groups[which][0]}, row group {groups[which][1]}, row {index - starts[which]}"

    return _pictures(numbers, content, name, size, channels) if len(numbers) else StoredImages(numbers, numbers)


def _pictures(
    labels: Tensor, content: Callable[[int], bytes], name: Callable[[int], str], size: int | None, channels: int | None
) -> Images:
    """Return encoded images, decoded into memory where they fit."""
    first = decode(content(0), name(0))
    grey = first.mode in GREY and max(first.size) <= SMALL if channels is None else channels == 1
    if size is None and max(first.size) <= SMALL:
        return _as_they_are(labels, content, name, first, "L" if grey else "RGB", strict=channels is None)
    seen = size or PHOTO_SIZE
    side = round(seen * PHOTO_MARGIN) if seen > SMALL else seen
    encoded = EncodedImages(labels, content, name, 1 if grey else 3, side)
    if len(labels) * encoded.channels * side**2 > MEMORY:
        return encoded
    return StoredImages(encoded.gather(torch.arange(len(labels))), labels)


def _as_they_are(
    labels: Tensor,
    content: Callable[[int], bytes],
    name: Callable[[int], str],
    first: Any,
    mode: str,
    strict: bool,
) -> StoredImages:
    images = []
    for index in range(len(labels)):
        image = decode(content(index), name(index))
        if image.size != first.size or image.size[0] != image.size[1]:
            sizes = [f"{across} x {down}" for across, down in (image.size, first.size)]
            raise DataError(
                f"{name(index)}: {sizes[0]} pixels, the first image {sizes[1]}; set image_size=N to make all of them "
                "squares of one size"
            )
        if strict and (image.mode in GREY) != (mode == "L"):
            raise DataError(
                f"{name(index)}: colours {image.mode}, the first image {first.mode}; set channels=1 or channels=3 to "
                "convert all"
            )
        images.append(as_bytes(image.convert(mode)))
    return StoredImages(torch.from_numpy(np.stack(images)), labels)
