"""CIFAR-100: 100 classes in the layout of CIFAR-10, with other names of files and entries."""

from __future__ import annotations

from functools import partial

from semifine.data.sources import Source
from semifine.data.sources.cifar10 import Layout, Settings, load

CIFAR100 = Layout(
    name="cifar100",
    num_classes=100,
    train=("train",),
    test="test",
    meta="meta",
    names_key="fine_label_names",
    labels_key="fine_labels",
    binary_train=("train.bin",),
    binary_test="test.bin",
    binary_names="fine_label_names.txt",
    label_bytes=2,
)

SOURCE = Source(
    name="cifar100",
    summary="CIFAR-100: 100 classes, 50,000 training and 10,000 test images of 32 pixels.",
    path_kind="folder or file",
    settings_class=Settings,
    load=partial(load, CIFAR100),
)
