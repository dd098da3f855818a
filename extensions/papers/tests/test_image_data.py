"""Data sets in the layouts of MNIST, CIFAR, Parquet and ImageNet, written here; and what is wrong with them."""

import gzip
import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from cbs.errors import CbsError, ConfigError, DataError
from extensions.papers.image_parts import formats
from extensions.papers.image_parts.data import ImageStream, StoredImages, middle
from extensions.papers.image_parts.formats import load_images
from extensions.papers.workloads.images import images

RANDOM = np.random.default_rng(0)
COLOUR = RANDOM.integers(0, 256, (10, 3, 32, 32), dtype=np.uint8)
GREY = RANDOM.integers(0, 256, (10, 28, 28), dtype=np.uint8)
LABELS = np.arange(10) % 5


def encoded(pixels: np.ndarray, kind: str = "png") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels).save(stream, kind)
    return stream.getvalue()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def idx(array: np.ndarray) -> bytes:
    return np.array([0x800 + array.ndim, *array.shape], dtype=">i4").tobytes() + array.astype(np.uint8).tobytes()


def mnist(zipped: bool = True) -> dict[str, bytes]:
    files = {
        "train-images-idx3-ubyte": idx(GREY),
        "train-labels-idx1-ubyte": idx(LABELS),
        "t10k-images-idx3-ubyte": idx(GREY[:5]),
        "t10k-labels-idx1-ubyte": idx(LABELS[:5]),
    }
    return {f"{name}.gz": gzip.compress(content) for name, content in files.items()} if zipped else files


def cifar10(python: bool) -> dict[str, bytes]:
    parts = {f"data_batch_{number}": slice(2 * number - 2, 2 * number) for number in range(1, 6)}
    parts["test_batch"] = slice(0, 5)
    files = {}
    for name, rows in parts.items():
        pixels = COLOUR[rows].reshape(-1, 3072)
        if python:
            batch = {b"data": pixels, b"labels": LABELS[rows].tolist(), b"batch_label": b"x"}
            files[f"cifar-10-batches-py/{name}"] = pickle.dumps(batch, protocol=4)
        else:
            records = np.hstack([LABELS[rows, None].astype(np.uint8), pixels])
            files[f"cifar-10-batches-bin/{name}.bin"] = records.tobytes()
    return files


def cifar100(python: bool) -> dict[str, bytes]:
    files = {}
    for name, rows in {"train": slice(0, 10), "test": slice(0, 5)}.items():
        pixels, coarse = COLOUR[rows].reshape(-1, 3072), LABELS[rows] * 0
        if python:
            batch = {b"data": pixels, b"fine_labels": LABELS[rows].tolist(), b"coarse_labels": coarse.tolist()}
            files[f"cifar-100-python/{name}"] = pickle.dumps(batch, protocol=4)
        else:
            records = np.hstack([coarse[:, None], LABELS[rows, None], pixels]).astype(np.uint8)
            files[f"cifar-100-binary/{name}.bin"] = records.tobytes()
    return files


def class_folders(test: str = "val") -> dict[str, bytes]:
    return {
        f"set/{part}/n{LABELS[index]:05}/{index}.PNG": encoded(COLOUR[index])
        for part, count in (("train", 10), (test, 5))
        for index in range(count)
    }


def parquet(column: str = "img", structure: bool = True, labels: np.ndarray = LABELS) -> dict[str, bytes]:
    files = {}
    for part, count in (("train-00000-of-00001", 10), ("test-00000-of-00001", 5)):
        contents = [encoded(COLOUR[index]) for index in range(count)]
        values = [{"bytes": content, "path": None} for content in contents] if structure else contents
        stream = io.BytesIO()
        pq.write_table(pa.table({column: values, "label": labels[:count]}), stream, row_group_size=3)
        files[f"data/{part}.parquet"] = stream.getvalue()
    return files


def as_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path.with_suffix(".zip")


