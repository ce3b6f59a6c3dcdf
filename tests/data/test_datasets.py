"""Datasets: small files in every official layout, read by the code users run."""

import gzip
import io
import json
import logging
import struct
import sys
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from idiolect.data import datasets, decode, list_datasets, places
from idiolect.data.datasets.mnist import Emnist, Mnist
from idiolect.errors import UserError

draw = np.random.default_rng(0)


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """No dataset anywhere, an empty cache; gives the folder IDIOLECT_DATA points to."""
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("IDIOLECT_DATA", str(data))
    monkeypatch.setenv("IDIOLECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(places, "hub_installed", lambda: False)
    return data


def encode(pixels, kind="PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def write_parquet(path, pixels, image="image", **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = [{"bytes": encode(p), "path": None} for p in pixels]
    pq.write_table(pa.table({image: data, **columns}), path)


def write_idx(path, array, packed=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    raw += array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if packed else raw)


def grey(n, side=28):
    return draw.integers(0, 256, (n, side, side), dtype=np.uint8)


def colour(n, side=32):
    return draw.integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def test_mnist_parquet_keeps_pixels_and_parts(no_data):
    train, test = grey(12), grey(5)
    write_parquet(no_data / "mnist/train.parquet", train, label=[i % 10 for i in range(12)])
    write_parquet(no_data / "mnist/test.parquet", test, label=[0, 1, 2, 3, 4])
    pool = datasets.load({"name": "mnist", "rows": [12, 5]})
    assert np.array_equal(pool.x[:, 0], np.concatenate([train, test]))
    assert pool.part.tolist() == [0] * 12 + [1] * 5
    assert pool.y.tolist() == [i % 10 for i in range(12)] + [0, 1, 2, 3, 4]
    assert pool.mean == (0.1307,)


def test_official_row_count_is_checked_by_default(no_data):
    write_parquet(no_data / "mnist/train.parquet", grey(3), label=[0, 1, 2])
    write_parquet(no_data / "mnist/test.parquet", grey(1), label=[0])
    with pytest.raises(UserError, match="3 train and 1 test samples, expected 60000 and 10000"):
        datasets.load({"name": "mnist"})


def test_row_count_is_checked_on_a_cached_copy_too(no_data):
    write_parquet(no_data / "mnist/train.parquet", grey(3), label=[0, 1, 2])
    write_parquet(no_data / "mnist/test.parquet", grey(1), label=[0])
    datasets.load({"name": "mnist", "rows": [3, 1]})
    with pytest.raises(UserError, match="expected 60000"):
        datasets.load({"name": "mnist"})


def test_checksum_of_lossless_data(no_data, monkeypatch):
    monkeypatch.setattr(Mnist, "official", (3, 1))
    write_parquet(no_data / "mnist/train.parquet", grey(3), label=[0, 1, 2])
    write_parquet(no_data / "mnist/test.parquet", grey(1), label=[0])
    with pytest.raises(UserError, match="not the original data"):
        datasets.load({"name": "mnist"})


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_from_the_debian_folder(no_data, packed):
    folder = places.DEBIAN / "fashion-mnist"
    end = ".gz" if packed else ""
    train, test = grey(6), grey(2)
    write_idx(folder / f"train-images-idx3-ubyte{end}", train, packed)
    write_idx(folder / f"train-labels-idx1-ubyte{end}", np.arange(6), packed)
    write_idx(folder / f"t10k-images-idx3-ubyte{end}", test, packed)
    write_idx(folder / f"t10k-labels-idx1-ubyte{end}", np.array([9, 8]), packed)
    pool = datasets.load({"name": "fashion_mnist", "rows": [6, 2]})
    assert np.array_equal(pool.x[:6, 0], train) and pool.y.tolist() == [*range(6), 9, 8]
    assert pool.where == str(folder)


def test_own_folder_comes_before_cache_and_debian(no_data):
    for root, label in ((places.DEBIAN, 1), (places.cache_dir() / "data", 2), (no_data, 3)):
        write_parquet(root / "mnist/train.parquet", grey(1), label=[label])
        write_parquet(root / "mnist/test.parquet", grey(1), label=[label])
        assert datasets.load({"name": "mnist", "rows": [1, 1]}).y.tolist() == [label, label]


def test_emnist_idx_is_set_upright(no_data):
    train, test = grey(4), grey(2)
    for part, x in (("train", train), ("test", test)):
        prefix = no_data / "emnist/gzip" / f"emnist-letters-{part}"
        write_idx(prefix.with_name(prefix.name + "-images-idx3-ubyte.gz"), x, packed=True)
        labels = np.arange(1, len(x) + 1)
        write_idx(prefix.with_name(prefix.name + "-labels-idx1-ubyte.gz"), labels, packed=True)
    section = {"name": "emnist", "variant": "letters", "rows": [4, 2]}
    pool = datasets.load(section)
    assert np.array_equal(pool.x[:4, 0], train.swapaxes(1, 2))
    assert pool.y.tolist() == [0, 1, 2, 3, 0, 1] and pool.classes == 26
    turned = datasets.load({**section, "upright": False})
    assert np.array_equal(turned.x[:4, 0], train)


def test_emnist_parquet_and_variants(no_data):
    for part in ("train", "test"):
        path = no_data / f"emnist/balanced/{part}-00000-of-00001.parquet"
        write_parquet(path, grey(2), label=[46, 0])
    assert datasets.load({"name": "emnist", "rows": [2, 2]}).classes == 47
    with pytest.raises(UserError, match="did you mean 'byclass'"):
        datasets.load({"name": "emnist", "variant": "byclas"})
    assert Emnist(variant="byclass").expected == (697_932, 116_323)


def test_cifar10_binary(no_data):
    folder = no_data / "cifar10/cifar-10-batches-bin"
    folder.mkdir(parents=True)
    rows = draw.integers(0, 256, (6, 3073), dtype=np.uint8)
    rows[:, 0] = range(6)
    for i in range(5):
        (folder / f"data_batch_{i + 1}.bin").write_bytes(rows[i].tobytes())
    (folder / "test_batch.bin").write_bytes(rows[5].tobytes())
    pool = datasets.load({"name": "cifar10", "rows": [5, 1]})
    assert pool.y.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(pool.x[0].ravel(), rows[0, 1:])


def test_cifar100_uses_fine_labels(no_data):
    for part in ("train", "test"):
        columns = {"coarse_label": [1, 2], "fine_label": [99, 7]}
        write_parquet(no_data / f"cifar100/{part}.parquet", colour(2), "img", **columns)
    pool = datasets.load({"name": "cifar100", "rows": [2, 2], "normalize": "feddwa"})
    assert pool.y.tolist() == [99, 7, 99, 7] and pool.std == (0.2023, 0.1994, 0.2010)


def test_cinic10_class_folders(no_data):
    names = ["airplane", "automobile", "bird"]
    pixels = colour(9)
    for p, part in enumerate(("train", "valid", "test")):
        for c, name in enumerate(names):
            folder = no_data / "CINIC-10" / part / name
            folder.mkdir(parents=True)
            (folder / "cifar10-1.png").write_bytes(encode(pixels[3 * p + c]))
    pool = datasets.load({"name": "cinic10", "rows": [3, 3]})
    assert pool.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert np.array_equal(pool.x[3], pixels[6].transpose(2, 0, 1))
    both = datasets.load({"name": "cinic10", "rows": [6, 3], "with_valid": True})
    assert both.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]


def test_cinic10_parquet_with_validation(no_data):
    for part in ("train", "validation", "test"):
        write_parquet(no_data / f"cinic10/data/{part}-00000-of-00001.parquet", colour(1), label=[1])
    assert len(datasets.load({"name": "cinic10", "rows": [1, 1]})) == 2
    assert len(datasets.load({"name": "cinic10", "rows": [2, 1], "with_valid": True})) == 3


def test_tiny_imagenet_folders(no_data):
    base = no_data / "tiny-imagenet-200"
    wnids = ["n02", "n01"]
    for wnid in wnids:
        images = base / "train" / wnid / "images"
        images.mkdir(parents=True)
        for i in range(2):
            (images / f"{wnid}_{i}.JPEG").write_bytes(encode(colour(1, 64)[0], "JPEG"))
    (base / "wnids.txt").write_text("\n".join(wnids))
    (base / "val/images").mkdir(parents=True)
    (base / "val/images/val_0.JPEG").write_bytes(encode(grey(1, 64)[0], "JPEG"))
    (base / "val/val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t63\t63\n")
    pool = datasets.load({"name": "tiny_imagenet", "rows": [4, 1]})
    assert pool.x.shape == (5, 3, 64, 64)  # the grey one too
    assert pool.y.tolist() == [0, 0, 1, 1, 1]  # classes in the order of their wnid


def test_tiny_imagenet_parquet_uses_valid_as_test(no_data):
    for part in ("train", "valid"):
        path = no_data / f"tiny_imagenet/data/{part}-00000-of-00001-abc.parquet"
        write_parquet(path, colour(1, 64), label=[199])
    assert datasets.load({"name": "tiny_imagenet", "rows": [1, 1]}).part.tolist() == [0, 1]


def test_femnist_without_test_part_and_with_named_writers(no_data):
    columns = {"character": [0, 61, 5], "writer_id": ["f2", "f1", "f2"]}
    write_parquet(no_data / "femnist/data/train-00000-of-00001.parquet", grey(3), **columns)
    pool = datasets.load({"name": "femnist"})
    assert pool.group_names == ("f1", "f2") and pool.group.tolist() == [1, 0, 1]
    assert not pool.has_test


def write_omniglot(path, n=4):
    np.savez(
        path,
        images28=grey(n),
        class_id=np.arange(n, dtype=np.uint16),
        alphabet_id=np.arange(n, dtype=np.uint8) // 2,
        alphabet_names=np.array(["Greek", "Latin"]),
        drawer_id=np.arange(1, n + 1, dtype=np.uint8),
    )


def test_omniglot_npz_and_its_rotations(no_data):
    write_omniglot(no_data / "omniglot.npz")
    plain = datasets.load({"name": "omniglot", "rows": [4, 0], "rotations": False})
    turned = datasets.load({"name": "omniglot", "rows": [4, 0]})
    assert len(plain) == 4 and len(turned) == 16
    assert turned.drawing.tolist() == [0, 1, 2, 3] * 4
    assert turned.drawer.tolist() == [1, 2, 3, 4] * 4
    assert np.array_equal(turned.x[6, 0], np.rot90(plain.x[2, 0]))
    assert plain.group_names == ("Greek", "Latin")


def test_omniglot_original_folders(no_data):
    for s, alphabet in (("images_background", "Latin"), ("images_evaluation", "Greek")):
        folder = no_data / "omniglot" / s / alphabet / "character01"
        folder.mkdir(parents=True)
        page = np.full((105, 105), True)
        page[40:60, 40:60] = False  # black ink on white paper, one bit
        Image.fromarray(page).save(folder / "0001_07.png")
    pool = datasets.load({"name": "omniglot", "rows": [2, 0], "rotations": False})
    assert pool.group_names == ("Greek", "Latin") and pool.drawer.tolist() == [7, 7]
    assert pool.x[0, 0, 14, 13] == 255 and pool.x[0, 0, 0, 0] == 0


def test_missing_dataset_says_where_and_how(no_data):
    with pytest.raises(UserError) as caught:
        datasets.load({"name": "cifar10"})
    text = str(caught.value)
    assert str(no_data / "cifar10") in text and str(places.DEBIAN) in text
    assert "IDIOLECT_DATA" in text and "idiolect[hub]" in text and "\n" not in text


def fake_hub(monkeypatch, download):
    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setattr(places, "hub_installed", lambda: True)


def test_hub_download_lands_in_the_user_cache(no_data, monkeypatch):
    def download(repository, repo_type, allow_patterns, local_dir):
        assert repository == "ylecun/mnist" and repo_type == "dataset"
        for part in ("train", "test"):
            file = local_dir / f"mnist/{part}-00000-of-00001.parquet"
            write_parquet(file, grey(1), label=[3])

    fake_hub(monkeypatch, download)
    pool = datasets.load({"name": "mnist", "rows": [1, 1]})
    assert pool.where == str(places.cache_dir() / "data/mnist/mnist")


def test_network_failure_is_one_line(no_data, monkeypatch):
    def download(*args, **options):
        raise ConnectionError("no route\nto host")

    fake_hub(monkeypatch, download)
    with pytest.raises(UserError, match=r"mnist: download of ylecun/mnist failed \(no route to"):
        datasets.load({"name": "mnist"})
    assert not (places.cache_dir() / "data/mnist").exists()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: f.write_bytes(f.read_bytes()[:100]), "cannot be read"),
        (lambda f: write_parquet(f, grey(3), label=[0, 1, 10]), "labels run from 0 to 10"),
        (lambda f: write_parquet(f, grey(3, 20), label=[0, 1, 2]), "is 20x20, expected 28x28"),
        (lambda f: write_parquet(f, grey(3), lable=[0, 1, 2]), "no column label"),
        (
            lambda f: pq.write_table(
                pa.table({"image": [{"bytes": b"no", "path": None}] * 3, "label": [0] * 3}), f
            ),
            "image 0 cannot be decoded",
        ),
    ],
)
def test_damaged_files_are_one_line(no_data, spoil, words):
    file = no_data / "mnist/train.parquet"
    write_parquet(file, grey(3), label=[0, 1, 2])
    write_parquet(no_data / "mnist/test.parquet", grey(1), label=[0])
    spoil(file)
    with pytest.raises(UserError, match=words) as caught:
        datasets.load({"name": "mnist", "rows": [3, 1]})
    assert "\n" not in str(caught.value)


