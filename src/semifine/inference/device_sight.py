"""Images seen on a GPU: the CPU does nothing but decode, in threads; what else is to do to the pixels is done there.

The GPU's own JPEG decoder is left alone: bit by bit, training's images are libjpeg's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from semifine.data.reading import decode_content, shrunk_size
from semifine.data.whole_jpeg import is_whole_jpeg
from semifine.inference.knowledge import Knowledge
from semifine.inference.view import Pixels, oversampling
from semifine.views.crops import centre_crop, render_crop
from semifine.views.images import ImageTable, image_batch


class DeviceSight:
    """Levels are those of ``HostSight`` but for rounding: a test allows two of 255."""

    together = 32  # each time takes dozens of small operations, which threads have to make one after the other

    def __init__(self, known: Knowledge, device: torch.device) -> None:
        self.known = known
        self._device = device
        self._launching = Lock()  # the kernels are compiled once, not by every thread
        # A stream of its own: small copies wait for what is before them, which must not be the network's work.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def decode_file(self, file: str) -> Pixels:
        """A plain JPEG in full size, which the GPU shrinks; every other file as ``HostSight`` does."""
        with open(file, "rb") as opened:
            data = opened.read()
        # What is broken goes on to Pillow, which says what is wrong with it, and so does everything when a torchvision
        # comes without the decoder, as is announced.
        with suppress(Exception):
            if is_whole_jpeg(data, self.known.stored_side):
                return _decode_whole(data)
        return decode_content(data, self.known.stored_side, file).pixels

    def views(self, images: Sequence[Pixels]) -> Sequence[Tensor]:
        """Images of one size are handled together: a camera's all have the same. The views are there on return."""
        alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, image in enumerate(images):
            alike[image.shape].append(place)
        views: dict[int, Tensor] = {}
        for places in alike.values():
            stack = self._stacked([images[place] for place in places])
            with self._launching, torch.cuda.stream(self._stream):
                squares = self._squares(self._shrunk(stack.to(self._device, non_blocking=True)))
            views |= zip(places, squares.unbind(), strict=True)
        if self._stream is not None:
            self._stream.synchronize()
        return [views[place] for place in range(len(images))]

    def _stacked(self, images: Sequence[Pixels]) -> Tensor:
        """(n, H, W, 3) in memory that the GPU can read while the CPU goes on."""
        shape = (len(images), *images[0].shape)
        stack = torch.empty(shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        np.stack(images, out=stack.numpy())  # torch would copy with all cores in each of the threads
        return stack

    def _shrunk(self, stack: Tensor) -> Tensor:
        """As ``data.reading.shrink``: Pillow's antialiased bicubic is torch's."""
        whole = (stack.shape[1], stack.shape[2])
        size = shrunk_size(whole, self.known.stored_side)
        if size == whole:
            return stack
        small = interpolate(stack.permute(0, 3, 1, 2).float(), size, mode="bicubic", antialias=True)
        return small.add_(0.5).clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)

    def _squares(self, stack: Tensor) -> Tensor:
        """(n, S, S, 3): the views of testing, rounded to whole levels."""
        count, height, width, channels = stack.shape
        offset = np.arange(count) * (height * width * channels)
        table = ImageTable(offset, np.full(count, height), np.full(count, width))
        size = self.known.image_size
        batch = image_batch(stack.flatten(), table, stack.device, oversampling(min(height, width), size))
        levels = render_crop(batch, centre_crop(table, size), size)
        return levels.add_(0.5).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _decode_whole(data: bytes) -> Pixels:
    """What Pillow decodes, bit by bit, with less around it and without the GIL."""
    from torchvision.io import ImageReadMode, decode_jpeg

    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    pixels: Pixels = decode_jpeg(encoded, ImageReadMode.RGB).permute(1, 2, 0).numpy()
    return pixels