def as_tar(path: Path, files: dict[str, bytes], suffix: str = ".tar") -> Path:
    path = Path(f"{path}{suffix}")
    with tarfile.open(path, f"w:{suffix.removeprefix('.tar').removeprefix('.')}") as archive:
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))
    return path


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "cifar10 python, tar.gz": lambda path: as_tar(path / "a", cifar10(True), ".tar.gz"),
    "cifar10 binary, folder": lambda path: write(path, cifar10(False)),
    "cifar100 python, folder": lambda path: write(path, cifar100(True)),
    "cifar100 binary, tar.gz": lambda path: as_tar(path / "a", cifar100(False), ".tar.gz"),
    "class folders": lambda path: write(path, class_folders()),
    "class folders, zip": lambda path: as_zip(path / "a", class_folders("test")),
    "class folders, tar": lambda path: as_tar(path / "a", class_folders("validation")),
    "parquet": lambda path: write(path, parquet()),
    "parquet of bytes": lambda path: write(path, parquet("image", structure=False)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_colour_images_come_back_as_they_were(layout: str, tmp_path: Path) -> None:
    found = load_images(str(LAYOUTS[layout](tmp_path)))
    assert (found.classes, found.size, len(found.mean)) == (5, 32, 3)
    for part, count in ((found.training, 10), (found.validation, 5)):
        order = sorted(range(count), key=lambda index: (LABELS[index] if "folders" in layout else 0, index))
        assert part.labels.tolist() == LABELS[order].tolist()
        assert np.array_equal(part.gather(torch.arange(count)).numpy(), COLOUR[order])
    torch.testing.assert_close(found.mean, torch.from_numpy(COLOUR / 255).mean((0, 2, 3)).float())
    torch.testing.assert_close(found.std, torch.from_numpy(COLOUR / 255).std((0, 2, 3), correction=0).float())


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_comes_back_as_it_was(zipped: bool, tmp_path: Path) -> None:
    found = load_images(str(write(tmp_path, mnist(zipped))))
    assert np.array_equal(found.training.gather(torch.arange(10)).numpy()[:, 0], GREY)
    assert found.validation.labels.tolist() == LABELS[:5].tolist()


def test_validation_images_in_the_folder_of_the_others_are_not_trained_on(tmp_path: Path) -> None:
    files = {key.replace("set/train", "set").replace("set/val", "set/apart"): value
             for key, value in class_folders().items()}  # fmt: skip
    root = write(tmp_path, files) / "set"
    found = load_images(str(root), str(root / "apart"))
    assert (len(found.training.labels), len(found.validation.labels)) == (10, 5)


def photos(sizes: list[tuple[int, int]]) -> dict[str, bytes]:
    return {
        f"{part}/c{index % 2}/{index}.jpg": encoded(RANDOM.integers(0, 256, (3, down, across), dtype=np.uint8), "jpeg")
        for part in ("train", "val")
        for index, (across, down) in enumerate(sizes)
    }


@pytest.mark.parametrize("memory", [2**31, 0])
def test_photos_are_resized_and_cut_in_memory_or_when_drawn(
    memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "MEMORY", memory)
    folder = write(tmp_path, photos([(90, 70), (66, 80), (300, 280)]))
    found = load_images(str(folder), size=70)
    assert isinstance(found.training, StoredImages) == bool(memory)
    pixels = found.training.gather(torch.arange(3))
    assert (pixels.shape, found.size) == ((3, 3, 80, 80), 70)
    with Image.open(folder / "train/c0/0.jpg") as image:
        expected = np.asarray(image.resize((103, 80), 2).crop((11, 0, 91, 80))).transpose(2, 0, 1)
    assert np.array_equal(pixels[0].numpy(), expected)
    assert load_images(str(folder)).size == 224
    assert load_images(str(folder), size=70, channels=1).training.gather(torch.arange(1)).shape == (1, 1, 80, 80)
    batch, _ = ImageStream(found.training, 70, 0, True, torch.Generator().manual_seed(0)).next(5)
    assert batch.shape == (5, 3, 70, 70)


def test_random_cuts_and_mirrors() -> None:
    pixels = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4)
    stream = ImageStream(StoredImages(pixels, torch.tensor([3])), 4, 1, True, torch.Generator().manual_seed(0))
    drawn, labels = stream.next(2000)
    padded = torch.nn.functional.pad(pixels, (1, 1, 1, 1))[0, 0]
    cuts = [padded[top : top + 4, left : left + 4] for top in range(3) for left in range(3)]
    both = torch.stack([*cuts, *(cut.flip(1) for cut in cuts)]).float() / 255
    which = (drawn == both).all(3).all(2).float().argmax(1)
    assert torch.equal(both[which], drawn[:, 0])
    # Eighteen equally likely: 2000/18 = 111 with a standard deviation of 10; five of them.
    assert (which.bincount(minlength=18) - 111).abs().max() < 52
    assert labels.unique().tolist() == [3]
    plain = ImageStream(StoredImages(pixels, torch.tensor([3])), 4, 0, False, torch.Generator().manual_seed(0))
    assert torch.equal(plain.next(3)[0], pixels.expand(3, -1, -1, -1).float() / 255)
    assert torch.equal(middle(StoredImages(pixels, torch.tensor([3])), 2, 5)[0], pixels[:, :, 1:3, 1:3])


