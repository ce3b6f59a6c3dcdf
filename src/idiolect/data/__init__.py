"""The federation: clients with their data.

datasets/       what each dataset is: shape, classes, files, normalization
places.py       the folders that are searched, and the download
layouts.py      finds the files of a dataset in a folder
decode.py       decodes images and other files into arrays
arrays.py       reads .npz and .npy files
limits.py       how large data from a file may become
labels.py       labels are whole numbers
cache.py        keeps decoded datasets on disk
pool.py         every sample of a dataset, before it is split
splits/         how samples come to clients, one file per split
federation.py   the clients with their data, also from your own arrays, files and datasets
packed.py       several inputs of a sample in one tensor
own/            your own files and functions
client_arrays.py   one client's arrays, checked
build.py        all of the above, from the sections of a config
"""

from idiolect.data.build import build, describe
from idiolect.data.datasets import get, list_datasets
from idiolect.data.federation import Federation
from idiolect.data.splits import list_splits

__all__ = ["Federation", "build", "describe", "get", "list_datasets", "list_splits"]
