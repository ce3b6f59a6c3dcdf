"""Writes the small files of docs/examples.md into the current folder.

Sources: the diabetes table and the digits of scikit-learn (real data that ships with it; see
`sklearn.datasets.load_diabetes` and `load_digits`), and texts and signals made here.
"""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn.datasets import load_diabetes, load_digits

SPEAKERS = {
    "gardener": (("roses", "soil", "seeds", "the old pear tree"), ("water", "dig", "prune")),
    "captain": (("the sails", "the harbour", "the north wind", "the crew"), ("hoist", "steer")),
    "cook": (("the bread", "the pepper", "a pot of soup", "the oven"), ("stir", "taste", "knead")),
    "clerk": (("the ledger", "the stamps", "form nine", "the archive"), ("file", "sign", "copy")),
}
FRAMES = {
    "order": ("{verb} {thing} before noon", "now {verb} {thing}", "do not {verb} {thing} yet"),
    "question": ("who will {verb} {thing}", "why did you {verb} {thing}", "where is {thing}"),
    "claim": ("i like to {verb} {thing}", "{thing} can wait", "we always {verb} {thing}"),
}


def diabetes() -> None:
    """Progression of diabetes of 442 patients, in hundreds; a client is a group of ages."""
    table = load_diabetes(scaled=False)
    lines = ["age_group,sex,bmi,pressure,s5,progression"]
    for row, target in zip(table.data, table.target, strict=True):
        groups = ("under 30", "30 to 44", "45 to 59", "60 and more")
        group = groups[sum(row[0] >= age for age in (30, 45, 60))]
        sex = "first" if row[1] == 1 else "second"
        cells = f"{row[2]:.1f},{row[3]:.0f},{row[8]:.3f},{target / 100:.2f}"
        lines.append(f"{group},{sex},{cells}")
    Path("diabetes.csv").write_text("\n".join(lines) + "\n")


def dialogue() -> None:
    """Sentences of four speakers, each with words of its own; every one has a kind."""
    draw = np.random.default_rng(0)
    lines = ["speaker,kind,text"]
    for speaker, (things, verbs) in SPEAKERS.items():
        for number in range(60):
            kind = ("order", "question", "claim")[number % 3]
            frame = FRAMES[kind][draw.integers(len(FRAMES[kind]))]
            thing, verb = things[draw.integers(len(things))], verbs[draw.integers(len(verbs))]
            lines.append(f"{speaker},{kind},{frame.format(verb=verb, thing=thing)}")
    Path("dialogue.csv").write_text("\n".join(lines) + "\n")


def notes() -> None:
    """Digits with several labels each; a client is a scanner that holds the page its own way."""
    digits = load_digits()
    x, y = digits.images[:480].astype(np.float32) / 16, digits.target[:480]
    scanner = np.arange(480) % 4
    turned = np.stack([np.rot90(image, k) for image, k in zip(x, scanner, strict=True)])
    labels = np.stack([y % 2 == 0, y > 4, np.isin(y, (0, 6, 8, 9))], 1).astype(np.uint8)
    names = np.array([f"scanner {k}" for k in scanner])
    np.savez("notes.npz", x=turned.reshape(480, 64), y=labels, client=names)


def photos() -> None:
    """Images in folders, photos/client/class/image.png: a client photographs by its own light."""
    digits = load_digits()
    for place, light in (("day", 15.0), ("dusk", 8.0), ("night", 3.0)):
        for digit in range(4):
            folder = Path("photos", place, f"digit {digit}")
            folder.mkdir(parents=True, exist_ok=True)
            images = digits.images[digits.target == digit]
            start = {"day": 0, "dusk": 30, "night": 60}[place]
            for number, image in enumerate(images[start : start + 24]):
                pixels = np.clip(image * light, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")


def signals() -> None:
    """Vibration of machines: healthy, unbalanced or loose; every machine turns at its own speed."""
    draw = np.random.default_rng(1)
    time = np.linspace(0, 1, 64)
    x, y, client = [], [], []
    for machine in range(4):
        speed = 3 + 2 * machine
        for number in range(60):
            state = number % 3
            wave = np.sin(2 * np.pi * (speed * time + draw.random()))
            if state == 1:
                wave = wave + 0.8 * np.sin(2 * np.pi * (2 * speed * time + draw.random()))
            if state == 2:
                wave = wave * (1 + 0.8 * np.sin(2 * np.pi * (time + draw.random())))
            x.append(wave + draw.normal(0, 0.2, 64))
            y.append(("healthy", "unbalanced", "loose")[state])
            client.append(f"machine {machine}")
    np.savez("signals.npz", x=np.array(x, np.float32), y=np.array(y), client=np.array(client))


def femnist() -> None:
    """A small file in FEMNIST's layout, where the real one is not at hand: digits by 12 writers, of
    whom each slants its own way."""
    digits = load_digits()
    rows: dict[str, list[object]] = {"image": [], "writer_id": [], "character": []}
    for number in range(600):
        writer = number % 12
        image = Image.fromarray((255 - digits.images[number] * 15.9).astype(np.uint8))
        turned = image.resize((28, 28)).rotate(8 * (writer - 6), fillcolor=255)
        rows["image"].append({"bytes": _png(turned), "path": None})
        rows["writer_id"].append(f"writer {writer:02d}")
        rows["character"].append(int(digits.target[number]))
    Path("small/femnist").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(rows), "small/femnist/train.parquet")


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def main() -> None:
    for make in (diabetes, dialogue, notes, photos, signals, femnist):
        make()
    print("diabetes.csv, dialogue.csv, notes.npz, photos/, signals.npz, small/femnist/")


if __name__ == "__main__":
    main()