class Nasty:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch ran",)


def changed(files: dict[str, bytes], name: str, content: bytes | None) -> dict[str, bytes]:
    assert name in files
    return {
        key: value if key != name else content for key, value in files.items() if key != name or content is not None
    }


BATCH = "cifar-10-batches-py/data_batch_3"
BAD: dict[str, tuple[dict[str, bytes], dict[str, object], str]] = {
    "code in a pickle": (
        changed(cifar10(True), BATCH, pickle.dumps(Nasty())),
        {},
        "data_batch_3: not a batch of CIFAR images (it names posix.system",
    ),
    "a pickle of something else": (changed(cifar10(True), BATCH, pickle.dumps([1])), {}, "data_batch_3: not a batch"),
    "a pickle cut off": (changed(cifar10(True), BATCH, pickle.dumps({b"data": COLOUR})[:-9]), {}, "fetch it again"),
    "a batch that is missing": (changed(cifar10(True), BATCH, None), {}, "no file data_batch_3; fetch it"),
    "grey images in CIFAR": (
        changed(cifar10(True), BATCH, pickle.dumps({b"data": COLOUR[:, 0].reshape(10, -1), b"labels": [1] * 10})),
        {},
        "not a batch of CIFAR images of 3 x 32 x 32",
    ),
    "binary CIFAR cut off": (
        changed(cifar10(False), "cifar-10-batches-bin/test_batch.bin", b"abc"),
        {},
        "test_batch.bin: not whole records of 3073 bytes",
    ),
    "MNIST cut off": (
        changed(mnist(False), "train-images-idx3-ubyte", idx(GREY)[:-1]),
        {},
        "train-images-idx3-ubyte: not an IDX file of 3 dimensions, or cut off",
    ),
    "MNIST with a damaged archive": (
        changed(mnist(), "train-labels-idx1-ubyte.gz", mnist()["train-labels-idx1-ubyte.gz"][:-12]),
        {},
        "train-labels-idx1-ubyte.gz: damaged",
    ),
    "MNIST without its validation part": (
        {name: content for name, content in mnist().items() if "t10k" not in name},
        {},
        "no file t10k-images-idx3-ubyte; fetch it, or pass validation=PATH",
    ),
    "more images than labels": (changed(mnist(False), "train-images-idx3-ubyte", idx(GREY[:7])), {}, "7 images but 10"),
    "a damaged image": (
        changed(class_folders(), "set/train/n00000/0.PNG", encoded(COLOUR[0])[:500]),
        {},
        "set/train/n00000/0.PNG: not a readable image",
    ),
    "no image at all": (
        changed(class_folders(), "set/val/n00000/0.PNG", b"hello"),
        {},
        "set/val/n00000/0.PNG: not a readable image (of no known format); delete it or fetch it again",
    ),
    "a grey image among coloured ones": (
        changed(class_folders(), "set/train/n00003/3.PNG", encoded(GREY[0, :, :].repeat(2, 0).repeat(2, 1)[:32, :32])),
        {},
        "n00003/3.PNG: colours L, the first image RGB; set channels=1 or channels=3 to convert all",
    ),
    "another size": (
        changed(class_folders(), "set/train/n00003/3.PNG", encoded(COLOUR[0][:, :30, :30])),
        {},
        "n00003/3.PNG: 30 x 30 pixels, the first image 32 x 32; set image_size=N",
    ),
    "another size for validation": (
        {name: encoded(COLOUR[0][:, :30, :30]) if "/val/" in name else file for name, file in class_folders().items()},
        {},
        "validation images are (3, 30, 30), training images (3, 32, 32); set image_size and channels",
    ),
    "no validation part": (
        {name: content for name, content in class_folders().items() if "/val/" not in name},
        {},
        "no images for validation (names that start with val or valid",
    ),
    "a class for validation alone": (
        {name.replace("/val/n00000", "/val/other"): content for name, content in class_folders().items()},
        {},
        "are in one part only; both need the same folders",
    ),
    "one class": (
        {f"{part}/a/1.png": encoded(COLOUR[0]) for part in ("train", "val")},
        {},
        "all images lie in one folder",
    ),
    "nothing": ({"readme.md": b"x"}, {}, "neither MNIST, CIFAR, Parquet nor folders of images"),
    "a foreign column": (parquet("picture"), {}, "but image or img and label"),
    "labels that are no numbers of classes": (parquet(labels=LABELS / 2), {}, "'label' does not hold whole numbers"),
    "sixteen bits": (
        changed(class_folders(), "set/train/n00003/3.PNG", encoded(GREY[0].astype(np.uint16) * 256)),
        {},
        "n00003/3.PNG: more than 8 bits per channel (I;16); convert the images to 8 bits",
    ),
    "a damaged Parquet file": ({"train.parquet": b"PAR1", "test.parquet": b"x"}, {}, "not a readable Parquet file"),
    "a size for MNIST": (mnist(), {"image_size": 32}, "leave out image_size and channels"),
    "five channels": (class_folders(), {"channels": 5}, "channels of workload 'images' must be 1 or 3, got 5"),
    "classes of data": (class_folders(), {"classes": 5}, "classes of workload 'images' is for glyphs"),
    "a negative crop": (class_folders(), {"crop": -1}, "crop of workload 'images'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_one_line_with_the_file_and_a_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files, options, expected = BAD[name]
    with pytest.raises(CbsError) as caught:
        images(data=str(write(tmp_path / "data", files)), **options)
    message = str(caught.value)
    assert isinstance(caught.value, ConfigError if options else DataError)
    assert "\n" not in message
    assert expected in message
    assert options or str(tmp_path) in message
    assert not (tmp_path / "ran").exists()


def test_training_on_data_of_ones_own(tmp_path: Path) -> None:
    folder = write(tmp_path, cifar10(False))
    workload = images(
        data=str(folder), model="resnet8", width=8, metric="accuracy", crop=0, flip=False, training_examples=6
    )
    assert (workload.metric, workload.direction) == ("validation_accuracy", "above")
    torch.manual_seed(0)
    model = workload.build_model()
    stream = workload.training_stream(torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        workload.example_losses(model, stream.next(16)).mean().backward()
        optimizer.step()
    found = workload.validate(model)
    assert found.keys() == {"validation_loss", "validation_accuracy", "training_loss", "training_accuracy"}
    assert found["training_accuracy"] > 0.6
    assert workload.directions["training_accuracy"] == "above"