def test_damaged_idx_and_npz(no_data):
    folder = no_data / "fashion_mnist"
    for prefix in ("train", "t10k"):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", grey(2))
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(2))
    file = folder / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(UserError, match="cannot be read"):
        datasets.load({"name": "fashion_mnist"})
    (no_data / "omniglot.npz").write_bytes(b"PK nothing")
    with pytest.raises(UserError, match="cannot be read"):
        datasets.load({"name": "omniglot"})


class TestCache:
    @pytest.fixture
    def mnist(self, no_data, monkeypatch):
        write_parquet(no_data / "mnist/train.parquet", grey(9), label=[1] * 9)
        write_parquet(no_data / "mnist/test.parquet", grey(4), label=[2] * 4)
        decoded = []
        real = decode.parquet

        def counted(*args, **options):
            decoded.append(1)
            return real(*args, **options)

        monkeypatch.setattr(decode, "parquet", counted)
        return types.SimpleNamespace(
            load=lambda: datasets.load({"name": "mnist", "rows": [9, 4]}),
            decoded=decoded,
            folder=no_data,
            cache=places.cache_dir() / "decoded",
        )

    def test_second_load_is_mapped_not_decoded(self, mnist):
        first, second = mnist.load(), mnist.load()
        assert len(mnist.decoded) == 2  # train and test, once
        assert isinstance(second.x, np.memmap)
        assert np.array_equal(first.x, second.x) and np.array_equal(first.y, second.y)
        assert sorted(p.suffix for p in mnist.cache.iterdir()) == [".npy", ".npz"]

    def test_changed_file_is_decoded_again_and_the_old_copy_goes(self, mnist):
        mnist.load()
        write_parquet(mnist.folder / "mnist/train.parquet", grey(9), label=[3] * 9)
        assert mnist.load().y[0] == 3
        assert len(list(mnist.cache.iterdir())) == 2

    @pytest.mark.parametrize("suffix", [".npy", ".npz"])
    @pytest.mark.parametrize("how", ["cut", "flipped", "empty", "gone"])
    def test_damaged_copy_is_rebuilt(self, mnist, caplog, suffix, how):
        good = mnist.load()
        want = np.array(good.x)
        file = next(mnist.cache.glob(f"*{suffix}"))
        raw = bytearray(file.read_bytes())
        file.unlink()
        if how == "cut":
            file.write_bytes(raw[: len(raw) // 2])
        elif how == "flipped":
            raw[len(raw) // 2] ^= 1
            file.write_bytes(raw)
        elif how == "empty":
            file.touch()
        with caplog.at_level(logging.WARNING):
            pool = mnist.load()
        assert np.array_equal(pool.x, want) and len(mnist.decoded) == 4
        assert len(caplog.records) == (0 if how == "gone" else 1)
        mnist.load()
        assert len(mnist.decoded) == 4

    def test_unwritable_cache_is_one_warning(self, mnist, caplog):
        places.cache_dir().parent.mkdir(exist_ok=True)
        places.cache_dir().write_text("a file where the folder should be")
        with caplog.at_level(logging.WARNING):
            pool = mnist.load()
        assert len(pool) == 13
        assert len(caplog.records) == 1 and "IDIOLECT_CACHE" in caplog.text

    def test_full_disk_is_one_warning_and_leaves_nothing(self, mnist, caplog, monkeypatch):
        def full(*args, **options):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np, "savez", full)
        with caplog.at_level(logging.WARNING):
            pool = mnist.load()
        assert len(pool) == 13 and "No space left" in caplog.text
        assert not list(mnist.cache.glob(".writing-*"))


def test_cache_dir_order(monkeypatch, tmp_path):
    monkeypatch.delenv("IDIOLECT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert places.cache_dir() == tmp_path / "xdg/idiolect"
    monkeypatch.setenv("IDIOLECT_CACHE", str(tmp_path / "own"))
    assert places.cache_dir() == tmp_path / "own"


def test_list_datasets_says_where(no_data):
    write_omniglot(no_data / "omniglot.npz")
    listed = {d["name"]: d for d in json.loads(json.dumps(list_datasets()))}
    assert listed["digits"]["found"] == "scikit-learn"
    assert listed["omniglot"]["found"] == str(no_data / "omniglot.npz")
    assert listed["cifar10"]["found"] is None
    assert listed["tiny_imagenet"]["shape"] == [3, 64, 64]
    assert datasets.get({"name": "digits"}) == "scikit-learn"
